package awareness

import (
	"fmt"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// finding is the state of a component according to the current evidence, and the reason.
type finding struct {
	state  fault.State
	cause  fault.Cause
	kind   fault.Kind
	path   fault.Path
	from   fault.Origin // zero: the supervisor itself
	began  time.Time    // zero: unknown
	name   ruleName
	rule   string // the rule in words
	detail string
	single bool
	keep   bool // not settled yet: the component keeps its state
	blank  bool // UNKNOWN because there is no evidence
}

// verdict is a finding of FAILED that stays until there is proof of life.
type verdict struct {
	on     bool
	at     time.Time
	mark   mark
	proven time.Time // when life was proven, while the verdict waits for the links
	finding
}

// settle updates a node's rounds and verdicts.
func (m *Machine) settle(n *node, now time.Time) {
	m.settleRelinks(n, now)
	m.settleStop(n, now)
	for _, h := range halves {
		if n.voice(h).heard.IsZero() {
			continue
		}
		for _, t := range [...]time.Time{m.expiry(n, h), m.statementsExpire(n, h)} {
			if t.After(now) {
				n.wake(t)
			}
		}
	}
	if n.foreign {
		m.settleForeign(n, now)
		return // its own region judges it
	}
	if n.stopped && n.rounds != [3]round{} {
		m.suspicionOf(n).rounds = [3]round{}
	}
	if n.revoked || n.stopped {
		m.noteMute(n, now)
		return
	}
	for _, h := range halves {
		m.recover(n, h, now)
	}
	for _, h := range halves {
		m.judgeHalf(n, h, now)
	}
	m.judgeNode(n, now)
	if n.failed[0].on && n.failed[1].on && !n.dead.on {
		f := n.failed[0].finding
		if n.failed[1].at.After(n.failed[0].at) {
			f = n.failed[1].finding
		}
		f.name, f.cause, f.rule = ruleBothHalves, fault.CauseNode, "both halves failed; the later: "+f.rule
		m.becomeDead(n, f, now)
	}
	m.noteMute(n, now)
}

// accusation is the case against one half.
type accusation struct {
	bus    bool         // the other half hears nothing over the bus, and the bus itself may have failed
	by     fault.Origin // observer of the deciding statement
	record *record      // nil: no accuser
	count  int          // neighbours that accuse by their descriptors
	latest time.Time
	enough bool
	domain string // the failure domain that contains all of these neighbours; "" for none
}

// accused gathers the accusations of other halves against this one. One from the node's own other half suffices
// (§III-E). Otherwise it needs the descriptors of a quorum of neighbours from more than one failure domain, as for a
// whole node. Fewer never suffice.
//
// Accusations from before the half came back from a verdict do not count until their makers have had time to withdraw
// them.
func (m *Machine) accused(n *node, h fault.Half, now time.Time) accusation {
	var a accusation
	back := m.forgiven(n, now, h)
	if h == fault.HalfHost {
		a = m.describedDead(n, back, now)
	}
	r := m.said(n, h.Other(), h.Component())
	found := r != nil && r.kind == fault.KindWatchdog && r.state == fault.Failed
	bus := m.said(n, h.Other(), fault.ComponentBus)
	if bus.silent() && (!found || !bus.since.Before(back)) {
		r, found = bus, true // if the bus is silent, the watchdog cannot see the half either
	}
	if found && !r.since.Before(back) && m.stands(n, h, r, now) && m.states(n, h.Other(), now) {
		a.record, a.by, a.enough, a.bus = r, n.origin(h.Other()), true, bus.silent()
		a.latest = fault.Later(a.latest, fault.Later(r.since, n.backAt[h.Other()-1]))
	}
	return a
}

// stands reports whether the accuser made or repeated its accusation within the window, and after the accused half last came back from a
// verdict. A report of a change does not repeat the accuser's other statements. It may also be from before the accused half's restart.
func (m *Machine) stands(n *node, h fault.Half, r *record, now time.Time) bool {
	end := r.said.Add(m.window())
	if r.said.Before(n.backAt[h-1]) || !now.Before(end) {
		return false
	}
	n.wakeAt(end, now)
	return true
}

// hearsNoBus reports whether a valid statement of the half says that it hears nothing over the bus.
func (m *Machine) hearsNoBus(n *node, h fault.Half, now time.Time) bool {
	return m.said(n, h, fault.ComponentBus).silent() && m.states(n, h, now)
}

// ofOtherHalf reports whether the accuser is the node's own other half: by its watchdog, or by the silence of the bus.
func (a accusation) ofOtherHalf() bool { return a.bus || a.record.kind == fault.KindWatchdog }

// describedDead gathers the neighbours' descriptors that call the node's host dead, since its last verdict ended.
func (m *Machine) describedDead(n *node, back, now time.Time) accusation {
	var a accusation
	var v votes
	for i, nb := range n.neighbours {
		if m.apart(nb, now) {
			continue
		}
		if !nb.node.rounds[0].mute.IsZero() {
			v.mute++
			continue
		}
		witness := m.witness(nb.node, now)
		if witness {
			v.live++
		}
		r, by := m.descriptor(n, i, fault.ComponentHost, now)
		if r == nil || r.state != fault.Failed || r.since.Before(back) || !m.stands(n, fault.HalfHost, r, now) {
			continue
		}
		if witness {
			v.cast++
			v.by = append(v.by, nb.node)
		}
		a.latest = fault.Later(a.latest, fault.Later(r.since, nb.node.believed()))
		if a.record == nil || r.began.Before(a.record.began) {
			a.record, a.by = r, by
		}
	}
	if a.count = v.cast; v.cast > 0 {
		var ok, single bool
		ok, single, a.domain = m.verdict(n, v, now)
		a.enough = ok && !single // with too few witnesses only its own DNP half decides
	}
	return a
}

// believed returns when the statements of a node began to count again after the node was mute, or after one of its
// halves was FAILED. Its earlier statements then count as new: the nodes that they accuse were not challenged on
// that account, and more of its reports may follow soon. Zero if there was no such time.
func (n *node) believed() time.Time {
	return fault.Later(n.spoke, fault.Later(n.backAt[0], n.backAt[1]))
}

// forgiven returns when the last of the given halves came back from a verdict, if that was so recent that accusations
// from before may not have been withdrawn yet; otherwise zero.
func (m *Machine) forgiven(n *node, now time.Time, hs ...fault.Half) time.Time {
	var t time.Time
	for _, h := range hs {
		back := n.backAt[h-1]
		if end := back.Add(2 * m.cfg.DigestPeriod); !back.IsZero() && now.Before(end) {
			n.wakeAt(end, now)
			t = fault.Later(t, back)
		}
	}
	return t
}

// judgeHalf finds a half FAILED if it is accused and does not answer.
func (m *Machine) judgeHalf(n *node, h fault.Half, now time.Time) {
	if n.failure(h).on {
		return
	}
	a := m.accused(n, h, now)
	if a.record == nil {
		m.close(n, h)
		return
	}
	wait := m.waitForHalf(n, a)
	m.ask(n, h, grounds{latest: a.latest, enough: a.enough, wait: wait}, now)
	r := &n.rounds[h]
	if !a.enough || n.answered(h) {
		return
	}
	start, due := r.start, m.caughtUp(r.due)
	if a.ofOtherHalf() {
		due = m.caughtUp(m.promptAnswerBy(start, time.Duration(r.waits)*wait))
	}
	if n0 := &n.rounds[0]; h == fault.HalfDNP && n0.open && r.sent > 0 && r.waits == 1 && !n.proven(h, n0.since) {
		// A quorum of neighbours reported the same silence first: then half of the wait is enough. If their silence began
		// before the half's, it has another reason. The node's own round does not replace the half's: only the torus
		// carries its challenge to the DNP half.
		v := m.count(n, n0.start, m.forgiven(n, now, h), now)
		if v.cast >= Quorum(len(n.neighbours)) && n0.start.Before(start) && !n0.start.Before(a.record.began) {
			due = fault.Earlier(due, m.deadline(start, wait/2))
		}
	}
	m.wakeWhenDue(n, due, now)
	if now.Before(due) {
		return
	}
	if now.Before(m.graceEnds()) {
		n.wakeAt(m.graceEnds(), now)
		return
	}
	if m.restartHolds(n, h, now) || m.moveHolds(n, h, now) {
		return
	}
	f := a.record.finding(fault.Failed, h.Component(), a.by)
	f.rule = fmt.Sprintf("%s, no answer within %s", m.accusers(a), roughly(due.Sub(start)))
	f.name = ruleDescriptors
	f.rule += n.survivor(h)
	if a.ofOtherHalf() {
		f.name = ruleWatchdog
	}
	m.becomeFailed(n, h, f, now)
}

// survivor returns a note for the reason of a half's death if both halves run under one kernel: the other half reports,
// so the kernel and the machine live. It returns "" on other platforms.
func (n *node) survivor(h fault.Half) string {
	switch {
	case n.platform() != fault.PlatformSharedKernel:
		return ""
	case h == fault.HalfHost:
		return "; the agent's host half died, not the host (shared kernel)"
	}
	return "; the agent's DNP half died, not the network (shared kernel)"
}

// accusers describes the accusers in words.
func (m *Machine) accusers(a accusation) string {
	switch {
	case a.bus:
		return "its other half hears nothing from it over the bus"
	case a.record.kind == fault.KindWatchdog:
		return "its other half finds it dead"
	}
	return fmt.Sprintf("descriptors of %d neighbours say it is dead", a.count)
}

// becomeFailed records the verdict on one half.
func (m *Machine) becomeFailed(n *node, h fault.Half, f finding, now time.Time) {
	t := m.suspicionOf(n)
	t.failed[h-1] = verdict{on: true, at: now, mark: m.mark(now), finding: f}
	t.rounds[h] = round{}
}

// lull is how long a watchdog's NORMAL must stand before it lifts a verdict: just long enough to process everything
// that arrived at the same time, in any order.
const lull = time.Millisecond

// recover lifts the verdicts of a half and its node on proof of life after the verdict: an answer, a new boot, or
// the watchdog of a credible other half.
//
// A DNP that is back still has to restore its links. Its verdict stands until its neighbours hear it again, but no
// longer than relinks, so that they do not blame their links for its silence.
func (m *Machine) recover(n *node, h fault.Half, now time.Time) {
	if !n.failure(h).on {
		return
	}
	t := m.suspicionOf(n)
	f := &t.failed[h-1]
	word := m.said(n, h.Other(), h.Component())
	watched := word != nil && word.kind == fault.KindWatchdog && m.states(n, h.Other(), now)
	if !f.proven.IsZero() && watched && word.state == fault.Failed && word.said.After(f.proven) { // it has died again
		f.proven, f.at, f.mark = time.Time{}, now, m.mark(now)
		m.probe(n, h, m.cfg.ChallengeHalf, now)
		return
	}
	if f.proven.IsZero() {
		seen := watched && word.state == fault.Normal && word.said.After(f.at) && !m.hearsNoBus(n, h.Other(), now)
		if seen && !now.After(word.came) {
			n.wakeAt(now.Add(lull), now)
			seen = false
		}
		if !seen && !n.proven(h, f.mark) {
			return
		}
		f.proven = now
	}
	if h == fault.HalfDNP {
		v := m.count(n, now, time.Time{}, now)
		ok, _ := enough(v.cast, v.live, len(n.neighbours))
		t.linked = f.proven.Add(m.relinks())
		if ok && v.cast > 0 && now.Before(t.linked) {
			n.wakeAt(t.linked, now)
			return
		}
	}
	*f, t.dead = verdict{}, verdict{}
	t.rounds[h] = round{}
	t.backAt[h-1] = now
}

// relinks is the maximum time from a DNP's return until its neighbours hear it.
func (m *Machine) relinks() time.Duration { return 4 * m.cfg.DigestPeriod }

// returning reports whether a half that is still FAILED is coming back: it has shown a sign of life, or it died with
// its whole node and the other half has just come back. Such a half shares no fault with others. When a rack is
// switched on again, its DNPs are for a moment the remainder of the rack's death.
func (m *Machine) returning(n *node, h fault.Half, now time.Time) bool {
	f := n.failure(h)
	if !f.on || !f.proven.IsZero() || !f.name.ofNode() {
		return f.on && !f.proven.IsZero()
	}
	back := m.forgiven(n, now, h.Other())
	return !back.IsZero() && f.at.Before(back)
}

// ownWord returns the newest valid statement of the node's own halves on one of its components.
func (m *Machine) ownWord(n *node, c fault.Component, now time.Time) (*record, fault.Origin) {
	return m.newestWord(n, c, func(h fault.Half) bool { return m.states(n, h, now) })
}

// newestWord returns the newest statement of the node's own halves that count on one of its components.
func (m *Machine) newestWord(n *node, c fault.Component, counts func(fault.Half) bool) (*record, fault.Origin) {
	var best *record
	var by fault.Origin
	for _, h := range halves {
		r := m.said(n, h, c)
		if r == nil || !counts(h) {
			continue
		}
		if r.outweighs(best) {
			best, by = r, n.origin(h)
		}
	}
	return best, by
}

// outweighs reports whether r prevails over the other half's statement on the same component. A known state prevails
// over UNKNOWN (a host half that has just started has not read its DNP's reports yet), then the newer statement, then
// the worse.
func (r *record) outweighs(than *record) bool {
	switch {
	case than == nil:
		return true
	case (r.state == fault.Unknown) != (than.state == fault.Unknown):
		return than.state == fault.Unknown
	case !r.said.Equal(than.said):
		return r.said.After(than.said)
	}
	return r.state > than.state
}

// descriptor returns the i-th neighbour's statement on a component of the node; nil if there is none, or if all
// statements of the neighbour are plain.
func (m *Machine) descriptor(n *node, i int, c fault.Component, now time.Time) (*record, fault.Origin) {
	nb := n.neighbours[i]
	k, ok := describedIndex(c)
	if !ok || nb.node.dead.on || nb.node.allPlain() {
		return nil, fault.Origin{}
	}
	var best *record
	var by fault.Origin
	for _, h := range halves {
		r := m.saidOf(nb, h, k)
		if r == nil || !m.states(nb.node, h, now) {
			continue
		}
		if r.outweighs(best) {
			best, by = r, nb.node.origin(h)
		}
	}
	return best, by
}

// finding turns a statement into a finding of the given state.
func (r *record) finding(s fault.State, c fault.Component, by fault.Origin) finding {
	f := finding{state: s, cause: fault.CauseNone, kind: r.kind, path: r.path, from: by, began: r.began, detail: r.detail}
	if s == fault.Sick || s == fault.Failed {
		f.cause = c.Cause()
	}
	return f
}
