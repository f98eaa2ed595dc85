package awareness

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// halfTorus configures one of two regions of an 8x4 torus, with X from first to first+3. It knows only the border nodes
// of the other region.
func halfTorus(first int) Config {
	cfg := testConfig(grid.Dims{X: 8, Y: 4, Z: 1})
	cfg.Foreign = map[fault.NodeID]bool{}
	for at, id := range cfg.IDs {
		switch x := (at.X - first + 8) % 8; {
		case x == 4 || x == 7:
			cfg.Foreign[id] = true
		case x > 4:
			delete(cfg.IDs, at)
		}
	}
	return cfg
}

// regionWorld runs the half of the torus with X from 0 to 3 and the neighbours' reports at its border.
func regionWorld(t *testing.T, first int) *world {
	t.Helper()
	w, err := newWorld(halfTorus(first))
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	return w
}

// TestRegionMapHasOwnNodesOnly checks that the map has exactly the region's own nodes.
func TestRegionMapHasOwnNodesOnly(t *testing.T) {
	w := regionWorld(t, 0)
	if got := w.m.Len(); got != 16 {
		t.Fatalf("%d nodes, want 16", got)
	}
	for i, n := range w.m.Nodes() {
		if n.Coord.X > 3 || n.State != fault.Normal {
			t.Errorf("%s at %s is %s: want a node of the region, NORMAL", n.ID, n.Coord, n.State)
		}
		if at := w.m.NodeAt(i); at.ID != n.ID {
			t.Errorf("NodeAt(%d) is %s, want %s", i, at.ID, n.ID)
		}
	}
	if _, ok := w.m.Node("n4-0-0"); ok {
		t.Error("a node of another region is in the map")
	}
	if got := len(w.m.Links()); got != 16*4 {
		t.Errorf("%d link ends, want %d", got, 16*4)
	}
}

// TestRegionBorderDeath: a node at the border dies. Its neighbour in the other region counts as a witness in the node's
// own region. The other region only knows that the link to the node is silent.
func TestRegionBorderDeath(t *testing.T) {
	own, other := regionWorld(t, 0), regionWorld(t, 4)
	for _, w := range []*world{own, other} {
		for _, h := range halves {
			w.actor("n3-1-0", h).alive = false
		}
		w.run(80 * time.Millisecond)
	}
	// Only two accusers belong to its own region, and the quorum is three.
	for _, by := range []fault.NodeID{"n3-0-0", "n3-2-0"} {
		own.silenceBy(own.actor(by, fault.HalfHost), grid.Coord{X: 3, Y: 1}, false, 80*time.Millisecond)
	}
	own.run(own.cfg.ChallengeNode * 3)
	if got := own.state("n3-1-0", fault.ComponentNode); got == fault.Failed {
		t.Fatal("FAILED on two votes of four")
	}
	for _, w := range []*world{own, other} {
		w.silenceBy(w.actor("n4-1-0", fault.HalfHost), grid.Coord{X: 3, Y: 1}, false, 80*time.Millisecond)
		w.run(time.Second)
	}
	n, _ := own.m.Node("n3-1-0")
	if n.State != fault.Failed || n.SingleWitness {
		t.Errorf("in its own region it is %s, single witness %t", n.State, n.SingleWitness)
	}
	for _, n := range other.m.Nodes() {
		want, cause := fault.Normal, fault.CauseNone
		if n.ID == "n4-1-0" {
			want, cause = fault.Normal, fault.CauseNone // one bad link is only that link's fault
		}
		if n.State != want || n.Cause != cause {
			t.Errorf("in the other region %s is %s for %s, want %s for %s", n.ID, n.State, n.Cause, want, cause)
		}
	}
	e, ok := other.m.Explain("n4-1-0", fault.Link(grid.XMinus))
	if !ok || e.State != fault.Failed || !strings.Contains(e.Summary, "n3-1-0 is of another region") {
		t.Errorf("the link to it is %s: %s", e.State, e.Summary)
	}
}

