package procedure

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Timing bounds the supervisors' waits, beside the plan's own times.
type Timing struct {
	// Again is the time a node has to answer before it is asked again.
	Again time.Duration
	// Begin is the time a starter has to begin before the next one is asked.
	Begin time.Duration
	// Quiet is the time left to answer after the last request.
	Quiet time.Duration
	// Asks is the number of requests to each node that has not said that it is through.
	Asks int
}

// DefaultTiming allows for answers that travel by way of neighbours.
func DefaultTiming() Timing {
	return Timing{Again: 400 * time.Millisecond, Begin: 2500 * time.Millisecond, Quiet: 1500 * time.Millisecond, Asks: 4}
}

// Event is an input of the machine.
type Event interface{ procedureEvent() }

// Tick says that time has passed.
type Tick struct{}

// Said is a half's status. The signature has already proven the half's identity.
type Said struct{ Status *lofamov1.ProcedureStatus }

func (Tick) procedureEvent() {}
func (Said) procedureEvent() {}

// Order is to be sent.
type Order struct {
	Node fault.NodeID
	Ask  bool // request only the outcome, and begin no procedure
	Try  int  // of this node, from 1
}

// Output is what follows from a step.
type Output struct {
	Orders []Order // by starter, or by rank
	News   bool    // Progress is another
	Done   bool    // it is over, or has failed
	Wake   time.Time
}

type phase uint8

const (
	beginning phase = iota + 1
	underWay
	ending
	over
	failed
)

// node is the known state of one node.
type node struct {
	rank    int
	member  bool
	end     *lofamov1.ProcedureStatus // final status; nil: none yet
	refused string                    // reason why it takes, or took, no part
	asked   int
}

func (n *node) done() bool { return n.end != nil || n.refused != "" }

// Machine follows one procedure. It is not safe for concurrent use.
type Machine struct {
	plan   Plan
	timing Timing
	nodes  map[fault.NodeID]*node

	phase  phase
	at     int       // index into plan.Starters: the node asked to begin
	again  time.Time // the next orders
	until  time.Time // the phase lasts at most
	asks   int
	asking int // number of requests to each silent node; 0: no node has the order
	state  lofamov1.ProcedureState
	round  uint32
	ended  uint32 // members that are done
	out    Output

	refusals []string // why starters were given up
}

// New returns a machine that asks its first starter at once.
func New(now time.Time, plan Plan, timing Timing) *Machine {
	m := follow(plan, timing)
	m.phase, m.asking = beginning, timing.Asks
	m.turn(now)
	return m
}

// Resume returns a machine for a procedure that an earlier leader ordered. From now on, and for as long as the
// procedure may last, it asks the nodes that had the order for its outcome.
func Resume(now time.Time, plan Plan, timing Timing) *Machine {
	m := follow(plan, timing)
	m.phase = underWay
	m.becomeEnding(now)
	m.again, m.asking = now, timing.Asks+int(plan.Longest()/max(timing.Again, time.Millisecond))
	return m
}

// Heard reports whether any node took part. If none did, the order reached no node.
func (m *Machine) Heard() bool {
	for _, n := range m.nodes {
		if n.end != nil {
			return true
		}
	}
	return false
}

// follow returns a machine without a phase.
func follow(plan Plan, timing Timing) *Machine {
	m := &Machine{plan: plan, timing: timing, nodes: make(map[fault.NodeID]*node, len(plan.Nodes)),
		state: lofamov1.ProcedureState_PROCEDURE_NORMAL}
	for rank, id := range plan.Nodes {
		if id != "" {
			m.nodes[id] = &node{rank: rank}
		}
	}
	for _, rank := range plan.Members {
		m.nodes[plan.Nodes[rank]].member = true
	}
	return m
}

