package api

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
)

const hubWait = time.Minute

// hubWorld is a hub on a store in memory, and everything that was committed.
type hubWorld struct {
	*memstore.Store
	t      *testing.T
	hub    *watchHub
	writer store.Committer
	all    []uint64 // revisions by number of the event, from 1 on
}

func newWorld(t *testing.T, keep int, cfg hubConfig) *hubWorld {
	t.Helper()
	w := &hubWorld{Store: memstore.New(keep), t: t}
	w.hub = newHub(cfg, w.Store)
	var err error
	if w.writer, err = w.Writer(w.Campaign(), store.Meta{}, store.Snapshot{}); err != nil {
		t.Fatal(err)
	}
	return w
}

// run runs the hub until the test ends, and waits until the hub knows the store's state.
func (w *hubWorld) run() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { w.hub.Run(ctx) })
	w.t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	w.await()
}

// await waits until the hub is where the store is.
func (w *hubWorld) await() {
	w.t.Helper()
	rev, _ := w.Revision(w.t.Context())
	deadline := time.After(hubWait)
	for {
		w.hub.mu.RLock()
		head, changed := w.hub.ring.Head(), w.hub.changed
		w.hub.mu.RUnlock()
		if head >= rev {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			w.t.Fatalf("the hub is at %d, the store at %d", head, rev)
		}
	}
}

// commit commits so many events in one revision.
func (w *hubWorld) commit(n int) uint64 {
	w.t.Helper()
	var b store.Batch
	for range n {
		b.Events = append(b.Events, &lofamov1.Event{Node: "a", Reason: fmt.Sprint(len(w.all) + len(b.Events) + 1)})
	}
	rev, err := w.writer.Commit(context.Background(), b)
	if err != nil {
		w.t.Fatal(err)
	}
	for range n {
		w.all = append(w.all, rev)
	}
	return rev
}

// follow reads from a revision to the last event. It checks that each event comes once, in order, and that every
// revision is whole.
func (w *hubWorld) follow(after uint64) error {
	s := w.hub.Subscribe(after)
	defer s.Close()
	return w.readOn(s, after)
}

func (w *hubWorld) readOn(s *subscription, after uint64) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), hubWait)
	defer cancel()
	next := 0
	for next < len(w.all) && w.all[next] <= after {
		next++
	}
	for next < len(w.all) {
		frames, err := s.Next(ctx)
		if err != nil {
			return err
		}
		for _, f := range frames {
			for _, ev := range f.Events() {
				if next == len(w.all) || ev.GetReason() != fmt.Sprint(next+1) || ev.GetRevision() != w.all[next] || f.Revision != w.all[next] {
					w.t.Fatalf("after %d: event %s of revision %d in frame %d: want event %d", after, ev.GetReason(), ev.GetRevision(), f.Revision, next+1)
				}
				next++
			}
			if f.Len() > 0 && next < len(w.all) && w.all[next] == f.Revision {
				w.t.Fatalf("after %d: revision %d is split", after, f.Revision)
			}
		}
	}
	return nil
}

// TestResumeAtEveryRevision: from history, from the ring and across the seam.
func TestResumeAtEveryRevision(t *testing.T) {
	w := newWorld(t, 10_000, hubConfig{Updates: 8})
	for range 30 {
		w.commit(1)
	}
	w.run()
	for i := range 30 {
		w.commit(1 + i%4)
	}
	w.commit(3 * historyPage) // larger than a page
	w.commit(1)
	for range 2 * historyPage {
		w.commit(1)
	}
	w.await()
	for after := range w.all[len(w.all)-1] + 1 {
		if after > 70 && after%50 > 0 {
			continue
		}
		if err := w.follow(after); err != nil {
			t.Fatalf("after %d: %v", after, err)
		}
	}
}

// TestReadersThatResumeLoseNoEvents: readers that resume anywhere during writes lose no events.
func TestReadersThatResumeLoseNoEvents(t *testing.T) {
	w := newWorld(t, 10_000, hubConfig{Updates: 200})
	for range 60 {
		w.commit(2)
	}
	w.run()
	subs := make(map[uint64]*subscription)
	for after := uint64(0); after < 60; after += 3 {
		subs[after] = w.hub.Subscribe(after)
		defer subs[after].Close()
	}
	var wg sync.WaitGroup
	total := len(w.all) + 300
	for after, s := range subs {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), hubWait)
			defer cancel()
			for last := 0; last < total; {
				frames, err := s.Next(ctx)
				if err != nil {
					t.Errorf("after %d: %v", after, err)
					return
				}
				for _, f := range frames {
					for _, ev := range f.Events() {
						var n int
						_, _ = fmt.Sscan(ev.GetReason(), &n)
						if last > 0 && n != last+1 {
							t.Errorf("after %d: event %d follows %d", after, n, last)
							return
						}
						last = n
					}
				}
			}
		})
	}
	for range 100 {
		w.commit(3)
	}
	wg.Wait()
}

