package orders

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

var mappingStart = time.Unix(1_700_000_000, 0)

// mappedWorld is a simulated torus, and a leader that hears some of its nodes.
type mappedWorld struct {
	t       *testing.T
	torus   *chanmask.Torus
	heard   map[grid.Coord]bool // by the supervisors
	hosts   map[grid.Coord]bool // dead host halves
	deaf    map[grid.Coord]bool // nodes that ignore orders
	horizon int                 // hops that a mapper sees
	nodes   []fault.NodeID      // by rank
	m       *mappingMachine
	now     time.Time
	orders  []mappingOrder
}

func newMappedWorld(t *testing.T, dims grid.Dims) *mappedWorld {
	t.Helper()
	torus, err := chanmask.NewTorus(dims)
	if err != nil {
		t.Fatal(err)
	}
	return &mappedWorld{
		t: t, torus: torus, heard: map[grid.Coord]bool{}, hosts: map[grid.Coord]bool{}, deaf: map[grid.Coord]bool{}, horizon: 1 << 20,
		nodes: occupantsOf(dims), m: newMappingMachine(defaultMapping(), 7), now: mappingStart,
	}
}

// occupantsOf returns a node of the default name for each place.
func occupantsOf(dims grid.Dims) []fault.NodeID {
	out := make([]fault.NodeID, dims.Places())
	for at := range dims.All() {
		out[dims.Rank(at)] = fault.DefaultNodeID(at)
	}
	return out
}

// evidence returns the supervisors' knowledge: the nodes that they hear, and the links of these.
func (w *mappedWorld) evidence() *chanmask.Map {
	e := chanmask.NewMap(w.torus.Dims)
	for c := range w.heard {
		e.SetNode(c, chanmask.Good)
		for _, d := range w.torus.Dims.LinksOf(c) {
			l, _ := chanmask.LinkAt(w.torus.Dims, c, d)
			if k := chanmask.Good; w.torus.Open(c).Usable(d) {
				e.SetLink(l, k)
			} else {
				e.SetLink(l, chanmask.Bad)
			}
		}
	}
	return e
}

// run lets time pass, a tick a second; mappers answer at once.
func (w *mappedWorld) run(d time.Duration) {
	w.t.Helper()
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(time.Second) {
		w.m.Evidence(w.now, w.evidence(), slices.Clone(w.nodes))
		for _, o := range w.m.Tick(w.now) {
			w.orders = append(w.orders, o)
			if !slices.IsSorted(o.Region) || len(o.Region) == 0 {
				w.t.Errorf("order %+v", o)
			}
			if !w.deaf[o.Mapper] {
				for _, f := range w.survey(o) {
					w.m.Findings(w.now, o.Mapper, f)
				}
			}
		}
	}
}

// survey simulates a mapper (pkg/torus/mapping) that answers in parts of three.
func (w *mappedWorld) survey(o mappingOrder) (out []*lofamov1.MapFindings) {
	dims := w.torus.Dims
	hops := map[grid.Coord]int{o.Mapper: 0}
	in := func(c grid.Coord) bool { _, ok := slices.BinarySearch(o.Region, uint32(dims.Rank(c))); return ok }
	good, bad := map[grid.Coord]uint32{}, map[grid.Coord]uint32{}
	for q := []grid.Coord{o.Mapper}; len(q) > 0; q = q[1:] {
		for _, d := range dims.LinksOf(q[0]) {
			n, _ := dims.Neighbour(q[0], d)
			if !w.torus.Open(q[0]).Usable(d) {
				bad[q[0]] |= 1 << d.Index()
				bad[n] |= 1 << d.Opposite().Index()
				continue
			}
			good[q[0]] |= 1 << d.Index()
			good[n] |= 1 << d.Opposite().Index()
			if _, seen := hops[n]; !seen && in(n) && hops[q[0]] < w.horizon {
				hops[n] = hops[q[0]] + 1
				q = append(q, n)
			}
		}
	}
	var nodes []*lofamov1.MappedNode
	for _, r := range o.Region {
		c := dims.At(int(r))
		n := &lofamov1.MappedNode{Rank: r, Dnp: lofamov1.MapKnowledge_MAP_UNKNOWN, Host: lofamov1.MapKnowledge_MAP_UNKNOWN,
			LinksGood: good[c], LinksBad: bad[c] &^ good[c]}
		if _, ok := hops[c]; ok {
			n.Dnp, n.Host, n.RoundTripUs = lofamov1.MapKnowledge_MAP_GOOD, lofamov1.MapKnowledge_MAP_GOOD, 900
			if w.hosts[c] {
				n.Host = lofamov1.MapKnowledge_MAP_BAD
			}
		}
		nodes = append(nodes, n)
	}
	parts := slices.Collect(slices.Chunk(nodes, 3))
	for i, p := range parts {
		out = append(out, &lofamov1.MapFindings{Number: o.Number, Node: "n", Epoch: 1, Part: uint32(i), Parts: uint32(len(parts)), Nodes: p})
	}
	return out
}

