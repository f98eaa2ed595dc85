package dnpcore

import (
	"math/bits"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/procedure"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// A drain of the torus (seed 003 §4.5.3) holds back deferrable messages of this node while a procedure runs. They wait
// here, at their sender, and set out when the procedure ends; messages already in flight continue. Everything else
// travels as usual in every state: reports of changes, challenges, answers, orders, findings. So a drain never delays
// news.
//
//	may wait, by its mark          reports that are digests alone; requests for large objects and for parts of them
//	may wait, by its kind          chunks, which their receivers ask for again; the self-test of the relay, which pauses
//	never waits                    all else, and all that is of an earlier version
//
// A message that finds no room here is refused, as by a full mailbox. The next digest repeats a refused one, and its
// outbox keeps the report until it is committed. A receiver repeats its request for a large object.

const (
	// maxHeldUp is the maximum number of waiting messages of this node.
	maxHeldUp = 256
	// releaseAtOnce is how many of them set out per tick: all at once would take the slots of urgent messages.
	releaseAtOnce = 8
)

// drain holds the machine's drain state.
type drain struct {
	waiting []heldUp
	holds   int // deferrable messages in the slots here, as reported to the procedure
	// wireUntil is the time until which an unacknowledged message may be in flight from here; it counts as held.
	wireUntil time.Time
}

// heldUp is a message that waits for the end of a procedure.
type heldUp struct {
	msg  halfcore.Relay
	at   time.Time     // when it arrived
	held time.Duration // time held before that
	own  bool          // of this half, not of the host half
}

// deferrable reports whether a message of this half may wait because it only restates known facts. The first report of
// a change never waits.
func deferrable(s *Seal) bool {
	return len(s.Reports) > 0 && !slices.ContainsFunc(s.Reports, func(r fault.Report) bool { return !r.Digest })
}

// holdsUp holds back a deferrable message of this node during a procedure, and reports whether it did.
func (m *Machine) holdsUp(now time.Time, msg *halfcore.Relay, held time.Duration, own bool) bool {
	d := &m.procedure.drain
	if !m.inhibited() || !msg.Waits() {
		return false
	}
	m.procedure.stats.HeldUp++
	if msg.Kind != halfcore.RelayBack && len(d.waiting) < maxHeldUp {
		d.waiting = append(d.waiting, heldUp{*msg, now, held, own})
	}
	return true
}

// tickDrain releases waiting messages when the procedure ends.
func (m *Machine) tickDrain(now time.Time) {
	d := &m.procedure.drain
	if len(d.waiting) == 0 || m.inhibited() {
		return
	}
	n := min(len(d.waiting), releaseAtOnce, max(0, m.room()-bits.OnesCount64(m.hops.on)))
	for _, w := range d.waiting[:n] {
		held := w.held + now.Sub(w.at)
		if w.own {
			m.floodOwn(now, w.msg.AddHop(m.hop(held)))
		} else {
			m.onFromHost(now, FromHost{Message: w.msg, Held: held})
		}
	}
	if d.waiting = slices.Delete(d.waiting, 0, n); len(d.waiting) == 0 {
		d.waiting = nil
	}
}

// marked returns the number of deferrable messages that this half holds.
func (m *Machine) marked(now time.Time) (n int) {
	for on := m.hops.on; on != 0; on &= on - 1 {
		if m.hops.slots[bits.TrailingZeros64(on)].msg.Waits() {
			n++
		}
	}
	if now.Before(m.procedure.drain.wireUntil) {
		n++
	}
	return n
}

// noteWire notes that a message is in flight that no neighbour acknowledges. A test of the relay does not count: it
// goes to a neighbour and back.
func (m *Machine) noteWire(now time.Time, msg *halfcore.Relay) {
	if msg.Waits() && msg.Kind != halfcore.RelayTest {
		m.procedure.drain.wireUntil = now.Add(m.cfg.Periods.LinkPeriod)
	}
}

// followDrain reports to the procedure what this half holds, after each step.
func (m *Machine) followDrain(now time.Time) {
	if !m.inhibited() {
		return
	}
	if n := m.marked(now); n != m.procedure.drain.holds {
		m.procedure.drain.holds = n
		m.stepProcedure(now, procedure.Holds{Messages: n})
	}
}

// maskWaits reports whether mask changes must wait for the running procedure: they happen when the network is clear, or
// afterwards link by link.
func (m *Machine) maskWaits() bool { return m.inhibited() && !m.procedure.mayMask }
