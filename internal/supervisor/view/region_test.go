package view

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestRegionalMapHasOwnNodesOnly: a region's nodes have a part of the places, and a node keeps its own.
func TestRegionalMapHasOwnNodesOnly(t *testing.T) {
	dims := grid.Dims{X: 4, Y: 2, Z: 1}
	var own, border []topology.Node
	for r := range dims.Nodes() {
		at := dims.At(r)
		n := topology.Node{ID: fault.DefaultNodeID(at), Coord: at}
		switch at.X {
		case 1, 2:
			own = append(own, n)
		case 3:
			border = append(border, n)
		}
	}
	names := NamesOf(topology.New(dims, own, nil, 0)).WithBorder(border)
	b := NewBuilder(names, time.Unix(5, 0))
	st := unheard("n2-1-0", grid.Coord{X: 2, Y: 1}, dims, time.Unix(5, 0))
	st.State = fault.Normal
	if !b.Set(Entry{Status: st, Revision: 7}) || b.Set(Entry{Status: unheard("n3-1-0", grid.Coord{X: 3, Y: 1}, dims, time.Time{})}) {
		t.Error("a node of the region is refused, or one of another is taken")
	}
	m := b.Map(9)
	if m.Len() != 4 || m.Dims() != dims || m.Counts().Nodes[fault.Normal] != 1 || m.Counts().Nodes[fault.Unknown] != 3 {
		t.Errorf("%d nodes of %s: %+v", m.Len(), m.Dims(), m.Counts())
	}
	for rank, want := range []fault.NodeID{"n1-0-0", "n2-0-0", "n1-1-0", "n2-1-0"} {
		if e := m.At(rank); e.Status.ID != want || fault.DefaultNodeID(e.Status.Coord) != want {
			t.Errorf("rank %d is %s at %s, want %s", rank, e.Status.ID, e.Status.Coord, want)
		}
	}
	peers := make(map[string]string)
	for _, l := range NodeLinks(m, m.At(3), time.Now()) {
		peers[l.GetDirection()] = l.GetPeer()
	}
	if peers["X+"] != "n3-1-0" || peers["X-"] != "n1-1-0" || m.IDAt(grid.Coord{}) != "" {
		t.Errorf("peers %v, far away %q", peers, m.IDAt(grid.Coord{}))
	}
	if _, err := names.Find("0,0,0"); err == nil {
		t.Error("a place of another region is found")
	}
	if id, err := names.Find("2,0,0"); id != "n2-0-0" || err != nil {
		t.Errorf("2,0,0 is %q, %v", id, err)
	}
	if _, ok := names.Foreign("n3-0-0"); !ok || names.Known("n3-0-0") {
		t.Error("the border is unknown, or known as the region's own")
	}
}
