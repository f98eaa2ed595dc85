package supervisor_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// A spare floods the supervisors, another cluster with the same names shares the network, and a joiner never starts: the
// spare joins all the same, nobody is accused, and the joiner that never came leaves again.
func TestTroublesomeJoinersAccuseNobody(t *testing.T) {
	t.Parallel()
	dims := grid.Dims{X: 3, Y: 1, Z: 1}
	c, _, leader := three(t, supervisortest.Options{Dims: dims.String(), Spares: 2})
	other := supervisortest.New(t, supervisortest.Options{Dims: dims.String(), Spares: 2}) // none of its supervisors runs
	op, to := c.Reconfigure(t, c.Configs[leader].GRPC), c.Configs[leader].Report
	for id, at := range map[fault.NodeID]string{"n0-0-0": "0,0,0", "n1-0-0": "1,0,0", "n2-0-0": "2,0,0", "x1": ""} {
		c.Agents[id].Link(dims, at)
		c.Agents[id].SayPeers(t, to)
	}
	other.Agents["x1"].Link(dims, "0,0,0") // its x1 is no spare
	defer supervisortest.Every(2*time.Millisecond, func() {
		c.Agents["x1"].SayPeers(t, to)
		other.Agents["x1"].SayPeers(t, to)
	})()
	defer c.Speak(t, 200*time.Millisecond, to, func(fault.NodeID) bool { return true })()

	join := func(id, want string, unheard bool) {
		t.Helper()
		var joined *lofamov1.JoinNodesResponse
		err := led(t, func() (err error) {
			joined, err = op.JoinNodes(t.Context(), &lofamov1.JoinNodesRequest{Nodes: []*lofamov1.TopologyNode{{Id: id}}, Unheard: unheard})
			return err
		})
		if err != nil || joined.GetNodes()[0].GetCoord() != want {
			t.Fatalf("%v, %v: want place %s", joined, err, want)
		}
	}
	join("x1", "3,0,0", false)
	supervisortest.Eventually(t, "the spare that floods and its neighbours follow", func() bool {
		near := func(id fault.NodeID) bool {
			return slices.ContainsFunc(c.Agents[id].Peers().GetPeers(), func(p *lofamov1.Peer) bool { return p.GetNode() == "x1" })
		}
		return c.Agents["x1"].Peers().GetCoord() == "3,0,0" && near("n0-0-0") && near("n2-0-0")
	})
	join("x2", "4,0,0", true) // it has never said anything
	viewer := c.Client(t, c.Configs[leader].GRPC)
	supervisortest.Eventually(t, "the first three nodes are NORMAL", func() bool {
		s, err := viewer.GetSummary(t.Context(), &lofamov1.GetSummaryRequest{})
		return err == nil && s.GetNodes().GetNormal() == 3
	})
	var left *lofamov1.LeaveNodesResponse
	err := led(t, func() (err error) {
		left, err = op.LeaveNodes(t.Context(), &lofamov1.LeaveNodesRequest{Nodes: []string{"x2"}, Forget: true})
		return err
	})
	if err != nil || left.GetDims() != "5x1x1 without 4,0,0" {
		t.Errorf("%v, %v", left, err)
	}
	events, err := viewer.ListEvents(t.Context(), &lofamov1.ListEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events.GetEvents() {
		if e.GetTo() == lofamov1.State_FAILED {
			t.Errorf("accused: %v", e)
		}
	}
}

// led repeats a change until there is a leader. On a busy machine the leader may lose its lease, and another replica takes over.
func led(t *testing.T, change func() error) (err error) {
	t.Helper()
	supervisortest.Eventually(t, "a leader", func() bool {
		err = change()
		return err == nil || !strings.Contains(err.Error(), "no leader: nothing was changed")
	})
	return err
}
