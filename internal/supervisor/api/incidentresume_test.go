package api_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/api"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// firstResponse is a client that leaves after the first response.
type firstResponse struct {
	grpc.ServerStreamingServer[lofamov1.WatchIncidentsResponse]

	ctx   context.Context
	leave func()
	got   *lofamov1.WatchIncidentsResponse
}

func (s *firstResponse) Context() context.Context { return s.ctx }

func (s *firstResponse) Send(resp *lofamov1.WatchIncidentsResponse) error {
	s.got = resp
	s.leave()
	return nil
}

// TestWatchOfIncidentsRefusesRevisionBeforeTrimmedEnd: an incident closes while a client is away, and the leader deletes it before the
// client returns. The watch tells the client to list again. A client that knows the end resumes. A restored store has lost revisions, and a
// client cannot resume from those either.
func TestWatchOfIncidentsRefusesRevisionBeforeTrimmedEnd(t *testing.T) {
	c := supervisortest.NewEtcd(t, 1).Members[0].Client()
	kept := store.NewEtcd(c, store.Options{})
	elected, err := c.Put(t.Context(), store.ElectionPrefix+"/test", "s1")
	if err != nil {
		t.Fatal(err)
	}
	snap, err := kept.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w, err := kept.Writer(store.Fence{Key: store.ElectionPrefix + "/test", Rev: elected.Header.Revision}, store.Meta{Cluster: "test"}, snap)
	if err != nil {
		t.Fatal(err)
	}
	commit := func(b store.Batch) uint64 {
		t.Helper()
		revision, err := w.Commit(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		return revision
	}
	put := func(id string, state lofamov1.IncidentState) uint64 {
		t.Helper()
		kv, err := store.IncidentPut(&lofamov1.Incident{Id: id, State: state})
		if err != nil {
			t.Fatal(err)
		}
		return commit(store.Batch{Puts: []store.KV{kv}})
	}
	const id = "k3f9-aaaaaaaa"
	seen := put(id, lofamov1.IncidentState_OPEN)
	closed := put(id, lofamov1.IncidentState_CLOSED)
	record, notes, responses := store.IncidentKeys(id)
	commit(store.Batch{Deletes: []string{record, notes, responses}})
	last := put("k3f9-bbbbbbbb", lofamov1.IncidentState_OPEN)

	feed := store.NewIncidentFeed(kept, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() { feed.Run(ctx) })
	defer following.Wait()
	defer cancel()
	supervisortest.Eventually(t, "the feed to have read the store", func() bool { return feed.View().Revision >= last })
	check := func(gaps []store.Gap, wants map[uint64]codes.Code) {
		t.Helper()
		s := api.New(api.Config{Metrics: metrics.New(prometheus.NewRegistry()), Copy: watched{kept, gaps}, Incidents: kept, IncidentFeed: feed})
		for after, want := range wants {
			ctx, cancel := context.WithTimeout(t.Context(), supervisortest.Wait)
			stream := &firstResponse{ctx: ctx, leave: cancel}
			err := s.WatchIncidents(&lofamov1.WatchIncidentsRequest{AfterRevision: after}, stream)
			cancel()
			if status.Code(err) != want || (stream.got == nil) != (want == codes.OutOfRange) {
				t.Errorf("after revision %d of %d, gaps %v: %v, %v: want %v", after, last, gaps, stream.got, err, want)
			}
		}
	}
	check(nil, map[uint64]codes.Code{seen: codes.OutOfRange, closed: codes.Canceled, last: codes.Canceled, 0: codes.Canceled})
	// The store was restored: the client may know incidents that were lost.
	check([]store.Gap{{From: closed, To: last}},
		map[uint64]codes.Code{closed: codes.Canceled, closed + 1: codes.OutOfRange, last: codes.Canceled})
}

// watched is a copy that this test only asks for its revision and its bounds.
type watched struct {
	*store.Etcd
	gaps []store.Gap
}

func (watched) MapNow(context.Context) (store.Snapshot, error) { return store.Snapshot{}, nil }

func (w watched) Bounds(ctx context.Context) (store.Bounds, error) {
	b, err := w.Etcd.Bounds(ctx)
	b.Gaps = w.gaps
	return b, err
}
