// Command supervisor is one replica of the supervisors: flags, signals and one call.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/supervisor"
	"github.com/lofamo/lofamo/internal/version"
)

// The exit codes.
const (
	exitFailure = 1
	exitUsage   = 2 // wrong usage or bad configuration: trying again does not help
)

func main() { os.Exit(execute(os.Args[1:], os.Environ(), os.Stdout, os.Stderr)) }

// usageError is an error of whoever called.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func execute(args, environ []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	cmd := command(environ)
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	_, _ = fmt.Fprintln(stderr, "supervisor:", err)
	var usage usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailure
}

func command(environ []string) *cobra.Command {
	root := &cobra.Command{
		Use:           "supervisor",
		Short:         "A replica of LO|FA|MO's supervisors: evidence in, fault map out",
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return usageError{fmt.Errorf("no command given: want run, config check, restore, check or version (see supervisor --help)")}
		},
		Args: usageArgs(cobra.NoArgs),
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	configCmd := &cobra.Command{
		Use: "config", Short: "Look at configurations", Args: usageArgs(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return usageError{fmt.Errorf("config: want check FILE")} },
	}
	configCmd.AddCommand(checkCommand(environ))
	root.AddCommand(runCommand(environ), configCmd, restoreCommand(environ), checkSnapshotCommand(), versionCommand())
	return root
}

// usageArgs turns a complaint about arguments into a usageError.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{err}
		}
		return nil
	}
}

func runCommand(environ []string) *cobra.Command {
	var file string
	var endpoints, upstream []string
	cmd := &cobra.Command{
		Use:   "run --config FILE",
		Short: "Run a replica until a signal ends it",
		Long: `Run a replica until SIGINT or SIGTERM ends it.

The configuration is a YAML file; the environment (LOFAMO_SUPERVISOR_…) goes before it, and flags
before both. Without --etcd-endpoints, and none in the file, etcd runs inside this process.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usageError{fmt.Errorf("run: --config is missing")}
			}
			cfg, err := load(file, environ, endpoints, upstream)
			if err != nil {
				return usageError{err}
			}
			return run(cmd.Context(), cfg, newLogger(cfg.Log, cmd.ErrOrStderr()))
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration file, YAML")
	cmd.Flags().StringSliceVar(&upstream, "upstream", nil, "supervisors of the parent of this region, to which its changes are passed on: ID=IP:PORT of the API, comma-separated")
	cmd.Flags().StringSliceVar(&endpoints, "etcd-endpoints", nil, "use an etcd outside instead of an embedded one: its URLs, comma-separated")
	return cmd
}

func load(file string, environ, endpoints, upstream []string) (config.Supervisor, error) {
	cfg, err := config.ReadSupervisor(file, environ)
	if err != nil {
		return cfg, err
	}
	if len(endpoints) > 0 {
		cfg.Etcd.Endpoints = endpoints
	}
	if len(upstream) > 0 {
		cfg.Upstream = nil
		for _, u := range upstream {
			id, addr, ok := strings.Cut(u, "=")
			if !ok {
				return cfg, fmt.Errorf("--upstream %q: want ID=IP:PORT", u)
			}
			cfg.Upstream = append(cfg.Upstream, config.UpstreamEntry{ID: id, GRPC: addr})
		}
	}
	if err := cfg.Validate(); err != nil {
		return cfg, fmt.Errorf("configuration %s: %w", file, err)
	}
	return cfg, nil
}

// stopTime bounds the whole of stopping.
const stopTime = 15 * time.Second

func run(ctx context.Context, cfg config.Supervisor, logger *slog.Logger) error {
	s, err := supervisor.New(cfg, logger)
	if err != nil {
		return usageError{err}
	}
	if err := s.Start(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		err = nil
	case err = <-s.Failed():
	}
	sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	return errors.Join(err, s.Stop(sctx))
}

// quiet is for commands that say all themselves.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// newLogger is given a validated configuration.
func newLogger(cfg config.LogConfig, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Level)); err != nil {
		level = slog.LevelInfo
	}
	opts := &slog.HandlerOptions{Level: level}
	if cfg.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

func checkCommand(environ []string) *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Check a configuration file without starting anything",
		Long:  "Check a configuration file, with the environment applied, and print the bounds that its periods promise.",
		Args:  usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := config.LoadSupervisor(args[0], environ)
			if err != nil {
				return usageError{err}
			}
			p, err := cfg.Timing()
			if err != nil {
				return usageError{err}
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: good: supervisor %s of cluster %s, %d nodes in %s; death of a half known within %s, of a node within %s\n",
				args[0], cfg.ID, cfg.Cluster, len(cfg.Nodes), cfg.Dims, p.HalfBound(), p.NodeBound())
			return err
		},
	}
}

func versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "Print which build this is", Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := version.Get()
			if !asJSON {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), "supervisor", info)
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(info)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
