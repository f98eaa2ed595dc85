package dnpcore

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/procedure"
)

// The fault management procedure (seed 003 §4.5, package procedure; ADR 23) in a DNP half. A supervisor's order goes to
// one half, like a diagnosis order, which broadcasts it unchanged. Every half verifies the order and takes the members
// and the times from it. If its configuration allows, a half begins a procedure by itself, on evidence that only the
// context of messages gives (§5.2.1.2, §5.2.1.3). Such a procedure relies on the half's own statement, and the
// machine's rest and budget limit it.
//
// Broadcasts of the topic manage carry the states, and barriers of that topic the sets. The drain is in drain.go.

// managePriority is the priority of these broadcasts: above jobs (0 to 3) and flow control.
const managePriority express.Priority = 6

// ProcedureConfig sets a half's part in the procedure besides supervisors' orders.
type ProcedureConfig struct {
	// OnEvidence makes this half begin a procedure when a neighbour breaks a rule of the channel protocol, or when a
	// message arrives incomplete.
	OnEvidence bool
	// MaskDead makes this node mask links that its diagnosis finds dead, and restore them when a later one finds them
	// well.
	MaskDead bool
	// Limits bound the procedures that this half joins; the zero value: defaultLimits.
	Limits procedure.Limits
}

// procedureState holds the machine's state of the procedure.
type procedureState struct {
	machine *procedure.Machine // nil: of an earlier version, or the torus is too large for a barrier
	wake    time.Time
	queue   []procedure.Event
	busy    bool
	unsaid  []procedure.Message // messages that found no room: sent with the next tick
	mayMask bool                // the network is clear, and remains so for a Network Delay
	sets    []procedure.Arrival // sets that this half is in and waits for

	order    *lofamov1.ProcedureOrder // the last verified order; nil: none
	runs     order.Runs
	envelope []byte           // this half is to broadcast it
	pending  []broadcastOrder // orders being verified
	last     *lofamov1.ProcedureStatus
	suspect  string    // evidence that has not been acted upon yet
	heedAt   time.Time // evidence is ignored until then
	cause    string    // why this half began a procedure by itself

	drain drain
	stats ProcedureStats
}

// broadcastOrder is an order on its way from its starter.
type broadcastOrder struct {
	origin grid.Coord
	procedure.Begin
}

// mostPending bounds the orders that are verified at a time: honest nodes never begin more at once.
const mostPending = 4

// ProcedureStats counts the outcomes of procedures.
type ProcedureStats struct {
	State    procedure.State // the current state; 0: this half takes no part
	Wave     uint64
	Clear    uint64 // procedures that ended with the torus empty
	NotClear uint64
	Refused  uint64 // procedures that this half wanted to begin but did not
	HeldUp   uint64 // messages of this node that waited for the end, or that their receivers ask for again
	Waiting  int    // of these, the number waiting now
	Held     int    // deferrable messages in this half during a procedure
}

func newProcedure(cfg Config) procedureState {
	if cfg.NoExpress || cfg.NoHops || cfg.Topo.Dims.Places() > express.MaxMembers {
		return procedureState{}
	}
	return procedureState{machine: procedure.New(cfg.Topo.Dims.Rank(cfg.Topo.Coord), cfg.procedureLimits(cfg.Topo.Dims))}
}

func (c *Config) procedureLimits(dims grid.Dims) procedure.Limits {
	if c.Procedure.Limits != (procedure.Limits{}) {
		return c.Procedure.Limits
	}
	return defaultLimits(dims, c.Periods.LinkPeriod)
}

const (
	// diagnoseFor is the maximum length of a run: a probe that is not back a second after the last one counts as lost.
	diagnoseFor = 1500 * time.Millisecond
	// restFor, budgetOf and budgetFor bound the procedures that nodes begin by themselves.
	restFor, budgetOf, budgetFor = 30 * time.Second, 4, time.Hour
	// aloneDrain is the drain time-out of a procedure that a node begins by itself.
	aloneDrain = 2 * time.Second
	// heedEvery is the least time between two reactions to evidence, because a fault repeats with every frame.
	heedEvery = 5 * time.Second
	// hopRepeats is how often each hop may repeat a broadcast that still arrives in time.
	hopRepeats = 2
)

