package awareness

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// findLink derives the state of a link end from the statements of its node and the peer. If the peer's death explains
// the fault, the link is FAILED with the peer's cause. Silence is the link's own fault only once it is settled that the
// peer's DNP lives. If only one end finds the link FAILED and the other end later reports it working, the link is
// disputed: SICK at the accusing end, NORMAL at the other.
func (m *Machine) findLink(n *node, d grid.Direction, now time.Time) finding {
	c, p := fault.Link(d), n.peers[d.Index()]
	if f := n.failure(fault.HalfDNP); f.on {
		out := f.finding
		out.state, out.cause, out.name, out.rule = fault.Unknown, fault.CauseNone, ruleDNPDead, "its DNP is dead"
		return out
	}
	own, by := m.ownWord(n, c, now)
	if m.isRelinked(n, d, now) {
		return m.relinkedLink(n, d)
	}
	if p == nil { // of another region, and not at its border
		return m.ownEnd(n, own, c, by)
	}
	if p.revoked {
		return m.distrustedPeer(p)
	}
	if p.stopped {
		return m.stoppedPeer(n, p, c)
	}
	if f := p.failure(fault.HalfDNP); f.on {
		return explained(p, own, by)
	}
	far, farBy := m.ownWord(p, fault.Link(d.Opposite()), now)
	if t := m.linkExcused(n, p, own, far, now); t.After(now) {
		n.wakeAt(t, now)
		return finding{keep: true}
	}
	near, nearBad := m.broken(n, p, own, c, by, now)
	away, awayBad := m.broken(n, n, far, c, farBy, now)
	if nearBad != awayBad && !near.keep && !away.keep {
		if f, ok := m.oneSided(n, p, d, own, far, by, now); ok {
			return f
		}
	}
	switch {
	case nearBad && !near.keep:
		return near
	case awayBad && !away.keep:
		away.name, away.rule = ruleFarEnd, "the far end's view of the link"
		return away
	case nearBad || awayBad:
		return finding{keep: true}
	}
	switch {
	case own.restarting():
		return restarting(p, own, by)
	case own != nil && own.state != fault.Unknown:
		return m.told(own, c, by)
	case far != nil && far.state == fault.Normal:
		f := far.finding(fault.Normal, c, farBy)
		f.name, f.rule = ruleFarEnd, "frames pass in both directions"
		return f
	}
	return m.unheard(n)
}

// linkExcused returns the time until which something other than the link explains its ends' reports: one end has only just regained the
// other's trust, or has just returned. Zero: nothing explains them.
func (m *Machine) linkExcused(n, p *node, own, far *record, now time.Time) time.Time {
	near, away := m.returnExplains(n, p, own), m.returnExplains(n, p, far)
	t := fault.Later(near, away)
	if own != nil && far != nil && own.state == fault.Failed && far.state == fault.Failed {
		t = fault.Earlier(near, away) // an excuse for one end's report is none for the other's
	}
	if own.silent() || far.silent() {
		t = fault.Later(t, m.relinking(n, p, now))
	}
	return t
}

// ownEnd returns the finding for a link whose other end is not known: its own end alone counts.
func (m *Machine) ownEnd(n *node, own *record, c fault.Component, by fault.Origin) finding {
	if own == nil || own.state == fault.Unknown {
		return m.unheard(n)
	}
	return m.told(own, c, by)
}

// works reports whether this end hears the other over the link, and knows that the other hears it.
func (r *record) works() bool {
	return r != nil && !r.restarting() && (r.state == fault.Normal || r.state == fault.Sick)
}

