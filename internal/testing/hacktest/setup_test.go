package hacktest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// bare makes a directory of programs with nothing in it but what every machine has, and apt, which notes that it was called.
func bare(t *testing.T, apt bool) (dir, called string) {
	t.Helper()
	dir, called = t.TempDir(), filepath.Join(t.TempDir(), "called")
	for _, name := range []string{"bash", "env", "dirname", "id", "sed", "awk", "cat"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if apt {
		for _, name := range []string{"apt-get", "dpkg"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/usr/bin/env bash\necho \"$0 $*\" >>"+called+"\nexit 1\n"),
				0o755); err != nil { //nolint:gosec // a program
				t.Fatal(err)
			}
		}
	}
	return dir, called
}

// TestSetupSkipsLoudlyWhereItCannotInstall: on a machine without apt, or with NO_APT=1, the setup lists the missing packages and continues.
func TestSetupSkipsLoudlyWhereItCannotInstall(t *testing.T) {
	for name, c := range map[string]struct {
		apt  bool
		env  string
		says string
	}{
		"no apt":           {false, "NO_APT=", "no apt on this machine"},
		"not wanted":       {true, "NO_APT=1", map[bool]string{true: "NO_APT is set", false: "not root"}[os.Geteuid() == 0]},
		"apt that is sick": {true, "NO_APT=", map[bool]string{true: "apt-get update failed", false: "not root"}[os.Geteuid() == 0]},
	} {
		t.Run(name, func(t *testing.T) {
			dir, called := bare(t, c.apt)
			cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "bash"), "../../../hack/setup-tests")
			cmd.Env = []string{"PATH=" + dir, c.env}
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "*** "+c.says) || !strings.Contains(string(out), "chromium") ||
				!strings.Contains(string(out), "SKIPPED") {
				t.Errorf("%v\n%s", err, out)
			}
			if b, err := os.ReadFile(called); err == nil && c.env == "NO_APT=1" {
				t.Errorf("called against the owner's wish: %s", b)
			}
		})
	}
}

// testCommand is README's, with the targets that CI adds beside the tests.
var testCommand = regexp.MustCompile(`^env -u CI make test BESIDE="test-pure( [a-z-]+)*" FUZZ=\S+$`)

var indented = regexp.MustCompile(`(?m)^    (make .*)$`)

// TestCIRunsReadmesCommandsFirst: what README shows is what CI runs, before anything is set up and without CI in the environment.
func TestCIRunsReadmesCommandsFirst(t *testing.T) {
	_, try, _ := strings.Cut(read(t, "README.md"), "## Try it")
	try, _, _ = strings.Cut(try, "\n## ")
	var commands []string
	for _, m := range indented.FindAllStringSubmatch(try, -1) {
		commands = append(commands, m[1])
	}
	if !slices.Equal(commands, []string{"make demo", "make test"}) {
		t.Fatalf("README's first commands are %q", commands)
	}
	ci := read(t, ".ci/run")
	var runs []string
	for line := range strings.Lines(ci) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "make "), strings.HasPrefix(line, "env -u CI make "), strings.Contains(line,
			"apt-get"), strings.HasPrefix(line, "export "):
			runs = append(runs, line)
		}
	}
	if len(runs) == 0 || !testCommand.MatchString(runs[0]) || !slices.Contains(runs, "make demo") {
		t.Errorf(".ci/run runs %q: want README's make test first, without CI, and make demo", runs)
	}
	if want := `set -- "make demo" "make test"`; !strings.Contains(read(t, "hack/minimal-root"), want) {
		t.Errorf("hack/minimal-root has not %q", want)
	}
}
