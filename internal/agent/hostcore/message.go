package hostcore

import (
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/agent/relay"
)

// relayTargets is to how many supervisors another's envelope goes: its origin alone retries, so
// that one dead supervisor must not swallow it.
const relayTargets = 2

// onReceived handles a verified message.
func (m *Machine) onReceived(now time.Time, ev Received) {
	m.onAcks(now, ev)
	switch body := ev.Opened.Msg.GetBody().(type) {
	case nil: // acks only
	case *lofamov1.Message_Challenge:
		m.onChallenge(ev, body.Challenge)
	case *lofamov1.Message_Downcall:
		m.onDowncall(ev)
	default:
		m.note(NoteRefused, "a message from %s that is not for a host half", ev.Opened.Name)
	}
}

// onAcks gives acknowledgements to the outbox, and to the DNP half those that are for its reports.
func (m *Machine) onAcks(now time.Time, ev Received) {
	acks := ev.Opened.Msg.GetAcks()
	if len(acks) == 0 {
		return
	}
	if ev.Path == fault.PathDirect {
		m.heard[ev.Opened.Name] = now
	}
	dnp := false
	for _, ack := range acks {
		m.followLeader(now, ack.GetLeader())
		switch servicenet.AckOrigin(ack) {
		case fault.Origin{Node: m.self, Half: fault.HalfHost}:
			m.send(now, m.outbox.Step(now, servicenet.Acked{Ack: ack, Supervisor: ev.Opened.Name, Path: ev.Path}))
		case fault.Origin{Node: m.self, Half: fault.HalfDNP}:
			dnp = true
		}
	}
	if dnp && ev.Path != fault.PathTorus {
		m.down(m.self, ev.Opened.Raw)
	}
}

// followLeader takes over a hint who leads.
func (m *Machine) followLeader(now time.Time, leader string) {
	if leader == "" || leader == m.leader || !slices.Contains(m.targets, leader) {
		return
	}
	m.leader = leader
	m.send(now, m.outbox.Step(now, servicenet.Supervisors{Targets: m.targets, Leader: m.leader}))
}

// onChallenge answers for this half; one that asks the DNP half is passed on to it.
func (m *Machine) onChallenge(ev Received, c *lofamov1.Challenge) {
	if c.GetNode() != string(m.self) {
		m.note(NoteRefused, "a challenge to %q", c.GetNode())
		return
	}
	if c.GetHalf() == lofamov1.Half_HALF_DNP {
		if ev.Path != fault.PathTorus {
			m.down(m.self, ev.Opened.Raw)
		}
		return
	}
	answer := &Answer{Nonce: c.GetNonce(), Epoch: m.Epoch()}
	if c.GetReplyTo() != "" {
		m.out.Send = append(m.out.Send, Send{Path: fault.PathDirect, Addr: c.GetReplyTo(), Answer: answer})
	}
	if ev.Path == fault.PathTorus || m.ledger.State(m.self, fault.ComponentServiceNetwork) == fault.Failed {
		m.out.Send = append(m.out.Send, Send{Path: fault.PathTorus, Answer: answer})
	}
}

// onDowncall passes an envelope into the torus.
func (m *Machine) onDowncall(ev Received) {
	node, inner, err := servicenet.InnerOf(ev.Opened)
	if err != nil {
		m.note(NoteRefused, "downcall: %v", err)
		return
	}
	m.down(node, inner)
}

func (m *Machine) down(node fault.NodeID, envelope []byte) {
	dst, ok := m.cfg.Topo.At(node)
	if !ok {
		m.note(NoteRefused, "downcall to %q, which is no node of this torus", node)
		return
	}
	if len(envelope) == 0 || len(envelope) > relay.MaxEnvelope {
		m.note(NoteRefused, "downcall to %s of %d bytes: want 1 to %d", node, len(envelope), relay.MaxEnvelope)
		return
	}
	m.out.Relay = append(m.out.Relay, relay.Message{Kind: relay.Down, Limit: m.cfg.MaxHops, Dst: dst, Envelope: envelope})
}

// onArrived passes another origin's envelope to the supervisors, signed by this half with the
// hops that it took. Its origin retries; this half does not.
func (m *Machine) onArrived(now time.Time, ev Arrived) {
	if ev.Message.Kind != relay.Up {
		m.note(NoteRefused, "a relayed message of kind %s from the DNP half", ev.Message.Kind)
		return
	}
	hops := make([]fault.Hop, 0, len(ev.Message.Hops)+1)
	for _, h := range ev.Message.Hops {
		hops = append(hops, fault.Hop{Node: m.cfg.Topo.ID(h.Coord), Half: h.Half, Held: h.Held})
	}
	hops = append(hops, fault.Hop{Node: m.self, Half: fault.HalfHost, Held: max(ev.Held, 0)})
	r := &Relayed{Inner: ev.Message.Envelope, Hops: hops}
	for _, t := range m.preferred(now) {
		m.out.Send = append(m.out.Send, Send{Path: fault.PathDirect, Target: t, Relayed: r})
	}
}

// preferred returns to whom another's envelope goes: the leader if it is known, then who has
// answered lately, then the others in the configured order.
func (m *Machine) preferred(now time.Time) []string {
	rank := func(t string) int {
		at, ok := m.heard[t]
		recent := ok && now.Sub(at) < 2*m.cfg.Periods.DigestPeriod
		switch {
		case t == m.leader && recent:
			return 0
		case recent:
			return 1
		case t == m.leader:
			return 2
		}
		return 3
	}
	out := slices.Clone(m.targets)
	slices.SortStableFunc(out, func(a, b string) int { return rank(a) - rank(b) })
	return out[:min(len(out), relayTargets)]
}

// onSupervisors takes over whom to report to.
func (m *Machine) onSupervisors(now time.Time, ev Supervisors) {
	m.targets = slices.Clone(ev.Targets)
	m.leader = ev.Leader
	for t := range m.heard {
		if !slices.Contains(m.targets, t) {
			delete(m.heard, t)
		}
	}
	m.send(now, m.outbox.Step(now, servicenet.Supervisors{Targets: m.targets, Leader: m.leader}))
}
