package store

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// trimSlack is the fraction, 1/trimSlack, by which the history may exceed its bounds before it is trimmed, so
	// that not every commit carries a deletion.
	trimSlack = 32
	// busySlack replaces trimSlack for commits of more than calmEvents events. A deletion costs the store as much as an
	// event and delays the commit of changes, so it is put off while many nodes die.
	busySlack  = 4
	calmEvents = 64
	// maxTrim is the most events that a commit of at most calmEvents deletes: some milliseconds.
	maxTrim = 512
	// agePeriod is the interval between checks of the history's age.
	agePeriod = time.Minute
)

// trim returns the first event to keep, and the bytes of the kept history. next is the head after a commit. before is
// the number of the commit's first event: etcd refuses to put and delete one key in one transaction. aged is the
// number of the oldest event that is young enough. A larger commit than calmEvents deletes at most twice as many events as
// it adds, so the history returns to its bounds even if no smaller one follows.
func trim(o Options, next head, before, aged uint64) (oldest, bytes uint64) {
	oldest, bytes = next.Oldest, next.Bytes
	n, most, slack := next.Next-next.Oldest, uint64(maxTrim), uint64(trimSlack)
	if n == 0 {
		return oldest, bytes
	}
	if added := next.Next - before; added > calmEvents {
		most, slack, aged = 2*added, busySlack, 0
	}
	if n > o.KeepEvents+max(1, o.KeepEvents/slack) {
		oldest = next.Next - o.KeepEvents
	}
	if limit := uint64(o.HistoryBytes); bytes > limit+limit/slack {
		// The size of each event is no longer known: assume equal sizes.
		oldest = max(oldest, next.Oldest+uint64(float64(n)*float64(bytes-limit)/float64(bytes)))
	}
	oldest = min(max(oldest, aged), before, next.Oldest+most)
	if oldest <= next.Oldest {
		return next.Oldest, bytes
	}
	return oldest, bytes - uint64(float64(bytes)*float64(oldest-next.Oldest)/float64(n))
}

// lookAtAge checks from time to time which events are too old. After a failure they are only kept longer.
func (w *writer) lookAtAge(ctx context.Context, now time.Time) {
	if now.Before(w.lookAt) {
		return
	}
	w.lookAt = now.Add(agePeriod)
	if n, err := w.s.firstSince(ctx, w.head.Oldest, w.head.Next, now.Add(-w.s.opts.HistoryAge)); err == nil {
		w.aged = n
	}
}

// firstSince returns the number of the first event in [lo, hi) that is not older than since; hi if there is none. The store keeps
// all events in [lo, hi). If a member of an external etcd lacks one, that member lags, and firstSince fails. If the sole copy lacks
// one, somebody has deleted it, and it counts as old.
// Events are in order of time, except after clock changes: then the result is approximate.
func (s *Etcd) firstSince(ctx context.Context, lo, hi uint64, since time.Time) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	for lo < hi {
		mid := lo + (hi-lo)/2
		resp, err := s.c.Get(ctx, eventKey(mid), clientv3.WithSerializable())
		if err != nil {
			return 0, fmt.Errorf("look at the age of event %d: %w", mid, err)
		}
		if len(resp.Kvs) == 0 {
			if s.SoleCopy() {
				lo = mid + 1
				continue
			}
			return 0, fmt.Errorf("look at the age of event %d: this copy of the store lacks it at revision %d", mid, resp.Header.GetRevision())
		}
		ev, err := decodeEvent(resp.Kvs[0])
		if err != nil {
			return 0, err
		}
		if ev.GetTime() != nil && ev.GetTime().AsTime().Before(since) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, nil
}
