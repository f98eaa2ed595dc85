package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/needs"
	"github.com/lofamo/lofamo/internal/pki"
)

// previous is the commit of version N-1.
const previous = "22c93f74a8d6487a49f397e2763c1da8b3335952"

// buildPrevious builds the programs of version N-1 from the history and returns their directory. Without the
// history (a shallow clone, an archive) the test is skipped, but never in CI.
func buildPrevious(t *testing.T) string {
	t.Helper()
	if out, err := exec.Command("git", "cat-file", "-e", previous+"^{commit}").CombinedOutput(); err != nil {
		needs.Missing(t, "version N-1, commit %s, is not in the history: %v %s", previous, err, out)
	}
	dir := t.TempDir()
	source, bin := filepath.Join(dir, "source"), filepath.Join(dir, "bin")
	if err := os.MkdirAll(source, 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, "source.tar")
	for _, cmd := range []*exec.Cmd{
		exec.Command("git", "-C", root, "archive", "-o", archive, previous),
		exec.Command("tar", "-C", source, "-xf", archive),
		// Without the paths in it, the build is the same every time, and cached.
		{Path: "", Args: []string{"go", "build", "-trimpath", "-o", bin + "/", "./cmd/lofamo-agent", "./cmd/supervisor"}, Dir: source},
	} {
		if cmd.Path == "" {
			if cmd.Path, err = exec.LookPath(cmd.Args[0]); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
		}
	}
	return bin
}

// newer lists the configuration keys of version N that version N-1 refuses. An operator who upgrades still has the old
// files; here version N writes them.
var newer = []string{}

// previousConfig writes a configuration as version N-1 knows it, and returns the new file's name.
func previousConfig(t *testing.T, path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var doc any
	if err := yaml.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	if b, err = yaml.Marshal(strip(doc)); err != nil {
		t.Fatal(err)
	}
	path += ".previous"
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func strip(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for _, key := range newer {
			delete(v, key)
		}
		for key, child := range v {
			v[key] = strip(child)
		}
	case []any:
		for i, child := range v {
			v[i] = strip(child)
		}
	}
	return v
}

// logged waits until the log of a node's DNP half has more lines with a text than before, and returns their number.
func (t trial) logged(node, text string, before int) (lines int) {
	t.Helper()
	path := filepath.Join(t.Cluster.Dir(), "nodes", node, "dnp.log")
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		b, err := os.ReadFile(path)
		if lines = strings.Count(string(b), text); err == nil && lines > before {
			return lines
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %d lines with %q, want more than %d: %v", path, lines, text, before, err)
		}
	}
}

// takesOrders has nodes of both versions carry out orders of the leader: the masks of both ends of a link, which it
// sets and restores, the torus configuration that follows from them, and a diagnosis.
func (t trial) takesOrders() {
	t.Helper()
	const word, told = "channel mask: ", "of the torus: network delay"
	nodes := []string{"n0-0-0", "n0-1-0"} // of N-1, of N
	c, err := t.Cluster.ClientAs(pki.RoleOperator)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	for _, masked := range []bool{true, false} {
		masks, configurations := map[string]int{}, map[string]int{}
		for _, n := range nodes {
			masks[n], configurations[n] = t.logged(n, word, -1), t.logged(n, told, -1)
		}
		req := &lofamov1.SetMaskRequest{Links: []*lofamov1.LinkName{{Node: nodes[0], Direction: "Y+"}}, Masked: masked, Reason: "a test"}
		if _, err := c.SetMask(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes {
			t.logged(n, word, masks[n])
			t.logged(n, told, configurations[n])
		}
	}
	if r := t.diagnose(&lofamov1.DiagnoseRequest{}, nil); r.GetNodes() != 4 || len(r.GetSilent()) > 0 {
		t.Errorf("diagnosed %d nodes, silent %v: want 4, none silent", r.GetNodes(), r.GetSilent())
	}
}

// TestVersionsMixed: row 19. A cluster of version N-1 is upgraded replica by replica, and then one half of one node. At
// every stage the verdicts are the same.
func TestVersionsMixed(t *testing.T) {
	old := buildPrevious(t) // before others run beside it
	t.Parallel()
	var mu sync.Mutex
	isOld := map[string]bool{"sup-0": true, "sup-1": true, "sup-2": true, "n0-0-0": true, "n1-0-0": true}
	l := clusterOf(t, "2x2x1", cluster.Options{Supervisors: 3, Periods: patient(), Command: func(member string, argv []string) []string {
		mu.Lock()
		defer mu.Unlock()
		if isOld[member] {
			argv = slices.Clone(argv)
			argv[0] = filepath.Join(old, filepath.Base(argv[0]))
			i := slices.Index(argv, "--config") + 1
			argv[i] = previousConfig(t, argv[i])
		}
		return argv
	}})
	stage := func(name string) {
		try(t, l, name, func(t trial) {
			t.takesOrders()
			for _, n := range []string{"n0-0-0", "n0-1-0"} { // of N-1, of N
				t.inject(n, simple(cluster.KillHost))
				t.becomes(n, "host", failed)
				t.is(n, sick, lofamov1.Cause_HOST)
			}
			t.inject("n1-0-0", sensor("temperature", 110))
			t.becomes("n1-0-0", "temperature", failed)
			t.neverFailed()
			t.othersWereSpared("n0-0-0", "n0-1-0", "n1-0-0")
		})
	}
	stage("supervisors N-1, nodes mixed")
	for i, s := range l.Cluster.Info().Supervisors {
		mu.Lock()
		isOld[s.ID] = false
		mu.Unlock()
		if err := l.Cluster.KillSupervisor(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		if err := l.Cluster.StartSupervisor(s.ID); err != nil {
			t.Fatal(err)
		}
		if i < 2 {
			stage(s.ID + " upgraded")
		}
	}
	stage("supervisors N, nodes mixed")
	try(t, l, "procedure of a supervisor N through nodes of both versions", func(t trial) {
		req := &lofamov1.StartProcedureRequest{Diagnose: true, Reason: "a test", DrainTimeoutMs: 1500}
		if r := t.procedure(req, func(*lofamov1.ProcedureProgress) {}); !r.GetClear() || len(r.GetNodes()) != 4 || len(r.GetSilent()) > 0 {
			t.Errorf("clear %t, %d nodes, silent %v: want it clear, 4, none silent", r.GetClear(), len(r.GetNodes()), r.GetSilent())
		}
	})
	mu.Lock()
	isOld["n0-0-0"] = false
	mu.Unlock()
	stage("the next start of n0-0-0's host half is N") // after its death in this stage
	stage("n0-0-0's host half N, its DNP half N-1")
}
