package hostcore

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/routing"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// relayTargets is the number of supervisors that receive another node's envelope. Only its origin retries, so one
// dead supervisor must not swallow it.
const relayTargets = 2

// onReceived handles a verified message.
func (m *Machine) onReceived(now time.Time, ev Received) {
	before := m.sender.Answers()
	if m.sender.Heard(now, ev.Opened, ev.Path, ev.Interface) && ev.Path != fault.PathTorus {
		m.passDown(m.self, ev.Opened.Raw)
	}
	m.noteAnswers(now, ev, m.sender.Answers() != before)
	switch body := ev.Opened.Msg.GetBody().(type) {
	case nil, *lofamov1.Message_PathReply, *lofamov1.Message_Again: // the sender's
	case *lofamov1.Message_Challenge:
		m.onChallenge(now, ev, body.Challenge)
	case *lofamov1.Message_Downcall:
		m.onDowncall(ev)
	case *lofamov1.Message_FaultUpdate:
		m.onFaultUpdate(now, ev, body.FaultUpdate)
	case *lofamov1.Message_BulkRequest, *lofamov1.Message_BulkPull, *lofamov1.Message_DenyPart: // the shell's
	default:
		if o, ok := servicenet.OrderOf(ev.Opened.Msg); ok {
			m.onOrder(ev, o)
			return
		}
		m.note(NoteRefused, "a message from %s that is not for a host half", ev.Opened.Name)
	}
}

// onOrder handles a supervisor's order to this node. Most are for the DNP half, which has the links and their
// registers: this half passes them on unless they came from there. For a diagnosis or a procedure this half also
// confirms that it lives. Actions are for this half.
func (m *Machine) onOrder(ev Received, o servicenet.Order) {
	if o.Node != "" && o.Node != m.self {
		m.note(NoteRefused, "a %s order to %q", o.Kind, o.Node)
		return
	}
	if o.Kind != servicenet.OrderAct && ev.Path != fault.PathTorus {
		m.passDown(m.self, ev.Opened.Raw)
	}
	switch o.Kind {
	case servicenet.OrderDiagnosis:
		m.onDiagnosisOrder(ev, ev.Opened.Msg.GetDiagnosisOrder())
	case servicenet.OrderProcedure:
		m.onProcedureOrder(ev, ev.Opened.Msg.GetProcedureOrder())
	case servicenet.OrderAct:
		m.onActOrder(ev, ev.Opened.Msg.GetActOrder())
	default: // the DNP half answers
	}
}

// noteAnswers records which supervisor answers, and where, and evaluates hints about the leader. Only an answer that the
// outbox waited for is fresh: anyone who has recorded an older message can repeat it.
func (m *Machine) noteAnswers(now time.Time, ev Received, fresh bool) {
	if fresh {
		if m.answered.IsZero() { // supervisors that return may answer before gossip has joined through them
			m.gossip.joinBy = fault.Later(m.gossip.joinBy, now.Add(m.cfg.GossipSilence))
		}
		m.answered = now
		m.noteQuorum(now, ev.Opened.Msg.GetNoQuorumMs())
		if ev.Path == fault.PathDirect {
			m.heard[ev.Opened.Name] = contact{now, ev.Interface}
		}
	}
	for _, ack := range ev.Opened.Msg.GetAcks() {
		m.followLeader(now, ack.GetLeader())
	}
	m.followLeader(now, ev.Opened.Msg.GetPathReply().GetLeader())
}

// followLeader applies a hint about the leader.
func (m *Machine) followLeader(now time.Time, leader string) {
	if leader == "" || leader == m.leader || !slices.Contains(m.targets, leader) {
		return
	}
	m.leader = leader
	m.sender.Step(now, servicenet.Supervisors{Targets: m.targets, Leader: m.leader})
}

