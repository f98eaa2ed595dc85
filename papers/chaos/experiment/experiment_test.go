package experiment

import (
	"fmt"
	"math"
	"testing"

	"github.com/lofamo/lofamo/papers/chaos"
)

// The tests are short forms of the studies: make figures has more trials and the larger networks.

func TestLine(t *testing.T) {
	// By hand: y over x = 1 to 5 with slope 0.6, intercept 2.2, residual variance 2.4/3 (a textbook's example).
	f := Line([]float64{1, 2, 3, 4, 5}, []float64{2, 4, 5, 4, 5})
	for name, got := range map[string][2]float64{
		"slope": {f.Slope, 0.6}, "intercept": {f.Intercept, 2.2}, "residual": {f.SigmaResid,
			math.Sqrt(0.8)}, "slope's error": {f.SlopeError, math.Sqrt(0.08)}, "R2": {f.R2, 0.6},
	} {
		if math.Abs(got[0]-got[1]) > 1e-12 {
			t.Errorf("%s is %g, want %g", name, got[0], got[1])
		}
	}
	if low, high := f.SlopeInterval(); math.Abs(low+0.3001) > 0.02 || math.Abs(high-1.5001) > 0.02 {
		t.Errorf("the slope is within %.3f to %.3f, want -0.300 to 1.500", low, high)
	}
	for degrees, want := range map[int]float64{4: 2.7764, 10: 2.2281, 30: 2.0423, 1000: 1.9623} {
		if got := T95(degrees); math.Abs(got/want-1) > 0.01 {
			t.Errorf("T95(%d) is %.4f, want %.4f", degrees, got, want)
		}
	}
	if low, high := Wilson(8, 10); math.Abs(low-0.4902) > 1e-3 || math.Abs(high-0.9433) > 1e-3 {
		t.Errorf("8 of 10 is %.4f to %.4f, want 0.4902 to 0.9433", low, high)
	}
	if m := MeanOf([]float64{1, 2, 3, 4}); m.Mean != 2.5 || math.Abs(m.Error-math.Sqrt(5.0/12)) > 1e-12 {
		t.Errorf("%+v", m)
	}
}

// TestBounds has the paper's two bounds for the drain (§5.2.1.3).
func TestBounds(t *testing.T) {
	if got := CraniumBound(16, 64, 20); math.Abs(got-24781) > 1 {
		t.Errorf("%.1f cycles, the paper has 24,781", got)
	}
	if got := PathologicalBound(1024, 15, 20); got != 307200 {
		t.Errorf("%d cycles, the paper has 307,200", got)
	}
}

// TestDrainIsLinear: Figures 9 and 10 in short, and two sizes that the paper does not have. At every size drain times
// are close to linear in the packets and hot spots make the difference; at the paper's two sizes a full network
// drains within 10 % of its number of cycles.
func TestDrainIsLinear(t *testing.T) {
	if testing.Short() {
		t.Skip("networks of up to 1,024 nodes, drained dozens of times: make test does it, without the race detector")
	}
	for _, tc := range []struct{ side, uniform, hot, paper int }{{8, 4, 6, 0}, {16, 2, 5, PaperFull16}, {24, 1, 3, 0},
		{32, 1, 3, PaperFull32}} {
		t.Run(fmt.Sprintf("%dx%d", tc.side, tc.side), func(t *testing.T) {
			uniform, err := PaperDrain(tc.side, 0, tc.uniform).Run()
			if err != nil {
				t.Fatal(err)
			}
			hot, err := PaperDrain(tc.side, 10, tc.hot).Run()
			if err != nil {
				t.Fatal(err)
			}
			checkDrain(t, tc.paper, uniform, hot)
		})
	}
}