func TestSlowReaderIsCutOff(t *testing.T) {
	w := newWorld(t, 10_000, hubConfig{Updates: 4})
	w.run()
	start, _ := w.Revision(t.Context())
	s := w.hub.Subscribe(start)
	defer s.Close()
	first := w.commit(1)
	if frames, err := s.Next(t.Context()); err != nil || frames[0].Revision != first {
		t.Fatalf("%v, %v", frames, err)
	}
	for range 5 {
		w.commit(1)
	}
	select {
	case <-s.Slow():
	case <-time.After(hubWait):
		t.Fatal("not cut off")
	}
	if _, err := s.Next(t.Context()); !errors.Is(err, errSlowReader) {
		t.Errorf("%v", err)
	}
	if err := w.follow(first); err != nil { // resubscribe, from history
		t.Error(err)
	}
}

func TestForgottenRevisionExpires(t *testing.T) {
	w := newWorld(t, 10, hubConfig{Updates: 4})
	for range 30 {
		w.commit(1)
	}
	w.run()
	oldest := w.all[len(w.all)-10]
	var expired *expiredError
	for _, after := range []uint64{0, 1, w.all[3], oldest - 1} {
		if err := w.follow(after); !errors.As(err, &expired) || expired.After != after || expired.Oldest != 21 {
			t.Errorf("after %d: %v", after, err)
		}
	}
	for after := oldest; after <= w.all[len(w.all)-1]; after++ {
		if err := w.follow(after); err != nil {
			t.Errorf("after %d: %v", after, err)
		}
	}
}

// TestReaderSurvivesCompaction: a compacted store still has its events: a reader that resumes anywhere misses none.
func TestReaderSurvivesCompaction(t *testing.T) {
	w := newWorld(t, 10, hubConfig{Updates: 4})
	for range 10 {
		w.commit(1)
	}
	w.Compact(w.all[9])
	w.run()
	for _, after := range append([]uint64{1}, w.all...) {
		if err := w.follow(after); err != nil {
			t.Errorf("after %d: %v", after, err)
		}
	}
}

// TestForgottenWhileReading: the history is trimmed between two pages.
func TestForgottenWhileReading(t *testing.T) {
	w := newWorld(t, 2*historyPage, hubConfig{Updates: 4})
	for range 2 * historyPage {
		w.commit(1)
	}
	w.run()
	s := w.hub.Subscribe(1)
	defer s.Close()
	if frames, err := s.Next(t.Context()); err != nil || len(frames) == 0 || frames[0].Revision != w.all[0] {
		t.Fatalf("%d frames, %v", len(frames), err)
	}
	w.commit(2 * historyPage)
	var expired *expiredError
	if err := w.readOn(s, w.all[historyPage-2]); !errors.As(err, &expired) {
		t.Errorf("%v", err)
	}
}

// emptied is a source that has forgotten its whole history, or (behind) does not have it yet.
type emptied struct {
	*memstore.Store
	forgotten, behind atomic.Bool
}

func (e *emptied) Bounds(ctx context.Context) (store.Bounds, error) {
	b, err := e.Store.Bounds(ctx)
	if e.forgotten.Load() {
		b.Oldest = b.Next
	}
	return b, err
}

func (e *emptied) EventsFrom(ctx context.Context, number uint64, limit int) (uint64, []*lofamov1.Event, error) {
	if e.forgotten.Load() || e.behind.Swap(false) {
		return number, nil, nil
	}
	return e.Store.EventsFrom(ctx, number, limit)
}

// TestAllForgottenWhileReading: a reader does not mistake forgotten events for an empty history.
func TestAllForgottenWhileReading(t *testing.T) {
	for _, forgotten := range []bool{false, true} {
		w := newWorld(t, 4*historyPage, hubConfig{Updates: 4})
		src := &emptied{Store: w.Store}
		w.hub = newHub(hubConfig{Updates: 4}, src)
		for range 3 * historyPage {
			w.commit(1)
		}
		w.run()
		s := w.hub.Subscribe(1)
		defer s.Close()
		frames, err := s.Next(t.Context())
		if err != nil || len(frames) == 0 {
			t.Fatalf("%d frames, %v", len(frames), err)
		}
		last := frames[len(frames)-1].Revision
		src.forgotten.Store(forgotten)
		src.behind.Store(!forgotten)
		var expired *expiredError
		if err := w.readOn(s, last); errors.As(err, &expired) != forgotten || err != nil && !forgotten {
			t.Errorf("forgotten %t: %v", forgotten, err)
		}
	}
}

