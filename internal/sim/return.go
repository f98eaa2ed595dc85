package sim

import (
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// A node leaves its place, and gets the same place again soon after, as when an operator removes a node and adds it again. The daemon looks
// for orders only once a second, so it may miss the first one. Then the halves run on, while the neighbours have begun their links to other
// nodes, and then to this node again.

// sendBack sends a node that has just left the order that takes its place away, and asks the leader to give the place back.
func (w *World) sendBack(n *node, m move) {
	if n.place.config.Spare {
		n.sendOrder(&lofamov1.PeerOrder{Node: string(n.id()), Number: w.moves.revision, Life: uint64(n.dnp.epoch)})
	}
	back := move{at: m.at, again: n, turn: n.place.turns, wait: w.between(10*time.Millisecond, time.Second)}
	w.after(m.returns, func() { w.giveBack(back, w.now.Add(relinkTime)) })
}

// giveBack asks for a place again, until a leader accepts the request, or until the given time.
func (w *World) giveBack(m move, until time.Time) {
	if err := w.requestMove(m); err != nil && w.now.Before(until) && m.again.place.turns == m.turn {
		w.after(orderEvery, func() { w.giveBack(m, until) })
	}
}

// returner returns the node that gets its place again. Halves that still run belong to its earlier life at this place.
func (w *World) returner(n *node) *node {
	w.moves.spares = slices.DeleteFunc(w.moves.spares, func(s *node) bool { return s == n })
	p := &place{placed: true, joins: true, turns: n.place.turns + 1, config: n.place.config, held: n.place.held}
	switch runs := n.host.running || n.dnp.running; {
	case runs && n.place.transfer.away: // at the place before this one
		p.transfer.away = true
	case runs:
		p.first = w.now
	}
	n.place = p
	return n
}

// withdrawn reports whether the newest order of a node took its place away.
func (n *node) withdrawn() bool {
	return n.place != nil && n.place.config.Spare && n.place.held.Number != 0 && !n.place.held.Placed
}

// NewReturnPlan makes a story of nodes that leave and return, with joins, moves and other faults beside them.
func NewReturnPlan(seed uint64) Plan {
	returns := (*author).ofReturn
	p := movingStory(seed, 9, movingShapes, (*author).act, (*author).ofMove, (*author).ofTransfer, returns, returns, returns, returns, returns)
	p.Ordered = true
	return p
}

// ofReturn has a node leave and return. In most cases a fault follows soon after.
func (g *author) ofReturn() []string {
	n := g.node()
	near := g.dims.Neighbours(n)
	by := near[g.rnd.IntN(len(near))]
	out := lines("return %s %s", n, g.returnTime())
	switch g.rnd.IntN(7) {
	case 0: // the leader ends
		return append(out, lines("run %s\nkill-supervisor leader\nrun %s\nstart-supervisor s0 s1 s2", g.ms(1, 2000), g.ms(10, 4000))...)
	case 1: // a neighbour dies
		return append(out, lines("run %s\nkill %s node", g.ms(10, 3000), by)...)
	case 2: // a part of the node dies
		return append(out, lines("run %s\nkill %s %s", g.ms(10, 5000), n, g.half())...)
	case 3: // a neighbour leaves and returns too
		return append(out, lines("run %s\nreturn %s %s", g.ms(10, 2000), by, g.returnTime())...)
	case 4: // it does so again
		return append(out, lines("run %s\nreturn %s %s", g.ms(500, 4000), n, g.returnTime())...)
	}
	return out
}

// returnTime is the time that a node is away: in most cases so short that its halves may run on.
func (g *author) returnTime() string {
	if g.rnd.IntN(4) == 0 {
		return g.ms(1500, 12000)
	}
	return g.ms(1, 1500)
}
