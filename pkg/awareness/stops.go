package awareness

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// A node announces a clean stop in advance, in a signed report (fault.Stop). Until it is back, its silence
// is no fault: it and its links are UNKNOWN by rule "stopped", and it is no witness.
//
//	       notice              back                    settled
//	runs ──────────► stopped ──────────► settling ──────────────► runs
//	 ▲                │   ▲                 │
//	 │                │   └─────────────────┘ newer notice
//	 │                │
//	 └────────────────┘ not back within Config.StopLimit, or it never stopped: the usual rules apply
//
// A settling node has the same rules as a node after a restart. A newer notice of a node that is still stopped ends the former stop and
// begins another.
//
// A node is back when it announces the end of the stop. Without that announcement, it is back once stopEnding has passed since its host
// half's first report with a newer boot epoch. The DNP half reports only while the host half is silent, so its first report may date
// from the stop itself, and proves no new boot. An agent that resumes from its copy keeps its old epoch: its node is back once
// stopEnding has passed since its first report after a silence, if the node still reports then. If a node was never silent and still
// reports in its old epoch stopEnding after the notice, it has not stopped.
//
// Only the host half's own notice counts. The notice does not change faults that are already in the map. A budget limits the total time
// of a node's notices.
const (
	// stopEnding is how long a stopping node may still report, and how long a returning one may take for its self-tests.
	stopEnding = fault.MaxRestart
	// stopBudget is a node's full budget, in multiples of Config.StopLimit.
	stopBudget = 4
	// stopShare is the growth rate of a used budget: it regains 1/stopShare of the elapsed time.
	stopShare = 20
)

// stops holds a node's stop notices. Few nodes have any.
type stops struct {
	reason       fault.Stop
	since, until time.Time
	epoch        fault.Epoch // boot epoch of the host half at the notice
	silent       bool        // since the notice, the node has been silent for a whole window
	booted       bool        // the host half has reported a newer boot epoch
	backBy       time.Time   // when the node counts as back without a return notice; zero: no report shows a return
	settles      time.Time   // restartSettles after a return: until then, only changes to NORMAL are made
	missed       time.Time   // when the stop's deadline passed without a return; zero: it has not
	newest       stamp       // of the newest notice, or announcement of a return
	heard        time.Time   // when that arrived
	budget       time.Duration
	asOf         time.Time // when budget was last updated
}

// Stop is an announced stop of a node, as the map shows it. Zero: none.
type Stop struct {
	Reason fault.Stop
	Since  time.Time // when the node announced it
	Until  time.Time // when verdicts fall again, unless the node is back earlier
}

// stopNotice processes a report's notice about a stop. Copies, older notices and notices of earlier boots change nothing. If the node is
// dead, the notice waits for the next step, because the same report may prove a return.
func (m *Machine) stopNotice(n *node, d fault.Delivery, now time.Time) {
	s, id := d.Report.Stop, d.Report.ID
	if !s.Valid() || id.Origin.Half != fault.HalfHost || id.Epoch < n.voice(fault.HalfHost).epoch || n.revoked {
		return
	}
	w := notice{n, s, stampOf(id), sent(d, now)}
	if n.dead.on || n.inferred {
		m.notices = append(m.notices, w)
		return
	}
	m.noticed(w, now)
}

// notice is a node's notice about a stop.
type notice struct {
	*node
	stop fault.Stop
	at   stamp
	sent time.Time
}

// waitingNotices processes the notices that arrived while their nodes were dead.
func (m *Machine) waitingNotices(now time.Time) {
	for _, w := range m.notices {
		m.noticed(w, now)
	}
	m.notices = m.notices[:0]
}

// noticed processes a notice. If the node was dead when the notice arrived, call it only after the step in which the same report may
// prove the node's return.
func (m *Machine) noticed(w notice, now time.Time) {
	n, s := w.node, w.stop
	if n.revoked {
		return
	}
	if s == fault.StopOver {
		m.endRestarts(n, w.at, now)
	}
	if m.cfg.StopLimit == 0 {
		return
	}
	p := m.stops[n]
	switch {
	case p == nil: // also for a return, because an older notice may still arrive
		p = &stops{budget: stopBudget * m.cfg.StopLimit, asOf: now}
		m.rememberStops(n, p)
	case !w.at.newer(p.newest):
		return
	}
	if n.stopped && p.reason == fault.StopLeave && s.Begins() {
		s = fault.StopLeave // the agent of a node that leaves stops too
	}
	p.newest, p.heard = w.at, now
	m.isBack(n, p, now) // a newer stop begins after the end of the former one, even if the node did not announce that end
	if s == fault.StopOver {
		return
	}
	m.becomeStopped(n, p, s, w.sent, now)
}

