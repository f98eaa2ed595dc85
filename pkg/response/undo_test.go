package response_test

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// mark sets the nodes in maintenance.
func (l *lab) mark(nodes ...fault.NodeID) {
	l.t.Helper()
	l.marks = nodes
	if err := l.step(response.MaintenanceChanged{Nodes: nodes}); err != nil {
		l.t.Fatalf("%v", err)
	}
}

// failedDrain returns a lab with a cordoned node and a failed drain.
func failedDrain(t *testing.T) *lab {
	t.Helper()
	cfg := quick()
	cfg.BreakerNodes, cfg.BreakerPercent = 4, 5
	l := newLab(t, cfg, grid.Dims{X: 2, Y: 2, Z: 2}, testPolicies(t)["drain"])
	l.lead()
	l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Failed))
	l.land(response.Succeeded, "") // cordon
	for range 2 {
		l.land(response.Partly, "a pod does not end")
		l.until(l.now.Add(time.Minute))
	}
	wantResponse(t, l, response.Failed, response.ReasonStepFailed)
	return l
}

func wantResponse(t *testing.T, l *lab, state response.State, reason response.Reason) {
	t.Helper()
	if r := l.e.Responses()[0]; r.State != state || r.Reason != reason || len(l.flying) != 0 {
		t.Fatalf("%s (%s: %s), flying %v: want %s (%s), and no attempt", r.State, r.Reason, r.Detail, l.flying, state, reason)
	}
}

// TestFailedStepStaysFailedAfterHeldUndo: a mark for maintenance holds back the undo of a failed response, the fault returns, and the mark
// is removed. The failed step does not run again.
func TestFailedStepStaysFailedAfterHeldUndo(t *testing.T) {
	l := failedDrain(t)
	l.mark("n0-0-0")
	l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Normal))
	l.until(l.now.Add(6 * time.Minute))
	wantResponse(t, l, response.Failed, response.ReasonStepFailed)
	l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Failed))
	l.until(l.now.Add(6 * time.Minute))
	l.mark()
	l.until(l.now.Add(10 * time.Minute))
	wantResponse(t, l, response.Failed, response.ReasonStepFailed)
}

// TestHeldUndoOfFailedResponseFollows: the undo begins when the mark for maintenance is removed, or when the breaker is closed.
func TestHeldUndoOfFailedResponseFollows(t *testing.T) {
	for name, tc := range map[string]struct{ hold, release func(l *lab) }{
		"maintenance": {func(l *lab) { l.mark("n0-0-0") }, func(l *lab) { l.mark() }},
		"breaker": {func(l *lab) {
			for _, id := range []fault.NodeID{"n0-0-1", "n0-1-0", "n0-1-1", "n1-0-0"} {
				l.set(l.own(id, fault.ComponentNode, fault.Failed))
			}
			if !l.e.Breaker().Open {
				l.t.Fatalf("the breaker is closed")
			}
		}, func(l *lab) {
			if err := l.ask("operator/ann", response.CloseBreaker, ""); err != nil {
				l.t.Fatalf("%v", err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l := failedDrain(t)
			tc.hold(l)
			l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Normal))
			l.until(l.now.Add(time.Hour))
			wantResponse(t, l, response.Failed, response.ReasonStepFailed)
			tc.release(l)
			if len(l.flying) != 1 || !l.flying[0].Undo {
				t.Errorf("%v: want the undo", l.flying)
			}
		})
	}
}

// TestDeniedResponseStaysDeniedAfterHeldUndo: the grace of a new leader holds back the undo of a denied response, and the fault returns. No
// further step runs.
func TestDeniedResponseStaysDeniedAfterHeldUndo(t *testing.T) {
	cfg := quick()
	cfg.Grace = 30 * time.Second
	l := newLab(t, cfg, grid.Dims{X: 2, Y: 2, Z: 2}, parsed(t, []byte(`apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: warn-then-drain}
spec:
  mode: enforce
  match: fault.component == "memory" && fault.state == "FAILED"
  steps:
  - {name: alert, executor: alertmanager, parameters: {severity: critical}, wait: 10m}
  - {name: drain, executor: kubernetes.drain, timeout: 10m}
  undo: {onRecovery: true, after: 5m}
`))...)
	l.lead()
	l.until(start.Add(time.Minute))
	l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Failed))
	if len(l.flying) != 1 {
		t.Fatalf("%v: want the alert", l.flying)
	}
	id := l.flying[0].Response
	l.land(response.Succeeded, "")
	l.until(l.now.Add(time.Minute))
	if err := l.ask("operator/ann", response.Deny, id); err != nil {
		t.Fatal(err)
	}
	l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Normal))
	l.until(l.now.Add(4*time.Minute + 50*time.Second))
	l.lead()
	l.until(l.now.Add(20 * time.Second)) // gone for 5m10s, still in the grace
	l.set(l.own("n0-0-0", fault.ComponentMemory, fault.Failed))
	l.until(l.now.Add(30 * time.Minute))
	wantResponse(t, l, response.Expired, response.ReasonDenied)
}
