package topology

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// allEnds has every end, except for the given nodes, which have those of the torus that they were made for.
type allEnds map[fault.NodeID]uint8

func (e allEnds) Ends(id fault.NodeID) (uint8, bool) {
	if strings.HasPrefix(string(id), "quiet") {
		return 0, false
	}
	if own, ok := e[id]; ok {
		return own, true
	}
	return 1<<grid.NumDirections - 1, true
}

// Follows is false for nodes whose names begin with "old".
func (e allEnds) Follows(id fault.NodeID) bool { return !strings.HasPrefix(string(id), "old") }

// Moves is false for nodes whose names begin with "still".
func (e allEnds) Moves(id fault.NodeID) bool { return !strings.HasPrefix(string(id), "still") }

func ring(t testing.TB, n int) *Topology {
	t.Helper()
	var nodes []Node
	for i := range n {
		nodes = append(nodes, Node{ID: fault.NodeID(fmt.Sprint("n", i)), Coord: grid.Coord{X: i}})
	}
	return New(grid.Dims{X: n, Y: 1, Z: 1}, nodes, nil, 1)
}

func joiner(id string) Node { return Node{ID: fault.NodeID(id), Spare: true} }

// checkWhole checks what every topology must have.
func checkWhole(t interface {
	Fatalf(string, ...any)
	Helper()
}, top *Topology) {
	t.Helper()
	if err := top.Dims.CheckConnected(); err != nil {
		t.Fatalf("%v", err)
	}
	if len(top.Placed()) != top.Dims.Nodes() {
		t.Fatalf("%s has %d nodes, want %d", top.Dims, len(top.Placed()), top.Dims.Nodes())
	}
	for at := range top.Dims.All() {
		if _, ok := top.Place(at); !ok {
			t.Fatalf("%s: no node at %s", top.Dims, at)
		}
	}
}

// Random joins and leaves change no place of another node and no link outside of the lines through the place. A joiner
// has two neighbours if any place allows it.
func TestJoinsAndLeavesKeepOtherPlaces(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		top := ring(t, rapid.IntRange(2, 5).Draw(rt, "nodes"))
		for i := range rapid.IntRange(1, 40).Draw(rt, "changes") {
			before := top
			if rapid.Bool().Draw(rt, "join") || top.Dims.Nodes() == MinNodes {
				id := fault.NodeID(fmt.Sprint("j", i))
				next, err := top.Join([]Node{joiner(string(id))}, allEnds{})
				if err != nil {
					rt.Fatalf("%s: join: %v", top.Dims, err)
				}
				top = next
				n, _ := top.Node(id)
				for at := range before.Dims.All() {
					if c := n.Coord; at.X != c.X && at.Y != c.Y || at.X != c.X && at.Z != c.Z || at.Y != c.Y && at.Z != c.Z {
						for _, d := range grid.Directions() {
							was, had := before.Dims.Neighbour(at, d)
							if is, has := top.Dims.Neighbour(at, d); was != is || had != has {
								rt.Fatalf("%s to %s: link %s of %s, off the lines of %s, leads to %s, not %s", before.Dims, top.Dims, d, at, c, is, was)
							}
						}
					}
				}
			} else {
				n := rapid.SampledFrom(top.Placed()).Draw(rt, "leaver")
				next, err := top.Leave([]fault.NodeID{n.ID}, rapid.Bool().Draw(rt, "gone"))
				if left, _ := top.Dims.Without(n.Coord); (err == nil) != (left.CheckConnected() == nil) {
					rt.Fatalf("%s: %s leaves: %v", top.Dims, n.ID, err)
				}
				if err != nil {
					continue
				}
				top = next
			}
			checkWhole(rt, top)
			for _, n := range before.Placed() {
				if now, ok := top.Node(n.ID); ok && !now.Spare && now.Coord != n.Coord {
					rt.Fatalf("%s moved from %s to %s", n.ID, n.Coord, now.Coord)
				}
			}
		}
	})
}

