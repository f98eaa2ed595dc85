package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/testing/lab"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

const (
	normal  = lofamov1.State_NORMAL
	sick    = lofamov1.State_SICK
	failed  = lofamov1.State_FAILED
	unknown = lofamov1.State_UNKNOWN
)

// patience bounds every wait. It is a bound against hanging, far above any promised bound, which the measurements hold, not these tests.
const patience = time.Minute

// settling is the maximum wait for a map in which all is NORMAL: a service network with many losses takes 12 s for that
// after the last loss, and a busy machine several times as long.
const settling = 2 * patience

// binaries is where the programs under test are; main sets it once.
var binaries string

func TestMain(m *testing.M) {
	if len(os.Args) > 4 && os.Args[1] == flooder {
		if err := runFlooder(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 3 && os.Args[1] == slowly {
		fmt.Fprintln(os.Stderr, runSlowly(os.Args[2], os.Args[3:]))
		os.Exit(1)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	// The tests neither use nor change the contexts of the person who runs them.
	contexts, err := os.MkdirTemp("", "lofamo-e2e-contexts-")
	if err == nil {
		err = os.Setenv("XDG_CONFIG_HOME", contexts)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(contexts)
	binaries = os.Getenv(cluster.EnvBinDir)
	if binaries == "" {
		dir, err := os.MkdirTemp("", "lofamo-e2e-bin-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		cmd := exec.Command("go", "build", "-o", dir+"/", "../../cmd/...")
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "build the programs under test:", err)
			return 1
		}
		binaries = dir
	}
	return m.Run()
}

// startCluster starts a cluster for one test and its subtests, with periods that outlast a pause of the machine of up to 0.4 s.
// When the test fails, it keeps the logs and prints their ends: after a run in CI, only the output of the tests remains.
func startCluster(t *testing.T, dims string, supervisors int) *lab.Lab {
	t.Helper()
	return clusterOf(t, dims, cluster.Options{Supervisors: supervisors, Periods: patient()})
}

// clusterOf is startCluster with options of its own; directory, dims and programs are filled in.
func clusterOf(t *testing.T, dims string, o cluster.Options) *lab.Lab {
	t.Helper()
	d, err := grid.ParseDims(dims)
	if err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir: its name is too long for Unix sockets.
	dir, err := os.MkdirTemp("", "lofamo-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	o.Dir, o.Dims, o.BinDir = filepath.Join(dir, "c"), d, binaries
	l, err := lab.Start(ctx, o)
	if err != nil {
		t.Fatalf("%v%s", err, logEnds(dir))
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the cluster's directory with its logs is kept: %s; their ends:%s", dir, logEnds(dir))
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return l
}

// logEnds returns the ends of all logs below a directory: 16 KiB of a supervisor's, 4 KiB of an agent's.
func logEnds(dir string) string {
	var out strings.Builder
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || e.Name() != "log" && filepath.Ext(path) != ".log" {
			return err
		}
		b, err := os.ReadFile(path)
		most := 4 << 10
		if e.Name() == "log" {
			most = 16 << 10
		}
		if len(b) > 0 {
			fmt.Fprintf(&out, "\n--- %s\n%s", path, b[max(0, len(b)-most):])
		}
		return err
	})
	if err != nil {
		fmt.Fprintf(&out, "\n--- %v", err)
	}
	return out.String()
}

// trial is one fault in one test: it compares the whole map with the expected state.
type trial struct {
	*testing.T
	*lab.Lab
	mark int
	// faults are the expected FAILED components that the test has seen: set of "node component".
	faults *sync.Map
}

// begin is a trial from now on.
func begin(t *testing.T, l *lab.Lab) trial { return trial{t, l, l.Mark(), &sync.Map{}} }

// try runs a subtest on a settled cluster and heals it afterwards.
func try(t *testing.T, l *lab.Lab, name string, do func(trial)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), settling)
		defer cancel()
		if err := l.Settle(ctx); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := l.Cluster.HealAll(context.Background()); err != nil {
				t.Error(err)
			}
		}()
		do(begin(t, l))
	})
}

func (t trial) inject(node string, f cluster.Fault) {
	t.Helper()
	if _, err := t.Cluster.Inject(t.Context(), node, f); err != nil {
		t.Fatal(err)
	}
}

// undo ends a fault without waiting for its consequences to end.
func (t trial) undo(node string, f cluster.Fault) {
	t.Helper()
	if err := t.Cluster.Undo(t.Context(), node, f); err != nil {
		t.Fatal(err)
	}
}

// becomes waits for a change and returns it.
func (t trial) becomes(node, component string, states ...lofamov1.State) lab.Seen {
	t.Helper()
	return t.becomesWithin(patience, node, component, states...)
}

func (t trial) becomesWithin(d time.Duration, node, component string, states ...lofamov1.State) lab.Seen {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	s, err := t.Wait(ctx, t.mark, lab.Becomes(node, component, states...))
	if err != nil {
		t.Fatalf("%s of %s never became %v: %v", component, node, states, err)
	}
	if slices.Contains(states, failed) {
		t.mayFail(node, component)
	}
	return s
}