// oneSided returns the finding for a link that only one end finds FAILED while the other end says that it works. An end
// that is not heard learns this from the other end's frames. If it has not confirmed the failure LinkSettle after the
// accusation became known, its next report contradicts it. Until then the link stays unchanged and n is checked again.
// An overdue report contradicts nothing until it arrives, nor does one of a node that a quorum accuses. If the link is
// disputed already, this wait does not begin again when the working end finds the link better or worse.
func (m *Machine) oneSided(n, p *node, d grid.Direction, own, far *record, by fault.Origin, now time.Time) (f finding, ok bool) {
	c := fault.Link(d)
	accused, accusation, word, disputed := p, own, far, n.components[c].rule == ruleDisputed
	if own == nil || own.state != fault.Failed {
		accused, accusation, word, disputed = n, far, own, p.components[fault.Link(d.Opposite())].rule == ruleDisputed
	}
	if !word.works() || m.outvoted(accused, now) {
		return finding{}, false
	}
	due := accusation.since.Add(m.cfg.LinkSettle)
	if !disputed {
		due = fault.Later(due, word.since.Add(m.cfg.LinkSettle))
	}
	if word.said.Before(due) {
		n.wakeAt(fault.Later(due, now.Add(m.cfg.DigestPeriod/10)), now) // until the report arrives, which does not touch n, or the word expires
		end := accusation.since.Add(m.cfg.LinkSettle + m.overdue())
		n.wakeAt(end, now)
		return finding{keep: true}, now.Before(end)
	}
	if word == own {
		return m.told(own, c, by), true
	}
	f = own.finding(fault.Sick, c, by)
	f.name, f.rule = ruleDisputed, "only the near end finds it FAILED: the far end says that it works"
	return f, true
}

// outvoted reports whether a quorum of neighbours hears nothing from the node.
func (m *Machine) outvoted(n *node, now time.Time) bool {
	v := m.count(n, now, m.forgiven(n, now, halves[:]...), now)
	ok, single, _ := m.verdict(n, v, now)
	return ok && !single
}

// broken turns one end's view into a finding, if that view is FAILED. Silence is not settled while the accused, the
// silent node, may still turn out to be dead: until then the component keeps its state, and broken schedules another
// look at n.
func (m *Machine) broken(n, accused *node, r *record, c fault.Component, by fault.Origin, now time.Time) (f finding, bad bool) {
	if r == nil || r.state != fault.Failed {
		return finding{}, false
	}
	if r.silent() {
		if t := m.settles(accused, r, now); t.After(now) {
			n.wakeAt(t, now)
			return finding{keep: true}, true
		}
	}
	f = r.finding(fault.Failed, c, by)
	f.name, f.rule = ruleNearEnd, "the near end's view of the link"
	if accused.foreign && r.silent() {
		f.rule += "; " + string(accused.id) + " is of another region: whether it lives is known there"
	}
	return f, true
}

// settles returns the time from which the leader may blame the link: neither the death nor a pause of the accused explains
// the silence any longer. If that time has passed, the result is not after now.
func (m *Machine) settles(accused *node, r *record, now time.Time) time.Time {
	var t time.Time
	for _, k := range [...]fault.Half{0, fault.HalfDNP} {
		if q := &accused.rounds[k]; q.open && !accused.answered(k) {
			t = fault.Later(t, m.caughtUp(q.due)) // a challenge still waits for its answer
		}
	}
	if q := &accused.rounds[0]; q.shared {
		t = fault.Later(t, m.judged(q)) // others around it are silent as well, and the set is judged as a whole
	}
	if t = fault.Later(t, accused.rounds[0].awaits); t.After(now) {
		return t
	}
	t = r.since.Add(m.cfg.LinkSettle)
	v := accused.voice(fault.HalfDNP)
	if asked := m.clock.time(v.asked); !asked.IsZero() && !asked.Before(r.began.Add(r.since.Sub(r.began)/2)) {
		// A DNP that was challenged well after the link fell silent, and answered, is alive. It may still have caused the
		// silence by a pause that ended just before the answer. Then its next frame ends the silence, and the near end
		// reports this within PauseSettle.
		return fault.Earlier(t, m.clock.time(v.answeredAt).Add(m.cfg.PauseSettle))
	}
	return t
}

// explained returns the finding for a link whose peer is dead.
func explained(p *node, own *record, by fault.Origin) finding {
	f := p.failure(fault.HalfDNP).finding
	f.state, f.cause, f.name, f.rule, f.single = fault.Failed, fault.CauseDNP, rulePeerDead, "the DNP of "+string(p.id)+" is dead", false
	if p.dead.on {
		f.cause, f.rule = fault.CauseNode, "node "+string(p.id)+" is dead"
	}
	if own.silent() {
		f.kind, f.path, f.from, f.began, f.detail = own.kind, own.path, by, own.began, own.detail
	}
	return f
}

// restarting returns the finding for a link whose peer's DNP half is being restarted: neither the cable nor the
// reporting node is to blame.
func restarting(p *node, own *record, by fault.Origin) finding {
	f := own.finding(fault.Sick, fault.ComponentDNP, by)
	f.name, f.rule = ruleRestarting, "the DNP half of "+string(p.id)+" is being restarted"
	return f
}