// A node that joined a moment ago has not reported its ends: the next one may join beside it soon.
func TestJoinBesideQuietNode(t *testing.T) {
	top, err := ring(t, 4).Join([]Node{{ID: "quiet", Coord: grid.Coord{X: 1, Y: 1}}}, allEnds{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = top.Join([]Node{{ID: "a", Coord: grid.Coord{X: 2, Y: 1}}}, allEnds{})
	if why := (*CannotJoinError)(nil); !errors.As(err, &why) || !why.Later || !strings.Contains(err.Error(), "node quiet") {
		t.Errorf("error %v, want one that names the quiet node and is for later", err)
	}
}

// A cluster that grows from two nodes stays close to a cube, and nearly all of its nodes have many witnesses.
func TestGrowthFromTwoNodes(t *testing.T) {
	top := ring(t, 2)
	want := map[int]string{3: "3x1x1", 4: "4x1x1", 5: "4x2x1", 9: "4x3x1", 13: "4x4x1", 17: "5x4x1", 82: "9x9x2"}
	for n := 3; n <= 200; n++ {
		next, err := top.Join([]Node{joiner(fmt.Sprint("j", n))}, allEnds{})
		if err != nil {
			t.Fatal(err)
		}
		top = next
		checkWhole(t, top)
		if box := want[n]; box != "" && top.Dims.Box().String() != box {
			t.Errorf("%d nodes: %s, want %s", n, top.Dims, box)
		}
	}
	few := 0
	for at := range top.Dims.All() {
		if len(top.Dims.Neighbours(at)) < 3 {
			few++
		}
	}
	if few > 8 {
		t.Errorf("%s: %d nodes have fewer than three neighbours", top.Dims, few)
	}
}

func TestJoinTakesPlaceWithMostNeighbours(t *testing.T) {
	dims, err := grid.ParseDims("4x3 without 1,1 3,0 3,1 3,2")
	if err != nil {
		t.Fatal(err)
	}
	var nodes []Node
	for at := range dims.All() {
		nodes = append(nodes, Node{ID: fault.DefaultNodeID(at), Coord: at})
	}
	top, err := New(dims, nodes, nil, 1).Join([]Node{joiner("a"), joiner("b"), {ID: "c", Coord: grid.Coord{X: 3, Y: 2}}}, allEnds{})
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[fault.NodeID]grid.Coord{"a": {X: 1, Y: 1}, "b": {X: 3}, "c": {X: 3, Y: 2}} {
		if n, _ := top.Node(id); n.Coord != want {
			t.Errorf("%s is at %s, want %s", id, n.Coord, want)
		}
	}
}

// alone is 2 if the neighbours of a place all lie in one domain that is not the node's own, 1 if all lie in its own, and
// otherwise 0.
func alone(top *Topology, at grid.Coord, key string) int {
	node, _ := top.Place(at)
	near := top.Dims.Neighbours(at)
	first, _ := top.Place(near[0])
	for _, c := range near {
		if n, _ := top.Place(c); n.Labels[key] == "" || n.Labels[key] != first.Labels[key] {
			return 0
		}
	}
	if first.Labels[key] == node.Labels[key] {
		return 1
	}
	return 2
}

// Random nodes join at random places of random tori, some of whose nodes lack ends of links. No other empty place that the
// ends allow would give the joiner witnesses in more domains, or harm fewer of the other nodes, or give the joiner
// more witnesses.
func TestJoinSeparatesDomains(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 4)
		dims := grid.Dims{X: size.Draw(t, "x") + 1, Y: size.Draw(t, "y"), Z: size.Draw(t, "z")}
		var empty []grid.Coord
		for at := range dims.All() {
			if rapid.IntRange(0, 3).Draw(t, "empty") == 0 {
				empty = append(empty, at)
			}
		}
		dims, err := dims.Without(empty...)
		if err != nil || dims.CheckConnected() != nil || dims.Nodes() < MinNodes || len(empty) == 0 {
			return
		}
		value := rapid.SampledFrom([]string{"", "a", "b", "c"})
		labels := func() map[string]string {
			return map[string]string{"rack": value.Draw(t, "rack"), "power": value.Draw(t, "power")}
		}
		var nodes []Node
		ends := allEnds{}
		for at := range dims.All() {
			n := Node{ID: fault.DefaultNodeID(at), Coord: at, Labels: labels()}
			if rapid.IntRange(0, 5).Draw(t, "few ends") == 0 {
				ends[n.ID] = rapid.Uint8().Draw(t, "ends")
			}
			nodes = append(nodes, n)
		}
		before := New(dims, nodes, []string{"rack", "power"}, 1)
		joiner := Node{ID: "joiner", Spare: true, Labels: labels()}
		rate := func(top *Topology, at grid.Coord) []int {
			var own, others [3]int
			exposed := 0
			for _, key := range top.DomainLabels {
				own[alone(top, at, key)]++
				for _, n := range before.Placed() {
					had, has := alone(before, n.Coord, key), alone(top, n.Coord, key)
					if has > had {
						others[has]++
					}
					exposed += has/2 - had/2
				}
			}
			return []int{own[2], own[1], others[2], others[1], own[2] + exposed, -len(top.Dims.Neighbours(at))}
		}
		after, err := before.Join([]Node{joiner}, ends)
		var is []int
		if err == nil {
			n, _ := after.Node("joiner")
			is = rate(after, n.Coord)
		}
		for _, at := range empty {
			joiner.Spare, joiner.Coord = false, at
			other, refused := before.Join([]Node{joiner}, ends)
			if refused != nil {
				continue
			}
			if err != nil {
				t.Fatalf("%s: join: %v, but %s is allowed", dims, err, at)
			}
			if would := rate(other, at); slices.Compare(would, is) < 0 {
				n, _ := after.Node("joiner")
				t.Fatalf("%s: the node joins at %s, rated %v, but %s is rated %v", dims, n.Coord, is, at, would)
			}
		}
	})
}