func (m *Machine) rememberStops(n *node, p *stops) {
	if m.stops == nil {
		m.stops = make(map[*node]*stops)
	}
	m.stops[n] = p
}

// becomeStopped begins a stop that was announced at since, if the budget allows it.
func (m *Machine) becomeStopped(n *node, p *stops, reason fault.Stop, since, now time.Time) {
	if n.stopped || n.dead.on || n.inferred {
		return
	}
	limit := m.cfg.StopLimit
	p.budget, p.asOf = min(stopBudget*limit, p.budget+max(0, now.Sub(p.asOf))/stopShare), now
	end := since.Add(limit)
	if longest := now.Add(p.budget); end.After(longest) {
		end = longest
	}
	if !end.After(now) {
		return
	}
	p.budget -= end.Sub(now)
	p.reason, p.since, p.until, p.backBy, p.settles, p.missed = reason, since, end, time.Time{}, time.Time{}, time.Time{}
	p.silent, p.booted = false, false
	p.epoch = n.voice(fault.HalfHost).epoch
	n.stopped, n.unreachable = true, false
	m.touchAround(n)
}

// isBack ends a stop. Until the links have settled, only changes to NORMAL are made.
func (m *Machine) isBack(n *node, p *stops, now time.Time) {
	if !n.stopped {
		return
	}
	m.endStop(n)
	p.settles = now.Add(m.restartSettles())
	// The time until then costs budget too: a node that stops and returns again and again hides its faults meanwhile.
	p.budget = max(0, min(stopBudget*m.cfg.StopLimit, p.budget+max(0, p.until.Sub(now)))-m.stopCost())
}

// stopCost returns the price of a return: at least the time for which the node's states then stand.
func (m *Machine) stopCost() time.Duration {
	return max(m.restartSettles(), min(stopEnding, m.cfg.StopLimit/8))
}

// endStop ends a stop. Components that it made UNKNOWN stay so, by rule "unheard", until the next evaluation.
func (m *Machine) endStop(n *node) {
	n.stopped = false
	for _, nb := range n.neighbours {
		for _, d := range nb.links() {
			nb.node.unstop(fault.Link(d))
		}
	}
	for c := fault.ComponentHost; c.Valid(); c++ {
		n.unstop(c)
	}
	m.touchAround(n)
}

// unstop removes the rule "stopped" from a component.
func (n *node) unstop(c fault.Component) {
	p := &n.components[c]
	if p.rule != ruleStopped {
		return
	}
	p.rule = ruleUnheard
	if s := n.story(c); s != nil {
		s.why = nil
	}
}

// settleStop ends a node's stop when its time is over.
func (m *Machine) settleStop(n *node, now time.Time) {
	if !n.stopped {
		return
	}
	p, heard := m.stops[n], n.heard(n.stopsItself())
	noticed := fault.Later(p.since, m.started)
	silence := fault.Later(heard, noticed).Add(m.window())
	reports := now.Before(silence)
	p.silent = p.silent || !reports
	booted := n.voice(fault.HalfHost).epoch > p.epoch
	switch {
	case booted && !p.booted: // a new boot gets its own stopEnding for its self-tests
		p.booted, p.backBy = true, now.Add(stopEnding)
	case booted:
	case p.backBy.IsZero() && p.silent && reports:
		p.backBy = now.Add(stopEnding)
	case !p.backBy.IsZero() && !now.Before(p.backBy) && !reports:
		p.backBy = time.Time{} // silent again: the report was a late one from before the stop, or the node died again
	}
	switch {
	case n.revoked:
		m.endStop(n)
	case !p.backBy.IsZero() && !now.Before(p.backBy):
		m.isBack(n, p, now)
	case p.backBy.IsZero() && !p.silent && heard.After(noticed.Add(stopEnding)):
		m.endStop(n)
	case !now.Before(p.until):
		p.missed = now
		m.endStop(n)
	default:
		n.wakeAt(fault.Earliest(p.until, p.backBy), now)
		if !p.silent {
			n.wakeAt(silence, now)
		}
		n.restless = true // any report may end it
	}
}

// stopsItself returns the half whose reports show that a stopping node has not stopped: of two kernels the host half, because
// the DNP half goes on; otherwise 0 for either half.
func (n *node) stopsItself() fault.Half {
	if n.platform() == fault.PlatformDPU {
		return fault.HalfHost
	}
	return 0
}

// isStopped returns the announced stop of a node, or zero.
func (m *Machine) isStopped(n *node) Stop {
	if !n.stopped {
		return Stop{}
	}
	p := m.stops[n]
	return Stop{Reason: p.reason, Since: p.since, Until: p.until}
}

// settlesUntil returns the time until which a node that is back from a stop keeps the states of its components and links;
// zero: it does not.
func (m *Machine) settlesUntil(n *node, now time.Time) time.Time {
	if p := m.stops[n]; p != nil && now.Before(p.settles) && !n.revoked {
		return p.settles
	}
	return time.Time{}
}

