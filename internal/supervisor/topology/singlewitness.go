package topology

import (
	"fmt"
	"slices"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// maxSingle bounds the nodes that SingleWitness returns.
const maxSingle = 16

// SingleWitness returns the nodes with a single witness in a torus of three nodes or more, by rank, at most maxSingle. It
// names no remedy if the places are fixed.
func (t *Topology) SingleWitness(fixed bool) []*lofamov1.SingleWitness {
	if t.Dims.Full() {
		return nil // a line of three places or two lines give each node two witnesses
	}
	at := make([]grid.Coord, 0, t.placed)
	labels := make([]map[string]string, 0, t.placed)
	for _, n := range t.Placed() {
		at, labels = append(at, n.Coord), append(labels, n.Labels)
	}
	p, err := grid.Place(t.Dims, grid.NewDomains(t.DomainLabels, labels), at)
	if err != nil {
		return nil // of no valid topology
	}
	few := p.Quality().Few
	var out []*lofamov1.SingleWitness
	for _, f := range few[:min(len(few), maxSingle)] {
		n := t.Nodes[f.Node]
		for _, c := range f.Witnesses { // one, because a topology is in one part
			s := &lofamov1.SingleWitness{Node: string(n.ID), Witness: c.String()}
			if w, ok := t.Place(c); ok {
				s.Witness = string(w.ID)
			}
			s.Reason = fmt.Sprintf("one witness, %s: if both die at once, or the link between them is cut, only the service network "+
				"notices the death of %s", s.Witness, n.ID)
			if !fixed {
				s.Remedy = t.further(n.Coord) + " gives it a second witness"
				if m, ok := p.Mend(f.Node); ok {
					s.Remedy += fmt.Sprintf(", and so does `lofamoctl node move %s --to %s`", t.Nodes[m.Node].ID, m.To)
				}
			}
			out = append(out, s)
		}
	}
	return out
}

// further names one more node that gives the node at a place a further witness: any node, if all empty places are on the
// lines of that place, or else a node at the first of these.
func (t *Topology) further(c grid.Coord) string {
	empty := t.Dims.Empty()
	beside := slices.DeleteFunc(slices.Clone(empty), func(e grid.Coord) bool {
		return (e.X != c.X || e.Y != c.Y) && (e.X != c.X || e.Z != c.Z) && (e.Y != c.Y || e.Z != c.Z)
	})
	if len(beside) < len(empty) {
		return "one more node at " + beside[0].String()
	}
	return "one more node"
}