// A node whose configuration has no end for a new link gets none: the torus grows elsewhere, or the error names the
// missing end.
func TestJoinNeedsEndsOfLinks(t *testing.T) {
	alongX := uint8(1<<grid.XPlus.Index() | 1<<grid.XMinus.Index())
	old := allEnds{"n0": alongX, "n1": alongX, "n2": alongX, "n3": alongX}
	top, err := ring(t, 4).Join([]Node{joiner("a")}, old)
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := top.Node("a"); n.Coord != (grid.Coord{X: 4}) {
		t.Errorf("a is at %s: want it beside nodes that have ends", n.Coord)
	}
	_, err = ring(t, 4).Join([]Node{{ID: "a", Coord: grid.Coord{Y: 1}}}, old)
	if why := (*CannotJoinError)(nil); !errors.As(err, &why) || !strings.Contains(err.Error(), "node n0") ||
		!strings.Contains(err.Error(), "links.Y") {
		t.Errorf("error %v, want one that names n0 and its link", err)
	}
	old["a"] = 1 << grid.YPlus.Index()
	if _, err = ring(t, 4).Join([]Node{joiner("a")}, old); err == nil || !strings.Contains(err.Error(), "node a: place") {
		t.Errorf("error %v, want one that names the joiner's end", err)
	}
}