// defaultLimits allow a node the times that it would use itself in a torus of which nothing is known.
func defaultLimits(dims grid.Dims, period time.Duration) procedure.Limits {
	return procedure.Limits{
		Drop: max(250*time.Millisecond, 4*period), Diagnose: diagnoseFor, Rest: restFor, Budget: budgetOf, Window: budgetFor,
		Delay: marginDelay(dims, period), Drain: 2 * aloneDrain,
	}
}

func marginDelay(dims grid.Dims, period time.Duration) time.Duration {
	d := express.NetworkDelay(express.Margin(dims), express.HopBound(period, hopRepeats))
	return min(max(d, procedure.MinDelay), procedure.MaxDelay).Truncate(time.Microsecond)
}

// alonePlan returns the plan of a procedure that this half begins by itself. Members and delay come from the
// supervisors' configuration or else from the last order. Without either, the plan has all places and assumes nothing
// about the torus.
func (m *Machine) alonePlan() procedure.Plan {
	p := procedure.Plan{Delay: marginDelay(m.cfg.Topo.Dims, m.cfg.Periods.LinkPeriod), DrainTimeout: aloneDrain}
	if c := &m.configuration.known; c.Number > 0 {
		p.Delay, p.Absent = min(p.Delay, c.Delay), c.Absent
	} else if o := m.procedure.order; o != nil {
		known := planOf(o)
		p.Delay, p.Absent = min(p.Delay, known.Delay), known.Absent
	}
	p.Hop = min(express.HopBound(m.cfg.Periods.LinkPeriod, 0), p.Delay).Truncate(time.Microsecond)
	return p
}

// planOf returns the times and members of a checked order.
func planOf(o *lofamov1.ProcedureOrder) procedure.Plan {
	p := procedure.Plan{
		Delay: time.Duration(o.GetDelayUs()) * time.Microsecond, Hop: time.Duration(o.GetHopUs()) * time.Microsecond,
		DrainTimeout: time.Duration(o.GetDrainTimeoutMs()) * time.Millisecond,
	}
	for _, r := range o.GetAbsent() {
		if r <= procedure.MaxRank {
			p.Absent = append(p.Absent, int(r))
		}
	}
	return p
}

func orderOf(n *lofamov1.OrderNumber) procedure.Order {
	return procedure.Order{Term: n.GetTerm(), Count: n.GetCount()}
}

// inhibited reports whether new deferrable messages are held back (§4.5.3).
func (m *Machine) inhibited() bool {
	return m.procedure.machine != nil && m.procedure.machine.Inhibited()
}

// onProcedureOrder handles a verified order of a supervisor: an order for this half, to begin or to report the outcome,
// or another half's broadcast.
func (m *Machine) onProcedureOrder(now time.Time, o servicenet.Opened) {
	p, asked := &m.procedure, o.Msg.GetProcedureOrder()
	if i := slices.IndexFunc(p.pending, func(b broadcastOrder) bool { return bytes.Equal(b.Envelope, o.Raw) }); i >= 0 {
		b := p.pending[i]
		p.pending = slices.Delete(p.pending, i, i+1)
		m.onBegun(now, asked, b, o.Name)
		return
	}
	switch {
	case asked.GetNode() != string(m.self):
		m.note(NoteRefused, "a %s order to %q", servicenet.OrderProcedure, asked.GetNode())
	case p.machine == nil:
		m.sayRefusal(asked, "this half knows no procedure")
	case p.runs.Judge(now, asked.GetNumber()) == order.Known:
		m.sayAgain()
	case asked.GetAsk():
		m.sayRefusal(asked, "nothing is known of this order")
	case m.oldOrder(now, asked, o.Name):
	case len(o.Raw)+procedure.OrderOverhead > m.expressRoom():
		m.sayRefusal(asked, fmt.Sprintf("the order has %d bytes: a broadcast takes %d", len(o.Raw), m.expressRoom()-procedure.OrderOverhead))
	default:
		p.runs.Take(now, asked.GetNumber())
		p.order, p.envelope = asked, o.Raw
		m.note(NoteProcedure, "procedure %d of term %d, ordered by %s: %s", asked.GetNumber().GetCount(), asked.GetNumber().GetTerm(),
			o.Name, asked.GetReason())
		m.stepProcedure(now, procedure.Start{Run: m.newRun(), Order: orderOf(asked.GetNumber()), Plan: planOf(asked),
			Diagnose: asked.GetDiagnose()})
	}
}

