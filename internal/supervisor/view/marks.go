package view

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Marks are the maintenance marks as they are now. Its methods may be called from any goroutine; those of a
// nil *Marks, which has none, too.
type Marks struct {
	mu       sync.RWMutex
	revision uint64                                 // at which they are so
	of       map[fault.NodeID]*lofamov1.Maintenance // not changed once it is here
	changed  chan struct{}                          // closed when there are others
}

// NewMarks returns the marks of a store in which there are none.
func NewMarks() *Marks {
	return &Marks{of: make(map[fault.NodeID]*lofamov1.Maintenance), changed: make(chan struct{})}
}

// Of returns a node's mark, nil when it has none. It is not to be changed.
func (m *Marks) Of(id fault.NodeID) *lofamov1.Maintenance {
	if m == nil {
		return nil
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.of[id]
}

// Len is how many nodes are under maintenance.
func (m *Marks) Len() int {
	if m == nil {
		return 0
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	return len(m.of)
}

// All returns the marks by node id, and a channel that is closed when they are others.
func (m *Marks) All() ([]*lofamov1.Maintenance, <-chan struct{}) {
	if m == nil {
		return nil, nil
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.SortedFunc(maps.Values(m.of), func(a,
		b *lofamov1.Maintenance) int {
		return cmp.Compare(a.GetNode(), b.GetNode())
	}), m.changed
}

// Replace follows the store: these are all marks as of a revision. What is not newer is passed over.
func (m *Marks) Replace(all []*lofamov1.Maintenance, revision uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if revision <= m.revision {
		return
	}
	of := make(map[fault.NodeID]*lofamov1.Maintenance, len(all))
	for _, mark := range all {
		of[fault.NodeID(mark.GetNode())] = mark
	}
	same := maps.EqualFunc(m.of, of, func(a, b *lofamov1.Maintenance) bool { return proto.Equal(a, b) })
	m.revision = revision
	if !same {
		m.of = of
		m.tell()
	}
}

// Change follows a commit: marks that were made or changed, and nodes whose mark was taken away.
func (m *Marks) Change(set []*lofamov1.Maintenance, ended []fault.NodeID, revision uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if revision <= m.revision || len(set)+len(ended) == 0 {
		return
	}
	m.revision = revision
	for _, mark := range set {
		m.of[fault.NodeID(mark.GetNode())] = mark
	}
	for _, id := range ended {
		delete(m.of, id)
	}
	m.tell()
}

func (m *Marks) tell() {
	close(m.changed)
	m.changed = make(chan struct{})
}