// onChallenge answers for this half and passes challenges to the DNP half on. A challenge that is old, or was answered
// often, may be a replay in another's name: its answer goes only to the configured supervisor, at a limited rate.
func (m *Machine) onChallenge(now time.Time, ev Received, c *lofamov1.Challenge) {
	if c.GetNode() != string(m.self) {
		m.note(NoteRefused, "a challenge to %q", c.GetNode())
		return
	}
	fresh := m.asked.fresh(c)
	if !fresh && !m.asked.affords(now) {
		m.note(NoteRefused, "an old challenge from %s: too many", ev.Opened.Name)
		return
	}
	if c.GetHalf() == lofamov1.Half_HALF_DNP {
		if ev.Path != fault.PathTorus {
			m.passDown(m.self, ev.Opened.Raw)
		}
		return
	}
	answer := Send{Answer: &Answer{Nonce: c.GetNonce(), Epoch: m.Epoch()}}
	if fresh {
		m.reply(ev, c.GetReplyTo(), answer)
		return
	}
	if slices.Contains(m.targets, ev.Opened.Name) {
		answer.Path, answer.Interface, answer.Target = fault.PathDirect, m.interfaceTo(ev.Opened.Name), ev.Opened.Name
		m.out.Send = append(m.out.Send, answer)
	}
}

// onDiagnosisOrder confirms that this half lives, and reports the state of its DNP half's word; the DNP half does the
// tests.
func (m *Machine) onDiagnosisOrder(ev Received, o *lofamov1.DiagnosisOrder) {
	dnp := lofamov1.State_UNKNOWN
	switch m.verdict {
	case watchdog.Alive:
		dnp = lofamov1.State_NORMAL
	case watchdog.Stale:
		dnp = lofamov1.State_FAILED
	default:
	}
	m.reply(ev, o.GetReplyTo(),
		Send{Order: &lofamov1.Message{Body: &lofamov1.Message_DiagnosisFindings{DiagnosisFindings: &lofamov1.DiagnosisFindings{
			Number: o.GetNumber(), Node: string(m.self), Half: lofamov1.Half_HALF_HOST, Epoch: uint64(m.Epoch()), Dnp: dnp,
		}}}})
}

// onProcedureOrder confirms that this half lives. The DNP half begins the procedure, or reports its progress.
func (m *Machine) onProcedureOrder(ev Received, o *lofamov1.ProcedureOrder) {
	m.reply(ev, o.GetReplyTo(),
		Send{Order: &lofamov1.Message{Body: &lofamov1.Message_ProcedureStatus{ProcedureStatus: &lofamov1.ProcedureStatus{
			Number: o.GetNumber(), Node: string(m.self), Half: lofamov1.Half_HALF_HOST, Epoch: uint64(m.Epoch()),
		}}}})
}

// reply sends an answer both on the path of the order and to the supervisor's reply address: one of the two paths may
// be the one that fails.
func (m *Machine) reply(ev Received, replyTo string, s Send) {
	s.Path, s.Interface = fault.PathDirect, m.interfaceTo(ev.Opened.Name)
	if ev.Path == fault.PathDirect {
		s.Interface = ev.Interface
		if s.Addr = ev.From; ev.From.IsValid() {
			m.out.Send = append(m.out.Send, s)
		}
	}
	if to, err := netip.ParseAddrPort(replyTo); err == nil && to != ev.From {
		s.Addr = to
		m.out.Send = append(m.out.Send, s)
	}
	if ev.Path == fault.PathTorus || m.sender.Network() == fault.Failed ||
		m.ledger.State(m.self, fault.ComponentServiceNetwork) == fault.Failed {
		s.Path, s.Interface, s.Addr = fault.PathTorus, 0, netip.AddrPort{}
		m.out.Send = append(m.out.Send, s)
	}
}

// interfaceTo returns the service interface that most likely reaches a supervisor: the one of its last answer, unless
// that is down, or else the first that is up.
func (m *Machine) interfaceTo(supervisor string) uint8 {
	if c, ok := m.heard[supervisor]; ok && !m.down[c.iface] {
		return c.iface
	}
	for k := range m.cfg.Interfaces {
		if !m.down[k] {
			return uint8(k)
		}
	}
	return 0
}

// onDowncall passes an envelope into the torus.
func (m *Machine) onDowncall(ev Received) {
	node, inner, err := servicenet.InnerOf(ev.Opened)
	if err != nil {
		m.note(NoteRefused, "downcall: %v", err)
		return
	}
	m.passDown(node, inner)
}

// room returns the longest envelope that goes down through the torus in one frame, in bytes.
func (c Config) room() int {
	return halfcore.RelayRoomDown(torus.MaxPayload(cmp.Or(c.MaxFrame, torus.DefaultMaxFrame)) - torus.HopHeaderSize)
}

