package topology

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Random moves to empty places, and exchanges of two nodes, change no place of another node, and leave the torus in one part.
func TestMovesKeepOtherPlaces(t *testing.T) {
	full := grid.Dims{X: 3, Y: 3, Z: 2}
	rapid.Check(t, func(rt *rapid.T) {
		dims, err := full.Without(grid.Coord{X: 1, Y: 1}, grid.Coord{X: 2, Y: 2, Z: 1}, grid.Coord{Y: 2})
		if err != nil {
			rt.Fatal(err)
		}
		var nodes []Node
		for at := range dims.All() {
			nodes = append(nodes, Node{ID: fault.DefaultNodeID(at), Coord: at})
		}
		top := New(dims, nodes, nil, 1)
		for range rapid.IntRange(1, 20).Draw(rt, "changes") {
			n := rapid.SampledFrom(top.Placed()).Draw(rt, "node")
			moves := []Move{{n.ID, rapid.SampledFrom(top.Dims.Empty()).Draw(rt, "to")}}
			if rapid.Bool().Draw(rt, "exchange") {
				o := rapid.SampledFrom(top.Placed()).Draw(rt, "other")
				if o.ID == n.ID {
					continue
				}
				moves = []Move{{n.ID, o.Coord}, {o.ID, n.Coord}}
			}
			next, err := top.Move(moves, allEnds{})
			if err != nil {
				if !strings.Contains(err.Error(), "one part") {
					rt.Fatalf("%s: %v: %v", top.Dims, moves, err)
				}
				continue
			}
			checkWhole(rt, next)
			if next.Dims.Nodes() != top.Dims.Nodes() || next.Dims.Box() != full {
				rt.Fatalf("%s became %s", top.Dims, next.Dims)
			}
			for _, was := range top.Placed() {
				want := was.Coord
				for _, mv := range moves {
					if mv.Node == was.ID {
						want = mv.To
					}
				}
				if is, _ := next.Node(was.ID); is.Spare || is.Coord != want {
					rt.Fatalf("%s is at %s: want %s", was.ID, is.Coord, want)
				}
			}
			top = next
		}
	})
}

// A move that cannot be made is refused with the reason, and changes nothing.
func TestMoveRefuses(t *testing.T) {
	dims, err := grid.Dims{X: 5, Y: 2, Z: 1}.Without(grid.Coord{Y: 1}, grid.Coord{X: 1, Y: 1}, grid.Coord{X: 2, Y: 1}, grid.Coord{X: 3, Y: 1},
		grid.Coord{X: 4, Y: 1})
	if err != nil {
		t.Fatal(err)
	}
	nodes := ring(t, 5).Nodes
	nodes[3].ID = "still"
	top := New(dims, append(nodes, joiner("s")), nil, 1)
	at := func(x, y int) grid.Coord { return grid.Coord{X: x, Y: y} }
	for what, tc := range map[string]struct {
		moves []Move
		want  string
	}{
		"unknown":               {[]Move{{"nobody", at(0, 1)}}, "not in the topology"},
		"a spare":               {[]Move{{"s", at(0, 1)}}, "has no place"},
		"its own place":         {[]Move{{"n0", at(0, 0)}}, "has the place 0,0,0 already"},
		"taken":                 {[]Move{{"n0", at(1, 0)}}, "place 1,0,0: has node n1"},
		"outside":               {[]Move{{"n0", at(5, 0)}}, "want an empty place of the 5x2x1 torus"},
		"twice":                 {[]Move{{"n0", at(0, 1)}, {"n0", at(1, 1)}}, "this node or the place"},
		"one place for two":     {[]Move{{"n0", at(0, 1)}, {"n1", at(0, 1)}}, "this node or the place"},
		"an earlier version":    {[]Move{{"still", at(3, 1)}}, "upgrade it"},
		"no link at all":        {[]Move{{"n0", at(0, 1)}}, "one part"},
		"exchange with a still": {[]Move{{"n0", at(3, 0)}, {"still", at(0, 0)}}, "upgrade it"},
	} {
		if _, err := top.Move(tc.moves, allEnds{}); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v: want %q", what, err, tc.want)
		}
	}
	region := *top
	region.Region = "r0"
	if _, err := region.Move([]Move{{"n0", at(0, 1)}}, allEnds{}); err == nil || !strings.Contains(err.Error(), "region r0") {
		t.Errorf("in a region: %v", err)
	}
	few := allEnds{"n0": 1<<grid.XPlus.Index() | 1<<grid.XMinus.Index()}
	if _, err := top.Move([]Move{{"n2", at(0, 1)}}, few); err == nil || !strings.Contains(err.Error(), "node n0, its neighbour there") {
		t.Errorf("without an end: %v", err)
	}
}
