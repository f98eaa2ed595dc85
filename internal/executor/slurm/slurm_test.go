package slurm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/slurm/slurmtest"
	"github.com/lofamo/lofamo/internal/freeport"
	"github.com/lofamo/lofamo/internal/needs"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// controller is a real slurmctld with helpers for the tests of this package.
type controller struct{ *slurmtest.Controller }

// shared is the controller of all tests.
var (
	shared     controller
	sharedOnce sync.Once
)

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.Controller != nil {
		shared.Close()
	}
	os.Exit(code)
}

func cluster(t *testing.T) controller {
	t.Helper()
	sharedOnce.Do(func() { shared.Controller = slurmtest.Start(t) })
	if shared.Controller == nil {
		needs.Missing(t, "no real Slurm")
	}
	return shared
}

// node returns the current state of a node.
func (c controller) node(t *testing.T, name string) node {
	t.Helper()
	n, err := c.executor(t).look(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (c controller) executor(t *testing.T) *Executor {
	t.Helper()
	return newExecutor(t, Config{Scontrol: c.Scontrol, Conf: c.Conf})
}

func newExecutor(t *testing.T, cfg Config) *Executor {
	t.Helper()
	x, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func job(node, id string, attempt int, undo bool) executor.Job {
	return executor.Job{
		Effect: response.Effect{
			Attempt: response.Attempt{Response: id, Step: 0,
				Attempt: attempt}, Kind: response.SlurmDrain, Token: 5, IdempotencyKey: id, Undo: undo, Timeout: 30 * time.Second,
			Target: response.Target{Node: fault.NodeID(node),
				Component: fault.ComponentHost}, Parameters: map[string]string{"reason": "disk is failing"},
		},
		Cluster: "c", Policy: "p",
	}
}

func want(t *testing.T, r executor.Result, o response.Outcome, detail string) {
	t.Helper()
	if r.Outcome != o || !strings.Contains(r.Detail, detail) {
		t.Errorf("outcome %d, %q: want %d, %q", r.Outcome, r.Detail, o, detail)
	}
}

// idle makes a node accept work again. If a node does not respond, as none does here, Slurm 24 keeps its reason when it
// returns to service. This reason is a mark of the cluster, so the next drain replaces it.
func (c controller) idle(t *testing.T, name string) {
	c.Idle(t, name, reasonOf("new", entry{"r0-0", 1}))
}

func (c controller) want(t *testing.T, name, state, reason string) {
	t.Helper()
	n := c.node(t, name)
	if reason == "" && !n.drained {
		n.reason = ""
	}
	if first, _, _ := strings.Cut(n.state, "+NOT_RESPONDING"); first != state || n.reason != reason {
		t.Errorf("%s is %s: want %s (%s)", name, n, state, reason)
	}
}

func TestDrainAndGiveBack(t *testing.T) {
	c := cluster(t)
	x := c.executor(t)
	c.idle(t, "n1")
	want(t, x.Do(t.Context(), job("n1", "r5-1", 1, false)), response.Succeeded, "IDLE+DRAIN")
	c.want(t, "n1", "IDLE+DRAIN", reasonOf("disk is failing", entry{"r5-1", 5}))
	want(t, x.Do(t.Context(), job("n1", "r5-1", 2, false)), response.Succeeded, "already by this response")
	want(t, x.Do(t.Context(), job("n1", "r5-1", 3, true)), response.Succeeded, "IDLE")
	c.want(t, "n1", "IDLE", "")
	want(t, x.Do(t.Context(), job("n1", "r5-1", 4, true)), response.Succeeded, "is not drained")
	want(t, x.Do(t.Context(), job("nowhere", "r5-2", 1, false)), response.Unchanged, "not found")

	// Quotes that scontrol would interpret do not break the checksum.
	quoted := job("n1", "r5-3", 1, false)
	quoted.Parameters = map[string]string{"reason": "'the \"disk\" is 'failing''"}
	want(t, x.Do(t.Context(), quoted), response.Succeeded, "IDLE+DRAIN")
	c.want(t, "n1", "IDLE+DRAIN", reasonOf("'the disk is 'failing", entry{"r5-3", 5}))
	quoted.Undo = true
	want(t, x.Do(t.Context(), quoted), response.Succeeded, "IDLE")
}

// TestTwoResponses: a node drained by two responses returns to service after both are undone.
func TestTwoResponses(t *testing.T) {
	c := cluster(t)
	x := c.executor(t)
	c.idle(t, "n2")
	second := job("n2", "r6-1", 1, false)
	second.Token = 6
	want(t, x.Do(t.Context(), job("n2", "r5-1", 1, false)), response.Succeeded, "")
	want(t, x.Do(t.Context(), second), response.Succeeded, "")
	c.want(t, "n2", "IDLE+DRAIN", reasonOf("disk is failing", entry{"r5-1", 5}, entry{"r6-1", 6}))
	want(t, x.Do(t.Context(), job("n2", "r5-1", 2, true)), response.Succeeded, "")
	c.want(t, "n2", "IDLE+DRAIN", reasonOf("disk is failing", entry{"r6-1", 6}))
	second.Undo = true
	want(t, x.Do(t.Context(), second), response.Succeeded, "")
	c.want(t, "n2", "IDLE", "")
}

// TestOthersAreLeftAlone: a node stays as it was if somebody else has drained it or has changed the reason since.
func TestOthersAreLeftAlone(t *testing.T) {
	c := cluster(t)
	x := c.executor(t)
	const theirs = "fan; see lofamo:c[r5-1@5] in the log"
	c.idle(t, "n3")
	c.Operator(t, "NodeName=n3", "State=DRAIN", "Reason="+theirs)
	want(t, x.Do(t.Context(), job("n3", "r5-1", 1, false)), response.Succeeded, "the reason is another, and stays")
	c.want(t, "n3", "IDLE+DRAIN", theirs)
	want(t, x.Do(t.Context(), job("n3", "r5-1", 2, true)), response.Succeeded, "stays so")
	c.want(t, "n3", "IDLE+DRAIN", theirs)

	c.idle(t, "n4")
	want(t, x.Do(t.Context(), job("n4", "r5-1", 1, false)), response.Succeeded, "")
	c.Operator(t, "NodeName=n4", "Reason=keep it, I am at it")
	want(t, x.Do(t.Context(), job("n4", "r5-1", 2, true)), response.Succeeded, "stays so")
	c.want(t, "n4", "IDLE+DRAIN", "keep it, I am at it")

	// Somebody has added text to our reason, on its line and below.
	set := reasonOf("disk is failing", entry{"r5-1", 5})
	for i, more := range []string{"; keep it, fan", "\nkeep it, fan"} {
		name := fmt.Sprintf("n%d", 19+i)
		c.idle(t, name)
		want(t, x.Do(t.Context(), job(name, "r5-1", 1, false)), response.Succeeded, "")
		c.Operator(t, "NodeName="+name, "Reason="+set+more)
		for attempt, undo := range map[int]bool{2: false, 3: true} {
			want(t, x.Do(t.Context(), job(name, "r5-1", attempt, undo)), response.Succeeded,
				"the reason is ours, which somebody has changed since, and stays")
		}
		if n := c.node(t, name); !n.drained || !strings.HasPrefix(n.reason, set) || !strings.Contains(n.reason, "keep it, fan") {
			t.Errorf("%s", n)
		}
	}

	// Another LO|FA|MO cluster on the same Slurm.
	c.Idle(t, "n5", mark{"d", []entry{{"r0-0", 1}}, "new"}.String())
	other := job("n5", "r5-1", 1, false)
	other.Cluster = "d"
	want(t, x.Do(t.Context(), other), response.Succeeded, "")
	want(t, x.Do(t.Context(), job("n5", "r5-1", 2, true)), response.Succeeded, "stays so")
	c.want(t, "n5", "IDLE+DRAIN", mark{"d", []entry{{"r5-1", 5}}, "disk is failing"}.String())
}

// TestDownStaysDown: draining a down node keeps the earlier reason inside the new one, and the node is still down after
// the undo.
func TestDownStaysDown(t *testing.T) {
	c := cluster(t)
	x := c.executor(t)
	c.Operator(t, "NodeName=n6", "State=DOWN", "Reason=power supply")
	want(t, x.Do(t.Context(), job("n6", "r5-1", 1, false)), response.Succeeded, "")
	c.want(t, "n6", "DOWN+DRAIN", reasonOf("disk is failing (reason before: power supply)", entry{"r5-1", 5}))
	want(t, x.Do(t.Context(), job("n6", "r5-1", 2, true)), response.Succeeded, "")
	if n := c.node(t, "n6"); n.drained || !strings.HasPrefix(n.state, "DOWN") {
		t.Errorf("%s", n)
	}
}

// TestComment: text that operators write into other fields does not count as a reason.
func TestComment(t *testing.T) {
	c := cluster(t)
	x := c.executor(t)
	c.idle(t, "n7")
	c.Operator(t, "NodeName=n7", "State=DRAIN", "Reason=theirs", "Comment=x\n   Reason=lofamo:c[r5-1@5] y")
	want(t, x.Do(t.Context(), job("n7", "r5-1", 2, true)), response.Unchanged, "at most one Reason")
	if n, err := c.Run("show", "node", "n7"); err != nil || !strings.Contains(n, "DRAIN") {
		t.Errorf("%s, %v", n, err)
	}
}

// TestManyAtOnce: concurrent acts on one node run one after the other.
func TestManyAtOnce(t *testing.T) {
	c := cluster(t)
	x := c.executor(t)
	c.idle(t, "n8")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			want(t, x.Do(t.Context(), job("n8", fmt.Sprintf("r5-%d", i), 1, false)), response.Succeeded, "")
		})
	}
	wg.Wait()
	m, ours := parseMark(c.node(t, "n8").reason, "c")
	if !ours || len(m.entries) != 8 {
		t.Errorf("%+v", m)
	}
	for i := range 8 {
		wg.Go(func() {
			want(t, x.Do(t.Context(), job("n8", fmt.Sprintf("r5-%d", i), 2, true)), response.Succeeded, "")
		})
	}
	wg.Wait()
	c.want(t, "n8", "IDLE", "")
}

