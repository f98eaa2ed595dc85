package topology

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/fixedseed"
	"github.com/lofamo/lofamo/internal/testing/golden"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func TestMain(m *testing.M) { os.Exit(fixedseed.Main(m)) }

// scenario is a topology that is being written.
type scenario struct {
	next *lofamov1.Topology
	have *Topology
}

// do carries out one line. "dims D", "domains KEY…" and "node ID [COORD] [KEY=VALUE…] [IP:PORT…]" change the next
// topology; a node is added or replaced. "drop ID" removes a node, and "apply" prints the errors or the changes.
func (s *scenario) do(args []string) ([]string, error) {
	drop := func(id string) {
		for i, n := range s.next.Nodes {
			if n.GetId() == id {
				s.next.Nodes = append(s.next.Nodes[:i], s.next.Nodes[i+1:]...)
				return
			}
		}
	}
	switch args[0] {
	case "dims":
		s.next.Dims = args[1]
	case "domains":
		s.next.DomainLabels = args[1:]
	case "drop":
		drop(strings.Trim(args[1], `"`))
	case "node", "again": // again: without replacing
		n := &lofamov1.TopologyNode{Id: strings.Trim(args[1], `"`), Labels: map[string]string{}}
		if args[0] == "node" {
			drop(n.GetId())
		}
		for _, a := range args[2:] {
			key, value, label := strings.Cut(a, "=")
			switch {
			case label:
				n.Labels[key] = value
			case strings.Contains(a, ":"):
				n.Service = append(n.Service, a)
			default:
				n.Coord = a
			}
		}
		s.next.Nodes = append(s.next.Nodes, n)
	case "apply":
		to, err := FromProto(s.next)
		if err != nil {
			return strings.Split(err.Error(), "\n"), nil
		}
		var out []string
		for _, c := range Diff(s.have, to) {
			out = append(out, c.String())
		}
		if len(Moved(s.have, to)) > 0 {
			out = append(out, fmt.Sprintf("forgotten: %v", Moved(s.have, to)))
		}
		s.have = to
		if len(out) == 0 {
			out = []string{"nothing changes"}
		}
		return out, nil
	default:
		return nil, fmt.Errorf("unknown command %q", args[0])
	}
	return nil, nil
}

func TestScenarios(t *testing.T) {
	golden.Files(t, "testdata/*.txt", func(t *testing.T, text string) string {
		s := &scenario{next: &lofamov1.Topology{}, have: New(grid.Dims{X: 1, Y: 1, Z: 1}, nil, fault.DomainLabels(), 0)}
		return golden.Lines(t, text, "> ", s.do)
	})
}

func TestTopologyOfConfiguration(t *testing.T) {
	c, err := config.LoadSupervisor("../../config/testdata/supervisor.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	top, err := FromConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	if len(top.Placed()) != 2 || len(top.Spares()) != 1 || top.Spares()[0].ID != "worker-x" || len(top.DomainLabels) != 2 {
		t.Errorf("%+v", top)
	}
	n, ok := top.Node("worker-b")
	if !ok || n.Coord != (grid.Coord{X: 1}) || n.Labels["rack"] != "r1" || len(n.Service) != 2 {
		t.Errorf("%+v, %t", n, ok)
	}
	if _, ok := top.Node("nobody"); ok {
		t.Error("found nobody")
	}
	if ids := top.IDs(); len(ids) != 2 || ids[grid.Coord{}] != "n0-0-0" {
		t.Errorf("%v", ids)
	}
	if l := top.Labels(); len(l) != 1 || l["worker-b"]["rack"] != "r1" {
		t.Errorf("%v", l)
	}
}

// An error on every line does not make an endless message.
func TestManyErrorsMakeShortMessage(t *testing.T) {
	p := &lofamov1.Topology{Dims: "100x10x10"}
	for range 5000 {
		p.Nodes = append(p.Nodes, &lofamov1.TopologyNode{Id: "-", Coord: "1,2"})
	}
	_, err := FromProto(p)
	if err == nil || len(err.Error()) > 20_000 || !strings.Contains(err.Error(), "more") {
		t.Errorf("%v", err)
	}
}

// TestTopologyRoundTrip: a rendered topology reads back equal, in any order of its nodes, and two topologies are equal
// exactly when the difference is empty.
func TestTopologyRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw(t), draw(t)
		p := a.Proto()
		again, err := FromProto(p)
		if err != nil {
			t.Fatal(err)
		}
		if len(Diff(a, again)) != 0 || !proto.Equal(p, again.Proto()) || !a.SamePlaces(again) || !a.At(7).Equal(again) {
			t.Fatalf("%v comes back as %v", p, again.Proto())
		}
		if same := proto.Equal(p, b.Proto()); same != (len(Diff(a, b)) == 0) || same != a.Equal(b) {
			t.Fatalf("%v and %v: %v, equal %t", p, b.Proto(), Diff(a, b), a.Equal(b))
		}
		for _, n := range a.Nodes {
			if o, ok := again.Node(n.ID); !ok || !n.Equal(o) {
				t.Fatalf("%+v comes back as %+v", n, o)
			}
			if o, ok := b.Node(n.ID); ok && n.Equal(o) != proto.Equal(n.Proto(), o.Proto()) {
				t.Fatalf("%+v and %+v: equal %t", n, o, n.Equal(o))
			}
		}
		if a.SamePlaces(b) && len(Moved(a, b))+len(Moved(b, a)) > 0 || !a.SamePlaces(b) && a.Dims == b.Dims && len(Moved(a, b)) == 0 {
			t.Fatalf("%v and %v: %v moved", p, b.Proto(), Moved(a, b))
		}
	})
}

