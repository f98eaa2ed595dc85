package dnpcore

import (
	"math/bits"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/routing"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// There is room while fewer slots are in use than NumHeld minus one for each link. The remaining slots serve only
// exchanges (the packet exchange rule of seed 003 §2). A node without room still takes a neighbour's message, one at a
// time for each link, if it has a message in flight to that neighbour. If it has none it chooses one at random and
// sends it there, nearer or not: the deroute under pressure. So two neighbours that wait for each other always make
// progress, and no ring of full nodes deadlocks: see ADR 21.

// room returns how many messages may be held without exchanges.
func (m *Machine) room() int { return NumHeld - len(m.cfg.Topo.Links) }

// full reports whether there is no room.
func (m *Machine) full() bool { return bits.OnesCount64(m.hops.on) >= m.room() }

// admit reports whether there is room for a neighbour's message, or an exchange for one that goes there.
func (m *Machine) admit(now time.Time, l *link) bool {
	switch {
	case !m.full():
		l.swap = false
		return true
	case l.swap, m.hops.on == 1<<NumHeld-1, l.hop.InFlight() == 0 && !m.offer(now, l):
		return false
	}
	l.swap = true
	return true
}

// offer sends a waiting message to a neighbour that has one for this node. It prefers a message that gets nearer there;
// otherwise it takes one whose hops suffice for the detour. The choice is random, which ensures that no message is
// misled for ever.
func (m *Machine) offer(now time.Time, l *link) bool {
	if !m.functional(l) || !m.acknowledges(l) || l.hop.Full() {
		return false
	}
	best, how, seen := none, routing.Stuck, 0
	for on := m.hops.on; on != 0; on &= on - 1 {
		i := bits.TrailingZeros64(on)
		s := &m.hops.slots[i]
		if s.msg.Kind != halfcore.RelayDown || s.msg.Dst == m.cfg.Topo.Coord || s.passed || s.leaves || s.mail != mailNone {
			continue
		}
		left := int(min(s.msg.Limit, m.cfg.MaxHops)) - int(s.msg.Made)
		q := m.query(&s.msg, m.link(s.from))
		o, ok := m.algorithm().Swap(&q, l.dir)
		least := m.cfg.Topo.Dims.Distance(l.dst, s.msg.Dst)
		if !m.cfg.Topo.Dims.Full() {
			least = min(least, 1) // one hop may pass several empty places
		}
		if !ok || left < 1+least || how == routing.Route && o == routing.Deroute {
			continue
		}
		if o != how {
			how, seen = o, 0
		}
		if seen++; m.random.IntN(seen) == 0 {
			best = i
		}
	}
	if best == none {
		return false
	}
	for _, d := range m.cfg.Topo.Links {
		m.giveUp(best, m.links[d.Index()])
	}
	msg := m.aged(&m.hops.slots[best], now)
	msg.Made++
	m.send(now, best, l, msg)
	m.settle(now, best)
	m.routed.Swapped++
	return true
}
