package engine

import (
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// publishedStarvations waits for at least want events of starvation and returns them, oldest first.
func publishedStarvations(t *testing.T, h *harness, want int) (out []*lofamov1.Event) {
	t.Helper()
	for events := 1; len(out) < want; events++ {
		out = nil
		for _, ev := range awaitEvents(t, h, events) {
			if ev.GetKind() == lofamov1.EventKind_STARVATION_CHANGED {
				out = append(out, ev)
			}
		}
	}
	return out
}

// TestStarvationIsOneEventAndNoFault: the begin and the end are events, also for the next leader. No state changes.
func TestStarvationIsOneEventAndNoFault(t *testing.T) {
	h := start(t, memstore.New(100), nil)
	said := func(p *lofamov1.ProcessorTime) servicenet.Health {
		return servicenet.Health{Host: &lofamov1.HalfHealth{Recovery: served(0), Processor: p}}
	}
	h.healthy(1, said(nil))
	h.healthy(2, said(&lofamov1.ProcessorTime{Starved: true, LongestMs: 1100, SharePermille: 214}))
	h.healthy(3, said(&lofamov1.ProcessorTime{Starved: true, LongestMs: 2000, SharePermille: 300}))
	ev := publishedStarvations(t, h, 1)[0]
	if want := "starved of processor time: late by up to 1100 ms, for 21 % of the time"; ev.GetReason() != want || ev.GetEnded() {
		t.Errorf("reason %q, ended %t; want %q", ev.GetReason(), ev.GetEnded(), want)
	}
	if ev.GetNode() != "n1-0-0" || ev.GetCoord() != "1,0,0" || ev.GetComponent() != "host" || ev.GetFrom() != ev.GetTo() {
		t.Errorf("%v", ev)
	}

	next := start(t, h.store, nil)
	next.healthy(4, said(&lofamov1.ProcessorTime{Starved: true, LongestMs: 2000, SharePermille: 300}))
	next.healthy(5, said(nil))
	events := publishedStarvations(t, next, 2)
	if len(events) != 2 || !events[1].GetEnded() || events[1].GetReason() != "gets enough processor time again" {
		t.Errorf("%d events, last %v", len(events), events[len(events)-1])
	}
	for _, ev := range awaitEvents(t, next, 2) {
		if s := ev.GetTo(); s == lofamov1.State_SICK || s == lofamov1.State_FAILED {
			t.Errorf("a state changed: %v", ev)
		}
	}
}
