package supervisor_test

import (
	"fmt"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestCompactionKeepsHistory: the store compacts old revisions, and the replica restarts so that its memory is empty.
// A watch from the beginning still has every event.
func TestCompactionKeepsHistory(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	cfg := c.Configs[0]
	s := start(t, cfg)
	c.AwaitLeader(t)
	a := c.Agents["n0-0-0"]
	for _, st := range []fault.State{fault.Sick, fault.Normal, fault.Sick} {
		id, b := a.Report(t, fault.HalfHost, false, temperature(st))
		a.Deliver(t, id, b, cfg.Report)
	}
	before, err := c.Client(t, cfg.GRPC).ListEvents(t.Context(), &lofamov1.ListEventsRequest{})
	if err != nil || len(before.GetEvents()) < 3 || before.GetOldestRevision() != 1 {
		t.Fatal(before, err)
	}
	if _, err := adminOf(t, c, 0).Defragment(t.Context(), &lofamov1.DefragmentRequest{Name: cfg.ID, Compact: true}); err != nil {
		t.Fatal(err)
	}
	stop(t, s)
	start(t, cfg)
	c.AwaitLeader(t)
	ch, _ := watch(t, c.Client(t, cfg.GRPC), &lofamov1.WatchRequest{AfterRevision: 1})
	var got []*lofamov1.Event
	for len(got) < len(before.GetEvents()) {
		got = append(got, nextEvents(t, ch).GetEvents()...)
	}
	for i, want := range before.GetEvents() {
		if fmt.Sprint(got[i]) != fmt.Sprint(want) {
			t.Errorf("event %d: %v, want %v", i, got[i], want)
		}
	}
}
