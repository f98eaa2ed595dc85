package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/internal/agent/daemon"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/pkg/fault"
)

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
func (j joinFlags) write(etc string) error {
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
	file := filepath.Join(etc, "agent.yaml")
	j.tokenFile = filepath.Join(etc, "token")
	text, err := j.configuration()
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(file); err == nil && !bytes.Equal(old, text) {
		return fmt.Errorf("%s exists and says something else: remove it, or change it by hand and restart the service", file)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("configuration: %w", err)
	}
	if err := os.MkdirAll(etc, 0o755); err != nil { //nolint:gosec // the service's user reads it
		return fmt.Errorf("configuration: %w", err)
	}
	uid, gid, err := program.Owner("")
	if err != nil {
		return fmt.Errorf("token: user %s: %w", program.ServiceUser, err)
	}
	var files durable.Batch
	if err = files.Add(j.tokenFile, token, 0o400, uid, gid); err == nil {
		err = files.Add(file, text, 0o644, -1, -1) // it holds no secret, and the service's user reads it
	}
	if err == nil {
		err = files.Commit()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("configuration and token: %w", err), files.Discard())
	}
	return nil
}

// configuration returns the agent's configuration with the flags alone, after the checks that the agent makes at its start.
func (j joinFlags) configuration() ([]byte, error) {
	cfg, err := config.ReadAgent("", nil)
	if err != nil {
		return nil, err
	}
	j.into(&cfg)
	text, err := yaml.Marshal(struct {
		Node fault.NodeID      `json:"node,omitempty"`
		Join config.JoinConfig `json:"join"`
	}{cfg.Node, cfg.Join})
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	if cfg, _, err = daemon.JoinName(cfg); err == nil {
		err = cfg.ValidateJoin()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: join: %w", errUsage, err)
	}
	return text, nil
}
