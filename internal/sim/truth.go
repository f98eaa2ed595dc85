package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/topo"
)

type neighbourOf = topo.Neighbour

const (
	// watchEvery is how often it is looked at whether what is broken is known.
	watchEvery = 20 * time.Millisecond
	// settling is how long what has just been mended may still pass for broken: paths come back one by one.
	settling = time.Second
	// calm is how long nothing must have happened for the printed bounds to hold as they are.
	calm = 5 * time.Second
)

// truth is what is really so, and since when: what the map must say sooner or later.
type truth struct {
	w      *World
	mended time.Time // when something last became better
	hurt   time.Time // when something last became worse
	debts  []*debt
	mute   []time.Time // by rank: since when no word of a node can have reached a leader; zero: one can

	// Of the moment: whose word reaches the leader, and whose might perhaps.
	dnpWay, hostWay, perhaps []bool
}

// debt is a fault that the map does not show yet.
type debt struct {
	what  string
	lasts func() bool          // it is still so
	known func(p picture) bool // the map says so
	node  *node
	// bound is how long it may take from when there is a way to tell; 0: nobody can tell now.
	bound func() time.Duration

	since time.Time
	good  time.Time // since when there is a way; zero: there is none
	// calm says that the fault came alone: then there is no time for rails to be changed in the bound.
	calm bool
}

func newTruth(w *World) truth {
	return truth{w: w, mute: make([]time.Time, len(w.nodes)), dnpWay: make([]bool, len(w.nodes)), hostWay: make([]bool, len(w.nodes)),
		perhaps: make([]bool, len(w.nodes))}
}

// escalation is what a bound must allow when a fault does not come alone: the service network is found
// dead, and every rail is tried with its back-off.
func (w *World) escalation() time.Duration {
	p := w.cfg.Periods
	return p.DigestPeriod*12/5 + 2*time.Second + p.DigestPeriod + 3*w.store.slow
}

// happens notes that something is done to the world; worse: or undone.
func (w *World) happens(worse bool) {
	if worse {
		w.truth.hurt = w.now
	} else {
		w.truth.mended = w.now
	}
	for _, d := range w.truth.debts {
		if d.since != w.now {
			d.calm = false
		}
	}
}

// undisturbed says whether nothing has happened for so long that the next fault comes alone.
func (w *World) undisturbed() bool {
	l := w.leading()
	return l != nil && w.now.Sub(l.term.started) > calm && w.now.Sub(w.truth.hurt) > calm && w.now.Sub(w.truth.mended) > calm &&
		w.store.slow == 0 && w.soundNetwork()
}

// soundNetwork says whether no datagram and no frame is lost anywhere.
func (w *World) soundNetwork() bool {
	for _, n := range w.nodes {
		if !n.service.sure() || n.liar {
			return false
		}
		for _, d := range n.topo.Links {
			if !n.links[d.Index()].sound() {
				return false
			}
		}
	}
	return !w.supervisorCut
}

// owe begins to wait for the map to show a fault.
func (w *World) owe(d *debt, alone bool) {
	d.since, d.calm = w.now, alone
	w.truth.debts = append(w.truth.debts, d)
}

// oweProcess is for a half that has died or stopped.
func (w *World) oweProcess(n *node, h fault.Half, alone bool) {
	p, other := n.process(h), n.process(h.Other())
	life, c := p.life, fault.ComponentHost
	if h == fault.HalfDNP {
		c = fault.ComponentDNP
	}
	gone := func() bool { return p.life == life && !p.up() }
	w.owe(&debt{
		what: fmt.Sprintf("the death of %s/%s", n.id(), h), node: n,
		lasts: gone,
		known: func(pic picture) bool {
			return pic.state[c] == fault.Failed || pic.state[fault.ComponentNode] == fault.Failed
		},
		bound: func() time.Duration {
			if !other.up() {
				return w.nodeBound(n)
			}
			way := w.truth.hostWay
			if h == fault.HalfHost {
				way = w.truth.dnpWay
			}
			if !way[n.rank] || !other.ready() {
				return 0
			}
			return w.cfg.Periods.HalfBound()
		},
	}, alone)
}

