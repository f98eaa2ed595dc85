package storetest

import (
	"fmt"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// testHistory: events have numbers without gaps, starting with the oldest kept one.
func testHistory(t *testing.T, h Harness) {
	b, err := h.Store.Bounds(t.Context())
	if err != nil || b.Oldest != 1 || b.Next != 1 || b.Revision == 0 || b.Written != 0 {
		t.Errorf("of an empty store: %+v, %v", b, err)
	}
	if _, events, err := h.Store.EventsFrom(t.Context(), 1, 10); err != nil || len(events) > 0 {
		t.Errorf("of an empty store: %v, %v", events, err)
	}
	w := lead(t, h)
	total := uint64(2 * (KeepEvents + h.Slack))
	var rev uint64
	for n := range total / 2 {
		rev = commit(t, w, store.Batch{Events: []*lofamov1.Event{event(int(2*n+1), "a"), event(int(2*n+2), "b")}})
	}
	b, err = h.Store.Bounds(t.Context())
	if err != nil || b.Next != total+1 || b.Oldest <= 1 || b.Next-b.Oldest < KeepEvents || b.Written != rev || b.Revision < rev {
		t.Fatalf("%+v, %v after %d events, the last at %d", b, err, total, rev)
	}
	for _, tc := range []struct {
		from        uint64
		limit       int
		first, last uint64
	}{
		{1, 3, b.Oldest, b.Oldest + 2},
		{b.Oldest - 1, 3, b.Oldest, b.Oldest + 2},
		{b.Oldest, 1, b.Oldest, b.Oldest},
		{total - 4, 10, total - 4, total},
		{total - 4, 2, total - 4, total - 3},
	} {
		first, events, err := h.Store.EventsFrom(t.Context(), tc.from, tc.limit)
		if err != nil || first != tc.first || uint64(len(events)) != tc.last-tc.first+1 {
			t.Errorf("from %d: %d events from %d, %v: want %d to %d", tc.from, len(events), first, err, tc.first, tc.last)
			continue
		}
		for i, ev := range events {
			if want := fmt.Sprint("event ", first+uint64(i)); ev.GetReason() != want || ev.GetRevision() == 0 {
				t.Errorf("from %d: number %d is %q at revision %d: want %q", tc.from, first+uint64(i), ev.GetReason(), ev.GetRevision(), want)
			}
			if want := uint32(2 - (first+uint64(i))%2); ev.GetIndex() != want { // two in each revision
				t.Errorf("from %d: number %d has index %d in its revision: want %d", tc.from, first+uint64(i), ev.GetIndex(), want)
			}
		}
	}
	if _, events, err := h.Store.EventsFrom(t.Context(), b.Next, 10); err != nil || len(events) > 0 {
		t.Errorf("events after the last: %v, %v", events, err)
	}
}
