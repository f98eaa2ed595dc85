package supervisor_test

import (
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestSpareAndNeighboursLearnPeers: a spare gets the place of a node in the topology. The spare and its neighbours learn of each other,
// including the end that its dead neighbour had reported. The leader dies before all nodes have their
// orders, and the next one continues. After a change back, all nodes get new orders.
func TestSpareAndNeighboursLearnPeers(t *testing.T) {
	dims := grid.Dims{X: 3, Y: 1, Z: 1}
	c, sups, leader := three(t, supervisortest.Options{Dims: dims.String(), Spares: 1})
	follower, other := (leader+1)%3, (leader+2)%3
	n0, n2, x := c.Agents["n0-0-0"], c.Agents["n2-0-0"], c.Agents["x1"]
	for id, at := range map[fault.NodeID]string{"n0-0-0": "0,0,0", "n1-0-0": "1,0,0", "n2-0-0": "2,0,0", "x1": ""} {
		c.Agents[id].Link(dims, at)
	}
	say := func() { // while they can report
		for _, a := range c.Agents {
			a.SayPeers(t, c.Configs[follower].Report)
		}
	}
	say()
	place := func(at int, moves map[string]string) {
		t.Helper()
		op := c.Operator(t, c.Configs[at].GRPC)
		supervisortest.Eventually(t, "the topology is changed", func() bool { // the leader may change on a busy machine
			top, err := op.GetTopology(t.Context(), &lofamov1.GetTopologyRequest{})
			if err != nil {
				return false
			}
			for _, n := range top.GetNodes() {
				if at, ok := moves[n.GetId()]; ok {
					n.Coord = at
				}
			}
			_, err = op.ApplyTopology(t.Context(), &lofamov1.ApplyTopologyRequest{Topology: top})
			return err == nil
		})
	}
	// is reports whether a node has a peer at one of its ends.
	is := func(a *supervisortest.Agent, d grid.Direction, peer fault.NodeID) bool {
		for _, p := range a.Peers().GetPeers() {
			if p.GetDirection() == uint32(d) {
				return p.GetNode() == string(peer) && p.GetAddress() == supervisortest.EndOf(peer, d.Opposite())
			}
		}
		return peer == "" // as configured
	}

	n2.Kill(fault.HalfDNP) // it has reported, and receives nothing
	x.Kill(fault.HalfDNP)
	place(follower, map[string]string{"n1-0-0": "", "x1": "1,0,0"})
	supervisortest.Eventually(t, "a neighbour is told", func() bool {
		told := is(n0, grid.XPlus, "x1") && is(n0, grid.XMinus, "")
		if !told { // the first statuses may have come before there was a leader
			say()
		}
		return told
	})
	stop(t, sups[leader])
	sups[leader] = nil
	next := c.AwaitLeader(t, follower, other)
	x.Revive(fault.HalfDNP)
	supervisortest.Eventually(t, "the spare is told its place and its peers, by the next leader", func() bool {
		return x.Peers().GetCoord() == "1,0,0" && is(x, grid.XMinus, "n0-0-0") && is(x, grid.XPlus, "n2-0-0")
	})
	n2.Revive(fault.HalfDNP)
	supervisortest.Eventually(t, "the neighbour that was dead is told",
		func() bool { return is(n2, grid.XMinus, "x1") && is(n2, grid.XPlus, "") })

	place(next, map[string]string{"n1-0-0": "1,0,0", "x1": ""})
	supervisortest.Eventually(t, "all is as configured", func() bool {
		return is(n0, grid.XPlus, "") && is(n2, grid.XMinus, "") && x.Peers().GetCoord() == "" && len(x.Peers().GetPeers()) == 0
	})
}
