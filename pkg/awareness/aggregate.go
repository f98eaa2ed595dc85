package awareness

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// component is one component as the map has it.
type component struct {
	state    fault.State
	cause    fault.Cause
	single   bool
	since    time.Time // of the state
	why      finding
	restored bool             // no evidence yet since the map was restored
	evidence []EvidenceStatus // as restored

	last, before time.Time // the last two changes of a known state
	flapping     bool
	held         bool // a change is being held back
}

// publish compares what the evidence says of a node's components with the map, and changes the map.
func (m *Machine) publish(n *node, now time.Time) {
	at := len(m.out.Changes)
	defer m.remark(n, now)
	m.out.Changes = append(m.out.Changes, Change{}) // the node itself comes first
	for c := fault.ComponentHost; c.Valid(); c++ {
		if n.has(c) {
			m.apply(n, c, m.find(n, c, now), now)
		}
	}
	before := len(m.out.Changes)
	m.apply(n, fault.ComponentNode, m.findNode(n, now), now)
	m.publishWarnings(n, now)
	if len(m.out.Changes) > before {
		m.out.Changes[at] = m.out.Changes[before]
		m.out.Changes = m.out.Changes[:before]
		return
	}
	m.out.Changes = append(m.out.Changes[:at], m.out.Changes[at+1:]...)
}

// apply changes one component of the map, unless there is a reason to wait.
func (m *Machine) apply(n *node, c fault.Component, f finding, now time.Time) {
	p := &n.components[c]
	switch {
	case f.keep:
		return
	case f.blank && p.restored:
		// Nothing becomes healthy, and nothing is forgotten, just because the leader changed.
		if end := m.started.Add(m.window()); now.Before(end) {
			n.wakeAt(end, now)
			return
		}
	}
	p.restored = p.restored && f.blank
	if f.state == p.state && f.cause == p.cause && f.single == p.single && !reflagged(c, p.why.name, f.name) {
		p.held = false
		return
	}
	if f.state == fault.Failed && p.state != fault.Failed && now.Before(m.graceEnds()) {
		n.wakeAt(m.graceEnds(), now)
		return
	}
	if m.hold(n, c, f, now) {
		return
	}
	m.change(n, c, f, now)
}

// reflagged says whether a node's being inferred dead or unreachable begins or ends.
func reflagged(c fault.Component, old, now ruleName) bool {
	flag := func(r ruleName) bool { return r == ruleInferred || r == ruleUnreachable }
	return c == fault.ComponentNode && old != now && (flag(old) || flag(now))
}

// hold says whether HoldOff forbids the change now. A component may go and come back at once; from
// the third change within HoldOff on it flaps, and changes are HoldOff apart until it has been quiet
// for twice that. Halves, nodes and what follows from them are never held back.
func (m *Machine) hold(n *node, c fault.Component, f finding, now time.Time) bool {
	p := &n.components[c]
	if c <= fault.ComponentDNP { // the node, its host, its DNP
		return false
	}
	if m.cfg.HoldOff == 0 || p.last.IsZero() || ofPeer(c, f.cause) || ofPeer(c, p.cause) {
		return false
	}
	if now.Sub(p.last) >= 2*m.cfg.HoldOff {
		p.flapping = false
	}
	if !p.before.IsZero() && now.Sub(p.before) < m.cfg.HoldOff {
		p.flapping = true
	}
	free := p.last.Add(m.cfg.HoldOff)
	if !p.flapping || !now.Before(free) {
		return false
	}
	p.held = true
	n.wakeAt(free, now)
	return true
}

// ofPeer says whether a link's cause is the peer's death.
func ofPeer(c fault.Component, cause fault.Cause) bool {
	_, link := c.LinkDirection()
	return link && (cause == fault.CauseDNP || cause == fault.CauseNode)
}

// change is the only writer of a component's state in the map.
func (m *Machine) change(n *node, c fault.Component, f finding, now time.Time) {
	p := &n.components[c]
	ch := Change{
		Node: n.id, Component: c, From: p.state, To: f.state, Cause: f.cause, Path: f.path,
		Observer: m.observer(f.from), Latency: -1, Kind: f.kind, Reason: f.rule, SingleWitness: f.single, Flapping: p.held || p.flapping,
	}
	// Neither a first NORMAL nor evidence from before the last change measures awareness of this one.
	old := p.state == fault.Unknown && f.state == fault.Normal || f.state <= p.state && f.began.Before(p.last)
	if !f.began.IsZero() && !old {
		ch.Latency = max(0, now.Sub(f.began))
	}
	if f.detail != "" {
		ch.Reason += " (" + f.detail + ")"
	}
	if p.held || p.flapping {
		ch.Reason += "; flapping: changes are held back for " + m.cfg.HoldOff.String()
	}
	if p.state != f.state {
		p.since = now
	}
	if p.state != fault.Unknown { // the first word, or the first after long silence, is no flapping
		p.before, p.last = p.last, now
	}
	p.state, p.cause, p.single, p.why, p.held, p.evidence = f.state, f.cause, f.single, f, false, nil
	m.out.Changes = append(m.out.Changes, ch)
}

// observer names who observed: a half, or this supervisor.
func (m *Machine) observer(o fault.Origin) string {
	if o.Node == "" {
		return "supervisor/" + m.cfg.Supervisor
	}
	return o.String()
}

// findNode sums the node up. Only votes make it FAILED; whatever of it is sick or failed makes it
// SICK, for the gravest cause in the order of fault.Cause; it is NORMAL when both halves are and
// nothing is known to be wrong. Sensors that a machine does not have stay UNKNOWN and do not count.
func (m *Machine) findNode(n *node, now time.Time) finding {
	if n.dead.on {
		return n.dead.finding
	}
	if n.inferred {
		return enclosed(n)
	}
	var worst *component
	for c := fault.ComponentHost; c.Valid(); c++ {
		p := &n.components[c]
		if !n.has(c) || ofPeer(c, p.cause) || (p.state != fault.Sick && p.state != fault.Failed) {
			continue
		}
		if worst == nil || p.cause > worst.cause || (p.cause == worst.cause && p.state > worst.state) {
			worst = p
		}
	}
	host, dnp := &n.components[fault.ComponentHost], &n.components[fault.ComponentDNP]
	heard := m.current(n, fault.HalfHost, now) || m.current(n, fault.HalfDNP, now)
	switch {
	case worst != nil && (heard || host.state == fault.Failed || dnp.state == fault.Failed):
		f := worst.why
		f.state, f.cause, f.single, f.keep, f.blank = fault.Sick, worst.cause, false, false, false
		return f
	case !heard || host.state == fault.Unknown || dnp.state == fault.Unknown:
		return m.unheard(n)
	}
	newest := host
	for c := fault.ComponentDNP; c.Valid(); c++ {
		if p := &n.components[c]; n.has(c) && p.state == fault.Normal && p.last.After(newest.last) {
			newest = p
		}
	}
	f := newest.why
	f.state, f.cause, f.single, f.keep, f.blank = fault.Normal, fault.CauseNone, false, false, false
	return f
}
