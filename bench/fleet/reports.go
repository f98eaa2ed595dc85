package fleet

import (
	"context"
	"fmt"
	"slices"
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
	for _, all := range w.pending {
		open += len(all)
	}
	return open, busy
}

func (w *wire) launch(b *Batch, done func(time.Duration)) error {
	now := time.Now()
	fl := &flight{Batch: b, left: b.count, target: int(b.node.target.Load()), again: now.Add(firstWait), wait: firstWait, begun: now,
		done: done}
	w.mu.Lock()
	w.pending[b.node] = append(w.pending[b.node], fl)
	w.mu.Unlock()
	b.node.signed.Store(false)
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
	all := w.pending[n]
	for _, seq := range a.GetSeqs() {
		i := slices.IndexFunc(all, func(fl *flight) bool { return fl.has(fault.Seq(seq)) })
		switch {
		case i < 0 && a.GetStatus() == lofamov1.Ack_RECEIVED:
			w.answered.Add(1)
		case i < 0:
		case a.GetStatus() == lofamov1.Ack_RECEIVED:
			all[i].received, all[i].again = true, time.Now().Add(commitWait)
		case a.GetStatus() == lofamov1.Ack_COMMITTED && !all[i].committed[fault.Seq(seq)]:
			if all[i].committed == nil {
				all[i].committed = make(map[fault.Seq]bool, all[i].count)
			}
			all[i].committed[fault.Seq(seq)] = true
			all[i].left--
		}
	}
	for _, fl := range all {
		if fl.left == 0 {
			fl.done(time.Since(fl.begun))
		}
	}
	left := slices.DeleteFunc(all, func(fl *flight) bool { return fl.left == 0 })
	if len(left) == len(all) {
		return
	}
	if w.pending[n] = left; len(left) == 0 {
		delete(w.pending, n)
	}
	select {
	case w.settled <- struct{}{}:
	default:
	}
}

// has reports whether a report is one of the batch.
func (b *Batch) has(seq fault.Seq) bool { return seq <= b.last && seq+fault.Seq(b.count) > b.last }

// forget drops the pending reports of a removed node.
func (w *wire) forget(n *Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pending, n)
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
	for _, all := range w.pending {
		for _, fl := range all {
			if now.Before(fl.again) {
				continue
			}
			fl.target = fl.node.first + (fl.target-fl.node.first+1)%fl.node.count
			fl.wait = min(2*fl.wait, longWait)
			fl.again, fl.received = now.Add(fl.wait), false
			out = append(out, *fl)
		}
	}
	return out
}
