package procedure

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// State is a state of Figure 7, by the paper's names.
type State uint8

// The states.
const (
	Normal State = iota + 1
	ErrorDetectPropagate
	SystemDrain
	NetworkClear
	DropPackets
	Decision
	Diagnostics
)

var stateNames = [...]string{
	Normal: "Normal", ErrorDetectPropagate: "ErrorDetectPropagate", SystemDrain: "SystemDrain", NetworkClear: "NetworkClear",
	DropPackets: "DropPackets", Decision: "Decision", Diagnostics: "Diagnostics",
}

// String returns the paper's name.
func (s State) String() string {
	if s.Valid() {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// Valid says whether s is one of the states.
func (s State) Valid() bool { return s >= Normal && s <= Diagnostics }

// Claim is what a node says of a round of the drain.
type Claim uint8

// The claims. The zero value is none.
const (
	NoClaim Claim = iota
	Empty         // it held no message from when it entered the round on
	Holding       // it did
)

// Message is what a node broadcasts.
type Message struct {
	Wave     uint64 // from 1
	State    State  // its own; Normal: the wave is over
	Round    uint32 // of the drain, from 1; 0 before it
	Starter  grid.Coord
	Claim    Claim // of the round
	Clear    bool  // in Decision and Diagnostics: the drain was complete
	Diagnose bool  // it wants diagnostics
}

// Timing sets how long states last.
type Timing struct {
	// Delay is the Network Delay: in it a broadcast reaches every node that can be reached. Hop is that of one hop.
	Delay, Hop time.Duration
	// DrainTimeout is how long is waited for messages that can be delivered, and answers; Drop for those that are delivered late.
	DrainTimeout, Drop time.Duration
	// Diagnose is as long as the tests take at most.
	Diagnose time.Duration
	// Rest is for how long after a procedure none is joined. Budget is how many of one starter are joined within Window.
	Rest   time.Duration
	Budget int
	Window time.Duration
}

// Longest is how long a node is out of Normal at most: the drain ends with a round that began just before its time-out.
func (t Timing) Longest() time.Duration {
	return t.Delay + t.DrainTimeout + t.round() + t.Drop + 2*t.Delay + t.Diagnose + 2*t.Delay
}

// round is how long a round of the drain takes, its NetworkClear included.
func (t Timing) round() time.Duration { return 4*t.Delay + 2*t.Hop }

// Validate names the first field that is not allowed.
func (t Timing) Validate() error {
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"delay", t.Delay}, {"hop", t.Hop}, {"drainTimeout", t.DrainTimeout}, {"drop", t.Drop}, {"diagnose", t.Diagnose}, {"rest", t.Rest}, {"window", t.Window}} {
		if f.d <= 0 || f.d > time.Hour {
			return fmt.Errorf("%s: given %s: want above 0, up to 1h", f.name, f.d)
		}
	}
	if t.Budget < 1 {
		return fmt.Errorf("budget: given %d: want at least 1", t.Budget)
	}
	return nil
}

// Event is what happens to the procedure at a node.
type Event interface{ procedureEvent() }

// Tick says that time has passed.
type Tick struct{}

// Start is a cause at this node: an error that was found, a supervisor's order. With Diagnose it wants diagnostics.
type Start struct{ Diagnose bool }

// Heard is another node's broadcast, each once or more often.
type Heard struct {
	From    grid.Coord
	Message Message
}

// Holds says how many messages this node holds now, whenever that changes.
type Holds struct{ Messages int }

// Members says which nodes must claim to be empty, this one or not: those that the map does not call FAILED.
type Members struct{ Nodes []grid.Coord }

func (Tick) procedureEvent()    {}
func (Start) procedureEvent()   {}
func (Heard) procedureEvent()   {}
func (Holds) procedureEvent()   {}
func (Members) procedureEvent() {}

// Output is what follows from a step.
type Output struct {
	Broadcast []Message
	Changed   bool    // State is another
	Diagnose  bool    // begin the tests of this node's links
	MayMask   bool    // the mask may be changed now, and at no other time
	Ended     *Result // the procedure is over at this node
	Refused   string  // why a Start is none
	Wake      time.Time
}

