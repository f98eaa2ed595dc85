package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// leads returns the time since both ends of a link have led to one another.
func (n *node) leads(d grid.Direction) time.Duration {
	if n.place == nil {
		return n.w.now.Sub(began) + settling
	}
	return n.w.now.Sub(fault.Later(n.led[d.Index()], n.ends[d.Index()].led[d.Opposite().Index()]))
}

// movedSince reports whether the committed topology has changed the peer of an end within a time.
func (n *node) movedSince(d grid.Direction, within time.Duration) bool {
	return n.place != nil && !n.place.moved[d.Index()].IsZero() && n.w.now.Sub(n.place.moved[d.Index()]) < within
}

// judged reports whether supervisors find the death of a node within the usual bound: a joiner has had the time to send
// frames on all its links.
func (w *World) judged(n *node) bool {
	switch {
	case n.place == nil:
		return true
	case n.place.joins:
		return !n.place.transfer.since.IsZero() && w.now.Sub(n.place.transfer.since) > moveTime+relinkTime
	}
	return w.now.Sub(n.place.first) > relinkTime
}

// observes reports whether a neighbour of a dead node has had the time to accuse it. A half accuses a link that has been
// silent since its start once the link's grace period is over. The link need not have worked before, and the dead node
// need not have followed its order. The grace period begins again if the half restarted, or its link end was redirected
// to the dead node, after the death.
func (w *World) observes(n, o *node, nb neighbourOf) bool {
	if w.inGrace(n, o) {
		return false
	}
	if n.place == nil {
		return true
	}
	if !w.judged(n) || !w.judged(o) {
		return false
	}
	return slices.ContainsFunc(nb.Dirs, func(d grid.Direction) bool {
		i, back := d.Index(), d.Opposite().Index()
		moved := fault.Later(n.place.moved[i], o.place.moved[back])
		return o.ends[back] == n && w.now.Sub(fault.Later(moved, o.led[back])) > relinkTime
	})
}

// inGrace reports whether the neighbour o still waits before it accuses the dead node n. It does so if its DNP half started after n's DNP
// half died, or too shortly before for the link to have worked. A paused neighbour begins no grace period when it goes on.
func (w *World) inGrace(n, o *node) bool {
	grace := w.linkGrace()
	if o.place != nil && o.place.config.Spare {
		grace = relinkTime
	}
	return o.dnp.born.Add(halfReady).After(n.dnp.lived) && w.now.Sub(o.dnp.born) <= grace
}

// graceAround reports whether any living neighbour of the block around n is still in its grace period. The block is the connected set of
// nodes that the leader cannot hear. The leader judges it as a whole when all its living neighbours accuse it. Neighbours of FAILED members
// do not matter.
func (w *World) graceAround(n *node) bool {
	seen := map[*node]bool{n: true}
	for todo := []*node{n}; len(todo) > 0; todo = todo[1:] {
		at := todo[0]
		found := w.store.picture(at.id()).state[fault.ComponentNode] == fault.Failed
		for _, nb := range at.topo.Neighbours {
			o := w.find(nb.ID)
			switch {
			case w.truth.perhaps[o.rank]:
				if !found && o.dnp.up() && w.inGrace(at, o) {
					return true
				}
			case !seen[o]:
				seen[o] = true
				todo = append(todo, o)
			}
		}
	}
	return false
}

// settled reports whether silence on a link counts: it has led to its peer for the usual time, at both ends and for the
// leader, and none of its nodes has just joined. A spare's half also waits for that time when it starts.
func (w *World) settled(n *node, d grid.Direction) bool {
	if n.place == nil {
		return true
	}
	i, back := d.Index(), d.Opposite().Index()
	p := n.ends[i]
	if p == nil || p.ends[back] != n {
		return false
	}
	last := fault.Later(n.place.moved[i], p.place.moved[back])
	for _, x := range []*node{n, p} {
		if !w.judged(x) {
			return false
		}
		if x.place.config.Spare {
			last = fault.Later(last, x.dnp.started)
		}
	}
	return w.now.Sub(last) > relinkTime && n.leads(d) > relinkTime
}

// leaderBegins notes the start of a leader. Links that still wait begin their time again. Time without a leader does not count.
func (w *World) leaderBegins() {
	if w.moves == nil {
		return
	}
	for _, n := range w.nodes {
		for i := range n.place.moved {
			if w.moves.ruled.Sub(n.place.moved[i]) < relinkTime {
				n.place.moved[i] = w.now
			}
		}
		if n.place.transfer.moves(w.moves.ruled) {
			n.place.transfer.since = w.now
		}
		if !n.place.first.IsZero() && w.moves.ruled.Sub(n.place.first) < relinkTime {
			n.place.first = w.now
		}
	}
}

// watchCables notes the cables that are not sound.
func (w *World) watchCables() {
	for _, n := range w.nodes {
		for i := range n.links {
			if !n.links[i].sound() {
				n.links[i].bad = w.now
			}
		}
	}
}

