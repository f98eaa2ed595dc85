package dnpcore

import (
	"math/bits"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/procedure"

	"github.com/lofamo/lofamo/internal/agent/relay"
)

// What a drain of the torus holds (seed 003 §4.5.3): messages of this node that may wait do not set out while a procedure is
// under way. They wait here, at their sender, and set out when it is over; what is under way goes on. Everything else goes as
// ever, in every state: reports of what has changed, challenges, answers, orders, findings. So nothing is known a moment later
// because of a drain.
//
//	may wait, by its mark          reports that are digests alone; requests for large objects and for parts of them
//	may wait, by its kind          chunks, which their receivers ask for again; the self-test of the relay, which pauses
//	never waits                    all else, and all that is of an earlier version
//
// What finds no room here is not taken, as by a full mailbox: a digest's next one says the same, and its outbox has it until it
// is committed; who asks for a large object asks again.

const (
	// maxHeldUp is how many messages of this node wait at once.
	maxHeldUp = 256
	// releaseAtOnce is how many of them set out with a tick: all at once would take the places of what is urgent.
	releaseAtOnce = 8
)

// drain is what the machine keeps of it.
type drain struct {
	waiting []heldUp
	holds   int // messages that may wait, in the slots here, as the procedure was told
	// wireUntil is until when a message that nobody acknowledges may be on its way from here: it counts as held.
	wireUntil time.Time
}

// heldUp is a message that waits for the end of a procedure.
type heldUp struct {
	msg  relay.Message
	at   time.Time     // when it came
	held time.Duration // before that
	own  bool          // of this half, not of the host half
}

// deferrable says whether a message of this half may wait: a restatement of what is known. The first word of a change is awareness.
func deferrable(s *Seal) bool {
	return len(s.Reports) > 0 && !slices.ContainsFunc(s.Reports, func(r fault.Report) bool { return !r.Digest })
}

// holdsUp holds a message of this node up, if there is a procedure and it may wait, and says whether it does not set out now.
func (m *Machine) holdsUp(now time.Time, msg *relay.Message, held time.Duration, own bool) bool {
	d := &m.proc.drain
	if !m.inhibited() || !msg.Waits() {
		return false
	}
	m.proc.stats.HeldUp++
	if msg.Kind != relay.Back && len(d.waiting) < maxHeldUp {
		d.waiting = append(d.waiting, heldUp{*msg, now, held, own})
	}
	return true
}

// tickDrain has what waits set out when the procedure is over.
func (m *Machine) tickDrain(now time.Time) {
	d := &m.proc.drain
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

// marked is how many messages that may wait this half holds.
func (m *Machine) marked(now time.Time) (n int) {
	for on := m.hops.on; on != 0; on &= on - 1 {
		if m.hops.slots[bits.TrailingZeros64(on)].msg.Waits() {
			n++
		}
	}
	if now.Before(m.proc.drain.wireUntil) {
		n++
	}
	return n
}

// noteWire notes that a message is on its way that no neighbour acknowledges. A test of the relay is none: it goes to a neighbour and back.
func (m *Machine) noteWire(now time.Time, msg *relay.Message) {
	if msg.Waits() && msg.Kind != relay.Test {
		m.proc.drain.wireUntil = now.Add(m.cfg.Periods.LinkPeriod)
	}
}

// followDrain tells the procedure what this half holds, after each step.
func (m *Machine) followDrain(now time.Time) {
	if !m.inhibited() {
		return
	}
	if n := m.marked(now); n != m.proc.drain.holds {
		m.proc.drain.holds = n
		m.stepProcedure(now, procedure.Holds{Messages: n})
	}
}

// maskWaits says whether masks wait for the procedure that is under way: they change when the network is clear, or afterwards link by link.
func (m *Machine) maskWaits() bool { return m.inhibited() && !m.proc.mayMask }
