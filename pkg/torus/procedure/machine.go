package procedure

import (
	"cmp"
	"slices"
	"time"
)

// Event is an input of the procedure at a node.
type Event interface{ procedureEvent() }

// Tick says that time has passed.
type Tick struct{}

// Start is a cause at this node: a detected error or, with an Order, a supervisor's order. Diagnose requests
// diagnostics. Run must be new at this node.
type Start struct {
	Run      uint64
	Order    Order
	Plan     Plan
	Diagnose bool
}

// Heard is another node's broadcast, each once or more often.
type Heard struct {
	From int // rank
	Message
	// Ordered: the order that the message names was verified here, and is not older than the last. Otherwise the
	// message's Order is ignored.
	Ordered bool
}

// Holds gives the number of messages that can wait and that this node holds now. In Normal only the number at the
// exit counts, so send it before the event that causes the exit.
type Holds struct{ Messages int }

// Complete says that all members are in a set of Output.Arrive.
type Complete struct {
	Key
	Set   Set
	Round uint32
}

// Moved says that the torus has changed, and gives this node's rank and limits in it, which must have passed Validate. A
// procedure of the former torus is over here, and not clear: its sets are not those of the new torus.
type Moved struct {
	Self   int
	Limits Limits
}

func (Tick) procedureEvent()     {}
func (Moved) procedureEvent()    {}
func (Start) procedureEvent()    {}
func (Heard) procedureEvent()    {}
func (Holds) procedureEvent()    {}
func (Complete) procedureEvent() {}

// Arrival is a set that this node is in from now on. Except in Stuck, the absent nodes are members too.
type Arrival struct {
	Key
	Set    Set
	Round  uint32 // of Empty and Confirm
	Absent []int
}

// Output is what follows from a step, in this order.
type Output struct {
	Broadcast []Message
	Arrive    []Arrival
	Changed   bool    // State is another, or the procedure is
	Diagnose  bool    // begin the tests of this node's links
	MayMask   bool    // the mask may be changed now, and at no other time of the procedure
	Ended     *Result // the procedure is over at this node
	Refused   string  // why a Start is none
	Wake      time.Time
}

// Machine is the procedure at one node. One goroutine owns it.
type Machine struct {
	self   int
	limits Limits

	state    State
	key      Key    // the procedure under way, or the last one
	wave     uint64 // the highest one that counts for this node's own next
	order    Order
	plan     Plan
	round    uint32
	vetoed   uint32 // the last round in which a node held a message after its claim
	cleared  uint32 // the round in which the network was clear, if it was
	claimed  bool   // this node is in Empty of the round
	confirm  bool   // and in Confirm
	clear    bool
	diagnose bool // diagnostics are requested
	asked    bool // this node has requested them
	masked   bool // MayMask was given, or must not be

	emptyAt    time.Time // since when nothing is held, within the round; zero: something is
	deadline   time.Time // of the state
	drainUntil time.Time
	until      time.Time // Normal at the latest
	sayAt      time.Time // while the drain lasts: when the starter says again where it is
	restUntil  time.Time
	enteredAt  time.Time
	steps      [numStates]Step
	changes    int                 // from one procedure to another, since Normal was left
	began      map[int][]time.Time // procedures without order that were joined, by starter
	over       over
	ordered    Order // the last order that has ended

	holds int
	out   Output
}

// New returns a machine in Normal that knows of no procedure. The limits must have passed Validate.
func New(self int, limits Limits) *Machine {
	if err := limits.Validate(); err != nil {
		panic("procedure: New with limits that were not validated: " + err.Error())
	}
	return &Machine{self: self, limits: limits, state: Normal, began: map[int][]time.Time{}}
}

// State is where it is.
func (m *Machine) State() State { return m.state }

// Key names the procedure under way, or the last one.
func (m *Machine) Key() Key { return m.key }

// Order returns the order of the procedure under way, or of the last one.
func (m *Machine) Order() Order { return m.order }

// Plan returns the plan of the procedure under way, or of the last one.
func (m *Machine) Plan() Plan { return m.plan }

