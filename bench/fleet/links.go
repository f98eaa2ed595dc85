package fleet

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// linkEnd is an agent's end of a link, as its DNP half sees it:
//
//	UNKNOWN ──frames──► NORMAL ──silence──► FAILED ──frames for linkHoldOff──► NORMAL
//	   │                  └──the peer says that it leaves──► SICK ──frames──► NORMAL
//	   └──nothing for relinkGrace──► FAILED
type linkEnd struct {
	peer  fault.NodeID // empty: no link
	state fault.State
	begun time.Time // of the state
	heard time.Time // the last frame
	since time.Time // since when frames have come; zero: none come
	late  time.Duration
}

const (
	// handshake is the time until a new link works.
	handshake = 20 * time.Millisecond
	// relinkGrace is the time for which a new link may be silent.
	relinkGrace = 15 * time.Second
	// ledKept is the number of former peers of a link that are remembered.
	ledKept = 8
)

// relink gives an end another peer.
func (a *Agent) relink(now time.Time, i int, peer fault.NodeID) {
	l, d := &a.links[i], grid.Directions()[i]
	had := l.peer != ""
	if peer != "" {
		a.led[i] = append(a.led[i], peer)
		a.led[i] = a.led[i][max(0, len(a.led[i])-ledKept):]
	}
	*l = linkEnd{peer: peer, state: fault.Unknown, begun: now, late: rand.N(a.f.periods.LinkPeriod)}
	if had || peer != "" {
		a.tell(fault.Observation{Component: fault.Link(d), State: fault.Unknown, Kind: fault.KindSelf})
	}
	if peer == "" {
		a.unsay(subject{a.id, fault.Link(d)})
	}
}

// neighbours drops the agent's statements about former neighbours.
func (a *Agent) neighbours() {
	a.mu.Lock()
	subjects := slices.Clone(a.order)
	a.mu.Unlock()
	for _, s := range subjects {
		if s.node != a.id && !slices.ContainsFunc(a.links[:], func(l linkEnd) bool { return l.peer == s.node }) {
			a.unsay(s)
		}
	}
}

// tell notes an observation for the next report and for all digests.
func (a *Agent) tell(o fault.Observation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.news = append(a.news, a.Node.say(o))
}

func (a *Agent) unsay(s subject) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.states, s)
	a.order = slices.DeleteFunc(a.order, func(o subject) bool { return o == s })
}

// hears reports whether frames arrive at an end, and whether the peer has said that it leaves.
func (a *Agent) hears(i int, now time.Time) (hears, left bool) {
	l := &a.links[i]
	p := a.f.agents[l.peer]
	if p == nil || p.killed || a.f.cut[pair(a.id, p.id)] {
		return false, false
	}
	if back := &p.links[grid.Directions()[i].Opposite().Index()]; !p.running() || back.peer != a.id {
		return false, true
	}
	return !now.Before(p.started), false
}

// stepLink follows what arrives at an end.
func (a *Agent) stepLink(now time.Time, i int) {
	l := &a.links[i]
	if l.peer == "" {
		return
	}
	hears, left := a.hears(i, now)
	if !hears {
		l.since = time.Time{}
	} else {
		if l.since.IsZero() {
			l.since = now
		}
		l.heard = now
	}
	works := func(after time.Duration) bool { return hears && now.Sub(l.since) >= after }
	switch l.state {
	case fault.Unknown, fault.Sick:
		if works(handshake) {
			a.become(now, i, fault.Normal)
		} else if !hears && now.Sub(l.begun) >= relinkGrace {
			a.become(now, i, fault.Failed)
		}
	case fault.Normal:
		if left {
			a.become(now, i, fault.Sick)
		} else if !hears && now.Sub(l.heard) >= a.f.silence()+l.late {
			a.become(now, i, fault.Failed)
		}
	case fault.Failed:
		if works(a.f.periods.LinkHoldOff) {
			a.become(now, i, fault.Normal)
		}
	}
}

// become is the only writer of a link's state after its begin.
func (a *Agent) become(now time.Time, i int, s fault.State) {
	l := &a.links[i]
	l.state, l.begun = s, now
	o := fault.Observation{Component: fault.Link(grid.Directions()[i]), State: s, Kind: fault.KindSelf}
	switch s {
	case fault.Failed:
		o.Kind, o.Detail = fault.KindSilence, "nothing heard"
		if !l.heard.IsZero() {
			o.Age = now.Sub(l.heard)
		}
	case fault.Sick:
		o.Kind, o.Detail = fault.KindDescriptor, "restarting"
	default:
	}
	a.tell(o)
	host := fault.Unknown
	if slices.ContainsFunc(a.links[:], func(o linkEnd) bool { return o.peer == l.peer && o.state == fault.Normal }) {
		host = fault.Normal
	}
	a.tell(fault.Observation{Node: l.peer, Component: fault.ComponentHost, State: host, Kind: fault.KindDescriptor})
}

// pair names two agents, in order.
func pair(a, b fault.NodeID) [2]fault.NodeID {
	if a > b {
		a, b = b, a
	}
	return [2]fault.NodeID{a, b}
}

// Cut cuts or mends the cables between two agents.
func (f *Fleet) Cut(a, b fault.NodeID, cut bool) {
	f.air.Lock()
	defer f.air.Unlock()
	if cut {
		f.cut[pair(a, b)] = true
	} else {
		delete(f.cut, pair(a, b))
	}
}

// Settled reports whether an agent runs, and all its links have been working for a time.
func (a *Agent) Settled(now time.Time, of time.Duration) bool {
	a.f.air.Lock()
	defer a.f.air.Unlock()
	links := 0
	for i := range a.links {
		l := &a.links[i]
		if l.peer == "" {
			continue
		}
		if links++; l.state != fault.Normal || now.Sub(l.begun) < of {
			return false
		}
	}
	return a.running() && links > 0
}

// Led returns the peers that a link has had lately, the present one included.
func (a *Agent) Led(d grid.Direction) []fault.NodeID {
	a.f.air.Lock()
	defer a.f.air.Unlock()
	return slices.Clone(a.led[d.Index()])
}

// LeadsTo reports whether one of the agent's links leads to a peer.
func (a *Agent) LeadsTo(peer fault.NodeID) bool { return slices.Contains(a.Peers(), peer) }

// Peers returns the distinct peers of an agent.
func (a *Agent) Peers() (out []fault.NodeID) {
	a.f.air.Lock()
	defer a.f.air.Unlock()
	for i := range a.links {
		if p := a.links[i].peer; p != "" && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}
