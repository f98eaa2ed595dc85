package orders

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
)

// ProcedureTiming bounds the supervisors' waits, beside the plan's own times.
type ProcedureTiming struct {
	// Again is the time a node has to answer before the leader repeats the request.
	Again time.Duration
	// Begin is the time a starter has to begin before the leader tries the next one.
	Begin time.Duration
	// Quiet is the time left to answer after the last request.
	Quiet time.Duration
	// Asks is the number of requests to each node that has not said that it is through.
	Asks int
}

// defaultProcedure allows for answers that travel by way of neighbours.
func defaultProcedure() ProcedureTiming {
	return ProcedureTiming{Again: 400 * time.Millisecond, Begin: 2500 * time.Millisecond, Quiet: 1500 * time.Millisecond, Asks: 4}
}

// procedureEvent is an input of the machine.
type procedureEvent interface{ procedureEvent() }

// procedureTick says that time has passed.
type procedureTick struct{}

// procedureSaid is a half's status. The signature has already proven the half's identity.
type procedureSaid struct{ Status *lofamov1.ProcedureStatus }

func (procedureTick) procedureEvent() {}
func (procedureSaid) procedureEvent() {}

// procedureOrder is to be sent.
type procedureOrder struct {
	Node fault.NodeID
	Ask  bool // request only the outcome, and begin no procedure
	Try  int  // of this node, from 1
}

// procedureOutput is the result of a step.
type procedureOutput struct {
	Orders []procedureOrder // by starter, or by rank
	News   bool             // Progress is another
	Done   bool             // it is over, or has failed
	Wake   time.Time
}

type procedurePhase uint8

const (
	beginning procedurePhase = iota + 1
	underWay
	ending
	over
	failed
)

// procedureNode is the known state of one node.
type procedureNode struct {
	rank    int
	member  bool
	end     *lofamov1.ProcedureStatus // final status; nil: none yet
	refused string                    // reason why it takes, or took, no part
	asked   int
}

func (n *procedureNode) done() bool { return n.end != nil || n.refused != "" }

// procedureMachine is the supervisors' side of one fault management procedure (seed 003 §4.5, Figure 7, §5.2.1.3). It asks
// the starters, decides when to ask which node again, and determines the outcome. The nodes' side is
// pkg/torus/procedure.
//
//	beginning ──somebody has entered a state, or is through──► under way ──the first is through, or the time is over──► ending
//	 │   ▲                                                                                                              │   ▲
//	 │   └── the starter refuses, or is silent for Timing.Begin: the next one         ask the nodes without an answer again └───┘
//	 ▼                                                                                                                    │
//	failed: no node began it                                                    all have answered, or the time is over: over ◄┘
//
// It signs and sends nothing, and numbers no orders. The caller passes it only statuses of the ordered procedure.
//
// Each node ends a procedure by its own time-outs, even if the starter or the leader fails. So the machine does not
// depend on any particular node: after the first node's final status it asks the others, and it names the silent ones.
//
// A new leader may find a procedure in progress, or one that ended without a report. It takes the procedure up by asking
// the nodes (resumeProcedureMachine).
//
// The machine is not safe for concurrent use.
type procedureMachine struct {
	plan   procedurePlan
	timing ProcedureTiming
	nodes  map[fault.NodeID]*procedureNode

	phase  procedurePhase
	at     int         // index into plan.Starters: the node asked to begin
	timer  order.Timer // of the next orders
	until  time.Time   // the phase lasts at most
	asking int         // number of requests to each silent node; 0: no node has the order
	state  lofamov1.ProcedureState
	round  uint32
	ended  uint32 // members that are done
	out    procedureOutput

	refusals []string // why starters were given up
}

// newProcedureMachine returns a machine that asks its first starter at once.
func newProcedureMachine(now time.Time, plan procedurePlan, timing ProcedureTiming) *procedureMachine {
	m := followProcedure(plan, timing)
	m.phase, m.asking = beginning, timing.Asks
	m.turn(now)
	return m
}

// resumeProcedureMachine returns a machine for a procedure that an earlier leader ordered. From now on, and for as long as the
// procedure may last, it asks the nodes that had the order for its outcome.
func resumeProcedureMachine(now time.Time, plan procedurePlan, timing ProcedureTiming) *procedureMachine {
	m := followProcedure(plan, timing)
	m.phase = underWay
	m.becomeEnding(now)
	m.timer.Restart(now)
	m.asking = timing.Asks + int(plan.Longest()/max(timing.Again, time.Millisecond))
	return m
}

// Heard reports whether any node took part. If none did, the order reached no node.
func (m *procedureMachine) Heard() bool {
	for _, n := range m.nodes {
		if n.end != nil {
			return true
		}
	}
	return false
}

// followProcedure returns a machine without a phase.
func followProcedure(plan procedurePlan, timing ProcedureTiming) *procedureMachine {
	m := &procedureMachine{plan: plan, timing: timing, nodes: make(map[fault.NodeID]*procedureNode, len(plan.Nodes)),
		state: lofamov1.ProcedureState_PROCEDURE_NORMAL}
	for rank, id := range plan.Nodes {
		if id != "" {
			m.nodes[id] = &procedureNode{rank: rank}
		}
	}
	for _, rank := range plan.Members {
		m.nodes[plan.Nodes[rank]].member = true
	}
	return m
}