// nodeBound is the bound for a dead node: by how many of its neighbours can bear witness.
func (w *World) nodeBound(n *node) time.Duration {
	heard := 0
	for _, nb := range n.topo.Neighbours {
		o := w.find(nb.ID)
		heard += count(!o.liar && o.dnp.ready() && (w.truth.dnpWay[o.rank] || w.truth.hostWay[o.rank]))
	}
	switch {
	case heard >= awareness.Quorum(len(n.topo.Neighbours)):
		return w.cfg.Periods.NodeBound()
	case heard > 0:
		// Those who cannot be heard any more count as living until their word is old.
		return w.cfg.Periods.SingleBound() + w.window()
	}
	return 0
}

func (w *World) window() time.Duration {
	return time.Duration(w.cfg.Periods.DigestMisses) * w.cfg.Periods.DigestPeriod
}

// oweLink is for what n sends in direction d and does not arrive any more: the other end must say so.
func (w *World) oweLink(n *node, d grid.Direction, alone bool) {
	peer, back := n.neighbour(d), fault.Link(d.Opposite())
	c := &n.links[d.Index()]
	w.owe(&debt{
		what: fmt.Sprintf("the cut of %s %s", n.id(), d), node: peer,
		lasts: func() bool { return c.cut },
		known: func(p picture) bool {
			return p.state[back] == fault.Failed || p.state[fault.ComponentNode] == fault.Failed
		},
		bound: func() time.Duration {
			// Whoever is dead, or has a dead peer, has no link to speak of.
			if !n.dnp.ready() || !peer.dnp.ready() || peer.liar || !w.truth.hostWay[peer.rank] || !w.truth.dnpWay[peer.rank] {
				return 0
			}
			// What flapped before is held back, by the half and by the leader.
			return w.cfg.Periods.NodeBound() + 2*w.cfg.Periods.HalfBound() + 2*w.cfg.Periods.LinkHoldOff
		},
	}, alone)
}

// watch looks every so often whether what is broken is known in time, and whether what is called NORMAL
// can have said so.
func (w *World) watch() {
	w.after(watchEvery, w.watch)
	l := w.leading()
	w.ways(l)
	keep := w.truth.debts[:0]
	for _, d := range w.truth.debts {
		if !d.lasts() || d.known(w.store.picture(d.node.id())) {
			continue
		}
		keep = append(keep, d)
		w.press(d, l)
	}
	w.truth.debts = keep
	w.watchMute(l)
	w.watchGroups(l)
	w.watchProtocol()
}

// watchProtocol: no loss, delay, restart or damage of these worlds makes a DNP half accuse a neighbour of breaking the channel
// protocol. Rates are another thing: they may be exceeded by many messages alone.
func (w *World) watchProtocol() {
	for _, n := range w.nodes {
		if n.dnpCore == nil {
			continue
		}
		for i, rules := range n.dnpCore.ProtocolStats() {
			for r, count := range rules {
				if count > 0 && dnpcore.Rule(r) != dnpcore.RuleRate {
					w.violate("%s says that its neighbour %s breaks rule %s of the channel protocol", n.id(), grid.Directions()[i], dnpcore.Rule(r))
				}
			}
		}
	}
}

// press sees whether a debt is overdue.
func (w *World) press(d *debt, l *replica) {
	bound := d.bound()
	if l == nil || w.now.Sub(l.term.started) < w.cfg.Periods.DigestPeriod || w.store.holdsBack() || bound == 0 {
		d.good, d.calm = time.Time{}, false
		return
	}
	if d.good.IsZero() {
		d.good = w.now
		if d.calm {
			d.good = d.since
		}
	}
	if !d.calm {
		bound += w.escalation()
	}
	if late := w.now.Sub(d.good); late > bound+watchEvery {
		w.violate("%s is not known after %s with a way to tell: bound %s", d.what, late, bound)
	}
}

// watchMute: a node of which nothing can have been heard for long is not called NORMAL.
func (w *World) watchMute(l *replica) {
	for i, n := range w.nodes {
		if l == nil || w.truth.perhaps[i] || w.store.full || w.now.Sub(l.term.started) < w.cfg.Periods.DigestPeriod {
			w.truth.mute[i] = time.Time{}
			continue
		}
		if w.truth.mute[i].IsZero() {
			w.truth.mute[i] = w.now
		}
		silent := w.now.Sub(w.truth.mute[i])
		if limit := 2*w.window() + w.escalation(); silent > limit && !w.store.holdsBack() &&
			w.store.picture(n.id()).state[fault.ComponentNode] == fault.Normal {
			w.violate("%s is called NORMAL, and nothing of it can have been heard for %s", n.id(), silent)
		}
	}
}

