package dnpcore

import (
	"time"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// The express broadcast (seed 003 §4, package express) in a DNP half. It needs neither the service network nor the host
// half: this half floods from link to link. A received frame is forwarded before all other work of the step, and each
// tick sends due broadcasts first. Broadcasts never wake this half: repeats and pings use the ticks that occur anyway.
//
// Other parts of the machine use two things:
//
//	m.raiseEureka(now, topic, priority, body)   says something to all that are connected
//	m.onEureka(now, message)                    has a case for each topic: what others have said
//
// A half does not deliver its own broadcasts to its onEureka. Only jobs' broadcasts come back to their own node,
// because its other jobs listen too, and because the ID is the job's proof of the broadcast.

// RaiseEureka is a broadcast that the host half requests, by mailbox. Token identifies it in the answer, EurekaRaised.
type RaiseEureka struct {
	Token uint64
	express.Raise
}

func (RaiseEureka) dnpEvent() {}

// EurekaRaised answers RaiseEureka with the broadcast's ID, or with the reason why there is none.
type EurekaRaised struct {
	Token uint64
	ID    express.ID
	Err   error
}

// expressHalf holds the machine's broadcast state.
type expressHalf struct {
	machine *express.Machine // nil: this half is of an earlier version
	rx      express.Received // passed by pointer, never kept
	ways    express.Ways
	deaf    express.Mask
}

func newExpress(cfg Config, now time.Time, epoch fault.Epoch) expressHalf {
	if cfg.NoExpress {
		return expressHalf{}
	}
	return expressHalf{machine: express.New(express.Config{
		Self: cfg.Topo.Coord, Epoch: epoch, Links: express.MaskOf(cfg.Topo.Links...), Period: cfg.Periods.LinkPeriod,
		MaxPayload: torus.MaxPayload(cfg.MaxFrame), Resume: cfg.Express,
	}, now)}
}

// raiseEureka broadcasts to all nodes that are connected with this one. The machine then owns the body.
func (m *Machine) raiseEureka(now time.Time, topic express.Topic, prio express.Priority, body []byte) (express.ID, error) {
	if m.express.machine == nil {
		return express.ID{}, express.ErrInvalid
	}
	m.express.machine.SetEpoch(m.Epoch())
	return m.stepExpress(now, express.Raise{Topic: topic, Priority: prio, Body: body})
}

// onEureka handles another node's broadcast, once.
func (m *Machine) onEureka(now time.Time, msg express.Message) {
	switch msg.Topic {
	case express.TopicJob:
		m.out.Eurekas = append(m.out.Eurekas, msg)
	case express.TopicFlow:
		m.onFlow(now, msg.Body)
	case express.TopicManage:
		m.onManage(now, msg)
	case express.TopicMaster:
		m.onMaster(now, msg.Body)
	default: // of a later version: already forwarded
	}
}

func (m *Machine) onRaiseEureka(now time.Time, ev RaiseEureka) {
	id, err := m.raiseEureka(now, ev.Topic, ev.Priority, ev.Body)
	m.out.EurekasRaised = append(m.out.EurekasRaised, EurekaRaised{ev.Token, id, err})
}

// onExpress takes the payload of a frame of TypeEureka.
func (m *Machine) onExpress(now time.Time, l *link, payload []byte) {
	if m.express.machine == nil {
		return
	}
	if express.IsData(payload) {
		m.onData(now, l, payload)
		return
	}
	m.express.rx = express.Received{Dir: l.dir, Payload: payload}
	_, _ = m.stepExpress(now, &m.express.rx)
	m.express.rx.Payload = nil
}

// tickExpress does the due work of broadcasts. It runs before the rest of a tick.
func (m *Machine) tickExpress(now time.Time) {
	if m.express.machine == nil {
		return
	}
	m.waysChanged(now)
	_, _ = m.stepExpress(now, express.Tick{})
}

// waysChanged updates which links carry broadcasts, after a change of a link or of the neighbour's status.
func (m *Machine) waysChanged(now time.Time) {
	if m.express.machine == nil {
		return
	}
	var w express.Ways
	for _, l := range m.links {
		if l == nil || !l.session || !l.peer.Express {
			continue
		}
		w.Open |= express.MaskOf(l.dir)
		if l.usable() {
			w.Good |= express.MaskOf(l.dir)
		}
	}
	if w != m.express.ways {
		m.express.ways = w
		_, _ = m.stepExpress(now, w)
		_ = m.stepBarriers(now, w)
		_ = m.stepData(now, w)
	}
}

// stepExpress steps the machine and carries out its output. A delivered broadcast may raise others.
func (m *Machine) stepExpress(now time.Time, ev express.Event) (express.ID, error) {
	out := m.express.machine.Step(now, ev)
	if out.Bad {
		m.breaks(now, m.links[m.express.rx.Dir.Index()], halfcore.RuleExpress, 1)
	}
	m.out.KeepExpress = append(m.out.KeepExpress, out.Keep...)
	if out.KeepSeen != nil {
		m.out.KeepSeen = out.KeepSeen
	}
	for _, s := range out.Send {
		m.sendExpress(m.links[s.Dir.Index()], torus.TypeEureka, s.Payload)
	}
	if out.Deaf != m.express.deaf {
		m.express.deaf = out.Deaf
		m.deafChanged(now)
	}
	for _, msg := range out.Deliver {
		if own := msg.Origin == m.cfg.Topo.Coord && msg.Epoch == m.Epoch(); !own || msg.Topic == express.TopicJob {
			m.onEureka(now, msg)
		}
	}
	return out.Raised, out.Err
}

func (m *Machine) sendExpress(l *link, t torus.FrameType, payload []byte) {
	f := torus.Frame{Type: t, Payload: payload}
	l.machine.Fill(&f)
	m.frames = append(m.frames, Outgoing{l.dir, f})
}

// deafChanged marks the links that carry heartbeats but no broadcasts (seed 003 §7.2).
func (m *Machine) deafChanged(now time.Time) {
	for _, d := range grid.Directions() {
		if l := m.links[d.Index()]; l != nil {
			out := l.machine.Step(now, torus.ExpressDeaf{Deaf: m.express.deaf.Has(d)})
			m.afterLink(now, l, &out)
		}
	}
}

// ExpressNumber returns the number of this node's last broadcast. It must be stored before any frame of the step is
// sent.
func (m *Machine) ExpressNumber() uint64 {
	if m.express.machine == nil {
		return 0
	}
	return m.express.machine.Number()
}

// ExpressStats returns the counters of the express broadcast.
func (m *Machine) ExpressStats() express.Stats {
	if m.express.machine == nil {
		return express.Stats{}
	}
	return m.express.machine.Stats()
}