// Step processes one event. Time must not run backwards.
func (m *Machine) Step(now time.Time, ev Event) Output {
	m.out = Output{}
	if said, ok := ev.(Said); ok {
		m.take(now, said.Status)
	}
	for m.advance(now) {
	}
	switch m.phase {
	case beginning:
		m.out.Wake = earlier(m.again, m.until)
	case underWay:
		m.out.Wake = m.until
	case ending:
		m.out.Wake = m.again
	default:
		m.out.Done = true
	}
	return m.out
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// take processes a half's status.
func (m *Machine) take(now time.Time, st *lofamov1.ProcedureStatus) {
	id := fault.NodeID(st.GetNode())
	n := m.nodes[id]
	if n == nil || st.GetHalf() != lofamov1.Half_HALF_DNP { // a host half's status is only a sign of life
		return
	}
	switch {
	case st.GetError() != "":
		m.refuse(now, id, n, st.GetError())
	case st.GetState() != lofamov1.ProcedureState_PROCEDURE_NORMAL:
		m.enter(now, id, st)
	case n.end == nil:
		n.end, n.refused = st, ""
		m.count()
		if m.phase == beginning || m.phase == underWay {
			m.becomeEnding(now)
		}
	}
}

// refuse records the reason why a node begins no procedure, or knows of none.
func (m *Machine) refuse(now time.Time, id fault.NodeID, n *node, why string) {
	switch {
	case n.done():
	case m.phase != beginning:
		n.refused = why
		m.count()
	case id == m.starter():
		m.giveUp(now, why)
	}
}

// enter notes the state of a node that was ordered to begin.
func (m *Machine) enter(now time.Time, id fault.NodeID, st *lofamov1.ProcedureStatus) {
	if m.phase == beginning {
		m.becomeUnderWay(now, id)
	}
	if m.phase != underWay || id != m.starter() || !later(st, m.state, m.round) {
		return
	}
	m.state, m.round, m.out.News = st.GetState(), st.GetRound(), true
}

// later reports whether a status is of a later state: statuses may arrive out of order.
func later(st *lofamov1.ProcedureStatus, state lofamov1.ProcedureState, round uint32) bool {
	drains := func(s lofamov1.ProcedureState) bool {
		return s == lofamov1.ProcedureState_PROCEDURE_SYSTEM_DRAIN || s == lofamov1.ProcedureState_PROCEDURE_NETWORK_CLEAR
	}
	if drains(st.GetState()) && drains(state) && st.GetRound() != round { // these two alternate
		return st.GetRound() > round
	}
	return st.GetState() > state
}

// count counts the nodes that are through.
func (m *Machine) count() {
	was := m.ended
	m.ended = 0
	for _, n := range m.nodes {
		if n.member && n.done() {
			m.ended++
		}
	}
	m.out.News = m.out.News || m.ended != was
}

// starter returns the node that is asked to begin, or has begun.
func (m *Machine) starter() fault.NodeID {
	if m.at < len(m.plan.Starters) {
		return m.plan.Starters[m.at]
	}
	return ""
}

// giveUp gives up on a starter and turns to the next one.
func (m *Machine) giveUp(now time.Time, why string) {
	m.refusals = append(m.refusals, fmt.Sprintf("%s: %s", m.starter(), why))
	m.at++
	m.turn(now)
}

// turn begins the turn of a starter.
func (m *Machine) turn(now time.Time) { m.again, m.until = now, now.Add(m.timing.Begin) }

// advance performs the due work, and reports whether there may be more.
func (m *Machine) advance(now time.Time) bool {
	switch m.phase {
	case beginning:
		return m.begin(now)
	case underWay:
		if now.Before(m.until) {
			return false
		}
		m.becomeEnding(now)
		return true
	case ending:
		return m.endNext(now)
	default:
		return false
	}
}

// begin asks a starter, until it has begun or its time is over.
func (m *Machine) begin(now time.Time) bool {
	if m.at == len(m.plan.Starters) {
		m.phase = failed
		return false
	}
	switch {
	case !now.Before(m.until):
		m.giveUp(now, "it has not answered")
		return true
	case !now.Before(m.again):
		n := m.nodes[m.starter()]
		n.asked++
		m.out.Orders = append(m.out.Orders, Order{Node: m.starter(), Try: n.asked})
		m.again = now.Add(m.timing.Again)
	}
	return false
}

// endNext asks the nodes that have not said that they are through. The procedure is over when all have answered,
// or have failed to after the last request.
func (m *Machine) endNext(now time.Time) bool {
	switch {
	case int(m.ended) == len(m.plan.Members):
		m.phase = over
	case now.Before(m.again):
		return false
	case m.asks >= m.asking:
		m.phase = over
	default:
		m.asks++
		m.ask(now)
	}
	return false
}

func (m *Machine) ask(now time.Time) {
	for _, rank := range m.plan.Members {
		id := m.plan.Nodes[rank]
		if n := m.nodes[id]; !n.done() {
			n.asked++
			m.out.Orders = append(m.out.Orders, Order{Node: id, Ask: true, Try: n.asked})
		}
	}
	m.again = now.Add(m.timing.Again)
	if m.asks == m.asking {
		m.again = now.Add(m.timing.Quiet)
	}
}

// becomeUnderWay: a node has entered a state. It may be a starter that was given up, if its status was late.
func (m *Machine) becomeUnderWay(now time.Time, by fault.NodeID) {
	if at := slices.Index(m.plan.Starters, by); at >= 0 {
		m.at = at
	}
	m.phase, m.until = underWay, now.Add(m.plan.Longest())
}

// becomeEnding: a node is through, or all should be.
func (m *Machine) becomeEnding(now time.Time) {
	m.phase, m.state, m.out.News = ending, lofamov1.ProcedureState_PROCEDURE_NORMAL, true
	m.again = now.Add(m.plan.settle() + m.timing.Again)
}

// Err returns the reason why there was no procedure; nil: there was one, or may still be.
func (m *Machine) Err() error {
	if m.phase != failed {
		return nil
	}
	return fmt.Errorf("no node has begun it: %s", strings.Join(m.refusals, "; "))
}

// Diagnosed reports whether any node that is through has tested its links.
func (m *Machine) Diagnosed() bool {
	for _, n := range m.nodes {
		if n.end.GetDiagnosed() {
			return true
		}
	}
	return false
}

// Progress returns the present progress.
func (m *Machine) Progress() *lofamov1.ProcedureProgress {
	return &lofamov1.ProcedureProgress{State: m.state, Round: m.round, Nodes: uint32(len(m.plan.Members)), Ended: m.ended}
}

// Report returns the outcome, without the requester, the reason and the time.
func (m *Machine) Report() *lofamov1.ProcedureReport {
	r := &lofamov1.ProcedureReport{Starter: string(m.starter())}
	best := m.best()
	if best != nil {
		r.Wave, r.Clear = best.GetWave(), best.GetClear()
		r.Starter = m.plan.name(best.GetStarter())
		r.Silent, r.Holding = m.names(best.GetSilent()), m.names(best.GetHolding())
	}
	for _, id := range m.byRank() {
		n := m.nodes[id]
		if n.done() {
			r.Nodes = append(r.Nodes, &lofamov1.ProcedureNode{
				Node: string(id), Clear: n.end.GetClear(), Held: n.end.GetHeld(), Steps: n.end.GetSteps(), Error: n.refused,
			})
		} else if n.member && !slices.Contains(r.Silent, string(id)) {
			r.Silent = append(r.Silent, string(id))
		}
		// A torus that was empty: messages received since then.
		if n.end.GetHeld() > 0 && !r.GetClear() && !slices.Contains(r.Holding, string(id)) {
			r.Holding = append(r.Holding, string(id))
		}
		r.Rounds = max(r.Rounds, n.end.GetRound())
	}
	slices.SortFunc(r.GetNodes(), func(a, b *lofamov1.ProcedureNode) int { return cmp.Compare(a.GetNode(), b.GetNode()) })
	slices.Sort(r.GetSilent())
	slices.Sort(r.GetHolding())
	return r
}

// best returns the final status that decides the outcome: the starter's, or else that of the node that missed the
// fewest others. A node that was cut off has missed all of them, and knows nothing about the rest.
func (m *Machine) best() *lofamov1.ProcedureStatus {
	var best *lofamov1.ProcedureStatus
	for _, id := range m.byRank() {
		st := m.nodes[id].end
		switch {
		case st == nil:
		case int(st.GetStarter()) == m.nodes[id].rank:
			return st
		case best == nil || len(st.GetSilent()) < len(best.GetSilent()):
			best = st
		}
	}
	return best
}

func (m *Machine) byRank() []fault.NodeID {
	return slices.DeleteFunc(slices.Clone(m.plan.Nodes), func(id fault.NodeID) bool { return id == "" })
}

func (m *Machine) names(ranks []uint32) []string {
	var out []string
	for _, rank := range ranks {
		out = append(out, m.plan.name(rank))
	}
	return out
}
