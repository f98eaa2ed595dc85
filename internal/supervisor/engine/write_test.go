package engine

import (
	"errors"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
)

// TestWriteOfAnotherTerm: a write for one term is committed under its fence or not at all, even if the replica leads
// again.
func TestWriteOfAnotherTerm(t *testing.T) {
	h := start(t, memstore.New(100), nil)
	w := store.Write{Puts: []store.KV{{Key: store.Prefix + "test", Value: []byte("x")}}, Term: h.Term()}
	if _, err := h.Write(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	for _, other := range []uint64{h.Term() - 1, h.Term() + 1} {
		w.Term = other
		if _, err := h.Write(t.Context(), w); !errors.Is(err, ErrOtherTerm) || !errors.Is(err, ErrNotLeading) {
			t.Errorf("of term %d under %d: %v", other, h.Term(), err)
		}
	}
	w.Term = 0 // a person's
	if _, err := h.Write(t.Context(), w); err != nil {
		t.Error(err)
	}
}

// TestWriteAtEndOfTermIsUnknown: if the store held a write when the term ended, its outcome is unknown. A write that had not
// begun was not done.
func TestWriteAtEndOfTermIsUnknown(t *testing.T) {
	h := start(t, memstore.New(100), nil)
	unblock := h.store.Block()
	defer unblock()
	errs := make(chan error, 2)
	write := func() {
		_, err := h.Write(t.Context(), store.Write{Puts: []store.KV{{Key: store.Prefix + "test", Value: []byte("x")}}})
		errs <- err
	}
	go write()
	for h.commitBegan.Load() == nil {
		time.Sleep(time.Millisecond)
	}
	go write() // queued behind it, or after the end
	h.stop()
	first, second := <-errs, <-errs
	if errors.Is(first, ErrNotLeading) {
		first, second = second, first
	}
	if !errors.Is(first, ErrUnsettled) || errors.Is(first, ErrNotLeading) || !errors.Is(second, ErrNotLeading) {
		t.Errorf("under way: %v; behind it: %v", first, second)
	}
}
