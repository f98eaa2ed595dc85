package procedure

import "time"

// say broadcasts where this node is.
func (m *Machine) say(holding bool) {
	m.out.Broadcast = append(m.out.Broadcast, Message{
		Key: m.key, State: m.state, Round: m.round, Holding: holding, Clear: m.clear, Diagnose: m.diagnose, Order: m.order, Plan: m.plan,
	})
}

func (m *Machine) arrive(s Set) {
	a := Arrival{Key: m.key, Set: s}
	if s != Stuck {
		a.Absent = m.plan.Absent
	}
	if s == Empty || s == Confirm {
		a.Round = m.round
	}
	m.out.Arrive = append(m.out.Arrive, a)
}

// enter is the one writer of the state. The starter says where it is.
func (m *Machine) enter(now time.Time, s State, lasting time.Duration) {
	was := &m.steps[m.state]
	was.State, was.Held = m.state, m.holds
	was.Took += now.Sub(m.enteredAt)
	m.enteredAt = now
	m.state, m.deadline, m.out.Changed = s, now.Add(lasting), true
	m.sayAt = time.Time{}
	if m.self != m.key.Starter {
		return
	}
	m.say(false)
	if s == SystemDrain {
		m.sayAt = now.Add(m.plan.Repeat())
	}
}

func (m *Machine) becomeErrorDetectPropagate(now time.Time) {
	m.enter(now, ErrorDetectPropagate, m.plan.Delay)
}

// beginDrain notes when the drain began, also for one that comes late.
func (m *Machine) beginDrain(now time.Time) {
	if m.drainUntil.IsZero() {
		m.drainUntil = now.Add(m.plan.DrainTimeout)
	}
}

func (m *Machine) becomeSystemDrain(now time.Time, round uint32) {
	m.beginDrain(now)
	m.round, m.claimed, m.confirm, m.emptyAt = round, false, false, time.Time{}
	if m.holds == 0 {
		m.emptyAt = now
	}
	m.enter(now, SystemDrain, max(0, m.drainUntil.Sub(now)))
}

// becomeNetworkClear ends a round: because this node holds a message after its claim, which it announces, because
// another node does, or because of the time-out.
func (m *Machine) becomeNetworkClear(now time.Time, round uint32, holding bool) {
	m.beginDrain(now)
	m.round = round
	m.enter(now, NetworkClear, 2*m.plan.Hop)
	if holding {
		m.vetoed = max(m.vetoed, round)
		m.say(true)
	}
}

// becomeDropPackets names the messages that are stuck here.
func (m *Machine) becomeDropPackets(now time.Time, round uint32) {
	m.round = max(m.round, round)
	m.enter(now, DropPackets, m.limits.Drop)
	m.arrive(Present)
	if m.holds > 0 {
		m.arrive(Stuck)
	}
}

// becomeDecision ends the drain. If diagnostics are already requested there is no need to wait.
func (m *Machine) becomeDecision(now time.Time, round uint32, isClear bool) {
	m.setClear(round, isClear)
	m.enter(now, Decision, 2*m.plan.Delay)
	m.tellHolding(isClear)
	if m.diagnose {
		m.deadline = now
	}
}

func (m *Machine) becomeDiagnostics(now time.Time, round uint32, isClear bool) {
	m.setClear(round, isClear)
	m.diagnose, m.masked, m.out.Diagnose = true, false, true
	m.enter(now, Diagnostics, m.limits.Diagnose)
	m.tellHolding(isClear)
}

// setClear records that the network is or was clear, but not for a round in which a node held a message after its
// claim.
func (m *Machine) setClear(round uint32, isClear bool) {
	m.round, m.cleared = max(m.round, round), round
	m.clear = isClear && round > m.vetoed && m.holds == 0
}

// tellHolding informs nodes that call the network clear that it is not.
func (m *Machine) tellHolding(isClear bool) {
	if isClear && m.holds > 0 {
		m.vetoed = max(m.vetoed, m.round)
		m.say(true)
	}
}

func (m *Machine) becomeNormal(now time.Time, timedOut bool) {
	tested := m.state == Diagnostics
	m.enter(now, Normal, 0)
	r := &Result{Key: m.key, Order: m.order, Clear: m.clear, Rounds: m.round, Diagnose: tested, Held: m.holds, TimedOut: timedOut}
	for s := ErrorDetectPropagate; s <= Diagnostics; s++ {
		if m.steps[s].State != 0 {
			r.Steps = append(r.Steps, m.steps[s])
		}
	}
	m.out.Ended = r
	m.over.add(m.key)
	if m.order != (Order{}) {
		m.ordered = m.order
	}
	m.restUntil = now.Add(m.limits.Rest)
}
