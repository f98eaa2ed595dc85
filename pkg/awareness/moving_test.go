package awareness

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// moving is a world in which a node gets another place while it runs.
type moving struct {
	*world
	t      *testing.T
	id     fault.NodeID
	to     grid.Coord
	faults []Change // findings of SICK and FAILED
}

// startMoving runs a torus of 64 places for some time, and then moves a node to the only empty place.
func startMoving(t *testing.T) *moving {
	t.Helper()
	from, to := grid.Coord{X: 1, Y: 1, Z: 1}, grid.Coord{X: 3, Y: 3, Z: 3}
	before, err := grid.Dims{X: 4, Y: 4, Z: 4}.Without(to)
	if err != nil {
		t.Fatal(err)
	}
	after, err := grid.Dims{X: 4, Y: 4, Z: 4}.Without(from)
	if err != nil {
		t.Fatal(err)
	}
	w, err := newWorld(testConfig(before))
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	w.run(3 * time.Second)
	x := &moving{world: w, t: t, id: w.cfg.IDs[from], to: to}
	w.log = func(_ time.Time, out Output) {
		for _, c := range out.Changes {
			if c.To > fault.Normal {
				x.faults = append(x.faults, c)
			}
		}
	}
	ids := map[grid.Coord]fault.NodeID{to: x.id}
	for c, id := range w.cfg.IDs {
		if id != x.id {
			ids[c] = id
		}
	}
	w.before, w.dims, w.cfg.Dims, w.cfg.IDs = w.dims, after, after, ids
	w.step(Moved{Dims: after, IDs: ids})
	return x
}

// takeover begins the term of another leader from a committed map.
func (x *moving) takeover(saved []NodeStatus) {
	x.t.Helper()
	m, err := New(x.cfg, x.now, saved)
	if err != nil {
		x.t.Fatal(err)
	}
	x.m = m
	x.step(Tick{})
}

// neighboursFollow has the neighbours of the new place follow their orders.
func (x *moving) neighboursFollow() {
	for _, at := range x.dims.Neighbours(x.to) {
		x.follow(x.cfg.IDs[at])
	}
}

// atFormerPlace has the host half say that all links are silent: its former neighbours have followed, and it has not.
func (x *moving) atFormerPlace() {
	for _, d := range grid.Directions() {
		x.say(x.actor(x.id, fault.HalfHost), subject{x.id, fault.Link(d)}, fault.Failed, fault.KindSilence, 0)
	}
}

func (x *moving) stop() {
	for _, h := range halves {
		x.actor(x.id, h).alive = false
	}
}

// linksSay reports all links of the new place at both ends.
func (x *moving) linksSay(s fault.State, k fault.Kind) {
	for _, d := range grid.Directions() {
		at, _ := x.dims.Neighbour(x.to, d)
		peer := x.cfg.IDs[at]
		if a := x.actor(x.id, fault.HalfHost); a.alive {
			x.say(a, subject{x.id, fault.Link(d)}, s, k, 0)
		}
		x.say(x.actor(peer, fault.HalfHost), subject{peer, fault.Link(d.Opposite())}, s, k, 0)
	}
}

// bootCold boots a half whose links begin.
func (x *moving) bootCold(a *actor) {
	a.lost = true // its first digest says that all is NORMAL
	x.boot(a)
	a.lost = false
	x.linksSay(fault.Unknown, fault.KindSelf)
}

// comesUp starts both halves at the new place.
func (x *moving) comesUp() {
	for _, h := range halves {
		x.boot(x.actor(x.id, h))
	}
	x.linksSay(fault.Unknown, fault.KindSelf)
	x.run(2 * time.Second)
	x.linksSay(fault.Normal, fault.KindSelf)
	x.run(3 * time.Second)
}

func (x *moving) wantNoFault() {
	x.t.Helper()
	for _, c := range x.faults {
		x.t.Errorf("%s %s is %s: %s", c.Node, c.Component, c.To, c.Reason)
	}
}

func (x *moving) wantState(c fault.Component, s fault.State) {
	x.t.Helper()
	if got := x.state(x.id, c); got != s {
		x.t.Errorf("%s of the moved node is %s: want %s", c, got, s)
	}
}

// A change of the leader at any time of a move makes no fault, whether or not the earlier leader has stored the map since the
// topology changed, and whenever the node's order arrives.
func TestTakeoverDuringMoveMakesNoFault(t *testing.T) {
	for _, tc := range []struct {
		name         string
		stored       bool
		before, late time.Duration
	}{
		{"map stored", true, 100 * time.Millisecond, 1200 * time.Millisecond},
		{"map not stored", false, 0, 1200 * time.Millisecond},
		{"late order", true, 100 * time.Millisecond, 16 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := startMoving(t)
			saved := x.m.Nodes()
			if !tc.stored {
				for i := range saved { // as the leader reads it from the document of the former place
					if s := &saved[i]; s.ID == x.id {
						*s = AtNewPlace(NodeStatus{ID: s.ID, Coord: s.Coord, State: fault.Unknown, Rule: s.Rule}, *s)
					}
				}
			}
			x.run(tc.before)
			x.takeover(saved)
			x.run(tc.late)
			x.wantState(fault.ComponentNode, fault.Unknown)
			x.neighboursFollow()
			x.run(80 * time.Millisecond)
			x.atFormerPlace()
			x.run(time.Second)
			x.stop()
			x.run(2 * time.Second)
			x.comesUp()
			x.wantNoFault()
			x.wantState(fault.ComponentNode, fault.Normal)
		})
	}
}

