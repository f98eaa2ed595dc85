package fleet

import (
	"context"
	"fmt"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Waits before a report is sent again, to the next replica: as an outbox does at first, then doubled. A RECEIVED
// report waits for its COMMITTED.
const (
	firstWait  = 30 * time.Millisecond
	longWait   = time.Second
	commitWait = 2 * time.Second
)

// Deliver sends batches, at most window of them on their way at a time and one of each node, until all are COMMITTED.
// committed, where not nil, is called with each batch and the time that it took.
func (f *Fleet) Deliver(ctx context.Context, batches []*Batch, window int, committed func(b *Batch, took time.Duration)) error {
	for i := 0; ; {
		open, busy := f.wire.onTheWay(batches, i)
		if open == 0 && i == len(batches) {
			return nil
		}
		if i < len(batches) && open < window && !busy {
			b := batches[i]
			if err := f.wire.launch(b, func(took time.Duration) {
				if committed != nil {
					committed(b, took)
				}
			}); err != nil {
				return err
			}
			i++
			continue
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d batches sent, %d not COMMITTED: %w", i, len(batches), open, ctx.Err())
		case <-f.wire.settled:
		}
	}
}

// onTheWay returns how many batches are, and whether the next one's node has one among them.
func (w *wire) onTheWay(batches []*Batch, next int) (open int, busy bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if next < len(batches) {
		_, busy = w.pending[batches[next].node]
	}
	return len(w.pending), busy
}

func (w *wire) launch(b *Batch, done func(time.Duration)) error {
	now := time.Now()
	fl := &flight{Batch: b, left: b.count, target: b.node.target, again: now.Add(firstWait), wait: firstWait, begun: now, done: done}
	w.mu.Lock()
	w.pending[b.node] = fl
	w.mu.Unlock()
	return w.send(b.node, w.f.targets[fl.target], b.data)
}

// acked handles an acknowledgement.
func (w *wire) acked(a *lofamov1.Ack) {
	n := w.f.find(a.GetNode())
	if n == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	fl := w.pending[n]
	for _, seq := range a.GetSeqs() {
		mine := fl != nil && fault.Seq(seq) <= fl.last && fault.Seq(seq)+fault.Seq(fl.count) > fl.last
		switch {
		case !mine && a.GetStatus() == lofamov1.Ack_RECEIVED:
			w.answered.Add(1)
		case !mine:
		case a.GetStatus() == lofamov1.Ack_RECEIVED:
			fl.received, fl.again = true, time.Now().Add(commitWait)
		case a.GetStatus() == lofamov1.Ack_COMMITTED && !fl.committed[fault.Seq(seq)]:
			if fl.committed == nil {
				fl.committed = make(map[fault.Seq]bool, fl.count)
			}
			fl.committed[fault.Seq(seq)] = true
			fl.left--
		}
	}
	if fl == nil || fl.left > 0 {
		return
	}
	delete(w.pending, n)
	fl.done(time.Since(fl.begun))
	select {
	case w.settled <- struct{}{}:
	default:
	}
}

// repeat sends unanswered reports again.
func (w *wire) repeat(ctx context.Context) error {
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-t.C:
			for _, fl := range w.due(now) {
				w.retries.Add(1)
				if err := w.send(fl.node, w.f.targets[fl.target], fl.data); err != nil {
					return unlessOver(ctx, err)
				}
			}
		}
	}
}

// due returns copies of the flights that are due again, each with its next replica.
func (w *wire) due(now time.Time) (out []flight) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, fl := range w.pending {
		if now.Before(fl.again) {
			continue
		}
		fl.target = fl.node.first + (fl.target-fl.node.first+1)%fl.node.count
		fl.wait = min(2*fl.wait, longWait)
		fl.again, fl.received = now.Add(fl.wait), false
		out = append(out, *fl)
	}
	return out
}
