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

// Marks are the current maintenance marks. Its methods may be called from any goroutine, and also on a nil *Marks,
// which has none.
type Marks struct {
	mu       sync.RWMutex
	revision uint64                                 // at which they are so
	of       map[fault.NodeID]*lofamov1.Maintenance // entries are immutable
	changed  chan struct{}                          // closed on the next change
}

// NewMarks returns Marks without any mark.
func NewMarks() *Marks {
	return &Marks{of: make(map[fault.NodeID]*lofamov1.Maintenance), changed: make(chan struct{})}
}

// Of returns a node's mark, or nil. The mark is read-only.
func (m *Marks) Of(id fault.NodeID) *lofamov1.Maintenance {
	if m == nil {
		return nil
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.of[id]
}

// Len returns the number of nodes under maintenance.
func (m *Marks) Len() int {
	if m == nil {
		return 0
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	return len(m.of)
}

// All returns the marks by node id, and a channel that is closed on the next change.
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

// Replace sets all marks, as of a revision of the store. It ignores a revision that is not newer.
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

// Change applies a commit: new or changed marks, and the nodes whose marks were removed.
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