// A node whose order comes late is not judged by what it says at its former place.
func TestMovedNodeWithLateOrderIsNotAtFault(t *testing.T) {
	x := startMoving(t)
	x.run(16 * time.Second)
	x.neighboursFollow()
	x.run(80 * time.Millisecond)
	x.atFormerPlace()
	x.run(time.Second)
	x.wantNoFault()
	x.wantState(fault.ComponentNode, fault.Unknown)
}

// A node that dies on its way to the new place is named, also by a leader that took over since.
func TestMovedNodeThatDiesBeforeItsFirstWordIsNamed(t *testing.T) {
	for _, over := range []bool{false, true} {
		x := startMoving(t)
		x.neighboursFollow()
		x.run(500 * time.Millisecond)
		x.stop()
		if over {
			x.takeover(x.m.Nodes())
		}
		x.run(15 * time.Second)
		x.linksSay(fault.Failed, fault.KindSilence)
		x.run(14 * time.Second)
		x.wantState(fault.ComponentNode, fault.Unknown)
		x.run(DefaultRelinkBound + 2*time.Second)
		x.wantState(fault.ComponentNode, fault.Failed)
		for _, c := range x.faults {
			if c.Node != x.id && c.Cause != fault.CauseNode {
				t.Errorf("takeover %t: %s %s is %s by %s", over, c.Node, c.Component, c.To, c.Cause)
			}
		}
	}
}

// A node that goes on at its former place answers challenges. It is not dead, but its answers show nothing of the new place.
func TestAnswerFromFormerPlaceDoesNotMeetMovedNode(t *testing.T) {
	x := startMoving(t)
	x.run(100 * time.Millisecond)
	x.step(GossipOpinion{Node: x.id})
	x.run(500 * time.Millisecond)
	n := x.m.nodes[x.m.ranks[x.id]]
	if !n.heard(0).IsZero() || x.m.rewired[n].met {
		t.Errorf("heard at %s, met %t", n.heard(0), x.m.rewired[n].met)
	}
	x.neighboursFollow()
	x.run(15 * time.Second)
	x.linksSay(fault.Failed, fault.KindSilence)
	x.run(3 * time.Second)
	x.wantNoFault()
	x.run(3 * DefaultRelinkBound)
	if got := x.state(x.id, fault.ComponentNode); got == fault.Failed {
		t.Error("a node that answers is dead")
	}
}

// Each half has its own daemon, and they follow the order at different times: the half that runs at the new place first
// finds the other one stopped. That is no fault, also if the leader changes meanwhile.
func TestHalvesThatMoveAtDifferentTimesAreNotAtFault(t *testing.T) {
	for _, over := range []bool{false, true} {
		for _, first := range halves {
			x := startMoving(t)
			x.run(300 * time.Millisecond)
			x.stop()
			x.run(200 * time.Millisecond)
			a, other := x.actor(x.id, first), x.actor(x.id, first.Other())
			x.bootCold(a)
			x.say(a, subject{x.id, first.Other().Component()}, fault.Failed, fault.KindWatchdog, 0)
			if x.run(100 * time.Millisecond); over {
				x.takeover(x.m.Nodes())
			}
			x.run(8 * time.Second)
			x.bootCold(other)
			x.say(a, subject{x.id, first.Other().Component()}, fault.Normal, fault.KindWatchdog, 0)
			x.run(time.Second)
			x.linksSay(fault.Normal, fault.KindSelf)
			x.run(time.Second)
			if x.wantNoFault(); t.Failed() {
				t.Fatalf("the %s half is first, takeover %t", first, over)
			}
		}
	}
}

// A half that never comes at the new place is named when its time is over.
func TestHalfThatDoesNotMoveIsNamed(t *testing.T) {
	x := startMoving(t)
	x.run(300 * time.Millisecond)
	x.stop()
	d := x.actor(x.id, fault.HalfDNP)
	x.boot(d)
	x.say(d, subject{x.id, fault.ComponentHost}, fault.Failed, fault.KindWatchdog, 0)
	x.run(DefaultRelinkBound)
	x.wantNoFault()
	x.run(DefaultRelinkBound + time.Second)
	x.wantState(fault.ComponentHost, fault.Failed)
}

// What the DNP half said at the former place does not count, even if no report of it was ever heard there.
func TestMovedNodeIsNotHeardByUnknownHalfOfItsFormerPlace(t *testing.T) {
	x := startMoving(t)
	n := x.m.nodes[x.m.ranks[x.id]]
	if r := x.m.rewired[n]; r.former[1] != 0 {
		t.Fatalf("the DNP half was heard in epoch %d", r.former[1])
	}
	x.actor(x.id, fault.HalfHost).alive = false
	d := x.actor(x.id, fault.HalfDNP)
	x.say(d, subject{x.id, fault.ComponentHost}, fault.Failed, fault.KindWatchdog, 0)
	x.run(2 * time.Second)
	x.wantNoFault()
	if !n.heard(0).IsZero() {
		t.Errorf("heard at %s", n.heard(0))
	}
}
