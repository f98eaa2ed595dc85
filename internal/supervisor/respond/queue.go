package respond

import (
	"slices"
	"sync"

	"github.com/lofamo/lofamo/internal/notify"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// input is one input of the engine: an event with an optional waiting caller, or the beginning or end of a term.
type input struct {
	event     response.Event
	set       *latest         // the event is a version of this set; nil: of none
	rev       uint64          // of the store, with which the set was read
	receivers []notify.Target // the stored targets, with policies
	reply     chan<- error    // nil: no caller waits
	of        *term           // the only term that may use the event; nil: any
	lead      *term
	lose      *term
}

// latest is the newest version of a set in the store that the engine was given. A replica reads the set when it begins to lead, and
// follows it all the time, so an older reading may come after a newer one. Only Run's goroutine uses it.
type latest struct {
	event response.Event // nil: none
	rev   uint64         // of the store
}

// take keeps a version unless a newer one is known. It reports whether it has kept the version.
func (l *latest) take(in input) bool {
	if l.event != nil && in.rev < l.rev {
		return false
	}
	l.event, l.rev = in.event, in.rev
	return true
}

// mapped is a version of the map.
type mapped struct {
	m       view.Map
	changed []fault.NodeID
	all     bool
}

// queue holds the waiting inputs of the engine. The number of attempts bounds the results, maxAsked bounds people's
// requests, and versions of the map beyond maxMaps are merged.
type queue struct {
	signal chan struct{}

	mu    sync.Mutex
	list  []input
	maps  []mapped
	asked int
}

const (
	maxAsked = 1000
	maxMaps  = 256
)

// put adds an input. It returns false if too many requests wait.
func (q *queue) put(in input) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if in.reply != nil {
		if q.asked >= maxAsked {
			return false
		}
		q.asked++
	}
	q.list = append(q.list, in)
	q.ring()
	return true
}

func (q *queue) putMap(m view.Map, changed []fault.NodeID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	next := mapped{m: m, changed: changed, all: changed == nil}
	if n := len(q.maps); n >= maxMaps {
		last := &q.maps[n-1]
		last.m, last.all, last.changed = m, last.all || next.all, append(slices.Clip(last.changed), changed...)
		if len(last.changed) > m.Len() {
			last.all, last.changed = true, nil
		}
	} else {
		q.maps = append(q.maps, next)
	}
	q.ring()
}

func (q *queue) ring() {
	select {
	case q.signal <- struct{}{}:
	default:
	}
}

// take removes and returns all waiting inputs.
func (q *queue) take() ([]input, []mapped) {
	q.mu.Lock()
	defer q.mu.Unlock()
	list, maps := q.list, q.maps
	q.list, q.maps, q.asked = nil, nil, 0
	return list, maps
}
