package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/testing/deadline"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

func TestCommandValidationNamesField(t *testing.T) {
	good := Command{
		Name: "mail", Path: "/usr/bin/mail", Args: []string{"-s", "${node} is ${state}", "root"}, Dir: "/var/tmp", User: &CommandUser{65534,
			65534}, UnchangedCodes: []int{75},
		Parameters: map[string]string{"node": "n[0-9-]+", "state": "[A-Z]+"}, Env: map[string]string{"A_B": "c"},
	}
	if err := validateCommands([]Command{good, {Name: "x", Path: "/bin/true"}}); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(c *Command){
		"name: given":           func(c *Command) { c.Name = "a b" },
		"path: given":           func(c *Command) { c.Path = "mail" },
		`want an absolute path`: func(c *Command) { c.Path = "/usr/../bin/mail" },
		"dir: given":            func(c *Command) { c.Dir = "here" },
		"user.uid: given -1: want 0 to 4294967294": func(c *Command) { c.User = &CommandUser{-1, 0} },
		"unchangedCodes: given 0":                  func(c *Command) { c.UnchangedCodes = []int{0} },
		"env: given":                               func(c *Command) { c.Env = map[string]string{"A=": ""} },
		"args[0]: given ${secret}":                 func(c *Command) { c.Args[0] = "${secret}" },
		"want a pattern for it":                    func(c *Command) { c.Args[0] = "${token}" },
		"parameters.group: given":                  func(c *Command) { c.Parameters["group"] = ".*" },
		"parameters.node: given":                   func(c *Command) { c.Parameters["node"] = "n(" },
		"a zero byte":                              func(c *Command) { c.Args[0] = "a\x00" },
		"want none for /bin/sh":                    func(c *Command) { c.Path = "/bin/sh" },
		"args: given 65":                           func(c *Command) { c.Args = append(c.Args, make([]string, 62)...) },
		"parameters.state: given \"a)":             func(c *Command) { c.Parameters["state"] = "a)|(b" },
	} {
		c := good
		c.Args, c.Parameters = append([]string{}, good.Args...), map[string]string{"node": "n[0-9-]+", "state": "[A-Z]+"}
		change(&c)
		if err := validateCommands([]Command{c}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
	if err := validateCommands([]Command{good, good}); err == nil || !strings.Contains(err.Error(), "each name once") {
		t.Errorf("%v", err)
	}
}

// TestInterpretersThatEarlierVersionsAcceptedAreOnlyNamed: Validate accepts them, so that the process starts after an upgrade, and
// Interpreters names them.
func TestInterpretersThatEarlierVersionsAcceptedAreOnlyNamed(t *testing.T) {
	with := map[string]string{"node": "n[0-9-]+"}
	for path, want := range map[string]bool{
		"/usr/bin/awk": true, "/usr/bin/gawk": true, "/bin/sed": true, "/usr/bin/python3.13": true, "/usr/bin/python3.13t": true,
		"/usr/bin/perl5.40.1": true, "/usr/bin/ruby3.3": true, "/usr/bin/lua5.4": true, "/usr/bin/bash-5.2": true, "/usr/bin/node": true,
		"/usr/bin/tclsh8.6": true, "/usr/bin/original-awk": true, "/usr/bin/x86_64-linux-gnu-python3": false,
		"/usr/bin/mail": false, "/usr/bin/nodectl": false, "/usr/local/bin/reset-7": false, "/usr/bin/7": false,
	} {
		c := Command{Name: "x", Path: path, Args: []string{"${node}"}, Parameters: with}
		if err := validateCommands([]Command{c}); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if err := (Config{Commands: []Command{c}}).Interpreters(); (err != nil) != want {
			t.Errorf("%s: %v: want an error: %v", path, err, want)
		}
		c.Args, c.Parameters = []string{"-n"}, nil
		if err := (Config{Commands: []Command{c}}).Interpreters(); err != nil {
			t.Errorf("%s without words: %v", path, err)
		}
	}
	if err := validateCommands([]Command{{Name: "x", Path: "/usr/bin/python3", Args: []string{"${node}"}, Parameters: with}}); err == nil {
		t.Error("python3, which earlier versions refused, is accepted")
	}
}

// ownDir returns a directory that only its owner may write, for any umask.
func ownDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestWritableProgramIsNotRun: a program that others may write is not run.
func TestWritableProgramIsNotRun(t *testing.T) {
	path := filepath.Join(ownDir(t), "x")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	list := []Command{{Name: "x", Path: path}}
	x, err := NewCommands(list)
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []os.FileMode{0o775, 0o757, 0o644} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := NewCommands(list); err == nil || !strings.Contains(err.Error(), "want a file that") {
			t.Errorf("%s: %v", mode, err)
		}
		if r := x.Do(t.Context(), job(nil)); r.Outcome != response.Unchanged || !strings.Contains(r.Detail, "want a file that") {
			t.Errorf("%s, changed since: %+v", mode, r)
		}
	}
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := NewCommands(list); err != nil {
		t.Error(err)
	}
	if _, err := NewCommands([]Command{{Name: "x", Path: path + "y"}}); err == nil {
		t.Error("a program that is not there is taken")
	}
	if _, err := NewCommands([]Command{{Name: "x", Path: "/tmp"}}); err == nil {
		t.Error("a directory is taken")
	}
}

// TestReplaceableProgramPathIsNotRun: a program is not run if somebody else could replace it through any directory or link on its path.
func TestReplaceableProgramPathIsNotRun(t *testing.T) {
	root := ownDir(t)
	in := func(elem ...string) string { return filepath.Join(append([]string{root}, elem...)...) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(in("real", "sub"), 0o755))
	must(os.MkdirAll(in("links"), 0o755))
	must(os.WriteFile(in("real", "sub", "x"), []byte("#!/bin/sh\nexit 0\n"), 0o755))
	for _, path := range []string{in("real"), in("real", "sub"), in("real", "sub", "x"), in("links")} {
		must(os.Chmod(path, 0o755))
	}
	must(os.Symlink("../real/sub", in("links", "relative")))
	must(os.Symlink(in("links", "relative", "x"), in("links", "absolute")))
	must(os.Symlink("loop", in("links", "loop")))
	for _, path := range []string{in("real", "sub", "x"), in("links", "relative", "x"), in("links", "absolute")} {
		x, err := NewCommands([]Command{{Name: "x", Path: path}})
		if err != nil {
			t.Fatal(err)
		}
		if r := x.Do(t.Context(), job(nil)); r.Outcome != response.Succeeded {
			t.Errorf("%s: %+v", path, r)
		}
		for dir, counts := range map[string]bool{in("real", "sub"): true, in("real"): true, root: true,
			in("links"): strings.HasPrefix(path, in("links"))} {
			for mode, bad := range map[os.FileMode]bool{0o775: true, 0o757: true, 0o777 | os.ModeSticky: false, 0o755: false} {
				must(os.Chmod(dir, mode))
				r := x.Do(t.Context(), job(nil))
				if refused := r.Outcome == response.Unchanged &&
					strings.Contains(r.Detail, "want a directory that neither"); refused != (bad && counts) {
					t.Errorf("%s, %s has %s: %+v", path, dir, mode, r)
				}
			}
			must(os.Chmod(dir, 0o755))
		}
	}
	if os.Geteuid() == 0 { // only root may give files away
		x, err := NewCommands([]Command{{Name: "x", Path: in("links", "absolute")}})
		must(err)
		for _, path := range []string{in("real", "sub", "x"), in("real"), in("links"), in("links", "absolute"), in("links", "relative")} {
			must(os.Lchown(path, 65534, 0))
			if r := x.Do(t.Context(), job(nil)); r.Outcome != response.Unchanged || !strings.Contains(r.Detail, "belongs to user 65534") {
				t.Errorf("%s is another's: %+v", path, r)
			}
			must(os.Lchown(path, 0, 0))
		}
	}
	if _, err := NewCommands([]Command{{Name: "x", Path: in("links", "loop")}}); err == nil ||
		!strings.Contains(err.Error(), "symbolic links") {
		t.Errorf("links without an end: %v", err)
	}
}

func job(change func(j *executor.Job)) executor.Job {
	j := executor.Job{
		Effect: response.Effect{
			Attempt: response.Attempt{Response: "r5-1", Step: 2,
				Attempt: 3}, Kind: response.Command, Token: 5, IdempotencyKey: "key", Timeout: time.Minute,
			Target: response.Target{Node: "n1", Component: fault.ComponentHost}, Parameters: map[string]string{"command": "x"},
		},
		Cluster: "c", Policy: "p", Fault: executor.Fault{State: fault.Failed, Cause: fault.CauseHost},
	}
	if change != nil {
		change(&j)
	}
	return j
}

func TestPlaceholdersAreReplaced(t *testing.T) {
	c := Command{Name: "x", Path: "/bin/echo", Parameters: map[string]string{}}
	for _, w := range placeholderNames() {
		c.Args = append(c.Args, w+"=${"+w+"}")
		c.Parameters[w] = ".*"
	}
	x, err := NewCommands([]Command{c})
	if err != nil {
		t.Fatal(err)
	}
	r := x.Do(t.Context(), job(nil))
	const want = "x: exit code 0: attempt=3 cause=HOST cluster=c component=host group= key=key node=n1 policy=p response=r5-1 state=FAILED " +
		"step=2 token=5"
	if r.Outcome != response.Succeeded || r.Detail != want {
		t.Errorf("%+v, want %s", r, want)
	}
	for given, detail := range map[string]string{"n1\n": "control character", "-n": "is no option", strings.Repeat("n", 2000): "2000 bytes"} {
		r := x.Do(t.Context(), job(func(j *executor.Job) { j.Target.Node = fault.NodeID(given) }))
		if r.Outcome != response.Unchanged || !strings.Contains(r.Detail, detail) {
			t.Errorf("node %.10q: %+v, want %q", given, r, detail)
		}
	}
	r = x.Do(t.Context(), job(func(j *executor.Job) { j.Target = response.Target{Group: "row/Y=1"} }))
	if !strings.Contains(r.Detail, "component= group=row/Y=1 key=key node= ") {
		t.Errorf("of a group: %+v", r)
	}
}

// TestPatternIsForWhole: a pattern must match the whole value, even if it has anchors or alternatives of its own.
func TestPatternIsForWhole(t *testing.T) {
	for p, taken := range map[string]bool{"n1": true, "1": false, "n|1": false, "n": false, "x|n1": true, "(?m)n1$": true, "": false} {
		x, err := NewCommands([]Command{{Name: "x", Path: "/bin/echo", Args: []string{"${node}"}, Parameters: map[string]string{"node": p}}})
		if err != nil {
			t.Fatal(err)
		}
		if r := x.Do(t.Context(), job(nil)); (r.Outcome == response.Succeeded) != taken {
			t.Errorf("%q: %+v", p, r)
		}
	}
}

// TestOutcomeFollowsExitOfProgram: the outcome follows from how the program ends.
func TestOutcomeFollowsExitOfProgram(t *testing.T) {
	for script, want := range map[string]response.Outcome{
		"exit 0": response.Succeeded, "exit 75": response.Unchanged, "exit 1": response.Partly, "kill -9 $$": response.NotKnown,
		"touch STARTED; exec sleep 60": response.NotKnown,
	} {
		started := filepath.Join(t.TempDir(), "started")
		script = strings.ReplaceAll(script, "STARTED", started)
		x, err := NewCommands([]Command{{Name: "x", Path: "/bin/sh", Args: []string{"-c", script}, UnchangedCodes: []int{75}}})
		if err != nil {
			t.Fatal(err)
		}
		ctx := deadline.When(t, func() bool { _, err := os.Stat(started); return err == nil })
		if r := x.Do(ctx, job(nil)); r.Outcome != want {
			t.Errorf("%s: %+v, want %d", script, r, want)
		}
	}
}

// TestUnsupportedCommandChangesNothing: a request that the executor cannot carry out changes nothing.
func TestUnsupportedCommandChangesNothing(t *testing.T) {
	x, err := NewCommands([]Command{{Name: "x", Path: "/bin/true"}})
	if err != nil {
		t.Fatal(err)
	}
	for detail, change := range map[string]func(j *executor.Job){
		"cannot be put back":      func(j *executor.Job) { j.Undo = true },
		"no command of that name": func(j *executor.Job) { j.Parameters = nil },
		"a command takes none":    func(j *executor.Job) { j.Parameters = map[string]string{"command": "x", "args": "-rf"} },
	} {
		if r := x.Do(t.Context(), job(change)); r.Outcome != response.Unchanged || !strings.Contains(r.Detail, detail) {
			t.Errorf("%+v, want %q", r, detail)
		}
	}
}
