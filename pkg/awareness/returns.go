package awareness

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// A node is back when its stop ends, when a verdict on its DNP half or an announced restart of that half ends, when it announces its return
// during an announced restart of its host half, or when one of its halves restarts. (If only the DNP half restarts, unannounced, the leader
// does not see it, because that half does not report while its host half works.) Its links recover later: each end calls a link good only
// after the hold-off, and until then its frames say that it does not hear the other end. Until the links have recovered, neither such a
// frame nor a silence that began before the return blames a link:
//
//	dead or stopped ──starts, speaks──► back ──2 digest periods + Config.HoldOff──► links recovered
//
// A node could claim repeated restarts to hide a broken link. So an unannounced restart excuses a report for a limited time: as if it had
// happened a digest bound (Machine.window) after the report, or after the end of a stop or verdict, at the latest. Announced restarts have
// a budget (restartBudget). The end of a verdict excuses the report of a node that was away for longer. If both ends report the link
// FAILED, both reports must be excused.

// LeaderClocks is the largest difference between the clocks of two leaders at which the new leader still recognises an announced restart.
const LeaderClocks = 10 * time.Minute

// lifted returns the latest end of a stop of the node or of a verdict on its DNP half; zero: none.
func (m *Machine) lifted(n *node) time.Time {
	t := n.backAt[fault.HalfDNP-1]
	if p := m.stops[n]; p != nil && !p.settles.IsZero() {
		t = fault.Later(t, p.settles.Add(-m.restartSettles()))
	}
	return t
}

// linksRestarted returns the end of the last announced restart of the DNP half after which the links have time to recover; zero: none.
func (m *Machine) linksRestarted(n *node) time.Time {
	if p := m.restarts[n]; p != nil {
		return p.relink
	}
	return time.Time{}
}

// restarted returns when a half of the node last restarted; zero: never, as far as this leader knows.
func (m *Machine) restarted(n *node) time.Time {
	var last instant
	for i := range n.voices {
		switch v := &n.voices[i]; {
		case v.started == 0: // no report has stated an uptime
			last = max(last, v.booted)
		case v.started > v.met:
			last = max(last, v.started)
		}
	}
	return m.clock.time(last)
}

// linksBack returns the deadline for a node's links to work again, given the time of its return; zero if back is zero.
func (m *Machine) linksBack(n *node, back time.Time) time.Time {
	if back.IsZero() {
		return time.Time{}
	}
	return fault.Later(back.Add(m.restartSettles()+m.cfg.HoldOff), n.linked)
}

// allBack returns the deadline for a node's links to work again after its newest return of any kind; zero if it was never away.
func (m *Machine) allBack(n *node) time.Time {
	return m.linksBack(n, fault.Later(fault.Later(m.lifted(n), m.linksRestarted(n)), m.restarted(n)))
}

// returnExplains returns the time until which a return of either end excuses a report that the link is FAILED; zero if none does.
func (m *Machine) returnExplains(n, p *node, r *record) (t time.Time) {
	if r == nil || r.state != fault.Failed || r.kind != fault.KindSilence && r.kind != fault.KindHandshake {
		return time.Time{}
	}
	began := fault.Earlier(r.began, r.since) // a restarted half counts the silence only from its own start
	for _, end := range [...]*node{n, p} {
		back := m.lifted(end)
		known := fault.Later(back, r.since) // a node may restart soon after it is back
		back = fault.Later(back, fault.Earlier(m.restarted(end), known.Add(m.window())))
		back = fault.Later(back, m.linksRestarted(end))
		from := back
		if r.kind == fault.KindHandshake && !back.IsZero() {
			from = back.Add(m.restartSettles()) // a handshake fails only when the first frames arrive, after the return
		}
		if began.Before(from) {
			t = fault.Later(t, m.linksBack(end, back))
		}
	}
	return t
}

// linksSettle returns when the usual rules apply again to the links of a node that is back; zero: they apply now.
func (m *Machine) linksSettle(n *node) time.Time {
	if t := m.allBack(n); m.now.Before(t) {
		return t
	}
	return time.Time{}
}

// restoreReturn restores a node's return under an earlier leader. The clocks of the two leaders may differ, so the time in which the links
// recover starts again with this leader's term, even after a return long ago. From then on it is as if the host half had just restarted.
func (m *Machine) restoreReturn(n *node, settle time.Time) {
	if !settle.IsZero() {
		n.voice(fault.HalfHost).started = m.clock.instant(m.started)
	}
}
