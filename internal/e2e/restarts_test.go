package e2e

import (
	"context"
	"strings"
	"sync"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
)

// TestPlannedRestartOfAllAgentsCommitsNoFault restarts both halves of all nodes at once: no component becomes SICK or
// FAILED, and the circuit breaker stays closed, although each half really restarts.
func TestPlannedRestartOfAllAgentsCommitsNoFault(t *testing.T) {
	t.Parallel()
	l := clusterOf(t, "2x2x2", cluster.Options{Supervisors: 1, Preset: "relaxed", Periods: manyMisses(), Restart: "always"})
	events := func(after uint64) *lofamov1.ListEventsResponse {
		t.Helper()
		return answered(t, "read the events", func() (*lofamov1.ListEventsResponse, error) {
			return l.Client.AllEvents(t.Context(), &lofamov1.ListEventsRequest{AfterRevision: after})
		})
	}
	tr := begin(t, l)
	before := events(0).GetRevision()
	nodes := l.Cluster.Info().Nodes
	var all sync.WaitGroup
	for _, n := range nodes {
		all.Go(func() {
			if out, err := tr.agentOn(string(n.ID), "restart").CombinedOutput(); err != nil {
				t.Errorf("restart node %s: %v: %s", n.ID, err, out)
			}
		})
	}
	all.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), settling)
	defer cancel()
	if err := l.Settle(ctx); err != nil {
		t.Fatalf("after the restarts: %v", err)
	}
	tr.until("all halves to have restarted", func() bool { // the last event may come after the node is NORMAL again
		recovered := map[string]bool{}
		for _, e := range events(before).GetEvents() {
			if e.GetKind() == lofamov1.EventKind_RECOVERY_CHANGED {
				recovered[e.GetNode()+"/"+e.GetComponent()] = true
				if !strings.Contains(e.GetReason(), "ended on request") {
					t.Errorf("the event of a planned restart has the reason %q", e.GetReason())
				}
			}
		}
		return len(recovered) == 2*len(nodes)
	})
	for _, e := range events(before).GetEvents() {
		if to := e.GetTo(); e.GetKind() == lofamov1.EventKind_COMPONENT_CHANGED && (to == sick || to == failed) {
			t.Errorf("%s of %s became %s: %s", e.GetComponent(), e.GetNode(), to, e.GetReason())
		}
	}
	b := answered(t, "read the breaker", func() (*lofamov1.ResponseBreaker, error) { return l.Client.GetBreaker(t.Context()) })
	if b.GetOpen() || b.GetAt() != nil {
		t.Errorf("the breaker opened: %v", b)
	}
}
