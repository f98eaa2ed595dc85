package halfcore

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func TestTopologyNamesNeighbours(t *testing.T) {
	m := NewTopology("alpha", grid.Coord{X: 1}, grid.Dims{X: 3, Y: 2, Z: 1},
		map[grid.Direction]fault.NodeID{grid.XPlus: "beta", grid.ZPlus: "none"})
	for c, want := range map[grid.Coord]fault.NodeID{{X: 1}: "alpha", {X: 2}: "beta", {}: "n0-0-0", {X: 1, Y: 1}: "n1-1-0"} {
		if got := m.ID(c); got != want {
			t.Errorf("%s is called %s, want %s", c, got, want)
		}
		if got, ok := m.At(want); !ok || got != c {
			t.Errorf("%s is at %s, %t; want %s", want, got, ok, c)
		}
	}
	for _, id := range []fault.NodeID{"gamma", "n1-0-0", "n2-0-0", "n9-0-0", "n01-1-0", "n", "none"} {
		if c, ok := m.At(id); ok {
			t.Errorf("%s is at %s, want nowhere", id, c)
		}
	}
	want := []Neighbour{
		{"beta", grid.Coord{X: 2}, []grid.Direction{grid.XPlus}, 0x8f910463},
		{"n0-0-0", grid.Coord{}, []grid.Direction{grid.XMinus}, 0x52dd8f3f},
		{"n1-1-0", grid.Coord{X: 1, Y: 1}, []grid.Direction{grid.YPlus, grid.YMinus}, 0x6e7fccb8},
	}
	if d := cmp.Diff(want, m.Neighbours); d != "" {
		t.Error(d)
	}
}
