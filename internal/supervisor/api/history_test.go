package api

import (
	"context"
	"runtime"
	"testing"
	"time"
	"weak"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// historyOf returns a service whose store has n events of the node a.
func historyOf(t *testing.T, n int, around func(*memstore.Store) Copy) *Server {
	t.Helper()
	st := memstore.New(n)
	w, err := st.Writer(st.Campaign(), store.Meta{}, store.Snapshot{})
	if err != nil {
		t.Fatal(err)
	}
	var events []*lofamov1.Event
	for range n {
		events = append(events, &lofamov1.Event{Node: "a", Component: "node", From: lofamov1.State_NORMAL, To: lofamov1.State_SICK,
			Time: timestamppb.New(time.Unix(1000, 0))})
	}
	if _, err := w.Commit(t.Context(), store.Batch{Events: events}); err != nil {
		t.Fatal(err)
	}
	return New(Config{
		Info: &lofamov1.ClusterInfo{}, Names: view.NewNames(grid.Dims{X: 1, Y: 1, Z: 1}, map[grid.Coord]fault.NodeID{{}: "a"}),
		Engine: follower{}, Copy: around(st), Directory: alone{}, QuorumAge: func() time.Duration { return 0 },
	})
}

// weighed is a copy that counts the events that its readers still hold, as a page is read.
type weighed struct {
	*memstore.Store
	events []weak.Pointer[lofamov1.Event]
	most   int
}

func (w *weighed) EventsFrom(ctx context.Context, number uint64, limit int) (uint64, []*lofamov1.Event, error) {
	runtime.GC()
	held := 0
	for _, p := range w.events {
		if p.Value() != nil {
			held++
		}
	}
	w.most = max(w.most, held)
	first, events, err := w.Store.EventsFrom(ctx, number, limit)
	for i := range events {
		events[i] = proto.CloneOf(events[i])
		w.events = append(w.events, weak.Make(events[i]))
	}
	return first, events, err
}

// TestHistoryHoldsOnlyRequestedEvents reads the newest event of a history of many pages.
func TestHistoryHoldsOnlyRequestedEvents(t *testing.T) {
	const pages = 8
	var w *weighed
	s := historyOf(t, pages*eventPage, func(st *memstore.Store) Copy {
		w = &weighed{Store: st}
		return w
	})
	resp, err := s.GetHistory(t.Context(), &lofamov1.GetHistoryRequest{Node: "a", Limit: 1})
	if err != nil || len(resp.GetEvents()) != 1 || len(resp.GetTimeIn()) != 4 {
		t.Fatalf("%v, %v", resp, err)
	}
	if w.most > 2*eventPage {
		t.Errorf("the call held %d of %d events: want at most two pages of %d", w.most, pages*eventPage, eventPage)
	}
}

// blocked is a copy whose reads of events begin and then wait.
type blocked struct {
	*memstore.Store
	begun, release chan struct{}
}

func (b *blocked) EventsFrom(ctx context.Context, number uint64, limit int) (uint64, []*lofamov1.Event, error) {
	select {
	case b.begun <- struct{}{}:
	case <-ctx.Done():
		return 0, nil, ctx.Err()
	}
	select {
	case <-b.release:
	case <-ctx.Done():
		return 0, nil, ctx.Err()
	}
	return b.Store.EventsFrom(ctx, number, limit)
}

// TestSubjectReadsEventsOnceAtATime: while one read of a viewer goes on, its other reads wait for a limited time, and another
// subject's read begins.
func TestSubjectReadsEventsOnceAtATime(t *testing.T) {
	b := &blocked{begun: make(chan struct{}), release: make(chan struct{})}
	s := historyOf(t, 3, func(st *memstore.Store) Copy {
		b.Store = st
		return b
	})
	s.scans.limit = time.Millisecond
	history := func(ctx context.Context) error {
		_, err := s.GetHistory(ctx, &lofamov1.GetHistoryRequest{Node: "a"})
		return err
	}
	ann, bob := callOf(t, pki.RoleViewer, "ann"), callOf(t, pki.RoleViewer, "bob")
	ends := make(chan error, 2)
	begin := func(who context.Context) {
		go func() { ends <- history(who) }()
		select {
		case <-b.begun:
		case err := <-ends:
			t.Fatalf("a read failed: %v", err)
		}
	}
	begin(ann)
	refused(t, "a second history", history(ann), codes.ResourceExhausted, "viewer/ann")
	_, err := s.ListEvents(ann, &lofamov1.ListEventsRequest{})
	refused(t, "a list beside a history", err, codes.ResourceExhausted, "viewer/ann")
	begin(bob)
	close(b.release)
	for range 2 {
		if err := <-ends; err != nil {
			t.Error(err)
		}
	}
	go func() { ends <- history(ann) }()
	<-b.begun
	if err := <-ends; err != nil {
		t.Errorf("after the first: %v", err)
	}
	if len(s.scans.subjects) > 0 {
		t.Errorf("%d subjects are remembered after their reads", len(s.scans.subjects))
	}
}