// TestNothingWasForgotten: a store without events, old or new, lets any revision be resumed from.
func TestNothingWasForgotten(t *testing.T) {
	w := newWorld(t, 10, hubConfig{})
	w.run()
	for _, after := range []uint64{1, 2, 50} {
		s := w.hub.Subscribe(after)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		for err := error(nil); !errors.Is(err, context.DeadlineExceeded); {
			var frames []*watchFrame
			frames, err = s.Next(ctx)
			if len(frames) > 0 && frames[0].Len() > 0 || err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("after %d: %v, %v", after, frames, err)
			}
		}
		cancel()
		s.Close()
	}
}

// brokenSource is a source whose watch fails on demand, like etcd's when unsent changes were compacted.
type brokenSource struct {
	*memstore.Store
	fail chan error
}

func (b *brokenSource) Watch(ctx context.Context, after uint64) <-chan store.Update {
	ctx, cancel := context.WithCancel(ctx)
	in, out := b.Store.Watch(ctx, after), make(chan store.Update)
	go func() {
		defer close(out)
		defer cancel()
		for {
			var u store.Update
			ok := true
			select {
			case u, ok = <-in:
			case u.Err = <-b.fail:
			}
			if !ok {
				return
			}
			select {
			case out <- u:
			case <-ctx.Done():
				return
			}
			if u.Err != nil {
				return
			}
		}
	}()
	return out
}

// TestStoreWatchBreaks: readers in the ring continue without loss, whether the ring can continue or must restart.
func TestStoreWatchBreaks(t *testing.T) {
	for name, cause := range map[string]error{"broken": errors.New("connection lost"), "compacted": store.ErrCompacted} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 10_000, hubConfig{Updates: 64})
			src := &brokenSource{w.Store, make(chan error)}
			w.hub = newHub(hubConfig{Updates: 64}, src)
			w.run()
			start, _ := w.Revision(t.Context())
			s := w.hub.Subscribe(start)
			defer s.Close()
			w.commit(2)
			if err := w.readOn(s, start); err != nil {
				t.Fatal(err)
			}
			read := w.all[len(w.all)-1]
			src.fail <- cause
			w.commit(2)
			w.commit(1)
			if err := w.readOn(s, read); err != nil {
				t.Fatal(err)
			}
			w.await()
		})
	}
}

func TestIdleReaderGetsBookmarks(t *testing.T) {
	w := newWorld(t, 10, hubConfig{})
	w.run()
	at, _ := w.Revision(t.Context())
	s := w.hub.Subscribe(at)
	defer s.Close()
	if err := w.hub.take(store.Update{Revision: at + 5}); err != nil {
		t.Fatal(err)
	}
	if frames, err := s.Next(t.Context()); err != nil || len(frames) != 1 || frames[0].Revision != at+5 || frames[0].Len() > 0 {
		t.Errorf("%v, %v", frames, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a bookmark comes twice: %v", err)
	}
}

// putBackSource is a source whose store was put back to a snapshot.
type putBackSource struct {
	*memstore.Store
	gap store.Gap
}

func (p putBackSource) Bounds(ctx context.Context) (store.Bounds, error) {
	b, err := p.Store.Bounds(ctx)
	b.Gaps = []store.Gap{p.gap}
	return b, err
}

// TestReaderOfLostRevisionsStartsOver: a reader that saw lost revisions must start over, although all retained changes are available. It
// learns which revisions were lost.
func TestReaderOfLostRevisionsStartsOver(t *testing.T) {
	w := newWorld(t, 10, hubConfig{})
	for range 5 {
		w.commit(1)
	}
	src := putBackSource{w.Store, store.Gap{From: w.all[1], To: w.all[3]}}
	for i, after := range w.all {
		number, _, err := locate(t.Context(), src, after)
		var expired *expiredError
		lost := i == 2
		if errors.As(err, &expired) != lost || err != nil && !lost || number != uint64(i)+2 {
			t.Errorf("after %d: event %d, %v", after, number, err)
		}
		want := fmt.Sprintf("revision %d was lost when the store was restored from a snapshot: no commit between revision %d and "+
			"revision %d is kept",
			after, w.all[1], w.all[3])
		if lost && err.Error() != want {
			t.Errorf("after %d: %v, want %s", after, err, want)
		}
	}
}