// connected returns the nodes with a path from a live node.
func (w *mappedWorld) connected() map[grid.Coord]bool {
	out := map[grid.Coord]bool{}
	var q []grid.Coord
	for c := range w.heard {
		out[c], q = true, append(q, c)
	}
	for ; len(q) > 0; q = q[1:] {
		for _, d := range w.torus.Dims.Links() {
			n, _ := w.torus.Dims.Neighbour(q[0], d)
			if w.torus.Open(q[0]).Usable(d) && !out[n] {
				out[n] = true
				q = append(q, n)
			}
		}
	}
	return out
}

// Figure 18. A, the supervisors, hear the left part of a mesh. C, at its edge, maps as far as it sees; B lies
// behind a wall that hides it from C. D, which C has found, gets the next order, through C, and maps the pocket
// around B; then the whole boundary is known.
func TestFigure18(t *testing.T) {
	dims := grid.Dims{X: 9, Y: 7, Z: 1}
	w := newMappedWorld(t, dims)
	for y := range dims.Y { // a mesh: the edges do not wrap
		w.torus.Cut(chanmask.Link{Node: grid.Coord{X: 8, Y: y}, Dir: grid.XPlus})
	}
	for x := range dims.X {
		w.torus.Cut(chanmask.Link{Node: grid.Coord{X: x, Y: 6}, Dir: grid.YPlus})
	}
	for y := range dims.Y {
		for x := range 3 {
			w.heard[grid.Coord{X: x, Y: y}] = true
		}
		if y != 3 { // only one link leads on from the known part, that of C
			w.torus.Cut(chanmask.Link{Node: grid.Coord{X: 2, Y: y}, Dir: grid.XPlus})
		}
	}
	c, b := grid.Coord{X: 2, Y: 3}, grid.Coord{X: 6, Y: 3}
	for _, d := range []grid.Direction{grid.XMinus, grid.YPlus, grid.YMinus} { // the pocket opens to the right
		l, _ := chanmask.LinkAt(dims, b, d)
		w.torus.Cut(l)
	}
	w.horizon = 4
	w.run(30 * time.Second)
	if len(w.orders) == 0 || w.orders[0].Mapper != c {
		t.Fatalf("orders %+v: want the first to %s", w.orders, c)
	}
	if second := w.orders[1]; w.heard[second.Mapper] || !slices.Equal(second.Via, []grid.Coord{c}) {
		t.Errorf("the second order %+v: want one to a node that was found, through %s", second, c)
	}
	found := w.m.Found()
	if f := found[dims.Rank(b)]; f.DNP != chanmask.Good || f.By == fault.DefaultNodeID(c) {
		t.Errorf("of B was found %+v", f)
	}
	for rank := range dims.Nodes() {
		if at := dims.At(rank); !w.heard[at] && found[rank].DNP != chanmask.Good {
			t.Errorf("%s is connected, and was found %+v", at, found[rank])
		}
	}
	dead := w.m.Dead()
	for _, d := range []grid.Direction{grid.XMinus, grid.YPlus, grid.YMinus} {
		if l, _ := chanmask.LinkAt(dims, b, d); !slices.Contains(dead, l) {
			t.Errorf("the boundary of the pocket has %s, which is not known to be dead: %v", l, dead)
		}
	}
}

