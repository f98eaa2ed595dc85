// Package program is the common part of the long-running programs: exit codes, logging, usage errors, the build, and the duty of a
// container's first process to reap orphans. lofamoctl, which is for people, has another command line and uses only Build and FlagError.
package program

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/config"
)

// The exit codes.
const (
	ExitFailure = 1
	ExitUsage   = 2 // wrong usage or bad configuration: trying again does not help
)

// Usage marks an error as a usage error.
func Usage(err error) error { return WithCode(err, ExitUsage) }

// WithCode gives an error its exit code. The outermost code counts.
func WithCode(err error, code int) error { return codeError{err, code} }

type codeError struct {
	err  error
	code int
}

func (e codeError) Error() string { return e.err.Error() }
func (e codeError) Unwrap() error { return e.err }

// Root returns the root command of a program. Without a subcommand it fails with a usage error; wants lists the subcommands.
func Root(name, short, wants string) *cobra.Command {
	root := &cobra.Command{
		Use: name, Short: short, SilenceUsage: true, SilenceErrors: true, Args: Args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			return Usage(fmt.Errorf("no command given: want %s (see %s --help)", wants, name))
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return Usage(FlagError(err)) })
	AddVersionFlag(root)
	return root
}

// AddVersionFlag adds --version to a program's root command. It prints the line of the command version.
func AddVersionFlag(root *cobra.Command) {
	root.Version = Build().String()
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
}

// FlagError rewords an error of a flag's value: it states the allowed values instead of naming the failed parser.
func FlagError(err error) error {
	text := err.Error()
	for _, r := range flagWords {
		if at := r.parser.FindStringIndex(text); at != nil {
			return errors.New(text[:at[0]] + r.want)
		}
	}
	return err
}

var flagWords = []struct {
	parser *regexp.Regexp
	want   string
}{
	{regexp.MustCompile(`strconv\.Parse\w+: parsing .*: value out of range$`), "want a number nearer to 0"},
	{regexp.MustCompile(`strconv\.(ParseUint): parsing .*$`), "want a whole number, 0 or more"},
	{regexp.MustCompile(`strconv\.(ParseInt|Atoi): parsing .*$`), "want a whole number"},
	{regexp.MustCompile(`strconv\.ParseFloat: parsing .*$`), "want a number"},
	{regexp.MustCompile(`strconv\.ParseBool: parsing .*$`), "want true or false"},
}

// StartFlag is the flag of `config check` that makes it decide like a start on this machine, and StartHelp is its help.
const (
	StartFlag = "start"
	StartHelp = "decide like a start on this machine as this user: refuse keys and certificates that the program could not use, and only " +
		"warn about mistakes that a start accepts"
)

// ConfigCommand returns `config`, whose subcommand `check FILE` checks a configuration file. Without FILE it takes that of
// --config. check gets the value of StartFlag.
func ConfigCommand(short, long string, check func(cmd *cobra.Command, file string, start bool) error) *cobra.Command {
	var file string
	var start bool
	cmd := &cobra.Command{
		Use: "config", Short: "Check configuration files", Args: Args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return Usage(errors.New("config: want config check FILE")) },
	}
	sub := &cobra.Command{
		Use: "check FILE", Short: short, Long: long, Args: Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 0 && file != "":
				return Usage(fmt.Errorf("config check: FILE %s and --config %s: want only one", args[0], file))
			case len(args) > 0:
				return check(cmd, args[0], start)
			case file == "":
				return Usage(errors.New("config check: FILE is missing"))
			}
			return check(cmd, file, start)
		},
	}
	sub.Flags().StringVar(&file, "config", "", "the same as FILE")
	sub.Flags().BoolVar(&start, StartFlag, false, StartHelp)
	cmd.AddCommand(sub)
	return cmd
}

// Args marks errors of an argument check as usage errors.
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
	var coded codeError
	if errors.As(err, &coded) {
		return coded.code
	}
	return ExitFailure
}

// NewLogger returns a logger for a validated configuration.
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

// VersionCommand returns the command that prints a program's build.
func VersionCommand(name string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "Print which build this is", Args: Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := Build()
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
