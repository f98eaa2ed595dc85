package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/process/slurmtest"
	"github.com/lofamo/lofamo/internal/testing/deadline"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/requirements"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// slurmController is a real slurmctld with helpers for the tests of this package.
type slurmController struct{ *slurmtest.Controller }

// shared is the controller of all tests of the Slurm executor.
var (
	shared     slurmController
	sharedOnce sync.Once
)

// CloseSlurm stops the shared controller, if a test has started it. TestMain calls it.
func CloseSlurm() {
	if shared.Controller != nil {
		shared.Close()
	}
}

func slurmCluster(t *testing.T) slurmController {
	t.Helper()
	sharedOnce.Do(func() { shared.Controller = slurmtest.Start(t) })
	if shared.Controller == nil {
		requirements.Missing(t, "no real Slurm")
	}
	return shared
}

// node returns the current state of a node.
func (c slurmController) node(t *testing.T, name string) slurmNode {
	t.Helper()
	n, err := c.executor(t).look(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (c slurmController) executor(t *testing.T) *slurmExecutor {
	t.Helper()
	return newSlurmExecutor(t, SlurmConfig{Scontrol: c.Scontrol, Conf: c.Conf})
}

func newSlurmExecutor(t *testing.T, cfg SlurmConfig) *slurmExecutor {
	t.Helper()
	x, err := newSlurm(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func slurmJob(node, id string, attempt int, undo bool) executor.Job {
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

func wantSlurm(t *testing.T, r executor.Result, o response.Outcome, detail string) {
	t.Helper()
	if r.Outcome != o || !strings.Contains(r.Detail, detail) {
		t.Errorf("outcome %d, %q: want %d, %q", r.Outcome, r.Detail, o, detail)
	}
}

// idle makes a node accept work again. If a node does not respond, as none does here, Slurm 24 keeps its reason when it
// returns to service. This reason is a mark of the cluster, so the next drain replaces it.
func (c slurmController) idle(t *testing.T, name string) {
	c.Idle(t, name, reasonOf("new", slurmEntry{"r0-0", 1}))
}

func (c slurmController) want(t *testing.T, name, state, reason string) {
	t.Helper()
	n := c.node(t, name)
	if reason == "" && !n.drained {
		n.reason = ""
	}
	if first, _, _ := strings.Cut(n.state, "+NOT_RESPONDING"); first != state || n.reason != reason {
		t.Errorf("%s is %s: want %s (%s)", name, n, state, reason)
	}
}

func TestSlurmNodeIsDrainedAndResumed(t *testing.T) {
	c := slurmCluster(t)
	x := c.executor(t)
	c.idle(t, "n1")
	wantSlurm(t, x.Do(t.Context(), slurmJob("n1", "r5-1", 1, false)), response.Succeeded, "IDLE+DRAIN")
	c.want(t, "n1", "IDLE+DRAIN", reasonOf("disk is failing", slurmEntry{"r5-1", 5}))
	wantSlurm(t, x.Do(t.Context(), slurmJob("n1", "r5-1", 2, false)), response.Succeeded, "already by this response")
	wantSlurm(t, x.Do(t.Context(), slurmJob("n1", "r5-1", 3, true)), response.Succeeded, "IDLE")
	c.want(t, "n1", "IDLE", "")
	wantSlurm(t, x.Do(t.Context(), slurmJob("n1", "r5-1", 4, true)), response.Succeeded, "is not drained")
	wantSlurm(t, x.Do(t.Context(), slurmJob("nowhere", "r5-2", 1, false)), response.Unchanged, "not found")

	// Quotes that scontrol would interpret do not break the checksum.
	quoted := slurmJob("n1", "r5-3", 1, false)
	quoted.Parameters = map[string]string{"reason": "'the \"disk\" is 'failing''"}
	wantSlurm(t, x.Do(t.Context(), quoted), response.Succeeded, "IDLE+DRAIN")
	c.want(t, "n1", "IDLE+DRAIN", reasonOf("'the disk is 'failing", slurmEntry{"r5-3", 5}))
	quoted.Undo = true
	wantSlurm(t, x.Do(t.Context(), quoted), response.Succeeded, "IDLE")
}

// TestNodeResumesAfterLastUndo: a node drained by two responses returns to service after both are undone.
func TestNodeResumesAfterLastUndo(t *testing.T) {
	c := slurmCluster(t)
	x := c.executor(t)
	c.idle(t, "n2")
	second := slurmJob("n2", "r6-1", 1, false)
	second.Token = 6
	wantSlurm(t, x.Do(t.Context(), slurmJob("n2", "r5-1", 1, false)), response.Succeeded, "")
	wantSlurm(t, x.Do(t.Context(), second), response.Succeeded, "")
	c.want(t, "n2", "IDLE+DRAIN", reasonOf("disk is failing", slurmEntry{"r5-1", 5}, slurmEntry{"r6-1", 6}))
	wantSlurm(t, x.Do(t.Context(), slurmJob("n2", "r5-1", 2, true)), response.Succeeded, "")
	c.want(t, "n2", "IDLE+DRAIN", reasonOf("disk is failing", slurmEntry{"r6-1", 6}))
	second.Undo = true
	wantSlurm(t, x.Do(t.Context(), second), response.Succeeded, "")
	c.want(t, "n2", "IDLE", "")
}

// TestDrainByOperatorIsKept: a node stays as it was if somebody else has drained it or has changed the reason since.
func TestDrainByOperatorIsKept(t *testing.T) {
	c := slurmCluster(t)
	x := c.executor(t)
	const theirs = "fan; see lofamo:c[r5-1@5] in the log"
	c.idle(t, "n3")
	c.Operator(t, "NodeName=n3", "State=DRAIN", "Reason="+theirs)
	wantSlurm(t, x.Do(t.Context(), slurmJob("n3", "r5-1", 1, false)), response.Succeeded, "the reason is another, and stays")
	c.want(t, "n3", "IDLE+DRAIN", theirs)
	wantSlurm(t, x.Do(t.Context(), slurmJob("n3", "r5-1", 2, true)), response.Succeeded, "stays so")
	c.want(t, "n3", "IDLE+DRAIN", theirs)

	c.idle(t, "n4")
	wantSlurm(t, x.Do(t.Context(), slurmJob("n4", "r5-1", 1, false)), response.Succeeded, "")
	c.Operator(t, "NodeName=n4", "Reason=keep it, I am at it")
	wantSlurm(t, x.Do(t.Context(), slurmJob("n4", "r5-1", 2, true)), response.Succeeded, "stays so")
	c.want(t, "n4", "IDLE+DRAIN", "keep it, I am at it")

	// Somebody has added text to our reason, on its line and below.
	set := reasonOf("disk is failing", slurmEntry{"r5-1", 5})
	for i, more := range []string{"; keep it, fan", "\nkeep it, fan"} {
		name := fmt.Sprintf("n%d", 19+i)
		c.idle(t, name)
		wantSlurm(t, x.Do(t.Context(), slurmJob(name, "r5-1", 1, false)), response.Succeeded, "")
		c.Operator(t, "NodeName="+name, "Reason="+set+more)
		for attempt, undo := range map[int]bool{2: false, 3: true} {
			wantSlurm(t, x.Do(t.Context(), slurmJob(name, "r5-1", attempt, undo)), response.Succeeded,
				"the reason is ours, which somebody has changed since, and stays")
		}
		if n := c.node(t, name); !n.drained || !strings.HasPrefix(n.reason, set) || !strings.Contains(n.reason, "keep it, fan") {
			t.Errorf("%s", n)
		}
	}

	// Another LO|FA|MO cluster on the same Slurm.
	c.Idle(t, "n5", slurmMark{"d", []slurmEntry{{"r0-0", 1}}, "new"}.String())
	other := slurmJob("n5", "r5-1", 1, false)
	other.Cluster = "d"
	wantSlurm(t, x.Do(t.Context(), other), response.Succeeded, "")
	wantSlurm(t, x.Do(t.Context(), slurmJob("n5", "r5-1", 2, true)), response.Succeeded, "stays so")
	c.want(t, "n5", "IDLE+DRAIN", slurmMark{"d", []slurmEntry{{"r5-1", 5}}, "disk is failing"}.String())
}

// TestDownNodeStaysDownAfterUndo: draining a down node keeps the earlier reason inside the new one, and the node is still down after
// the undo.
func TestDownNodeStaysDownAfterUndo(t *testing.T) {
	c := slurmCluster(t)
	x := c.executor(t)
	c.Operator(t, "NodeName=n6", "State=DOWN", "Reason=power supply")
	wantSlurm(t, x.Do(t.Context(), slurmJob("n6", "r5-1", 1, false)), response.Succeeded, "")
	c.want(t, "n6", "DOWN+DRAIN", reasonOf("disk is failing (reason before: power supply)", slurmEntry{"r5-1", 5}))
	wantSlurm(t, x.Do(t.Context(), slurmJob("n6", "r5-1", 2, true)), response.Succeeded, "")
	if n := c.node(t, "n6"); n.drained || !strings.HasPrefix(n.state, "DOWN") {
		t.Errorf("%s", n)
	}
}

// TestCommentIsNoReason: text that operators write into other fields does not count as a reason.
func TestCommentIsNoReason(t *testing.T) {
	c := slurmCluster(t)
	x := c.executor(t)
	c.idle(t, "n7")
	c.Operator(t, "NodeName=n7", "State=DRAIN", "Reason=theirs", "Comment=x\n   Reason=lofamo:c[r5-1@5] y")
	wantSlurm(t, x.Do(t.Context(), slurmJob("n7", "r5-1", 2, true)), response.Unchanged, "at most one Reason")
	if n, err := c.Run("show", "node", "n7"); err != nil || !strings.Contains(n, "DRAIN") {
		t.Errorf("%s, %v", n, err)
	}
}

// TestConcurrentSlurmActsRunInTurn: concurrent acts on one node run one after the other.
func TestConcurrentSlurmActsRunInTurn(t *testing.T) {
	c := slurmCluster(t)
	x := c.executor(t)
	c.idle(t, "n8")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			wantSlurm(t, x.Do(t.Context(), slurmJob("n8", fmt.Sprintf("r5-%d", i), 1, false)), response.Succeeded, "")
		})
	}
	wg.Wait()
	m, ours := parseMark(c.node(t, "n8").reason, "c")
	if !ours || len(m.entries) != 8 {
		t.Errorf("%+v", m)
	}
	for i := range 8 {
		wg.Go(func() {
			wantSlurm(t, x.Do(t.Context(), slurmJob("n8", fmt.Sprintf("r5-%d", i), 2, true)), response.Succeeded, "")
		})
	}
	wg.Wait()
	c.want(t, "n8", "IDLE", "")
}

// slurmctldPort matches the port of the controller in slurm.conf.
var slurmctldPort = regexp.MustCompile(`(?m)^SlurmctldPort=(\d+)$`)

// copyConf copies slurm.conf with another port of the controller and more lines.
func (c slurmController) copyConf(t *testing.T, path string, port uint16, more ...string) {
	t.Helper()
	conf, err := os.ReadFile(c.Conf)
	if err != nil {
		t.Fatal(err)
	}
	conf = slurmctldPort.ReplaceAll(conf, fmt.Appendf(nil, "SlurmctldPort=%d", port))
	for _, line := range more {
		conf = fmt.Appendf(conf, "\n%s\n", line)
	}
	if err := os.WriteFile(path, conf, 0o600); err != nil {
		t.Fatal(err)
	}
}

// between runs the real scontrol, but replaces its update by a script.
func (c slurmController) between(t *testing.T, update string) SlurmConfig {
	t.Helper()
	path := filepath.Join(t.TempDir(), "scontrol")
	script := "#!/bin/sh\nif [ \"$1\" = update ]; then\n" + strings.ReplaceAll(update, "SCONTROL",
		c.Scontrol) + "\nfi\nexec " + c.Scontrol + " \"$@\"\n"
	if err := slurmtest.Script(path, script); err != nil {
		t.Fatal(err)
	}
	return SlurmConfig{Scontrol: path, Conf: c.Conf}
}

// TestSlurmOutcomeFollowsNodeState: the outcome follows from the node's state, not from scontrol's answer.
func TestSlurmOutcomeFollowsNodeState(t *testing.T) {
	c := slurmCluster(t)
	closed := filepath.Join(t.TempDir(), "slurm.conf")
	c.copyConf(t, closed, freeport.Addr(t).Port())
	for name, tc := range map[string]struct {
		node, update string
		outcome      response.Outcome
		detail       string
	}{
		"refused":          {"n9", "echo 'slurm_update error: Access/permission denied' >&2; exit 1", response.Unchanged, "permission denied"},
		"refused by Slurm": {"n3", "SCONTROL update NodeName=n999 State=DRAIN Reason=x; exit $?", response.Unchanged, "Invalid node name"},
		"no controller":    {"n2", "SLURM_CONF=CLOSED SCONTROL \"$@\"; exit $?", response.Unchanged, "(connect failure)"},
		"no answer": {"n1", "echo 'slurm_update error: Socket timed out on send/recv operation' >&2; exit 1", response.NotKnown,
			"timed out"},
		"no good answer":    {"n4", "echo 'slurm_update error: Protocol authentication error' >&2; exit 1", response.NotKnown, "authentication"},
		"fails silently":    {"n5", "exit 1", response.NotKnown, "exit code 1"},
		"killed":            {"n6", "kill -9 $$", response.NotKnown, "signal 9"},
		"silently not done": {"n10", "exit 0", response.Unchanged, "exit code 0"},
		"done, then killed": {"n11", `SCONTROL "$@"; kill -9 $$`, response.Succeeded, "DRAIN"},
		"done, but refused": {"n12", `SCONTROL "$@"; exit 1`, response.Succeeded, "DRAIN"},
		"another thing":     {"n13", `SCONTROL update NodeName=n13 State=DRAIN Reason=somebody; exit 0`, response.Partly, "somebody"},
		"hangs":             {"n14", "touch HANGS; exec sleep 60", response.NotKnown, "deadline"},
		"done, then hangs":  {"n15", `SCONTROL "$@"; touch HANGS; exec sleep 60`, response.Succeeded, "DRAIN"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.idle(t, tc.node)
			hangs := filepath.Join(t.TempDir(), "hangs")
			x := newSlurmExecutor(t, c.between(t, strings.NewReplacer("HANGS", hangs, "CLOSED", closed).Replace(tc.update)))
			ctx := deadline.When(t, func() bool { _, err := os.Stat(hangs); return err == nil })
			wantSlurm(t, x.Do(ctx, slurmJob(tc.node, "r5-1", 1, false)), tc.outcome, tc.detail)
		})
	}
}

// TestLateSlurmOrderIsNotReportedUnchanged: the real scontrol gives up on an order that reaches the real slurmctld later. The step counts
// as not known, and the next attempt finds the node drained.
func TestLateSlurmOrderIsNotReportedUnchanged(t *testing.T) {
	c := slurmCluster(t)
	conf, err := os.ReadFile(c.Conf)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(freeport.IP(), 0)))
	if err != nil {
		t.Fatal(err)
	}
	release, carried := make(chan struct{}), make(chan error, 1)
	go func() { // carries one order, when released
		carried <- func() error {
			from, err := l.AcceptTCP()
			if err != nil {
				return err
			}
			defer func() { _ = from.Close() }()
			<-release
			order, err := io.ReadAll(from) // scontrol has closed its end
			if err != nil {
				return err
			}
			to, err := net.Dial("tcp", net.JoinHostPort(freeport.IP().String(), string(slurmctldPort.FindSubmatch(conf)[1])))
			if err != nil {
				return err
			}
			defer func() { _ = to.Close() }()
			if _, err := to.Write(order); err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, to) // until slurmctld has answered
			return err
		}()
	}()
	c.idle(t, "n17")
	late := filepath.Join(t.TempDir(), "slurm.conf")
	c.copyConf(t, late, l.Addr().(*net.TCPAddr).AddrPort().Port(), "MessageTimeout=5")
	x := newSlurmExecutor(t, c.between(t, "SLURM_CONF="+late+` SCONTROL "$@"; exit $?`))
	wantSlurm(t, x.Do(t.Context(), slurmJob("n17", "r5-1", 1, false)), response.NotKnown, "exit code 1")
	c.want(t, "n17", "IDLE", "")
	close(release)
	if err := errors.Join(<-carried, l.Close()); err != nil {
		t.Fatal(err)
	}
	c.want(t, "n17", "IDLE+DRAIN", reasonOf("disk is failing", slurmEntry{"r5-1", 5}))
	again := slurmJob("n17", "r5-1", 2, false)
	again.Recheck = true
	wantSlurm(t, x.Do(t.Context(), again), response.Succeeded, "already by this response")
}

