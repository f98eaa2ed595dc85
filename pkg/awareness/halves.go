package awareness

import (
	"fmt"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// finding is what the evidence says of a component at one time, and why.
type finding struct {
	state  fault.State
	cause  fault.Cause
	kind   fault.Kind
	path   fault.Path
	from   fault.Origin // zero: the supervisor itself
	began  time.Time    // zero: unknown
	name   ruleName
	rule   string // the same in words
	detail string
	single bool
	keep   bool // not settled yet: the component stays as it is
	blank  bool // UNKNOWN for want of any evidence
}

// verdict is a finding of FAILED that stays until there is proof of life.
type verdict struct {
	on     bool
	at     time.Time
	mark   mark
	proven time.Time // when there was proof, while the links are still awaited
	finding
}

func halfComponent(h fault.Half) fault.Component {
	if h == fault.HalfHost {
		return fault.ComponentHost
	}
	return fault.ComponentDNP
}

// settle brings a node's rounds and verdicts up to date.
func (m *Machine) settle(n *node, now time.Time) {
	for _, h := range halves {
		if n.voice(h).heard.IsZero() {
			continue
		}
		if t := m.expiry(n, h); t.After(now) {
			n.wake(t)
		}
	}
	if n.foreign {
		m.settleForeign(n, now)
		return // its own region judges it
	}
	if n.revoked {
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

// accusation is what speaks against one half.
type accusation struct {
	by     fault.Origin // of the statement that decides
	record *record      // nil: nobody accuses
	count  int          // neighbours whose descriptors do
	latest time.Time
	enough bool
	domain string // the failure domain that all of these neighbours are in; "" for none
}

// accused gathers the accusations of other halves against this one. One from the node's own other half suffices (§III-E).
// Otherwise it needs the descriptors of a quorum of neighbours from more than one failure domain, as for a whole node. Fewer
// never suffice.
//
// What was said before the half came back from a verdict is given time to be withdrawn.
func (m *Machine) accused(n *node, h fault.Half, now time.Time) accusation {
	var a accusation
	back := m.forgiven(n, now, h)
	if h == fault.HalfHost {
		a = m.describedDead(n, back, now)
	}
	if r := m.said(n, h.Other(), halfComponent(h)); r != nil && r.kind == fault.KindWatchdog && r.state == fault.Failed &&
		!r.since.Before(back) && m.current(n, h.Other(), now) {
		a.record, a.by, a.enough = r, n.origin(h.Other()), true
		a.latest = later(a.latest, later(r.since, n.backAt[h.Other()-1]))
	}
	return a
}

// describedDead gathers the neighbours' descriptors that call the node's host dead, since its last verdict ended.
func (m *Machine) describedDead(n *node, back, now time.Time) accusation {
	var a accusation
	var v votes
	for i, nb := range n.neighbours {
		if !nb.node.rounds[0].mute.IsZero() {
			v.mute++
			continue
		}
		witness := m.witness(nb.node, now)
		if witness {
			v.live++
		}
		r, by := m.descriptor(n, i, fault.ComponentHost, now)
		if r == nil || r.state != fault.Failed || r.since.Before(back) {
			continue
		}
		if witness {
			v.cast++
			v.by = append(v.by, nb.node)
		}
		a.latest = later(a.latest, later(r.since, nb.node.believed()))
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

// believed returns since when the word of a node counts again that was mute, or one of whose halves was FAILED:
// then what it said before counts as said anew, since whom it accuses was not asked on its account, and what
// else it has to say may be just behind. Zero when it was never so.
func (n *node) believed() time.Time {
	return later(n.spoke, later(n.backAt[0], n.backAt[1]))
}

// forgiven returns when the last of the given halves came back from a verdict, if that was so lately
// that accusations from before may just not have been withdrawn yet; else the zero time.
func (m *Machine) forgiven(n *node, now time.Time, hs ...fault.Half) time.Time {
	var t time.Time
	for _, h := range hs {
		back := n.backAt[h-1]
		if end := back.Add(2 * m.cfg.DigestPeriod); !back.IsZero() && now.Before(end) {
			n.wakeAt(end, now)
			t = later(t, back)
		}
	}
	return t
}

// judgeHalf finds a half failed when it is accused and does not answer.
func (m *Machine) judgeHalf(n *node, h fault.Half, now time.Time) {
	if n.failure(h).on {
		return
	}
	a := m.accused(n, h, now)
	if a.record == nil {
		m.close(n, h)
		return
	}
	m.ask(n, h, suspicion{latest: a.latest, enough: a.enough, wait: m.cfg.ChallengeHalf}, now)
	r := &n.rounds[h]
	if !a.enough || n.answered(h) {
		return
	}
	start, due := r.start, m.caughtUp(r.due)
	if a.record.kind == fault.KindWatchdog {
		due = m.caughtUp(m.promptAnswerBy(start, time.Duration(r.waits)*m.cfg.ChallengeHalf))
	}
	if n0 := &n.rounds[0]; h == fault.HalfDNP && n0.open && n0.sent > 0 && r.waits == 1 && !n.proven(h, n0.since) {
		// A quorum of neighbours hears nothing, and the question to either half went out with the
		// first of them: the wait has begun then.
		if v := m.count(n, n0.start, m.forgiven(n, now, h), now); v.cast >= Quorum(len(n.neighbours)) && n0.start.Before(start) {
			start = n0.start
			due = m.deadline(start, m.cfg.ChallengeHalf)
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
	if m.restartHolds(n, h, now) {
		return
	}
	f := a.record.finding(fault.Failed, halfComponent(h), a.by)
	f.rule = fmt.Sprintf("%s, no answer within %s", m.accusers(a), roughly(due.Sub(start)))
	f.name = ruleDescriptors
	f.rule += n.survivor(h)
	if a.record.kind == fault.KindWatchdog {
		f.name = ruleWatchdog
	}
	m.becomeFailed(n, h, f, now)
}

// survivor returns a note for the reason of a half's death if both halves run under one kernel: the other half reports, so the
// kernel and the machine live. It returns "" on other platforms.
func (n *node) survivor(h fault.Half) string {
	switch {
	case n.platform() != fault.PlatformSharedKernel:
		return ""
	case h == fault.HalfHost:
		return "; the agent's host half died, not the host (shared kernel)"
	}
	return "; the agent's DNP half died, not the network (shared kernel)"
}

// accusers says in words who accuses.
func (m *Machine) accusers(a accusation) string {
	if a.record.kind == fault.KindWatchdog {
		return "its other half finds it dead"
	}
	return fmt.Sprintf("descriptors of %d neighbours say it is dead", a.count)
}

// becomeFailed is the verdict on one half.
func (m *Machine) becomeFailed(n *node, h fault.Half, f finding, now time.Time) {
	t := m.try(n)
	t.failed[h-1] = verdict{on: true, at: now, mark: m.mark(now), finding: f}
	t.rounds[h] = round{}
}

// lull is how long a watchdog's good word must stand before it lifts a verdict: just long enough for
// what arrived together with it, in whatever order, to have its say.
const lull = time.Millisecond

// recover lifts a half's verdict, and the node's with it, when there is proof of life later than the
// verdict: an answer, a new boot, or the watchdog of an other half that is itself believed.
//
// A DNP that is back still has to find its links. Until its neighbours hear it again, but no longer
// than relinks, its verdict stands, so that they do not take its silence for their links' fault.
func (m *Machine) recover(n *node, h fault.Half, now time.Time) {
	if !n.failure(h).on {
		return
	}
	t := m.try(n)
	f := &t.failed[h-1]
	if f.proven.IsZero() {
		word := m.said(n, h.Other(), halfComponent(h))
		seen := word != nil && word.kind == fault.KindWatchdog && word.state == fault.Normal && word.came.After(f.at) &&
			m.current(n, h.Other(), now)
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
		if until := f.proven.Add(m.relinks()); ok && v.cast > 0 && now.Before(until) {
			n.wakeAt(until, now)
			return
		}
	}
	*f, t.dead = verdict{}, verdict{}
	t.rounds[h] = round{}
	t.backAt[h-1] = now
}

// relinks is how long a DNP that is back has at most until its neighbours hear it.
func (m *Machine) relinks() time.Duration { return 4 * m.cfg.DigestPeriod }

// returning says whether a half that is still FAILED is on its way back: it has shown a sign of life, or it died with
// its whole node, and the other half has just come back. That is no fault that it has in common with others: when a
// rack is switched on again, all its DNPs are for a moment what is left of the rack's death.
func (m *Machine) returning(n *node, h fault.Half, now time.Time) bool {
	f := n.failure(h)
	if !f.on || !f.proven.IsZero() || !f.name.ofNode() {
		return f.on && !f.proven.IsZero()
	}
	back := m.forgiven(n, now, h.Other())
	return !back.IsZero() && f.at.Before(back)
}

// ownWord returns the newest statement of the node's own halves on one of its components, of those
// whose word counts.
func (m *Machine) ownWord(n *node, c fault.Component, now time.Time) (*record, fault.Origin) {
	var best *record
	var by fault.Origin
	for _, h := range halves {
		r := m.said(n, h, c)
		if r == nil || !m.current(n, h, now) {
			continue
		}
		if r.outweighs(best) {
			best, by = r, n.origin(h)
		}
	}
	return best, by
}

// outweighs says which of two halves' statements on the same thing counts: one that knows over one
// that does not (a host half that just began has not read its DNP's words yet), then the newer, then
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

// descriptor returns what the i-th neighbour says of a component of the node; nil when it says nothing, or
// when all that it says of anybody is that all is well.
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
		if r == nil || !m.current(nb.node, h, now) {
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
