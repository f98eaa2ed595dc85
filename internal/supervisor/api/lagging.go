package api

import (
	"context"
	"errors"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// Reads of the copy go to any member of an external etcd. Each member answers as of its own revision: one that lags, or is cut off, lacks
// the newest events. Two reads of one call may go to two members.

// Limits for retrying a read that a lagging member answered.
const (
	copyReads  = 5
	leastPause = 5 * time.Millisecond // doubles with each repetition
)

// errLags says that the copy lags behind the committed state.
var errLags = errors.New("the member of etcd that answers lacks the newest events: try again")

// untilCurrent calls read until it reports a current answer, with growing pauses. It fails with errLags after copyReads calls.
func untilCurrent(ctx context.Context, read func() (current bool, err error)) error {
	for n := range copyReads {
		if n > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(leastPause << (n - 1)):
			}
		}
		if current, err := read(); current || err != nil {
			return err
		}
	}
	return errLags
}

// boundsFrom returns the bounds of the kept events as of a revision or later.
func boundsFrom(ctx context.Context, src eventHistory, revision uint64) (b store.Bounds, err error) {
	err = untilCurrent(ctx, func() (bool, error) {
		b, err = src.Bounds(ctx)
		return b.Revision >= revision, err
	})
	return b, err
}

// sole reports whether a copy is the only one that its reads go to. Events that it lacks are gone, even if the bounds say that it keeps
// them: somebody has deleted them.
func sole(src eventHistory) bool {
	one, ok := src.(interface{ SoleCopy() bool })
	return ok && one.SoleCopy()
}

// keptFrom returns at most limit kept events, oldest first, starting with a number. All events below end have been committed. None below
// end means that they are no longer kept. first is the number of the first returned event.
func keptFrom(ctx context.Context, src eventHistory, number, end uint64, limit int) (first uint64, events []*lofamov1.Event, err error) {
	err = untilCurrent(ctx, func() (bool, error) {
		if first, events, err = src.EventsFrom(ctx, number, limit); err != nil {
			return false, err
		}
		if n := uint64(len(events)); sole(src) || n > 0 && (first >= end || n >= min(uint64(limit), end-first)) {
			return true, nil
		}
		b, err := src.Bounds(ctx)
		if b.Oldest >= end {
			events = nil
		}
		return b.Oldest >= end, err
	})
	return first, events, err
}
