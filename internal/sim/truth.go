package sim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
)

type neighbourOf = halfcore.Neighbour

const (
	// watchEvery is the interval between checks whether known faults match real ones.
	watchEvery = 20 * time.Millisecond
	// settling is the time for which a repaired part may still count as broken: paths come back one by one.
	settling = time.Second
	// calm is the time without events after which the printed bounds hold without an allowance.
	calm = 5 * time.Second
)

// truth is the real state, with its start times: the map must show it sooner or later.
type truth struct {
	w      *World
	mended time.Time // when something last became better
	hurt   time.Time // when something last became worse
	debts  []*debt
	mute   []time.Time // by rank: since when no report of a node can have reached a leader; zero: reports can

	// Of the moment: nodes whose reports reach the leader, and those whose reports might.
	dnpWay, hostWay, perhaps []bool
}

// debt is a fault that the map does not show yet.
type debt struct {
	what  string
	lasts func() bool          // it is still so
	known func(p picture) bool // the map shows it
	node  *node
	of    *node // the other end of a link; nil: none
	// bound is the maximum time to detection, counted from when a report can reach the leader; 0: none can now.
	bound func() time.Duration

	since time.Time
	good  time.Time // since when there is a path; zero: there is none
	// calm: the fault came alone, so the bound has no time for changes of rails.
	calm bool
}

func newTruth(w *World) truth {
	t := truth{w: w}
	t.resize(len(w.nodes))
	return t
}

// resize makes room for another number of nodes.
func (t *truth) resize(nodes int) {
	t.mute, t.dnpWay, t.hostWay, t.perhaps = make([]time.Time, nodes), make([]bool, nodes), make([]bool, nodes), make([]bool, nodes)
}

// escalation is the extra allowance for bounds when a fault does not come alone: a half must find the service network
// dead, and try every rail with its backoff.
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

// undisturbed reports whether the last event was long enough ago for the next fault to count as single.
func (w *World) undisturbed() bool {
	l := w.leading()
	return l != nil && w.now.Sub(l.term.started) > calm && w.now.Sub(w.truth.hurt) > calm && w.now.Sub(w.truth.mended) > calm &&
		w.store.slow == 0 && w.soundNetwork()
}

// soundNetwork reports whether no datagram and no frame is lost anywhere.
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

// oweProcess adds a debt for a half that has died or stopped.
func (w *World) oweProcess(n *node, h fault.Half, alone bool) {
	p, other := n.process(h), n.process(h.Other())
	life, c := p.life, h.Component()
	gone := func() bool { return p.life == life && !p.up() }
	w.owe(&debt{
		what: fmt.Sprintf("the death of %s/%s", n.id(), h), node: n,
		lasts: gone,
		known: func(pic picture) bool {
			return pic.state[c] == fault.Failed || pic.state[fault.ComponentNode] == fault.Failed
		},
		bound: func() time.Duration {
			if w.stopHolds(n) {
				return 0
			}
			if !other.up() {
				return max(w.nodeBound(n), w.missed(n, h))
			}
			way := w.truth.hostWay
			if h == fault.HalfHost {
				way = w.truth.dnpWay
			}
			if !way[n.rank] || !other.ready() || n.place != nil && n.place.transfer.moves(w.now) {
				return 0 // reports from a former place tell nothing, and the other half may not run at the new one yet
			}
			// A half that began after the death, or just before it, never saw the dead one. It waits for the first write as long as at
			// a cold start.
			if other.born.Add(2*w.cfg.Periods.TRead).After(p.lived) && w.now.Sub(other.born) <= watchdog.DefaultGrace {
				return 0
			}
			return w.cfg.Periods.HalfBound()
		},
	}, alone)
}

