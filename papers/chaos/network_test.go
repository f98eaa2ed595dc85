package chaos

import (
	"math/bits"
	"slices"
	"strings"
	"testing"
)

// check verifies the invariants after every cycle: each packet is in one place, books agree, of a channel's four
// frames one is free of headers.
func check(t *testing.T, n *Network) {
	t.Helper()
	seen := make(map[int32]bool)
	look := func(b buffer) bool {
		if b.pkt < 0 {
			return false
		}
		if seen[b.pkt] {
			t.Fatalf("cycle %d: packet %d is in two places", n.now, b.pkt)
		}
		seen[b.pkt] = true
		return true
	}
	for r := range n.nodes {
		for f := range n.frames {
			if in := look(n.in[r*n.frames+f]); in != (n.inHeld[r]>>f&1 != 0) {
				t.Fatalf("cycle %d: node %d's input frame %d holds a packet: %v, booked otherwise", n.now, r, f, in)
			}
			if out := look(n.out[r*n.frames+f]); out != (n.outHeld[r]>>f&1 != 0) {
				t.Fatalf("cycle %d: node %d's output frame %d holds a packet: %v, booked otherwise", n.now, r, f, out)
			}
		}
		slots := 0
		for q := range n.slots {
			if look(n.slot[r*n.slots+q]) {
				slots++
			}
		}
		if slots != int(n.queued[r]) {
			t.Fatalf("cycle %d: node %d's multiqueue holds %d packets, %d are booked", n.now, r, slots, n.queued[r])
		}
		if n.cfg.Algorithm != Chaotic {
			continue
		}
		for m := n.live[r]; m != 0; m &= m - 1 {
			c := bits.TrailingZeros32(m)
			b := int(n.neighbour[r*n.chans+c])
			if n.inHeld[r]&n.outHeld[r]>>c&1 != 0 && n.inHeld[b]&n.outHeld[b]>>(c^1)&1 != 0 {
				t.Fatalf("cycle %d: channel %d of node %d has no free frame at either end", n.now, c, r)
			}
		}
	}
	if len(seen) != n.Population() {
		t.Fatalf("cycle %d: %d packets are in buffers, the population is %d", n.now, len(seen), n.Population())
	}
	if c := n.count; c.Injected != c.Delivered+c.Misdelivered+c.Lost+c.Cleared+n.Population() {
		t.Fatalf("cycle %d: %d packets injected, of which %+v and %d in the network", n.now, c.Injected, c, n.Population())
	}
}

