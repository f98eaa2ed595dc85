package awareness

import (
	"fmt"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// find derives the state of one component of the node from the current evidence.
func (m *Machine) find(n *node, c fault.Component, now time.Time) finding {
	if n.revoked {
		return m.distrusted(n)
	}
	if n.stopped {
		return m.stoppedPart(n, c)
	}
	if h, ok := halfOf(c); ok && n.inferred && n.failure(h).on {
		// An inferred death of the node does not contradict a finding about one half.
		return m.findHalf(n, h, now)
	}
	switch {
	case n.inferred:
		return enclosed(n)
	case c == fault.ComponentNode:
		return m.findNode(n, now)
	case c == fault.ComponentHost:
		return m.findHalf(n, fault.HalfHost, now)
	case c == fault.ComponentDNP:
		return m.findHalf(n, fault.HalfDNP, now)
	case n.dead.on:
		f := n.dead.finding
		f.state, f.cause, f.name, f.rule, f.single = fault.Unknown, fault.CauseNone, ruleNodeDead, "the node is dead", false
		return f
	}
	if d, ok := c.LinkDirection(); ok {
		return m.findLink(n, d, now)
	}
	switch {
	case c == fault.ComponentBus:
		return m.findBus(n, now)
	case ofDNP(c):
		return m.findDNPPart(n, c, now)
	}
	return m.findHostPart(n, c, now)
}

// ofDNP reports whether the DNP half owns the component.
func ofDNP(c fault.Component) bool {
	return c == fault.ComponentDNPCore || c == fault.ComponentTemperature || c == fault.ComponentPower || c == fault.ComponentVoltage
}

// findHalf derives the state of a half. A verdict makes it FAILED. Enough accusations make it SICK while it answers.
// Otherwise its own statement counts, or its other half's statement about it.
func (m *Machine) findHalf(n *node, h fault.Half, now time.Time) finding {
	c := h.Component()
	if f := n.failure(h); f.on {
		out := f.finding
		if n.dead.on {
			out = n.dead.finding
		}
		return out
	}
	if a := m.accused(n, h, now); a.enough {
		switch {
		case !n.answered(h):
			return finding{keep: true}
		case !m.hearsNoBus(n, h, now) && !m.hearsNoBus(n, h.Other(), now): // else the bus has failed, not the half: see findBus
			f := a.record.finding(fault.Sick, c, a.by)
			f.name, f.rule = ruleAnswers, m.accusers(a)+", but it answers"
			return f
		}
	}
	if m.current(n, h, now) {
		if r := m.said(n, h, c); r != nil && r.kind == fault.KindSelf && (r.state == fault.Sick || r.state == fault.Failed) {
			return m.told(r, c, n.origin(h))
		}
		f := finding{state: fault.Normal, cause: fault.CauseNone, kind: fault.KindSelf, path: n.voice(h).path, from: n.origin(h),
			began: n.voice(h).heard, name: ruleSpeaks, rule: "it speaks"}
		if r := m.said(n, h, c); r != nil {
			f.path, f.began = r.path, r.began
		}
		return f
	}
	o := h.Other()
	if r := m.said(n, o, c); r != nil && r.kind == fault.KindWatchdog && m.states(n, o, now) {
		if r.state == fault.Failed { // only a verdict makes a half FAILED
			return finding{keep: true}
		}
		return m.told(r, c, n.origin(o))
	}
	return m.unheard(n)
}

// told returns the finding that a statement expresses.
func (m *Machine) told(r *record, c fault.Component, by fault.Origin) finding {
	f := r.finding(r.state, c, by)
	f.name, f.rule = ruleOwnWord, "newest word of the node's own halves"
	return f
}

// unheard returns the finding for a component without statements: its age is that of the node's last sign of life.
func (m *Machine) unheard(n *node) finding {
	if n.unreachable {
		return finding{
			state: fault.Unknown, cause: fault.CauseNone, kind: fault.KindDigest, began: n.heard(0), name: ruleUnreachable,
			rule: "no living node and no working link leads there, and no message arrives from it", blank: true,
		}
	}
	return finding{
		state: fault.Unknown, cause: fault.CauseNone, kind: fault.KindDigest, began: n.heard(0),
		name: ruleUnheard, rule: "no evidence, or too old", blank: true,
	}
}

// findBus derives the state of the bus between the two halves of a node with two kernels. A half at one end of a silent
// bus cannot tell a cut from the death of the other half. So the other half is challenged, by rails that do not need the
// bus: if it answers, the bus has failed; if it does not, the half has. A half that has just booted answers too, although the
// silence was its own: then the accuser must repeat that it hears nothing.
func (m *Machine) findBus(n *node, now time.Time) finding {
	for _, h := range halves {
		if f := n.failure(h); f.on {
			out := f.finding
			out.state, out.cause, out.name, out.rule = fault.Unknown, fault.CauseNone, ruleHostDead, "its host is dead"
			if h == fault.HalfDNP {
				out.name, out.rule = ruleDNPDead, "its DNP is dead"
			}
			return out
		}
	}
	waits := false
	for _, h := range halves {
		a := m.accused(n, h, now)
		switch {
		case !a.bus:
		case m.mayBeOver(n, h, a.record):
			waits = true
		case n.answered(h):
			f := a.record.finding(fault.Failed, fault.ComponentBus, a.by)
			f.name, f.rule = ruleBus, fmt.Sprintf("the %s half hears nothing over the bus, but the %s half answers", h.Other(), h)
			return f
		default:
			waits = true
		}
	}
	if waits {
		return finding{keep: true}
	}
	if r, by := m.ownWord(n, fault.ComponentBus, now); r != nil && !r.silent() {
		return m.told(r, fault.ComponentBus, by)
	}
	return m.unheard(n)
}

// mayBeOver reports whether a half may have booted after the other half said that it hears nothing from it, or so shortly before
// that its boot was not complete. Reports of the accuser may be late, for example after a time without supervisors.
func (m *Machine) mayBeOver(n *node, h fault.Half, silence *record) bool {
	booted := m.clock.time(n.voice(h).booted)
	return !booted.IsZero() && silence.said.Before(booted.Add(2*m.cfg.DigestPeriod))
}

// findDNPPart derives the state of the DNP's sensors and core from the statements of the node's own halves. Once the
// DNP is dead, its registers are out of date.
func (m *Machine) findDNPPart(n *node, c fault.Component, now time.Time) finding {
	if f := n.failure(fault.HalfDNP); f.on {
		out := f.finding
		out.state, out.cause, out.name, out.rule = fault.Unknown, fault.CauseNone, ruleDNPDead, "its DNP is dead"
		return out
	}
	if r, by := m.ownWord(n, c, now); r != nil {
		return m.told(r, c, by)
	}
	if r := m.said(n, fault.HalfHost, c); r != nil && now.Before(m.statementsExpire(n, fault.HalfHost)) {
		f := m.told(r, c, n.origin(fault.HalfHost)) // its host is dead, but stated so recently
		f.name, f.rule = ruleLastWord, "last known before its host died"
		return f
	}
	return m.unheard(n)
}

// findHostPart derives the state of memory, peripherals and service network from the statements of the node's own
// halves. If the host is dead or has missed a digest (its service network may be down), the neighbours' descriptors,
// fed by the DNPs, count as well (seed 001, Table V): two neighbours suffice, one makes the component SICK. For the
// service network one suffices, because silence on the direct rail confirms it.
func (m *Machine) findHostPart(n *node, c fault.Component, now time.Time) finding {
	own, by := m.ownWord(n, c, now)
	dead := n.failure(fault.HalfHost).on
	if own != nil && own.state == fault.Failed {
		return m.told(own, c, by)
	}
	if d, count, from := m.describedFailed(n, c, now); count > 0 {
		v := n.voice(fault.HalfHost)
		quiet := fault.Later(v.heard, m.started).Add(m.overdue()) // a new leader has not listened for long enough
		if c == fault.ComponentServiceNetwork {
			// Its host may still report by other rails: the host's own statement has precedence if it arrives soon.
			if t := fault.Later(fault.Later(m.clock.time(v.direct), m.started).Add(m.overdue()), d.since.Add(m.cfg.DigestPeriod)); t.Before(quiet) {
				quiet = t
			}
		}
		n.wakeAt(quiet, now)
		if dead || !now.Before(quiet) {
			f := d.finding(fault.Failed, c, from)
			f.name, f.rule = ruleDescribed, "descriptors of neighbours, and its host is not heard"
			if count < 2 && c != fault.ComponentServiceNetwork {
				f.state, f.name, f.rule = fault.Sick, ruleDescribedOne, "the descriptor of one neighbour, and its host is not heard"
			}
			return f
		}
	}
	if own != nil {
		return m.told(own, c, by)
	}
	if dead {
		if r := m.said(n, fault.HalfHost, c); r != nil && r.state == fault.Failed {
			f := m.told(r, c, n.origin(fault.HalfHost))
			f.name, f.rule = ruleLastWord, "last known before its host died"
			return f
		}
		f := n.failure(fault.HalfHost).finding
		f.state, f.cause, f.name, f.rule = fault.Unknown, fault.CauseNone, ruleHostDead, "its host is dead"
		return f
	}
	return m.unheard(n)
}

// describedFailed returns the number of neighbours whose descriptors call the component failed, and the oldest of these
// statements. A later statement of the node's own halves outweighs a descriptor. The exception is a statement that the
// service network works which did not arrive over the service network.
func (m *Machine) describedFailed(n *node, c fault.Component, now time.Time) (first *record, count int, by fault.Origin) {
	var word time.Time
	for _, h := range halves {
		if r := m.said(n, h, c); r != nil && (c != fault.ComponentServiceNetwork || r.path == fault.PathDirect) {
			word = fault.Later(word, r.said)
		}
	}
	for i := range n.neighbours {
		r, from := m.descriptor(n, i, c, now)
		if r == nil || r.state != fault.Failed {
			continue
		}
		n.restless = true // the next statement of its own halves may be the later one
		if !r.since.After(word) {
			continue
		}
		count++
		if first == nil || r.began.Before(first.began) {
			first, by = r, from
		}
	}
	return first, count, by
}
