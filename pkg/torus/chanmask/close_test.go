package chanmask

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// newTorus fails the test for dims that are none.
func newTorus(t *testing.T, dims string) *Torus {
	t.Helper()
	d, err := grid.ParseDims(dims)
	if err != nil {
		t.Fatal(err)
	}
	torus, err := NewTorus(d)
	if err != nil {
		t.Fatal(err)
	}
	return torus
}

// pocket cuts a pocket of a width, which is open upwards, into a plane: its bottom at row y, its walls as high as
// depth.
func pocket(torus *Torus, x, y, width, depth int) {
	for i := range width {
		torus.Cut(Link{grid.Coord{X: x + i, Y: y - 1}, grid.YPlus})
	}
	for j := range depth {
		torus.Cut(Link{grid.Coord{X: x - 1, Y: y + j}, grid.XPlus})
		torus.Cut(Link{grid.Coord{X: x + width - 1, Y: y + j}, grid.XPlus})
	}
}

// wall cuts the links between two rows.
func wall(torus *Torus, x, y, width int) {
	for i := range width {
		torus.Cut(Link{grid.Coord{X: x + i, Y: y - 1}, grid.YPlus})
	}
}

// The shapes of Figures 14 to 17.
func TestFigureShapesAreClosed(t *testing.T) {
	for _, c := range []struct {
		name    string
		dims    string
		make    func(*Torus)
		regions int
		concave int
	}{
		{"whole", "8x8", func(*Torus) {}, 0, 0},
		{"one link", "8x8", func(torus *Torus) { wall(torus, 3, 4, 1) }, 1, 0},
		{"linear obstacle (Figure 14)", "8x8", func(torus *Torus) { wall(torus, 2, 4, 2) }, 1, 0},
		{"longer (Figure 15)", "8x8", func(torus *Torus) { wall(torus, 2, 4, 3) }, 1, 0},
		{"dead node: convex", "8x8", func(torus *Torus) { torus.Kill(grid.Coord{X: 3, Y: 3}) }, 1, 0},
		{"four dead nodes: convex", "8x8", func(torus *Torus) {
			for i := range 4 {
				torus.Kill(grid.Coord{X: 3 + i%2, Y: 3 + i/2})
			}
		}, 1, 0},
		{"blind alley", "8x8", func(torus *Torus) { pocket(torus, 3, 4, 1, 2) }, 1, 0},
		{"pocket (Figure 16)", "8x8", func(torus *Torus) { pocket(torus, 3, 4, 2, 2) }, 1, 1},
		{"pocket and wall", "12x12", func(torus *Torus) { pocket(torus, 3, 4, 2, 2); wall(torus, 8, 9, 2) }, 2, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			torus := newTorus(t, c.dims)
			c.make(torus)
			regions, traps := torus.Find()
			concave := 0
			for _, r := range regions {
				if r.Concave {
					concave++
				}
			}
			if len(regions) != c.regions || concave != c.concave {
				t.Errorf("%d regions, %d concave: want %d, %d; messages turn round among %v", len(regions), concave, c.regions, c.concave,
					traps.Nodes(torus.Dims))
			}
			if (traps.States > 0) != (c.concave > 0) {
				t.Errorf("%d states are caught", traps.States)
			}
			checkClosing(t, torus, false)
		})
	}
}

// The pocket of Figure 16 is closed without giving up a node, and with fewer links than the local rule of planar
// adaptive routing needs: that rule isolates the two corners.
func TestPocketIsClosed(t *testing.T) {
	torus := newTorus(t, "8x8")
	pocket(torus, 3, 4, 2, 2)
	c := torus.Close(false, nil)
	if c.Left.States != 0 || len(c.Isolated) != 0 || len(c.Mask) == 0 || len(c.Mask) > 2 {
		t.Errorf("masks %v, isolates %v, %d states are still caught", c.Mask, c.Isolated, c.Left.States)
	}
}

// Close stops once its caller no longer waits.
func TestCloseStopsWithItsCaller(t *testing.T) {
	torus := newTorus(t, "8x8")
	pocket(torus, 3, 4, 2, 2)
	for asked := range 2 {
		left := asked
		c := torus.Close(false, func() bool { left--; return left < 0 })
		if len(c.Mask) > 0 || c.Left.States == 0 {
			t.Errorf("stopped when it was asked for the %d. time: masks %v, %d states are left", asked+1, c.Mask, c.Left.States)
		}
	}
}