// missed returns the time to find a host half that dies after its DNP half. The node's links were silent before, and the host half
// answered the challenges. So its death causes no new accusation. The leader notices that the digest is overdue, challenges the node, and
// waits three times as long as usual for an answer.
func (w *World) missed(n *node, h fault.Half) time.Duration {
	bound, wait := w.nodeBound(n), w.cfg.Periods.ChallengeNode
	switch {
	case bound == 0 || h != fault.HalfHost || !n.dnp.lived.Before(n.host.lived):
		return 0
	case bound > w.cfg.Periods.NodeBound():
		wait = w.cfg.Periods.ChallengeSingle
	}
	return w.cfg.Periods.DigestPeriod*3/2 + 3*wait + config.TransitAllowance
}

// nodeBound returns the bound for a dead node, by the number of neighbours that can bear witness.
func (w *World) nodeBound(n *node) time.Duration {
	if !w.judged(n) {
		return 0
	}
	heard, blind, quorum := 0, 0, awareness.Quorum(len(n.topo.Neighbours))
	for _, nb := range n.topo.Neighbours {
		o := w.find(nb.ID)
		switch {
		case !o.liar && o.dnp.ready() && w.observes(n, o, nb) && (w.truth.dnpWay[o.rank] || w.truth.hostWay[o.rank]):
			heard++
		case (n.place != nil || w.inGrace(n, o)) && (o.dnp.up() || o.host.up()) && w.truth.perhaps[o.rank]:
			blind++ // counts as living, but its grace period still runs: see observes; every grace period ends
		}
	}
	switch {
	case heard >= quorum:
		return w.cfg.Periods.NodeBound()
	case blind > 0 && (heard+blind >= quorum || heard <= blind):
		return 0
	case heard > 0 && !w.graceAround(n):
		// Neighbours whose reports no longer arrive count as living until their last report is old.
		return w.cfg.Periods.SingleBound() + w.window()
	}
	return 0
}

func (w *World) window() time.Duration {
	return time.Duration(w.cfg.Periods.DigestMisses) * w.cfg.Periods.DigestPeriod
}

// oweLink adds a debt for frames that n sends in direction d and that no longer arrive: the other end must report that.
func (w *World) oweLink(n *node, d grid.Direction, alone bool) {
	peer, back := n.neighbour(d), fault.Link(d.Opposite())
	c := &n.links[d.Index()]
	w.owe(&debt{
		what: fmt.Sprintf("the cut of %s %s", n.id(), d), node: peer, of: n,
		lasts: func() bool { return c.cut && n.neighbour(d) == peer && n.meets(d) },
		known: func(p picture) bool {
			return p.state[back] == fault.Failed || p.state[fault.ComponentNode] == fault.Failed
		},
		bound: func() time.Duration {
			// A dead half, or one with a dead peer, has no link to report.
			if !w.settled(n, d) || !n.dnp.ready() || !peer.dnp.ready() || peer.liar || !w.truth.hostWay[peer.rank] || !w.truth.dnpWay[peer.rank] {
				return 0
			}
			// A link that flapped before is delayed by the half and by the leader.
			return w.cfg.Periods.NodeBound() + 2*w.cfg.Periods.HalfBound() + 2*w.cfg.Periods.LinkHoldOff
		},
	}, alone)
}

// oweSensor adds a debt for a part of a node that its host half can find FAILED.
func (w *World) oweSensor(n *node, c fault.Component) {
	if !slices.Contains(hostSensors, c) || n.place != nil {
		return
	}
	w.owe(&debt{
		what: fmt.Sprintf("the fault of %s %s", n.id(), c), node: n,
		lasts: func() bool { return n.sensors[c].state == fault.Failed },
		known: func(p picture) bool {
			return p.state[c] == fault.Failed || p.state[fault.ComponentNode] == fault.Failed
		},
		bound: func() time.Duration {
			if w.stopHolds(n) || !n.host.ready() || !w.truth.hostWay[n.rank] {
				return 0
			}
			return w.cfg.Periods.SensorPeriod + w.cfg.Periods.HalfBound() + 2*w.cfg.Periods.LinkHoldOff // it may have flapped
		},
	}, false)
}

