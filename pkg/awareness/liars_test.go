package awareness

import (
	"fmt"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// These tests try every set of fewer liars than the quorum, anywhere in a small torus. The liars tell the same lies
// about all nodes, with and without failure domains that they share.

// liarShapes calls f with every torus to try, each without racks and with every line along X as a rack.
func liarShapes(f func(name string, cfg Config)) {
	shapes := []grid.Dims{{X: 2, Y: 2, Z: 2}, {X: 3, Y: 3, Z: 1}}
	if testing.Short() {
		shapes = shapes[:1]
	}
	for _, dims := range shapes {
		f(dims.String(), testConfig(dims))
		cfg := testConfig(dims)
		label(&cfg, "rack", func(c grid.Coord) int { return c.Y })
		f(dims.String()+" in racks", cfg)
	}
}

func liarWorld(t *testing.T, cfg Config) *world {
	t.Helper()
	w, err := newWorld(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	return w
}

// slander makes the liar report that all links to every neighbour are silent, and that the neighbour's host is dead.
func slander(w *world, liar fault.NodeID) {
	a := w.actor(liar, fault.HalfHost)
	for _, c := range w.dims.Neighbours(w.coord(liar)) {
		w.silenceBy(a, c, false, time.Hour) // ages are lies as well
		w.say(a, subject{w.cfg.IDs[c], fault.ComponentHost}, fault.Failed, fault.KindDescriptor, time.Hour)
	}
	w.run(7 * time.Millisecond)
}

// innocent fails the test if a node outside of guilty becomes dead or inferred dead, or its DNP dead.
func innocent(t *testing.T, w *world, name string, guilty map[fault.NodeID]bool) func(time.Time, Output) {
	return func(at time.Time, out Output) {
		for _, c := range out.Changes {
			bad := c.To == fault.Failed && (c.Component == fault.ComponentNode || c.Component == fault.ComponentDNP)
			if bad && !guilty[c.Node] {
				t.Fatalf("%s: healthy %s %s FAILED at %s: %s", name, c.Node, c.Component, at.Sub(epoch0), c.Reason)
			}
		}
		for _, g := range out.Groups {
			for _, id := range g.Members {
				if g.Cause == fault.CauseNode && !guilty[id] {
					t.Fatalf("%s: healthy %s in %s", name, id, g.ID)
				}
			}
		}
	}
}

// TestLiarsKillNoHealthyNode checks that no healthy node becomes dead, not even one that no challenge reaches.
func TestLiarsKillNoHealthyNode(t *testing.T) {
	liarShapes(func(name string, cfg Config) {
		nodes, degree := cfg.Dims.Nodes(), len(cfg.Dims.Neighbours(grid.Coord{}))
		subsets(nodes, Quorum(degree)-1, func(liar func(int) bool, _ int) {
			for mute := -1; mute < nodes; mute++ {
				if mute >= 0 && liar(mute) {
					continue
				}
				w := liarWorld(t, cfg)
				w.log = innocent(t, w, fmt.Sprintf("%s, mute %d", name, mute), nil)
				for i := range nodes {
					if i == mute {
						w.actor(w.id(i), fault.HalfHost).mute, w.actor(w.id(i), fault.HalfDNP).mute = true, true
					}
					if liar(i) {
						slander(w, w.id(i))
					}
				}
				w.run(2 * time.Second)
			}
		})
	})
}

// TestLiarsHideNoDeadNode: dead nodes with enough honest neighbours are found, and no dead node ever becomes healthy. The liars
// claim to hear the dead nodes, and replay their reports.
func TestLiarsHideNoDeadNode(t *testing.T) {
	liarShapes(func(name string, cfg Config) {
		degree := len(cfg.Dims.Neighbours(grid.Coord{}))
		subsets(cfg.Dims.Nodes(), Quorum(degree)-1, func(liar func(int) bool, _ int) {
			for victim := range cfg.Dims.Nodes() {
				if !liar(victim) {
					hideAnywhere(t, cfg, name, liar, victim)
				}
			}
		})
	})
}

func hideAnywhere(t *testing.T, cfg Config, name string, liar func(int) bool, victim int) {
	t.Helper()
	w := liarWorld(t, cfg)
	id := w.id(victim)
	w.log = innocent(t, w, name, map[fault.NodeID]bool{id: true})
	host := w.actor(id, fault.HalfHost)
	host.alive, w.actor(id, fault.HalfDNP).alive = false, false
	w.run(80 * time.Millisecond)
	honest, outside := 0, false
	for _, c := range w.dims.Neighbours(w.coord(id)) {
		lies := liar(w.dims.Rank(c))
		w.silenceBy(w.actor(w.cfg.IDs[c], fault.HalfHost), w.coord(id), lies, 80*time.Millisecond)
		if !lies {
			honest++
			outside = outside || cfg.Labels[w.cfg.IDs[c]]["rack"] != cfg.Labels[id]["rack"]
		}
	}
	for range 25 {
		w.run(100 * time.Millisecond)
		for _, d := range host.sent {
			d.Hops = nil
			w.step(Evidence{d})
		}
	}
	got := w.state(id, fault.ComponentNode)
	enough := honest >= Quorum(len(w.dims.Neighbours(w.coord(id)))) && (outside || len(cfg.DomainLabels) == 0)
	if enough && got != fault.Failed || got == fault.Normal {
		t.Fatalf("%s: dead %s is %s, with %d honest neighbours", name, id, got, honest)
	}
}

// TestLiarsAroundABlock: a block of four dies. Liars anywhere around it accuse all their neighbours of being dead too,
// or claim to hear the dead.
func TestLiarsAroundABlock(t *testing.T) {
	dims := grid.Dims{X: 4, Y: 4, Z: 1}
	cfg := testConfig(dims)
	subsets(dims.Nodes(), Quorum(4)-1, func(liar func(int) bool, _ int) {
		for _, hide := range []bool{false, true} {
			w := liarWorld(t, cfg)
			dead := map[fault.NodeID]bool{"n1-1-0": true, "n2-1-0": true, "n1-2-0": true, "n2-2-0": true}
			for id := range dead {
				if liar(dims.Rank(w.coord(id))) {
					return
				}
				w.actor(id, fault.HalfHost).alive, w.actor(id, fault.HalfDNP).alive = false, false
			}
			w.log = innocent(t, w, "around a block", dead)
			w.run(80 * time.Millisecond)
			for r := range dims.Nodes() {
				id := w.id(r)
				if dead[id] {
					w.silence(id, false, 80*time.Millisecond)
				}
			}
			for r := range dims.Nodes() {
				switch {
				case !liar(r):
				case hide:
					for id := range dead {
						if c := w.coord(id); dims.LinksTo(dims.At(r), c) != nil {
							w.silenceBy(w.actor(w.id(r), fault.HalfHost), c, true, 0)
						}
					}
				default:
					slander(w, w.id(r))
				}
			}
			w.run(3 * time.Second)
			for id := range dead {
				if got := w.state(id, fault.ComponentNode); got == fault.Normal || got == fault.Sick && !hide {
					t.Fatalf("dead %s is %s (hide %t)", id, got, hide)
				}
			}
		}
	})
}

// TestLiarsAboutTheUnheard: three neighbours lose the service network, so that they neither send nor receive on it.
// Liars among their other neighbours report them dead. Even a node that only a liar can see becomes UNKNOWN in the end;
// honest neighbours relay the others over the torus.
func TestLiarsAboutTheUnheard(t *testing.T) {
	liarShapes(func(name string, cfg Config) {
		unheard := [3]grid.Coord{{}, {X: 1}, {Y: 1}}
		degree := len(cfg.Dims.Neighbours(unheard[0]))
		subsets(cfg.Dims.Nodes(), Quorum(degree)-1, func(liar func(int) bool, _ int) {
			if liar(cfg.Dims.Rank(unheard[0])) || liar(cfg.Dims.Rank(unheard[1])) || liar(cfg.Dims.Rank(unheard[2])) {
				return
			}
			w := liarWorld(t, cfg)
			w.log = innocent(t, w, name, nil)
			for _, c := range unheard {
				for _, h := range halves {
					a := w.actor(cfg.IDs[c], h)
					a.mute, a.lost = true, true
				}
			}
			for r := range cfg.Dims.Nodes() {
				if liar(r) {
					slander(w, w.id(r))
				}
			}
			w.run(4 * time.Second)
			for _, c := range unheard {
				if got := w.state(cfg.IDs[c], fault.ComponentNode); got != fault.Unknown && got != fault.Sick {
					t.Fatalf("%s: %s is %s", name, cfg.IDs[c], got)
				}
			}
		})
	})
}

// TestLoneLieAboutALinkIsDisputed: one node repeatedly reports one of its links FAILED. The digests of the other end
// contradict it, though they give no age of a working link and LinkSettle is longer than a digest period.
func TestLoneLieAboutALinkIsDisputed(t *testing.T) {
	cfg := testConfig(grid.Dims{X: 2, Y: 2, Z: 2})
	cfg.HalfBound = 1190 * time.Millisecond
	w := liarWorld(t, cfg)
	w.run(4 * time.Second)
	const self, far = "n0-0-0", "n1-0-0"
	w.log = func(at time.Time, out Output) {
		for _, c := range out.Changes {
			if c.To == fault.Failed {
				t.Errorf("%s of %s FAILED at %s: %s", c.Component, c.Node, at.Sub(epoch0), c.Reason)
			}
		}
	}
	for range 40 {
		w.say(w.actor(self, fault.HalfHost), subject{self, fault.Link(grid.XPlus)}, fault.Failed, fault.KindSelf, 0)
		w.run(100 * time.Millisecond)
	}
	if got := w.m.nodes[w.m.ranks[self]].components[fault.Link(grid.XPlus)]; got.state != fault.Sick || got.rule != ruleDisputed {
		t.Errorf("link X+ of the liar is %s by rule %v, want SICK by rule %v", got.state, got.rule, ruleDisputed)
	}
	if got := w.state(far, fault.Link(grid.XMinus)); got != fault.Normal {
		t.Errorf("link X- of its neighbour is %s, want NORMAL", got)
	}
}