func TestJoinAndLeaveRefuse(t *testing.T) {
	top := ring(t, 3)
	top.Nodes[1].Service = []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:7000")}
	top = New(top.Dims, top.Nodes, nil, 1)
	joins := map[string]Node{
		"has the place":      {ID: "n1", Spare: true},
		"that of node n1":    {ID: "a", Spare: true, Service: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:7000")}},
		"has a node":         {ID: "a", Coord: grid.Coord{X: 2}},
		"want a torus in ":   {ID: "a", Coord: grid.Coord{X: 3, Y: 1, Z: 1}},
		"an earlier version": {ID: "old", Spare: true},
		"or one beside it":   {ID: "a", Coord: grid.Coord{X: 20_000}},
	}
	for want, n := range joins {
		if got, err := top.Join([]Node{n}, allEnds{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("join of %+v: %v, %v: want %q", n, got, err, want)
		}
	}
	with, err := top.Join([]Node{{ID: "far", Coord: grid.Coord{X: 1, Y: 1}}}, allEnds{})
	if err != nil {
		t.Fatal(err)
	}
	for want, ids := range map[string][]fault.NodeID{
		"not in the topology": {"x"}, "named twice": {"n0", "n0"}, "want at least 2": {"n0", "n1", "n2"}, "in one part": {"n1"},
	} {
		if got, err := with.Leave(ids, true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("leave of %v: %v, %v: want %q", ids, got, err, want)
		}
	}
	spare, err := with.Leave([]fault.NodeID{"far"}, false)
	if err != nil || len(spare.Spares()) != 1 || spare.Dims.Nodes() != 3 {
		t.Fatalf("%+v, %v", spare, err)
	}
	if _, err := spare.Leave([]fault.NodeID{"far"}, false); err == nil || !strings.Contains(err.Error(), "has no place") {
		t.Errorf("a spare leaves: %v", err)
	}
	if gone, err := spare.Leave([]fault.NodeID{"far"}, true); err != nil || len(gone.Spares()) != 0 {
		t.Errorf("a spare goes: %+v, %v", gone, err)
	}
	again, err := spare.Join([]Node{joiner("far")}, allEnds{})
	if err != nil || !slices.ContainsFunc(again.Placed(), func(n Node) bool { return n.ID == "far" }) {
		t.Errorf("it comes back: %+v, %v", again, err)
	}
}

// BenchmarkJoin lets one node join a torus of 10,000 nodes.
func BenchmarkJoin(b *testing.B) {
	fit, err := grid.Fit(9_999)
	if err != nil {
		b.Fatal(err)
	}
	half, err := grid.ParseDims("25x25x25 without 0,0,16..24,24,24")
	if err != nil {
		b.Fatal(err)
	}
	for name, tc := range map[string]struct {
		dims grid.Dims
		ends allEnds
	}{
		"full":    {grid.Dims{X: 20, Y: 20, Z: 25}, nil},
		"fit":     {fit, nil},
		"half":    {half, nil},
		"refused": {half, allEnds{"joiner": 1 << grid.XPlus.Index()}},
	} {
		var nodes []Node
		for at := range tc.dims.All() {
			n := Node{ID: fault.DefaultNodeID(at), Coord: at}
			i := len(nodes)
			n.Labels = map[string]string{"rack": fmt.Sprint(i / 40), "power": fmt.Sprint(i / 320 % 2), "switch": fmt.Sprint(i / 20)}
			nodes = append(nodes, n)
		}
		top := New(tc.dims, nodes, fault.DomainLabels(), 1)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := top.Join([]Node{joiner("joiner")}, tc.ends); (err == nil) != (tc.ends == nil) {
					b.Fatal(err)
				}
			}
		})
	}
}

