package chanmask

import (
	"slices"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Region is an obstacle: dead links that lie against one another.
type Region struct {
	Links []Link
	// Concave: it traps messages forever, among the nodes of Trap.
	Concave bool
	Trap    []grid.Coord
}

// Find returns the faulty regions of a torus, sorted by their first links, and the traps at them. Two dead links
// belong to one region when they share a node or lie side by side, as in a wall.
func (t *Torus) Find() ([]Region, Traps) {
	dead := t.Dead()
	at := make(map[Link]int, len(dead))
	parent := make([]int, len(dead))
	for i, l := range dead {
		at[l], parent[i] = i, i
	}
	root := func(i int) int {
		for parent[i] != i {
			i = parent[i]
		}
		return i
	}
	join := func(i int, l Link, ok bool) {
		if j, is := at[l]; ok && is {
			a, b := root(i), root(j)
			parent[max(a, b)] = min(a, b)
		}
	}
	for i, l := range dead {
		a, b := l.Ends(t.Dims)
		for _, d := range t.Dims.Links() {
			for _, end := range [...]grid.Coord{a, b} {
				n, ok := LinkAt(t.Dims, end, d)
				join(i, n, ok)
			}
			if d.Axis() != l.Dir.Axis() {
				beside, ok := t.Dims.Neighbour(a, d)
				join(i, Link{beside, l.Dir}, ok)
			}
		}
	}
	traps := t.Traps()
	var out []Region
	of := make(map[int]int)
	for i, l := range dead {
		r := root(i)
		if _, seen := of[r]; !seen {
			of[r] = len(out)
			out = append(out, Region{})
		}
		out[of[r]].Links = append(out[of[r]].Links, l)
	}
	for i := range out {
		out[i].Trap = t.trapAt(out[i].Links, traps)
		out[i].Concave = len(out[i].Trap) > 0
	}
	return out, traps
}

// trapAt returns those ends of links at which messages are caught, by rank.
func (t *Torus) trapAt(links []Link, traps Traps) []grid.Coord {
	var ranks []int
	for _, l := range links {
		a, b := l.Ends(t.Dims)
		for _, end := range [...]grid.Coord{a, b} {
			if r := t.Dims.Rank(end); traps.node[r] {
				ranks = append(ranks, r)
			}
		}
	}
	slices.Sort(ranks)
	var out []grid.Coord
	for _, r := range slices.Compact(ranks) {
		out = append(out, t.Dims.At(r))
	}
	return out
}

// Closing is the result of Close.
type Closing struct {
	Mask     []Link       // to be masked besides the dead links
	Isolated []grid.Coord // nodes that lost all their links; none unless isolate allowed it
	Left     Traps        // the traps that remain
}

// maxTried bounds the candidate links or nodes that Close tries for each one that it masks.
const maxTried = 48

// Close looks for links to mask so that no message is trapped. It masks one link at a time: the one that leaves the
// fewest trapped states. No masked link cuts nodes that reach one another: a pocket is divided into blind alleys, and
// No Routeback leads out of those. Only where that does not help and isolate allows it, Close gives up whole nodes,
// one at a time, as in Figure 16(b). It never gives up a node whose loss cuts others. Traps that neither removes are
// left.
//
// The local rule of planar adaptive routing, by which every node with dead channels in two dimensions closes (Figure
// 17(b)), gives up more than necessary: a convex corner traps no message (Figure 17(c)).
//
// For every candidate link Close searches the traps of all destinations. In a torus of MaxNodes with many faults this
// takes tenths of a second. Close calls stop between candidates and returns the result so far once stop returns true.
// A nil stop never does.
func (t *Torus) Close(isolate bool, stop func() bool) Closing {
	if stop == nil {
		stop = func() bool { return false }
	}
	now := t.Clone()
	c := Closing{Left: now.Traps()}
	for c.Left.States > 0 && !stop() {
		if l, left, ok := now.bestLink(c.Left, stop); ok {
			now.Cut(l)
			c.Mask, c.Left = append(c.Mask, l), left
			continue
		}
		n, left, ok := now.bestNode(c.Left, stop)
		if !isolate || !ok {
			break
		}
		for _, d := range now.Open(n).directions() {
			l, _ := LinkAt(t.Dims, n, d)
			c.Mask = append(c.Mask, l)
		}
		now.Kill(n)
		c.Isolated, c.Left = append(c.Isolated, n), left
	}
	return c
}

// directions are the channels that are usable.
func (m Mask) directions() []grid.Direction {
	var out []grid.Direction
	for _, d := range grid.Directions() {
		if m.Usable(d) {
			out = append(out, d)
		}
	}
	return out
}

// bestLink returns the link, among those at which messages turn round, whose removal leaves the fewest trapped
// states. ok is false if no link improves on the present state without cutting a node off.
func (t *Torus) bestLink(traps Traps, stop func() bool) (best Link, left Traps, ok bool) {
	left, tried := traps, 0
	for _, n := range traps.Nodes(t.Dims) {
		for _, d := range t.Open(n).directions() {
			l, _ := LinkAt(t.Dims, n, d)
			if a, b := l.Ends(t.Dims); traps.node[t.Dims.Rank(a)] && traps.node[t.Dims.Rank(b)] && l.Node != n || tried == maxTried || stop() {
				continue // it was tried from its other end
			}
			if _, _, cuts := t.Cuts(l); cuts {
				continue
			}
			tried++
			without := t.Clone()
			without.Cut(l)
			if is := without.traps(left.States); is.States < left.States {
				best, left, ok = l, is, true
			}
		}
	}
	return best, left, ok
}

// bestNode is bestLink for whole nodes: those among which messages turn round, and their destinations.
func (t *Torus) bestNode(traps Traps, stop func() bool) (best grid.Coord, left Traps, ok bool) {
	left = traps
	for i, n := range append(traps.Nodes(t.Dims), traps.For...) {
		if i == maxTried || stop() {
			break
		}
		without := t.Clone()
		without.Kill(n)
		if t.splits(without, n) {
			continue
		}
		if is := without.traps(left.States); is.States < left.States {
			best, left, ok = n, is, true
		}
	}
	return best, left, ok
}

// splits reports whether the loss of a node cuts off other nodes that it connected.
func (t *Torus) splits(without *Torus, n grid.Coord) bool {
	was, is := t.Components(), without.Components()
	mine, first := was[t.Dims.Rank(n)], -1
	for rank := range was {
		switch {
		case was[rank] != mine || rank == t.Dims.Rank(n):
		case first < 0:
			first = rank
		case is[rank] != is[first]:
			return true
		}
	}
	return false
}
