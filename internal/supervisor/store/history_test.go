package store_test

import (
	"fmt"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// BenchmarkEventsFrom reads one event of a history of 100,000.
func BenchmarkEventsFrom(b *testing.B) {
	const kept, perCommit = 100_000, 500
	l := lead(b)
	for n := 0; n < kept; n += perCommit {
		var batch store.Batch
		for i := range perCommit {
			batch.Events = append(batch.Events, &lofamov1.Event{Node: fmt.Sprint("n", n+i), Component: "memory", Reason: "benchmark"})
		}
		if _, err := l.w.Commit(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
	for name, number := range map[string]uint64{"oldest": 1, "middle": kept / 2, "newest": kept} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if first, events, err := l.EventsFrom(b.Context(), number, 1); err != nil || first != number || len(events) != 1 {
					b.Fatalf("%d events from %d, %v: want number %d", len(events), first, err, number)
				}
			}
		})
	}
}