// watch checks at intervals that broken parts are reported in time, and that any part called NORMAL can have reported
// so.
func (w *World) watch() {
	if w.cfg.Fences != nil {
		return // delays change what can be known when
	}
	w.after(watchEvery, w.watch)
	l := w.leading()
	w.ways(l)
	w.watchCables()
	w.watchMoves()
	w.watchStops()
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

// watchProtocol: no loss, delay, restart or damage of these worlds makes a DNP half accuse a neighbour of violating the
// channel protocol. Rates are an exception: many messages alone can exceed them.
func (w *World) watchProtocol() {
	for _, n := range w.nodes {
		if n.dnpCore == nil {
			continue
		}
		for i, rules := range n.dnpCore.ProtocolStats() {
			for r, count := range rules {
				if count > 0 && halfcore.Rule(r) != halfcore.RuleRate {
					w.violate("%s says that its neighbour %s breaks rule %s of the channel protocol", n.id(), grid.Directions()[i], halfcore.Rule(r))
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

// watchMute checks that a node without any recent path for its reports is not called NORMAL for long.
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
		if limit := 2*w.window() + w.escalation(); silent > limit && !w.store.holdsBack() && !w.stopHolds(n) &&
			w.store.picture(n.id()).state[fault.ComponentNode] == fault.Normal {
			w.violate("%s is called NORMAL, and nothing of it can have been heard for %s", n.id(), silent)
		}
	}
}

// watchGroups checks that, without other faults, recovered nodes leave group faults soon. A DNP half that starts without its host half
// reports only after its link grace.
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
		var members []fault.NodeID
		for _, m := range g.GetMembers() {
			if n := w.find(fault.NodeID(m)); n.host.up() || w.now.Sub(n.dnp.started) >= w.linkGrace()+settling {
				members = append(members, n.id())
			}
		}
		if why := w.spared(members, fault.Cause(g.GetCause())); why != "" {
			w.violate("group fault %s still stands: %s", id, why)
		}
	}
}

// linkGrace returns how long a DNP half that has just started waits before it calls its neighbours or its host half silent.
func (w *World) linkGrace() time.Duration {
	return cmp.Or(w.cfg.Periods.LinkGrace, dnpcore.DefaultLinkGrace)
}

// ways finds the nodes whose reports reach the leader. The path is a living host half with a lossless service network
// to a supervisor that is connected to the leader: its own host half, or one reachable through living DNP halves and
// lossless cables. No path depends on liars. perhaps also has nodes that have just started or lose many messages.
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

// sure reports whether a process of the node works, and does not lie.
func (n *node) sure(p *process) bool { return p.ready() && !n.liar }

// forwards reports whether a node's datagram reaches the leader through the service network: directly, or through a
// supervisor that forwards.
func (w *World) forwards(n *node, l *replica) bool {
	for _, r := range w.replicas {
		if r.sees(n) && r.up() && w.store.connected(r, l) {
			return true
		}
	}
	return false
}

// passage is the requirement of a message on its path through the torus.
type passage struct {
	node  func(*node) bool
	cable func(*cable) bool
	since time.Duration // for which the link has led there, at both ends
}

var (
	sure    = passage{func(n *node) bool { return n.sure(&n.dnp) }, (*cable).sound, settling}
	perhaps = passage{func(n *node) bool { return n.dnp.up() }, func(c *cable) bool { return !c.cut }, 0}
)

// flood marks every node whose DNP half is connected to one with an exit.
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
			if !at.meets(d) || !peer.isPlaced() {
				continue
			}
			if !way[peer.rank] && p.node(peer) && p.cable(&at.links[d.Index()]) && p.cable(&peer.links[d.Opposite().Index()]) &&
				at.leads(d) >= p.since {
				way[peer.rank] = true
				todo = append(todo, peer)
			}
		}
	}
}

// reached reports whether a leader and a node can reach each other both ways, on any rail and through any replica that
// forwards to the leader, which also sends its challenges.
func (w *World) reached(l *replica, n *node) bool {
	exit := func(o *node) bool { return o.sure(&o.host) && o.service.sure() && w.forwards(o, l) }
	if exit(n) || !n.isPlaced() {
		return n.isPlaced()
	}
	way := make([]bool, len(w.nodes))
	w.flood(way, sure, exit)
	return way[n.rank]
}
