package express

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestBarrierCompletesIffAllHaveArrived covers any torus, with links that lose, duplicate and reorder frames, and
// with nodes that are killed and lose all their state. No waiter learns that a barrier is complete before the last
// member has arrived. In a component with all members every waiter learns it; where a member is missing none ever
// does.
func TestBarrierCompletesIffAllHaveArrived(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(drawDims(t), rapid.Uint64().Draw(t, "seed"))
		w.noPing, w.placeless = true, rapid.Bool().Draw(t, "placeless")
		w.cutAtRandom(rapid.Float64Range(0, 0.5).Draw(t, "dead"), 0)
		w.loss, w.double = rapid.Float64Range(0, 0.3).Draw(t, "loss"), rapid.Float64Range(0, 0.2).Draw(t, "double")
		w.jitter = time.Duration(rapid.IntRange(0, 20).Draw(t, "jitter")) * time.Millisecond
		of := Barrier{Topic: TopicJob, Name: "job/step", Generation: rapid.Uint64Range(0, 3).Draw(t, "generation")}
		members := rapid.SliceOfNDistinct(rapid.IntRange(0, len(w.nodes)-1), 1, min(len(w.nodes), 8), rapid.ID).Draw(t, "members")
		arrived := map[int]bool{}
		w.judge = func(n *station, r BarrierResult) {
			if r.Barrier != of || len(r.Gone) > 0 || len(arrived) < len(members) {
				t.Fatalf("%s was told %+v with %d of %d there", w.dims.At(n.rank), r, len(arrived), len(members))
			}
		}
		w.begin()
		for range rapid.IntRange(0, 6).Draw(t, "kills") {
			n, away := w.nodes[w.rnd.IntN(len(w.nodes))], time.Duration(w.rnd.IntN(100))*time.Millisecond
			w.after(time.Duration(w.rnd.IntN(1000))*time.Millisecond, func() { w.kill(n, away) })
		}
		for rank, at := range members {
			w.after(time.Duration(w.rnd.IntN(800))*time.Millisecond, func() {
				arrived[rank] = true
				if err := w.arrive(w.nodes[at], Arrive{Barrier: of, Members: len(members), Ranks: []int{rank}}); err != nil {
					t.Fatal(err)
				}
			})
		}
		w.run(15 * time.Second)
		near := w.distances(members[0])
		together := !slices.ContainsFunc(members, func(at int) bool { return near[at] < 0 })
		for _, at := range members {
			if got := len(w.nodes[at].results[of]); got != 1 && together || got > 0 && !together {
				t.Fatalf("%s: %d results; members together: %t", w.dims.At(at), got, together)
			}
		}
	})
}

// line is a row of nodes, which are members 0 to n-1 of a barrier.
func line(n int) *world {
	w := newWorld(grid.Dims{X: n, Y: 1, Z: 1}, 1)
	w.noPing = true
	return w.begin()
}

func TestBarrierGenerations(t *testing.T) {
	w := line(5)
	for g := range uint64(50) {
		of := Barrier{TopicJob, "job/step", g}
		for i, n := range w.nodes {
			if err := w.arrive(n, Arrive{Barrier: of, Members: 5, Ranks: []int{i}}); err != nil {
				t.Fatal(err)
			}
		}
		w.run(100 * time.Millisecond)
		for i, n := range w.nodes {
			if r := n.results[of]; len(r) != 1 || len(r[0].Gone) > 0 {
				t.Fatalf("generation %d, node %d: %+v", g, i, r)
			}
		}
	}
	// A late joiner learns the result, also when all numbers but the last are forgotten. After a restart it learns
	// the result from a neighbour.
	w.run(2 * forgetOver)
	w.kill(w.nodes[2], time.Millisecond)
	w.run(time.Second)
	late := Barrier{TopicJob, "job/step", 7}
	w.nodes[2].results = map[Barrier][]BarrierResult{}
	if err := w.arrive(w.nodes[2], Arrive{Barrier: late, Members: 5}); err != nil {
		t.Fatal(err)
	}
	w.run(time.Second)
	if r := w.nodes[2].results[late]; len(r) != 1 || len(r[0].Gone) > 0 {
		t.Errorf("late joiner: %+v", r)
	}
	for i, n := range w.nodes {
		if s := n.bars.Stats(); s.Known > 2 || s.Waiting > 0 {
			t.Errorf("node %d: %+v", i, s)
		}
	}
}