// watchGroups: when nothing else is wrong, what has come back is no member of a group fault for long.
func (w *World) watchGroups(l *replica) {
	if len(w.store.groups) == 0 || l == nil || w.now.Sub(l.term.started) < calm || w.now.Sub(w.truth.mended) < settling || !w.soundNetwork() ||
		w.store.slow > 0 || w.store.holdsBack() {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(w.store.groups)) {
		g := w.store.groups[id]
		if g.GetKind() == lofamov1.GroupKind_PARTITION {
			continue
		}
		members := make([]fault.NodeID, len(g.GetMembers()))
		for i, m := range g.GetMembers() {
			members[i] = fault.NodeID(m)
		}
		if why := w.spared(members, fault.Cause(g.GetCause())); why != "" {
			w.violate("group fault %s still stands: %s", id, why)
		}
	}
}

// ways finds whose word reaches the leader: over a living host half with a service network that loses
// nothing to a supervisor that is connected to it, its own or one to which the torus leads, through
// living DNP halves and cables that lose nothing. Nobody relies on liars. Perhaps also what has just
// started, or loses much, is heard.
func (w *World) ways(l *replica) {
	t := &w.truth
	clear(t.dnpWay)
	clear(t.hostWay)
	clear(t.perhaps)
	if l == nil {
		return
	}
	w.flood(t.dnpWay, sure, func(n *node) bool { return n.sure(&n.host) && n.service.sure() && w.forwards(n, l) })
	for i, n := range w.nodes {
		t.hostWay[i] = n.sure(&n.host) && (n.service.sure() && w.forwards(n, l) || t.dnpWay[i])
	}
	exit := func(n *node) bool { return n.host.up() && !n.service.gone() && w.forwards(n, l) }
	w.flood(t.perhaps, perhaps, exit)
	for i, n := range w.nodes {
		t.perhaps[i] = t.perhaps[i] || exit(n)
	}
}

// sure says whether a process of the node works, and does not lie.
func (n *node) sure(p *process) bool { return p.ready() && !n.liar }

// forwards says whether a datagram of a node gets to a leader by the service network: to itself, or to a
// supervisor that forwards.
func (w *World) forwards(n *node, l *replica) bool {
	for _, r := range w.replicas {
		if r.sees(n) && r.up() && w.store.connected(r, l) {
			return true
		}
	}
	return false
}

// passage is what a message through the torus needs.
type passage struct {
	node  func(*node) bool
	cable func(*cable) bool
}

var (
	sure    = passage{func(n *node) bool { return n.sure(&n.dnp) }, (*cable).sound}
	perhaps = passage{func(n *node) bool { return n.dnp.up() }, func(c *cable) bool { return !c.cut }}
)

// flood marks every node whose DNP half is connected to one from which there is an exit.
func (w *World) flood(way []bool, p passage, exit func(*node) bool) {
	var todo []*node
	for i, n := range w.nodes {
		if p.node(n) && exit(n) {
			way[i] = true
			todo = append(todo, n)
		}
	}
	for ; len(todo) > 0; todo = todo[1:] {
		at := todo[0]
		for _, d := range at.topo.Links {
			peer := at.neighbour(d)
			if !way[peer.rank] && p.node(peer) && p.cable(&at.links[d.Index()]) && p.cable(&peer.links[d.Opposite().Index()]) {
				way[peer.rank] = true
				todo = append(todo, peer)
			}
		}
	}
}

// reached says whether a leader and a node reach one another both ways, by any rail and by whoever forwards
// to the leader, who asks in its stead too.
func (w *World) reached(l *replica, n *node) bool {
	exit := func(o *node) bool { return o.sure(&o.host) && o.service.sure() && w.forwards(o, l) }
	if exit(n) {
		return true
	}
	way := make([]bool, len(w.nodes))
	w.flood(way, sure, exit)
	return way[n.rank]
}
