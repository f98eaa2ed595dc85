package view

import (
	"cmp"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Marks are the current maintenance marks. Its methods may be called from any goroutine, and also on a nil *Marks,
// which has none.
type Marks struct {
	current[fault.NodeID, *lofamov1.Maintenance]
}

// NewMarks returns Marks without any mark.
func NewMarks() *Marks { return &Marks{newCurrent[fault.NodeID, *lofamov1.Maintenance]()} }

func (m *Marks) set() *current[fault.NodeID, *lofamov1.Maintenance] {
	if m == nil {
		return nil
	}
	return &m.current
}

// Of returns a node's mark, or nil. The mark is read-only.
func (m *Marks) Of(id fault.NodeID) *lofamov1.Maintenance { return m.set().get(id) }

// Len returns the number of nodes under maintenance.
func (m *Marks) Len() int { return m.set().len() }

// All returns the marks by node id, and a channel that is closed on the next change.
func (m *Marks) All() ([]*lofamov1.Maintenance, <-chan struct{}) {
	all, _, changed := m.set().all(func(a, b *lofamov1.Maintenance) int { return cmp.Compare(a.GetNode(), b.GetNode()) })
	return all, changed
}

// Replace sets all marks, as of a revision of the store. It ignores a revision that is not newer.
func (m *Marks) Replace(all []*lofamov1.Maintenance, revision uint64) {
	of := make(map[fault.NodeID]*lofamov1.Maintenance, len(all))
	for _, mark := range all {
		of[fault.NodeID(mark.GetNode())] = mark
	}
	m.set().replace(of, revision)
}

// Change applies a commit: new or changed marks, and the nodes whose marks were removed.
func (m *Marks) Change(set []*lofamov1.Maintenance, ended []fault.NodeID, revision uint64) {
	if len(set)+len(ended) == 0 {
		return
	}
	m.set().change(revision, func(of map[fault.NodeID]*lofamov1.Maintenance) {
		for _, mark := range set {
			of[fault.NodeID(mark.GetNode())] = mark
		}
		for _, id := range ended {
			delete(of, id)
		}
	})
}