// A member that still waits for a generation when a later one is complete learns that its own is complete.
func TestBarrierCompletesThoseBefore(t *testing.T) {
	w := line(3)
	before, of := Barrier{TopicJob, "job/step", 4}, Barrier{TopicJob, "job/step", 6}
	other := Barrier{TopicJob, "job/end", 4}
	arrive := func(at int, b Barrier) {
		t.Helper()
		if err := w.arrive(w.nodes[at], Arrive{Barrier: b, Members: 3, Ranks: []int{at}}); err != nil {
			t.Fatal(err)
		}
	}
	arrive(0, before)
	arrive(0, other)
	w.run(time.Second)
	for i := range w.nodes {
		arrive(i, of)
	}
	w.run(time.Second)
	n := w.nodes[0]
	if r := n.results[before]; len(r) != 1 || len(r[0].Gone) > 0 || len(n.results[of]) != 1 || len(n.results[other]) > 0 {
		t.Errorf("%+v", n.results)
	}
	if s := n.bars.Stats(); s.Waiting != 1 {
		t.Errorf("%+v", s)
	}
}

// What a barrier of fewer members has passed completes no barrier of more: neither for an arrival, nor for a neighbour that asks.
func TestPassedBarrierOfFewerMembersCompletesNoLargerOne(t *testing.T) {
	w := line(3)
	of := Barrier{TopicJob, "job/step", 7}
	for i := range 2 {
		if err := w.arrive(w.nodes[i], Arrive{Barrier: of, Members: 2, Ranks: []int{i}}); err != nil {
			t.Fatal(err)
		}
	}
	w.run(2*forgetOver + time.Second)
	again := Barrier{of.Topic, of.Name, of.Generation - 1}
	for i, n := range w.nodes[:2] {
		if r := n.results[of]; len(r) != 1 {
			t.Fatalf("node %d: %+v", i, r)
		}
	}
	arrive := func(i int) {
		t.Helper()
		if err := w.arrive(w.nodes[i], Arrive{Barrier: again, Members: 3, Ranks: []int{i}}); err != nil {
			t.Fatal(err)
		}
		w.run(time.Second)
	}
	arrive(2) // asks its neighbour, which has passed the smaller one
	arrive(0)
	for i, n := range w.nodes {
		if r := n.results[again]; len(r) > 0 {
			t.Errorf("node %d passes without node 1: %+v", i, r)
		}
	}
	arrive(1)
	for i, n := range w.nodes {
		if r := n.results[again]; len(r) != 1 || len(r[0].Gone) > 0 {
			t.Errorf("node %d: %+v", i, r)
		}
	}
}

// A member that is gone gives an error that names it to every waiter, and no completion; unless it had arrived.
func TestBarrierMemberGone(t *testing.T) {
	for _, tc := range []struct {
		name string
		gone []int
		all  bool
		want []int
	}{
		{"one that had not arrived", []int{4}, false, []int{4}},
		{"one that had", []int{1}, true, nil},
		{"both kinds", []int{1, 4}, false, []int{4}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := line(5)
			of := Barrier{TopicJob, "job/step", 1}
			for i, n := range w.nodes[:4] {
				if err := w.arrive(n, Arrive{Barrier: of, Members: 5, Ranks: []int{i}}); err != nil {
					t.Fatal(err)
				}
			}
			w.run(time.Second)
			for i, n := range w.nodes {
				if len(n.results) > 0 {
					t.Fatalf("node %d was told %+v", i, n.results)
				}
			}
			again := Arrive{Barrier: of, Members: 5, Ranks: []int{2}, Gone: tc.gone}
			if err := w.arrive(w.nodes[2], again); err != nil {
				t.Fatal(err)
			}
			if tc.all {
				w.run(100 * time.Millisecond)
				if err := w.arrive(w.nodes[4], Arrive{Barrier: of, Members: 5, Ranks: []int{4}}); err != nil {
					t.Fatal(err)
				}
			}
			w.run(100 * time.Millisecond)
			for i, n := range w.nodes[:4] {
				if r := n.results[of]; len(r) != 1 || !slices.Equal(r[0].Gone, tc.want) {
					t.Errorf("node %d: %+v", i, r)
				}
			}
		})
	}
}

