package command

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/program"
)

// grace is the time between SIGTERM at the deadline and SIGKILL.
const grace = 2 * time.Second

// maxWord is the maximum length of a placeholder's value, in bytes.
const maxWord = 1024

// Executor runs the configured programs. It cannot recheck or undo, because the effect of a program is unknown.
type Executor struct{ commands map[string]ready }

// ready is a command with its patterns compiled.
type ready struct {
	Command
	patterns map[string]*regexp.Regexp
}

// New checks the configuration and the program files.
func New(list []Command) (*Executor, error) {
	if err := Validate(list); err != nil {
		return nil, err
	}
	commands, err := executor.BuildAll(executor.Named(list, func(c Command) string { return c.Name }), func(_ string, c Command) (ready, error) {
		patterns, err := executor.BuildAll(maps.All(c.Parameters), func(_, p string) (*regexp.Regexp, error) { return pattern(p) })
		return ready{c, patterns}, errors.Join(c.checkFile(), err)
	})
	if err != nil {
		return nil, err
	}
	return &Executor{commands}, nil
}

// Do implements executor.Executor.
func (x *Executor) Do(ctx context.Context, j executor.Job) executor.Result {
	if r, ok := executor.Blind(j, "a command", "a person has to settle it"); !ok {
		return r
	}
	c, ok := x.commands[j.Parameters["command"]]
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
	spec := program.Spec{Path: c.Path, Args: args, Dir: c.Dir, Grace: grace, MaxOutput: executor.MaxDetail}
	for k, v := range c.Env {
		spec.Env = append(spec.Env, k+"="+v)
	}
	slices.Sort(spec.Env)
	if c.User != nil {
		spec.Credential = &program.Credential{UID: uint32(c.User.UID), GID: uint32(c.User.GID)} //nolint:gosec // Validate bounds them
	}
	if err := executor.Fenced(ctx); err != nil {
		return executor.Held(err)
	}
	e := program.Run(ctx, spec)
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
func (c ready) arguments(j executor.Job) ([]string, error) {
	given := map[string]string{}
	for k, re := range c.patterns {
		v := words[k](j)
		switch {
		case len(v) > maxWord || strings.ContainsFunc(v, unicode.IsControl):
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
		args[i] = placeholder.ReplaceAllStringFunc(a, func(m string) string { return given[m[2:len(m)-1]] })
	}
	return args, nil
}
