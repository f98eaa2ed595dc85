package storetest

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// testRefused: a write that the store can never take fails at once, has no effect, and the leader continues.
func testRefused(t *testing.T, h Harness) {
	w := lead(t, h)
	key := func(name string) string { return store.Prefix + "test/" + name }
	for _, tc := range []struct {
		name string
		b    store.Batch
	}{
		{"too large", store.Batch{Puts: []store.KV{{Key: key("large"), Value: bytes.Repeat([]byte("x"), 20<<20)}}}},
		{"one key twice", store.Batch{Puts: []store.KV{{Key: key("a"), Value: []byte("1")}, {Key: key("a"), Value: []byte("2")}}}},
		{"put and deleted", store.Batch{Puts: []store.KV{{Key: key("a"), Value: []byte("1")}}, Deletes: []string{key("a")}}},
	} {
		tc.b.Events, tc.b.Guards = []*lofamov1.Event{event(1, "refused")}, []store.Guard{{Key: key("guard")}}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := w.Commit(ctx, tc.b)
		if !errors.Is(err, store.ErrRefused) {
			t.Errorf("%s: %v: want a refusal", tc.name, err)
		}
		cancel()
	}
	commit(t, w, store.Batch{Events: []*lofamov1.Event{event(2, "taken")}})
	if events, _, err := h.Store.Events(t.Context(), 0, 0, nil); err != nil || len(events) != 1 || events[0].GetNode() != "taken" {
		t.Errorf("events %v, %v: want only that of the next commit", events, err)
	}
}
