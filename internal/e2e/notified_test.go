package e2e

import (
	"bufio"
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
)

// listens runs lofamo-agent faults --follow on a node until the test ends, and sends its output to the channel.
func (t trial) listens(node string, about ...string) <-chan *lofamov1.WatchFaultsResponse {
	t.Helper()
	config := filepath.Join(t.Cluster.Dir(), "nodes", node, "agent.yaml")
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, filepath.Join(binaries, "lofamo-agent"),
		append([]string{"faults", "--follow", "-o", "json", "--config", config}, about...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan *lofamov1.WatchFaultsResponse, 1024)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := bufio.NewScanner(out); s.Scan(); {
			r := new(lofamov1.WatchFaultsResponse)
			if err := protojson.Unmarshal(s.Bytes(), r); err != nil {
				t.Errorf("%s prints %q: %v", cmd, s.Text(), err)
				return
			}
			lines <- r
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		_ = cmd.Wait()
	})
	return lines
}

// hears waits until a node knows that another is in a state.
func (t trial) hears(lines <-chan *lofamov1.WatchFaultsResponse, node string, want lofamov1.State) {
	t.Helper()
	last := "nothing"
	for deadline := time.After(patience); ; {
		select {
		case r := <-lines:
			for _, n := range r.GetNodes() {
				if n.GetId() == node {
					last = n.String()
				}
				if n.GetId() == node && n.GetState() == want {
					return
				}
			}
		case <-deadline:
			t.Fatalf("it was not told that %s is %s; last: %s", node, want, last)
		}
	}
}

// staleness waits until a node reports its data as stale, or as current again.
func (t trial) staleness(lines <-chan *lofamov1.WatchFaultsResponse, want bool) *lofamov1.WatchFaultsResponse {
	t.Helper()
	for deadline := time.After(patience); ; {
		select {
		case r := <-lines:
			if r.GetStale() == want {
				return r
			}
		case <-deadline:
			t.Fatalf("waited %s to be told that stale is %v", patience, want)
		}
	}
}

// TestNodesLearnOfFaultsNearby: a node learns of faults of its neighbours, and of nodes that a job on it asks for, from its own
// socket; it still has the last known state when all supervisors are gone. While the remaining supervisors have no
// quorum, it reports that its data is old, and how old.
func TestNodesLearnOfFaultsNearby(t *testing.T) {
	t.Parallel()
	l := clusterOf(t, "2x2x2", cluster.Options{Supervisors: 3, Periods: patient()})
	try(t, l, "a neighbour, and a node far away", func(t trial) {
		near, far := t.listens("n0-0-0"), t.listens("n0-0-0", "n1-1-1")
		t.hears(near, "n1-0-0", normal)
		t.hears(far, "n1-1-1", normal)
		t.inject("1,0,0", simple(cluster.KillHost))
		t.hears(near, "n1-0-0", sick)
		t.inject("1,1,1", simple(cluster.KillNode))
		t.hears(far, "n1-1-1", failed)
		if err := t.Cluster.HealAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.hears(near, "n1-0-0", normal)
		t.hears(far, "n1-1-1", normal)
	})
	try(t, l, "no quorum", func(t trial) {
		near, ids := t.listens("n0-0-0"), t.leaderFirst()
		t.hears(near, "n1-0-0", normal)
		t.kill(ids[:2]...)
		t.staleness(near, true)
		t.inject("1,0,0", simple(cluster.KillNode))
		pause(t, 2*time.Second)
		now := t.staleness(t.listens("n0-0-0"), true)
		for _, n := range now.GetNodes() {
			if n.GetId() == "n1-0-0" && n.GetState() != normal {
				t.Errorf("without a quorum: %v", n)
			}
		}
		if age := now.GetStaleAge(); age == nil || age.AsDuration() < 2*time.Second || age.AsDuration() > patience ||
			now.GetSupervisorsAge().AsDuration() > age.AsDuration() {
			t.Errorf("2 s after it was stale the age is %v, and a supervisor was heard %v ago", age, now.GetSupervisorsAge())
		}
		t.start(ids[:2]...)
		t.hears(near, "n1-0-0", failed)
		t.staleness(t.listens("n0-0-0"), false)
	})
	t.Run("no supervisor is left", func(tt *testing.T) { // the last: nothing can be healed after it
		t := begin(tt, l)
		t.inject("0,1,0", simple(cluster.KillHost))
		t.becomes("n0-1-0", "node", sick)
		t.hears(t.listens("n0-0-0"), "n0-1-0", sick)
		for _, s := range t.Cluster.Info().Supervisors {
			t.signal(s.ID, unix.SIGKILL)
		}
		t.hears(t.listens("n0-0-0"), "n0-1-0", sick)
	})
}

// TestRisingTemperatureWarnsBeforeFault: a rising temperature raises a warning before it is a fault, with the remaining
// time, and the warning ends when the temperature is steady.
func TestRisingTemperatureWarnsBeforeFault(t *testing.T) {
	t.Parallel()
	l := clusterOf(t, "2x1x1", cluster.Options{Supervisors: 1, Periods: patient()})
	try(t, l, "a fan fails", func(t trial) {
		var w *lofamov1.Warning
		for celsius := 50.0; w == nil; celsius += 0.6 {
			if celsius > 75 {
				t.Fatalf("no warning by %.0f °C", celsius)
			}
			t.inject("1,0,0", sensor("temperature", celsius))
			for _, s := range t.Since(t.mark) {
				if s.GetKind() == lofamov1.EventKind_WARNING_CHANGED && !s.GetEnded() && s.GetNode() == "n1-0-0" {
					w = s.GetWarning()
				}
			}
			select {
			case <-t.Context().Done():
			case <-time.After(time.Second): // it warms up by the second: this is the fault, not a wait for something
			}
		}
		if w.GetComponent() != "temperature" || w.GetThreshold() <= w.GetValue() || w.GetSlope() <= 0 ||
			w.GetTimeToThreshold().AsDuration() <= 0 {
			t.Errorf("warning %v", w)
		}
		n := t.node("n1-0-0")
		if len(n.GetWarnings()) != 1 || n.GetState() != normal {
			t.Errorf("%s is %s with %d warnings", n.GetId(), n.GetState(), len(n.GetWarnings()))
		}
		t.neverFailed()
	})
}
