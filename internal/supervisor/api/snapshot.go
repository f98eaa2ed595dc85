package api

import (
	"slices"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
)

// snapshot is a map and what it is read with: all pages of a list are of one.
//
// A position is that of a node in lists: its rank, or for a spare the number of nodes with a place and its number
// among the spares.
type snapshot struct {
	view.Map
	topo  *topology.Topology
	marks func(fault.NodeID) *lofamov1.Maintenance
	of    func(fault.NodeID) string // the region of a node; nil: there are none

	frozen bool // marks are those of the first page
}

// snap adds to a map what it is read with.
func (s *Server) snap(m view.Map) snapshot {
	return snapshot{Map: m, topo: m.Topology(), of: s.cfg.RegionOf, marks: s.cfg.Marks.Of}
}

// freeze returns the snapshot with the marks that there are now, for this page and those that follow. One that is of an
// earlier page stays as it is.
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

// spare returns the spare at a position, if one is there.
func (s snapshot) spare(pos int) (topology.Node, bool) {
	if pos < s.Len() {
		return topology.Node{}, false
	}
	return s.topo.Spares()[pos-s.Len()], true
}

// position finds a node, be it a spare.
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

// region is that of a node; empty where there are none.
func (s snapshot) region(pos int) string {
	if s.of == nil {
		return ""
	}
	return s.of(s.id(pos))
}

// dress adds to a node what is not of the fault map itself.
func (s snapshot) dress(n *lofamov1.Node, pos int) {
	n.Labels, n.Region, n.Maintenance = s.labels(pos), s.region(pos), s.maintenance(pos)
}

// warnings are those of each node that has any, by rank.
func (s snapshot) warnings() map[int][]*lofamov1.Warning {
	out := make(map[int][]*lofamov1.Warning)
	for _, w := range s.Warnings {
		if rank, ok := s.Rank(w.Node); ok {
			out[rank] = append(out[rank], view.Warning(w))
		}
	}
	return out
}

// notNormal are the ranks of the nodes that are not NORMAL or have a warning or a component that is SICK or FAILED.
func (s snapshot) notNormal() []int {
	out := slices.Collect(s.NotNormal())
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

// countMarks counts what stands above nodes or is set by operators: of the chosen ranks, nil for all.
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