// Result is what became of a procedure.
type Result struct {
	Wave     uint64
	Starter  grid.Coord
	Clear    bool         // the drain was complete: all members had claimed to be empty
	Silent   []grid.Coord // members of which nothing was heard
	Holding  []grid.Coord // members that held messages in the last round
	Rounds   uint32
	Diagnose bool // the tests were made
}

// Machine is the procedure at one node. One goroutine owns it.
type Machine struct {
	self    grid.Coord
	timing  Timing
	members []grid.Coord

	state    State
	wave     uint64 // the one under way, or the last that is over
	starter  grid.Coord
	round    uint32
	claims   map[grid.Coord]Claim // of the round
	spoke    map[grid.Coord]bool  // in the wave
	claimed  bool
	held     bool // a message since the round began
	clear    bool
	diagnose bool
	masked   bool // MayMask was said, or is not to be

	deadline   time.Time // of the state
	drainUntil time.Time
	until      time.Time // Normal at the latest
	restUntil  time.Time
	toldAt     time.Time // that a wave is over
	begun      map[grid.Coord][]time.Time

	holds int
	out   Output
}

// New returns a machine in Normal that knows of no wave. The timing must have passed Validate.
func New(self grid.Coord, timing Timing) *Machine {
	if err := timing.Validate(); err != nil {
		panic("procedure: New with a timing that was not validated: " + err.Error())
	}
	return &Machine{self: self, timing: timing, state: Normal, claims: map[grid.Coord]Claim{}, spoke: map[grid.Coord]bool{}, begun: map[grid.Coord][]time.Time{}}
}

// State is where it is.
func (m *Machine) State() State { return m.state }

// Wave is the number of the procedure under way, or of the last.
func (m *Machine) Wave() uint64 { return m.wave }

// Inhibited says whether new messages are to be held back: in every state but Normal (§4.5.3).
func (m *Machine) Inhibited() bool { return m.state != Normal }

// Step takes one event. Time must not run backwards.
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
	case Members:
		m.members = slices.Clone(ev.Nodes)
	}
	for m.state != Normal && m.advance(now) {
	}
	if m.state != Normal {
		m.out.Wake = earlier(m.deadline, m.until)
	}
	return m.out
}

// start begins a procedure here.
func (m *Machine) start(now time.Time, ev Start) {
	switch {
	case m.state != Normal:
		if ev.Diagnose && !m.diagnose {
			m.diagnose = true
			m.say(Message{})
		}
		m.out.Refused = "a procedure is under way"
	case now.Before(m.restUntil):
		m.out.Refused = "the last procedure is too short a time ago"
	case !m.allowed(now, m.self):
		m.out.Refused = "this node has started as many as it may"
	default:
		m.leave(now, m.wave+1, m.self)
		m.diagnose = ev.Diagnose
		m.becomeErrorDetectPropagate(now)
	}
}

// leave leaves Normal.
func (m *Machine) leave(now time.Time, wave uint64, starter grid.Coord) {
	m.until = now.Add(m.timing.Longest())
	m.join(now, wave, starter)
}

// join is in a wave from now on.
func (m *Machine) join(now time.Time, wave uint64, starter grid.Coord) {
	m.wave, m.starter, m.round, m.clear, m.diagnose, m.masked = wave, starter, 0, false, false, false
	m.drainUntil = time.Time{}
	clear(m.claims)
	clear(m.spoke)
	m.spoke[m.self] = true
	m.begun[starter] = append(m.begun[starter], now)
}

// allowed says whether one more of a starter's procedures is joined.
func (m *Machine) allowed(now time.Time, starter grid.Coord) bool {
	for of, begun := range m.begun { // whoever it was: names that are made up are not kept for ever
		if begun = slices.DeleteFunc(begun, func(at time.Time) bool { return now.Sub(at) >= m.timing.Window }); len(begun) == 0 {
			delete(m.begun, of)
		} else {
			m.begun[of] = begun
		}
	}
	return len(m.begun[starter]) < m.timing.Budget
}

// aheadMost is how far ahead a wave may be that is believed: numbers are not to be used up by one that lies.
const aheadMost = 1 << 20

