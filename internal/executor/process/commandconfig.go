package process

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/lofamo/lofamo/internal/executor"
)

// Command is one program of the list.
type Command struct {
	// Name is the command's name in policies: 1 to 63 letters, digits, '-', '_' and '.'. Required.
	Name string `json:"name"`
	// Path of the program, absolute. Only root or the user of the executor process may have write access to the file
	// and to every directory and link on its path. Required.
	Path string `json:"path"`
	// Args are its arguments. ${NAME} stands for a fact about the attempt: node, component, group, state, cause,
	// policy, response, step, attempt, token, key or cluster. At most 64. Default none.
	Args []string `json:"args,omitempty"`
	// Parameters holds, for each placeholder in Args, a pattern (RE2) that must match the whole value; otherwise
	// nothing runs.
	Parameters map[string]string `json:"parameters,omitempty"`
	// Env holds additional environment variables. Without it the environment has PATH and LC_ALL only. Default none.
	Env map[string]string `json:"env,omitempty"`
	// Dir is the working directory, absolute. Default "/".
	Dir string `json:"dir,omitempty"`
	// User is the user and group to run as, without supplementary groups or inherited capabilities. Default: those of the
	// executor process, with its capabilities.
	User *CommandUser `json:"user,omitempty"`
	// UnchangedCodes are the exit codes, 1 to 125, that mean the program failed and changed nothing. After any other
	// code except 0 the program may have changed something. Default none.
	UnchangedCodes []int `json:"unchangedCodes,omitempty"`
}

// CommandUser is the user and group that a program runs as.
type CommandUser struct {
	UID int `json:"uid"` // 0 to 2^32-2
	GID int `json:"gid"` // 0 to 2^32-2
}

const (
	maxArgs = 64
	maxID   = 1<<32 - 2
)

var (
	commandName        = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	variable           = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	placeholderPattern = regexp.MustCompile(`\$\{([^}]*)\}`)
)

// placeholders returns the value of each placeholder for a job.
var placeholders = map[string]func(j executor.Job) string{
	"node":      func(j executor.Job) string { return string(j.Target.Node) },
	"component": componentOf,
	"group":     func(j executor.Job) string { return j.Target.Group },
	"state":     func(j executor.Job) string { return j.Fault.State.String() },
	"cause":     func(j executor.Job) string { return j.Fault.Cause.String() },
	"policy":    func(j executor.Job) string { return j.Policy },
	"response":  func(j executor.Job) string { return j.Response },
	"step":      func(j executor.Job) string { return fmt.Sprint(j.Step) },
	"attempt":   func(j executor.Job) string { return fmt.Sprint(j.Attempt.Attempt) },
	"token":     func(j executor.Job) string { return fmt.Sprint(j.Token) },
	"key":       func(j executor.Job) string { return j.IdempotencyKey },
	"cluster":   func(j executor.Job) string { return j.Cluster },
}

func componentOf(j executor.Job) string {
	if j.Target.Group != "" {
		return ""
	}
	return j.Target.Component.String()
}

// placeholderNames returns the placeholders, sorted.
func placeholderNames() []string {
	out := make([]string, 0, len(placeholders))
	for w := range placeholders {
		out = append(out, w)
	}
	slices.Sort(out)
	return out
}

// shells are programs that interpret an argument as code.
var shells = []string{"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish", "csh", "tcsh", "busybox", "env", "xargs", "perl",
	"python", "python3", "ssh"}

// laterShells interpret an argument as code too, but earlier versions accepted them. Config.Interpreters refuses them.
var laterShells = []string{"rbash", "awk", "gawk", "mawk", "nawk", "original-awk", "sed", "gsed", "pypy", "ruby", "lua", "luajit", "node",
	"nodejs", "php", "tclsh", "expect"}

// versioned matches a program's name with a version at its end, such as python3.13.
var versioned = regexp.MustCompile(`^(.+?)-?[0-9][0-9.]*[a-z]?$`)

// interprets reports whether the program interprets an argument as code, by its name with or without a version.
func (c Command) interprets() bool {
	known := slices.Concat(shells, laterShells)
	name := filepath.Base(c.Path)
	return slices.Contains(known, name) || slices.Contains(known, versioned.ReplaceAllString(name, "$1"))
}