// Round returns the round of the drain.
func (m *Machine) Round() uint32 { return m.round }

// Clear reports whether the drain was complete, from Decision on.
func (m *Machine) Clear() bool { return m.clear }

// Inhibited reports whether new messages that can wait must be held back: in every state but Normal (§4.5.3).
func (m *Machine) Inhibited() bool { return m.state != Normal }

// Step handles one event. Time must not run backwards.
func (m *Machine) Step(now time.Time, ev Event) Output {
	m.out = Output{}
	switch ev := ev.(type) {
	case Tick:
	case Start:
		m.start(now, ev)
	case Heard:
		m.hear(now, ev)
	case Holds:
		m.hold(now, ev.Messages)
	case Complete:
		m.complete(now, ev)
	case Moved:
		m.self, m.limits = ev.Self, ev.Limits
		if m.state != Normal {
			m.clear = false
			m.becomeNormal(now, true)
		}
	}
	for m.state != Normal && m.advance(now) {
	}
	if m.state != Normal {
		m.out.Wake = m.wake()
	}
	return m.out
}

func (m *Machine) wake() time.Time {
	w := m.deadline
	for _, at := range [...]time.Time{m.until, m.sayAt, m.claimAt()} {
		if !at.IsZero() && at.Before(w) {
			w = at
		}
	}
	return w
}

// claimAt returns when this node may claim to be empty; zero: not in the present state.
func (m *Machine) claimAt() time.Time {
	if m.state != SystemDrain || m.claimed || m.emptyAt.IsZero() {
		return time.Time{}
	}
	return m.emptyAt.Add(2 * m.plan.Hop)
}

// start begins a procedure here. An order replaces a procedure that a node began by itself; any other procedure under
// way goes on.
func (m *Machine) start(now time.Time, ev Start) {
	ordered := ev.Order != Order{}
	switch err := ev.Plan.Validate(); {
	case err != nil:
		m.out.Refused = err.Error()
		return
	case m.state != Normal && (!ordered || ev.Order.Compare(m.order) <= 0):
		m.out.Refused = "a procedure is under way"
		if ev.Diagnose && m.state == Decision {
			m.out.Refused += ", and it is too late to request diagnostics"
		}
		m.request(ev.Diagnose)
		return
	case ordered:
	case now.Before(m.restUntil):
		m.out.Refused = "the last procedure is too short a time ago"
		return
	case !m.allowed(now, m.self):
		m.out.Refused = "this node has started as many as it may"
		return
	case ev.Plan.Delay > m.limits.Delay || ev.Plan.DrainTimeout > m.limits.Drain:
		m.out.Refused = "it takes longer than a node alone may ask for"
		return
	}
	asked := m.state != Normal && m.asked // in the procedure that the order replaces
	m.join(now, Key{m.wave + 1, m.self, ev.Run}, ev.Order, ev.Plan)
	m.asked = ev.Diagnose || asked
	m.diagnose = m.asked
	m.becomeErrorDetectPropagate(now)
}

// request adds this node's request for diagnostics to the procedure under way, until this node is in Decision. After
// that, other nodes may return to Normal before they receive the request. This node would then change its mask while
// they accept messages.
func (m *Machine) request(diagnose bool) {
	if !diagnose || m.state == Decision {
		return
	}
	m.asked = true
	if !m.diagnose {
		m.diagnose = true
		m.say(false)
	}
}

// join makes the node a member of a procedure. After a change from one procedure to another the time of the first
// still bounds the node, unless the other is a supervisor's. Then the time of the order's first name bounds it,
// because a node that knows an order may rename it again and again.
func (m *Machine) join(now time.Time, k Key, order Order, p Plan) {
	if m.state != Normal {
		m.over.add(m.key)
	}
	if m.state == Normal || order != (Order{}) && order != m.order {
		m.until = now.Add(p.Longest(&m.limits))
	}
	m.changes++
	if m.state == Normal {
		m.steps, m.changes = [numStates]Step{}, 0
		m.enteredAt = now
	}
	m.key, m.order, m.plan = k, order, p
	if k.Wave > m.wave && k.Wave-m.wave <= aheadMost {
		m.wave = k.Wave
	}
	m.round, m.vetoed, m.cleared, m.clear, m.masked = 0, 0, 0, false, false
	m.claimed, m.confirm = false, false
	m.diagnose, m.asked = false, false
	m.drainUntil, m.sayAt = time.Time{}, time.Time{}
	m.out.Changed = true
	if order == (Order{}) {
		m.began[k.Starter] = append(m.began[k.Starter], now)
	}
	m.arrive(Joined)
}

