package sim

import (
	"slices"
	"time"

	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// restartWithin is the time that the daemon allows for a restart.
const restartWithin = 20 * time.Second

// restart is a planned restart of a half, or of both when their daemons are replaced, from the announcement until the notice that the
// halves are back.
type restart struct {
	halves []fault.Half
	// excused: the supervisors committed the announcement before the halves ended, and the map called no half of the node FAILED. So no
	// verdict on a half may follow during its restart while the other half lives, or restarts as well.
	excused bool
	wall    time.Duration // error of the leader's clock when the announcement was committed
	begun   time.Time
	over    bool
}

func (r *restart) of(h fault.Half) bool { return slices.Contains(r.halves, h) }

// restarting returns the planned restart that is under way; nil: none is.
func (n *node) restarting() *restart {
	if n.restart == nil || n.restart.over {
		return nil
	}
	return n.restart
}

// ofRestart returns the acts of one story part: a planned restart, alone or close to something else.
func (g *author) ofRestart() []string {
	n := g.node()
	near := g.dims.Neighbours(n)
	by := near[g.rnd.IntN(len(near))]
	h := [...]string{"host", "dnp"}[g.rnd.IntN(2)]
	after := g.ms(50, 3000)
	switch g.rnd.IntN(7) {
	case 0:
		return lines("restart-half %s %s %s", n, h, after)
	case 1: // the leader changes meanwhile or soon after, and then a part fails
		return lines("restart-half %s %s %s\nrun %s\nkill-supervisor leader\nrun %s\nstart-supervisor s0 s1 s2\nrun %s\nsensor %s memory FAILED",
			n, h, after, g.ms(10, 8000), g.ms(10, 3000), g.ms(10, 3000), n)
	case 2: // and then a neighbour dies
		return lines("restart-half %s %s %s\nrun %s\nkill-supervisor leader\nrun %s\nstart-supervisor s0 s1 s2\nrun %s\nkill %s node", n, h,
			after, g.ms(10, 8000), g.ms(10, 3000), g.ms(10, 3000), by)
	case 3: // the other half dies meanwhile
		return lines("restart-half %s %s %s\nrun %s\nkill %s %s\nrun %s\nstart %s node", n, h, after, g.ms(10, 3000), n,
			map[string]string{"host": "dnp", "dnp": "host"}[h], g.ms(10, 3000), n)
	case 5: // the daemons of both halves are replaced
		return lines("take-over %s %s %s", n, after, g.ms(50, 3000))
	case 6: // and so is the leader
		return lines("take-over %s %s %s\nrun %s\nkill-supervisor leader\nrun %s\nstart-supervisor s0 s1 s2", n, g.ms(50, 15000),
			g.ms(50, 15000), g.ms(10, 3000), g.ms(10, 3000))
	}
	return lines("restart-half %s %s %s\nrestart-half %s %s %s", n, h, after, by, h, after)
}

// restartHalf simulates a planned restart: the half is back after the given time.
func (n *node) restartHalf(h fault.Half, after time.Duration) {
	n.restartHalves(map[fault.Half]time.Duration{h: after})
}

// takeOver simulates a replacement of the daemons of both halves: each half is back after its time.
func (n *node) takeOver(host, dnp time.Duration) {
	n.restartHalves(map[fault.Half]time.Duration{fault.HalfHost: host, fault.HalfDNP: dnp})
}

// restartHalves simulates planned restarts. The host half announces them. The daemons wait until the supervisors have committed the
// announcements, but no longer than announceWithin. They then end the halves, and start each from its copy after the given time. When the
// halves have passed their self-tests, the host half reports their return.
func (n *node) restartHalves(after map[fault.Half]time.Duration) {
	if n.restarting() != nil || n.stop != nil || n.returning || !n.host.up() || !n.dnp.up() {
		return
	}
	r := &restart{begun: n.w.now}
	var notices []hostcore.Notice
	longest := time.Duration(0)
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		if d, is := after[h]; is {
			r.halves, longest = append(r.halves, h), max(longest, d)
			notices = append(notices, hostcore.Restart{Notice: fault.RestartNotice{Half: h, Within: restartWithin}})
		}
	}
	n.restart = r
	still := func() bool { return !r.over && n.stop == nil }
	n.announce(notices, n.w.after, still, func(committed bool) {
		leader, state := n.w.leading(), n.w.store.picture(n.id()).state
		r.excused = committed && leader != nil && state[fault.ComponentHost] != fault.Failed && state[fault.ComponentDNP] != fault.Failed
		if r.excused {
			r.wall = leader.wall
		}
		for _, h := range r.halves {
			lived := n.process(h).up()
			if h == fault.HalfDNP {
				n.recover(after[h])
			} else {
				n.recoverHost(after[h])
			}
			if lived && !r.excused {
				n.w.oweProcess(n, h, false)
			}
		}
		n.w.after(longest+n.w.between(agentStart, returnAfter), func() {
			if still() && n.host.up() {
				n.host.deliver(0, func() { n.stepHost(r.end()) })
			} else {
				n.away = r.begun.Add(announceWithin + restartWithin + fault.MaxRestart) // ends by itself; a new leader may allow it more time
			}
			r.over = true
		})
	})
}

// end is the notice that the halves are back.
func (r *restart) end() hostcore.Event {
	if len(r.halves) > 1 { // new daemons announce the return of the node
		return hostcore.Stop{Notice: fault.StopOver}
	}
	return hostcore.Restart{Notice: fault.RestartNotice{Half: r.halves[0]}}
}

// startsAlone reports whether the DNP half starts without the supervisors' knowledge: unannounced and not together with the host half.
// It also returns true if this start replaces an announced restart for which the neighbours still wait. Supervisors know of no return of a
// host half in its first life.
func (n *node) startsAlone() bool {
	recent := n.restart != nil && n.w.now.Sub(n.restart.begun) < linkWatch
	if recent && n.restart.of(fault.HalfDNP) && n.back.After(n.restart.begun) {
		return true
	}
	if r := n.restarting(); r != nil {
		return !r.of(fault.HalfDNP) || !r.excused
	}
	return n.host.up() && (n.w.now.Sub(n.host.born) > returnAfter || n.host.epoch == 1 || recent)
}

// forgetRestarts notes which planned restarts a new leader does not recognise, because its clock differs too much.
func (w *World) forgetRestarts(leader *replica) {
	for _, n := range w.nodes {
		if r := n.restart; r != nil && (leader.wall-r.wall).Abs() > awareness.LeaderClocks-restartWithin && w.now.Sub(r.begun) < linkWatch {
			r.excused, n.alone = false, w.now
		}
	}
}

// wronglyRestarted returns the error in a change that blames a half that restarts as announced; "": none.
func (w *World) wronglyRestarted(n *node, c awareness.Change) string {
	r := n.restarting()
	bad := (c.To == fault.Failed || c.To == fault.Sick) && c.From != fault.Failed && c.From != fault.Sick
	if r == nil || !r.excused || !bad {
		return ""
	}
	both := len(r.halves) > 1
	blames := func(h fault.Half) bool { return c.Component == h.Component() && (both || n.process(h.Other()).ready()) }
	ofNode := both && c.Component == fault.ComponentNode && c.To == fault.Failed
	if !ofNode && !slices.ContainsFunc(r.halves, blames) {
		return ""
	}
	return "a half that restarts, as announced, is called " + c.To.String()
}