// A node that enrols again keeps its place.
func TestAdmitKeepsPlace(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddrPort("10.0.0.1:7100")
	have := New(grid.Dims{X: 2, Y: 1, Z: 1}, []Node{
		{ID: "a", Coord: grid.Coord{X: 0}, Service: []netip.AddrPort{addr}},
		{ID: "b", Coord: grid.Coord{X: 1}},
	}, nil, 7)
	to, err := have.Admit(Node{ID: "a", Service: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.9:7100")},
		Labels: map[string]string{"rack": "r1"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := to.Node("a")
	if a.Spare || a.Joining || a.Coord != (grid.Coord{}) || a.Labels["rack"] != "r1" ||
		a.Service[0].String() != "10.0.0.9:7100" {
		t.Errorf("a is %+v", a)
	}
	many := make(map[string]string)
	for i := range fault.MaxLabels + 1 {
		many[fmt.Sprintf("l%d", i)] = ""
	}
	if _, err := have.Admit(Node{ID: "a", Labels: many}, nil); err == nil || !strings.Contains(err.Error(), "labels") {
		t.Errorf("with too many labels in all: %v", err)
	}
	_, err = have.Admit(Node{ID: "c", Service: []netip.AddrPort{addr}}, nil)
	if err == nil || !strings.Contains(err.Error(), "is that of node a") {
		t.Errorf("with the address of another: %v", err)
	}
	if to, err = have.Admit(Node{ID: "c"}, nil); err != nil {
		t.Fatal(err)
	}
	if c, ok := to.Node("c"); !ok || !c.Spare || !c.Joining {
		t.Errorf("c is %+v, %v: want a spare that joins", c, ok)
	}
}

// TestExpectedNodesKeepTopologyValid: a node cannot be expected at the address of another one. Supervisors cannot read a stored topology
// that is not valid.
func TestExpectedNodesKeepTopologyValid(t *testing.T) {
	t.Parallel()
	at := func(id, service string) Node {
		return Node{ID: fault.NodeID(id), Spare: true, Service: []netip.AddrPort{netip.MustParseAddrPort(service)}}
	}
	top := New(grid.Dims{X: 2, Y: 1, Z: 1}, []Node{
		{ID: "n0", Service: at("", "10.0.0.1:7100").Service}, {ID: "n1", Coord: grid.Coord{X: 1}, Service: at("", "10.0.0.2:7100").Service},
	}, fault.DomainLabels(), 1)
	for _, tc := range []struct {
		nodes []Node
		want  string
	}{
		{[]Node{at("a", "10.0.0.3:7100"), at("n1", "10.0.0.2:7100"), at("b", "10.0.0.4:7100")}, ""},
		{[]Node{at("a", "10.0.0.3:7100"), at("b", "10.0.0.3:7100")}, "node b: service address 10.0.0.3:7100: is that of node a"},
		{[]Node{at("a", "10.0.0.3:7100"), at("b", "10.0.0.1:7100")}, "node b: service address 10.0.0.1:7100: is that of node n0"},
		{[]Node{at("a", "10.0.0.3:7100"), at("a", "10.0.0.4:7100")}, "node a: named twice"},
	} {
		to, err := top.Expect(tc.nodes)
		if text := fmt.Sprint(err); (err == nil) != (tc.want == "") || err != nil && text != tc.want {
			t.Errorf("%v: %v: want %q", tc.nodes, err, tc.want)
		}
		if err != nil {
			continue
		}
		if _, err := FromProto(to.Proto()); err != nil {
			t.Errorf("%v: the topology is not valid: %v", tc.nodes, err)
		}
	}
}

// An address belongs to whoever has proved it: silent nodes lose it, and keep their names and places.
func TestSilentNodeLosesAddressThatAnotherProved(t *testing.T) {
	t.Parallel()
	a, b := netip.MustParseAddrPort("10.0.0.1:7100"), netip.MustParseAddrPort("10.0.0.2:7100")
	have := New(grid.Dims{X: 2, Y: 1, Z: 1}, []Node{
		{ID: "a", Coord: grid.Coord{X: 0}, Service: []netip.AddrPort{a, netip.MustParseAddrPort("10.1.0.1:7100")}},
		{ID: "b", Coord: grid.Coord{X: 1}, Service: []netip.AddrPort{b}},
	}, nil, 7)
	if got := have.Holders("b", []netip.AddrPort{netip.MustParseAddrPort("[::ffff:10.0.0.1]:7100")}); !slices.Equal(got, []fault.NodeID{"b",
		"a"}) {
		t.Errorf("the holders are %v: want b and a", got)
	}
	if _, err := have.Admit(Node{ID: "c", Service: []netip.AddrPort{a}}, []fault.NodeID{"b"}); err == nil {
		t.Error("c gets the address of a, which was not silent")
	}
	to, err := have.Admit(Node{ID: "c", Service: []netip.AddrPort{a}}, []fault.NodeID{"a"})
	if err != nil {
		t.Fatal(err)
	}
	lost, _ := to.Node("a")
	owner, _ := to.Owner(a)
	if owner != "c" || lost.Spare || len(lost.Service) != 1 || lost.Service[0].String() != "10.1.0.1:7100" {
		t.Errorf("%s has the address, and a is %+v: want c, and a in its place with its other address", owner, lost)
	}
	if c, _ := to.Node("c"); !c.Proved {
		t.Errorf("c is %+v: want proved addresses", c)
	}
	if was, _ := have.Node("a"); len(was.Service) != 2 {
		t.Errorf("the former topology has changed: %+v", was)
	}
}

// TestClusterIsOrdinaryWhileAllNodesEnrolled: one node of an inventory makes it a torus of cables. Spares have no links.
func TestClusterIsOrdinaryWhileAllNodesEnrolled(t *testing.T) {
	t.Parallel()
	enrolled := func(id fault.NodeID, x int) Node { return Node{ID: id, Coord: grid.Coord{X: x}, Proved: true} }
	for name, tc := range map[string]struct {
		nodes []Node
		want  bool
	}{
		"none":                {nil, true},
		"all enrolled":        {[]Node{enrolled("a", 0), enrolled("b", 1), {ID: "c", Spare: true}}, true},
		"one of an inventory": {[]Node{enrolled("a", 0), {ID: "b", Coord: grid.Coord{X: 1}}}, false},
		"all of an inventory, a spare enrolled": {
			[]Node{{ID: "a"}, {ID: "b", Coord: grid.Coord{X: 1}}, {ID: "c", Spare: true, Proved: true}}, false},
	} {
		if got := New(grid.Dims{X: 2, Y: 1, Z: 1}, tc.nodes, nil, 1).Ordinary(); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
