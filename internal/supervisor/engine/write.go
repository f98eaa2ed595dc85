package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// write is an operator's change on its way to the term.
type write struct {
	store.Write
	reply chan<- written
	// moves means that nodes change their places: the term takes no input until it has followed.
	moves bool
}

// written is the result of a write.
type written struct {
	revision uint64
	err      error
}

// ErrUnsettled says that this replica lost the lead, or the quorum, during the commit: its outcome is unknown.
var ErrUnsettled = errors.New("the lead was lost while it was being committed")

// ErrOtherTerm is an ErrNotLeading: the write belongs to another term, of this replica or another. It was not
// committed.
var ErrOtherTerm = fmt.Errorf("%w: another term", ErrNotLeading)

// Write commits an operator's change, in order with the batches of evidence, and returns the revision of the commit.
// It fails with ErrNotLeading, with store.ErrConflict when a guard does not hold, and with store.ErrRefused if the store can never take
// the change. If the context ends first, or the term ends during the commit (ErrUnsettled), the change may still have been committed.
func (e *Engine) Write(ctx context.Context, w store.Write) (uint64, error) {
	t := e.term.Load()
	if t == nil {
		return 0, ErrNotLeading
	}
	reply := make(chan written, 1)
	res, err := inquire(ctx, t, (*questions).toWrite, write{Write: w, reply: reply}, reply)
	if err != nil {
		return 0, err
	}
	return res.revision, res.err
}

// unsettle tells the writer in flight that the term ended with a commit whose outcome is unknown. Writes that the
// fence refused, or that had not begun, were not committed.
func (t *term) unsettle(err error) {
	if w := t.inflight.write; w != nil && !errors.Is(err, store.ErrNotLeader) {
		w.reply <- written{err: ErrUnsettled}
	}
}

// takeWrite queues a write behind all changes that must be committed before it.
func (t *term) takeWrite(w write) {
	// The caller was paused, and this replica was re-elected meanwhile.
	if mine := uint64(t.confirmer.fence.Rev); w.Term != 0 && w.Term != mine {
		w.reply <- written{err: fmt.Errorf("%w: the change is of term %d, and this is %d", ErrOtherTerm, w.Term, mine)}
		return
	}
	w.moves = w.ChangesTopology() && !t.topology.samePlaces(w.Topology.Topology)
	if err := t.checkPlaces(&w); err != nil {
		t.e.cfg.Metrics.TopologiesRefused.Inc()
		t.e.cfg.Logger.Error("topology refused", "err", err)
		w.reply <- written{err: err}
		return
	}
	if !t.open.empty() {
		t.seal()
	}
	t.sealed = append(t.sealed, &batch{write: &w})
	t.pausing = t.pausing || w.moves
}
