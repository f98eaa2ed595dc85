package store_test

import (
	"context"
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// events commits so many events, perCommit of them at a time.
func (l led) events(tb testing.TB, count, perCommit int) {
	tb.Helper()
	for n := 0; n < count; n += perCommit {
		var batch store.Batch
		for i := range perCommit {
			batch.Events = append(batch.Events, &lofamov1.Event{Node: fmt.Sprint("n", n+i), Component: "memory", Reason: "test"})
		}
		if _, err := l.w.Commit(tb.Context(), batch); err != nil {
			tb.Fatal(err)
		}
	}
}

// counting notes the largest number of keys that etcd counted in the range of a read.
type counting struct {
	clientv3.KV

	most int64
}

func (c *counting) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	resp, err := c.KV.Get(ctx, key, opts...)
	if err == nil {
		c.most = max(c.most, resp.Count)
	}
	return resp, err
}

// TestReadingFewEventsVisitsFewKeys: etcd counts no more keys than the requested events.
func TestReadingFewEventsVisitsFewKeys(t *testing.T) {
	l := lead(t)
	l.events(t, 20, 10)
	client, counted := clientv3.NewCtxClient(t.Context()), &counting{KV: l.c.KV}
	client.KV, client.Lease, client.Watcher = counted, l.c.Lease, l.c.Watcher
	s := store.NewEtcd(client, store.Options{})
	for _, number := range []uint64{1, 10, 18} {
		if first, events, err := s.EventsFrom(t.Context(), number, 2); err != nil || first != number || len(events) != 2 {
			t.Errorf("%d events from %d, %v; want 2 from %d", len(events), first, err, number)
		}
	}
	if counted.most != 2 {
		t.Errorf("etcd counted %d keys for 2 events", counted.most)
	}
}

// BenchmarkEventsFrom reads one event of a history of 100,000.
func BenchmarkEventsFrom(b *testing.B) {
	const kept = 100_000
	l := lead(b)
	l.events(b, kept, 500)
	for name, number := range map[string]uint64{"oldest": 1, "middle": kept / 2, "newest": kept} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if first, events, err := l.EventsFrom(b.Context(), number, 1); err != nil || first != number || len(events) != 1 {
					b.Fatalf("%d events from %d, %v; want number %d", len(events), first, err, number)
				}
			}
		})
	}
}
