package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// movingShapes are the tori in which stories of joins and leaves begin.
var movingShapes = []string{
	"2x1x1", "3x1x1", "5x1x1", "2x2x1", "3x2x1", "3x3x1 without 1,1,0", "4x2x1 without 3,1,0", "2x2x2", "2x2x2 without 1,1,1", "3x2x2",
	"3x3x2 without 2,2,0..2,2,1", "3x3x3 without 1,1,1",
}

// Sizes that a story does not go beyond by joins.
const (
	maxSide  = 4
	maxNodes = 64
)

// parseShape parses one of the shapes above.
func parseShape(text string) grid.Dims {
	dims, err := grid.ParseDims(text)
	if err != nil {
		panic("sim: " + err.Error())
	}
	return dims
}

// NewMovingPlan makes a story of joins and leaves beside other faults.
func NewMovingPlan(seed uint64) Plan {
	return movingStory(seed, 4, movingShapes, (*author).act, (*author).ofMove, (*author).ofMove)
}

// movingStory makes a story of a torus that changes. Each of its acts is one of the given ones, with equal probability. stream and the
// next number name its random streams. No node lies in such a story: a leave may make the liars around a node a quorum.
func movingStory(seed, stream uint64, shapes []string, acts ...func(*author) []string) Plan {
	rnd := rand.New(rand.NewPCG(seed, stream))
	g := author{rnd: rand.New(rand.NewPCG(seed, stream+1)), theme: theme(rnd.IntN(int(numThemes))), times: 2, honest: true}
	p := g.plan(seed, parseShape(shapes[rnd.IntN(len(shapes))]))
	p.Moves, p.Acts = true, nil
	for n := 20 + rnd.IntN(25); len(p.Acts) < n; {
		p.Acts = append(p.Acts, acts[rnd.IntN(len(acts))](&g)...)
		p.Acts = append(p.Acts, g.pause())
	}
	return p
}

// ofMove is one join or leave, with another fault close to it, or several in a row.
func (g *author) ofMove() []string {
	switch g.rnd.IntN(8) {
	case 0, 1, 2:
		return g.join()
	case 3:
		return g.leave()
	case 4: // a dead node leaves
		n := g.node()
		return append(lines("kill %s node\nrun %s", n, g.ms(10, 6000)), g.leaveOf(n)...)
	case 5: // a neighbour of the place dies before its links have settled
		n := g.node()
		near := g.dims.Neighbours(n)
		return append(g.leaveOf(n), lines("run %s\nkill %s node", g.ms(10, 3000), near[g.rnd.IntN(len(near))])...)
	case 6:
		out := g.join()
		return append(out, lines("run %s\nkill %s %s", g.ms(10, 20000), g.node(), g.half())...)
	}
	var out []string
	for range 2 + g.rnd.IntN(5) { // at up to 10 a second
		if g.rnd.IntN(2) == 0 {
			out = append(out, g.join()...)
		} else {
			out = append(out, g.leave()...)
		}
		out = append(out, "run "+g.ms(100, 500))
	}
	return out
}

// join invents a joiner: it starts soon, after its neighbours have waited in vain, or not before all is mended.
func (g *author) join() []string {
	return g.joinAt([]string{g.ms(10, 1000), g.ms(10, 1000), g.ms(1000, 6000), g.ms(14000, 20000), "never"}[g.rnd.IntN(5)])
}

// joinAt invents a joiner that starts after a time.
func (g *author) joinAt(wait string) []string {
	places := slices.DeleteFunc(slices.Concat(g.dims.Empty(), beside(g.dims)), func(c grid.Coord) bool {
		dims, err := g.dims.Filled(c)
		return err != nil || dims.CheckConnected() != nil || dims.Nodes() > maxNodes || max(dims.X, dims.Y, dims.Z) > maxSide
	})
	if len(places) == 0 {
		return g.leave()
	}
	at := places[g.rnd.IntN(len(places))]
	g.dims, _ = g.dims.Filled(at)
	out := fmt.Sprintf("join %s %s", at, wait)
	if g.rnd.IntN(2) == 0 {
		out += " back"
	}
	return []string{out}
}

