package api

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// lagging is the copies of an external etcd: some reads go to a member that lacks the newest events.
type lagging struct {
	*memstore.Store

	lacks         uint64           // number of the first event that the member lacks
	bounds        store.Bounds     // of the member
	reads, looks  int              // calls of EventsFrom and Bounds so far
	readLags      func(n int) bool // whether the member answers the n-th call of EventsFrom
	boundsLag     func(n int) bool // the same for Bounds
	revisionLacks error            // of Revision
}

func (l *lagging) EventsFrom(ctx context.Context, number uint64, limit int) (uint64, []*lofamov1.Event, error) {
	if l.reads++; !l.readLags(l.reads) {
		return l.Store.EventsFrom(ctx, number, limit)
	}
	if number >= l.lacks {
		return 0, nil, nil
	}
	return l.Store.EventsFrom(ctx, number, int(min(uint64(limit), l.lacks-number)))
}

func (l *lagging) Bounds(ctx context.Context) (store.Bounds, error) {
	if l.looks++; l.boundsLag(l.looks) {
		return l.bounds, nil
	}
	return l.Store.Bounds(ctx)
}

func (l *lagging) Revision(ctx context.Context) (uint64, error) {
	if l.revisionLacks != nil {
		return 0, l.revisionLacks
	}
	return l.Store.Revision(ctx)
}

func never(int) bool      { return false }
func always(int) bool     { return true }
func first(n int) bool    { return n == 1 }
func everyOdd(n int) bool { return n%2 == 1 }

