package awareness

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// expel silences a node like one whose certificates all nodes refuse: it runs, but neither its reports nor its links
// count.
func expel(w *world, id fault.NodeID, at grid.Coord) {
	for _, h := range halves {
		a := w.actor(id, h)
		a.lost, a.mute = true, true
	}
	for _, c := range w.dims.Neighbours(at) {
		w.silenceBy(w.actor(w.cfg.IDs[c], fault.HalfHost), at, false, 80*time.Millisecond)
	}
}

// TestRevokedNodeIsNotTakenForDead: the same silence makes a node with valid certificates dead.
func TestRevokedNodeIsNotTakenForDead(t *testing.T) {
	at := grid.Coord{X: 1, Y: 1, Z: 1}
	for _, revoked := range []bool{false, true} {
		cfg := testConfig(grid.Dims{X: 3, Y: 3, Z: 3})
		w, err := newWorld(cfg)
		if err != nil {
			t.Fatal(err)
		}
		w.start()
		id := cfg.IDs[at]
		w.actor(id, fault.HalfHost) // it must exist
		failed, asked := 0, 0
		w.log = func(_ time.Time, out Output) {
			for _, c := range out.Changes {
				if c.To == fault.Failed || c.To == fault.Sick {
					failed++
				}
			}
			asked += len(out.Challenges)
		}
		if revoked {
			w.m.Step(w.now, Revoked{Nodes: map[fault.NodeID]time.Time{id: w.now}})
		}
		expel(w, id, at)
		w.run(5 * time.Second)
		got, _ := w.m.Node(id)
		switch {
		case !revoked && got.State != fault.Failed:
			t.Fatalf("without a revocation the node is %s: want FAILED, or this test shows nothing", got.State)
		case !revoked:
			continue
		case got.State != fault.Unknown || got.Rule != RuleRevoked:
			t.Errorf("the revoked node is %s by rule %q: want UNKNOWN by %q", got.State, got.Rule, RuleRevoked)
		case failed > 0 || asked > 0:
			t.Errorf("%d changes to SICK or FAILED and %d challenges: want none", failed, asked)
		}
		for _, n := range w.m.Nodes() {
			if n.ID != id && n.State != fault.Normal {
				t.Errorf("%s is %s (%s): want NORMAL", n.ID, n.State, n.Rule)
			}
		}
	}
}