// checkClosing closes a torus and holds it to its word.
func checkClosing(t *testing.T, torus *Torus, isolate bool) Closing {
	t.Helper()
	c := torus.Close(isolate, nil)
	after := torus.Clone()
	for _, l := range c.Mask {
		if slices.Contains(torus.Dead(), l) {
			t.Errorf("link %s is masked, and dead already", l)
		}
		after.Cut(l)
	}
	for _, n := range c.Isolated {
		after.Kill(n)
	}
	if got := after.Traps().States; got != c.Left.States {
		t.Errorf("closed: %d states are caught: it said %d", got, c.Left.States)
	}
	if before := torus.Traps().States; c.Left.States > before {
		t.Errorf("closing made it worse: %d states, then %d", before, c.Left.States)
	}
	if !isolate && len(c.Isolated) > 0 {
		t.Errorf("isolated %v, unasked", c.Isolated)
	}
	// Nodes that reached one another still do, except for those that were given up.
	for from := range torus.Dims.Nodes() {
		at := torus.Dims.At(from)
		if slices.Contains(c.Isolated, at) {
			continue
		}
		now := naiveReach(after, at)
		for to := range naiveReach(torus, at) {
			if !slices.Contains(c.Isolated, to) && !now[to] {
				t.Fatalf("closing cut %s from %s", at, to)
			}
		}
	}
	return c
}

// randomPockets has a pocket or two, of two or three nodes' width, and some dead links.
func randomPockets(t *testing.T, rng *rand.Rand, dims string) *Torus {
	torus := newTorus(t, dims)
	for range 1 + rng.IntN(2) {
		at := torus.Dims.At(rng.IntN(torus.Dims.Nodes()))
		width, depth := 2+rng.IntN(2), 1+rng.IntN(2)
		for i := range width {
			torus.Cut(linkAt(torus, grid.Coord{X: at.X + i, Y: at.Y, Z: at.Z}, grid.YMinus))
		}
		for j := range depth {
			torus.Cut(linkAt(torus, grid.Coord{X: at.X, Y: at.Y + j, Z: at.Z}, grid.XMinus))
			torus.Cut(linkAt(torus, grid.Coord{X: at.X + width - 1, Y: at.Y + j, Z: at.Z}, grid.XPlus))
		}
	}
	for range rng.IntN(3) {
		torus.Cut(linkAt(torus, torus.Dims.At(rng.IntN(torus.Dims.Nodes())), grid.XPlus))
	}
	return torus
}

// linkAt names a link by an end that may lie beyond the edge.
func linkAt(torus *Torus, c grid.Coord, d grid.Direction) Link {
	l, _ := LinkAt(torus.Dims, grid.Coord{X: c.X % torus.Dims.X, Y: c.Y % torus.Dims.Y, Z: c.Z % torus.Dims.Z}, d)
	return l
}

// randomTorus has some dead links, and perhaps a dead node.
func randomTorus(t *testing.T, rng *rand.Rand, dims string) *Torus {
	torus := newTorus(t, dims)
	for range rng.IntN(torus.Dims.Nodes()/3 + 2) {
		at := torus.Dims.Node(rng.IntN(torus.Dims.Nodes()))
		links := torus.Dims.Links()
		if l, ok := LinkAt(torus.Dims, at, links[rng.IntN(len(links))]); ok {
			torus.Cut(l)
		}
	}
	if rng.IntN(3) == 0 {
		torus.Kill(torus.Dims.Node(rng.IntN(torus.Dims.Nodes())))
	}
	return torus
}

// emptied stands for a small torus with random empty places.
const emptied = "random"

func randomlyEmpty(rng *rand.Rand, dims string) string {
	if dims != emptied {
		return dims
	}
	dims = "5x4 without 0,0"
	for rank := 1; rank < 19; rank++ {
		if rng.IntN(3) == 0 {
			dims += fmt.Sprintf(" %d,%d", rank%5, rank/5)
		}
	}
	return dims
}

