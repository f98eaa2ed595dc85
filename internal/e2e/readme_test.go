package e2e

import (
	"bytes"
	"cmp"
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

	"github.com/lofamo/lofamo/internal/testing/docstest"
)

// aid is a command's preparation or replacement in a test, for work that a person would do.
type aid struct {
	before, after string // lines of the shell
	as            string // the command with the names of this cluster; empty: unchanged
}

// socket is that of the jobs on a node.
func socket(node string) string { return "LOFAMO_SOCKET=.lofamo/nodes/" + node + "/state/local.sock" }

// soon waits in the shell until a command succeeds, for at most 600 tries.
func soon(command string) string {
	return "for ((i = 0; i < 600; i++)); do " + command + " && break; sleep 0.1; done"
}

var aids = map[string]aid{
	// While other tests run, a program that has just started may be late, and rightly be SICK. A person would look again.
	"lofamoctl map": {as: soon(`map=$(lofamoctl map) && grep -Eq '^nodes: +([0-9]+): \1 NORMAL$' <<<"$map"`) + `; echo "$map"`},
	// An injected fault shows some hundred milliseconds later: a person is slower.
	"lofamoctl inject 1,0,1 kill-host": {after: "lofamoctl watch --initial --field-selector component=host,to=FAILED --count 1 --for 60s"},
	// On each node, the job's own process runs it.
	"lofamo-agent eureka --job train-4711 --watch &": {before: "export " + socket("n0-0-0")},
	"lofamo-agent barrier --job train-4711 --name begin --members n0-0-0,n1-0-0 --timeout 30s": {
		before: socket("n1-0-0") + " lofamo-agent barrier --job train-4711 --name begin --members n0-0-0,n1-0-0 --timeout 30s &",
	},
	// The audit is empty until a leader has received the fault.
	"lofamoctl audit": {before: soon("lofamoctl audit | grep -q n1-0-1")},
	// There is only one version, and the policies' versions are in another file.
	"lofamoctl policy get drain-failed-memory --version 2 -o yaml | lofamoctl policy apply -f -": {as: "lofamoctl policy get " +
		"drain-failed-memory --version 1 -o yaml | lofamoctl policy apply -f -"},
	"lofamoctl policy test -f policies.yaml --enforce --approve ann,bob --since 72h": {
		as: "lofamoctl policy test -f tell.yaml --enforce --approve ann,bob --since 72h"},
	"lofamoctl audit verify -f audit.jsonl --hash HASH": {
		as: `lofamoctl audit verify -f audit.jsonl --hash "$(tail -1 audit.jsonl | grep -o '"hash":"[^"]*' | cut -d'"' -f4)"`},
	`tail -1 audit.jsonl | sed 's/,"hash":"[0-9a-f]*"}$/}/' | tr -d '\n' | sha256sum`: {
		as: `tail -1 audit.jsonl | sed 's/,"hash":"[0-9a-f]*"}$/}/' | tr -d '\n' | sha256sum | cut -d' ' -f1 | ` +
			`grep -f - audit.jsonl`},
	"curl http://SUPERVISOR:PORT/metrics": {
		as: `curl -sf "http://$(grep -om1 '127[^"]*' .lofamo/prometheus-targets.json)/metrics" | grep lofamo_supervisor_certificate`},
}

// The commands of the README's "Look around" work, line by line in one shell, and so do those of other pages and
// runbooks that fit the same cluster. Other tests cover link diagnoses.
func TestReadme(t *testing.T) {
	runs, err := docstest.Runs()
	if err != nil {
		t.Fatal(err)
	}
	var script []string
	ours := func(text string) bool { return runs[text].Test == t.Name() }
	pages, err := docstest.Pages("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
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

// The README's further experiments work as they stand, one after the other, in the directory of a first cluster.
func TestReadmeExperiments(t *testing.T) {
	t.Parallel()
	commands, err := docstest.Read("../..", "README.md")
	if err != nil {
		t.Fatal(err)
	}
	var script []string
	for _, c := range commands {
		switch {
		case c.Prose || c.Heading != "Look around":
		case c.Text == "lofamoctl up --detach":
			script = append(script[:0], c.Text)
		case len(script) > 1 || c.Text == "lofamoctl down":
			script = append(script, c.Text)
		}
	}
	if len(script) < 10 || script[len(script)-1] != "lofamoctl down" {
		t.Fatalf("the README has other experiments than before: %q", script)
	}
	out, err := inShell(t, script)
	if err != nil {
		t.Fatalf("%v; the commands and their output:\n%s", err, out)
	}
}

// inShell runs lines in an empty directory, one after the other in one shell, until one fails.
func inShell(t *testing.T, lines []string) (string, error) {
	t.Helper()
	dir, err := os.MkdirTemp("", "lofamo-readme-") // not t.TempDir: its name is too long for Unix sockets
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // about a hundred programs, one after the other
	defer cancel()
	var script strings.Builder
	script.WriteString("set -e\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n") // the watch in the background
	for _, l := range lines {
		a := aids[l]
		// Each command is printed first, so that a failing one is visible.
		fmt.Fprintf(&script, "cat <<'LINE'\n$ %s\nLINE\n%s\n%s\n%s\n", l, a.before, cmp.Or(a.as, l), a.after)
	}
	cmd := exec.CommandContext(ctx, "bash", "-c", script.String())
	// Shells beside one another must not share a current context.
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+binaries+":"+os.Getenv("PATH"), "LOFAMO_DIR=", "XDG_CONFIG_HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Minute // the watch in the background ends a moment after the shell
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