// TestHigherTokenStopsSlurmUndo: the undo of a drain asks the fence, too.
func TestHigherTokenStopsSlurmUndo(t *testing.T) {
	c := slurmCluster(t)
	x := c.executor(t)
	c.idle(t, "n16")
	wantSlurm(t, x.Do(t.Context(), slurmJob("n16", "r5-1", 1, false)), response.Succeeded, "")
	ctx := executor.WithFence(t.Context(), func(context.Context) error { return fmt.Errorf("%w: token 6 has been seen", executor.ErrStale) })
	wantSlurm(t, x.Do(ctx, slurmJob("n16", "r5-1", 2, true)), response.StaleToken, "token 6")
	c.want(t, "n16", "IDLE+DRAIN", reasonOf("disk is failing", slurmEntry{"r5-1", 5}))
}

// TestSilentSlurmLeavesNodeUnchanged: if Slurm does not answer, nothing happens.
func TestSilentSlurmLeavesNodeUnchanged(t *testing.T) {
	c := slurmCluster(t)
	other := filepath.Join(t.TempDir(), "slurm.conf")
	c.copyConf(t, other, freeport.Addr(t).Port())
	x := newSlurmExecutor(t, SlurmConfig{Scontrol: c.Scontrol, Conf: other})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	wantSlurm(t, x.Do(ctx, slurmJob("n17", "r5-1", 1, false)), response.Unchanged, "scontrol show node n17")
}

// TestConfiguredSlurmNameIsUsed: the executor uses the configured Slurm names.
func TestConfiguredSlurmNameIsUsed(t *testing.T) {
	c := slurmCluster(t)
	c.idle(t, "n18")
	x := newSlurmExecutor(t, SlurmConfig{Scontrol: c.Scontrol, Conf: c.Conf, Nodes: map[fault.NodeID]string{"tile-0": "n18"}})
	wantSlurm(t, x.Do(t.Context(), slurmJob("tile-0", "r5-1", 1, false)), response.Succeeded, "n18")
	c.want(t, "n18", "IDLE+DRAIN", reasonOf("disk is failing", slurmEntry{"r5-1", 5}))
}
