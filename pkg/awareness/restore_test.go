package awareness

import (
	"slices"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"pgregory.net/rapid"
)

// TestRestoreKeepsGroups: a leader that takes over at any time during a catastrophe starts with exactly the committed
// map and groups. It publishes nothing before its grace is over. Once everything has settled, it agrees with the
// previous leader.
func TestRestoreKeepsGroups(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := testConfig(rapid.SampledFrom([]grid.Dims{{X: 4, Y: 4, Z: 1}, {X: 4, Y: 3, Z: 3}, {X: 5, Y: 5, Z: 3}}).Draw(t, "dims"))
		if rapid.Bool().Draw(t, "racks") {
			label(&cfg, "rack", func(c grid.Coord) int { return c.X })
		}
		w, err := newWorld(cfg)
		if err != nil {
			t.Fatal(err)
		}
		w.start()
		lo := cfg.Dims.At(rapid.IntRange(0, cfg.Dims.Nodes()-1).Draw(t, "at"))
		dx, dy, dz := rapid.IntRange(1, 3).Draw(t, "x"), rapid.IntRange(1, 3).Draw(t, "y"), rapid.IntRange(1, 2).Draw(t, "z")
		var dead []fault.NodeID
		for r := range cfg.Dims.Nodes() {
			c := cfg.Dims.At(r)
			if c.X >= lo.X && c.X < lo.X+dx && c.Y >= lo.Y && c.Y < lo.Y+dy && c.Z >= lo.Z && c.Z < lo.Z+dz {
				dead = append(dead, w.id(r))
				w.actor(w.id(r), fault.HalfHost).alive, w.actor(w.id(r), fault.HalfDNP).alive = false, false
			}
		}
		if 2*len(dead) > cfg.Dims.Nodes() {
			t.Skip("most are dead")
		}
		w.run(80 * time.Millisecond)
		for _, id := range dead {
			w.silence(id, false, 80*time.Millisecond)
		}
		w.run(time.Duration(rapid.IntRange(0, 600).Draw(t, "ms")) * time.Millisecond)
		takeover(t, w)
		w.run(4 * time.Second)
		settled := summary(w.m)
		takeover(t, w)
		w.run(4 * time.Second)
		if got := summary(w.m); got != settled {
			t.Fatalf("one leader comes to\n%s\nthe next to\n%s", settled, got)
		}
		for _, id := range dead {
			if n, _ := w.m.Node(id); n.State != fault.Failed && !n.Inferred {
				t.Fatalf("dead %s is %s", id, n.State)
			}
		}
	})
}

// takeover replaces the machine by one restored from the committed state, and checks that both are equal at first.
func takeover(t *rapid.T, w *world) {
	before := summary(w.m)
	m, err := New(w.cfg, w.now, w.m.Nodes())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.RestoreGroups(w.m.Groups()); err != nil {
		t.Fatal(err)
	}
	if got := summary(m); got != before {
		t.Fatalf("restored\n%s\nwant\n%s", got, before)
	}
	w.m, w.queue = m, nil
	w.wake = m.Step(w.now, Tick{}).Wake
	started := w.now
	w.log = func(at time.Time, out Output) {
		if at.Before(started.Add(w.cfg.Grace)) && len(out.Groups) > 0 {
			t.Fatalf("%s after it took over it says %+v", at.Sub(started), out.Groups)
		}
	}
}

// TestRestoredUnreachableIsForgotten: a node that was unreachable at a takeover, and later reports again, does not become
// unreachable when it is merely silent afterwards.
func TestRestoredUnreachableIsForgotten(t *testing.T) {
	w, err := newWorld(testConfig(grid.Dims{X: 4, Y: 4, Z: 1}))
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	saved, id := w.m.Nodes(), w.id(5)
	saved[5].State, saved[5].Unreachable = fault.Unknown, true
	if w.m, err = New(w.cfg, w.now, saved); err != nil {
		t.Fatal(err)
	}
	if err := w.m.RestoreGroups(nil); err != nil {
		t.Fatal(err)
	}
	w.queue = nil
	w.wake = w.m.Step(w.now, Tick{}).Wake
	w.run(3 * time.Second)
	if n, _ := w.m.Node(id); n.State != fault.Normal {
		t.Fatalf("heard again, %s is %s", id, n.State)
	}
	for _, h := range halves {
		w.actor(id, h).lost = true
	}
	w.run(3 * time.Second)
	if n, _ := w.m.Node(id); n.State != fault.Unknown || n.Unreachable {
		t.Errorf("silent beside the living, %s is %s, unreachable %t", id, n.State, n.Unreachable)
	}
}