// hear takes a broadcast.
func (m *Machine) hear(now time.Time, ev Heard) {
	msg := ev.Message
	if !msg.State.Valid() || msg.Wave == 0 || msg.Wave > m.wave+aheadMost || ev.From == m.self {
		return
	}
	switch {
	case msg.State == Normal:
		m.hearOver(now, msg)
	case msg.Wave < m.wave, m.state == Normal && msg.Wave == m.wave:
		m.tellOver(now)
	case msg.Wave > m.wave:
		if m.state == Normal && now.Before(m.restUntil) || !m.allowed(now, msg.Starter) {
			return
		}
		if m.state == Normal {
			m.leave(now, msg.Wave, msg.Starter)
		} else {
			m.join(now, msg.Wave, msg.Starter)
		}
		m.follow(now, ev)
	default:
		m.follow(now, ev)
	}
}

// hearOver hears that a wave is over. Who has just started one that others have had, for it had forgotten, starts the next.
func (m *Machine) hearOver(now time.Time, msg Message) {
	switch {
	case msg.Wave < m.wave:
	case m.state == Normal:
		m.wave = msg.Wave
	case m.state == ErrorDetectPropagate && m.starter == m.self:
		m.wave = msg.Wave + 1
		m.say(Message{})
	default:
		m.wave = msg.Wave
		m.becomeNormal(now)
	}
}

// tellOver tells who is late that the wave is over: not oftener than that it can be heard.
func (m *Machine) tellOver(now time.Time) {
	if m.state == Normal && now.Sub(m.toldAt) >= m.timing.Delay {
		m.toldAt = now
		m.say(Message{})
	}
}

// follow takes what another node of the wave says, and goes to where that one is, if that is later.
func (m *Machine) follow(now time.Time, ev Heard) {
	msg := ev.Message
	m.spoke[ev.From] = true
	m.diagnose = m.diagnose || msg.Diagnose
	if later(msg, m.state, m.round) {
		switch msg.State {
		case ErrorDetectPropagate:
			m.becomeErrorDetectPropagate(now)
		case SystemDrain:
			m.becomeSystemDrain(now, msg.Round)
		case NetworkClear:
			m.becomeNetworkClear(now, msg.Round)
		case DropPackets:
			m.becomeDropPackets(now, msg.Round)
		case Decision:
			m.becomeDecision(now, msg.Round, msg.Clear)
		case Diagnostics:
			m.becomeDiagnostics(now, msg.Clear)
		default:
		}
	}
	if msg.Claim != NoClaim && msg.Round == m.round && m.claims[ev.From] != Holding {
		m.claims[ev.From] = msg.Claim
	}
	if msg.Claim == Holding && msg.Round >= m.round { // also in Decision: what was thought clear is not
		m.clear = false
	}
}

// phase orders the states of one round; those of the drain come in rounds.
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

// later says whether a message is from a later state of the same wave.
func later(msg Message, s State, round uint32) bool {
	a1, a2, a3 := phase(msg.State, msg.Round)
	b1, b2, b3 := phase(s, round)
	return cmp.Or(cmp.Compare(a1, b1), cmp.Compare(a2, b2), cmp.Compare(a3, b3)) > 0
}

// hold notes what this node holds. Within a round, and behind it, that it holds something counts, and is said once.
func (m *Machine) hold(_ time.Time, n int) {
	m.holds = n
	if n == 0 || m.state != SystemDrain && m.state != Decision && m.state != Diagnostics || m.state == Diagnostics && m.masked {
		return // others may go on already, when the masks have changed
	}
	m.clear = false
	if !m.held {
		m.held = true
		m.claims[m.self] = Holding
		m.say(Message{Claim: Holding})
	}
}

// advance does what is due in the present state, and says whether there may be more.
func (m *Machine) advance(now time.Time) bool {
	if !now.Before(m.until) {
		m.becomeNormal(now)
		return false
	}
	if m.state == SystemDrain && m.claimed && m.complete() {
		m.becomeDecision(now, m.round, true)
		return true
	}
	if now.Before(m.deadline) && (m.state != SystemDrain || !m.claimed || !m.anyHolding()) {
		return false
	}
	switch m.state {
	case ErrorDetectPropagate:
		m.becomeSystemDrain(now, 1)
	case SystemDrain:
		m.endRound(now)
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
			m.becomeDiagnostics(now, m.clear)
		} else {
			m.becomeNormal(now)
		}
	case Diagnostics:
		m.endDiagnostics(now)
	default:
	}
	return true
}

