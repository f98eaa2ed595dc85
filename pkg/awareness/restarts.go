package awareness

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// A node that restarts one of its halves on purpose announces it in advance, in a signed report
// (fault.RestartNotice). Until the half is back, the map keeps the states that the restart explains:
//
//	         notice                      over: settles
//	none ─────────────► announced ───────────────────────► settling
//	 ▲                    │  until the announced time ends      │
//	 └────────────────────┴────────────────────────────────────┘  verdicts fall on the evidence of that moment
//
// Only the node's own notice counts; a neighbour's statement about a restart delays nothing. A verdict on the half
// without a notice ends the other half's notice, and so does a revoked certificate. A budget limits the notices, so
// that no node can hide a fault for long.
const (
	// restartBudget is how long a node's notices may delay verdicts at once, all notices together.
	restartBudget = time.Minute
	// restartShare is the growth rate of a used budget: it regains 1/restartShare of the elapsed time.
	restartShare = 20
)

// restarts holds the notices of a node. Few nodes have any.
type restarts struct {
	until  [2]time.Time // end of the notice, of the host half and of the DNP half
	back   [2]bool      // the node has reported the end of the restart; until is when it settles
	newest [2]stamp     // of the newest notice on each half
	last   time.Time    // arrival of the newest notice
	budget time.Duration
	asOf   time.Time // time for which budget is valid
	relink time.Time // end of the last absence of the DNP half in an announced restart, if the budget covered the recovery of the links
}

// Restart is an announced restart of a half, or of both, as the map shows it. Zero: none.
type Restart struct {
	Half  fault.Half // of two halves, the one whose restart ends last
	Until time.Time  // deadline: verdicts resume then, unless the restart ends earlier
	Other time.Time  // deadline of the other half; zero: the other half does not restart
}

// Ends returns when the restart of this half ends at the latest; zero: the half does not restart.
func (r Restart) Ends(h fault.Half) time.Time {
	if r.Half == h {
		return r.Until
	}
	return r.Other
}

// restartSettles returns the time from the end of a restart until verdicts fall again: neighbours and the other half
// restate the links within two digest periods.
func (m *Machine) restartSettles() time.Duration { return 2 * m.cfg.DigestPeriod }

// notice processes a restart notice of a node's half. It ignores copies, notices older than the newest one on the same half, and notices
// that the host half did not sign.
func (m *Machine) notice(n *node, d fault.Delivery, now time.Time) {
	r, id := d.Report.Restart, d.Report.ID
	if !r.Half.Valid() || id.Origin.Half != fault.HalfHost || n.revoked {
		return
	}
	p := m.restartsOf(n, now)
	switch {
	case !p.advance(r.Half, stampOf(id), now):
		return
	case r.Within > 0:
		p.announce(r.Half, sent(d, now).Add(min(r.Within, fault.MaxRestart)), now)
	default:
		if restarted := m.restartOver(p, r.Half, now); restarted && r.Half == fault.HalfDNP {
			m.linksReturn(p, now)
		}
	}
	m.touchAround(n)
}

// advance records a notice on a half as the newest one. It returns false, and records nothing, if the notice is not newer.
func (p *restarts) advance(h fault.Half, at stamp, now time.Time) bool {
	newest := &p.newest[h-1]
	if !at.newer(*newest) {
		return false
	}
	*newest, p.last = at, now
	return true
}

// endRestarts ends the announced restarts of a node that is back: the new daemon's return ends the old daemon's notices. It leaves the
// notice of a DNP half with its own kernel. That half may still be away, and its own daemon ends the notice through the window. Otherwise
// the DNP half may have been away too, even if only the host half announced its restart: the agent may have stopped meanwhile.
func (m *Machine) endRestarts(n *node, at stamp, now time.Time) {
	p := m.restartsOf(n, now) // an older notice may still arrive
	both, restarted := n.platform() != fault.PlatformDPU, false
	for _, h := range halves {
		if (h == fault.HalfHost || both) && p.advance(h, at, now) {
			restarted = m.restartOver(p, h, now) || restarted
		}
	}
	if restarted && both {
		m.linksReturn(p, now)
	}
}

// restartOver ends a restart of a half. It reports whether one was announced and under way.
func (m *Machine) restartOver(p *restarts, h fault.Half, now time.Time) bool {
	restarts := now.Before(p.until[h-1]) && !p.back[h-1]
	p.over(h, now.Add(m.restartSettles()))
	return restarts
}

// linksReturn gives the links of a node whose DNP half is back their time to recover, if the budget covers that.
func (m *Machine) linksReturn(p *restarts, now time.Time) {
	takes := m.restartSettles() + m.cfg.HoldOff
	if p.grow(now); p.budget >= takes {
		p.budget, p.relink = p.budget-takes, now
	}
}

// restartsOf returns a node's record of restarts. It creates one if there is none.
func (m *Machine) restartsOf(n *node, now time.Time) *restarts {
	p := m.restarts[n]
	if p == nil {
		p = &restarts{budget: restartBudget, asOf: now, last: now}
		m.rememberRestarts(n, p)
	}
	return p
}