// Step processes one event. Time must not run backwards.
func (m *procedureMachine) Step(now time.Time, ev procedureEvent) procedureOutput {
	m.out = procedureOutput{}
	if said, ok := ev.(procedureSaid); ok {
		m.take(now, said.Status)
	}
	for m.advance(now) {
	}
	switch m.phase {
	case beginning:
		m.out.Wake = fault.Earlier(m.timer.At, m.until)
	case underWay:
		m.out.Wake = m.until
	case ending:
		m.out.Wake = m.timer.At
	default:
		m.out.Done = true
	}
	return m.out
}

// take processes a half's status.
func (m *procedureMachine) take(now time.Time, st *lofamov1.ProcedureStatus) {
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
func (m *procedureMachine) refuse(now time.Time, id fault.NodeID, n *procedureNode, why string) {
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
func (m *procedureMachine) enter(now time.Time, id fault.NodeID, st *lofamov1.ProcedureStatus) {
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
func (m *procedureMachine) count() {
	was := m.ended
	m.ended = 0
	for _, n := range m.nodes {
		if n.member && n.done() {
			m.ended++
		}
	}
	m.out.News = m.out.News || m.ended != was
}

// starter returns the node that has the order to begin, or has begun.
func (m *procedureMachine) starter() fault.NodeID {
	if m.at < len(m.plan.Starters) {
		return m.plan.Starters[m.at]
	}
	return ""
}

// giveUp gives up on a starter and turns to the next one.
func (m *procedureMachine) giveUp(now time.Time, why string) {
	m.refusals = append(m.refusals, fmt.Sprintf("%s: %s", m.starter(), why))
	m.at++
	m.turn(now)
}

// turn begins the turn of a starter.
func (m *procedureMachine) turn(now time.Time) {
	m.timer.Restart(now)
	m.until = now.Add(m.timing.Begin)
}

func (m *procedureMachine) retry() order.Retry { return order.Retry{First: m.timing.Again} }

// advance performs the due work, and reports whether there may be more.
func (m *procedureMachine) advance(now time.Time) bool {
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
func (m *procedureMachine) begin(now time.Time) bool {
	if m.at == len(m.plan.Starters) {
		m.phase = failed
		return false
	}
	switch {
	case !now.Before(m.until):
		m.giveUp(now, "it has not answered")
		return true
	case m.timer.Due(now, m.retry()):
		n := m.nodes[m.starter()]
		n.asked++
		m.out.Orders = append(m.out.Orders, procedureOrder{Node: m.starter(), Try: n.asked})
	}
	return false
}

// endNext asks the nodes that have not said that they are through. The procedure is over when all have answered,
// or have failed to after the last request.
func (m *procedureMachine) endNext(now time.Time) bool {
	switch {
	case int(m.ended) == len(m.plan.Members):
		m.phase = over
	case now.Before(m.timer.At):
	case m.timer.Try >= m.asking:
		m.phase = over
	default:
		m.ask(now)
	}
	return false
}

func (m *procedureMachine) ask(now time.Time) {
	for _, rank := range m.plan.Members {
		id := m.plan.Nodes[rank]
		if n := m.nodes[id]; !n.done() {
			n.asked++
			m.out.Orders = append(m.out.Orders, procedureOrder{Node: id, Ask: true, Try: n.asked})
		}
	}
	if m.timer.Due(now, m.retry()); m.timer.Try == m.asking {
		m.timer.At = now.Add(m.timing.Quiet)
	}
}

// becomeUnderWay: a node has entered a state. It may be a starter that was given up, if its status was late.
func (m *procedureMachine) becomeUnderWay(now time.Time, by fault.NodeID) {
	if at := slices.Index(m.plan.Starters, by); at >= 0 {
		m.at = at
	}
	m.phase, m.until = underWay, now.Add(m.plan.Longest())
}

// becomeEnding: a node is through, or all should be.
func (m *procedureMachine) becomeEnding(now time.Time) {
	m.phase, m.state, m.out.News = ending, lofamov1.ProcedureState_PROCEDURE_NORMAL, true
	m.timer.Restart(now.Add(m.plan.settle() + m.timing.Again))
}

// Err returns the reason why there was no procedure; nil: there was one, or may still be.
func (m *procedureMachine) Err() error {
	if m.phase != failed {
		return nil
	}
	return fmt.Errorf("no node has begun it: %s", strings.Join(m.refusals, "; "))
}

// Diagnosed reports whether any node that is through has tested its links.
func (m *procedureMachine) Diagnosed() bool {
	for _, n := range m.nodes {
		if n.end.GetDiagnosed() {
			return true
		}
	}
	return false
}

// Progress returns the present progress.
func (m *procedureMachine) Progress() *lofamov1.ProcedureProgress {
	return &lofamov1.ProcedureProgress{State: m.state, Round: m.round, Nodes: uint32(len(m.plan.Members)), Ended: m.ended}
}

// Report returns the outcome, without the requester, the reason and the time.
func (m *procedureMachine) Report() *lofamov1.ProcedureReport {
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
// fewest others. A cut-off node has missed all others, and knows nothing about them.
func (m *procedureMachine) best() *lofamov1.ProcedureStatus {
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

func (m *procedureMachine) byRank() []fault.NodeID {
	return slices.DeleteFunc(slices.Clone(m.plan.Nodes), func(id fault.NodeID) bool { return id == "" })
}

func (m *procedureMachine) names(ranks []uint32) []string {
	var out []string
	for _, rank := range ranks {
		out = append(out, m.plan.name(rank))
	}
	return out
}