// missedStop returns when the time of a stop passed from which the node has not come back; zero: there is none.
func (m *Machine) missedStop(n *node) time.Time {
	p := m.stops[n]
	if p == nil || p.missed.IsZero() || n.heard(n.stopsItself()).After(p.missed) {
		return time.Time{}
	}
	return p.missed
}

// notBack returns a note for the reason of a death: the node did not come back from a stop.
func (m *Machine) notBack(n *node) string {
	t := m.missedStop(n)
	if t.IsZero() {
		return ""
	}
	p := m.stops[n]
	return "; it did not come back from the " + p.reason.String() + " that it announced " + roughly(t.Sub(p.since)) + " before"
}

// stoppedPart returns the finding for a component of a stopped node, or for the node itself. A fault that the map has
// already stays.
func (m *Machine) stoppedPart(n *node, c fault.Component) finding {
	if p := &n.components[c]; (p.state == fault.Sick || p.state == fault.Failed) && !ofPeer(c, p.cause) {
		return finding{keep: true}
	}
	words := map[fault.Stop]string{fault.StopShutdown: "its machine shuts down", fault.StopReboot: "its machine reboots",
		fault.StopLeave: "it leaves the cluster"}[m.stops[n].reason]
	if words == "" {
		words = "its agent was told to stop"
	}
	return finding{state: fault.Unknown, cause: fault.CauseNone, kind: fault.KindSelf, from: n.origin(fault.HalfHost), name: ruleStopped,
		rule: words + ", as it announced: its silence is no fault"}
}

// stoppedPeer returns the finding for a link to a stopped node.
func (m *Machine) stoppedPeer(n, p *node, c fault.Component) finding {
	if own := &n.components[c]; own.cause == fault.CauseLink && (own.state == fault.Sick || own.state == fault.Failed) {
		return finding{keep: true}
	}
	return finding{state: fault.Unknown, cause: fault.CauseNone, kind: fault.KindSelf, from: p.origin(fault.HalfHost), name: ruleStopped,
		rule: string(p.id) + " has stopped, as it announced"}
}

// restoreStop restores a stop that an earlier leader committed. It restarts the stop's full time limit, because the clocks of the two
// leaders may differ.
func (m *Machine) restoreStop(n *node, s Stop) {
	if !s.Reason.Begins() || m.cfg.StopLimit == 0 || n.dead.on || n.inferred || !s.Until.After(s.Since) {
		return
	}
	p := &stops{budget: stopBudget * m.cfg.StopLimit, asOf: m.started}
	m.rememberStops(n, p)
	m.becomeStopped(n, p, s.Reason, m.started, m.started)
	if n.stopped {
		p.since = fault.Earlier(s.Since, m.started)
		p.until = fault.Earlier(p.until, m.started.Add(s.Until.Sub(s.Since))) // the budget may have cut the stop short
	}
	p.budget = 0 // the earlier leader's remaining budget is not stored
}

// forgetStop drops a node's notices once the budget is full again, and no older notice can still be on its way.
func (m *Machine) forgetStop(n *node, now time.Time) {
	p := m.stops[n]
	if p == nil || n.stopped || now.Before(m.allBack(n)) || !m.missedStop(n).IsZero() {
		return
	}
	if until := fault.Later(p.since, p.heard).Add(max(m.cfg.StopLimit, stopEnding)); now.Before(until) {
		n.wake(until) // a report does not end it
		return
	}
	if p.budget+now.Sub(p.asOf)/stopShare >= stopBudget*m.cfg.StopLimit {
		delete(m.stops, n)
	}
}

// stopped lists the announced stops, and for a link the returns, that explain the state.
func (x *explainer) stopped() {
	nodes := []*node{x.n}
	d, link := x.c.LinkDirection()
	if link && x.n.peers[d.Index()] != nil {
		nodes = append(nodes, x.n.peers[d.Index()])
	}
	for _, n := range nodes {
		if s := x.isStopped(n); s.Reason != 0 {
			x.say("%s announced its %s %s: its silence is no fault until it is back, for at most %s more", n.id, s.Reason, x.ago(s.Since),
				roughly(s.Until.Sub(x.now)))
		} else if t := x.settlesUntil(n, x.now); !t.IsZero() {
			x.say("%s is back from a stop: for %s more only changes to NORMAL are made", n.id, roughly(t.Sub(x.now)))
		} else if t := x.allBack(n); link && x.now.Before(t) && !n.failure(fault.HalfDNP).on {
			x.say("%s is returning: for %s more, its links are not blamed for a silence or a failed handshake", n.id, roughly(t.Sub(x.now)))
		}
	}
}
