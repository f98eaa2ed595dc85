// Package command has the common parts of lofamoctl's commands: the environment of a run, flags, errors and exit codes,
// the connection to the supervisors, output formats, and the tables that print the API's messages. The commands are in
// the folders beside it.
package command

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// The exit codes.
const (
	ExitOK      = 0
	ExitFailure = 1
	ExitUsage   = 2
	ExitFound   = 3
)

// Env is the environment of a command line.
type Env struct {
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	ErrTerminal    bool // Stderr is a terminal
	Terminal       bool // Stdout is one that understands colours and cursor movements
	Width          int  // of the terminal in columns, 0 when unknown
	Now            func() time.Time
	Location       *time.Location
	TryTimeout     time.Duration // of one read at one supervisor, as in client.Config; 0: the client's default
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

// UsageError is a command line that cannot be understood.
type UsageError struct{ error }

// Usagef returns a formatted error of the command line.
func Usagef(format string, args ...any) error { return Usage(fmt.Errorf(format, args...)) }

// Usage marks an error in the command line: Run returns 2 for such errors.
func Usage(err error) error { return UsageError{err} }

// FoundError ends the program after a complete report that shows a problem.
type FoundError struct{}

func (FoundError) Error() string { return "something is wrong: see the report" }

// App has the commands' shared state.
type App struct {
	Env Env
	// Flags of all commands.
	Dir, Server, CA, Cert, Key string
	Context                    string // of the configuration file; empty: the current one
	Region                     string // of a local cluster; empty: all

	noted   bool                  // a hidden context was named
	cluster *lofamov1.ClusterInfo // of the last answer that has it; nil: none has
}

// Exactly requires a number of arguments, and names missing ones.
func Exactly(names ...string) cobra.PositionalArgs { return Between(len(names), names...) }

// Between requires at least minimum of the named arguments.
func Between(minimum int, names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < minimum:
			return Usagef("%s is missing", names[len(args)])
		case len(args) > len(names) && len(names) == 0:
			return Usagef("argument %q: want none", args[0])
		case len(args) > len(names):
			return Usagef("argument %q: want nothing more after %s", args[len(names)], names[len(names)-1])
		}
		return nil
	}
}

// Printf prints to the standard output.
func (a *App) Printf(format string, args ...any) {
	_, _ = fmt.Fprintf(a.Env.Stdout, format, args...)
}

// Warnf prints to the standard error.
func (a *App) Warnf(format string, args ...any) {
	_, _ = fmt.Fprintf(a.Env.Stderr, format, args...)
}
