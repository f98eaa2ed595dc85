package awareness

import (
	"fmt"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"pgregory.net/rapid"
)

func TestQuorum(t *testing.T) {
	for degree, want := range []int{2, 2, 2, 2, 3, 3, 4} {
		if got := Quorum(degree); got != want {
			t.Errorf("Quorum(%d) = %d, want %d", degree, got, want)
		}
	}
}

// witnessStand is one neighbour in the naive count: its condition, and its statement on each of its links to the
// accused.
type witnessStand struct {
	heard bool // reported recently
	dead  bool // dead as a whole node, in the map
	deaf  bool // its DNP has failed
	links []fault.Observation
}

// naiveVerdict applies one rule after the other, sharing nothing with votes.go.
func naiveVerdict(neighbours []witnessStand) (cast, live int, verdict, single bool) {
	for _, w := range neighbours {
		if !w.heard || w.dead || w.deaf {
			continue
		}
		live++
		silent := 0
		for _, l := range w.links {
			if l.State == fault.Failed && l.Kind == fault.KindSilence {
				silent++
			}
		}
		if silent == len(w.links) {
			cast++
		}
	}
	d := len(neighbours)
	quorum := (d - d%2) / 2
	quorum++
	if quorum < 2 {
		quorum = 2
	}
	if live < quorum {
		for half := 0; half <= d; half++ {
			if live == 2*half || live == 2*half+1 {
				return cast, live, cast > half, true
			}
		}
	}
	return cast, live, cast >= quorum, false
}

// TestVotesAgainstNaiveCount compares the two counts for every shape and random testimony.
func TestVotesAgainstNaiveCount(t *testing.T) {
	shapes := []grid.Dims{{X: 1, Y: 1, Z: 1}, {X: 2, Y: 1, Z: 1}, {X: 5, Y: 1, Z: 1}, {X: 2, Y: 2, Z: 1}, {X: 3, Y: 2, Z: 1},
		{X: 3, Y: 3, Z: 1}, {X: 2, Y: 2, Z: 2}, {X: 3, Y: 2, Z: 2}, {X: 3, Y: 3, Z: 2}, {X: 3, Y: 3, Z: 3}}
	says := []fault.Observation{
		{State: fault.Failed, Kind: fault.KindSilence}, {State: fault.Failed, Kind: fault.KindSilence}, {State: fault.Failed,
			Kind: fault.KindSilence},
		{State: fault.Failed, Kind: fault.KindHandshake}, {State: fault.Normal, Kind: fault.KindSelf}, {State: fault.Sick,
			Kind: fault.KindErrorRatio},
	}
	rapid.Check(t, func(t *rapid.T) {
		dims := rapid.SampledFrom(shapes).Draw(t, "dims")
		m, err := New(testConfig(dims), epoch0, nil)
		if err != nil {
			t.Fatal(err)
		}
		now := epoch0.Add(time.Second)
		n := m.nodes[rapid.IntRange(0, dims.Nodes()-1).Draw(t, "accused")]
		var stands []witnessStand
		for i, nb := range n.neighbours {
			s := witnessStand{
				heard: rapid.IntRange(0, 4).Draw(t, fmt.Sprint("heard", i)) > 0,
				dead:  rapid.IntRange(0, 4).Draw(t, fmt.Sprint("dead", i)) == 0,
				deaf:  rapid.IntRange(0, 6).Draw(t, fmt.Sprint("deaf", i)) == 0,
			}
			d := fault.Delivery{Path: fault.PathDirect, Report: fault.Report{
				ID: fault.ReportID{Origin: nb.node.origin(fault.HalfHost), Epoch: 1, Seq: 1}, Digest: true}}
			for _, dir := range nb.links() {
				o := rapid.SampledFrom(says).Draw(t, fmt.Sprint(i, dir))
				s.links = append(s.links, o)
				o.Node, o.Component = nb.node.id, fault.Link(dir)
				d.Report.Observations = append(d.Report.Observations, o)
			}
			at := now
			if !s.heard {
				at = now.Add(-m.window())
			}
			nb.node.voice(fault.HalfHost).take(arrival{Delivery: d, clock: m.clock, now: at, changed: func(slot) {}}, nb.node.index)
			m.suspicionOf(nb.node).dead.on = s.dead
			nb.node.failure(fault.HalfDNP).on = s.dead || s.deaf
			stands = append(stands, s)
		}
		v := m.count(n, now, time.Time{}, now)
		ok, single := enough(v.cast, v.live, len(n.neighbours))
		cast, live, wantOK, wantSingle := naiveVerdict(stands)
		if v.cast != cast || v.live != live || ok != wantOK || single != wantSingle {
			t.Fatalf("%s: %d votes of %d live, verdict %t single %t; counted by hand %d of %d, %t %t",
				dims, v.cast, v.live, ok, single, cast, live, wantOK, wantSingle)
		}
	})
}