// A barrier of all nodes costs each of them a bounded number of frames. It is over a few hops after the last arrival,
// even when links are dead, without waiting for a period.
func TestBarrierIsCheap(t *testing.T) {
	for _, dead := range []float64{0, 0.1, 0.2, 0.3} {
		w := newWorld(grid.Dims{X: 4, Y: 4, Z: 4}, 5)
		w.noPing, w.period = true, 250*time.Millisecond
		w.cutAtRandom(dead, 0)
		w.begin()
		w.run(300 * time.Millisecond)
		near := w.distances(0)
		of := Barrier{TopicJob, "job/step", 1}
		members, last, done := 0, time.Time{}, time.Time{}
		for _, hops := range near {
			if hops >= 0 {
				members++
			}
		}
		w.judge = func(_ *station, r BarrierResult) { done = w.now }
		rank := 0
		for i, n := range w.nodes {
			if near[i] < 0 {
				continue
			}
			at, own := time.Duration(w.rnd.Int64N(int64(10*time.Millisecond))), rank
			last = later(last, w.now.Add(at))
			w.after(at, func() {
				if err := w.arrive(n, Arrive{Barrier: of, Members: members, Ranks: []int{own}}); err != nil {
					t.Fatal(err)
				}
			})
			rank++
		}
		w.run(5 * time.Second)
		sent := 0
		for i, n := range w.nodes {
			if s := n.bars.Stats(); near[i] >= 0 && len(n.results[of]) != 1 {
				t.Errorf("%s: %+v", w.dims.At(i), s)
			} else {
				sent += int(s.Sent + s.Repeated)
			}
		}
		each, took := float64(sent)/float64(members), done.Sub(last)
		t.Logf("%.0f %% dead: %d members, %.1f frames a node, over %s after the last arrival", 100*dead, members, each, took)
		if each > 8 || took > 50*time.Millisecond {
			t.Errorf("%.0f %% dead: %.1f frames a node, %s", 100*dead, each, took)
		}
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// A member that leaves waits no more, but has arrived.
func TestMemberThatLeavesHasArrived(t *testing.T) {
	w := line(3)
	of := Barrier{TopicManage, "drain", 1}
	for i, n := range w.nodes[:2] {
		if err := w.arrive(n, Arrive{Barrier: of, Members: 3, Ranks: []int{i}}); err != nil {
			t.Fatal(err)
		}
	}
	delete(w.nodes[0].waits, of)
	w.stepBarriers(w.nodes[0], Leave{of})
	w.run(100 * time.Millisecond)
	if err := w.arrive(w.nodes[2], Arrive{Barrier: of, Members: 3, Ranks: []int{2}}); err != nil {
		t.Fatal(err)
	}
	w.run(100 * time.Millisecond)
	if a, b, c := len(w.nodes[0].results), len(w.nodes[1].results), len(w.nodes[2].results); a != 0 || b != 1 || c != 1 {
		t.Errorf("%d %d %d results", a, b, c)
	}
}

func TestArriveRefused(t *testing.T) {
	ok := Barrier{TopicJob, "job/step", 1}
	long := string(make([]byte, MaxBarrierName+1))
	for _, tc := range []struct {
		name string
		ev   Arrive
		want error
	}{
		{"no topic", Arrive{Barrier: Barrier{0, "x", 1}, Members: 2}, ErrBarrier},
		{"no name", Arrive{Barrier: Barrier{TopicJob, "", 1}, Members: 2}, ErrBarrier},
		{"long name", Arrive{Barrier: Barrier{TopicJob, long, 1}, Members: 2}, ErrBarrier},
		{"no members", Arrive{Barrier: ok}, ErrBarrier},
		{"too many", Arrive{Barrier: ok, Members: MaxMembers + 1}, ErrBarrier},
		{"rank", Arrive{Barrier: ok, Members: 2, Ranks: []int{2}}, ErrBarrier},
		{"rank gone", Arrive{Barrier: ok, Members: 2, Gone: []int{-1}}, ErrBarrier},
		{"other members", Arrive{Barrier: Barrier{TopicJob, "other", 1}, Members: 3}, ErrBarrier},
		{"largest", Arrive{Barrier: Barrier{TopicJob, long[1:], 1}, Members: MaxMembers, Ranks: []int{MaxMembers - 1}}, nil},
	} {
		w := line(2)
		if err := w.arrive(w.nodes[0], Arrive{Barrier: Barrier{TopicJob, "other", 1}, Members: 2}); err != nil {
			t.Fatal(err)
		}
		if err := w.arrive(w.nodes[0], tc.ev); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// A node knows a bounded number of barriers. It forgets those that are over first, then those without waiters there,
// and never one with waiters.
func TestBarriersAreForgottenWithoutWaitersFirst(t *testing.T) {
	w := line(2)
	n := w.nodes[0]
	for i := range 3 * MaxBarriers {
		f := setFrame{setNews, Barrier{TopicJob, fmt.Sprint(i), 1}, 2, newSet(2), nil}
		w.now = w.now.Add(10 * time.Millisecond)
		w.stepBarriers(n, &Received{Dir: grid.XPlus, Payload: f.encode()})
	}
	if s := n.bars.Stats(); s.Known != MaxBarriers {
		t.Errorf("%+v", s)
	}
	for i := range MaxBarriers {
		if err := w.stepBarriers(n, Arrive{Barrier: Barrier{TopicJob, fmt.Sprint("own ", i), 1}, Members: 2}).Err; err != nil {
			t.Fatal(err)
		}
	}
	if err := w.stepBarriers(n, Arrive{Barrier: Barrier{TopicJob, "one more", 1}, Members: 2}).Err; !errors.Is(err, ErrNoRoom) {
		t.Error(err)
	}
	if s := n.bars.Stats(); s.Waiting != MaxBarriers {
		t.Errorf("%+v", s)
	}
}

// A set that no correct node sends is counted. A kind of a later version is ignored and not counted.
func TestImpossibleSetIsCounted(t *testing.T) {
	w := line(2)
	set := setFrame{setNews, Barrier{TopicJob, "job/step", 1}, 2, newSet(2), nil}
	later := set
	later.kind = setAnswer + 1
	for _, tc := range []struct {
		b   []byte
		bad bool
	}{{nil, true}, {make([]byte, setHeader), true}, {set.encode()[:setHeader], true}, {later.encode(), false}, {[]byte{99}, false}} {
		out := w.stepBarriers(w.nodes[0], &Received{Dir: grid.XPlus, Payload: tc.b})
		if out.Bad != tc.bad || len(out.Send)+w.nodes[0].bars.Stats().Known > 0 {
			t.Errorf("%x: %+v", tc.b, out)
		}
	}
	if got := w.nodes[0].bars.Stats().Bad; got != 3 {
		t.Errorf("%d counted", got)
	}
}

func FuzzDecodeSet(f *testing.F) {
	s := newSet(70)
	s.add(3)
	s.add(69)
	seed := setFrame{setAnswer, Barrier{TopicJob, "job/step", 9}, 70, s, []int{1, 5}}
	f.Add(seed.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decodeSet(b)
		if err != nil {
			if !errors.Is(err, ErrPayload) {
				t.Fatal(err)
			}
			return
		}
		if again := got.encode(); !slices.Equal(again, b) {
			t.Fatalf("%x became %x", b, again)
		}
	})
}

// BenchmarkBarrierFrame handles a set from a link while many barriers that are over are known: the cost is the same
// as with none.
func BenchmarkBarrierFrame(b *testing.B) {
	for _, known := range []int{0, MaxBarriers - 1} {
		b.Run(fmt.Sprintf("over=%d", known), func(b *testing.B) {
			dims, now := grid.Dims{X: 4, Y: 4, Z: 4}, time.Unix(1, 0)
			links := MaskOf(dims.Links()...)
			s := NewBarriers(links, 20*time.Millisecond)
			s.Place(dims, grid.Coord{})
			s.Step(now, Ways{Open: links, Good: links})
			of := Barrier{Topic: TopicJob, Name: "a"}
			for i := range known {
				of.Generation = uint64(i + 1)
				s.Step(now, Arrive{Barrier: of, Members: 1, Ranks: []int{0}})
				for _, d := range dims.Links() {
					s.Step(now, &Received{Dir: d, Payload: (&setFrame{setAnswer, of, 1, fullSet(1), nil}).encode()})
				}
			}
			of.Generation++
			half := newSet(64)
			half.add(1)
			frame := (&setFrame{setNews, of, 64, half, nil}).encode()
			if len(s.all) != known || len(s.news) > 0 {
				b.Fatalf("%d barriers are known, of %d of which somebody has to be told: want %d and 0", len(s.all), len(s.news), known)
			}
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(time.Millisecond)
				s.Step(now, &Received{Dir: grid.XPlus, Payload: frame})
			}
		})
	}
}