// allowed reports whether the node may join one more of a starter's procedures.
func (m *Machine) allowed(now time.Time, starter int) bool {
	for of, began := range m.began { // of any starter: forged names must expire too
		if began = slices.DeleteFunc(began, func(at time.Time) bool { return now.Sub(at) >= m.limits.Window }); len(began) == 0 {
			delete(m.began, of)
		} else {
			m.began[of] = began
		}
	}
	return len(m.began[starter]) < m.limits.Budget
}

// aheadMost is how far ahead a wave may be for this node to count on from that wave, so that a liar cannot use the
// numbers up. Others' procedures are joined with any wave: a node that begins cold knows none, and counts from 1
// again, which counts for as much.
const aheadMost = 1 << 20

// mostChanges bounds the changes to another procedure while a node is out of Normal, except for orders: two or three
// starters at once are honest.
const mostChanges = 4

// hear handles a broadcast.
func (m *Machine) hear(now time.Time, ev Heard) {
	if !ev.Ordered {
		ev.Order = Order{}
	}
	if !ev.State.Valid() || ev.Wave == 0 || ev.From == m.self || m.over.has(ev.Key) {
		return
	}
	switch {
	case m.state != Normal && ev.Key == m.key && ev.State == Normal:
		if ev.From == m.key.Starter && m.state != Diagnostics { // which ends by itself, a Network Delay later at most, with the masks changed
			m.becomeNormal(now, false)
		}
	case m.state != Normal && ev.Key == m.key:
		m.follow(now, &ev, false)
	case ev.State == Normal: // it is over, so there is nothing to join
	case m.state != Normal && !before(ev.Key, ev.Order, m.key, m.order):
	case !m.joins(now, &ev):
	default:
		asked := m.state != Normal && m.asked // in the other procedure
		m.join(now, ev.Key, ev.Order, ev.Plan)
		m.follow(now, &ev, true)
		m.request(asked)
	}
}

// joins reports whether this node takes part in another node's procedure.
func (m *Machine) joins(now time.Time, ev *Heard) bool {
	switch {
	case ev.Plan.Validate() != nil:
		return false
	case ev.Order != Order{}:
		return ev.Order != m.ordered
	case m.state == Normal && now.Before(m.restUntil), m.state != Normal && m.changes >= mostChanges:
		return false
	}
	return ev.Plan.Delay <= m.limits.Delay && ev.Plan.DrainTimeout <= m.limits.Drain && m.allowed(now, ev.Starter)
}

// follow handles another node's statement. It moves to that node's state if that is later, or if this node has just
// joined.
func (m *Machine) follow(now time.Time, ev *Heard, joined bool) {
	m.diagnose = m.diagnose || ev.Diagnose
	if m.order == (Order{}) {
		m.order = ev.Order // it was verified meanwhile
	}
	if m.state == Decision && m.diagnose {
		m.deadline = now // it is decided
	}
	if ev.Holding {
		m.vetoed = max(m.vetoed, ev.Round)
		m.clear = m.clear && m.cleared > m.vetoed // a round that counted as clear is not
	}
	if !joined && !later(ev.State, ev.Round, m.state, m.round) {
		return
	}
	switch ev.State {
	case ErrorDetectPropagate:
		m.becomeErrorDetectPropagate(now)
	case SystemDrain:
		m.becomeSystemDrain(now, ev.Round)
	case NetworkClear:
		m.becomeNetworkClear(now, ev.Round, false)
	case DropPackets:
		m.becomeDropPackets(now, ev.Round)
	case Decision:
		m.becomeDecision(now, ev.Round, ev.Clear)
	case Diagnostics:
		m.becomeDiagnostics(now, ev.Round, ev.Clear)
	default:
	}
}

