package awareness

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// A node is back when a stop or a verdict on its DNP half ends, and when one of its halves has started again. (A DNP half whose host half
// works does not report, so its start is not seen.) Its links are back later. Each end calls a link good only after the hold-off, and until
// then its frames say that it does not hear the other end. So neither a silence from before the return nor such a frame blames the link
// until its links are back:
//
//	dead or stopped ──starts, speaks──► back ──2 digest periods + Config.HoldOff──► its links are back
//
// A node could claim one start after the other to hide that its links are broken. So a start excuses no report that was known a digest
// bound before it. If the node was away for that long, its verdict has ended since.
//
// linksClocks is how far the clocks of two leaders may differ for the later one to know of a return just before it began.
const linksClocks = 10 * time.Minute

// lifted returns when a stop or a verdict on the DNP half of the node last ended; zero: never.
func (m *Machine) lifted(n *node) time.Time {
	t := n.backAt[fault.HalfDNP-1]
	if p := m.stops[n]; p != nil && !p.settles.IsZero() {
		t = fault.Later(t, p.settles.Add(-m.restartSettles()))
	}
	return t
}

// restarted returns when a half of the node last started again; zero: never, as far as this leader knows.
func (m *Machine) restarted(n *node) time.Time {
	var last instant
	for i := range n.voices {
		v := &n.voices[i]
		if last = max(last, v.booted); v.started > v.met {
			last = max(last, v.started)
		}
	}
	return m.clock.time(last)
}

// linksBack returns when the links of a node must work that was back at the given time; zero: it was never away.
func (m *Machine) linksBack(n *node, back time.Time) time.Time {
	if back.IsZero() {
		return time.Time{}
	}
	return fault.Later(back.Add(m.restartSettles()+m.cfg.HoldOff), n.linked)
}

// allBack returns when the links of a node must work, after its newest return of any kind; zero: it was never away.
func (m *Machine) allBack(n *node) time.Time {
	return m.linksBack(n, fault.Later(m.lifted(n), m.restarted(n)))
}

// returnExplains returns how long a return of either end excuses a report that the link is FAILED; zero: no return excuses the report.
func (m *Machine) returnExplains(n, p *node, r *record) (t time.Time) {
	if r == nil || r.state != fault.Failed || r.kind != fault.KindSilence && r.kind != fault.KindHandshake {
		return time.Time{}
	}
	for _, end := range [...]*node{n, p} {
		back := m.lifted(end)
		if again := m.restarted(end); !again.After(r.since.Add(m.window())) {
			back = fault.Later(back, again)
		}
		from := back
		if r.kind == fault.KindHandshake && !back.IsZero() {
			from = back.Add(m.restartSettles()) // it begins only once the first frames arrive
		}
		if r.began.Before(from) {
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

// restoreReturn restores that a node was back just before this leader began. The time until its links are back begins again, because the
// clocks of the two leaders may differ. A time that differs by more than linksClocks does not count.
func (m *Machine) restoreReturn(n *node, settle time.Time) {
	if !settle.IsZero() && m.started.Sub(settle).Abs() <= linksClocks {
		n.voice(fault.HalfDNP).started = m.clock.instant(m.started)
	}
}
