package client_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
)

// refuseWatches refuses watches, and takes all other calls.
func refuseWatches(code codes.Code) func(proto.Message) error {
	return func(req proto.Message) error {
		if _, ok := req.(*lofamov1.WatchRequest); ok {
			return status.Error(code, "refused")
		}
		return nil
	}
}

// TestWatchOfRemovedNodeEnds removes the watched node while two of three replicas live: both answer all other calls.
func TestWatchOfRemovedNodeEnds(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	m.Commit(7, &lofamov1.Event{Node: "a"})
	s := clienttest.Serve(t, dir, m)
	c := dial(t, dir, s.Address, deadAddress(t), s.Address)
	const gone = 300 * time.Millisecond
	c.SetGoneAfter(gone)
	begin := time.Now()
	err := c.Watch(bounded(t), client.WatchOptions{After: 6, Node: "a", Outage: time.Hour}, func(*lofamov1.WatchResponse) error {
		s.RefuseIf(refuseWatches(codes.NotFound))
		begin = time.Now()
		return nil
	})
	if took := time.Since(begin); status.Code(err) != codes.NotFound || took < gone {
		t.Errorf("%v after %v: want NotFound, not before %v", err, took, gone)
	}
}

// TestWatchOutlivesShortAbsences: a node that is unknown now and then, for longer than allowed in sum, is not gone.
func TestWatchOutlivesShortAbsences(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	m.Commit(7, &lofamov1.Event{Node: "a"})
	s := clienttest.Serve(t, dir, m)
	s.CutWatchesAfter(1)
	var watches atomic.Uint64
	s.RefuseIf(func(req proto.Message) error {
		if _, ok := req.(*lofamov1.WatchRequest); !ok {
			return nil
		}
		n := watches.Add(1)
		if n%2 == 0 {
			return status.Error(codes.NotFound, "refused")
		}
		m.Commit(7+n, &lofamov1.Event{Node: "a"})
		return nil
	})
	c := dial(t, dir, s.Address)
	const gone = 300 * time.Millisecond
	c.SetGoneAfter(gone)
	begin, last := time.Now(), uint64(0)
	err := c.Watch(bounded(t), client.WatchOptions{After: 6, Node: "a"}, func(r *lofamov1.WatchResponse) error {
		last = r.GetRevision()
		if time.Since(begin) > 3*gone {
			return client.ErrStop
		}
		return nil
	})
	if err != nil {
		t.Errorf("%v after revision %d and %v", err, last, time.Since(begin))
	}
}

// TestRefusedWatchPausesIfNothingTellsWhereToGoOn: the supervisors neither continue the watch nor list the changes that
// they keep.
func TestRefusedWatchPausesIfNothingTellsWhereToGoOn(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	m.Commit(7, &lofamov1.Event{Node: "a"})
	s := clienttest.Serve(t, dir, m)
	c := dial(t, dir, s.Address, s.Address, s.Address)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	opts := client.WatchOptions{After: 6, Gap: func(after, until uint64) { t.Errorf("a gap from %d to %d", after, until) }}
	var begun time.Time
	err := c.Watch(ctx, opts, func(*lofamov1.WatchResponse) error {
		begun = time.Now()
		time.AfterFunc(600*time.Millisecond, cancel)
		s.RefuseIf(func(req proto.Message) error {
			if r, ok := req.(*lofamov1.ListEventsRequest); ok && r.GetAfterRevision() > 0 {
				return status.Error(codes.Unavailable, "no store")
			}
			return refuseWatches(codes.OutOfRange)(req)
		})
		return nil
	})
	rounds := time.Since(begun)/(50*time.Millisecond) + 2 // each has three watches and a pause
	if n := askedWatches(s); !errors.Is(err, context.Canceled) || n > 3*int(rounds) {
		t.Errorf("%v, %d watches in %v", err, n, time.Since(begun))
	}
}

// askedWatches counts the requests for watches.
func askedWatches(s *clienttest.Server) (n int) {
	for _, req := range s.Asked() {
		if _, ok := req.(*lofamov1.WatchRequest); ok {
			n++
		}
	}
	return n
}

// TestWatchGoesOnInReplacedStore: the new store has an older revision.
func TestWatchGoesOnInReplacedStore(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m, fresh := clienttest.NewMap(), clienttest.NewMap()
	m.Commit(500, &lofamov1.Event{Node: "a", Index: 1}, &lofamov1.Event{Node: "a", Index: 2})
	fresh.Commit(20, &lofamov1.Event{Node: "a", Index: 1})
	address := deadAddress(t)
	s := clienttest.ServeAt(t, dir, m, address)
	c := dial(t, dir, address)
	var gaps, got []uint64
	opts := client.WatchOptions{After: 500, AfterIndex: 1, Gap: func(after, until uint64) {
		gaps = append(gaps, after, until)
		fresh.Commit(500, &lofamov1.Event{Node: "a", Index: 1}) // of another history than the one that the caller knows
	}}
	err := c.Watch(bounded(t), opts, func(r *lofamov1.WatchResponse) error {
		if got = append(got, r.GetRevision()); len(got) > 1 {
			return client.ErrStop
		}
		s.Stop()
		s = clienttest.ServeAt(t, dir, fresh, address)
		s.RefuseIf(func(req proto.Message) error {
			if w, ok := req.(*lofamov1.WatchRequest); ok && w.GetAfterRevision() > 20 {
				return status.Error(codes.OutOfRange, "the store is at 20")
			}
			return nil
		})
		return nil
	})
	if err != nil || !slices.Equal(got, []uint64{500, 500}) || !slices.Equal(gaps, []uint64{500, 20}) {
		t.Errorf("%v, revisions %d, gaps %d: want 500 twice and a gap from 500 to 20", err, got, gaps)
	}
}
