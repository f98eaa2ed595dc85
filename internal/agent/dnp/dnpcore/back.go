package dnpcore

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/relay"
)

// Back messages carry large objects to the node through which a supervisor asked for them. They take
// one way at a time, and nobody remembers them: a chunk that was lost may be asked for again at once, in
// the same bytes. Whatever does not get on is dropped and is no fault of this router: the supervisor
// asks again, and through another node in the end.

// onBack handles a back message that a neighbour sent, within the budget of bulk.
func (m *Machine) onBack(now time.Time, from *link, payload []byte) {
	if !from.bulk.take(now) {
		m.bulkDropped++
		return
	}
	msg, err := relay.Decode(payload)
	if err != nil {
		m.raise(now, watchdog.AddrRouter0, watchdog.RouterMalformed)
		return
	}
	if !m.lawful(now, from, &msg) {
		return
	}
	m.passBack(now, msg.AddHop(m.hop(0)), from)
}

// Back is a back message of this half itself.
type Back struct{ Message relay.Message }

func (Back) dnpEvent() {}

// beginBack sends a back message of the own host half, or of this one, on its way.
func (m *Machine) beginBack(now time.Time, msg relay.Message, held time.Duration) {
	if !m.cfg.Topo.Dims.Contains(msg.Dst) {
		m.raise(now, watchdog.AddrRDMA, watchdog.RDMAMailboxBad)
		return
	}
	if m.holdsUp(now, &msg, held, false) || !m.mayInject(now) {
		return // it is asked for again
	}
	msg.Made, msg.Limit = 0, m.cfg.MaxHops
	m.passBack(now, msg.AddHop(m.hop(held)), nil)
}

// passBack hands a message to the own host when it has arrived, and else sends it a hop on, as Config.Routing has it. It waits for
// nothing. The envelope lies in the packet and is copied by whatever keeps it.
func (m *Machine) passBack(now time.Time, msg relay.Message, from *link) {
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
	l, _ := m.decide(m.cfg.Routing, &q)
	if l == nil || msg.Made >= min(msg.Limit, m.cfg.MaxHops) {
		m.bulkDropped++
		return
	}
	msg.Made++
	m.forward(now, l, msg)
}

// onBulk passes a verified bulk message that came down for the host half on to it. One for this half is
// the shell's.
func (m *Machine) onBulk(o servicenet.Opened, node string, half lofamov1.Half) {
	switch {
	case node != string(m.self):
		m.note(NoteRefused, "a bulk message to %q", node)
	case half == lofamov1.Half_HALF_HOST:
		m.toHost(o.Raw)
	}
}

// BulkDropped returns how many back messages were not passed on.
func (m *Machine) BulkDropped() uint64 { return m.bulkDropped }

// Delivery says how this half's reports fare.
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

// LinkStates returns the states of the links as this end has them, by direction; 0 where there is none.
func (m *Machine) LinkStates() (out [grid.NumDirections]torus.LinkState) {
	for i, l := range m.links {
		if l != nil {
			out[i] = l.machine.State()
		}
	}
	return out
}
