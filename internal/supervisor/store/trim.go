package store

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// trimSlack is by what part the history may outgrow its bounds before it is trimmed, so that not every
	// commit carries a deletion.
	trimSlack = 32
	// maxTrim is how many events one commit deletes at most.
	maxTrim = 10_000
	// agePeriod is how often the age of the history is looked at.
	agePeriod = time.Minute
)

// trim says from which event on the history is kept, and how many bytes are left of it. next is the head
// after a commit, before is the number of the first event of that commit: etcd refuses to put and delete one
// key in one transaction. aged is the number of the oldest event that is young enough.
func trim(o Options, next head, before, aged uint64) (oldest, bytes uint64) {
	oldest, bytes = next.Oldest, next.Bytes
	n := next.Next - next.Oldest
	if n == 0 {
		return oldest, bytes
	}
	if n > o.KeepEvents+max(1, o.KeepEvents/trimSlack) {
		oldest = next.Next - o.KeepEvents
	}
	if limit := uint64(o.HistoryBytes); bytes > limit+limit/trimSlack {
		// What each had is not known any more: they count alike.
		oldest = max(oldest, next.Oldest+uint64(float64(n)*float64(bytes-limit)/float64(bytes)))
	}
	oldest = min(max(oldest, aged), before, next.Oldest+maxTrim)
	if oldest <= next.Oldest {
		return next.Oldest, bytes
	}
	return oldest, bytes - uint64(float64(bytes)*float64(oldest-next.Oldest)/float64(n))
}

// lookAtAge finds out, now and then, which events are too old to be kept. Failure means only that they are
// kept for longer.
func (w *writer) lookAtAge(ctx context.Context, now time.Time) {
	if now.Before(w.lookAt) {
		return
	}
	w.lookAt = now.Add(agePeriod)
	if n, err := w.s.firstSince(ctx, w.head.Oldest, w.head.Next, now.Add(-w.s.opts.HistoryAge)); err == nil {
		w.aged = n
	}
}

// firstSince returns the number of the first event in [lo, hi) that is not older than a time; hi when there
// is none. Events are in the order of their times, but for clocks that were set: then it is about that.
func (s *Etcd) firstSince(ctx context.Context, lo, hi uint64, since time.Time) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	for lo < hi {
		mid := lo + (hi-lo)/2
		resp, err := s.c.Get(ctx, eventKey(mid), clientv3.WithSerializable())
		if err != nil {
			return 0, fmt.Errorf("look at the age of event %d: %w", mid, err)
		}
		old := true // lost: what was before it is lost as well
		for _, kv := range resp.Kvs {
			ev, err := decodeEvent(kv)
			if err != nil {
				return 0, err
			}
			old = ev.GetTime() != nil && ev.GetTime().AsTime().Before(since)
		}
		if old {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, nil
}