func withEmpty(t *testing.T, dims string) grid.Dims {
	t.Helper()
	d, err := grid.ParseDims(dims)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// The machine finds exactly the nodes connected with the heard ones, however little each mapper sees, and the
// others stay unknown.
func TestAgainstBreadthFirstSearch(t *testing.T) {
	for _, dims := range []grid.Dims{{X: 6, Y: 6, Z: 1}, {X: 4, Y: 4, Z: 4}, {X: 12, Y: 1, Z: 1},
		withEmpty(t, "4x3x3 without 1,1,1 3,2,2 0,0,1..2,0,1")} {
		for seed := range uint64(15) {
			t.Run(fmt.Sprintf("%s/%d", dims, seed), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 3))
				w := newMappedWorld(t, dims)
				for range rng.IntN(dims.Nodes() * 3 / 2) {
					at := dims.Node(rng.IntN(dims.Nodes()))
					if l, ok := chanmask.LinkAt(dims, at, dims.Links()[2*rng.IntN(len(dims.Links())/2)]); ok {
						w.torus.Cut(l)
					}
				}
				for range 1 + rng.IntN(4) {
					w.heard[dims.Node(rng.IntN(dims.Nodes()))] = true
				}
				w.horizon = 1 + rng.IntN(3)
				w.run(60 * time.Second)
				found, connected := w.m.Found(), w.connected()
				for at := range dims.All() {
					if f := found[dims.Rank(at)]; !w.heard[at] && (f.DNP == chanmask.Good) != connected[at] {
						t.Errorf("%s: found %+v, connected %t", at, f, connected[at])
					}
				}
				if len(w.orders) > defaultMapping().Orders {
					t.Errorf("%d orders", len(w.orders))
				}
			})
		}
	}
}

// A node that was unknown for a moment triggers no order, and findings on known nodes are deleted.
func TestUnknownForMoment(t *testing.T) {
	w := newMappedWorld(t, grid.Dims{X: 4, Y: 1, Z: 1})
	all := func(but ...int) {
		for x := range 4 {
			w.heard[grid.Coord{X: x}] = !slices.Contains(but, x)
			if slices.Contains(but, x) {
				delete(w.heard, grid.Coord{X: x})
			}
		}
	}
	all(2)
	w.run(4 * time.Second)
	all()
	w.run(10 * time.Second)
	if len(w.orders) > 0 {
		t.Errorf("orders %+v", w.orders)
	}
	w.hosts[grid.Coord{X: 2}] = true
	all(2)
	w.run(7 * time.Second)
	if f := w.m.Found()[2]; len(w.orders) != 1 || f.DNP != chanmask.Good || f.Host != chanmask.Bad || f.Node != "n2-0-0" || f.By != "n1-0-0" ||
		f.RoundTrip != 900*time.Microsecond {
		t.Errorf("%d orders, found %+v", len(w.orders), f)
	}
	all()
	w.run(time.Second)
	if f := w.m.Found(); len(f) > 0 {
		t.Errorf("it reports, and the finding remains: %+v", f)
	}
	all(2) // unknown again: it counts as new, and does not wait as long as one that stayed unknown
	w.run(7 * time.Second)
	if f := w.m.Found()[2]; len(w.orders) != 2 || f.DNP != chanmask.Good {
		t.Errorf("%d orders, found %+v", len(w.orders), f)
	}
}

// A silent mapper gets its order again a limited number of times, and then another mapper gets it.
func TestSilentMapperIsReplaced(t *testing.T) {
	w := newMappedWorld(t, grid.Dims{X: 4, Y: 1, Z: 1})
	w.heard[grid.Coord{X: 1}], w.heard[grid.Coord{X: 3}], w.heard[grid.Coord{}] = true, true, true
	w.deaf[grid.Coord{X: 1}] = true
	w.run(40 * time.Second)
	tries := 0
	for _, o := range w.orders {
		if o.Mapper == (grid.Coord{X: 1}) {
			tries = max(tries, o.Try)
		}
	}
	if tries < 3 || tries > 8 {
		t.Errorf("it got %d orders", tries)
	}
	if f := w.m.Found()[2]; f.By != "n3-0-0" || f.DNP != chanmask.Good {
		t.Errorf("found %+v", f)
	}
}

// Repeated mappings of the same nodes become ever rarer; newly unknown nodes are mapped at once.
func TestRepeatedMappingsBecomeRarer(t *testing.T) {
	w := newMappedWorld(t, grid.Dims{X: 8, Y: 1, Z: 1})
	for x := range 8 {
		w.heard[grid.Coord{X: x}] = x != 2
	}
	delete(w.heard, grid.Coord{X: 2})
	w.run(time.Hour)
	if n := w.m.Made(); n < 6 || n > 14 {
		t.Errorf("%d mappings in an hour", n)
	}
	made := w.m.Made()
	delete(w.heard, grid.Coord{X: 6})
	w.run(8 * time.Second)
	if w.m.Made() != made+1 || w.m.Found()[6].DNP != chanmask.Good {
		t.Errorf("%d mappings more, found %+v", w.m.Made()-made, w.m.Found()[6])
	}
}