func (m *Machine) passDown(node fault.NodeID, envelope []byte) {
	dst, ok := m.cfg.Topo.At(node)
	if !ok {
		m.note(NoteRefused, "downcall to %q, which is no node of this torus", node)
		return
	}
	if len(envelope) == 0 || len(envelope) > routing.MaxMessage {
		m.note(NoteRefused, "downcall to %s of %d bytes: want 1 to %d", node, len(envelope), routing.MaxMessage)
		return
	}
	parts := [][]byte{envelope}
	if room := m.cfg.room(); len(envelope) > room { // a DNP half of an earlier version refuses the pieces, as this one refused the whole
		var err error
		if parts, err = routing.Split(m.cfg.Topo.Coord, envelope, room); err != nil {
			m.note(NoteRefused, "downcall to %s: %v", node, err)
			return
		}
	}
	mayWait := servicenet.MayWait(envelope) // pieces of an urgent message are urgent too
	for _, b := range parts {
		m.out.Relay = append(m.out.Relay, halfcore.Relay{Kind: halfcore.RelayDown, Limit: m.cfg.MaxHops, Dst: dst, MayWait: mayWait, Envelope: b})
	}
}

// onArrived passes another origin's envelope to the supervisors, signed by this half with the hops that it took. Its
// origin retries; this half does not. While no supervisor answers this half itself, it does not pass on digests. They
// would most likely be lost, and would add to the load of supervisors that are short of time.
func (m *Machine) onArrived(now time.Time, ev Arrived) {
	if ev.Message.Kind != halfcore.RelayUp {
		m.note(NoteRefused, "a relayed message of kind %s from the DNP half", ev.Message.Kind)
		return
	}
	if ev.Message.MayWait && !m.answeredLately(now) {
		return
	}
	hops := make([]fault.Hop, 0, len(ev.Message.Hops)+1)
	for _, h := range ev.Message.Hops {
		hops = append(hops, fault.Hop{Node: m.cfg.Topo.ID(h.Coord), Half: h.Half, Held: h.Held})
	}
	hops = append(hops, fault.Hop{Node: m.self, Half: fault.HalfHost, Held: max(ev.Held, 0)})
	r := &Relayed{Inner: ev.Message.Envelope, Hops: hops}
	for _, t := range m.preferred(now) {
		m.out.Send = append(m.out.Send, Send{Path: fault.PathDirect, Interface: m.interfaceTo(t), Target: t, Relayed: r})
	}
}

// preferred returns the supervisors for another node's envelope: the leader if it is known, then those that have
// answered lately, then the others in the configured order.
func (m *Machine) preferred(now time.Time) []string {
	rank := func(t string) int {
		recent := m.heardLately(now, t)
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

func (m *Machine) heardLately(now time.Time, supervisor string) bool {
	c, ok := m.heard[supervisor]
	return ok && now.Sub(c.at) < 2*m.cfg.Periods.DigestPeriod
}

// answeredLately reports whether any supervisor has answered on the direct rail lately.
func (m *Machine) answeredLately(now time.Time) bool {
	return slices.ContainsFunc(m.targets, func(t string) bool { return m.heardLately(now, t) })
}

// onSupervisors replaces the supervisors to report to.
func (m *Machine) onSupervisors(now time.Time, ev Supervisors) {
	m.targets = slices.Clone(ev.Targets)
	m.leader = ev.Leader
	for t := range m.heard {
		if !slices.Contains(m.targets, t) {
			delete(m.heard, t)
		}
	}
	m.sender.Step(now, servicenet.Supervisors{Targets: m.targets, Leader: m.leader})
}

// onHint passes rail hints from the kernel, the disk or damaged packets to the outbox.
func (m *Machine) onHint(now time.Time, ev servicenet.Event) {
	switch ev := ev.(type) {
	case servicenet.RailUp:
		m.setDown(ev.Path, ev.Interface, false)
	case servicenet.RailDown:
		m.setDown(ev.Path, ev.Interface, true)
	default:
	}
	m.sender.Step(now, ev)
}

func (m *Machine) setDown(p fault.Path, k uint8, down bool) {
	if p == fault.PathDirect && int(k) < len(m.down) {
		m.down[k] = down
	}
}