// TestRegionForeignIsNeverJudged checks that no accusation leads to a challenge, a change or a group of a foreign node.
func TestRegionForeignIsNeverJudged(t *testing.T) {
	w := regionWorld(t, 0)
	for _, h := range halves {
		w.actor("n4-1-0", h).alive = false
	}
	w.log = func(at time.Time, out Output) {
		for _, c := range out.Challenges {
			if w.cfg.Foreign[c.Node] {
				t.Errorf("%s: challenge to %s", at.Sub(epoch0), c.Node)
			}
		}
		for _, c := range out.Changes {
			if w.cfg.Foreign[c.Node] {
				t.Errorf("%s: %s changes", at.Sub(epoch0), c.Node)
			}
		}
		for _, g := range out.Groups {
			for _, id := range g.Members {
				if w.cfg.Foreign[id] {
					t.Errorf("%s: %s is in %s", at.Sub(epoch0), id, g.ID)
				}
			}
		}
	}
	w.run(80 * time.Millisecond)
	w.silence("n4-1-0", false, 80*time.Millisecond)
	w.say(w.actor("n3-1-0", fault.HalfHost), subject{"n4-1-0", fault.ComponentHost}, fault.Failed, fault.KindDescriptor, 0)
	w.step(GossipOpinion{Node: "n4-1-0"})
	w.run(5 * time.Second)
	if got := w.state("n3-1-0", fault.Link(grid.XPlus)); got != fault.Failed {
		t.Errorf("the link to it is %s", got)
	}
}

// TestRegionChallengeViaForeign checks that a foreign neighbour may forward a challenge.
func TestRegionChallengeViaForeign(t *testing.T) {
	w := regionWorld(t, 0)
	out := w.m.Step(w.now, GossipOpinion{Node: "n3-1-0"})
	if len(out.Challenges) != 1 || !slices.Contains(out.Challenges[0].Via, "n4-1-0") {
		t.Errorf("%+v: want n4-1-0 among those that carry it", out.Challenges)
	}
}

// TestLinkWithoutPeerDependsOnOwnEnd: without a named peer, a link's state depends on its own end's statements.
func TestLinkWithoutPeerDependsOnOwnEnd(t *testing.T) {
	cfg := testConfig(grid.Dims{X: 3, Y: 3, Z: 1})
	cfg.Foreign = map[fault.NodeID]bool{}
	delete(cfg.IDs, grid.Coord{X: 1, Y: 1})
	w, err := newWorld(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	link := fault.Link(grid.XPlus)
	if got := w.state("n0-1-0", link); got != fault.Normal {
		t.Fatalf("%s at first", got)
	}
	w.say(w.actor("n0-1-0", fault.HalfHost), subject{"n0-1-0", link}, fault.Failed, fault.KindSilence, 0)
	w.run(time.Second)
	if got := w.state("n0-1-0", link); got != fault.Failed {
		t.Errorf("%s when its own end says FAILED", got)
	}
	for _, l := range w.m.Links() {
		if l.Node == "n0-1-0" && l.Direction == grid.XPlus && (l.Peer != "" || l.PeerCoord != grid.Coord{X: 1, Y: 1}) {
			t.Errorf("its peer is %q at %s", l.Peer, l.PeerCoord)
		}
	}
}

func TestInvalidRegionIsRefused(t *testing.T) {
	for names, change := range map[string]func(*Config){
		`Foreign: given "x"`: func(c *Config) { c.Foreign["x"] = true },
		"want at least one": func(c *Config) {
			for _, id := range c.IDs {
				c.Foreign[id] = true
			}
		},
		"25 ids, 24 of them": func(c *Config) { c.IDs[grid.Coord{X: 17}] = "n17-0-0" },
	} {
		cfg := halfTorus(0)
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), names) {
			t.Errorf("error %v, want one that names %q", err, names)
		}
	}
	cfg := halfTorus(0)
	saved := []NodeStatus{{ID: "n4-0-0", Coord: grid.Coord{X: 4}, State: fault.Normal}}
	if _, err := New(cfg, epoch0, saved); err == nil || !strings.Contains(err.Error(), "another region") {
		t.Errorf("a foreign node is restored: %v", err)
	}
}

