package topology

import (
	"cmp"
	"slices"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Move is a node that gets another place.
type Move struct {
	Node fault.NodeID
	To   grid.Coord
}

// Move returns the topology with nodes at other places: at empty ones, or at those of one another. The error is a
// *CannotJoinError.
func (t *Topology) Move(moves []Move, ends Ends) (*Topology, error) {
	if t.Region != "" {
		return nil, cannot(moves[0].Node, "region %s: its places are fixed by the configurations of all regions", t.Region)
	}
	nodes := slices.Clone(t.Nodes)
	var left, taken []grid.Coord
	for _, mv := range moves {
		i := slices.IndexFunc(nodes, func(n Node) bool { return n.ID == mv.Node })
		if err := t.mayMove(mv, i, ends); err != nil {
			return nil, err
		}
		if slices.Contains(taken, mv.To) || nodes[i].Coord != t.Nodes[i].Coord {
			return nil, cannot(mv.Node, "the request names this node or the place %s twice", mv.To)
		}
		left, taken = append(left, nodes[i].Coord), append(taken, mv.To)
		nodes[i].Coord = mv.To
	}
	dims := t.Dims
	var err error
	for i, mv := range moves {
		if slices.Contains(left, taken[i]) {
			continue
		}
		if n, ok := t.Place(mv.To); ok {
			return nil, cannot(mv.Node, "place %s: has node %s: want an empty place", mv.To, n.ID)
		}
		if dims, err = dims.Filled(mv.To); err != nil {
			return nil, cannot(mv.Node, "%v", err)
		}
	}
	empty := slices.DeleteFunc(slices.Clone(left), func(at grid.Coord) bool { return slices.Contains(taken, at) })
	if dims, err = dims.Without(empty...); err == nil {
		err = cmp.Or(dims.CheckConnected(), checkEncoding(dims))
	}
	if err != nil {
		return nil, cannot(moves[0].Node, "if it moves to %s: %v", moves[0].To, err)
	}
	for _, mv := range moves {
		if err := t.checkEnds(mv.Node, mv.To, dims, ends); err != nil {
			return nil, err
		}
	}
	return New(dims, nodes, t.DomainLabels, t.Revision), nil
}

// mayMove refuses a move for reasons of its node, which has the index i, and of the box.
func (t *Topology) mayMove(mv Move, i int, ends Ends) error {
	switch at := mv.To; {
	case i < 0:
		return cannot(mv.Node, "not in the topology")
	case t.Nodes[i].Spare:
		return cannot(mv.Node, "has no place: want a node that has one; `lofamoctl node join` gives it one")
	case t.Nodes[i].Coord == at:
		return cannot(mv.Node, "has the place %s already", at)
	case t.Dims.Box().Check(at) != nil:
		return cannot(mv.Node, "place %s: want an empty place of the %s torus", at, t.Dims.Box())
	case !ends.Moves(mv.Node):
		return cannot(mv.Node, "its agent cannot move: it is of an earlier version, or runs the halves without `lofamo-agent run`: "+
			"upgrade it, or restart it if it was upgraded before the supervisors")
	}
	return nil
}
