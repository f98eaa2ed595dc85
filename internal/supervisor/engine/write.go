package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// write is what an operator changes, on its way to the term.
type write struct {
	store.Write
	reply chan<- written
	// ends says that the term ends with it: its machine cannot follow.
	ends bool
}

// written is what became of it.
type written struct {
	revision uint64
	err      error
}

// ErrUnsettled says that this replica lost its lead, or the quorum, while it committed: nobody knows what came of it.
var ErrUnsettled = errors.New("the lead was lost while it was being committed")

// ErrOtherTerm is an ErrNotLeading: the write is for another term of this replica, or of another one. It was not committed.
var ErrOtherTerm = fmt.Errorf("%w: another term", ErrNotLeading)

// Write commits what an operator changes, in order with the batches of evidence, and returns the revision of
// the commit. It fails with ErrNotLeading, and with store.ErrConflict when a guard does not hold. When the
// context ends first, or the term does while it commits (ErrUnsettled), it may have been committed all the same.
func (e *Engine) Write(ctx context.Context, w store.Write) (uint64, error) {
	t := e.term.Load()
	if t == nil {
		return 0, ErrNotLeading
	}
	reply := make(chan written, 1)
	res, err := inquire(ctx, t, e.writes, write{Write: w, reply: reply}, reply)
	if err != nil {
		return 0, err
	}
	return res.revision, res.err
}

// unsettle tells who waits for the write under way that the term ends with a commit of which nobody knows. What the
// fence has refused was not done, and nor was what had not been begun.
func (t *term) unsettle(err error) {
	if w := t.inflight.write; w != nil && !errors.Is(err, store.ErrNotLeader) {
		w.reply <- written{err: ErrUnsettled}
	}
}

// takeWrite puts a write behind what is to be committed before it.
func (t *term) takeWrite(w write) {
	if mine := uint64(t.confirmer.fence.Rev); w.Term != 0 && w.Term != mine { // whoever asked was paused, and this replica has been elected anew
		w.reply <- written{err: fmt.Errorf("%w: the change is of term %d, and this is %d", ErrOtherTerm, w.Term, mine)}
		return
	}
	if !t.open.empty() {
		t.seal()
	}
	w.ends = w.ChangesTopology() && (w.Topology == nil || !t.topology.samePlaces(w.Topology.Topology))
	t.sealed = append(t.sealed, &batch{write: &w})
	t.pausing = t.pausing || w.ends
}
