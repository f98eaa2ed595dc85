package engine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// The positions of the nodes that were removed last stay, and those of a node that comes back are not counted.
func TestPositionsOfRemovedNodesAreBounded(t *testing.T) {
	with := func(ids ...fault.NodeID) *topology.Topology {
		var nodes []topology.Node
		for _, id := range ids {
			nodes = append(nodes, topology.Node{ID: id, Spare: true})
		}
		return topology.New(grid.Dims{X: 2, Y: 1, Z: 1}, nodes, nil, 0)
	}
	var saved []store.InboxPosition
	for _, id := range []fault.NodeID{"d", "b", "a"} {
		for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
			saved = append(saved, store.InboxPosition{Origin: fault.Origin{Node: id, Half: h}, Epoch: 1})
		}
	}
	s := newStrays(2, saved, with("a"))
	if !slices.Equal(s.ids, []fault.NodeID{"b", "d"}) || len(s.surplus()) != 0 {
		t.Fatalf("%v", s.ids)
	}
	if drop := s.follow(with("a"), with("b")); len(drop) != 0 || !slices.Equal(s.ids, []fault.NodeID{"d", "a"}) {
		t.Errorf("b comes back and a leaves: %v stay, %v do not", s.ids, drop)
	}
	drop := s.follow(with("b", "c"), with())
	if !slices.Equal(drop, []fault.NodeID{"d", "a"}) || !slices.Equal(s.ids, []fault.NodeID{"b", "c"}) {
		t.Errorf("b and c leave: %v stay, %v do not", s.ids, drop)
	}
}

// Spares join, report and leave without end. The store and the leader keep a bounded number of inbox positions, and a new leader
// drops the surplus of an earlier one.
func TestStoreKeepsFewPositionsOfRemovedNodes(t *testing.T) {
	st := memstore.New(100)
	h := start(t, st, seeded)
	base := withSpare(false)
	positions := func() (n int) {
		if _, err := h.Write(t.Context(), store.Write{}); err != nil { // commits garbage collection first
			t.Fatal(err)
		}
		snap, err := st.Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range snap.Inbox {
			if _, listed := base.Node(p.Origin.Node); !listed {
				n++
			}
		}
		return n
	}
	h.term.Load().strays.limit = 2
	for i := range 5 {
		id := fault.NodeID(fmt.Sprint("y", i))
		joined := topology.New(base.Dims, append(slices.Clone(base.Nodes), topology.Node{ID: id, Spare: true}), base.DomainLabels, 0)
		for _, to := range []*topology.Topology{joined, base} {
			if _, err := h.apply(t.Context(), to); err != nil {
				t.Fatal(err)
			}
			if to == joined {
				h.Submit(Input{Reports: &servicenet.Reports{Path: fault.PathDirect, List: []fault.Report{{
					ID: fault.ReportID{Origin: fault.Origin{Node: id, Half: fault.HalfHost}, Epoch: 1, Seq: 1}}}},
					To: To{Addr: "127.0.0.1:1"}, Answerer: h.box, Arrived: time.Now()})
				h.box.await(t, i+1)
			}
		}
	}
	if n := positions(); n != 2 {
		t.Errorf("the store has %d positions of removed nodes: want 2", n)
	}
}
