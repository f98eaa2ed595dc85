package topology

import (
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestChangedTopologyIsValid: for any request, a change is refused or makes a topology that a store can hold. No later leader could begin
// its term with an invalid one.
func TestChangedTopologyIsValid(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		top := New(grid.Dims{}, nil, fault.DomainLabels(), 1)
		node := func() Node {
			n := Node{ID: fault.NodeID(rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "quiet1", "quiet2", "quiet3"}).Draw(rt, "id")),
				Spare: rapid.Bool().Draw(rt, "spare")}
			if !n.Spare {
				n.Coord = grid.Coord{X: rapid.IntRange(0, 3).Draw(rt, "x"), Y: rapid.IntRange(0, 2).Draw(rt, "y"),
					Z: rapid.IntRange(0, 1).Draw(rt, "z")}
			}
			if port := rapid.IntRange(0, 9).Draw(rt, "port"); port > 0 {
				n.Service = []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), uint16(port))}
			}
			return n
		}
		for range rapid.IntRange(1, 30).Draw(rt, "changes") {
			nodes := []Node{node()}
			for rapid.IntRange(0, 2).Draw(rt, "more") == 0 {
				nodes = append(nodes, node())
			}
			var ids []fault.NodeID
			var moves []Move
			for _, n := range nodes {
				ids, moves = append(ids, n.ID), append(moves, Move{n.ID, n.Coord})
			}
			next, err := top, error(nil)
			what := rapid.SampledFrom([]string{"join", "join", "expect", "admit", "leave", "forget", "move"}).Draw(rt, "change")
			switch what {
			case "join":
				next, err = top.Join(nodes, allEnds{})
			case "expect":
				next, err = top.Expect(nodes)
			case "admit":
				next, err = top.Admit(nodes[0], nil)
			case "leave", "forget":
				next, err = top.Leave(ids, what == "forget")
			case "move":
				next, err = top.Move(moves, allEnds{})
			}
			if err != nil {
				continue
			}
			stored, err := FromProto(next.Proto())
			if err != nil || len(Diff(stored, next)) > 0 || !stored.SamePlaces(next) {
				rt.Fatalf("%s %v makes an invalid topology of %s: %v, %v", what, nodes, top.Dims, err, fmt.Sprint(next.Nodes))
			}
			top = next
		}
	})
}
