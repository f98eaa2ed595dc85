package api

import (
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
)

// snapshot is a map with the data needed to read it. All pages of a list share one snapshot.
//
// A position is that of a node in lists: its rank or, for a spare, the number of nodes with a place plus its index
// among the spares.
type snapshot struct {
	view.Map
	topo  *topology.Topology
	marks func(fault.NodeID) *lofamov1.Maintenance
	of    func(fault.NodeID) string // the region of a node; nil: no regions

	frozen bool // marks are those of the first page
}

// snap adds the data needed to read a map.
func (s *Server) snap(m view.Map) snapshot {
	return snapshot{Map: m, topo: m.Topology(), of: s.cfg.RegionOf, marks: s.cfg.Marks.Of}
}

// freeze returns the snapshot with the present marks, for this page and later ones. A snapshot of an earlier page
// stays unchanged.
func (s *Server) freeze(snap snapshot) snapshot {
	if snap.frozen {
		return snap
	}
	all, _ := s.cfg.Marks.All()
	of := make(map[fault.NodeID]*lofamov1.Maintenance, len(all))
	for _, m := range all {
		of[fault.NodeID(m.GetNode())] = m
	}
	snap.marks, snap.frozen = func(id fault.NodeID) *lofamov1.Maintenance { return of[id] }, true
	return snap
}

// size is the number of positions.
func (s snapshot) size() int { return s.Len() + len(s.topo.Spares()) }

// spare returns the spare at a position, if any.
func (s snapshot) spare(pos int) (topology.Node, bool) {
	if pos < s.Len() {
		return topology.Node{}, false
	}
	return s.topo.Spares()[pos-s.Len()], true
}

// position finds a node, including spares.
func (s snapshot) position(id fault.NodeID) (int, bool) {
	if rank, ok := s.Rank(id); ok {
		return rank, true
	}
	i := slices.IndexFunc(s.topo.Spares(), func(n topology.Node) bool { return n.ID == id })
	return s.Len() + i, i >= 0
}

func (s snapshot) state(pos int) lofamov1.State {
	if pos >= s.Len() {
		return lofamov1.State_UNKNOWN
	}
	return lofamov1.State(s.State(pos))
}

func (s snapshot) id(pos int) fault.NodeID {
	if sp, ok := s.spare(pos); ok {
		return sp.ID
	}
	return s.ID(pos)
}

func (s snapshot) labels(pos int) map[string]string {
	if sp, ok := s.spare(pos); ok {
		return sp.Labels
	}
	n, _ := s.topo.Node(s.ID(pos))
	return n.Labels
}

func (s snapshot) maintenance(pos int) *lofamov1.Maintenance { return s.marks(s.id(pos)) }

// region returns the region of a node; empty without regions.
func (s snapshot) region(pos int) string {
	if s.of == nil {
		return ""
	}
	return s.of(s.id(pos))
}

// decorate adds to a node the data from outside the fault map.
func (s snapshot) decorate(n *lofamov1.Node, pos int) {
	n.Labels, n.Region, n.Maintenance = s.labels(pos), s.region(pos), s.maintenance(pos)
}

// warnings returns the warnings of each node that has any, by rank.
func (s snapshot) warnings() map[int][]*lofamov1.Warning {
	out := make(map[int][]*lofamov1.Warning)
	for _, w := range s.Warnings {
		if rank, ok := s.Rank(w.Node); ok {
			out[rank] = append(out[rank], view.Warning(w))
		}
	}
	return out
}

// notNormal returns the ranks of nodes that are not NORMAL, or have a warning or a SICK or FAILED component.
func (s snapshot) notNormal() []int {
	out := slices.AppendSeq(make([]int, 0, s.Counts().NotNormal+len(s.Warnings)), s.NotNormal())
	n := len(out)
	for _, w := range s.Warnings {
		if rank, ok := s.Rank(w.Node); ok {
			if _, found := slices.BinarySearch(out[:n], rank); !found {
				out = append(out, rank)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// stopped counts the UNKNOWN nodes of the chosen ranks, or of all for nil, whose announced stop is not over.
func (s snapshot) stopped(chosen []bool, now time.Time) (n uint32) {
	for rank := range s.In(fault.Unknown) {
		if stop := s.Stop(rank); stop.Reason != 0 && stop.Until.After(now) && (chosen == nil || chosen[rank]) {
			n++
		}
	}
	return n
}

// countMarks counts the maintenance marks, warnings and group faults of the chosen ranks, or of all for nil.
func (s snapshot) countMarks(resp *lofamov1.GetSummaryResponse, chosen []bool, marks []*lofamov1.Maintenance) {
	counts := func(id fault.NodeID) bool {
		pos, ok := s.position(id)
		return ok && (chosen == nil || pos < len(chosen) && chosen[pos])
	}
	for _, m := range marks {
		if counts(fault.NodeID(m.GetNode())) {
			resp.Maintenance++
		}
	}
	for _, w := range s.Warnings {
		if counts(w.Node) {
			resp.Warnings++
		}
	}
	for _, g := range s.Groups {
		if slices.ContainsFunc(g.Members, counts) {
			resp.Groups++
		}
	}
}
