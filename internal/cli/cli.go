// Package cli is what the command lines of the long-running programs have in common: how they end, what they log with, and what they call a
// wrong usage. What a program does is its own; lofamoctl, which is for people, has more to say than this.
package cli

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
	"github.com/lofamo/lofamo/internal/version"
)

// The exit codes.
const (
	ExitFailure = 1
	ExitUsage   = 2 // wrong usage or bad configuration: trying again does not help
)

// Usage makes an error that is the caller's.
func Usage(err error) error { return usageError{err} }

type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// Root returns the command of a program, which by itself is a wrong usage: wants names what it wants instead.
func Root(name, short, wants string) *cobra.Command {
	root := &cobra.Command{
		Use: name, Short: short, SilenceUsage: true, SilenceErrors: true, Args: Args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			return Usage(fmt.Errorf("no command given: want %s (see %s --help)", wants, name))
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return Usage(err) })
	return root
}

// Args turns a complaint about arguments into one of the caller's.
func Args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return Usage(err)
		}
		return nil
	}
}

// Execute runs a command line until it ends, or until SIGINT or SIGTERM ends its context, and returns the exit code. A second signal ends
// the process at once.
func Execute(root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	_, _ = fmt.Fprintf(stderr, "%s: %s\n", root.Name(), err)
	var usage usageError
	if errors.As(err, &usage) {
		return ExitUsage
	}
	return ExitFailure
}

// NewLogger is given a validated configuration.
func NewLogger(cfg config.LogConfig, w io.Writer) *slog.Logger {
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

// Version is the command that prints which build a program is.
func Version(name string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "Print which build this is", Args: Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := version.Get()
			if !asJSON {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), name, info)
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(info)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