func network(t testing.TB, cfg Config) *Network {
	t.Helper()
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func offer(t testing.TB, n *Network, tr Traffic) {
	t.Helper()
	if err := n.Offer(tr); err != nil {
		t.Fatal(err)
	}
}

// TestLoneLatency: a packet that meets no other takes the time of the package comment's table, along a shortest way.
func TestLoneLatency(t *testing.T) {
	for _, decode := range []int{0, 1, 4} {
		cfg := Default(6, 5)
		cfg.Decode = decode
		n := network(t, cfg)
		for dst := 1; dst < n.nodes; dst++ {
			var got Delivery
			n.OnDelivery(func(d Delivery) { got = d })
			n.Send(0, dst)
			n.Run(500)
			ref := reference{n: n}
			if hops := ref.lee(0, dst); got.Node != dst || got.Hops != hops || got.Tail-got.Born != (hops+1)*(decode+2)+cfg.Flits {
				t.Fatalf("decode %d, destination %d: %+v, want %d hops in %d cycles", decode, dst, got, hops, (hops+1)*(decode+2)+cfg.Flits)
			}
		}
	}
}

// TestSaturation offers more than any network carries, for long, with and without faults, looks at every cycle, and
// drains: no lock-up, nothing lost.
func TestSaturation(t *testing.T) {
	cases := []struct {
		name   string
		change func(*Config)
		faults int
	}{
		{"torus", func(*Config) {}, 0},
		{"mesh", func(c *Config) { c.Mesh = true }, 0},
		{"full duplex", func(c *Config) { c.FullDuplex = true }, 0},
		{"one slot", func(c *Config) { c.Multiqueue = 1 }, 0},
		{"one slot, no wait", func(c *Config) { c.Multiqueue, c.InputWait = 1, 0 }, 0},
		{"no routeback off", func(c *Config) { c.NoRouteback = false }, 0},
		{"on demand", func(c *Config) { c.DerouteOnDemand = true }, 0},
		{"turn-around", func(c *Config) { c.TurnAround = 3 }, 0},
		{"ring", func(c *Config) { c.Dims = []int{9} }, 0},
		{"three dimensions", func(c *Config) { c.Dims = []int{3, 3, 4} }, 0},
		{"faults", func(*Config) {}, 12},
		{"faults, mesh", func(c *Config) { c.Mesh = true }, 8},
		{"faults, mask but basic routing", func(c *Config) { c.FastDeroute, c.NoRouteback = false, false }, 6},
		{"minimal adaptive", func(c *Config) { c.Algorithm = MinimalAdaptive }, 0},
		{"minimal adaptive, mesh", func(c *Config) { c.Algorithm, c.Mesh = MinimalAdaptive, true }, 0},
		{"minimal adaptive, full duplex", func(c *Config) { c.Algorithm, c.FullDuplex = MinimalAdaptive, true }, 0},
		{"dimension order", func(c *Config) { c.Algorithm = DimensionOrder }, 0},
		{"dimension order, mesh", func(c *Config) { c.Algorithm, c.Mesh = DimensionOrder, true }, 0},
		{"dimension order, ring of four", func(c *Config) { c.Algorithm, c.Dims = DimensionOrder, []int{4} }, 0},
		{"dimension order, faults", func(c *Config) { c.Algorithm = DimensionOrder }, 6},
	}
	cycles := 4000
	if testing.Short() {
		cycles = 1000
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			cfg := Default(6, 6)
			tc.change(&cfg)
			n := network(t, cfg)
			n.KillRandomLinks(tc.faults)
			if err := n.Reconfigure(); err != nil {
				t.Fatal(err)
			}
			offer(t, n, Traffic{Rate: 0.2})
			moved := 0
			n.onMove = func(move) { moved = int(n.now) }
			for range cycles {
				n.Step()
				check(t, n)
				if quiet := int(n.now) - moved; quiet > 4*cfg.Flits {
					t.Fatalf("no header has moved for %d cycles with %d packets in the network", quiet, n.Population())
				}
			}
			before := n.Count()
			if before.Delivered < n.nodes*cycles/400 {
				t.Fatalf("%d packets delivered by %d nodes in %d cycles", before.Delivered, n.nodes, n.now)
			}
			// Random faults may make concave regions, and basic routing behind faults waits for traffic to push it on
			// (§5.2.3.1).
			if _, ok := n.Drain(100000); !ok {
				caught(t, n)
			}
			check(t, n)
			if c := n.Count(); c.Misdelivered != 0 || c.Cleared != 0 || c.Lost > 0 != (cfg.Algorithm == DimensionOrder && tc.faults > 0) {
				t.Fatalf("%+v", c)
			}
		})
	}
}

// caught fails unless the Markov chain has a state from which a packet never arrives, for the destination of a packet
// that is left. Not all remaining packets are in such a state at any time: the trapped ones keep one another's
// routers full, and ordinary derouting pushes packets in and out.
func caught(t *testing.T, n *Network) {
	t.Helper()
	for _, b := range slices.Concat(n.in, n.out, n.slot) {
		if b.pkt < 0 {
			continue
		}
		for s, p := range n.Walk(int(n.dst[b.pkt])).Delivered() {
			if p == 0 && n.live[s/(n.chans+1)] != 0 {
				return
			}
		}
	}
	t.Fatalf("not drained: %d packets are left, and each would arrive from wherever it is", n.Population())
}

// TestEjectionBottleneck: a node takes one packet in as many cycles as it has flits (§5.2.1.3), without a gap, while
// other packets wait to enter.
func TestEjectionBottleneck(t *testing.T) {
	n := network(t, Default(8, 8))
	tails := []int{}
	n.OnDelivery(func(d Delivery) { tails = append(tails, d.Tail) })
	for r := 1; r < n.nodes; r++ {
		for range 4 {
			n.Send(r, 0)
		}
	}
	n.Run(252*20 + 500)
	if len(tails) != 252 {
		t.Fatalf("%d packets delivered, want 252", len(tails))
	}
	gaps := 0
	for i := 1; i < len(tails); i++ {
		if tails[i]-tails[i-1] < 20 {
			t.Fatalf("two packets at the processor within %d cycles", tails[i]-tails[i-1])
		}
		gaps += tails[i] - tails[i-1] - 20
	}
	if gaps > 200 {
		t.Fatalf("the processor's channel was idle for %d cycles of %d", gaps, tails[len(tails)-1])
	}
}

