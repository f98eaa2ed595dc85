package orders

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

var (
	begin = time.Unix(1_800_000_000, 0)
	cfg   = configurationTiming{Rest: time.Second, Slowest: 8 * time.Second, Again: 2 * time.Second, Every: 30 * time.Second}
	nodes = []fault.NodeID{"a", "b", "c"}
	one   = torusContent{Dims: "3x1x1", Delay: time.Millisecond}
)

func absent(ranks ...uint32) torusContent {
	c := one
	c.Absent = ranks
	return c
}

func has(n uint64) *lofamov1.ConfigurationStatus { return says("b", n) }

func says(id fault.NodeID, n uint64) *lofamov1.ConfigurationStatus {
	return &lofamov1.ConfigurationStatus{Node: string(id), Number: n}
}

// tick expects an order to that node with that number, or none if node is empty.
func tick(t *testing.T, m *configurationMachine, at time.Duration, node fault.NodeID, number uint64, try int) {
	t.Helper()
	out, wake := m.Tick(begin.Add(at))
	switch {
	case node == "" && len(out) == 0:
		if !wake.IsZero() && !wake.After(begin.Add(at)) {
			t.Errorf("at %v: nothing, and wake is %v", at, wake.Sub(begin))
		}
	case len(out) != 1 || out[0].Node != node || out[0].Number != number || out[0].Try != try || out[0].Parts[0].GetNumber() != number:
		t.Errorf("at %v: %+v: want %d to %s, try %d", at, out, number, node, try)
	}
}

// The wanted configuration settles, goes to one node after the other until one has it, and then from time to time
// to the next.
func TestConfigurationIsRepeatedUntilHeard(t *testing.T) {
	m := newConfigurationMachine(cfg, 5)
	tick(t, m, 0, "", 0, 0)
	m.Wanted(begin, one, 9, nodes)
	tick(t, m, 999*time.Millisecond, "", 0, 0)
	tick(t, m, time.Second, "b", 9, 1)
	tick(t, m, 2*time.Second, "", 0, 0)
	tick(t, m, 3*time.Second, "c", 9, 2)
	m.Heard(begin.Add(4*time.Second), has(8))
	tick(t, m, 5*time.Second, "a", 9, 3)
	m.Heard(begin.Add(6*time.Second), says("a", 9))
	m.Wanted(begin.Add(10*time.Second), one, 12, nodes) // nothing else
	tick(t, m, 35*time.Second, "", 0, 0)
	tick(t, m, 36*time.Second, "b", 9, 1)
}

// Only the answer of the node that got the order, once for each send, ends the quick repeats: a node that reports the number unasked
// keeps the configuration from no other node.
func TestUnaskedStatusStopsNoRepeats(t *testing.T) {
	m := newConfigurationMachine(cfg, 5)
	m.Wanted(begin, one, 9, nodes)
	m.Heard(begin, says("b", 9))
	tick(t, m, time.Second, "b", 9, 1)
	m.Heard(begin.Add(2*time.Second), says("c", 9))
	tick(t, m, 3*time.Second, "c", 9, 2)
	m.Heard(begin.Add(4*time.Second), says("c", 9))
	m.Heard(begin.Add(33*time.Second), says("c", 9))
	tick(t, m, 34*time.Second, "a", 9, 1)
}

// Frequent changes are sent ever more rarely, but the last one always is.
func TestChangesAreDebounced(t *testing.T) {
	m := newConfigurationMachine(cfg, 1)
	given, last := 0, uint64(0)
	for i := range 600 { // a minute, in which something changes all the time
		now := begin.Add(time.Duration(i) * 100 * time.Millisecond)
		if i%15 == 0 {
			m.Wanted(now, absent(uint32(i)), uint64(i+2), nodes)
		}
		out, _ := m.Tick(now)
		for _, o := range out {
			if o.Number != last {
				given, last = given+1, o.Number
			}
			m.Heard(now, says(o.Node, o.Number))
		}
	}
	if given < 6 || given > 14 {
		t.Errorf("%d configurations in a minute", given)
	}
	out, _ := m.Tick(begin.Add(80 * time.Second))
	if p := m.parts[0]; len(p.GetAbsent()) != 1 || p.GetAbsent()[0] != 585 {
		t.Errorf("the last change was not told: %v, %v", p, out)
	}
}

// A content that never settles is sent all the same.
func TestUnsettledConfigurationIsSent(t *testing.T) {
	m := newConfigurationMachine(cfg, 1)
	for i := range 90 {
		m.Wanted(begin.Add(time.Duration(i)*100*time.Millisecond), absent(uint32(i)), uint64(i+2), nodes)
		tick := begin.Add(time.Duration(i) * 100 * time.Millisecond)
		if out, _ := m.Tick(tick); len(out) > 0 {
			if tick.Before(begin.Add(cfg.Slowest)) {
				t.Errorf("told after %v", tick.Sub(begin))
			}
			return
		}
	}
	t.Error("never told")
}

