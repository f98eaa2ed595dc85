package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/internal/agent/daemon"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
)

// serviceUser is the user of the packages' unit.
const serviceUser = "lofamo"

func (o *options) joinCommand() *cobra.Command {
	var etc string
	var enable bool
	var j joinFlags
	c := &cobra.Command{
		Use:   "join HOST[:PORT]...",
		Short: "Make this machine a node: write its configuration and its token for the service, and start that",
		Long: "Make this machine a node: write agent.yaml and the token for the packaged service, which then enrols the node.\n\n" +
			"A configuration that exists and says something else stays, and the command fails. With --enable, it enables and\n" +
			"starts the service; otherwise it prints how to.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("%w: join: want HOST[:PORT] of supervisors", errUsage)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			j.supervisors = args
			if err := j.write(etc); err != nil {
				return err
			}
			start := []string{"systemctl", "enable", "--now", "lofamo-agent"}
			if !enable {
				_, err := fmt.Fprintf(c.OutOrStdout(), "to start it: %s\n", strings.Join(start, " "))
				return err
			}
			if out, err := exec.CommandContext(c.Context(), start[0], start[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", strings.Join(start, " "), err, bytes.TrimSpace(out))
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&j.tokenFile, "token-file", "", "file with the token, as 'lofamoctl token create' prints it; required")
	f.StringVar(&j.node, "node", "", "name of the node (default: the machine's name)")
	f.StringVar(&j.address, "address", "", "IP of this machine (default: that from which it reaches a supervisor)")
	f.StringToStringVar(&j.labels, "label", nil, "labels of the node, KEY=VALUE,...")
	f.StringVar(&etc, "etc", "/etc/lofamo", "directory of the configuration")
	f.BoolVar(&enable, "enable", false, "enable and start the service by systemctl")
	return c
}

// write writes the configuration and the token. It checks both first, so that nothing is half done because of a mistake.
func (j *joinFlags) write(etc string) error {
	if j.tokenFile == "" {
		return fmt.Errorf("%w: join: --token-file is missing: a file as 'lofamoctl token create' prints it", errUsage)
	}
	token, err := config.ReadBounded(j.tokenFile, config.MaxFile)
	if err != nil {
		return fmt.Errorf("%w: --token-file: %w", errUsage, err)
	}
	token = append(bytes.TrimSpace(token), '\n')
	if _, err := pki.ParseJoinToken(strings.TrimSpace(string(token))); err != nil {
		return fmt.Errorf("%w: --token-file %s: %w", errUsage, j.tokenFile, err)
	}
	file, tokenFile := filepath.Join(etc, "agent.yaml"), filepath.Join(etc, "token")
	join := map[string]any{"tokenFile": tokenFile}
	var supervisors []string
	for _, s := range j.supervisors {
		supervisors = append(supervisors, config.WithEnrolmentPort(s))
	}
	join["supervisors"] = supervisors
	if j.address != "" {
		join["address"] = j.address
	}
	if len(j.labels) > 0 {
		join["labels"] = j.labels
	}
	out := map[string]any{"join": join}
	if j.node != "" {
		out["node"] = j.node
	}
	text, err := yaml.Marshal(out)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if err := checkJoin(text); err != nil {
		return fmt.Errorf("%w: join: %w", errUsage, err)
	}
	if old, err := os.ReadFile(file); err == nil && !bytes.Equal(old, text) {
		return fmt.Errorf("%s exists and says something else: remove it, or change it by hand and restart the service", file)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("configuration: %w", err)
	}
	if err := os.MkdirAll(etc, 0o755); err != nil { //nolint:gosec // the service's user reads it
		return fmt.Errorf("configuration: %w", err)
	}
	if err := replaceToken(tokenFile, token); err != nil {
		return err
	}
	if err := os.WriteFile(file, text, 0o644); err != nil { //nolint:gosec // it holds no secret, and the service's user reads it
		return fmt.Errorf("configuration: %w", err)
	}
	return nil
}

// checkJoin checks a configuration as the agent will at its start.
func checkJoin(text []byte) error {
	f, err := os.CreateTemp("", "lofamo-join-*.yaml")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	cfg, err := config.ReadAgent(f.Name(), nil)
	if err != nil {
		return err
	}
	if cfg, _, err = daemon.JoinName(cfg); err != nil {
		return err
	}
	return cfg.ValidateJoin()
}

// replaceToken writes the token for the service's user alone, or for the caller if there is no such user.
func replaceToken(file string, token []byte) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("token: %w", err)
	}
	if err := os.WriteFile(file, token, 0o400); err != nil {
		return fmt.Errorf("token: %w", err)
	}
	u, err := user.Lookup(serviceUser)
	if err != nil || os.Geteuid() != 0 {
		return nil //nolint:nilerr // no package: the caller starts the agent
	}
	uid, errUID := strconv.Atoi(u.Uid)
	gid, errGID := strconv.Atoi(u.Gid)
	if err := errors.Join(errUID, errGID); err != nil {
		return fmt.Errorf("token: user %s: %w", serviceUser, err)
	}
	if err := os.Chown(file, uid, gid); err != nil {
		return fmt.Errorf("token: %w", err)
	}
	return nil
}