// beside lists the first places of the planes by which a torus can grow, each beside a node of it.
func beside(d grid.Dims) (out []grid.Coord) {
	for c := range d.All() {
		for axis := range 3 {
			at := c
			*[3]*int{&at.X, &at.Y, &at.Z}[axis] = [3]int{d.X, d.Y, d.Z}[axis]
			if !slices.Contains(out, at) {
				out = append(out, at)
			}
		}
	}
	return out
}

func (g *author) leave() []string { return g.leaveOf(g.node()) }

func (g *author) leaveOf(n grid.Coord) []string {
	dims, err := g.dims.Without(n)
	if err != nil || dims.Nodes() < 2 || dims.CheckConnected() != nil {
		return nil
	}
	g.dims = dims
	return lines("leave %s", n)
}

// NewMovingCampaign makes one long story: so many joins and leaves in a torus of some 60 nodes, at up to 10 a second, with
// kills, cuts, losses, restarts and changes of the leader between them.
func NewMovingCampaign(seed uint64, moves int) Plan {
	g := author{rnd: rand.New(rand.NewPCG(seed, 6)), times: 1, honest: true}
	p := g.plan(seed, parseShape("4x4x4 without 1,1,1 3,2,0 0,3,2 2,0,3"))
	p.Moves, p.Acts = true, nil
	for range moves {
		change := g.leave
		if g.rnd.IntN(2) == 0 && g.dims.Nodes() < 60 || g.dims.Nodes() < 50 {
			change = func() []string { return g.joinAt(g.ms(10, 3000)) }
		}
		p.Acts = append(p.Acts, change()...)
		switch g.rnd.IntN(12) {
		case 0:
			p.Acts = append(p.Acts, g.act()...)
		case 1: // dead nodes come back, or the torus would be full of them
			for c := range g.dims.All() {
				if g.rnd.IntN(4) == 0 {
					p.Acts = append(p.Acts, lines("continue %s node\nstart %s node", c, c)...)
				}
			}
		}
		p.Acts = append(p.Acts, "run "+g.ms(100, 600))
	}
	return p
}

// transferShapes are the tori in which stories of moves begin.
var transferShapes = []string{
	"3x3x1 without 1,1,0", "4x2x1 without 3,1,0", "2x2x2 without 1,1,1", "3x2x2 without 2,1,1", "3x3x2 without 2,2,0..2,2,1",
	"3x3x3 without 1,1,1", "3x3x3 without 0,0,0 1,1,1 2,2,2",
}

// NewTransferPlan makes a story of moves to other places, with joins, leaves and other faults beside them.
func NewTransferPlan(seed uint64) Plan {
	transfer := (*author).ofTransfer
	return movingStory(seed, 7, transferShapes, (*author).act, (*author).ofMove, transfer, transfer, transfer, transfer)
}

// ofTransfer is one move to another place, in most cases with a fault close to it.
func (g *author) ofTransfer() []string {
	empty := g.dims.Empty()
	if len(empty) == 0 {
		return g.leave()
	}
	n, to := g.node(), empty[g.rnd.IntN(len(empty))]
	dims, err := g.dims.Filled(to)
	if err == nil {
		dims, err = dims.Without(n)
	}
	if err != nil || dims.CheckConnected() != nil {
		return g.join()
	}
	g.dims = dims
	out := append(lines("move %s %s", n, to), "run "+g.ms(10, 3000))
	switch g.rnd.IntN(6) {
	case 0, 1: // the leader ends, also before it has stored the map
		out[1] = "run " + g.ms(1, 300)
		return append(out, lines("kill-supervisor %s\nrun %s\nstart-supervisor s0 s1 s2", g.supervisor(), g.ms(10, 4000))...)
	case 2: // the node dies on its way
		return append(out, lines("kill %s %s", to, g.half())...)
	case 3:
		return append(out, lines("kill %s node", to)...)
	case 4: // a neighbour dies before its links have settled
		near := g.dims.Neighbours(to)
		return append(out, lines("kill %s node", near[g.rnd.IntN(len(near))])...)
	}
	return out
}
