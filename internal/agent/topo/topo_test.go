package topo

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"pgregory.net/rapid"
)

func TestNames(t *testing.T) {
	m := New("alpha", grid.Coord{X: 1}, grid.Dims{X: 3, Y: 2, Z: 1}, map[grid.Direction]fault.NodeID{grid.XPlus: "beta", grid.ZPlus: "none"})
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
		{"beta", grid.Coord{X: 2}, []grid.Direction{grid.XPlus}},
		{"n0-0-0", grid.Coord{}, []grid.Direction{grid.XMinus}},
		{"n1-1-0", grid.Coord{X: 1, Y: 1}, []grid.Direction{grid.YPlus, grid.YMinus}},
	}
	if d := cmp.Diff(want, m.Neighbours); d != "" {
		t.Error(d)
	}
}

func distance(d grid.Dims, a, b grid.Coord) int {
	one := func(x, y, n int) int { up := (y - x + n) % n; return min(up, n-up) }
	return one(a.X, b.X, d.X) + one(a.Y, b.Y, d.Y) + one(a.Z, b.Z, d.Z)
}

func TestTowardsIsExactlyWhatComesNearer(t *testing.T) {
	size := rapid.IntRange(1, 6)
	rapid.Check(t, func(t *rapid.T) {
		d := grid.Dims{X: size.Draw(t, "x"), Y: size.Draw(t, "y"), Z: size.Draw(t, "z")}
		rank := rapid.IntRange(0, d.Nodes()-1)
		from, to := d.At(rank.Draw(t, "from")), d.At(rank.Draw(t, "to"))
		var want []grid.Direction
		for _, dir := range d.Links() {
			if n, _ := d.Neighbour(from, dir); distance(d, n, to) < distance(d, from, to) {
				want = append(want, dir)
			}
		}
		if diff := cmp.Diff(want, New("a", from, d, nil).Towards(to)); diff != "" {
			t.Fatalf("%s from %s to %s: %s", d, from, to, diff)
		}
	})
}
