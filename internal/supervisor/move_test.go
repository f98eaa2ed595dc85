package supervisor_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// A node with a configured place moves to an empty one by a call to any replica: it gets its place and its new peers, and its
// new and former neighbours get theirs. What cannot be made is refused, and changes nothing.
func TestNodesMove(t *testing.T) {
	t.Parallel()
	dims, err := grid.Dims{X: 2, Y: 2, Z: 2}.Without(grid.Coord{X: 1, Y: 1, Z: 1})
	if err != nil {
		t.Fatal(err)
	}
	c, _, leader := three(t, supervisortest.Options{Dims: dims.String(), Spares: 1})
	op := c.Reconfigure(t, c.Configs[(leader+1)%3].GRPC)
	for at := range dims.All() {
		a := c.Agents[fault.DefaultNodeID(at)]
		a.Link(dims, at.String())
		a.SayPeers(t, c.Configs[leader].Report)
	}
	periods, err := c.Configs[0].Timing()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Speak(t, periods.DigestPeriod/2, c.Configs[leader].Report, func(fault.NodeID) bool { return true })()
	client := c.Client(t, c.Configs[leader].GRPC)
	topology := func() *lofamov1.Topology {
		t.Helper()
		top, err := client.GetTopology(t.Context(), &lofamov1.GetTopologyRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return top
	}
	move := func(req *lofamov1.MoveNodesRequest, node, to string) (*lofamov1.MoveNodesResponse, error) {
		req.Moves = []*lofamov1.NodeMove{{Node: node, To: to}}
		return op.MoveNodes(t.Context(), req)
	}
	supervisortest.Eventually(t, "all nodes are NORMAL and have stated their ends", func() bool {
		for at := range dims.All() {
			n, err := client.GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: string(fault.DefaultNodeID(at))})
			if err != nil || n.GetState() != lofamov1.State_NORMAL {
				return false
			}
		}
		_, err := move(&lofamov1.MoveNodesRequest{DryRun: true}, "n1-1-0", "1,1,1")
		return err == nil
	})

	before := topology()
	for what, tc := range map[string]struct {
		node, to string
		code     codes.Code
		want     string
	}{
		"unknown":         {"nobody", "1,1,1", codes.NotFound, "nobody"},
		"taken":           {"n1-1-0", "0,0,0", codes.FailedPrecondition, "has node n0-0-0"},
		"outside":         {"n1-1-0", "2,0,0", codes.FailedPrecondition, "want an empty place of the 2x2x2 torus"},
		"no place at all": {"n1-1-0", "there", codes.InvalidArgument, "want coordinates"},
		"a spare":         {"x1", "1,1,1", codes.FailedPrecondition, "has no place"},
	} {
		_, err := move(&lofamov1.MoveNodesRequest{}, tc.node, tc.to)
		wantCode(t, what, err, tc.code, tc.want)
	}
	_, err = move(&lofamov1.MoveNodesRequest{IfRevision: before.GetRevision() - 1}, "n1-1-0", "1,1,1")
	wantCode(t, "an older revision", err, codes.Aborted, "the topology has changed")
	viewer := lofamov1.NewReconfigureClient(c.Conn(t, pki.RoleViewer, c.Configs[leader].GRPC))
	_, err = viewer.MoveNodes(t.Context(), &lofamov1.MoveNodesRequest{})
	wantCode(t, "a viewer", err, codes.PermissionDenied, "viewer")
	operator := lofamov1.NewFaultSupervisorClient(c.Conn(t, pki.RoleOperator, c.Configs[leader].GRPC))
	if _, err := operator.SetMaintenance(t.Context(), &lofamov1.SetMaintenanceRequest{Nodes: []string{"n1-1-0"}, Reason: "fan",
		Duration: durationpb.New(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	_, err = move(&lofamov1.MoveNodesRequest{}, "n1-1-0", "1,1,1")
	wantCode(t, "under maintenance", err, codes.FailedPrecondition, "under maintenance")
	if _, err := operator.EndMaintenance(t.Context(), &lofamov1.EndMaintenanceRequest{Nodes: []string{"n1-1-0"}}); err != nil {
		t.Fatal(err)
	}
	if now := topology(); now.GetRevision() != before.GetRevision() {
		t.Errorf("refusals have changed the topology from %v to %v", before, now)
	}

	resp, err := move(&lofamov1.MoveNodesRequest{IfRevision: before.GetRevision()}, "1,1,0", "1,1,1")
	if err != nil || resp.GetNodes()[0].GetId() != "n1-1-0" || resp.GetDims() != "2x2x2 without 1,1,0" || resp.GetRevision() == 0 {
		t.Fatalf("%v, %v", resp, err)
	}
	leads := func(id fault.NodeID, d grid.Direction, peer fault.NodeID) bool {
		return slices.ContainsFunc(c.Agents[id].Peers().GetPeers(), func(p *lofamov1.Peer) bool {
			return p.GetDirection() == uint32(d) && p.GetNode() == string(peer) && p.GetAddress() == supervisortest.EndOf(peer, d.Opposite())
		})
	}
	supervisortest.Eventually(t, "all follow the move", func() bool {
		return c.Agents["n1-1-0"].Peers().GetCoord() == "1,1,1" &&
			leads("n1-1-0", grid.XPlus, "n0-1-1") && leads("n1-1-0", grid.YMinus, "n1-0-1") &&
			leads("n0-1-1", grid.XPlus, "n1-1-0") && leads("n1-0-1", grid.YPlus, "n1-1-0")
	})
}
