package command

import (
	"fmt"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TopologyNode finds a node by its id or its coordinates. It returns nil if there is none.
func TopologyNode(top *lofamov1.Topology, name string) *lofamov1.TopologyNode {
	at, err := grid.ParseCoord(name)
	var there *lofamov1.TopologyNode
	for _, n := range top.GetNodes() {
		if n.GetId() == name {
			return n
		}
		if err == nil && n.GetCoord() == at.String() {
			there = n
		}
	}
	return there
}

// Placement returns the placement of a topology's nodes, and their ids by number.
func Placement(top *lofamov1.Topology) (*grid.Placement, []string, error) {
	d, err := grid.ParseDims(top.GetDims())
	if err != nil {
		return nil, nil, err
	}
	var ids []string
	var at []grid.Coord
	var labels []map[string]string
	for _, n := range top.GetNodes() {
		if n.GetCoord() == "" {
			continue
		}
		c, err := grid.ParseCoord(n.GetCoord())
		if err != nil {
			return nil, nil, fmt.Errorf("node %s: %w", n.GetId(), err)
		}
		ids, at, labels = append(ids, n.GetId()), append(at, c), append(labels, n.GetLabels())
	}
	p, err := grid.Place(d, grid.NewDomains(top.GetDomainLabels(), labels), at)
	return p, ids, err
}

// StepText describes a step to a better placement; ids are the nodes by number.
func StepText(s grid.Step, ids []string) string {
	if s.With >= 0 {
		return fmt.Sprintf("%s at %s and %s at %s exchange places", ids[s.Node], s.From, ids[s.With], s.To)
	}
	return fmt.Sprintf("%s moves from %s to the empty place %s", ids[s.Node], s.From, s.To)
}

// SingleWitnessLines describes nodes that have a single witness, each with the remedy on a second line.
func SingleWitnessLines(nodes []*lofamov1.SingleWitness) (out []string) {
	for _, n := range nodes {
		out = append(out, Printable(n.GetNode()+": "+n.GetReason()))
		if r := n.GetRemedy(); r != "" {
			out = append(out, "  "+Printable(r))
		}
	}
	return out
}
