package engine

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
)

// ahead is a store that has a commit before the term learns about it.
type ahead struct {
	*memstore.Store
	commits atomic.Uint64 // a question outlives the caller that gave up
}

func (a *ahead) Confirm(ctx context.Context, f store.Fence) (store.Standing, error) {
	at, err := a.Store.Confirm(ctx, f)
	n := a.commits.Load()
	return store.Standing{Revision: at.Revision + n, Head: at.Head + n}, err
}

// TestReadersNeverGoBack: the store may have a commit, and watches may show it, before the term learns about it.
// Readers at that moment wait until the term knows.
func TestReadersNeverGoBack(t *testing.T) {
	st := &ahead{Store: memstore.New(100)}
	h := startOn(t, st.Store, st, nil)
	before, err := h.Map(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	unblock := h.store.Block()
	defer unblock()
	h.report(1, false, fault.ComponentMemory, fault.Sick)
	h.taken(t)
	if m, err := h.Map(t.Context()); err != nil || m.Revision != before.Revision {
		t.Fatalf("map of %d, %v; nothing was committed since %d", m.Revision, err, before.Revision)
	}
	st.commits.Store(before.Revision + 1) // as if the store had it already
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if m, err := h.Map(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("answered with a map of %d that may be older than what a watch has shown: %v", m.Revision, err)
	}
	st.commits.Store(0)
	later := make(chan view.Map, 1)
	go func() {
		m, _ := h.Map(t.Context())
		later <- m
	}()
	unblock()
	h.box.await(t, 1)
	<-later
	m, err := h.Map(t.Context())
	if e, _ := m.Find("n1-0-0"); err != nil || e.Status.State != fault.Sick {
		t.Errorf("after the commit the map says %s, %v", e.Status.State, err)
	}
}

// TestDeposedLeaderDoesNotAnswer, even if its term does not know yet that it was deposed: it was paused past its
// lease.
func TestDeposedLeaderDoesNotAnswer(t *testing.T) {
	h := start(t, memstore.New(100), nil)
	if _, err := h.Map(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.store.Campaign()
	if _, err := h.Map(t.Context()); !errors.Is(err, ErrNotLeading) {
		t.Errorf("a deposed leader answers: %v", err)
	}
	if !h.Leading() {
		t.Error("the term has ended: the test shows nothing")
	}
}

// mute is a store that loses its quorum until held is closed.
type mute struct {
	*memstore.Store
	mu    sync.Mutex
	asked int
	held  chan struct{}
	deaf  bool // ignores cancellation too
}

func (m *mute) Confirm(ctx context.Context, f store.Fence) (store.Standing, error) {
	m.mu.Lock()
	m.asked++
	held := m.held
	m.mu.Unlock()
	if m.deaf {
		ctx = context.WithoutCancel(ctx)
	}
	select {
	case <-held:
	case <-ctx.Done():
		return store.Standing{}, ctx.Err()
	}
	return m.Store.Confirm(ctx, f)
}

// TestReadersShareQuestion: readers share one question to the quorum, but never one that was put before they came.
func TestReadersShareQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &mute{Store: memstore.New(100), held: make(chan struct{}), deaf: true}
		h := startOn(t, st.Store, st, nil)
		var wg sync.WaitGroup
		read := func() {
			if _, err := h.Map(t.Context()); err != nil {
				t.Error(err)
			}
		}
		wg.Go(read)
		synctest.Wait() // its question is put
		for range 100 {
			wg.Go(read)
		}
		synctest.Wait() // they came too late for that question
		close(st.held)
		wg.Wait()
		if st.asked != 2 {
			t.Errorf("%d questions for one reader and 100 after it; want 2", st.asked)
		}
	})
}

func TestNoQuorumNoAnswer(t *testing.T) {
	st := &mute{Store: memstore.New(100), held: make(chan struct{})}
	h := startOn(t, st.Store, st, nil)
	if _, err := h.Map(t.Context()); !errors.Is(err, ErrNoQuorum) || !errors.Is(err, ErrNotLeading) {
		t.Errorf("without a quorum: %v", err)
	}
}

// TestWriteIsCommittedWithItsEvents: an operator's change is committed with its events. A change that comes too late, or that the store
// can never take, has no effect, and the term continues.
func TestWriteIsCommittedWithItsEvents(t *testing.T) {
	h := start(t, memstore.New(100), nil)
	key := store.Prefix + "test/x"
	w := store.Write{
		Events: []*lofamov1.Event{{Node: "n1-0-0", Kind: lofamov1.EventKind_MAINTENANCE_CHANGED}},
		Puts:   []store.KV{{Key: key, Value: []byte("1")}}, Guards: []store.Guard{{Key: key}},
	}
	rev, err := h.Write(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := h.Map(t.Context()); err != nil || m.Revision < rev {
		t.Errorf("after the write of %d the map is of %d, %v", rev, m.Revision, err)
	}
	if _, err := h.Write(t.Context(), w); !errors.Is(err, store.ErrConflict) {
		t.Errorf("a guard that does not hold: %v", err)
	}
	if value, at := h.store.Value(key); string(value) != "1" || at != rev {
		t.Errorf("stored %q at %d, want 1 at %d", value, at, rev)
	}
	large := store.Write{Puts: []store.KV{{Key: key, Value: make([]byte, 20<<20)}}}
	if _, err := h.Write(t.Context(), large); !errors.Is(err, store.ErrRefused) || errors.Is(err, ErrNotLeading) {
		t.Errorf("a change that is too large: %v", err)
	}
	h.report(1, false, fault.ComponentMemory, fault.Sick) // the term continues
	h.box.await(t, 1)
	h.store.Campaign()
	if _, err := h.Write(t.Context(), w); !errors.Is(err, ErrNotLeading) {
		t.Errorf("a deposed leader writes: %v", err)
	}
}
