package routing

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func dims(t testing.TB, s string) grid.Dims {
	d, err := grid.ParseDims(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// stories gives random faults, and two nodes that live, to a test: in one to three dimensions of sizes to 8, each
// from a seed of its own.
func stories(t *testing.T, n int, run func(t *testing.T, f *faulty, src, dst int, rnd *rand.Rand)) {
	for seed := range uint64(n) {
		rnd := rand.New(rand.NewPCG(seed, 21))
		size := func() int { return 1 + rnd.IntN(8) }
		d := grid.Dims{X: 1 + size(), Y: 1, Z: 1}
		d.X = min(d.X, 8)
		if seed%3 > 0 {
			d.Y = size()
		}
		if seed%3 > 1 {
			d.Z = size()
		}
		f := newFaulty(d)
		f.kill(rnd, []float64{0, 0.05, 0.15, 0.3}[rnd.IntN(4)], []float64{0, 0, 0.05, 0.15}[rnd.IntN(4)])
		src, dst := rnd.IntN(d.Nodes()), rnd.IntN(d.Nodes())
		if src == dst || f.nodes[src] || f.nodes[dst] {
			continue
		}
		t.Run(fmt.Sprintf("seed %d %s", seed, d), func(t *testing.T) { run(t, f, src, dst, rnd) })
	}
}

// Decide may take exactly the channels that the words of the thesis allow, in every state that a message can come to.
func TestDecideFollowsThesis(t *testing.T) {
	checked := 0
	stories(t, 600, func(t *testing.T, f *faulty, src, dst int, rnd *rand.Rand) {
		for _, a := range []Algorithm{DimensionOrder, MinimalAdaptive, Chaos} {
			for range 20 {
				at := rnd.IntN(len(f.nodes))
				from := grid.Direction(rnd.IntN(grid.NumDirections + 1))
				if at == dst || f.nodes[at] || from.Valid() && f.next[at][from.Index()] < 0 {
					continue
				}
				routeback := rnd.IntN(4) == 0
				s := f.functional(at)
				q := Query{Dims: f.dims, At: f.dims.At(at), Dst: f.dims.At(dst), From: from, Functional: s, Ready: s, Routeback: routeback}
				var got []grid.Direction
				choices := 1
				for k := 0; k < choices; k++ {
					d, how := a.Decide(&q, func(n int) int { choices = n; return k })
					if how == Route || how == Deroute {
						got = append(got, d)
					}
				}
				want := f.ways(a, at, dst, from, routeback)
				if !slices.Equal(got, want) {
					t.Fatalf("%s at %s to %s from %s: %v, want %v", a, q.At, q.Dst, from, got, want)
				}
				checked++
			}
		}
	})
	if checked < 10_000 {
		t.Errorf("%d decisions checked: the test tests nothing", checked)
	}
}

// Without faults every algorithm takes a shortest way.
func TestWithoutFaultsWayIsShortest(t *testing.T) {
	for _, size := range []string{"2", "5", "8", "2x2", "4x3", "8x8", "2x2x2", "3x4x2", "4x4x4", "8x8x8"} {
		f := newFaulty(dims(t, size))
		r := NewRandom(1)
		for i := range 200 {
			src, dst := r.IntN(len(f.nodes)), r.IntN(len(f.nodes))
			want := f.search(dst, true)[src]
			if d := f.dims.Distance(f.dims.At(src), f.dims.At(dst)); d != want {
				t.Fatalf("%s: distance %d, want %d", size, d, want)
			}
			a := Algorithm(1 + i%3)
			if hops, how := f.walk(a, src, dst, 1000, false, r.IntN); hops != want || how != Route {
				t.Fatalf("%s: %s from %d to %d: %s after %d hops, want %d", size, a, src, dst, how, hops, want)
			}
		}
	}
}

// Dimension order delivers exactly when every link of its one way lives, and minimal adaptive whenever no choice
// leads it into a dead end, never when all do; and both without a hop more than the distance.
func TestMinimalAlgorithmsDeliverWhenTheyMust(t *testing.T) {
	var must, never, either int
	stories(t, 1500, func(t *testing.T, f *faulty, src, dst int, rnd *rand.Rand) {
		far := f.search(dst, false)[src]
		for _, a := range []Algorithm{DimensionOrder, MinimalAdaptive} {
			may, sure := f.fate(a, src, dst, false)
			if a == DimensionOrder && may != sure {
				t.Fatal("dimension order has a choice")
			}
			for range 10 {
				hops, how := f.walk(a, src, dst, 1000, false, rnd.IntN)
				if how == Route && (hops != far || !may) || how == Stuck && (hops >= far || sure) || how == Deroute {
					t.Fatalf("%s: %s after %d hops of %d; it may arrive %t, it must %t", a, how, hops, far, may, sure)
				}
			}
			switch {
			case sure:
				must++
			case !may:
				never++
			default:
				either++
			}
		}
	})
	if must < 500 || never < 100 || either < 20 {
		t.Errorf("must %d, never %d, either %d: the test tests nothing", must, never, either)
	}
}

// Chaos: a message that must arrive does, however long it takes; one that cannot does not; the hop bound ends every
// way; and unconnected destinations are among those that it cannot reach.
func TestChaosDeliversWhenItMust(t *testing.T) {
	var must, never, either int
	stories(t, 900, func(t *testing.T, f *faulty, src, dst int, rnd *rand.Rand) {
		may, sure := f.fate(Chaos, src, dst, false)
		if connected := f.search(dst, true)[src] >= 0; may && !connected {
			t.Fatal("a way where none is")
		}
		hops, how := f.walk(Chaos, src, dst, 100_000, false, rnd.IntN)
		if how == Route && !may || how != Route && sure {
			t.Fatalf("%s after %d hops; it may arrive %t, it must %t", how, hops, may, sure)
		}
		bound := int(HopBound(f.dims))
		if hops, _ := f.walk(Chaos, src, dst, bound, false, rnd.IntN); hops > bound {
			t.Fatalf("%d hops of %d", hops, bound)
		}
		switch {
		case sure:
			must++
		case !may:
			never++
		default:
			either++
		}
	})
	t.Logf("must %d, cannot %d, either %d", must, never, either)
	if must < 300 || never < 30 || either == 0 {
		t.Errorf("must %d, never %d, either %d: the test tests nothing", must, never, either)
	}
}

// Where nodes remember a message it arrives whenever there is a way at all, out of every concave region, and it
// arrives more often within the hop bound.
func TestMemoryLeavesConcaveRegions(t *testing.T) {
	var trapped, all int
	var without, with float64
	stories(t, 900, func(t *testing.T, f *faulty, src, dst int, rnd *rand.Rand) {
		if f.search(dst, true)[src] < 0 {
			return
		}
		if hops, how := f.travel(Chaos, src, dst, 100_000, Query{}, map[int]Set{}, rnd.IntN); how != Route {
			t.Fatalf("%s after %d hops", how, hops)
		}
		if _, must := f.fate(Chaos, src, dst, false); !must {
			trapped++
		}
		all++
		bound := int(HopBound(f.dims))
		for range 20 {
			if _, how := f.walk(Chaos, src, dst, bound, false, rnd.IntN); how == Route {
				without++
			}
			if _, how := f.travel(Chaos, src, dst, bound, Query{}, map[int]Set{}, rnd.IntN); how == Route {
				with++
			}
		}
	})
	n := 20 * float64(all)
	t.Logf("%d pairs, %d that a concave region may hold for ever; within the hop bound arrive %.4f, with memory %.4f", all, trapped,
		without/n, with/n)
	if trapped == 0 || with <= without {
		t.Error("the test tests nothing, or memory makes it worse")
	}
}

// In a ring chaos delivers whenever the two are connected, within twice its length: a message turns round at the
// break, and never again. Without No Routeback the node before the one at the break sends it there again, forever,
// unless the other way round is not longer from it.
func TestChaosDeliversInBrokenRing(t *testing.T) {
	never := 0
	for n := 3; n <= 8; n++ {
		for cut := range n {
			f := newFaulty(grid.Dims{X: n, Y: 1, Z: 1})
			f.cut(cut, grid.XPlus)
			for src := range n {
				for dst := range n {
					r := NewRandom(uint64(n))
					if hops, how := f.walk(Chaos, src, dst, 2*n, false, r.IntN); how != Route {
						t.Errorf("ring of %d cut after %d: %d to %d: %s after %d hops", n, cut, src, dst, how, hops)
					}
					up := (dst - src + n) % n
					if f.search(dst, true)[src] == f.search(dst, false)[src] || 2*up == n {
						continue
					}
					left := (dst - cut + n) % n // from the node at the break
					if 2*up > n {
						left = (cut + 1 - dst + n) % n
					}
					_, how := f.walk(Chaos, src, dst, 1000, true, r.IntN)
					if arrives := 2*(left+1) >= n; arrives != (how == Route) {
						t.Errorf("ring of %d cut after %d: %d to %d with routebacks: %s, want arrival %t", n, cut, src, dst, how, arrives)
					}
					if how != Route {
						never++
					}
				}
			}
		}
	}
	if never < 100 {
		t.Errorf("%d never arrive with routebacks: the test tests nothing", never)
	}
}

// The mean of Decide matches the Markov chain: the rate of arrival within the hop bound lies within five standard
// errors.
func TestChaosArrivesAsOftenAsChainSays(t *testing.T) {
	const trials = 400
	worst, checked := 0.0, 0
	stories(t, 240, func(t *testing.T, f *faulty, src, dst int, rnd *rand.Rand) {
		if len(f.nodes) > 128 {
			return // the chain is large
		}
		bound := int(HopBound(f.dims))
		for _, routeback := range []bool{false, true} {
			p := f.chances(Chaos, src, dst, bound, routeback)[bound]
			arrived := 0
			for range trials {
				if _, how := f.walk(Chaos, src, dst, bound, routeback, rnd.IntN); how == Route {
					arrived++
				}
			}
			rate := float64(arrived) / trials
			if off := math.Abs(rate - p); off > 5*math.Sqrt(p*(1-p)/trials)+1e-9 {
				t.Errorf("routeback %t: %.3f arrive, want %.3f", routeback, rate, p)
			}
			worst = max(worst, math.Abs(rate-p))
			checked++
		}
	})
	if checked < 100 {
		t.Errorf("%d checked: the test tests nothing", checked)
	}
	t.Logf("%d rates, off by at most %.3f", checked, worst)
}

// Without a concave region a message is certain to arrive (seed 003 §5.2.3.2). The test covers every pair around
// every convex block of dead nodes, up to 3 by 3, in two and three dimensions. Hardly any message needs more than the
// hop bound.
func TestConvexObstaclesArePassed(t *testing.T) {
	for _, test := range []struct {
		dims    string
		x, y, z int
		least   float64 // probability to arrive within the hop bound, for the worst pair
	}{
		{"8x8", 1, 1, 1, 0.999}, {"8x8", 1, 3, 1, 0.99}, {"8x8", 3, 3, 1, 0.999}, {"8x8", 2, 2, 1, 0.999},
		{"5x5x5", 1, 1, 1, 0.999}, {"5x5x5", 2, 2, 2, 0.999},
	} {
		t.Run(fmt.Sprintf("%s without %dx%dx%d", test.dims, test.x, test.y, test.z), func(t *testing.T) {
			f := newFaulty(dims(t, test.dims))
			for i := range test.x * test.y * test.z {
				c := grid.Coord{X: 1 + i%test.x, Y: 1 + i/test.x%test.y}
				if f.dims.Z > 1 {
					c.Z = 1 + i/test.x/test.y
				}
				f.nodes[f.dims.Rank(c)] = true
			}
			bound := int(HopBound(f.dims))
			least := 1.0
			r := NewRandom(3)
			for src := range f.nodes {
				for dst := range f.nodes {
					if src == dst || f.nodes[src] || f.nodes[dst] || f.dims.Z > 1 && r.IntN(20) > 0 {
						continue
					}
					if _, must := f.fate(Chaos, src, dst, false); !must {
						t.Fatalf("%s to %s may never arrive", f.dims.At(src), f.dims.At(dst))
					}
					least = min(least, f.chances(Chaos, src, dst, bound, false)[bound])
				}
			}
			t.Logf("worst pair: %.5f within %d hops", least, bound)
			if least < test.least {
				t.Errorf("worst pair: %.5f within %d hops, want %.3f", least, bound, test.least)
			}
		})
	}
}

// Figures 14 and 15: before a wall of 3 dead links half of the messages pass it with two deroutes, and none without
// No Routeback; before one of 5 a quarter with three.
func TestLinearObstacles(t *testing.T) {
	for _, test := range []struct {
		wall, hops int
		want       float64
	}{{3, 6, 0.5}, {5, 8, 0.25}, {7, 10, 0.125}} {
		f := newFaulty(dims(t, "15x15"))
		for i := range test.wall {
			f.cut(f.dims.Rank(grid.Coord{X: 7 - test.wall/2 + i, Y: 6}), grid.YPlus)
		}
		src, dst := f.dims.Rank(grid.Coord{X: 7, Y: 5}), f.dims.Rank(grid.Coord{X: 7, Y: 7})
		with, without := f.chances(Chaos, src, dst, 200, false), f.chances(Chaos, src, dst, 200, true)
		if with[test.hops-1] != 0 || with[test.hops] != test.want || with[200] < 0.98 {
			t.Errorf("wall of %d: %.4f pass within %d hops and %.4f within 200, want %.4f and nearly all", test.wall, with[test.hops],
				test.hops, with[200], test.want)
		}
		if without[200] != 0 {
			t.Errorf("wall of %d: %.4f pass by going back", test.wall, without[200])
		}
	}
}

// No Routeback brings more messages to where they go, over random faults of every rate.
func TestNoRoutebackDeliversMore(t *testing.T) {
	for _, size := range []string{"8x8", "4x4x4"} {
		for _, rate := range []float64{0.05, 0.1, 0.2, 0.3} {
			var with, without, pairs float64
			for seed := range uint64(40) {
				rnd := rand.New(rand.NewPCG(seed, 22))
				f := newFaulty(dims(t, size))
				f.kill(rnd, rate, 0)
				bound := int(HopBound(f.dims))
				for range 5 {
					src, dst := rnd.IntN(len(f.nodes)), rnd.IntN(len(f.nodes))
					if src == dst || f.search(dst, true)[src] < 0 {
						continue
					}
					with += f.chances(Chaos, src, dst, bound, false)[bound]
					without += f.chances(Chaos, src, dst, bound, true)[bound]
					pairs++
				}
			}
			t.Logf("%s, %2.0f %% of links dead: of connected pairs %.4f with No Routeback, %.4f without", size, 100*rate, with/pairs, without/pairs)
			if with <= without {
				t.Errorf("%s, %v of links dead: %.4f with, %.4f without", size, rate, with/pairs, without/pairs)
			}
		}
	}
}

// Of equally good channels Decide takes the one with the fewest waiting messages, at random among equals. If it is
// full for now the message waits, and makes no detour for that.
func TestChoiceByLoad(t *testing.T) {
	q := Query{Dims: grid.Dims{X: 5, Y: 5, Z: 5}, Dst: grid.Coord{X: 1, Y: 1, Z: 1}, Functional: 0x3f, Ready: 0x3f}
	ask := func(chance int) string {
		d, how := Chaos.Decide(&q, func(int) int { return chance })
		if d == 0 {
			return how.String()
		}
		return how.String() + " " + d.String()
	}
	expect := func(name string, chance int, want string) {
		t.Helper()
		if got := ask(chance); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	expect("equal", 0, "route X+")
	expect("equal", 2, "route Z+")
	q.Load = [6]int{4, 0, 3, 0, 3, 0}
	expect("X+ is loaded", 1, "route Z+")
	q.Ready = SetOf(grid.XPlus, grid.XMinus)
	expect("only X+ takes", 0, "route X+")
	q.Ready = SetOf(grid.XMinus)
	expect("none takes", 0, "wait")
	q.Functional = SetOf(grid.XMinus, grid.YMinus)
	expect("none leads there", 0, "deroute X-")
	q.From = grid.XMinus
	expect("nor back", 0, "wait")
	q.Functional = SetOf(grid.XMinus)
	expect("but back", 0, "deroute X-")
	q.Functional = 0
	expect("nothing", 0, "stuck")
}

// Under pressure chaos takes any functional channel, minimal adaptive one that is profitable, dimension order none.
func TestChaosSwapsUnderPressure(t *testing.T) {
	q := Query{Dims: grid.Dims{X: 5, Y: 5, Z: 1}, Dst: grid.Coord{X: 1}, From: grid.YPlus, Functional: 0x7, Ready: 0x7}
	for _, test := range []struct {
		a    Algorithm
		d    grid.Direction
		want bool
	}{
		{Chaos, grid.XPlus, true}, {Chaos, grid.XMinus, true}, {Chaos, grid.YPlus, true}, {Chaos, grid.YMinus, false},
		{MinimalAdaptive, grid.XPlus, true}, {MinimalAdaptive, grid.XMinus, false}, {DimensionOrder, grid.XPlus, false},
	} {
		how, ok := test.a.Swap(&q, test.d)
		if ok != test.want || ok && (how == Route) != (test.d == grid.XPlus) {
			t.Errorf("%s by %s: %s, %t", test.a, test.d, how, ok)
		}
	}
}

func TestParse(t *testing.T) {
	for _, a := range []Algorithm{DimensionOrder, MinimalAdaptive, Chaos} {
		if got, err := Parse(a.String()); got != a || err != nil {
			t.Errorf("%s: %s, %v", a, got, err)
		}
	}
	for _, s := range []string{"", "Chaos", "invalid", "Algorithm(0)"} {
		if got, err := Parse(s); err == nil {
			t.Errorf("%q is %s", s, got)
		}
	}
}

func TestHopBound(t *testing.T) {
	for size, want := range map[string]uint8{"1": 32, "2x2x2": 32, "4x4x4": 32, "8x8": 36, "8x8x8": 44, "32x32": 84, "100x100x100": 255} {
		if got := HopBound(dims(t, size)); got != want {
			t.Errorf("%s: %d, want %d", size, got, want)
		}
	}
}

func TestRandomIsEven(t *testing.T) {
	r := NewRandom(7)
	var n [6]int
	for range 60_000 {
		n[r.IntN(6)]++
	}
	for i, c := range n {
		if c < 9_500 || c > 10_500 {
			t.Errorf("%d came %d times of 60,000", i, c)
		}
	}
	if a, b := NewRandom(1), NewRandom(1); a.IntN(1<<30) != b.IntN(1<<30) {
		t.Error("the same seed gives other numbers")
	}
}

// A decision allocates nothing.
func TestDecideAllocatesNothing(t *testing.T) {
	r := NewRandom(1)
	q := Query{Dims: grid.Dims{X: 8, Y: 8, Z: 8}, Dst: grid.Coord{X: 3, Y: 5, Z: 1}, Functional: 0x3f, Ready: 0x3f}
	chance := r.IntN
	if n := testing.AllocsPerRun(100, func() { Chaos.Decide(&q, chance) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