// mayFail makes neverFailed let a component pass.
func (t trial) mayFail(node, component string) { t.faults.Store(node+" "+component, true) }

// heal puts a node right and waits until the whole map is NORMAL again.
func (t trial) heal(node string) {
	t.Helper()
	if err := t.Cluster.Heal(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	t.settled()
}

func (t trial) settled() {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settling)
	defer cancel()
	if err := t.Settle(ctx); err != nil {
		t.Fatal(err)
	}
}

func (t trial) node(name string) *lofamov1.Node {
	t.Helper()
	return answered(t.T, "read "+name, func() (*lofamov1.Node, error) { return t.Client.GetNode(t.Context(), name) })
}

// answered repeats a read until it has an answer: on a busy machine a supervisor may exceed the time limit of one attempt.
func answered[T any](t *testing.T, what string, read func() (T, error)) (out T) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		if out, err = read(); err == nil {
			return out
		}
		if time.Now().After(end) || t.Context().Err() != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// is waits until a reader of the map sees a verdict on a node: the answering replica may lag behind the one that sent
// the event.
func (t trial) is(name string, state lofamov1.State, cause lofamov1.Cause) *lofamov1.Node {
	t.Helper()
	var n *lofamov1.Node
	eventually(t.T, fmt.Sprintf("%s to be %s, cause %s", name, state, cause), func() bool {
		n = t.node(name)
		return n.GetState() == state && n.GetCause() == cause
	})
	return n
}

// component finds a component of a node by name.
func (t trial) component(n *lofamov1.Node, name string) *lofamov1.Component {
	t.Helper()
	for _, c := range n.GetComponents() {
		if c.GetName() == name {
			return c
		}
	}
	t.Fatalf("%s has no component %s", n.GetId(), name)
	return nil
}

// hasEvidence checks that a component's state rests on an observation of that kind.
func (t trial) hasEvidence(n *lofamov1.Node, component, kind, observer string, path lofamov1.Path) {
	t.Helper()
	c := t.component(n, component)
	if !restsOn(c, kind, observer, path) {
		t.Errorf("%s of %s: no evidence %s by %q on path %s with an age in %v", component, n.GetId(), kind, observer, path, c.GetEvidence())
	}
}

func restsOn(c *lofamov1.Component, kind, observer string, path lofamov1.Path) bool {
	return slices.ContainsFunc(c.GetEvidence(), func(e *lofamov1.Evidence) bool {
		return e.GetKind() == kind && (observer == "" || e.GetObserver() == observer) &&
			(path == lofamov1.Path_PATH_UNSPECIFIED || e.GetPath() == path) && e.GetAge() != nil
	})
}

// comesToHaveEvidence waits for an observation that need not have decided.
func (t trial) comesToHaveEvidence(node, component, kind, observer string, path lofamov1.Path) {
	t.Helper()
	deadline := time.After(patience)
	for {
		c := t.component(t.node(node), component)
		if restsOn(c, kind, observer, path) {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s of %s: no evidence %s by %q on path %s in %v", component, node, kind, observer, path, c.GetEvidence())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// quiet waits until a node has not changed for five seconds.
func (t trial) quiet(node string) {
	t.Helper()
	eventually(t.T, "no further change of "+node, func() bool {
		for _, s := range t.Since(t.mark) {
			if s.GetNode() == node && cluster.Monotonic()-s.At < int64(5*time.Second) {
				return false
			}
		}
		return true
	})
}

// othersWereSpared checks that since the trial began no other node was called anything but NORMAL,
// and that none was ever called FAILED.
func (t trial) othersWereSpared(guilty ...string) {
	t.Helper()
	for _, s := range t.Since(t.mark) {
		if s.GetComponent() == "node" && s.GetTo() != normal && !slices.Contains(guilty, s.GetNode()) {
			t.Errorf("a bystander was accused: %s", s)
		}
	}
}

// neverFailed checks that since the trial began no component was called FAILED, except those that the test waited for;
// a link's end beside a failed half may be. A whole node never may.
func (t trial) neverFailed() {
	t.Helper()
	for _, s := range t.Since(t.mark) {
		if s.GetTo() != failed || s.GetComponent() == "" {
			continue
		}
		_, wanted := t.faults.Load(s.GetNode() + " " + s.GetComponent())
		follows := strings.HasPrefix(s.GetComponent(), "link/") && s.GetCause() != lofamov1.Cause_LINK
		if s.GetComponent() == "node" || !wanted && !follows {
			t.Errorf("something that works was called FAILED: %s", s)
		}
	}
}

func simple(k cluster.Kind) cluster.Fault { return cluster.Fault{Kind: k} }

func sensor(name string, v float64) cluster.Fault {
	return cluster.Fault{Kind: cluster.SensorValue, Sensor: name, Value: v}
}
