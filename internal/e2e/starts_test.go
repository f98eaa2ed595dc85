package e2e

import (
	"context"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
)

// TestStartsCommitNoFault checks that a cold start, a restart of all supervisors at once, and a restart of everything
// at once commit no fault and leave the circuit breaker closed.
func TestStartsCommitNoFault(t *testing.T) {
	periods, reads := manyMisses(), 5 // with more, the test would be over before a wrong silence is committed
	periods.ReadMisses = &reads
	l := clusterOf(t, "3x3x1", cluster.Options{Supervisors: 3, Preset: "relaxed", Periods: periods})
	checked := uint64(0)
	check := func(what string) {
		t.Helper()
		events := answered(t, what+": read the events", func() (*lofamov1.ListEventsResponse, error) {
			return l.Client.AllEvents(t.Context(), &lofamov1.ListEventsRequest{AfterRevision: checked})
		})
		if checked == 0 && len(events.GetEvents()) == 0 {
			t.Fatalf("%s: no event was committed: want the first NORMAL of each node", what)
		}
		checked = events.GetRevision()
		for _, e := range events.GetEvents() {
			if to := e.GetTo(); to == sick || to == failed {
				t.Errorf("%s: %s of %s became %s: %s", what, e.GetComponent(), e.GetNode(), to, e.GetReason())
			}
		}
		b := answered(t, what+": read the breaker", func() (*lofamov1.ResponseBreaker, error) { return l.Client.GetBreaker(t.Context()) })
		if b.GetOpen() || b.GetAt() != nil {
			t.Errorf("%s: the breaker opened: %v", what, b)
		}
	}
	settled := func(what string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), settling)
		defer cancel()
		if err := l.Settle(ctx); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	check("cold start")

	supervisors := l.Cluster.Info().Supervisors
	for _, s := range supervisors {
		if err := l.Cluster.KillSupervisor(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range supervisors {
		if err := l.Cluster.StartSupervisor(s.ID); err != nil {
			t.Fatal(err)
		}
	}
	settled("all supervisors restarted at once")
	check("all supervisors restarted at once")

	if err := l.Cluster.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.Cluster.Start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	settled("all agents and supervisors restarted")
	check("all agents and supervisors restarted")
	checkLogs(t, l.Cluster.Dir())
}