// between runs the real scontrol, but replaces its update by a script.
func (c controller) between(t *testing.T, update string) Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "scontrol")
	script := "#!/bin/sh\nif [ \"$1\" = update ]; then\n" + strings.ReplaceAll(update, "SCONTROL",
		c.Scontrol) + "\nfi\nexec " + c.Scontrol + " \"$@\"\n"
	if err := slurmtest.Script(path, script); err != nil {
		t.Fatal(err)
	}
	return Config{Scontrol: path, Conf: c.Conf}
}

// TestUpdateGoesWrong: the outcome follows from the node's state, not from scontrol's answer.
func TestUpdateGoesWrong(t *testing.T) {
	c := cluster(t)
	for name, tc := range map[string]struct {
		node, update string
		outcome      response.Outcome
		detail       string
	}{
		"refused":           {"n9", "echo no such right >&2; exit 1", response.Unchanged, "no such right"},
		"silently not done": {"n10", "exit 0", response.Unchanged, "exit code 0"},
		"done, then killed": {"n11", `SCONTROL "$@"; kill -9 $$`, response.Succeeded, "DRAIN"},
		"done, but refused": {"n12", `SCONTROL "$@"; exit 1`, response.Succeeded, "DRAIN"},
		"another thing":     {"n13", `SCONTROL update NodeName=n13 State=DRAIN Reason=somebody; exit 1`, response.Partly, "somebody"},
		"hangs":             {"n14", "sleep 60", response.NotKnown, "deadline"},
		"done, then hangs":  {"n15", `SCONTROL "$@"; sleep 60`, response.Succeeded, "DRAIN"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.idle(t, tc.node)
			x := newExecutor(t, c.between(t, tc.update))
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			want(t, x.Do(ctx, job(tc.node, "r5-1", 1, false)), tc.outcome, tc.detail)
		})
	}
}

