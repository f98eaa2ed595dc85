package dnpcore

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/procedure"
	"github.com/lofamo/lofamo/pkg/torus/routing"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/peers"
)

// A node that joins or leaves changes the torus of all nodes, and the links of the lines through its place. The
// supervisors' order names both, and the half follows while it runs:
//
//	no link ──order: a peer there──► UNKNOWN ──handshake──► NORMAL ──order: no node on that line──► no link
//
// The two ends of a link follow at different times, so a new link is UNKNOWN for relinkGrace, however silent it is. The
// end that follows first announces to its former peer that it is away, as a restarting half does: the former peer then
// does not call the link broken before its own order arrives. Routes, broadcasts, barriers and configurations follow
// the new torus at once. A procedure or mapping of the former one ends.

// relinkGrace is how long a link of a changed torus may stay silent at its begin: an order reaches the other end within
// 10 s.
const relinkGrace = 15 * time.Second

// farewells is the number of frames that announce to a former peer that this end is away: some may be lost.
const farewells = 3

// torusOf returns the torus in which an order places this node.
func (m *Machine) torusOf(next peers.State) grid.Dims {
	return cmp.Or(next.In(m.peers.cfg.Dims), m.cfg.Topo.Dims)
}

// viewOf returns the torus around this node under an order. A direction in which it has no end, or no peer, has no link.
func (m *Machine) viewOf(next peers.State) *halfcore.Topology {
	k, dims, at := m.peers.cfg, m.torusOf(next), m.cfg.Topo.Coord
	all, ids := next.Over(k.Configured), map[grid.Direction]fault.NodeID{}
	var without []grid.Direction
	for _, d := range dims.LinksOf(at) {
		i := d.Index()
		to, _ := dims.Neighbour(at, d)
		if l := m.links[i]; next.Peers[i].Node == "" && k.Configured[i].Node == "" && (l == nil || l.dst != to) {
			without = append(without, d)
		}
		ids[d] = all[i].Node
	}
	return halfcore.NewTopology(m.self, at, dims, ids).Without(without...)
}

// relink is the only writer of the topology. was holds the peers of the present links, is those of the order.
func (m *Machine) relink(now time.Time, next peers.State, was, is [grid.NumDirections]peers.Peer) {
	around, before := m.viewOf(next), m.cfg.Topo
	linked := express.MaskOf(around.Links...)
	changes := next.Torus != (grid.Dims{}) || around.Dims != before.Dims || m.exchanges(was, is)
	var begin []grid.Direction
	for i, d := range grid.Directions() {
		l := m.links[i]
		to, _ := around.Dims.Neighbour(around.Coord, d)
		switch {
		case !linked.Has(d) && l == nil, linked.Has(d) && l != nil && is[i] == was[i] && l.dst == to:
			continue
		case linked.Has(d):
			begin = append(begin, d)
		}
		m.out.Repeer = append(m.out.Repeer, d)
		m.deadHosts.dead[i] = false // that was another neighbour
		if l != nil && changes {
			m.sayFarewell(l)
		}
	}
	if around.Dims != before.Dims {
		m.leaveTorus(now, around)
	}
	if around.Dims != before.Dims || len(begin) > 0 {
		m.relinked = now
	}
	m.cfg.Topo = around
	if around.Dims != before.Dims {
		m.enterTorus(before.Dims)
	}
	for _, l := range m.links {
		if l != nil && !linked.Has(l.dir) {
			m.endLink(now, l)
		}
	}
	grace := m.cfg.LinkGrace
	if changes {
		grace = max(grace, relinkGrace)
	}
	for _, d := range begin {
		m.beginLink(now, d, grace)
	}
	if express.MaskOf(before.Links...) != linked || around.Dims != before.Dims {
		m.moveBroadcasts(now, linked)
	}
	if m.diagnosis.machine != nil && len(m.out.Repeer) > 0 { // its links are others
		m.diagnosis.machine, m.diagnosis.beginAt, m.diagnosis.wake = nil, now, now
	}
}

// exchanges reports whether a link that works gets another node. Then two nodes exchange their places, or a spare takes the
// place of a node that runs: the other end follows its own order at another time, as when the torus changes.
func (m *Machine) exchanges(was, is [grid.NumDirections]peers.Peer) bool {
	for i, l := range m.links {
		if l != nil && l.session && is[i].Node != "" && is[i].Node != was[i].Node {
			return true
		}
	}
	return false
}

// sayFarewell announces to a link's peer that this end is away.
func (m *Machine) sayFarewell(l *link) {
	if !l.session {
		return
	}
	for range farewells {
		f := l.machine.NextFrame(m.status(l))
		m.out.Farewell = append(m.out.Farewell, Outgoing{l.dir, torus.RestartingFrame(f, torus.Restarting{Back: relinkGrace, Attempt: 1})})
	}
}