// oldOrder refuses an order of a former leader, and a copy of one (order.Runs).
func (m *Machine) oldOrder(now time.Time, o *lofamov1.ProcedureOrder, by string) bool {
	verdict := m.procedure.runs.Judge(now, o.GetNumber())
	if verdict == order.New || verdict == order.Known {
		return false
	}
	m.refuseRun("procedure", o.GetNumber(), by, verdict)
	return true
}

// onBegun handles an order that another half broadcast. The order must name that half.
func (m *Machine) onBegun(now time.Time, o *lofamov1.ProcedureOrder, b broadcastOrder, by string) {
	if at, ok := m.cfg.Topo.At(fault.NodeID(o.GetNode())); ok && at != b.origin || o.GetAsk() {
		m.note(NoteRefused, "a procedure order to %q, broadcast by %s", o.GetNode(), b.origin)
		return
	}
	if m.oldOrder(now, o, by) {
		return
	}
	if m.procedure.runs.Judge(now, o.GetNumber()) == order.New {
		m.procedure.runs.Take(now, o.GetNumber())
		m.procedure.order = o
	}
	rank := m.cfg.Topo.Dims.Rank(b.origin)
	m.stepProcedure(now, procedure.Heard{From: rank, Ordered: true, Message: procedure.Message{
		Key: procedure.Key{Wave: b.Wave, Starter: rank, Run: b.Run}, State: procedure.ErrorDetectPropagate,
		Diagnose: o.GetDiagnose(), Order: orderOf(o.GetNumber()), Plan: planOf(o),
	}})
}

// onManage handles a broadcast of the procedure.
func (m *Machine) onManage(now time.Time, msg express.Message) {
	p, dims := &m.procedure, m.cfg.Topo.Dims
	if p.machine == nil || !dims.Contains(msg.Origin) {
		return
	}
	body, begin, err := procedure.Decode(msg.Body)
	switch {
	case err != nil:
		m.note(NoteRefused, "a broadcast of %s: %v", msg.Origin, err)
	case begin != nil:
		if p.pending = append(p.pending, broadcastOrder{msg.Origin, *begin}); len(p.pending) > mostPending {
			p.pending = slices.Delete(p.pending, 0, 1)
		}
		m.out.Open = append(m.out.Open, begin.Envelope)
	case body != nil && body.Starter < dims.Places():
		ordered := p.order != nil && body.Order == orderOf(p.order.GetNumber())
		if ordered { // members and times come from the supervisor, not from the sender of the state
			body.Plan = planOf(p.order)
		}
		m.stepProcedure(now, procedure.Heard{From: dims.Rank(msg.Origin), Message: *body, Ordered: ordered})
	default: // of a later version
	}
}

// newRun returns a number that no procedure of this half has used: the number of the broadcast that begins it is used
// once in a boot epoch.
func (m *Machine) newRun() uint64 { return uint64(m.Epoch())<<32 ^ (m.ExpressNumber() + 1) }

// evidence makes this half begin a procedure, if allowed. It begins with the next tick, because this step handles
// another event.
func (m *Machine) evidence(format string, args ...any) {
	if m.cfg.Procedure.OnEvidence && m.procedure.machine != nil && m.procedure.suspect == "" {
		m.procedure.suspect = fmt.Sprintf(format, args...)
	}
}

// tickProcedure does the due work of a procedure.
func (m *Machine) tickProcedure(now time.Time) {
	p := &m.procedure
	if p.machine == nil { // the torus may have grown too large in the middle of a procedure
		m.tickDrain(now)
		return
	}
	if why := p.suspect; why != "" && now.Before(p.heedAt) {
		p.suspect = "" // the new evidence is the same as the last, or equivalent
	} else if why != "" {
		p.suspect, p.heedAt = "", now.Add(heedEvery)
		if !m.inhibited() {
			p.cause = why
		}
		m.stepProcedure(now, procedure.Start{Run: m.newRun(), Plan: m.alonePlan(), Diagnose: true})
	}
	if len(p.unsaid) > 0 {
		unsaid := p.unsaid
		p.unsaid = nil
		for i := range unsaid {
			m.sayManage(now, &unsaid[i])
		}
	}
	if !p.wake.IsZero() && !now.Before(p.wake) {
		m.stepProcedure(now, procedure.Tick{})
	}
	m.tickDrain(now)
}

