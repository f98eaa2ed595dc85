package supervisor

import (
	"fmt"
	"strings"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestWhatRegionsSet: a parent has the labels and spares of its regions, and each region's marks on its own nodes.
// Its own configuration assigns the places.
func TestWhatRegionsSet(t *testing.T) {
	dims := grid.Dims{X: 2, Y: 1, Z: 1}
	node := func(id string, x int, rack string) topology.Node {
		return topology.Node{ID: fault.NodeID(id), Coord: grid.Coord{X: x}, Labels: map[string]string{"rack": rack}}
	}
	spare := func(id, rack string) topology.Node {
		return topology.Node{ID: fault.NodeID(id), Spare: true, Labels: map[string]string{"rack": rack}}
	}
	mark := func(id string) store.Mark { return store.Mark{Maintenance: &lofamov1.Maintenance{Node: id}} }
	own := topology.New(dims, []topology.Node{node("a", 0, "of the file"), node("b", 1, "of the file")}, nil, 0)
	names := []string{"west", "east"}
	all := []store.Below{
		{Marks: []store.Mark{mark("a"), mark("b"), mark("s")},
			Topology: topology.New(dims, []topology.Node{node("a", 0, "r1"), spare("s", "r2")}, nil, 7)},
		// x has b's place; a and s are the west's
		{Topology: topology.New(dims, []topology.Node{node("x", 1, "r3"), spare("b", "r4"), spare("a", "r5"), spare("s", "r6")}, nil, 5)},
	}
	configured := func(id fault.NodeID) string { return map[fault.NodeID]string{"a": "west", "b": "east"}[id] }
	topo, spares := mergeTopologies(own, names, all, configured)
	var got strings.Builder
	for _, n := range topo.Nodes {
		fmt.Fprintf(&got, "%s at %s of %s; ", n.ID, n.Proto().GetCoord(), n.Labels["rack"])
	}
	if want := "a at 0,0,0 of r1; b at 1,0,0 of r4; s at  of r2; "; got.String() != want || topo.Revision != 7 || len(spares) != 1 ||
		spares["s"] != "west" {
		t.Errorf("%s, revision %d, spares %v; want %s", got.String(), topo.Revision, spares, want)
	}
	of := func(id fault.NodeID) string {
		if name := spares[id]; name != "" {
			return name
		}
		return configured(id)
	}
	if marks := marksOf(names, all, of); len(marks) != 2 || marks[0].GetNode() != "a" || marks[1].GetNode() != "s" {
		t.Errorf("marks %v: want those of a and s, which are the west's", marks)
	}
	if topo, spares := mergeTopologies(own, names, make([]store.Below, 2), configured); len(topo.Nodes) != 2 ||
		topo.Nodes[0].Labels["rack"] != "of the file" || len(spares) != 0 {
		t.Errorf("of regions that have told nothing: %v, %v", topo.Nodes, spares)
	}
}