// draw draws a small topology, its nodes in any order.
func draw(t *rapid.T) *Topology {
	p := &lofamov1.Topology{DomainLabels: []string{"rack"}}
	dims := grid.Dims{X: rapid.IntRange(1, 2).Draw(t, "X"), Y: 1, Z: rapid.IntRange(1, 2).Draw(t, "Z")}
	p.Dims = dims.String()
	ids := rapid.Permutation([]string{"a", "b", "c", "d", "e"}).Draw(t, "ids")
	for r := range dims.Nodes() {
		p.Nodes = append(p.Nodes, &lofamov1.TopologyNode{Id: ids[r], Coord: dims.At(r).String()})
	}
	if rapid.Bool().Draw(t, "spare") {
		p.Nodes = append(p.Nodes, &lofamov1.TopologyNode{Id: ids[4]})
	}
	for _, n := range p.Nodes {
		n.Labels = rapid.MapOfN(rapid.SampledFrom([]string{"rack", "gpu"}), rapid.SampledFrom([]string{"", "x"}), 0, 2).Draw(t, "labels")
	}
	p.Nodes = rapid.Permutation(p.Nodes).Draw(t, "order")
	out, err := FromProto(p)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestPlacesOfRegion: a region may put other nodes at its places, but has no other places.
func TestPlacesOfRegion(t *testing.T) {
	region := func(dims string, nodes ...string) *Topology {
		p := &lofamov1.Topology{Dims: dims, Region: "west"}
		for _, n := range nodes {
			id, coord, _ := strings.Cut(n, "@")
			p.Nodes = append(p.Nodes, &lofamov1.TopologyNode{Id: id, Coord: coord})
		}
		top, err := FromProto(p)
		if err != nil {
			t.Fatal(err)
		}
		return top
	}
	have := region("4x1x1", "a@0,0,0", "b@1,0,0", "s")
	for _, tc := range []struct {
		to   *Topology
		want []string // none: accepted
	}{
		{region("4x1x1", "a@0,0,0", "s@1,0,0", "b"), nil},
		{region("4x1x1", "b@0,0,0", "a@1,0,0"), nil},
		{region("4x1x1", "a@0,0,0", "b"), []string{"nodes: given none at 1,0,0: want one at each place of region west"}},
		{region("4x1x1", "a@0,0,0", "b@1,0,0", "s@2,0,0"), []string{"nodes: given s at 2,0,0: want no place of another region than west"}},
		{region("4x1x1", "a@0,0,0", "b@3,0,0"), []string{"given b at 3,0,0", "given none at 1,0,0"}},
		{region("5x1x1", "a@0,0,0", "b@1,0,0"), []string{"dims: given 5x1x1: want 4x1x1"}},
	} {
		err := CheckPlaces(have, tc.to)
		if (err == nil) != (tc.want == nil) {
			t.Errorf("%v: %v", tc.to.Proto(), err)
		}
		for _, w := range tc.want {
			if err != nil && !strings.Contains(err.Error(), w) {
				t.Errorf("%v: %v: want %s", tc.to.Proto(), err, w)
			}
		}
	}
	if err := CheckPlaces(New(have.Dims, have.Nodes, nil, 1), region("5x1x1", "a@0,0,0")); err != nil {
		t.Errorf("without regions: %v", err)
	}
}

// TestChangesOfOrdinaryClusterNameNoPlaces: people whose nodes have enrolled have no torus. A change to or from a torus names its places.
func TestChangesOfOrdinaryClusterNameNoPlaces(t *testing.T) {
	node := func(id fault.NodeID, x int, proved bool) Node {
		return Node{ID: id, Coord: grid.Coord{X: x}, Proved: proved}
	}
	of := func(x int, nodes ...Node) *Topology { return New(grid.Dims{X: x, Y: 1, Z: 1}, nodes, nil, 1) }
	spare := Node{ID: "c", Spare: true, Proved: true}
	for _, tc := range []struct {
		from, to *Topology
		want     string
	}{
		{of(2, node("a", 0, true), node("b", 1, true)), of(2, node("a", 0, true), node("b", 1, true), spare), "node c: enrolled"},
		{of(2, node("a", 0, true), node("b", 1, true), spare), of(3, node("a", 0, true), node("b", 1, true), node("c", 2, true)),
			"the nodes' neighbours change; node c: takes part"},
		{of(3, node("a", 0, true), node("b", 1, true), node("c", 2, true)), of(2, node("a", 1, true), node("b", 0, true), spare),
			"the nodes' neighbours change; node b: has other neighbours; node a: has other neighbours; node c: takes no part any more"},
		{of(2, node("a", 0, true), node("b", 1, true)), of(1, node("a", 0, true)), "the nodes' neighbours change; node b: removed"},
		{of(2, node("a", 0, true), node("b", 1, true)), of(1, node("a", 0, false)),
			"dims: 2x1x1 becomes 1x1x1; node a: service addresses proved: false; node b: removed (1,0,0)"},
	} {
		var got []string
		for _, c := range Diff(tc.from, tc.to) {
			got = append(got, c.String())
		}
		if s := strings.Join(got, "; "); s != tc.want {
			t.Errorf("%q, want %q", s, tc.want)
		}
	}
}