// stepProcedure steps the machine and carries out its output. Events that result from the output are handled after it.
func (m *Machine) stepProcedure(now time.Time, ev procedure.Event) {
	p := &m.procedure
	p.queue = append(p.queue, ev)
	if p.busy {
		return
	}
	p.busy = true
	for len(p.queue) > 0 {
		ev := p.queue[0]
		p.queue = p.queue[1:]
		if !p.machine.Inhibited() {
			p.drain.holds = m.marked(now)
			p.machine.Step(now, procedure.Holds{Messages: p.drain.holds})
		}
		out := p.machine.Step(now, ev)
		m.doProcedure(now, ev, &out)
	}
	p.busy, p.queue = false, nil
}

func (m *Machine) doProcedure(now time.Time, ev procedure.Event, out *procedure.Output) {
	p := &m.procedure
	p.wake = out.Wake
	if out.Changed {
		m.out.Drains = true
		p.mayMask = false
		m.note(NoteProcedure, "procedure %d: %s%s", p.machine.Key().Wave, p.machine.State(), roundText(p.machine))
	}
	for i := range out.Broadcast {
		m.sayManage(now, &out.Broadcast[i])
	}
	for _, a := range out.Arrive {
		m.arriveAt(now, a)
	}
	if out.Changed && out.Ended == nil && p.machine.Key().Starter == m.rank() {
		m.sayStatus(m.procedureStatus())
	}
	if out.Diagnose {
		m.examineAll(now)
	}
	if out.MayMask {
		p.mayMask = true
		m.settleMask(now)
	}
	if out.Ended != nil {
		m.endProcedure(now, out.Ended)
	}
	if out.Refused != "" {
		m.refuseStart(ev, out.Refused)
	}
}

func roundText(m *procedure.Machine) string {
	if r := m.Round(); r > 0 && m.State() != procedure.Normal {
		return fmt.Sprintf(", round %d", r)
	}
	return ""
}

func (m *Machine) rank() int { return m.cfg.Topo.Dims.Rank(m.cfg.Topo.Coord) }

// refuseStart reports why there is no procedure: to the supervisor who ordered it, or in the log.
func (m *Machine) refuseStart(ev procedure.Event, why string) {
	m.procedure.stats.Refused++
	s, ok := ev.(procedure.Start)
	if ok && s.Order != (procedure.Order{}) {
		m.sayRefusal(m.procedure.order, why)
		return
	}
	m.note(NoteProcedure, "no procedure by this node: %s", why)
}

// sayManage broadcasts this half's state. For the beginning of an ordered procedure, that is the order itself.
func (m *Machine) sayManage(now time.Time, msg *procedure.Message) {
	p := &m.procedure
	body := msg.Append(nil)
	if p.envelope != nil && msg.State == procedure.ErrorDetectPropagate && msg.Order != (procedure.Order{}) {
		begin := procedure.Begin{Wave: msg.Wave, Run: msg.Run, Envelope: p.envelope}
		body = begin.Append(nil)
	}
	if _, err := m.raiseEureka(now, express.TopicManage, managePriority, body); err != nil { // its budget is spent, or there is no room
		if p.unsaid = append(p.unsaid, *msg); len(p.unsaid) > mostPending {
			p.unsaid = slices.Delete(p.unsaid, 0, 1)
		}
	}
}

// expressRoom returns the maximum length of a broadcast's body here.
func (m *Machine) expressRoom() int {
	return min(express.MaxBody, torus.MaxPayload(m.cfg.MaxFrame)-(express.MaxPayload-express.MaxBody))
}

