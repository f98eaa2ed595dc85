package api

import (
	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// place is where a client stopped: after a revision (index 0), or after an event of it.
type place struct {
	revision uint64
	index    uint32
}

func (p place) check() error {
	if p.index > 0 && p.revision == 0 {
		return invalid("after_index", "given %d without after_revision: want the revision of the event", p.index)
	}
	return nil
}

// before returns the revision after which reading begins.
func (p place) before() uint64 {
	if p.index > 0 {
		return p.revision - 1
	}
	return p.revision
}

// keep restricts a filter, which may be nil, to the events after the place. Events of earlier versions have no index, and
// come again.
func (p place) keep(filter func(*lofamov1.Event) bool) func(*lofamov1.Event) bool {
	if p.index == 0 {
		return filter
	}
	return func(ev *lofamov1.Event) bool {
		if ev.GetRevision() == p.revision && ev.GetIndex() > 0 && ev.GetIndex() <= p.index {
			return false
		}
		return filter == nil || filter(ev)
	}
}