// checkDrain compares the drains of one size with Figures 9 and 10; paper is their number for a full network under
// hot spots, 0 for none.
func checkDrain(t *testing.T, paper int, uniform, hot Drained) {
	t.Helper()
	t.Logf("full: uniform %.0f, hot spots %.0f cycles (%.0f to %.0f); R2 %.3f, %.3f", uniform.Full, hot.Full, hot.FullLow,
		hot.FullHigh, uniform.Fit.R2, hot.Fit.R2)
	if uniform.Fit.R2 < 0.95 || hot.Fit.R2 < 0.9 {
		t.Errorf("R2 is %.3f and %.3f: not close to linear", uniform.Fit.R2, hot.Fit.R2)
	}
	if off := hot.Full/float64(paper) - 1; paper > 0 && math.Abs(off) > 0.1 {
		t.Errorf("%.0f cycles for the full network under hot spots, the paper has %d: %+.1f %%, want within 10 %%", hot.Full, paper, 100*off)
	}
	if hot.Full < 2*uniform.Full {
		t.Errorf("%.0f cycles with hot spots, %.0f without: want at least twice as many", hot.Full, uniform.Full)
	}
	// The controlling bottleneck is one processor's channel: no drain is faster than the time of the packets for one
	// node, and none much slower.
	for _, p := range hot.Points {
		if bound := p.Most * 20; p.Cycles < bound-20 || p.Cycles > bound+400 {
			t.Errorf("%d packets drained in %d cycles, of which %d were for one node", p.Packets, p.Cycles, p.Most)
		}
	}
}

// TestUnreachable is Figure 11: the time-out comes, packets that move are delivered where they are, the rest is
// cleared and reported.
func TestUnreachable(t *testing.T) {
	for _, mask := range []bool{false, true} {
		cfg := chaos.Default(8, 8)
		cfg.Mask, cfg.FastDeroute, cfg.NoRouteback = mask, mask, mask
		s, err := Unreachable{Network: cfg, Rate: 0.1, WarmUp: 500, After: 400, Timeout: 8000, Share: 5}.Run()
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case s.Drained || s.ForIt == 0 || s.Left == 0 || s.Population != 0:
			t.Errorf("mask %v: %+v", mask, s)
		case s.Misdelivered+s.Cleared != s.Left:
			t.Errorf("mask %v: %d left, %d delivered elsewhere and %d cleared", mask, s.Left, s.Misdelivered, s.Cleared)
		case mask && s.Misdelivered == 0:
			t.Errorf("with fast derouting packets keep moving, but none was received after the time-out: %+v", s)
		case !mask && (s.Cleared == 0 || s.Beside == 0):
			t.Errorf("without a mask packets stand before the dead links, but no router beside them reported: %+v", s)
		}
	}
}

// TestLinearObstacles is Figures 14 and 15: without No Routeback a packet is caught at a wall of three links or more;
// with it it gets round with the paper's probability at each attempt, and in the end always.
func TestLinearObstacles(t *testing.T) {
	lengths := []int{1, 3, 5, 7, 9}
	if testing.Short() {
		lengths = lengths[:2]
	}
	for _, length := range lengths {
		o := Obstacle{Dims: []int{20, 20}, Length: length}
		with, err := o.Run(true, 40, 150, uint64(length))
		if err != nil {
			t.Fatal(err)
		}
		// Of the (length+1)/2 necessary deroutes, each but the first takes the right one of two directions.
		want := math.Pow(2, -float64((length-1)/2))
		if paper, printed := PaperAttempts()[length]; printed && paper != want {
			t.Errorf("length %d: the paper prints %.6f, the pattern gives %.6f", length, paper, want)
		}
		if math.Abs(with.Attempt-want) > 1e-9 || with.Delivered < 1-Certain {
			t.Errorf("length %d: %.6f an attempt, %.6f at all; want %.6f and 1", length, with.Attempt, with.Delivered, want)
		}
		if with.Within < with.Low || with.Within > with.High {
			t.Errorf("length %d: %d of %d packets arrived within %d hops, the chain says %.4f", length, with.Simulated, with.Trials,
				with.Hops, with.Within)
		}
		without, err := o.Run(false, 40, 20, uint64(length))
		if err != nil {
			t.Fatal(err)
		}
		caught := 0.0
		if length == 1 {
			caught = 1
		}
		if math.Abs(without.Delivered-caught) > Certain || float64(without.Simulated) != caught*20 {
			t.Errorf("length %d with routeback: delivered with %.6f, %d of 20 in the model; want %g", length, without.Delivered,
				without.Simulated, caught)
		}
	}
	if _, _, err := (Obstacle{Length: 2}).Build(chaos.Default(20, 20)); err == nil {
		t.Error("an even wall has no middle")
	}
	if _, _, err := (Obstacle{Length: 19}).Build(chaos.Default(20, 20)); err == nil {
		t.Error("a wall from rim to rim has no way round")
	}
}