// TestSameSeed: a run is a function of its configuration.
func TestSameSeed(t *testing.T) {
	run := func(seed uint64) Counters {
		cfg := Default(6, 6)
		cfg.Seed = seed
		n := network(t, cfg)
		offer(t, n, Traffic{Rate: 0.03, HotSpots: n.Choose(3), HotFactor: 10})
		n.Run(2000)
		return n.Count()
	}
	if a, b := run(7), run(7); a != b {
		t.Errorf("the same seed gave\n%+v and\n%+v", a, b)
	}
	if a, b := run(7), run(8); a == b {
		t.Errorf("two seeds gave the same %+v", a)
	}
}

// TestHotSpots: ten-times hot spots are drawn ten times as often.
func TestHotSpots(t *testing.T) {
	n := network(t, Default(16, 16))
	hot := n.Choose(10)
	offer(t, n, Traffic{Rate: 0.01, HotSpots: hot, HotFactor: 10})
	isHot := make([]bool, n.nodes)
	for _, r := range hot {
		isHot[r] = true
	}
	got, draws := 0, 200000
	for range draws {
		if isHot[n.destination(-1)] {
			got++
		}
	}
	want := 100.0 / 346
	if share := float64(got) / float64(draws); share < want-0.005 || share > want+0.005 {
		t.Errorf("%.4f of the packets go to hot spots, want %.4f", share, want)
	}
}

// TestRate: the offered load equals the requested load.
func TestRate(t *testing.T) {
	n := network(t, Default(8, 8))
	offer(t, n, Traffic{Rate: 0.004})
	n.Run(50000)
	want := 0.004 * 50000 * 64
	if c := n.Count(); c.Refused != 0 || float64(c.Offered) < 0.97*want || float64(c.Offered) > 1.03*want {
		t.Errorf("%d packets offered, %d refused; want %.0f", c.Offered, c.Refused, want)
	}
}

// TestStepDoesNotAllocate: a study makes millions of cycles.
func TestStepDoesNotAllocate(t *testing.T) {
	n := network(t, Default(8, 8))
	offer(t, n, Traffic{Rate: 0.05})
	n.Run(500)
	if a := testing.AllocsPerRun(500, n.Step); a != 0 {
		t.Errorf("%.1f allocations a cycle", a)
	}
}

func TestValidate(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"Dims":       func(c *Config) { c.Dims = nil },
		"Dims[1]":    func(c *Config) { c.Dims = []int{4, 1} },
		"more than":  func(c *Config) { c.Dims = []int{1024, 1024, 2} },
		"Algorithm":  func(c *Config) { c.Algorithm = 0 },
		"Flits":      func(c *Config) { c.Flits = 1 },
		"Multiqueue": func(c *Config) { c.Multiqueue = 17 },
		"Decode":     func(c *Config) { c.Decode = -1 },
		"InputWait":  func(c *Config) { c.InputWait = 1001 },
		"EjectGap":   func(c *Config) { c.EjectGap = -1 },
		"TurnAround": func(c *Config) { c.TurnAround = 101 },
	} {
		cfg := Default(4, 4)
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	n := network(t, Default(4, 4))
	for want, tr := range map[string]Traffic{
		"Rate": {Rate: 1.5}, "HotFactor": {HotSpots: []int{1}}, "HotSpots[1]": {HotSpots: []int{1, 1},
			HotFactor: 10}, "HotSpots[0]": {HotSpots: []int{16}, HotFactor: 10},
	} {
		if err := n.Offer(tr); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	n.Send(0, 1)
	n.Step()
	if err := n.Reconfigure(); err == nil {
		t.Error("the mask was changed with a packet in the network")
	}
	if cfg := Default(16, 16); cfg.BuffersPerRouter() != 15 {
		t.Errorf("%d buffers a router, the paper has 15", cfg.BuffersPerRouter())
	}
}

// BenchmarkDrain is one trial of Figure 10 near the highest population: 32x32, 6 packets a router, hot spots.
func BenchmarkDrain(b *testing.B) {
	cycles := 0
	for i := range b.N {
		cfg := Default(32, 32)
		cfg.Seed = uint64(i + 1)
		n := network(b, cfg)
		offer(b, n, Traffic{Rate: 0.05, HotSpots: n.Choose(10), HotFactor: 10})
		if err := n.Fill(6*n.Nodes(), 20000); err != nil {
			b.Fatal(err)
		}
		c, ok := n.Drain(100000)
		if !ok {
			b.Fatal("not drained")
		}
		cycles += c
	}
	b.ReportMetric(float64(cycles)/float64(b.N), "cycles/drain")
}
