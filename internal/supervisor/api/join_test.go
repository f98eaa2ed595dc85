package api

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// oneTopology is an Operators with a topology, and with the writes of the last change.
type oneTopology struct {
	have   *topology.Topology
	writes []store.Write
}

func (o *oneTopology) Change(_ context.Context, change func(store.Topology) ([]store.Write, error)) (uint64, error) {
	writes, err := change(store.Topology{Topology: o.have, Generation: 1, Newest: 1})
	o.writes = append(o.writes, writes...)
	return o.have.Revision + 1, err
}

func (o *oneTopology) Topology(context.Context) (store.Topology, error) {
	return store.Topology{Topology: o.have}, nil
}

// unheardAgents are nodes of which none has reported its ends of links.
type unheardAgents struct{}

func (unheardAgents) Ends(fault.NodeID) (directions uint8, known bool) { return 0, false }
func (unheardAgents) Follows(fault.NodeID) bool                        { return true }
func (unheardAgents) Moves(fault.NodeID) bool                          { return true }
func (unheardAgents) Placed(fault.NodeID) bool                         { return false }
func (unheardAgents) Heard(fault.NodeID) bool                          { return false }
func (unheardAgents) Ask([]fault.NodeID)                               {}

// TestJoinersThatAreExpectedAreValid: nodes that have to wait for a place become spares of the topology only if the topology stays
// valid. Otherwise no later leader could read it.
func TestJoinersThatAreExpectedAreValid(t *testing.T) {
	const taken, free = "10.0.0.1:7400", "10.0.0.2:7400"
	for name, tc := range map[string]struct {
		nodes []*lofamov1.TopologyNode
		want  string // in the refusal
	}{
		"an address of a node": {[]*lofamov1.TopologyNode{{Id: "a", Coord: "0,1,0"}, {Id: "b", Service: []string{taken}}},
			"is that of node n0"},
		"an address of a joiner": {[]*lofamov1.TopologyNode{
			{Id: "a", Coord: "0,1,0", Service: []string{free}}, {Id: "b", Service: []string{free}}}, "is that of node a"},
		"a node that joins twice": {[]*lofamov1.TopologyNode{{Id: "a", Coord: "0,1,0"}, {Id: "a"}}, "named twice"},
	} {
		t.Run(name, func(t *testing.T) {
			have := topology.New(grid.Dims{X: 2, Y: 1, Z: 1}, []topology.Node{
				{ID: "n0", Service: []netip.AddrPort{netip.MustParseAddrPort(taken)}}, {ID: "n1", Coord: grid.Coord{X: 1}},
			}, nil, 7)
			o := &oneTopology{have: have}
			s := New(Config{Self: "s1", Names: view.NamesOf(have), Operators: o, Ends: unheardAgents{}})
			ctx, cancel := context.WithTimeout(asOperator(t), time.Second)
			defer cancel()
			_, err := s.JoinNodes(ctx, &lofamov1.JoinNodesRequest{Nodes: tc.nodes})
			refused(t, name, err, codes.FailedPrecondition, tc.want)
			first, err := store.TopologyWrites(store.Topology{}, have, nil)
			if err != nil {
				t.Fatal(err)
			}
			var kept []store.Kept
			for _, w := range append(first, o.writes...) {
				for _, kv := range w.Puts {
					kept = append(kept, store.Kept{KV: kv})
				}
			}
			if _, err := store.DecodeTopology(kept); err != nil {
				t.Errorf("the stored topology: %v", err)
			}
		})
	}
}