// watchMoves notes the joiners that a leader has heard, and the latest time with a leader.
func (w *World) watchMoves() {
	if w.moves == nil {
		return
	}
	if w.leading() != nil {
		w.moves.ruled = w.now
	}
	for _, n := range w.nodes {
		if s := w.store.picture(n.id()).state[fault.ComponentNode]; n.place.joins && s != fault.Unknown {
			n.place.joins = false
		}
	}
}

// broken reports whether a part of the node does not work: its service network, a part that a sensor measures, or one half while the other
// runs.
func (n *node) broken(part fault.Component) bool {
	switch part {
	case fault.ComponentServiceNetwork:
		return n.service.gone() || n.service.deaf || n.service.mute || n.service.lose > 0 || n.service.corrupt > 0
	case fault.ComponentHost, fault.ComponentDNP:
		return n.host.up() != n.dnp.up() && n.host.up() == (part == fault.ComponentDNP)
	default:
		return n.sensors[part].state == fault.Failed
	}
}

// unheard reports whether a leader still waits for the first report of a node that joins.
func (w *World) unheard(t *term, n *node) bool {
	overdue := !n.place.transfer.since.IsZero() && !n.place.transfer.moves(w.now)
	return n.place.joins && (n.place.first.IsZero() || !t.witness.heard[n.id()]) && !overdue
}

// wronglyMoved returns the error in a change about a node that joins or leaves, or about a link that leads to another node. A node without
// a place has no faults. Before the first report of a joiner, neither the joiner nor a link to it is FAILED, unless the part is broken,
// because neighbours may report a broken part. For some time after a link was redirected, silence on it is no fault of the link.
func (w *World) wronglyMoved(t *term, n *node, c awareness.Change) string {
	switch {
	case n.place == nil || c.From == c.To:
		return ""
	case !n.place.placed:
		return "it has left, and the map changes"
	case c.To != fault.Failed:
		return ""
	}
	d, link := c.Component.LinkDirection()
	if w.unheard(t, n) && (!link || !ofPeer(c.Cause)) && !n.broken(c.Component) {
		return "it joins, has not reported yet, and is called FAILED"
	}
	if !link || !slices.Contains(n.topo.Links, d) {
		return ""
	}
	p := w.nodes[w.peerRank(n, d)]
	if w.unheard(t, p) && (c.Cause != fault.CauseDNP || !p.broken(fault.ComponentDNP)) {
		return fmt.Sprintf("it leads to %s, which joins and has not reported yet", p.id())
	}
	moved := fault.Later(n.place.moved[d.Index()], p.place.moved[d.Opposite().Index()])
	if moved.IsZero() || ofPeer(c.Cause) || w.now.Sub(moved) > awareness.DefaultRelinkBound {
		return ""
	}
	// A half that died after the change explains the fault, also if it lived again when the leader began.
	led := fault.Later(n.place.led[d.Index()], p.place.led[d.Opposite().Index()])
	lives := func(n *node) bool {
		return n.dnp.up() && !n.liar && (!n.dnp.started.After(led) || n.dnp.started.Equal(n.place.first))
	}
	if lives(n) && lives(p) && soundSince(n, p, d, led) {
		return fmt.Sprintf("it leads to %s since %s, both live, and the cable is sound", p.id(), w.now.Sub(moved))
	}
	return ""
}

// moves drops the history of the links of a node that lead elsewhere.
func (x *witness) moves(n *node) {
	for _, d := range grid.Directions() {
		if n.place.moved[d.Index()] != n.w.now {
			continue
		}
		delete(x.moved, part{n.id(), fault.Link(d)})
		delete(x.causes, part{n.id(), fault.Link(d)})
	}
}

// followed returns "" if all nodes hold the committed torus and all links work, as they must some time after the last join
// or leave. Otherwise it returns the difference.
func (w *World) followed() string {
	if w.moves == nil {
		return ""
	}
	for _, n := range w.nodes {
		if n.dnpCore.Torus() != w.cfg.Dims {
			return fmt.Sprintf("%s holds the torus %s: want %s", n.id(), n.dnpCore.Torus(), w.cfg.Dims)
		}
		p := w.store.picture(n.id())
		for _, d := range n.topo.Links {
			if to := w.nodes[w.peerRank(n, d)]; n.neighbour(d) != to || p.state[fault.Link(d)] != fault.Normal {
				return fmt.Sprintf("link %s of %s is %s: want it NORMAL, and to lead to %s", d, n.id(), p.state[fault.Link(d)], to.id())
			}
		}
	}
	for _, in := range slices.Sorted(maps.Keys(w.store.pictures)) {
		if n := w.ids[in]; !n.isPlaced() {
			return fmt.Sprintf("the store has a map of %s, which has left", in)
		}
	}
	return ""
}
