package dnpcore

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// Back messages carry large objects to the node through which a supervisor requested them. Each takes a single route,
// and nodes keep no state for it, because the supervisor may request a lost chunk again in identical bytes. A message
// that cannot proceed is dropped without blaming this router: the supervisor retries, eventually through another node.

// onBack handles a back message from a neighbour, within the rate limit for bulk traffic.
func (m *Machine) onBack(now time.Time, from *link, payload []byte) {
	if !from.bulk.take(now) {
		m.bulkDropped++
		return
	}
	msg, ok := m.relayed(now, from, payload)
	if !ok || !m.lawful(now, from, &msg) {
		return
	}
	m.passBack(now, msg.AddHop(m.hop(0)), from)
}

// Back is a back message that this half originates.
type Back struct{ Message halfcore.Relay }

func (Back) dnpEvent() {}

// beginBack sends out a back message of this half or of its host half.
func (m *Machine) beginBack(now time.Time, msg halfcore.Relay, held time.Duration) {
	if !m.cfg.Topo.Dims.Contains(msg.Dst) {
		m.raise(now, watchdog.AddrRDMA, watchdog.RDMAMailboxBad)
		return
	}
	if m.holdsUp(now, &msg, held, false) || !m.mayInject(now) {
		return // the supervisor requests it again
	}
	msg.Made, msg.Limit = 0, m.cfg.MaxHops
	m.passBack(now, msg.AddHop(m.hop(held)), nil)
}

// passBack delivers a message to this node's host if it has arrived, and otherwise forwards it one hop as
// Config.Routing decides. It never waits. The envelope aliases the packet; code that keeps it makes a copy.
func (m *Machine) passBack(now time.Time, msg halfcore.Relay, from *link) {
	if msg.Dst == m.cfg.Topo.Coord {
		if m.verdict == watchdog.Alive {
			msg.Envelope = append([]byte(nil), msg.Envelope...)
			m.out.ToHost = append(m.out.ToHost, msg)
		} else {
			m.bulkDropped++
		}
		return
	}
	q := m.query(&msg, from)
	q.Ready = q.Functional
	l, _ := m.decide(m.algorithm(), &q)
	if l == nil || msg.Made >= min(msg.Limit, m.cfg.MaxHops) {
		m.bulkDropped++
		return
	}
	msg.Made++
	m.forward(now, l, msg)
}

// onBulk passes a verified bulk message for the host half to that half. The shell handles a message for this half.
func (m *Machine) onBulk(o servicenet.Opened, node string, half lofamov1.Half) {
	switch {
	case node != string(m.self):
		m.note(NoteRefused, "a bulk message to %q", node)
	case half == lofamov1.Half_HALF_HOST:
		m.toHost(o.Raw)
	}
}

// BulkDropped returns the number of back messages that were not forwarded.
func (m *Machine) BulkDropped() uint64 { return m.bulkDropped }

// Delivery returns the delivery status of this half's reports.
func (m *Machine) Delivery(now time.Time) *lofamov1.DeliveryStatus { return m.sender.Status(now) }

// LinkStats returns the counters of the links, by direction; the zero value where there is none.
func (m *Machine) LinkStats() (out [grid.NumDirections]torus.LinkStats) {
	for i, l := range m.links {
		if l != nil {
			out[i] = l.machine.Stats()
		}
	}
	return out
}

// LinkStates returns this end's states of the links, by direction; 0 where there is no link.
func (m *Machine) LinkStates() (out [grid.NumDirections]torus.LinkState) {
	for i, l := range m.links {
		if l != nil {
			out[i] = l.machine.State()
		}
	}
	return out
}
