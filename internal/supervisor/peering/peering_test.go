package peering

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

var dims = grid.Dims{X: 3, Y: 1, Z: 1}

// end is where a node's end of a link is in these tests.
func end(host int, d grid.Direction) string { return fmt.Sprintf("10.0.0.%d:%d", host, 7000+int(d)) }

func ends(host int) (out []*lofamov1.Peer) {
	for _, d := range dims.Links() {
		out = append(out, &lofamov1.Peer{Direction: uint32(d), Address: end(host, d)})
	}
	return out
}

// world is a ring of three, n0 to n2, and a spare x: 10.0.0.9.
func world() (nodes []topology.Node, records Records) {
	records = Records{"x": {Node: "x", Spare: true, Ends: ends(9)}}
	for i := range dims.X {
		at := grid.Coord{X: i}
		nodes = append(nodes, topology.Node{ID: fault.NodeID(fmt.Sprint("n", i)), Coord: at})
		r := &lofamov1.PeerStatus{Node: fmt.Sprint("n", i), Coord: at.String(), Ends: ends(i)}
		for _, d := range dims.Links() {
			c, _ := dims.Neighbour(at, d)
			r.Configured = append(r.Configured, &lofamov1.Peer{Direction: uint32(d), Node: fmt.Sprint("n", c.X), Address: end(c.X, d.Opposite())})
		}
		records[fault.NodeID(r.Node)] = r
	}
	return append(nodes, topology.Node{ID: "x", Spare: true}), records
}

// replaced has x in the place of n1.
func replaced(nodes []topology.Node) []topology.Node {
	nodes[1].Spare, nodes[3].Spare, nodes[3].Coord = true, false, grid.Coord{X: 1}
	return nodes
}

func plan(nodes []topology.Node, records Records) Plan {
	return Of(topology.New(dims, slices.Clone(nodes), nil, 1), records)
}

func word(coord string, minus, plus Peer) Word {
	w := Word{Coord: coord}
	w.Peers[grid.XMinus.Index()], w.Peers[grid.XPlus.Index()] = minus, plus
	return w
}

func (p Plan) check(t *testing.T, what string, want map[fault.NodeID]Word, lacking ...fault.NodeID) {
	t.Helper()
	if !maps.Equal(p.Words, want) || !slices.Equal(p.Lacking, lacking) {
		t.Errorf("%s: %+v, lacking %v: want %+v, lacking %v", what, p.Words, p.Lacking, want, lacking)
	}
}

func TestPlan(t *testing.T) {
	x := func(d grid.Direction) Peer { return Peer{"x", end(9, d)} }
	n := func(i int, d grid.Direction) Peer { return Peer{fault.NodeID(fmt.Sprint("n", i)), end(i, d)} }
	all := map[fault.NodeID]Word{
		"n0": word("", Peer{}, x(grid.XMinus)), "n2": word("", x(grid.XPlus), Peer{}), "x": word("1,0,0", n(0, grid.XPlus), n(2, grid.XMinus)),
	}

	nodes, records := world()
	plan(nodes, records).check(t, "all as configured", nil)
	plan(replaced(nodes), records).check(t, "all neighbours are told, and the spare its place", all)

	records["n0"].Peers = []*lofamov1.Peer{{Direction: uint32(grid.XPlus), Node: "x", Address: end(9, grid.XMinus)}}
	back, _ := world()
	plan(back, records).check(t, "the broken node is back: the configuration stands again", nil)

	// For a dead neighbour that has reported no ends, the replaced node's configuration supplies them.
	delete(records, "n2")
	plan(nodes, records).check(t, "n2 never spoke", map[fault.NodeID]Word{"n0": all["n0"], "x": all["x"]})
	delete(records, "n1")
	plan(nodes, records).check(t, "n1 neither: the spare is told nothing by halves", map[fault.NodeID]Word{"n0": all["n0"]}, "x")
	records["x"].Coord, records["x"].Peers = "1,0,0", all["x"].Order("x", 1, 3).GetPeers()
	plan(nodes, records).check(t, "and keeps what it holds", map[fault.NodeID]Word{"n0": all["n0"], "x": all["x"]})

	// After the loss of a store, correct peers stay untouched until the spare has reported.
	delete(records, "x")
	plan(nodes, records).check(t, "the spare has not spoken", map[fault.NodeID]Word{"n0": all["n0"]})
	records["n0"].Peers = nil
	plan(nodes, records).check(t, "nor has anybody been told of it", nil)
}

// A node that its owner moves by topology and configuration is no spare: it gets no word until its configuration
// matches the topology.
func TestConfiguredByHand(t *testing.T) {
	nodes, records := world()
	nodes, _ = replaced(nodes), records
	records["x"] = &lofamov1.PeerStatus{Node: "x", Coord: "2,0,0", Ends: ends(9)}
	plan(nodes, records).check(t, "still configured for another place", nil)
	records["x"].Coord = "1,0,0"
	records["x"].Configured = records["n1"].GetConfigured()
	got := plan(nodes, records)
	if len(got.Words) != 2 || got.Words["n0"].Peers[grid.XPlus.Index()] != (Peer{"x", end(9, grid.XMinus)}) {
		t.Errorf("its neighbours: %+v", got)
	}
	records["n0"].Configured[0].Node, records["n0"].Configured[0].Address = "x", end(9, grid.XMinus)
	if got := plan(nodes, records); len(got.Words) != 1 {
		t.Errorf("n0 was configured by hand too: %+v", got)
	}
}

// Two spellings of an address are equal, records omit transient fields, and an order contains its word.
func TestKeepAndHeld(t *testing.T) {
	st := &lofamov1.PeerStatus{
		Node: "x", Spare: true, Coord: "1,0,0", Epoch: 4, Life: 5, Number: 9, Lost: true,
		Peers: []*lofamov1.Peer{{Direction: 1, Node: "n2", Address: "[0:0::1]:7"}, {Direction: 9, Node: "n3"}},
	}
	if k := Keep(nil, st); k.GetEpoch() != 0 || k.GetLife() != 0 || k.GetNumber() != 0 || k.GetLost() || k.GetCoord() != "1,0,0" ||
		st.GetNumber() != 9 {
		t.Errorf("%v of %v", k, st)
	}
	// A status of the configuration leaves the held peers unchanged, and a status of the held peers leaves the
	// configuration unchanged.
	ends := &lofamov1.PeerStatus{Node: "x", Spare: true, Coord: "1,0,0", Configuration: true, Ends: ends(9)}
	k := Keep(Keep(nil, st), ends)
	if again := Keep(k, st); len(k.GetPeers()) != 2 || len(k.GetEnds()) != 2 || k.GetConfiguration() || !proto.Equal(again, k) {
		t.Errorf("%v, and then %v", k, again)
	}
	w := Held(st)
	if w.Peers[0] != (Peer{"n2", "[::1]:7"}) || w.Coord != "1,0,0" {
		t.Errorf("%+v", w)
	}
	o := w.Order("x", 12, 0)
	if Held(&lofamov1.PeerStatus{Spare: true, Coord: o.GetCoord(), Peers: o.GetPeers()}) != w || o.GetNumber() != 12 {
		t.Errorf("%v of %+v", o, w)
	}
}