// setOf returns the name of a set, which is unique to its procedure. In a torus with empty places the name has a
// checksum of them: nodes that hold another torus, while a node joins, have other members. Their sets never mix, so none
// completes without the new node.
func (m *Machine) setOf(k procedure.Key, s procedure.Set, round uint32) express.Barrier {
	name := fmt.Sprintf("p%x.%x.%x.%d.%x", k.Wave, k.Starter, k.Run, s, round)
	if dims := m.cfg.Topo.Dims; !dims.Full() {
		name = fmt.Sprintf("%s.%08x", name, crc32.ChecksumIEEE([]byte(dims.Short())))
	}
	return express.Barrier{Topic: express.TopicManage, Name: name, Generation: 1}
}

// arriveAt puts this half, and the absent members, into a set.
func (m *Machine) arriveAt(now time.Time, a procedure.Arrival) {
	// Sets of an abandoned round or procedure never become complete.
	m.leaveSets(now, func(b procedure.Arrival) bool {
		return b.Key != a.Key || b.Round != 0 && a.Round != 0 && b.Round != a.Round
	})
	members := m.cfg.Topo.Dims.Places()
	ranks := []int{m.rank()}
	for _, c := range m.cfg.Topo.Dims.Empty() { // nobody arrives there
		ranks = append(ranks, m.cfg.Topo.Dims.Rank(c))
	}
	for _, r := range a.Absent {
		if r < members {
			ranks = append(ranks, r)
		}
	}
	if err := m.stepBarriers(now, express.Arrive{Barrier: m.setOf(a.Key, a.Set, a.Round), Members: members, Ranks: ranks}); err != nil {
		m.note(NoteProcedure, "procedure %d: %s: %v", a.Wave, a.Set, err)
		return
	}
	m.procedure.sets = append(m.procedure.sets, procedure.Arrival{Key: a.Key, Set: a.Set, Round: a.Round})
}

// leaveSets stops this half's wait for some of its sets. While it waits, they take the places of barriers and are
// requested each second.
func (m *Machine) leaveSets(now time.Time, leave func(procedure.Arrival) bool) {
	p := &m.procedure
	p.sets = slices.DeleteFunc(p.sets, func(a procedure.Arrival) bool {
		if !leave(a) {
			return false
		}
		_ = m.stepBarriers(now, express.Leave{Barrier: m.setOf(a.Key, a.Set, a.Round)})
		return true
	})
}

// onManageBarrier handles a set that all members are in.
func (m *Machine) onManageBarrier(now time.Time, b express.Barrier) {
	p := &m.procedure
	if p.machine == nil {
		return
	}
	k, round := p.machine.Key(), p.machine.Round()
	for _, s := range [...]procedure.Complete{{Key: k, Set: procedure.Joined}, {Key: k, Set: procedure.Empty, Round: round},
		{Key: k, Set: procedure.Confirm, Round: round}} {
		if m.setOf(k, s.Set, s.Round) == b {
			m.stepProcedure(now, s)
			return
		}
	}
}

// inSet returns the ranks that are known to be in a set, and whether the set is known at all.
func (m *Machine) inSet(k procedure.Key, s procedure.Set) ([]int, bool) {
	return m.barriers.machine.Arrived(m.setOf(k, s, 0))
}

// endProcedure handles the end of a procedure at this half.
func (m *Machine) endProcedure(now time.Time, r *procedure.Result) {
	p := &m.procedure
	if r.Clear {
		p.stats.Clear++
	} else {
		p.stats.NotClear++
	}
	s := m.procedureStatus()
	s.State, s.Round, s.Clear, s.Held, s.Diagnosed = lofamov1.ProcedureState_PROCEDURE_NORMAL, r.Rounds, r.Clear, uint32(r.Held), r.Diagnose
	if !r.Clear {
		s.Silent, s.Holding = m.unaccounted(r)
	}
	for _, step := range r.Steps {
		s.Steps = append(s.Steps, &lofamov1.ProcedureStep{State: lofamov1.ProcedureState(step.State),
			TookUs: uint32(step.Took.Microseconds()), Held: uint32(step.Held)})
	}
	m.leaveSets(now, func(procedure.Arrival) bool { return true })
	m.note(NoteProcedure, "procedure %d is over: clear %t, %d rounds, silent %v, holding %v", r.Wave, r.Clear, r.Rounds, s.Silent, s.Holding)
	p.envelope, p.cause, p.mayMask = nil, "", false
	servicenet.FitProcedureStatus(s)
	p.last = s
	m.sayStatus(s)
	m.settleMask(now)
}