// TestAbsentPartStaysAbsentAfterTakeover: a node that died before the takeover never states again that it lacks a part.
func TestAbsentPartStaysAbsentAfterTakeover(t *testing.T) {
	w, err := newWorld(testConfig(grid.Dims{X: 4, Y: 4, Z: 1}))
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	id := w.id(5)
	w.say(w.actor(id, fault.HalfDNP), subject{"", fault.ComponentPower}, fault.Unknown, fault.KindAbsent, 0)
	w.run(time.Second)
	for _, h := range halves {
		w.actor(id, h).alive = false
	}
	w.silence(id, false, 80*time.Millisecond)
	w.run(3 * time.Second)
	if s := w.state(id, fault.ComponentNode); s != fault.Failed {
		t.Fatalf("silent and accused, %s is %s", id, s)
	}
	absent := func() bool {
		n, _ := w.m.Node(id)
		return slices.ContainsFunc(n.Components, func(c ComponentStatus) bool {
			return c.Component == fault.ComponentPower && slices.ContainsFunc(c.Evidence, func(e EvidenceStatus) bool {
				return e.Kind == fault.KindAbsent
			})
		})
	}
	if !absent() {
		t.Fatal("the leader that heard the node forgets that it has no power sensor")
	}
	for range 2 { // leaders
		if w.m, err = New(w.cfg, w.now, w.m.Nodes()); err != nil {
			t.Fatal(err)
		}
		w.queue = nil
		w.wake = w.m.Step(w.now, Tick{}).Wake
		w.run(10 * time.Second)
		if !absent() {
			t.Error("a leader that never heard the node does not know that it has no power sensor")
		}
	}
}

// TestNodesThatStartWithTheirLeaderKeepTheirStates restarts a whole cluster: the nodes report again after the supervisors
// have a leader.
func TestNodesThatStartWithTheirLeaderKeepTheirStates(t *testing.T) {
	for _, grace := range []time.Duration{0, 10 * time.Second} {
		cfg := testConfig(grid.Dims{X: 3, Y: 3, Z: 1})
		cfg.StartGrace = grace
		w, err := newWorld(cfg)
		if err != nil {
			t.Fatal(err)
		}
		w.start()
		if w.m, err = New(w.cfg, w.now, w.m.Nodes()); err != nil {
			t.Fatal(err)
		}
		setLost := func(lost bool) {
			for rank := range w.cfg.Dims.Nodes() {
				for _, h := range halves {
					w.actor(w.id(rank), h).lost = lost
				}
			}
		}
		setLost(true)
		w.queue = nil
		w.wake = w.m.Step(w.now, Tick{}).Wake
		unknown := func() (n int) {
			for rank := range w.cfg.Dims.Nodes() {
				if w.state(w.id(rank), fault.ComponentNode) == fault.Unknown {
					n++
				}
			}
			return n
		}
		w.run(9 * time.Second)
		if n := unknown(); (n > 0) != (grace == 0) {
			t.Errorf("grace %s: %d nodes are UNKNOWN 9s after the leader took over", grace, n)
		}
		w.run(2 * time.Second)
		if n := unknown(); n != cfg.Dims.Nodes() {
			t.Errorf("grace %s: %d nodes are UNKNOWN 11s after the leader took over: want all", grace, n)
		}
		setLost(false)
		w.run(3 * time.Second)
		if n := unknown(); n > 0 {
			t.Errorf("grace %s: %d nodes that report again are UNKNOWN", grace, n)
		}
	}
}

// TestReturnCountsUnderAnotherClock: a node returns shortly before a takeover, and the new leader's clock is hours ahead. Until the
// hold-off is over, the leader blames no cable for a silence that began before the return.
func TestReturnCountsUnderAnotherClock(t *testing.T) {
	cfg := testConfig(grid.Dims{X: 3, Y: 1, Z: 1})
	cfg.HoldOff = 2 * time.Second
	w, err := newWorld(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	w.run(10 * time.Second) // long after the start of all nodes
	near, far := w.actor(w.id(0), fault.HalfHost), w.actor(w.id(1), fault.HalfHost)
	w.say(near, subject{w.id(0), fault.Link(grid.XPlus)}, fault.Failed, fault.KindSilence, 5*time.Second)
	w.say(far, subject{w.id(1), fault.Link(grid.XMinus)}, fault.Unknown, fault.KindSelf, 0)
	saved := w.m.Nodes()
	saved[1].LinksSettle = w.now.Add(time.Second - 3*time.Hour)
	for i := range saved[0].Components {
		if c := &saved[0].Components[i]; c.Component == fault.Link(grid.XPlus) {
			c.State, c.Cause = fault.Failed, fault.CauseNode
		}
	}
	if w.m, err = New(cfg, w.now, saved); err != nil {
		t.Fatal(err)
	}
	w.queue = nil
	started := w.now
	w.log = func(at time.Time, out Output) {
		for _, c := range out.Changes {
			if _, link := c.Component.LinkDirection(); link && c.Cause == fault.CauseLink {
				t.Errorf("%s after the takeover, %s %s is %s: %s", at.Sub(started), c.Node, c.Component, c.To, c.Reason)
			}
		}
	}
	w.wake = w.m.Step(w.now, Tick{}).Wake
	w.run(2 * time.Second)
}