// TestToken: a higher token that arrives while the executor reads the node stops the act.
func TestToken(t *testing.T) {
	c := cluster(t)
	x := c.executor(t)
	c.idle(t, "n16")
	ctx := executor.WithFence(t.Context(), func(context.Context) error { return fmt.Errorf("%w: token 6 has been seen", executor.ErrStale) })
	unsure := executor.WithFence(t.Context(), func(context.Context) error { return errors.New("no quorum") })
	want(t, x.Do(ctx, job("n16", "r5-1", 1, false)), response.StaleToken, "token 6")
	want(t, x.Do(unsure, job("n16", "r5-1", 1, false)), response.Unchanged, "no quorum")
	c.want(t, "n16", "IDLE", "")
	want(t, x.Do(t.Context(), job("n16", "r5-1", 2, false)), response.Succeeded, "")
	want(t, x.Do(ctx, job("n16", "r5-1", 3, true)), response.StaleToken, "token 6")
	c.want(t, "n16", "IDLE+DRAIN", reasonOf("disk is failing", entry{"r5-1", 5}))
}

// TestNoController: if Slurm does not answer, nothing happens.
func TestNoController(t *testing.T) {
	c := cluster(t)
	conf, err := os.ReadFile(c.Conf)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "slurm.conf")
	lines := strings.Split(string(conf), "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, "SlurmctldPort=") {
			lines[i] = fmt.Sprintf("SlurmctldPort=%d", freeport.Addr(t).Port())
		}
	}
	if err := os.WriteFile(other, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	x := newExecutor(t, Config{Scontrol: c.Scontrol, Conf: other})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	want(t, x.Do(ctx, job("n17", "r5-1", 1, false)), response.Unchanged, "scontrol show node n17")
}

// TestName: the executor uses the configured Slurm names.
func TestName(t *testing.T) {
	c := cluster(t)
	c.idle(t, "n18")
	x := newExecutor(t, Config{Scontrol: c.Scontrol, Conf: c.Conf, Nodes: map[fault.NodeID]string{"tile-0": "n18"}})
	want(t, x.Do(t.Context(), job("tile-0", "r5-1", 1, false)), response.Succeeded, "n18")
	c.want(t, "n18", "IDLE+DRAIN", reasonOf("disk is failing", entry{"r5-1", 5}))
}