// lag returns copies of n events, each with its own revision, and these revisions. One of the copies lacks the events from a number on.
func lag(t *testing.T, n int, lacks uint64) (l *lagging, revisions []uint64) {
	t.Helper()
	l = &lagging{Store: memstore.New(n), lacks: lacks, readLags: never, boundsLag: never}
	w, err := l.Writer(l.Campaign(), store.Meta{}, store.Snapshot{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if uint64(i)+1 == lacks {
			if l.bounds, err = l.Store.Bounds(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		rev, err := w.Commit(t.Context(), store.Batch{Events: []*lofamov1.Event{{Node: "a", Reason: fmt.Sprint(i + 1)}}})
		if err != nil {
			t.Fatal(err)
		}
		revisions = append(revisions, rev)
	}
	return l, revisions
}

// over returns a service over copies.
func over(c Copy) *Server {
	return New(Config{
		Info: &lofamov1.ClusterInfo{}, Names: view.NewNames(grid.Dims{X: 1, Y: 1, Z: 1}, map[grid.Coord]fault.NodeID{{}: "a"}),
		Engine: follower{}, Copy: c, Directory: alone{},
	})
}

// TestCopyThatLagsHidesNoEvents: a read that a lagging member answers is repeated. If no other member answers, the call fails. It never
// presents kept events as gone.
func TestCopyThatLagsHidesNoEvents(t *testing.T) { synctest.Test(t, testCopyThatLags) } // pauses take no time

func testCopyThatLags(t *testing.T) {
	const events = 600
	for name, read := range map[string]func(s *Server, l *lagging, b store.Bounds, revisions []uint64) (n int, err error){
		"after the first": func(s *Server, _ *lagging, b store.Bounds, revisions []uint64) (int, error) {
			out, _, err := s.eventsAfter(t.Context(), b, revisions[0], nil, 10_000, nil)
			return len(out) + 1, err
		},
		"newest": func(s *Server, _ *lagging, b store.Bounds, _ []uint64) (int, error) {
			out, err := s.newestEvents(t.Context(), b, events, nil)
			return len(out), err
		},
		"history": func(s *Server, _ *lagging, b store.Bounds, _ []uint64) (int, error) {
			n := 0
			err := s.scan(t.Context(), b, b.Oldest, false, func() { n = 0 }, func(uint64, *lofamov1.Event) bool { n++; return true })
			return n, err
		},
		"place of a watch": func(_ *Server, l *lagging, _ store.Bounds, revisions []uint64) (int, error) {
			number, _, err := locate(t.Context(), l, revisions[events-1])
			return int(number) - 1, err
		},
		"oldest": func(s *Server, _ *lagging, b store.Bounds, revisions []uint64) (int, error) {
			rev, err := s.oldestEvent(t.Context(), b)
			if err == nil && rev != revisions[0] {
				err = fmt.Errorf("revision %d: want %d", rev, revisions[0])
			}
			return events, err
		},
	} {
		for _, lacks := range []uint64{1, 200, events} {
			l, revisions := lag(t, events, lacks)
			b, err := l.Store.Bounds(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			l.readLags = everyOdd
			if n, err := read(over(l), l, b, revisions); err != nil || n != events {
				t.Errorf("%s, every other read from a member without events from %d on: %d events, %v; want %d", name, lacks, n, err, events)
			}
			l.readLags = always
			n, err := read(over(l), l, b, revisions)
			if lags := status.Code(err) == codes.Unavailable || errors.Is(err, errLags); !lags && (name != "oldest" || lacks == 1) {
				t.Errorf("%s, all reads from it: %d events, %v; want a refusal", name, n, err)
			}
		}
	}
}

// soleCopy is the copy of an embedded etcd.
type soleCopy struct{ *lagging }

func (soleCopy) SoleCopy() bool { return true }

// TestDeletedEventsOfSoleCopyAreGone: if the replica's own copy lacks events that its bounds promise, somebody has deleted them. Reads
// do without them.
func TestDeletedEventsOfSoleCopyAreGone(t *testing.T) {
	l, _ := lag(t, 10, 1)
	l.readLags = always
	b, err := l.Store.Bounds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if out, err := over(soleCopy{l}).newestEvents(t.Context(), b, 10, nil); err != nil || len(out) > 0 || l.reads != 1 {
		t.Errorf("%d events, %v, after %d reads; want none after 1", len(out), err, l.reads)
	}
}

// TestListEventsIsAsNewAsCluster: an answer is never older than the cluster was when the call came, unless it is marked as stale. A client
// that goes on from an older revision would get events twice.
func TestListEventsIsAsNewAsCluster(t *testing.T) { synctest.Test(t, testListIsAsNew) } // pauses take no time

func testListIsAsNew(t *testing.T) {
	l, revisions := lag(t, 10, 4)
	s, newest := over(l), revisions[9]
	list := func() (*lofamov1.ListEventsResponse, error) {
		return s.ListEvents(t.Context(), &lofamov1.ListEventsRequest{AfterRevision: revisions[5]})
	}
	for name, lags := range map[string]func(int) bool{"first look": first, "every other look": everyOdd} {
		l.looks, l.boundsLag = 0, lags
		if resp, err := list(); err != nil || resp.GetRevision() < newest || len(resp.GetEvents()) != 4 {
			t.Errorf("%s at a member that lags: %d events at revision %d, %v; want 4 at %d", name, len(resp.GetEvents()), resp.GetRevision(), err,
				newest)
		}
	}
	l.boundsLag = always
	if _, err := list(); status.Code(err) != codes.Unavailable {
		t.Errorf("all members that answer lag: %v, want a refusal", err)
	}
	l.revisionLacks = errors.New("no quorum")
	resp, err := list()
	if err != nil || !resp.GetCluster().GetStale() || resp.GetRevision() != l.bounds.Revision || len(resp.GetEvents()) != 0 {
		t.Errorf("without a quorum: %v, %v; want the member's copy, marked stale", resp, err)
	}
}

// TestLocatingInCopyThatLagsRepeatsNothing: a member that does not know the reader's place yet locates it at its own end. The reader gets
// only events after the place.
func TestLocatingInCopyThatLagsRepeatsNothing(t *testing.T) {
	l, revisions := lag(t, 10, 4)
	b, err := l.Store.Bounds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l.boundsLag = first
	if out, _, err := over(l).eventsAfter(t.Context(), b, revisions[5], nil, 100, nil); err != nil || reasons(out) != "7 8 9 10" {
		t.Errorf("a list: events %s, %v; want 7 8 9 10", reasons(out), err)
	}
	l.looks = 0
	h := newHub(hubConfig{}, l)
	h.begin(revisions[9])
	sub := h.Subscribe(revisions[5])
	defer sub.Close()
	frames, err := sub.Next(t.Context())
	if err != nil || len(frames) != 4 || frames[0].Revision != revisions[6] {
		t.Errorf("a watch: %d frames, %v; want 4 after revision %d", len(frames), err, revisions[5])
	}
}
