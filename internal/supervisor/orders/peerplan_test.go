package orders

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

var peerDims = grid.Dims{X: 3, Y: 1, Z: 1}

// end is where a node's end of a link is in these tests.
func end(host int, d grid.Direction) string { return fmt.Sprintf("10.0.0.%d:%d", host, 7000+int(d)) }

func ends(host int) (out []*lofamov1.Peer) {
	for _, d := range peerDims.Links() {
		out = append(out, &lofamov1.Peer{Direction: uint32(d), Address: end(host, d)})
	}
	return out
}

// peerWorld is a ring of three, n0 to n2, and a spare x: 10.0.0.9.
func peerWorld() (nodes []topology.Node, records peerRecords) {
	records = peerRecords{"x": {Node: "x", Spare: true, Ends: ends(9)}}
	for i := range peerDims.X {
		at := grid.Coord{X: i}
		nodes = append(nodes, topology.Node{ID: fault.NodeID(fmt.Sprint("n", i)), Coord: at})
		r := &lofamov1.PeerStatus{Node: fmt.Sprint("n", i), Coord: at.String(), Ends: ends(i)}
		for _, d := range peerDims.Links() {
			c, _ := peerDims.Neighbour(at, d)
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

func plan(nodes []topology.Node, records peerRecords) peerPlan {
	return planPeers(topology.New(peerDims, slices.Clone(nodes), nil, 1), peerDims, records)
}

func word(coord string, minus, plus peerEnd) peerWord {
	w := peerWord{Coord: coord}
	w.Peers[grid.XMinus.Index()], w.Peers[grid.XPlus.Index()] = minus, plus
	return w
}

func (p peerPlan) check(t *testing.T, what string, want map[fault.NodeID]peerWord, lacking ...fault.NodeID) {
	t.Helper()
	if !maps.Equal(p.Words, want) || !slices.Equal(p.Lacking, lacking) {
		t.Errorf("%s: %+v, lacking %v: want %+v, lacking %v", what, p.Words, p.Lacking, want, lacking)
	}
}

func TestPeerPlanCoversReplacedNode(t *testing.T) {
	x := func(d grid.Direction) peerEnd { return peerEnd{"x", end(9, d)} }
	n := func(i int, d grid.Direction) peerEnd { return peerEnd{fault.NodeID(fmt.Sprint("n", i)), end(i, d)} }
	all := map[fault.NodeID]peerWord{
		"n0": word("", peerEnd{}, x(grid.XMinus)), "n2": word("", x(grid.XPlus), peerEnd{}), "x": word("1,0,0", n(0,
			grid.XPlus), n(2, grid.XMinus)),
	}

	nodes, records := peerWorld()
	plan(nodes, records).check(t, "all as configured", nil)
	plan(replaced(nodes), records).check(t, "all neighbours and the spare get orders", all)

	records["n0"].Peers = []*lofamov1.Peer{{Direction: uint32(grid.XPlus), Node: "x", Address: end(9, grid.XMinus)}}
	back, _ := peerWorld()
	plan(back, records).check(t, "the broken node is back: the configuration stands again", nil)

	// For a dead neighbour that has reported no ends, the replaced node's configuration supplies them.
	delete(records, "n2")
	plan(nodes, records).check(t, "n2 never spoke", map[fault.NodeID]peerWord{"n0": all["n0"], "x": all["x"]})
	delete(records, "n1")
	plan(nodes, records).check(t, "n1 gets none, and the spare no incomplete order", map[fault.NodeID]peerWord{"n0": all["n0"]}, "x")
	records["x"].Coord, records["x"].Peers = "1,0,0", all["x"].Order("x", 1, 3).GetPeers()
	plan(nodes, records).check(t, "and keeps its order", map[fault.NodeID]peerWord{"n0": all["n0"], "x": all["x"]})

	// After the loss of a store, correct peers stay untouched until the spare has reported.
	delete(records, "x")
	plan(nodes, records).check(t, "the spare has not spoken", map[fault.NodeID]peerWord{"n0": all["n0"]})
	records["n0"].Peers = nil
	plan(nodes, records).check(t, "no node gets an order", nil)
}

// A node that its owner moves by topology and configuration is no spare: it gets no word until its configuration
// matches the topology.
func TestConfiguredByHand(t *testing.T) {
	nodes, records := peerWorld()
	nodes, _ = replaced(nodes), records
	records["x"] = &lofamov1.PeerStatus{Node: "x", Coord: "2,0,0", Ends: ends(9)}
	plan(nodes, records).check(t, "still configured for another place", nil)
	records["x"].Coord = "1,0,0"
	records["x"].Configured = records["n1"].GetConfigured()
	got := plan(nodes, records)
	if len(got.Words) != 2 || got.Words["n0"].Peers[grid.XPlus.Index()] != (peerEnd{"x", end(9, grid.XMinus)}) {
		t.Errorf("its neighbours: %+v", got)
	}
	records["n0"].Configured[0].Node, records["n0"].Configured[0].Address = "x", end(9, grid.XMinus)
	if got := plan(nodes, records); len(got.Words) != 1 {
		t.Errorf("n0 was configured by hand too: %+v", got)
	}
}

// Two spellings of an address are equal, records omit transient fields, and an order contains its word.
func TestPeerRecordsOmitTransientFields(t *testing.T) {
	st := &lofamov1.PeerStatus{
		Node: "x", Spare: true, Coord: "1,0,0", Epoch: 4, Life: 5, Number: 9, Lost: true,
		Peers: []*lofamov1.Peer{{Direction: 1, Node: "n2", Address: "[0:0::1]:7"}, {Direction: 9, Node: "n3"}},
	}
	if k := keepPeers(nil, st); k.GetEpoch() != 4 || k.GetLife() != 0 || k.GetNumber() != 0 || k.GetLost() || k.GetCoord() != "1,0,0" ||
		st.GetNumber() != 9 {
		t.Errorf("%v of %v", k, st)
	}
	// A status of the configuration leaves the held peers unchanged, and a status of the held peers leaves the
	// configuration unchanged.
	ends := &lofamov1.PeerStatus{Node: "x", Spare: true, Coord: "1,0,0", Configuration: true, Ends: ends(9)}
	k := keepPeers(keepPeers(nil, st), ends)
	if again := keepPeers(k, st); len(k.GetPeers()) != 2 || len(k.GetEnds()) != 2 || k.GetConfiguration() || !proto.Equal(again, k) {
		t.Errorf("%v, and then %v", k, again)
	}
	w := heldPeers(st)
	if w.Peers[0] != (peerEnd{"n2", "[::1]:7"}) || w.Coord != "1,0,0" {
		t.Errorf("%+v", w)
	}
	o := w.Order("x", 12, 0)
	if heldPeers(&lofamov1.PeerStatus{Spare: true, Coord: o.GetCoord(), Peers: o.GetPeers()}) != w || o.GetNumber() != 12 {
		t.Errorf("%v of %+v", o, w)
	}
}

// torusOf is a record's or a status's name of a torus.
func torusOf(records peerRecords, name string, ids ...fault.NodeID) {
	for _, id := range ids {
		records[id].Torus = name
	}
}

// A spare that joins a ring of three gets its place, both its neighbours, and the torus. Its neighbours get it as their
// peer at once, and the third node, whose links stay, gets the torus later.
func TestPeerPlanOfJoin(t *testing.T) {
	nodes, records := peerWorld()
	torusOf(records, peerDims.Short(), "n0", "n1", "n2")
	torusOf(records, noTorus, "x")
	top, err := topology.New(peerDims, nodes, nil, 1).Join([]topology.Node{{ID: "x", Spare: true}}, endsOf{})
	if err != nil {
		t.Fatal(err)
	}
	n := func(i int, d grid.Direction) peerEnd { return peerEnd{fault.NodeID(fmt.Sprint("n", i)), end(i, d)} }
	x := func(d grid.Direction) peerEnd { return peerEnd{"x", end(9, d)} }
	in := func(w peerWord) peerWord { w.Torus = top.Dims; return w }
	joined := map[fault.NodeID]peerWord{
		"x":  in(word("3,0,0", n(2, grid.XPlus), n(0, grid.XMinus))),
		"n0": in(word("", x(grid.XPlus), peerEnd{})), "n2": in(word("", peerEnd{}, x(grid.XMinus))),
	}
	planPeers(top, peerDims, records).check(t, "the lines through the place change", joined)
	joined["n1"] = in(peerWord{})
	planPeers(top, top.Dims, records).check(t, "all get the torus", joined)

	st := &lofamov1.PeerStatus{Node: "n0", Peers: joined["n0"].Order("n0", 1, 1).GetPeers(), Torus: top.Dims.Short()}
	if !joined["n0"].heldBy(st) {
		t.Errorf("%v does not hold %+v", st, joined["n0"])
	}
	if st.Torus = peerDims.Short(); joined["n0"].heldBy(st) {
		t.Errorf("%v, of another torus, holds %+v", st, joined["n0"])
	}

	// It leaves again: everything is as configured.
	left, err := top.Leave([]fault.NodeID{"x"}, false)
	if err != nil {
		t.Fatal(err)
	}
	for id := range joined {
		records[id].Peers = joined[id].Order(id, 1, 1).GetPeers()
	}
	back := map[fault.NodeID]peerWord{}
	for _, id := range []fault.NodeID{"n0", "n1", "n2"} {
		back[id] = peerWord{Torus: left.Dims}
	}
	planPeers(left, left.Dims, records).check(t, "it has left: one place of the larger torus is empty", back)

	// Agents of an earlier version get no torus.
	torusOf(records, "", "n0", "n1", "n2")
	planPeers(left, left.Dims, records).check(t, "earlier versions", nil)
}

// endsOf has every end.
type endsOf struct{}

func (endsOf) Ends(fault.NodeID) (uint8, bool) { return 1<<grid.NumDirections - 1, true }
func (endsOf) Follows(fault.NodeID) bool       { return true }
func (endsOf) Moves(fault.NodeID) bool         { return true }
