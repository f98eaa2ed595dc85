package api

import (
	"context"
	"fmt"
	"slices"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// historyPage is the number of events per read of history.
const historyPage = 512

// eventHistory is the part of a store that locate needs.
type eventHistory interface {
	Bounds(ctx context.Context) (store.Bounds, error)
	EventsFrom(ctx context.Context, number uint64, limit int) (first uint64, events []*lofamov1.Event, err error)
}

// locate finds the number of the first event after a revision, which may lie in the future. It fails with an
// expiredError if earlier events after the revision may have been forgotten, or were lost when the store was
// restored. Then the number is that of the first event after the gap. Numbers and revisions rise together, so
// binary search finds it.
func locate(ctx context.Context, src eventHistory, after uint64) (number uint64, b store.Bounds, err error) {
	if b, err = src.Bounds(ctx); err != nil {
		return 0, b, err
	}
	lo, hi := b.Oldest, b.Next // the answer is in [lo, hi]
	for lo < hi {
		mid := lo + (hi-lo)/2
		first, events, err := keptFrom(ctx, src, mid, b.Next, 1)
		switch {
		case err != nil:
			return 0, b, err
		case len(events) == 0: // trimmed meanwhile, all of it
			return 0, b, &expiredError{After: after, Oldest: b.Next}
		case events[0].GetRevision() > after:
			hi = mid
			if first > mid { // mid was trimmed meanwhile
				return 0, b, &expiredError{After: after, Oldest: first}
			}
		default:
			lo = first + 1
		}
	}
	lost := lostIn(b, after)
	switch {
	case lost != nil:
		return lo, b, lost
	case lo > b.Oldest, b.Oldest == 1: // the event before is known to precede the revision, or there is none
	case b.Oldest == b.Next && b.Written <= after: // history is empty, and no later event exists
	default:
		return 0, b, &expiredError{After: after, Oldest: b.Oldest}
	}
	return lo, b, nil
}

// lostIn returns an expiredError if a revision was lost when the store was restored, else nil.
func lostIn(b store.Bounds, after uint64) error {
	i := slices.IndexFunc(b.Gaps, func(g store.Gap) bool { return g.Lost(after) })
	if i < 0 {
		return nil
	}
	return &expiredError{After: after, Oldest: b.Oldest, Gap: &b.Gaps[i]}
}

// fromHistory returns the next page after the reader's place. If there is none, the place moves to the store's
// revision from before the read.
func (s *subscription) fromHistory(ctx context.Context) ([]*watchFrame, error) {
	place := s.place.Load()
	var b store.Bounds
	var err error
	if s.number == 0 {
		s.number, b, err = locate(ctx, s.h.src, place)
	} else {
		b, err = s.h.src.Bounds(ctx)
	}
	if err != nil {
		return nil, err
	}
	if s.number < b.Oldest {
		return nil, &expiredError{After: place, Oldest: b.Oldest}
	}
	events, err := wholeRevisions(ctx, s.h.src, s.number, place)
	if err != nil {
		return nil, err
	}
	s.number += uint64(len(events))
	for len(events) > 0 && events[0].GetRevision() <= place {
		events = events[1:] // the subscriber already has it: a lagging member located the place
	}
	if len(events) == 0 && s.number < b.Next {
		return nil, nil // trimmed meanwhile, or read from a member that lags: the next call decides
	}
	s.buf = s.buf[:0]
	for len(events) > 0 {
		n := 1
		for n < len(events) && events[n].GetRevision() == events[0].GetRevision() {
			n++
		}
		f, err := newWatchFrame(events[0].GetRevision(), events[:n:n])
		if err != nil {
			return nil, err
		}
		s.buf = append(s.buf, f)
		s.place.Store(f.Revision)
		events = events[n:]
	}
	if len(s.buf) == 0 {
		s.place.Store(max(place, b.Revision))
	}
	return s.buf, nil
}

// wholeRevisions reads a page of events by number that does not end within a revision.
func wholeRevisions(ctx context.Context, src eventHistory, number, after uint64) ([]*lofamov1.Event, error) {
	for limit := historyPage; ; limit *= 2 {
		first, events, err := src.EventsFrom(ctx, number, limit)
		if err != nil {
			return nil, fmt.Errorf("read changes after revision %d: %w", after, err)
		}
		if len(events) > 0 && first != number {
			return nil, &expiredError{After: after, Oldest: first}
		}
		if len(events) < limit {
			return events, nil
		}
		last := events[len(events)-1].GetRevision()
		n := len(events)
		for n > 0 && events[n-1].GetRevision() == last {
			n--
		}
		if n > 0 {
			return events[:n], nil
		}
	}
}