// endRound claims to be empty when the round has lasted two Network Delays, and gives it up after two more.
func (m *Machine) endRound(now time.Time) {
	if m.held || m.claimed {
		m.becomeNetworkClear(now, m.round)
		return
	}
	m.claimed = true
	m.claims[m.self] = Empty
	m.say(Message{Claim: Empty})
	m.deadline = now.Add(2 * m.timing.Delay)
}

// anyHolding says whether somebody holds something: then the round comes to nothing.
func (m *Machine) anyHolding() bool {
	return slices.ContainsFunc(m.members, func(n grid.Coord) bool { return m.claims[n] == Holding })
}

// complete says whether all members have claimed to be empty in this round. Who knows of none yet can tell of nobody.
func (m *Machine) complete() bool {
	return !m.held && len(m.members) > 0 && !slices.ContainsFunc(m.members, func(n grid.Coord) bool { return m.claims[n] != Empty })
}

// endDiagnostics lets the mask change, and after that has the last ones come so far.
func (m *Machine) endDiagnostics(now time.Time) {
	if m.masked {
		m.becomeNormal(now)
		return
	}
	m.masked = true
	m.out.MayMask = m.clear
	m.deadline = now.Add(2 * m.timing.Delay)
}

// say broadcasts what is in a message beside what this machine knows.
func (m *Machine) say(msg Message) {
	msg.Wave, msg.State, msg.Round, msg.Starter, msg.Clear, msg.Diagnose = m.wave, m.state, m.round, m.starter, m.clear, m.diagnose
	m.out.Broadcast = append(m.out.Broadcast, msg)
}

func (m *Machine) enter(now time.Time, s State, lasting time.Duration) {
	m.state, m.deadline, m.out.Changed = s, now.Add(lasting), true
}

func (m *Machine) becomeErrorDetectPropagate(now time.Time) {
	m.enter(now, ErrorDetectPropagate, m.timing.Delay)
	m.say(Message{})
}

func (m *Machine) becomeSystemDrain(now time.Time, round uint32) {
	if m.drainUntil.IsZero() {
		m.drainUntil = now.Add(m.timing.DrainTimeout)
	}
	m.round, m.claimed, m.held = round, false, m.holds > 0
	clear(m.claims)
	m.enter(now, SystemDrain, 2*m.timing.Delay)
	if m.held {
		m.claims[m.self] = Holding
		m.say(Message{Claim: Holding})
		return
	}
	m.say(Message{})
}

func (m *Machine) becomeNetworkClear(now time.Time, round uint32) {
	if m.drainUntil.IsZero() { // it comes late
		m.drainUntil = now.Add(m.timing.DrainTimeout)
	}
	m.round = round
	m.enter(now, NetworkClear, 2*m.timing.Hop)
}

func (m *Machine) becomeDropPackets(now time.Time, round uint32) {
	m.round = max(m.round, round)
	m.enter(now, DropPackets, m.timing.Drop)
	m.say(Message{})
}

func (m *Machine) becomeDecision(now time.Time, round uint32, clear bool) {
	m.round = max(m.round, round)
	m.clear, m.held = clear && m.holds == 0, m.holds > 0
	m.enter(now, Decision, 2*m.timing.Delay)
	m.say(Message{})
}

func (m *Machine) becomeDiagnostics(now time.Time, clear bool) {
	m.diagnose, m.masked = true, false
	m.clear, m.held = clear && m.holds == 0, m.holds > 0
	m.out.Diagnose = true
	m.enter(now, Diagnostics, m.timing.Diagnose)
	m.say(Message{})
}

func (m *Machine) becomeNormal(now time.Time) {
	r := &Result{Wave: m.wave, Starter: m.starter, Clear: m.clear, Rounds: m.round, Diagnose: m.state == Diagnostics}
	for _, n := range m.members {
		switch {
		case !m.spoke[n]:
			r.Silent = append(r.Silent, n)
		case m.claims[n] == Holding:
			r.Holding = append(r.Holding, n)
		}
	}
	if r.Clear {
		r.Silent, r.Holding = nil, nil // who came late may not have heard all the claims
	}
	m.out.Ended = r
	m.restUntil = now.Add(m.timing.Rest)
	m.enter(now, Normal, 0)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
