package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/docstest"
)

// The README's "Look around" does what it says, line by line in one shell, and so do the commands of other pages that fit the same cluster.
// Links are diagnosed by tests of their own.
func TestReadme(t *testing.T) {
	runs, err := docstest.Runs()
	if err != nil {
		t.Fatal(err)
	}
	var script []string
	ours := func(text string) bool { return runs[text].Test == t.Name() }
	for _, page := range docstest.Listed {
		commands, err := docstest.Read("../..", page)
		if err != nil {
			t.Fatal(err)
		}
		var more []string
		for _, c := range commands {
			switch {
			case c.Prose || !ours(c.Text) || slices.Contains(script, c.Text) || slices.Contains(more, c.Text):
			case page == "README.md":
				script = append(script, c.Text)
			default: // where the cluster has its fault
				more = append(more, c.Text)
			}
		}
		for i, line := range script {
			if line == "lofamoctl inject all heal" {
				script = append(script[:i:i], append(more, script[i:]...)...)
				break
			}
		}
	}
	if len(script) < 20 || script[0] != "lofamoctl up --detach" || script[len(script)-1] != "lofamoctl down" {
		t.Fatalf("the README's commands are not what they were: %q", script)
	}
	out, err := inShell(t, script)
	if err != nil {
		t.Fatalf("%v; the commands and what they said:\n%s", err, out)
	}
	for _, want := range []string{"nodes:     8: 8 NORMAL", "n1-0-1 is SICK", "host FAILED"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in what was said:\n%s", want, out)
		}
	}
}

// inShell runs lines in an empty directory, one after the other in one shell, until one fails.
func inShell(t *testing.T, lines []string) (string, error) {
	t.Helper()
	dir, err := os.MkdirTemp("", "lofamo-readme-") // not t.TempDir: its name is too long for Unix sockets
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // some forty programs, one after the other
	defer cancel()
	var script strings.Builder
	script.WriteString("set -e\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n") // the watch in the background
	for _, l := range lines {
		if l == "lofamoctl map" {
			// Of eleven programs that have just begun one may be late beside other tests, and is rightly called SICK: a person would look again.
			script.WriteString("for ((i = 0; i < 100; i++)); do lofamoctl map | grep -q '8: 8 NORMAL' && break; sleep 0.1; done\n")
		}
		// Each is made known first, so that what fails is seen.
		fmt.Fprintf(&script, "cat <<'LINE'\n$ %s\nLINE\n%s\n", l, l)
		if strings.HasPrefix(l, "lofamoctl inject 1,0,1") {
			// What was injected is seen some hundred milliseconds later: a person is slower.
			script.WriteString("lofamoctl watch --initial --field-selector component=host,to=FAILED --count 1 --for 10s\n")
		}
	}
	cmd := exec.CommandContext(ctx, "bash", "-c", script.String())
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+binaries+":"+os.Getenv("PATH"), "LOFAMO_DIR=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	if down := exec.Command(filepath.Join(binaries, "lofamoctl"), "down", "--purge", "--dir", filepath.Join(dir, ".lofamo")); err != nil {
		_ = down.Run() // it may not have come to that
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
	return out.String(), err
}