// Traps agree with the naive implementation, on tori of all shapes.
func TestTrapsAgree(t *testing.T) {
	trapped := 0
	single := 0 // traps at a node that is alone on a line
	for _, dims := range []string{"4x4", "5x3", "6", "2x5", "3x3x2", "6x5", "5x4 without 1,1 3,2..4,2", "3x3x2 without 1,1,0 2,0,1", emptied} {
		seeds := uint64(12)
		if dims == emptied {
			seeds = 150
		}
		for seed := range seeds {
			rng := rand.New(rand.NewPCG(seed, 1))
			torus := randomTorus(t, rng, randomlyEmpty(rng, dims))
			if seed%2 == 0 && dims != emptied && torus.Dims.Y > 1 && torus.Dims == torus.Dims.Box() {
				torus = randomPockets(t, rng, dims)
			}
			states, nodes := naiveTraps(torus)
			traps := torus.Traps()
			if traps.States != states {
				t.Errorf("%s, seed %d: %d states are caught: naively %d", dims, seed, traps.States, states)
			}
			for rank := range torus.Dims.Places() {
				at := torus.Dims.At(rank)
				if traps.node[rank] && len(torus.Dims.LinksOf(at)) < len(torus.Dims.Links()) {
					single++
				}
				if traps.node[rank] != nodes[at] {
					t.Errorf("%s, seed %d: node %s: messages turn round %t, naively %t", dims, seed, at, traps.node[rank], nodes[at])
				}
			}
			if states > 0 {
				trapped++
			}
		}
	}
	if trapped < 5 || single == 0 {
		t.Errorf("%d tori with traps, %d nodes alone on a line in traps: the test shows little", trapped, single)
	}
}

// Closing cuts no node off and traps no more messages. Where no message is trapped, a random walk arrives.
func TestClosingCutsNoNodeOff(t *testing.T) {
	closed, left := 0, 0
	for _, dims := range []string{"7x7", "6x5", "5x5x2"} {
		for seed := range uint64(20) {
			rng := rand.New(rand.NewPCG(seed, 2))
			torus := randomPockets(t, rng, dims)
			if torus.Traps().States == 0 {
				continue
			}
			c := checkClosing(t, torus, false)
			if c.Left.States > 0 {
				left++
				c = checkClosing(t, torus, true)
			}
			if c.Left.States == 0 {
				closed++
				walkAll(t, rng, torus, c)
			}
		}
	}
	t.Logf("%d tori closed; in %d masking links alone was not enough", closed, left)
	if closed < 5 {
		t.Error("the test shows little")
	}
}

// walkAll sends a message from each node to each other one that it has a way to.
func walkAll(t *testing.T, rng *rand.Rand, torus *Torus, c Closing) {
	t.Helper()
	after := torus.Clone()
	for _, l := range c.Mask {
		after.Cut(l)
	}
	for from := range after.Dims.Nodes() {
		reach := naiveReach(after, after.Dims.At(from))
		for to := range reach {
			s := naiveState{at: after.Dims.At(from)}
			for hops := 0; s.at != to; hops++ {
				if hops == 100_000 {
					t.Fatalf("a message from %s to %s walks for ever", after.Dims.At(from), to)
				}
				next := naiveNext(after, s, to)
				s = next[rng.IntN(len(next))]
			}
		}
	}
}

func TestCuts(t *testing.T) {
	torus := newTorus(t, "4")
	link := func(x int) Link { return Link{grid.Coord{X: x}, grid.XPlus} }
	if _, _, cuts := torus.Cuts(link(1)); cuts {
		t.Error("a ring was cut by one link")
	}
	if a, b, cuts := torus.Cuts(link(1), link(3)); !cuts || a == b {
		t.Errorf("a ring without two links: cut %t, %s from %s", cuts, a, b)
	}
	torus.Cut(link(3))
	if _, _, cuts := torus.Cuts(link(1)); !cuts {
		t.Error("a line was not cut")
	}
}

func TestTooLarge(t *testing.T) {
	if err := CheckSize(grid.Dims{X: 17, Y: 16, Z: 16}); err == nil {
		t.Error("more nodes than are looked at in a sensible time")
	}
	if err := CheckSize(grid.Dims{X: 16, Y: 16, Z: 16}); err != nil {
		t.Error(err)
	}
	if _, err := NewTorus(grid.Dims{X: 0, Y: 1, Z: 1}); err == nil {
		t.Error("a torus without nodes")
	}
}