// leaveTorus ends what belongs to the present torus.
func (m *Machine) leaveTorus(now time.Time, next *halfcore.Topology) {
	m.note(NotePeers, "the torus is %s (was %s)", next.Dims, m.cfg.Topo.Dims)
	if m.procedure.machine != nil {
		m.stepProcedure(now, procedure.Moved{Self: next.Dims.Rank(next.Coord), Limits: m.cfg.procedureLimits(next.Dims)})
	}
	if s := &m.mapping; s.machine != nil || !s.beginAt.IsZero() || !s.sayAt.IsZero() {
		s.machine, s.found, s.refused = nil, nil, "the torus has changed meanwhile"
		s.beginAt, s.wake, s.part, s.sayAt, s.attempt = time.Time{}, time.Time{}, 0, now, 1
	}
	m.configuration, m.master = configurations{}, mastership{alone: m.master.alone}
}

// enterTorus adapts to the present torus.
func (m *Machine) enterTorus(before grid.Dims) {
	dims := m.cfg.Topo.Dims
	if !m.hopsSet && m.cfg.MaxHops == routing.HopBound(before) { // not set by a person
		m.cfg.MaxHops = routing.HopBound(dims)
		m.store(watchdog.AddrMaxHops, uint32(m.cfg.MaxHops))
	}
	switch fits := dims.Places() <= express.MaxMembers; {
	case !fits:
		m.procedure.machine, m.procedure.wake, m.procedure.pending = nil, time.Time{}, nil
	case m.procedure.machine == nil:
		m.procedure.machine = newProcedure(m.cfg).machine
	}
	for on := m.hops.on; on != 0; on &= on - 1 {
		i := bits.TrailingZeros64(on)
		if s := &m.hops.slots[i]; s.msg.Kind == halfcore.RelayDown && !dims.Contains(s.msg.Dst) {
			m.release(i)
		}
	}
}

// moveBroadcasts gives the machines of broadcasts the present links and place.
func (m *Machine) moveBroadcasts(now time.Time, linked express.Mask) {
	if m.express.machine == nil {
		return
	}
	_, _ = m.stepExpress(now, express.Relinked{Links: linked})
	m.barriers.machine.Move(linked, m.cfg.Topo.Dims, m.cfg.Topo.Coord)
	_ = m.stepData(now, express.Relinked{Links: linked})
	m.waysChanged(now)
}

// free takes all messages away from a link, and returns their slots.
func (m *Machine) free(l *link) (freed uint64) {
	i := l.dir.Index()
	for on := m.hops.on; on != 0; on &= on - 1 {
		slot := bits.TrailingZeros64(on)
		if m.hops.slots[slot].wait[i] != 0 {
			m.giveUp(slot, l)
			freed |= 1 << slot
		}
	}
	return freed
}

// settleAll handles freed slots.
func (m *Machine) settleAll(now time.Time, freed uint64) {
	for ; freed != 0; freed &= freed - 1 {
		m.settle(now, bits.TrailingZeros64(freed))
	}
}

// endLink ends a link that leads nowhere any more. Nothing is said about it from then on.
func (m *Machine) endLink(now time.Time, l *link) {
	i := l.dir.Index()
	freed := m.free(l)
	l.peer, l.session = torus.PeerStatus{}, false
	m.linkChanged(now, l, torus.Detail{Rx: torus.LinkUnknown, Tx: torus.LinkUnknown})
	m.neighbourChanged(l)
	m.storeCause(l, watchdog.BitOfMap)
	m.links[i] = nil
	m.frames = slices.DeleteFunc(m.frames, func(f Outgoing) bool { return f.Dir == l.dir })
	m.redial = slices.DeleteFunc(m.redial, func(d grid.Direction) bool { return d == l.dir })
	m.selfTest.machine.Remove(linkModule(l.dir))
	m.waysChanged(now)
	m.settleAll(now, freed)
}

// beginLink starts a link with its peer: a new link, or one that has another peer. Numbers, windows and verdicts of the
// former peer are dropped. Messages that waited there take another route, or wait for the new peer.
func (m *Machine) beginLink(now time.Time, d grid.Direction, grace time.Duration) {
	i := d.Index()
	cfg := m.cfg
	cfg.LinkGrace = grace
	fresh, err := newLink(cfg, d, now)
	if err != nil { // the same configuration was valid when the half started
		m.note(NoteRefused, "link %s: %v", d, err)
		return
	}
	var freed uint64
	l := m.links[i]
	if l == nil {
		l = fresh
		m.links[i] = l
		l.detail = torus.Detail{} // so that it is written
		m.selfTest.machine.Add(now, halfcore.LinkModule(d))
		if m.cfg.MaxHops >= testHops { // it may be the first link
			m.selfTest.machine.Add(now, halfcore.RelayModule())
		}
	} else {
		freed = m.free(l)
		fresh.cause, fresh.detail = l.cause, l.detail
		*l = *fresh
	}
	// A new stream: a returning former neighbour must not mistake new messages for ones that it had already.
	l.hop = torus.NewHop(m.hopConfig(), uint32(1+m.random.IntN(math.MaxInt32)))
	l.machine.SetStatus(m.status(l))
	m.linkChanged(now, l, l.machine.Detail())
	m.out.Details = append(m.out.Details, l.extension()) // includes the loss rate
	m.storePeer(d)
	m.neighbourChanged(l)
	m.storeCause(l, watchdog.BitOfMap)
	m.diagnosis.before[i], m.selfTest.epochs[i], m.selfTest.excused[i] = torus.LinkStats{}, 0, false
	m.test(now, selftest.Renewed{Module: linkModule(d)})
	m.waysChanged(now)
	m.settleAll(now, freed)
}