// TestRegionForeignVerdict: the other region's verdict that its node is dead explains the silent link to the node, for
// as long as the region restates it. The node at the near end is not sick.
func TestRegionForeignVerdict(t *testing.T) {
	w := regionWorld(t, 4)
	say := func(dead bool) {
		w.step(ForeignVerdict{Node: "n3-1-0", Host: dead, DNP: dead})
	}
	for _, h := range halves {
		w.actor("n3-1-0", h).alive = false
	}
	w.run(80 * time.Millisecond)
	w.silenceBy(w.actor("n4-1-0", fault.HalfHost), grid.Coord{X: 3, Y: 1}, false, 80*time.Millisecond)
	say(true)
	say(true)
	link := func(state fault.State, cause fault.Cause, node fault.State) {
		t.Helper()
		n, _ := w.m.Node("n4-1-0")
		i := slices.IndexFunc(n.Components, func(c ComponentStatus) bool { return c.Component == fault.Link(grid.XMinus) })
		if c := n.Components[i]; c.State != state || c.Cause != cause || n.State != node {
			t.Errorf("the link is %s for %s, the node %s: want %s for %s, %s", c.State, c.Cause, n.State, state, cause, node)
		}
	}
	link(fault.Failed, fault.CauseNode, fault.Normal)
	for range 10 {
		w.run(w.cfg.DigestPeriod)
		say(true)
	}
	link(fault.Failed, fault.CauseNode, fault.Normal)
	w.step(ForeignVerdict{Node: "n4-1-0", Host: true, DNP: true}) // ignored for a node of our own region
	link(fault.Failed, fault.CauseNode, fault.Normal)
	// A verdict that is no longer restated expires: the link is judged as usual.
	w.run(time.Duration(w.cfg.DigestMisses+4)*w.cfg.DigestPeriod + w.cfg.LinkSettle)
	link(fault.Failed, fault.CauseLink, fault.Normal)
	say(true)
	link(fault.Failed, fault.CauseNode, fault.Normal)
	say(false)
	w.run(3*w.cfg.DigestPeriod + w.cfg.LinkSettle)
	link(fault.Failed, fault.CauseLink, fault.Normal)
}

// TestOwnNodesCountInRowsAndPlanes checks that only the region's own nodes count in a row or plane.
func TestOwnNodesCountInRowsAndPlanes(t *testing.T) {
	m := regionWorld(t, 0).m
	for _, tc := range []struct {
		of   domain
		want int
	}{
		{domain{kind: GroupRow, key: 0, at: grid.Coord{Y: 2}}, 4},
		{domain{kind: GroupRow, key: 1, at: grid.Coord{X: 3}}, 4},
		{domain{kind: GroupRow, key: 1, at: grid.Coord{X: 4}}, 0},
		{domain{kind: GroupPlane, key: 2, value: 0}, 16},
	} {
		if got := m.size(tc.of); got != tc.want {
			t.Errorf("%s has %d nodes, want %d", m.name(tc.of), got, tc.want)
		}
	}
}

// TestRegionAsksNoOthers: challenges to a node of another region are left to that region, even if this region hears the
// node after the verdict there.
func TestRegionAsksNoOthers(t *testing.T) {
	w := regionWorld(t, 0)
	asked := 0
	w.log = func(_ time.Time, out Output) {
		for _, c := range out.Challenges {
			if c.Node == "n4-1-0" {
				asked++
			}
		}
	}
	w.m.Step(w.now, ForeignVerdict{Node: "n4-1-0", Host: true, DNP: true})
	w.run(2 * w.cfg.DigestPeriod)
	if asked > 0 {
		t.Errorf("asked %d times", asked)
	}
}