// subsets calls f with every subset of n things with no more than most elements.
func subsets(n, most int, f func(in func(int) bool, size int)) {
	for mask := range 1 << n {
		size := 0
		for i := range n {
			size += mask >> i & 1
		}
		if size <= most {
			f(func(i int) bool { return mask>>i&1 == 1 }, size)
		}
	}
}

// TestFewerLiarsThanQuorum tries every set of fewer liars than the quorum among the neighbours of one node. It tries a
// healthy node that answers challenges, a healthy one that no challenge reaches, and a dead node whose old reports the
// liars keep replaying.
func TestFewerLiarsThanQuorum(t *testing.T) {
	for _, dims := range []grid.Dims{{X: 2, Y: 2, Z: 2}, {X: 3, Y: 3, Z: 3}} {
		degree := len(dims.Neighbours(grid.Coord{}))
		quorum := Quorum(degree)
		subsets(degree, quorum-1, func(liar func(int) bool, liars int) {
			for _, mute := range []bool{false, true} {
				accuseHealthy(t, dims, liar, mute)
			}
			hideDead(t, dims, liar, degree-liars >= quorum)
		})
	}
}

// accuseHealthy makes liars report that all their links to the node are silent and that its host is dead.
func accuseHealthy(t *testing.T, dims grid.Dims, liar func(int) bool, mute bool) {
	t.Helper()
	w, err := newWorld(testConfig(dims))
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	victim := w.id(0)
	w.log = func(at time.Time, out Output) {
		for _, c := range out.Changes {
			if c.Node != victim || c.To != fault.Failed {
				continue
			}
			// Two neighbours suffice to declare a host dead that no challenge reaches, but not a node.
			if _, link := c.Component.LinkDirection(); !link && (c.Component != fault.ComponentHost || !mute) {
				t.Fatalf("%s: healthy node's %s FAILED at %s (mute %t): %s", dims, c.Component, at.Sub(epoch0), mute, c.Reason)
			}
		}
	}
	w.actor(victim, fault.HalfHost).mute, w.actor(victim, fault.HalfDNP).mute = mute, mute
	for i, c := range dims.Neighbours(grid.Coord{}) {
		if !liar(i) {
			continue
		}
		a := w.actor(w.cfg.IDs[c], fault.HalfHost)
		w.silenceBy(a, grid.Coord{}, false, time.Hour) // ages are lies as well
		w.say(a, subject{victim, fault.ComponentHost}, fault.Failed, fault.KindDescriptor, time.Hour)
		w.run(7 * time.Millisecond)
	}
	w.run(3 * time.Second)
}

// hideDead: both halves are dead; liars claim to hear the node, and replay its reports.
func hideDead(t *testing.T, dims grid.Dims, liar func(int) bool, quorate bool) {
	t.Helper()
	w, err := newWorld(testConfig(dims))
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	victim := w.id(0)
	host := w.actor(victim, fault.HalfHost)
	host.alive, w.actor(victim, fault.HalfDNP).alive = false, false
	w.run(80 * time.Millisecond)
	for i, c := range dims.Neighbours(grid.Coord{}) {
		w.silenceBy(w.actor(w.cfg.IDs[c], fault.HalfHost), grid.Coord{}, liar(i), 80*time.Millisecond)
	}
	for range 30 {
		w.run(100 * time.Millisecond)
		for _, d := range host.sent {
			d.Hops = nil
			w.step(Evidence{d})
		}
	}
	got := w.state(victim, fault.ComponentNode)
	if quorate && got != fault.Failed {
		t.Fatalf("%s: dead node is %s, want FAILED", dims, got)
	}
	if got == fault.Normal {
		t.Fatalf("%s: dead node is hidden: %s", dims, got)
	}
}