// Nodes with a later number are of an earlier store: this one's configuration gets a higher number.
func TestConfigurationNumberExceedsNodesNumbers(t *testing.T) {
	m := newConfigurationMachine(cfg, 5)
	m.Wanted(begin, one, 9, nodes)
	tick(t, m, time.Second, "b", 9, 1)
	m.Heard(begin.Add(time.Second), has(700))
	m.Heard(begin.Add(time.Second), has(700))
	tick(t, m, time.Second, "", 0, 0) // a single node may have invented the number: ask another
	tick(t, m, 3*time.Second, "c", 9, 2)
	m.Heard(begin.Add(3*time.Second), says("c", 700))
	tick(t, m, 3*time.Second, "a", 701, 1)
	m.Heard(begin.Add(3*time.Second), says("a", 701))
	tick(t, m, 4*time.Second, "", 0, 0)

	alone := newConfigurationMachine(cfg, 5) // a node that is alone can harm no other
	alone.Wanted(begin, one, 9, nodes[:1])
	tick(t, alone, time.Second, "a", 9, 1)
	alone.Heard(begin.Add(time.Second), says("a", 700))
	tick(t, alone, time.Second, "a", 701, 1)
}

// A node that invents numbers, or reports a foreign status, raises no number.
func TestInventedNumbersAreIgnored(t *testing.T) {
	m := newConfigurationMachine(cfg, 5)
	m.Wanted(begin, one, 9, nodes)
	tick(t, m, time.Second, "b", 9, 1)
	for _, n := range []uint64{1<<64 - 1, 1 << 63, maxNumber, maxNumber - 1, 1 << 40} {
		m.Heard(begin.Add(time.Second), has(n))
		m.Heard(begin.Add(time.Second), says("nobody", n))
	}
	tick(t, m, 3*time.Second, "c", 9, 2)
	m.Heard(begin.Add(3*time.Second), says("c", 9))
	m.Wanted(begin.Add(4*time.Second), absent(1), 12, nodes)
	tick(t, m, 5*time.Second, "a", 12, 1)
}

// The largest content fits its messages, which contain all of it in order.
func TestLargestConfigurationFitsMessages(t *testing.T) {
	c := torusContent{Dims: "128x128x64", Delay: 9 * time.Second}
	for i := range uint32(servicenet.MaxConfigurationAbsent + 5) {
		c.Absent = append(c.Absent, 1_000_000+i)
	}
	for i := range uint32(servicenet.MaxConfigurationMasks + 5) {
		c.Masks = append(c.Masks, rankMask{1_000_000 + i, 0x3e})
	}
	parts := c.parts(1 << 50)
	var absent, masks uint32
	for i, p := range parts {
		if int(p.GetPart()) != i || int(p.GetParts()) != len(parts) || proto.Size(p) > partSize+20 || len(p.GetAbsent()) > 200 ||
			len(p.GetMasks()) > 100 {
			t.Errorf("part %d of %d: %d bytes, %d absent, %d masks", p.GetPart(), p.GetParts(), proto.Size(p), len(p.GetAbsent()), len(p.GetMasks()))
		}
		for _, rank := range p.GetAbsent() {
			if rank != c.Absent[absent] {
				t.Fatalf("absent %d: %d", absent, rank)
			}
			absent++
		}
		for _, k := range p.GetMasks() {
			if k.GetRank() != c.Masks[masks].Rank {
				t.Fatalf("mask %d: %d", masks, k.GetRank())
			}
			masks++
		}
	}
	if absent != servicenet.MaxConfigurationAbsent || masks != servicenet.MaxConfigurationMasks ||
		len(parts) > servicenet.MaxConfigurationParts {
		t.Errorf("%d parts with %d absent and %d masks", len(parts), absent, masks)
	}
}

// TestKeptNetworkDelayIsThatOfPlaces changes places at random. A Network Delay that was kept is that of the present places.
func TestKeptNetworkDelayIsThatOfPlaces(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	dims := grid.Dims{X: 4, Y: 3, Z: 2}
	places := make([]Place, dims.Places())
	for rank := range places {
		places[rank] = Place{Node: fault.DefaultNodeID(dims.At(rank)), Well: true, Links: 63}
	}
	var kept networkDelays
	seen := make(map[time.Duration]bool)
	for i := range 500 {
		places = slices.Clone(places)
		switch p := &places[rng.IntN(len(places))]; rng.IntN(4) {
		case 0:
			p.Well = !p.Well
		case 1:
			p.Links ^= 1 << rng.IntN(6)
		case 2:
			p.Dead ^= 1 << rng.IntN(6)
		case 3:
			p.Failed = !p.Failed
		}
		members := wholeTorus(dims, places).Members
		want := networkDelay(dims, places, members, time.Second)
		if got := kept.of(dims, places, members, time.Second); got != want {
			t.Fatalf("change %d: %v: want %v", i, got, want)
		}
		seen[want] = true
	}
	if len(seen) < 2 {
		t.Errorf("only the delays %v: the changes prove nothing", seen)
	}
}

// TestPlacesCopyNoComponents: each change of the map needs all places again, which must not cost a copy of each node's components.
func TestPlacesCopyNoComponents(t *testing.T) {
	dims := grid.Dims{X: 8, Y: 8, Z: 4}
	ids := make(map[grid.Coord]fault.NodeID)
	for rank := range dims.Nodes() {
		ids[dims.At(rank)] = fault.DefaultNodeID(dims.At(rank))
	}
	m := view.NewBuilder(view.NewNames(dims, ids), time.Time{}).Map(1)
	c := Config{Marks: &view.Marks{}, Masks: &view.Masks{}}
	var places []Place
	if n := testing.AllocsPerRun(10, func() { places = c.places(m) }); n > 2 {
		t.Errorf("%.0f allocations for %d places: want at most the list and one more", n, len(places))
	}
}
