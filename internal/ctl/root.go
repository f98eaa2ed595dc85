// Package ctl is the users' command line: what lofamoctl's commands are called, what they take and
// how their answers look. It asks the supervisors through their API and makes local clusters
// through internal/cluster; it knows nothing of either beyond that, and decides nothing.
//
// Exit codes: 0 for success, 1 for a failure, 2 for a command line that cannot be understood.
package ctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/cluster"
)

// The exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitFound   = 3
)

// Env is what a command line has around it.
type Env struct {
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	ErrTerminal    bool // Stderr is a terminal
	Terminal       bool // Stdout is one that understands colours and cursor movements
	Width          int  // of the terminal in columns, 0 when unknown
	Now            func() time.Time
	Location       *time.Location
}

// System is the environment of a real process.
func System() Env {
	e := Env{Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Now: time.Now, Location: time.Local}
	if ws, err := unix.IoctlGetWinsize(int(os.Stdout.Fd()), unix.TIOCGWINSZ); err == nil {
		e.Terminal, e.Width = os.Getenv("TERM") != "dumb", int(ws.Col)
	}
	if _, err := unix.IoctlGetWinsize(int(os.Stderr.Fd()), unix.TIOCGWINSZ); err == nil {
		e.ErrTerminal = os.Getenv("TERM") != "dumb"
	}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		e.Width = n
	}
	return e
}

// usageError is a command line that cannot be understood.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// silentError ends the program with a failure about which everything was said already.
type silentError struct{ error }

// Unwrap returns what happened.
func (e silentError) Unwrap() error { return e.error }

// foundError ends the program with a report that stands, and has something wrong in it.
type foundError struct{}

func (foundError) Error() string { return "something is wrong: see the report" }

// app is what the commands share.
type app struct {
	env Env
	// Flags of all commands.
	dir, server, ca, cert, key string
	region                     string // of a local cluster; empty: all
}

// Run runs one command line (without the program's name) and returns the exit code.
func Run(ctx context.Context, args []string, env Env) int {
	root := newRoot(env)
	root.SetArgs(protectNegative(args))
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if silent := (silentError{}); errors.As(err, &silent) {
		return exitFailure
	}
	if found := (foundError{}); errors.As(err, &found) {
		return exitFound
	}
	_, _ = fmt.Fprintf(env.Stderr, "lofamoctl: %v\n", err)
	if usage := (usageError{}); errors.As(err, &usage) {
		_, _ = fmt.Fprintf(env.Stderr, "See '%s --help'.\n", cmd.CommandPath())
		return exitUsage
	}
	return exitFailure
}

var negative = regexp.MustCompile(`^-[0-9.]`)

// protectNegative moves a negative sensor value to the end, behind "--", where it is not taken for
// a flag. It is always the last argument that is not a flag.
func protectNegative(args []string) []string {
	if !slices.Contains(args, "inject") || slices.Contains(args, "--") {
		return args
	}
	i := slices.IndexFunc(args, negative.MatchString)
	if i < 0 {
		return args
	}
	out := slices.Concat(args[:i], args[i+1:])
	return append(out, "--", args[i])
}

func newRoot(env Env) *cobra.Command {
	a := &app{env: env}
	root := &cobra.Command{
		Use:   "lofamoctl",
		Short: "Fault supervision for clusters: look at the fault map, make a cluster to try it on",
		Long: `lofamoctl asks the fault supervisors what is NORMAL, SICK, FAILED or UNKNOWN, and why; and it
makes whole clusters on this machine to try it on.

It finds a local cluster in --dir, else in $LOFAMO_DIR, else in ./.lofamo. For any other cluster
give --server with --ca, --cert and --key.

Nodes are named by id (n1-0-1) or by coordinates (1,0,1) everywhere.

Exit codes: 0 success, 1 failure, 2 a command line that cannot be understood, 3 a diagnosis that found
something wrong.`,
		Example: `  lofamoctl up --detach                  a cluster of 2x2x2 nodes on this machine
  lofamoctl map                          the torus in the terminal
  lofamoctl top                          all of it, live in the terminal
  lofamoctl web                          a link to it in the browser
  lofamoctl inject 1,0,1 kill-host       a real fault
  lofamoctl get node 1,0,1               what is at fault, with the evidence
  lofamoctl explain 1,0,1                why it is so, and what would change it
  lofamoctl watch                        changes as they come
  lofamoctl bundle 1,0,1                 a diagnostic bundle, by whatever way reaches the node
  lofamoctl down`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q%s", args[0], suggest(cmd, args[0]))
			}
			return cmd.Help()
		},
	}
	f := root.PersistentFlags()
	f.StringVar(&a.dir, "dir", "", "directory of the local cluster (default $LOFAMO_DIR, else ./"+cluster.DefaultDir+")")
	f.StringVar(&a.server, "server", "", "gRPC addresses of supervisors, host:port[,host:port…], instead of a local cluster")
	f.StringVar(&a.region, "region", "", "of a local cluster with regions: ask the supervisors of this one, such as region-0, instead of their parent")
	f.StringVar(&a.ca, "ca", "", "with --server: PEM file of the cluster's certificate authority")
	f.StringVar(&a.cert, "cert", "", "with --server: PEM file of your certificate")
	f.StringVar(&a.key, "key", "", "with --server: PEM file of its key")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(a.upCommand(), a.downCommand(), a.getCommand(), a.summaryCommand(), a.historyCommand(), a.explainCommand(), a.mapCommand(), a.topCommand(), a.webCommand(), a.watchCommand(),
		a.injectCommand(), a.regsCommand(), a.bundleCommand(), a.diagnoseCommand(), a.supervisorCommand(), a.versionCommand())
	root.AddCommand(a.applyCommand(), a.labelCommand(), a.maintenanceCommand(), a.maskCommand(), a.unmaskCommand(), a.nodeCommand())
	root.AddCommand(a.policyCommand(), a.responseCommand(), a.auditCommand(), a.clusterCommand(), a.certCommand())
	return root
}

func suggest(cmd *cobra.Command, name string) string {
	cmd.SuggestionsMinimumDistance = 2
	if s := cmd.SuggestionsFor(name); len(s) > 0 {
		return fmt.Sprintf(": did you mean %q?", s[0])
	}
	return ""
}

// exactly wants a number of arguments and says which.
func exactly(names ...string) cobra.PositionalArgs { return between(len(names), names...) }

// between wants at least minimum of the named arguments.
func between(minimum int, names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < minimum:
			return usagef("%s is missing", names[len(args)])
		case len(args) > len(names) && len(names) == 0:
			return usagef("argument %q: none is wanted", args[0])
		case len(args) > len(names):
			return usagef("argument %q: nothing more is wanted after %s", args[len(names)], names[len(names)-1])
		}
		return nil
	}
}

func (a *app) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(a.env.Stdout, format, args...)
}

func (a *app) warnf(format string, args ...any) {
	_, _ = fmt.Fprintf(a.env.Stderr, format, args...)
}