// TestConcaveRegions is Figure 16: no packet leaves a pocket three wide, however shallow; closed off, every packet
// arrives.
func TestConcaveRegions(t *testing.T) {
	for _, dims := range [][]int{{20, 20}, {18, 7, 7}} {
		for depth := 1; depth <= 3; depth++ {
			o := Obstacle{Dims: dims, Length: 3, Depth: depth}
			n, at, err := o.Build(chaos.Default(dims...))
			if err != nil {
				t.Fatal(err)
			}
			w := n.Walk(at.Dest)
			open := w.Delivered()[w.At(at.Source)]
			if open > Certain {
				t.Errorf("%v, depth %d: delivered with probability %g before the region is closed", dims, depth, open)
			}
			closed, err := ClosePlanar(n, len(dims))
			if err != nil {
				t.Fatal(err)
			}
			want := depth
			for range dims[1:] {
				want *= 3
			}
			if len(closed) != want {
				t.Errorf("%v, depth %d: %d nodes are closed, the region has %d", dims, depth, len(closed), want)
			}
			w = n.Walk(at.Dest)
			if p := w.Delivered()[w.At(at.Source)]; p < 1-Certain {
				t.Errorf("%v, depth %d: delivered with probability %g after the region is closed", dims, depth, p)
			}
		}
	}
}

// TestPlanarAdaptive is Figure 17: of an obstacle on which the local rule closes two nodes that are well Chaos needs
// none closed.
func TestPlanarAdaptive(t *testing.T) {
	n, err := chaos.New(chaos.Default(10, 10))
	if err != nil {
		t.Fatal(err)
	}
	n.KillNode(n.Node(4, 4))
	n.KillNode(n.Node(5, 5))
	if err := n.Reconfigure(); err != nil {
		t.Fatal(err)
	}
	if d := DeliveryOf(n, 0); d.Nodes != 98 || d.Certain != d.Pairs {
		t.Errorf("without closing: %+v", d)
	}
	closed, err := ClosePlanar(n, 2)
	if err != nil {
		t.Fatal(err)
	}
	if len(closed) != 2 || !n.Dead(n.Node(4, 5)) || !n.Dead(n.Node(5, 4)) {
		t.Errorf("the local rule closes %v", closed)
	}
	if d := DeliveryOf(n, 0); d.Nodes != 96 || d.Certain != d.Pairs {
		t.Errorf("closed: %+v", d)
	}
}

// TestFaulty: No Routeback makes more pairs certain than without, and closing all that are left.
func TestFaulty(t *testing.T) {
	for _, dims := range [][]int{{8, 8}, {4, 4, 4}} {
		res, err := Faulty{Dims: dims, Dead: 8, Trials: 2, Seed: 3}.Run()
		if err != nil {
			t.Fatal(err)
		}
		if res.NoRouteback.Mean < res.Routeback.Mean || res.Closed.Mean < res.NoRouteback.Mean {
			t.Errorf("%v: %+v", dims, res)
		}
	}
}

// TestCompare: all three algorithms carry most of the channels' capacity; with dead links only Chaos loses none.
func TestCompare(t *testing.T) {
	for _, a := range []chaos.Algorithm{chaos.Chaotic, chaos.MinimalAdaptive, chaos.DimensionOrder} {
		for _, dead := range []int{0, 4} {
			cfg := chaos.Default(8, 8)
			cfg.Algorithm = a
			points, err := Compare{Network: cfg, Loads: []float64{0.3, 1}, DeadLinks: dead, WarmUp: 1000, Measure: 2000, Trials: 1}.Run()
			if err != nil {
				t.Fatal(err)
			}
			low, full := points[0], points[1]
			if dead == 0 && (math.Abs(low.Accepted-0.3) > 0.03 || full.Accepted < 0.5 || low.Latency > full.Latency) {
				t.Errorf("%v: %+v", a, points)
			}
			if lost := low.Lost > 0; lost != (dead > 0 && a != chaos.Chaotic) {
				t.Errorf("%v with %d dead links: %+v", a, dead, low)
			}
		}
	}
	if c := Capacity(chaos.Default(16, 16)); math.Abs(c-0.25) > 1e-12 {
		t.Errorf("a 16x16 torus of half-duplex channels carries %g flits a node and cycle, want 1/4", c)
	}
}