// TestRevokedNodeIsNoWitness checks that its accusations do not count, whether made before or after the revocation.
func TestRevokedNodeIsNoWitness(t *testing.T) {
	cfg := testConfig(grid.Dims{X: 3, Y: 3, Z: 3})
	w, err := newWorld(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	liar := w.actor(cfg.IDs[grid.Coord{}], fault.HalfHost)
	w.silenceBy(liar, grid.Coord{X: 1}, false, 80*time.Millisecond)
	w.run(2 * time.Second)
	w.m.Step(w.now, Revoked{Nodes: map[fault.NodeID]time.Time{liar.origin.Node: w.now}})
	w.run(time.Second) // it continues to report, and is ignored
	for _, n := range w.m.Nodes() {
		if n.ID != liar.origin.Node && n.State != fault.Normal {
			t.Errorf("%s is %s (%s): want NORMAL", n.ID, n.State, n.Rule)
		}
	}
	if got, _ := w.m.Node(liar.origin.Node); got.Rule != RuleRevoked {
		t.Errorf("the liar is %s by rule %q: want %q", got.State, got.Rule, RuleRevoked)
	}
}

// TestNodeWithNewerCertificateIsTrustedAgain: a report verified after the revocation belongs to a newer certificate. A
// new leader changes nothing.
func TestNodeWithNewerCertificateIsTrustedAgain(t *testing.T) {
	cfg := testConfig(grid.Dims{X: 3, Y: 3, Z: 1})
	w, err := newWorld(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	id := cfg.IDs[grid.Coord{X: 1}]
	list := Revoked{Nodes: map[fault.NodeID]time.Time{id: w.now}}
	w.step(list)
	w.run(w.m.window() / 2)
	if got, _ := w.m.Node(id); got.Rule != RuleRevoked {
		t.Fatalf("rule %q while reports from before may still come: want %q", got.Rule, RuleRevoked)
	}
	w.run(w.m.window())
	w.step(list) // the same list again
	w.run(w.m.window())
	if got, _ := w.m.Node(id); got.State != fault.Normal {
		t.Fatalf("it speaks under a newer certificate and is %s (%s): want NORMAL", got.State, got.Rule)
	}
	next, err := New(cfg, w.now, w.m.Nodes())
	if err != nil {
		t.Fatal(err)
	}
	if out := next.Step(w.now, list); len(out.Changes) != 0 {
		t.Errorf("a new leader changes %+v: want nothing before the node had time to speak", out.Changes)
	}
	w.step(Revoked{})
	if len(w.m.revocations) != 0 || w.m.nodes[w.m.ranks[id]].revoked {
		t.Error("an empty list leaves a revocation behind")
	}
}

// TestNodeWithNewerCertificateDiesBesideNewLeader: the list keeps the revocation of its former certificate. A new leader neither takes
// the verdict back nor misses a death.
func TestNodeWithNewerCertificateDiesBesideNewLeader(t *testing.T) {
	at := grid.Coord{X: 1, Y: 1, Z: 1}
	for _, dies := range []string{"before", "after"} {
		cfg := testConfig(grid.Dims{X: 3, Y: 3, Z: 3})
		w, err := newWorld(cfg)
		if err != nil {
			t.Fatal(err)
		}
		w.start()
		id := cfg.IDs[at]
		list := Revoked{Nodes: map[fault.NodeID]time.Time{id: w.now}}
		w.step(list)
		w.run(3 * w.m.window())
		if got, _ := w.m.Node(id); got.State != fault.Normal {
			t.Fatalf("it speaks under a newer certificate and is %s (%s): want NORMAL", got.State, got.Rule)
		}
		if dies == "before" {
			expel(w, id, at) // the same silence
			w.run(5 * time.Second)
			if got, _ := w.m.Node(id); got.State != fault.Failed {
				t.Fatalf("dead, it is %s (%s): want FAILED", got.State, got.Rule)
			}
		}
		if w.m, err = New(cfg, w.now, w.m.Nodes()); err != nil {
			t.Fatal(err)
		}
		w.step(list)
		if dies == "after" {
			expel(w, id, at)
		}
		for range 10 {
			w.run(w.m.window())
			if got, _ := w.m.Node(id); dies == "before" && got.State != fault.Failed {
				t.Fatalf("under a new leader the dead node is %s (%s): want FAILED", got.State, got.Rule)
			}
		}
		if got, _ := w.m.Node(id); got.State != fault.Failed {
			t.Errorf("it died %s the leader changed, and is %s (%s): want FAILED", dies, got.State, got.Rule)
		}
	}
}

// TestRevocationThatNoLeaderAppliedHolds: the list was signed while there was no leader.
func TestRevocationThatNoLeaderAppliedHolds(t *testing.T) {
	at := grid.Coord{X: 1, Y: 1, Z: 1}
	cfg := testConfig(grid.Dims{X: 3, Y: 3, Z: 3})
	w, err := newWorld(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	id := cfg.IDs[at]
	expel(w, id, at)
	list := Revoked{Nodes: map[fault.NodeID]time.Time{id: w.now}}
	w.now = w.now.Add(time.Second)
	if w.m, err = New(cfg, w.now, w.m.Nodes()); err != nil {
		t.Fatal(err)
	}
	w.step(list)
	w.run(10 * w.m.window())
	if got, _ := w.m.Node(id); got.State != fault.Unknown || got.Rule != RuleRevoked {
		t.Errorf("the revoked node is %s by rule %q: want UNKNOWN by %q", got.State, got.Rule, RuleRevoked)
	}
}
