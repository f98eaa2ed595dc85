package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// stopLimit is the supervisors' limit in stories of stops. It is longer than any story.
const stopLimit = 10 * time.Minute

// agentStart bounds the time in which a daemon starts both halves. They have passed their self-tests by returnAfter.
const (
	agentStart  = time.Second
	returnAfter = 2 * time.Second
)

// stop is an orderly stop of a node's agent, from the announcement until the next start.
type stop struct {
	// excused: the supervisors committed the announcement before the halves ended, and the map did not call the node FAILED. So no
	// verdict may follow.
	excused bool
}

// NewStopPlan makes a story of announced stops and restarts beside other faults. No node lies in it.
func NewStopPlan(seed uint64) Plan {
	rnd := rand.New(rand.NewPCG(seed, 11))
	g := author{rnd: rand.New(rand.NewPCG(seed, 12)), theme: theme(rnd.IntN(int(numThemes))), times: 1, honest: true}
	p := g.plan(seed, g.shape(shapes))
	p.Stops, p.Synchronous, p.Acts = true, g.rnd.IntN(2) == 0, nil
	for n := 10 + rnd.IntN(15); len(p.Acts) < n; {
		switch rnd.IntN(6) {
		case 0, 1:
			p.Acts = append(p.Acts, g.act()...)
		case 2:
			p.Acts = append(p.Acts, g.ofRestart()...)
		default:
			p.Acts = append(p.Acts, g.ofStop()...)
		}
		p.Acts = append(p.Acts, g.pause())
	}
	return p
}

// ofStop returns the acts of one story part: a single stop, a stop close to another fault, or several stops in a row.
func (g *author) ofStop() []string {
	n := g.node()
	near := g.dims.Neighbours(n)
	by := near[g.rnd.IntN(len(near))]
	switch g.rnd.IntN(9) {
	case 0, 1:
		return lines("stop-agent %s\nrun %s\nstart-agent %s", n, g.ms(10, 8000), n)
	case 2: // until the end of the story, or until another act starts it
		return lines("stop-agent %s", n)
	case 3: // again before its links have settled, or before it announces the return
		return lines("stop-agent %s\nrun %s\nstart-agent %s\nrun %s\nstop-agent %s\nrun %s\nstart-agent %s", n, g.ms(10, 3000), n,
			g.ms(10, 5000), n, g.ms(10, 8000), n)
	case 4: // a neighbour dies meanwhile
		return lines("stop-agent %s\nrun %s\nkill %s node\nrun %s\nstart-agent %s\nrun %s\nstart %s node", n, g.ms(10, 3000), by,
			g.ms(10, 3000), n, g.ms(10, 3000), by)
	case 5: // a neighbour has just died
		return lines("kill %s node\nrun %s\nstop-agent %s\nrun %s\nstart %s node\nrun %s\nstart-agent %s", by, g.ms(10, 500), n,
			g.ms(10, 3000), by, g.ms(10, 3000), n)
	case 6: // the DNP half is dead already
		return lines("kill %s dnp\nrun %s\nstop-agent %s\nrun %s\nstart-agent %s", n, g.ms(10, 500), n, g.ms(10, 8000), n)
	case 7: // two neighbours at once
		return lines("stop-agent %s\nstop-agent %s\nrun %s\nstart-agent %s\nrun %s\nstart-agent %s", n, by, g.ms(10, 5000), n, g.ms(10, 5000), by)
	}
	return lines("stop-agent %s\nrun %s\nkill-supervisor leader\nrun %s\nstart-agent %s\nstart-supervisor s0 s1 s2", n, g.ms(10, 500),
		g.ms(10, 6000), n)
}

// stopAgent is an orderly stop by SIGTERM: the daemon has the host half announce it, waits until the supervisors have committed that,
// for announceWithin at most, and ends the halves.
func (n *node) stopAgent() {
	if n.stop != nil || !n.host.running && !n.dnp.running {
		return
	}
	s := &stop{}
	n.stop = s
	n.announce(stopNotice, n.w.after, func() bool { return n.stop == s }, func(committed bool) {
		s.excused = committed && n.w.store.picture(n.id()).state[fault.ComponentNode] != fault.Failed
		for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
			lived := n.process(h).up()
			if n.process(h).kill(); lived && !s.excused {
				n.w.oweProcess(n, h, false)
			}
		}
	})
}

// startAgent starts the daemon of a stopped node: it starts the halves, and announces the return.
func (n *node) startAgent() {
	if n.stop == nil {
		return
	}
	n.stop, n.back, n.returning = nil, n.w.now, true
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		n.w.after(n.w.between(0, agentStart), func() {
			if n.stop == nil {
				n.start(h)
			}
		})
	}
	back := n.back
	n.w.after(n.w.between(agentStart, returnAfter), func() { n.announceReturn(back) })
}

// announceReturn announces the end of a stop once both halves work. After restartWithin it announces it anyway, as the daemon does.
func (n *node) announceReturn(back time.Time) {
	switch {
	case n.stop != nil || !n.back.Equal(back): // another stop
	case n.host.up() && n.dnp.up() || n.w.now.Sub(back) >= restartWithin:
		n.returning = false
		n.host.deliver(0, func() { n.stepHost(hostcore.Stop{Notice: fault.StopOver}) })
	default:
		n.w.after(askEvery, func() { n.announceReturn(back) })
	}
}

// excused reports whether the node's agent has stopped as it announced.
func (n *node) excused() bool {
	return n.stop != nil && n.stop.excused && !n.host.running && !n.dnp.running
}

// wronglyStopped returns the error in a change that blames a stopped node, or the link to one; "": none.
func (w *World) wronglyStopped(n *node, c awareness.Change) string {
	bad := c.To == fault.Failed || c.To == fault.Sick
	if w.cfg.StopLimit == 0 || !bad || c.From == fault.Failed || c.From == fault.Sick {
		return ""
	}
	if d, link := c.Component.LinkDirection(); link {
		peer := n.neighbour(d)
		if c.Cause == fault.CauseLink && (n.excused() || peer.excused()) && soundSince(n, peer, d, w.now.Add(-linkWatch)) {
			return "a link to a stopped node is called " + c.To.String()
		}
	} else if n.excused() {
		return fmt.Sprintf("a node that stopped, as it announced, is called %s", c.To)
	}
	return ""
}

// watchStops notes the stops that the committed map has, and the planned restarts that are under way.
func (w *World) watchStops() {
	if w.cfg.StopLimit == 0 {
		return
	}
	for _, n := range w.nodes {
		if w.store.docs[n.id()].GetStopped() != nil || n.restarting() != nil {
			n.away = fault.Later(n.away, w.now)
		}
	}
}

// stopHolds reports whether a stop or a planned restart still delays verdicts on the node. The delay lasts while the committed map shows
// the stop, or while the restart is under way, and for two digest periods afterwards.
func (w *World) stopHolds(n *node) bool {
	return !n.away.IsZero() && w.now.Sub(n.away) <= 2*w.cfg.Periods.DigestPeriod
}