// checkInterpreter returns an error if an argument with placeholders goes to an interpreter.
func (c Command) checkInterpreter(i int) error {
	if !c.interprets() || !slices.ContainsFunc(c.Args, placeholderPattern.MatchString) {
		return nil
	}
	return fmt.Errorf("commands[%d].args: given placeholders: want none for %s, which interprets its arguments as code: name the "+
		"program itself", i, c.Path)
}

// validateCommands reports every invalid field of the list. It does not check the program files.
func validateCommands(list []Command) error {
	var errs []error
	for i, c := range list {
		bad := func(field string, given any, want string) {
			errs = append(errs, fmt.Errorf("commands[%d].%s: given %v: want %s", i, field, given, want))
		}
		if !commandName.MatchString(c.Name) {
			bad("name", fmt.Sprintf("%q", c.Name), "1 to 63 letters, digits, '-', '_' and '.', the first and last a letter or digit")
		}
		if slices.ContainsFunc(list[:i], func(b Command) bool { return b.Name == c.Name }) {
			bad("name", c.Name, "each name once")
		}
		if !filepath.IsAbs(c.Path) || filepath.Clean(c.Path) != c.Path {
			bad("path", fmt.Sprintf("%q", c.Path), "an absolute path without '.' and '..'")
		}
		if c.Dir != "" && !filepath.IsAbs(c.Dir) {
			bad("dir", fmt.Sprintf("%q", c.Dir), "an absolute path, or nothing for /")
		}
		for k, v := range c.Env {
			if !variable.MatchString(k) || strings.ContainsRune(v, 0) {
				bad("env", fmt.Sprintf("%q", k), "letters, digits and '_', and a value without zeros")
			}
		}
		if u := c.User; u != nil && (u.UID < 0 || u.UID > maxID) {
			bad("user.uid", u.UID, fmt.Sprintf("0 to %d", maxID))
		}
		if u := c.User; u != nil && (u.GID < 0 || u.GID > maxID) {
			bad("user.gid", u.GID, fmt.Sprintf("0 to %d", maxID))
		}
		for _, code := range c.UnchangedCodes {
			if code < 1 || code > 125 {
				bad("unchangedCodes", code, "1 to 125")
			}
		}
		if slices.Contains(shells, filepath.Base(c.Path)) {
			errs = append(errs, c.checkInterpreter(i))
		}
		c.checkArgs(bad)
	}
	return errors.Join(errs...)
}

func (c Command) checkArgs(bad func(field string, given any, want string)) {
	if len(c.Args) > maxArgs {
		bad("args", len(c.Args), fmt.Sprintf("at most %d", maxArgs))
	}
	used := map[string]bool{}
	for n, a := range c.Args {
		if strings.ContainsRune(a, 0) {
			bad(fmt.Sprintf("args[%d]", n), "a zero byte", "none")
		}
		for _, m := range placeholderPattern.FindAllStringSubmatch(a, -1) {
			used[m[1]] = true
			if placeholders[m[1]] == nil {
				bad(fmt.Sprintf("args[%d]", n), m[0], fmt.Sprintf("one of %s in ${}", strings.Join(placeholderNames(), ", ")))
			} else if _, ok := c.Parameters[m[1]]; !ok {
				bad(fmt.Sprintf("args[%d]", n), m[0], "a pattern for it in parameters")
			}
		}
	}
	for k, p := range c.Parameters {
		if !used[k] {
			bad("parameters."+k, fmt.Sprintf("%q", p), "a word that stands in args")
		}
		if _, err := pattern(p); err != nil {
			bad("parameters."+k, fmt.Sprintf("%q", p), fmt.Sprintf("a pattern: %v", err))
		}
	}
}

// pattern compiles a pattern that must match the whole value.
func pattern(p string) (*regexp.Regexp, error) {
	if _, err := regexp.Compile(p); err != nil { // alone, to reject brackets that would close ours
		return nil, err
	}
	return regexp.Compile(`^(?:` + p + `)$`)
}
