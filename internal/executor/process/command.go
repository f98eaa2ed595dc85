package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/fault"
)

// commandGrace is the time between SIGTERM at the deadline and SIGKILL.
const commandGrace = 2 * time.Second

// maxWord is the maximum length of a placeholder's value, in bytes.
const maxWord = 1024

// Commands runs programs from a fixed list on the host of the executor process. Their arguments are fixed except for
// placeholders for facts about the fault; each value must match a configured pattern. There is no shell. It cannot
// recheck or undo, because the effect of a program is unknown.
type Commands struct{ named map[string]readyCommand }

// readyCommand is a command with its patterns compiled.
type readyCommand struct {
	Command
	patterns map[string]*regexp.Regexp
}

// NewCommands checks the configuration and the program files.
func NewCommands(list []Command) (*Commands, error) {
	if err := validateCommands(list); err != nil {
		return nil, err
	}
	named, err := executor.BuildAll(executor.Named(list, func(c Command) string { return c.Name }),
		func(_ string, c Command) (readyCommand, error) {
			patterns, err := executor.BuildAll(maps.All(c.Parameters), func(_, p string) (*regexp.Regexp, error) { return pattern(p) })
			return readyCommand{c, patterns}, errors.Join(c.checkFile(), err)
		})
	if err != nil {
		return nil, err
	}
	return &Commands{named}, nil
}

// Do implements executor.Executor.
func (x *Commands) Do(ctx context.Context, j executor.Job) executor.Result {
	if r, ok := executor.Blind(j, "a command", "a person has to settle it"); !ok {
		return r
	}
	c, ok := x.named[j.Parameters["command"]]
	if !ok {
		return executor.Unchanged("parameters.command: given %q: no command of that name is configured", j.Parameters["command"])
	}
	for k := range j.Parameters {
		if k != "command" {
			return executor.Unchanged("parameters.%s: a command takes none", k)
		}
	}
	args, err := c.arguments(j)
	if err != nil {
		return executor.Unchanged("%s", err)
	}
	if err := c.checkFile(); err != nil { // again: the file may have been replaced
		return executor.Unchanged("%s", err)
	}
	spec := executor.Program{Path: c.Path, Args: args, Dir: c.Dir, Grace: commandGrace, MaxOutput: executor.MaxDetail}
	for k, v := range c.Env {
		spec.Env = append(spec.Env, k+"="+v)
	}
	slices.Sort(spec.Env)
	if c.User != nil {
		spec.Credential = &executor.ProgramUser{UID: uint32(c.User.UID), GID: uint32(c.User.GID)} //nolint:gosec // Validate bounds them
	}
	if err := executor.Fenced(ctx); err != nil {
		return executor.Held(err)
	}
	e := executor.RunProgram(ctx, spec)
	switch {
	case !e.Started:
		return executor.Unchanged("%s: %s", c.Name, e)
	case e.OK():
		return executor.Done("%s: %s", c.Name, e)
	case !e.Killed && slices.Contains(c.UnchangedCodes, e.Code):
		return executor.Unchanged("%s: %s", c.Name, e)
	case e.Killed || e.Code < 0:
		return executor.NotKnown("%s: %s", c.Name, e)
	default:
		return executor.Partly("%s: %s", c.Name, e)
	}
}

// arguments substitutes the placeholders in the arguments with values of the attempt.
func (c readyCommand) arguments(j executor.Job) ([]string, error) {
	given := map[string]string{}
	for k, re := range c.patterns {
		v := placeholders[k](j)
		switch {
		case len(v) > maxWord || !fault.IsText(v):
			return nil, fmt.Errorf("%s of the attempt: %d bytes: want at most %d, none of them a control character", k, len(v), maxWord)
		case strings.HasPrefix(v, "-"):
			return nil, fmt.Errorf("%s of the attempt: given %q: want one that is no option", k, v)
		case !re.MatchString(v):
			return nil, fmt.Errorf("%s of the attempt: given %q: want one that matches %q", k, v, c.Parameters[k])
		}
		given[k] = v
	}
	args := make([]string, len(c.Args))
	for i, a := range c.Args {
		args[i] = placeholderPattern.ReplaceAllStringFunc(a, func(m string) string { return given[m[2:len(m)-1]] })
	}
	return args, nil
}