func (m *Machine) rememberRestarts(n *node, p *restarts) {
	if m.restarts == nil {
		m.restarts = make(map[*node]*restarts)
	}
	m.restarts[n] = p
}

// announce begins a restart of a half that ends at the given time, or when the budget is used up.
func (p *restarts) announce(h fault.Half, end, now time.Time) {
	p.grow(now)
	from := fault.Later(now, fault.Later(p.until[0], p.until[1])) // time that is already covered costs nothing more
	if cost := end.Sub(from); cost > p.budget {
		end = from.Add(p.budget)
	}
	p.budget -= max(0, end.Sub(from))
	p.until[h-1], p.back[h-1] = fault.Later(p.until[h-1], end), false
}

// grow updates the budget.
func (p *restarts) grow(now time.Time) {
	p.budget, p.asOf = min(restartBudget, p.budget+max(0, now.Sub(p.asOf))/restartShare), now
}

// over ends a restart of a half at the given time, unless it ends before. Unused time returns to the budget.
func (p *restarts) over(h fault.Half, at time.Time) {
	before := fault.Later(p.until[0], p.until[1])
	if at.Before(p.until[h-1]) {
		p.until[h-1] = at
	}
	p.back[h-1] = true
	p.budget = min(restartBudget, p.budget+before.Sub(fault.Later(p.until[0], p.until[1])))
}

// announced returns the restart that a node has announced and that has not settled.
func (m *Machine) announced(n *node, now time.Time) Restart { return m.restartOf(n, now, true) }

// awaited returns the announced restart whose half has not reported its return. Only this restart is in the map, so that a new leader does
// not extend a restart that is over.
func (m *Machine) awaited(n *node, now time.Time) Restart { return m.restartOf(n, now, false) }

// restartOf returns a node's announced restart. A restart that is over but has not settled counts only if settling is true.
func (m *Machine) restartOf(n *node, now time.Time, settling bool) (r Restart) {
	p := m.restarts[n]
	if p == nil || n.revoked || n.dead.on || n.inferred {
		return Restart{}
	}
	for _, h := range halves {
		switch until := p.until[h-1]; {
		case !now.Before(until) || p.back[h-1] && !settling:
		case until.After(r.Until):
			r = Restart{Half: h, Until: until, Other: r.Until}
		default:
			r.Other = until
		}
	}
	for _, h := range halves {
		if n.failure(h).on && !now.Before(p.until[h-1]) { // the restart of the other half does not explain that
			return Restart{}
		}
	}
	return r
}

// restartHolds reports whether a node's announced restart delays a verdict on it. If h is a half, only that half's
// restart does. The node is looked at again when the notice ends.
func (m *Machine) restartHolds(n *node, h fault.Half, now time.Time) bool {
	r := m.announced(n, now)
	if t := m.settlesUntil(n, now); !t.IsZero() { // back from a stop
		n.wakeAt(t, now)
		return true
	}
	until := r.Until
	if h != 0 {
		until = r.Ends(h)
	}
	if until.IsZero() {
		return false
	}
	n.wakeAt(until, now)
	return true
}

// keepsState reports whether an announced restart, of the node or of the node at the other end of a link, keeps a
// component's state. Only a change to NORMAL is made meanwhile.
func (m *Machine) keepsState(n *node, c fault.Component, f finding, now time.Time) bool {
	if f.state == fault.Normal || f.name == ruleRelinked || f.name == ruleStopped || len(m.restarts)+len(m.stops) == 0 {
		return false
	}
	holds := m.restartHolds(n, 0, now)
	if d, link := c.LinkDirection(); link && n.peers[d.Index()] != nil {
		if r := m.announced(n.peers[d.Index()], now); r.Half != 0 {
			n.wakeAt(r.Until, now)
			holds = true
		}
		if t := m.settlesUntil(n.peers[d.Index()], now); !t.IsZero() {
			n.wakeAt(t, now)
			holds = true
		}
	}
	return holds
}

// restoreRestart restores a restart that an earlier leader committed. It allows the restart another fault.MaxRestart, because the clocks of
// the two leaders may differ. It ignores a mark whose end differs from this leader's clock by more than LeaderClocks: such a mark is of an
// old restart whose end the node never reported.
func (m *Machine) restoreRestart(n *node, r Restart) {
	if !r.Half.Valid() || m.started.Sub(r.Until).Abs() > LeaderClocks {
		return
	}
	p := &restarts{budget: restartBudget, asOf: m.started}
	for _, h := range halves {
		if !r.Ends(h).IsZero() {
			p.announce(h, m.started.Add(fault.MaxRestart), m.started)
		}
	}
	p.budget = 0 // the earlier leader's rest is unknown
	m.rememberRestarts(n, p)
}

// forgetRestart drops a node's notices once they delay nothing, the budget is full again, and no older notice can still
// be on its way.
func (m *Machine) forgetRestart(n *node, now time.Time) {
	p := m.restarts[n]
	if p == nil || now.Before(fault.Later(p.until[0], p.until[1])) || now.Before(p.last.Add(fault.MaxRestart)) {
		return
	}
	if p.budget+now.Sub(p.asOf)/restartShare >= restartBudget {
		delete(m.restarts, n)
	}
}
