// Command lofamo-executor is the executor process: it does for the supervisors what ends work, or may, on Slurm, power and its own
// host, each attempt once and under the newest leader alone.
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
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor/process"
	"github.com/lofamo/lofamo/internal/version"
)

// The exit codes.
const (
	exitFailure = 1
	exitUsage   = 2 // wrong usage or bad configuration: trying again does not help
)

func main() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) }

// usageError is an error of whoever called.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func execute(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	cmd := command()
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	_, _ = fmt.Fprintln(stderr, "lofamo-executor:", err)
	var usage usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailure
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "lofamo-executor",
		Short:         "Does for LO|FA|MO's supervisors what ends work: Slurm, power and commands",
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(*cobra.Command, []string) error {
			return usageError{errors.New("no command given: want init, run, check-config or version (see lofamo-executor --help)")}
		},
		Args: usageArgs(cobra.NoArgs),
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(initCommand(), runCommand(), checkCommand(), versionCommand())
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

func load(file string) (process.Config, error) {
	if file == "" {
		return process.Config{}, usageError{errors.New("--config is missing")}
	}
	cfg, err := process.Load(file)
	if err != nil {
		return cfg, usageError{err}
	}
	return cfg, nil
}

func initCommand() *cobra.Command {
	var file string
	var forget bool
	cmd := &cobra.Command{
		Use:   "init --config FILE",
		Short: "Make the ledger of a new executor process",
		Long: `Make the ledger of a new executor process, in its state directory.

The ledger has the highest fencing token and the attempts that the process has seen. 'run' refuses to begin without it: a process that has
forgotten them would obey a leader of old. With --forget a ledger that is there, or is damaged, is replaced by one that has seen
nothing; first make sure that no supervisor of old is left that could still send something.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load(file)
			if err != nil {
				return err
			}
			was, err := process.Init(cfg.StateDir, cfg.Cluster, forget)
			if err != nil {
				return err
			}
			if was != "" {
				_, _ = fmt.Fprintln(cmd.OutOrStdout(), "forgotten:", was)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: a ledger that has seen nothing, for cluster %s\n", cfg.StateDir, cfg.Cluster)
			return err
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration file, YAML")
	cmd.Flags().BoolVar(&forget, "forget", false, "replace a ledger that is there")
	return cmd
}

func runCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "run --config FILE",
		Short: "Run until a signal ends it",
		Long: `Run until SIGINT or SIGTERM ends it. Attempts that are under way then have the configuration's stopTimeout to end; a second signal ends the
process at once, and what was under way is not known afterwards.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load(file)
			if err != nil {
				return err
			}
			return run(cmd.Context(), cfg, newLogger(cfg.Log, cmd.ErrOrStderr()))
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration file, YAML")
	return cmd
}

func run(ctx context.Context, cfg process.Config, logger *slog.Logger) error {
	p, err := process.New(cfg, logger)
	if err != nil {
		return usageError{err}
	}
	if err := p.Start(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		err = nil
	case err = <-p.Failed():
	}
	return errors.Join(err, p.Stop())
}

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

func checkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check-config FILE",
		Short: "Check a configuration file, and the files that it names, without starting anything",
		Args:  usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := load(args[0])
			if err != nil {
				return err
			}
			p, err := process.New(cfg, slog.New(slog.DiscardHandler))
			if err != nil {
				return usageError{fmt.Errorf("configuration %s: %w", args[0], err)}
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: good: executor process of cluster %s on %s, for %v\n", args[0], cfg.Cluster, cfg.Listen, p.Kinds())
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
				_, err := fmt.Fprintln(cmd.OutOrStdout(), "lofamo-executor", info)
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(info)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
