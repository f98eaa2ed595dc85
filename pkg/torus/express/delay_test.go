package express

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func TestDelays(t *testing.T) {
	const ms = time.Millisecond
	for _, tc := range []struct {
		repeats int
		want    time.Duration
	}{{0, 10 * ms}, {1, 30 * ms}, {2, 60 * ms}, {3, 110 * ms}, {6, 540 * ms}} {
		if got := HopBound(10*ms, tc.repeats); got != tc.want {
			t.Errorf("%d repeats: %s, want %s", tc.repeats, got, tc.want)
		}
	}
	if got := NetworkDelay(6, 60*ms); got != 360*ms || Settle(got) != 720*ms || NetworkDelay(-1, ms) != 0 {
		t.Errorf("network delay %s, settle %s", got, Settle(got))
	}
}

// TestMarginCoversTable3: the margin covers the mean and three deviations of all rows of Table 3, and is the paper's 5·√N there.
func TestMarginCoversTable3(t *testing.T) {
	for side, want := range map[int]float64{4: 13.4, 8: 32.2, 10: 43.0, 12: 52.1, 14: 63.0, 16: 70.8, 20: 87.0, 24: 112.3, 28: 137.6,
		32: 154.1} {
		got := Margin(grid.Dims{X: side, Y: side, Z: 1})
		if float64(got) < want || got != min(5*side, side*side-1) {
			t.Errorf("%dx%d: %d, Table 3 has %.1f", side, side, got, want)
		}
	}
	for _, tc := range []struct {
		dims grid.Dims
		want int
	}{{grid.Dims{X: 1, Y: 1, Z: 1}, 0}, {grid.Dims{X: 9, Y: 1, Z: 1}, 8}, {grid.Dims{X: 1, Y: 1, Z: 7}, 6},
		{grid.Dims{X: 4, Y: 4, Z: 4}, 30}, {grid.Dims{X: 2, Y: 2, Z: 1}, 3}} {
		if got := Margin(tc.dims); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.dims, got, tc.want)
		}
	}
}

// TestSnake is in the manner of Figure 6: walls that are open at alternate ends make a snake of the way, so that 21
// faults double the diameter of an 8x8 mesh and more; and the margin covers it.
func TestSnake(t *testing.T) {
	dims := grid.Dims{X: 8, Y: 8, Z: 1}
	cut := map[way]bool{}
	kill := func(x, y int, d grid.Direction) {
		rank := dims.Rank(grid.Coord{X: x, Y: y})
		c, _ := dims.Neighbour(grid.Coord{X: x, Y: y}, d)
		cut[way{rank, d}], cut[way{dims.Rank(c), d.Opposite()}] = true, true
	}
	for i := range 8 { // a mesh: the links around are no links
		kill(7, i, grid.XPlus)
		kill(i, 7, grid.YPlus)
	}
	alive := func(rank int, d grid.Direction) bool { return !cut[way{rank, d}] }
	if got := Diameter(dims, alive); got != 14 {
		t.Errorf("whole mesh: %d", got)
	}
	for _, row := range []int{1, 3, 5} { // walls that are open at alternate ends
		for x := range 7 {
			if row == 3 {
				kill(x+1, row, grid.YPlus)
			} else {
				kill(x, row, grid.YPlus)
			}
		}
	}
	if got := Diameter(dims, alive); got != 35 || got > Margin(dims) {
		t.Errorf("snake: %d, margin %d", got, Margin(dims))
	}
}

// Diameter agrees with a deliberately naive search, and its result for a large torus is a bound.
func TestDiameterAgreesWithNaiveSearch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(drawDims(t), rapid.Uint64().Draw(t, "seed"))
		w.cutAtRandom(rapid.Float64Range(0, 0.8).Draw(t, "dead"), rapid.Float64Range(0, 0.2).Draw(t, "one way"))
		want := 0
		for i := range w.nodes {
			for _, d := range w.distances(i) {
				want = max(want, d)
			}
		}
		if got := Diameter(w.dims, func(rank int, d grid.Direction) bool { return !w.dead[way{rank, d}] }); got != want {
			t.Fatalf("%d, want %d", got, want)
		}
	})
	all := func(int, grid.Direction) bool { return true }
	large := grid.Dims{X: 20, Y: 20, Z: 20}
	if got := Diameter(large, all); got < 30 || got > 60 {
		t.Errorf("%s: %d, want 30 to 60", large, got)
	}
}