// phase orders the states of one procedure; those of the drain come in rounds.
func phase(s State, round uint32) (uint8, uint32, uint8) {
	switch s {
	case ErrorDetectPropagate:
		return 1, 0, 0
	case SystemDrain:
		return 2, round, 1
	case NetworkClear:
		return 2, round, 2
	case DropPackets:
		return 3, 0, 0
	case Decision:
		return 4, 0, 0
	case Diagnostics:
		return 5, 0, 0
	default:
		return 0, 0, 0
	}
}

// later reports whether a state comes after another of the same procedure.
func later(a State, aRound uint32, b State, bRound uint32) bool {
	a1, a2, a3 := phase(a, aRound)
	b1, b2, b3 := phase(b, bRound)
	return cmp.Or(cmp.Compare(a1, b1), cmp.Compare(a2, b2), cmp.Compare(a3, b3)) > 0
}

// hold notes the number of messages that this node holds. A node with messages after its claim to be empty cannot
// confirm: the round has failed, and hold announces that.
func (m *Machine) hold(now time.Time, n int) {
	m.holds = n
	if n == 0 {
		if m.emptyAt.IsZero() {
			m.emptyAt = now
		}
		return
	}
	m.emptyAt = time.Time{}
	switch {
	case m.state == SystemDrain && m.claimed:
		m.becomeNetworkClear(now, m.round, true)
	// others may go on already, when the masks have changed
	case m.state == Decision && m.clear, m.state == Diagnostics && m.clear && !m.masked:
		m.clear = false
		m.say(true)
	}
}

// complete notes that all members are in a set.
func (m *Machine) complete(now time.Time, ev Complete) {
	if m.state == Normal || ev.Key != m.key {
		return
	}
	switch {
	case ev.Set == Joined && m.state == ErrorDetectPropagate:
		m.becomeSystemDrain(now, 1)
	case m.state != SystemDrain || ev.Round != m.round || !m.claimed:
	case ev.Set == Empty && !m.confirm:
		m.confirm = true
		m.arrive(Confirm)
	case ev.Set == Confirm && m.confirm:
		m.becomeDecision(now, m.round, true)
	default:
	}
}

// advance takes the transitions that are due in the present state, and reports whether there may be more.
func (m *Machine) advance(now time.Time) bool {
	if !now.Before(m.until) {
		m.becomeNormal(now, true)
		return false
	}
	if at := m.claimAt(); !at.IsZero() && !now.Before(at) {
		m.claimed = true
		m.arrive(Empty)
		return true
	}
	if !m.sayAt.IsZero() && !now.Before(m.sayAt) {
		m.say(false)
		m.sayAt = now.Add(m.plan.Repeat())
	}
	if now.Before(m.deadline) {
		return false
	}
	switch m.state {
	case ErrorDetectPropagate:
		m.becomeSystemDrain(now, 1)
	case SystemDrain: // the time-out
		m.becomeNetworkClear(now, m.round, false)
	case NetworkClear:
		if now.Before(m.drainUntil) {
			m.becomeSystemDrain(now, m.round+1)
		} else {
			m.becomeDropPackets(now, m.round)
		}
	case DropPackets:
		m.becomeDecision(now, m.round, false)
	case Decision:
		if m.diagnose {
			m.becomeDiagnostics(now, m.round, m.clear)
		} else {
			m.becomeNormal(now, false)
		}
	case Diagnostics:
		m.endDiagnostics(now)
	default:
	}
	return true
}

// endDiagnostics lets the mask change, and after that has the last ones come so far.
func (m *Machine) endDiagnostics(now time.Time) {
	if m.masked {
		m.becomeNormal(now, false)
		return
	}
	m.masked = true
	m.out.MayMask = m.clear
	m.deadline = now.Add(m.plan.Delay)
}