// Nodes take a number that they have seen for a copy, or answer it with the findings of the earlier order. So a torus that changes
// during a term begins no second count.
func TestNoTwoMapOrdersOfTermHaveOneNumber(t *testing.T) {
	w := newMappedWorld(t, grid.Dims{X: 4, Y: 1, Z: 1})
	w.heard[grid.Coord{}] = true
	used := map[uint64]bool{}
	for _, dims := range []grid.Dims{w.torus.Dims, {X: 5, Y: 1, Z: 1}, {X: 5, Y: 2, Z: 1}} {
		torus, err := chanmask.NewTorus(dims)
		if err != nil {
			t.Fatal(err)
		}
		w.torus, w.nodes, w.orders = torus, occupantsOf(dims), nil
		w.run(time.Minute)
		if len(w.orders) == 0 {
			t.Errorf("%s: no orders", dims)
		}
		now := map[uint64]bool{}
		for _, o := range w.orders {
			if n := o.Number.GetCount(); used[n] {
				t.Errorf("%s: a second order has the number %d", dims, n)
			} else {
				now[n] = true
			}
		}
		maps.Copy(used, now)
	}
}

// A link counts as alive only if it is alive in two successive maps (§6.1): a link that was found dead counts as
// dead until two mappings have found it alive, or direct evidence is back.
func TestLinkCountsAliveAfterTwoMappings(t *testing.T) {
	dims := grid.Dims{X: 6, Y: 6, Z: 1}
	w := newMappedWorld(t, dims)
	w.heard[grid.Coord{}] = true
	bad := chanmask.Link{Node: grid.Coord{X: 3, Y: 3}, Dir: grid.XPlus}
	w.torus.Cut(bad)
	mapped := func(n uint64) {
		t.Helper()
		for range 3600 {
			if w.m.Made() >= n {
				return
			}
			w.run(time.Second)
		}
		t.Fatalf("%d mappings in an hour: want %d", w.m.Made(), n)
	}
	mapped(1)
	if got := w.m.Dead(); !slices.Equal(got, []chanmask.Link{bad}) {
		t.Fatalf("dead: %v", got)
	}
	whole, _ := chanmask.NewTorus(dims)
	w.torus = whole
	mapped(2)
	if got := w.m.Dead(); !slices.Equal(got, []chanmask.Link{bad}) {
		t.Errorf("alive in the second map alone, and dead are %v", got)
	}
	mapped(3)
	if got := w.m.Dead(); len(got) > 0 {
		t.Errorf("alive in both, and dead are %v", got)
	}
}

// A mapper gets no order while another of its orders is open, and answers from strangers or to other orders are
// ignored.
func TestAnswersToOtherMapOrdersAreIgnored(t *testing.T) {
	w := newMappedWorld(t, grid.Dims{X: 3, Y: 1, Z: 1})
	w.heard[grid.Coord{}] = true
	w.deaf[grid.Coord{}] = true
	w.run(8 * time.Second)
	if len(w.orders) == 0 {
		t.Fatal("no orders")
	}
	o := w.orders[0]
	for _, f := range w.survey(o) {
		w.m.Findings(w.now, grid.Coord{X: 1}, f)
		f.Number = &lofamov1.OrderNumber{Term: 6, Count: o.Number.GetCount()}
		w.m.Findings(w.now, grid.Coord{}, f)
		f.Number = &lofamov1.OrderNumber{Term: 7, Count: o.Number.GetCount() + 1}
		w.m.Findings(w.now, grid.Coord{}, f)
	}
	if !w.m.Mapping() || len(w.m.Found()) > 0 {
		t.Errorf("found %+v", w.m.Found())
	}
	f := w.survey(o)[0]
	f.Nodes = append(f.Nodes, &lofamov1.MappedNode{Rank: 0, Dnp: lofamov1.MapKnowledge_MAP_GOOD},
		&lofamov1.MappedNode{Rank: 1 << 30, Dnp: lofamov1.MapKnowledge_MAP_GOOD})
	w.m.Findings(w.now, grid.Coord{}, f)
	w.run(2 * time.Second)
	if got := w.m.Found(); len(got) != 2 || got[1].DNP != chanmask.Good {
		t.Errorf("found %+v", got)
	}
}
