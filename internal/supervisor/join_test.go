package supervisor_test

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// A spare joins a ring of three nodes at any replica: it gets a place, its neighbours and the torus, its neighbours get
// it, and the third node gets the torus. When it leaves, the neighbours get each other again.
func TestNodesJoinAndLeave(t *testing.T) {
	t.Parallel()
	dims := grid.Dims{X: 3, Y: 1, Z: 1}
	c, _, leader := three(t, supervisortest.Options{Dims: dims.String(), Spares: 1})
	op := c.Reconfigure(t, c.Configs[(leader+1)%3].GRPC)
	for id, at := range map[fault.NodeID]string{"n0-0-0": "0,0,0", "n1-0-0": "1,0,0", "n2-0-0": "2,0,0", "x1": ""} {
		c.Agents[id].Link(dims, at)
		c.Agents[id].SayPeers(t, c.Configs[leader].Report)
	}
	is := func(id fault.NodeID, d grid.Direction, peer fault.NodeID, torus string) bool {
		st := c.Agents[id].Peers()
		i := slices.IndexFunc(st.GetPeers(), func(p *lofamov1.Peer) bool { return p.GetDirection() == uint32(d) })
		if st.GetTorus() != torus || peer == "" || i < 0 {
			return st.GetTorus() == torus && peer == "" && i < 0
		}
		return st.GetPeers()[i].GetNode() == string(peer) && st.GetPeers()[i].GetAddress() == supervisortest.EndOf(peer, d.Opposite())
	}

	x1 := []*lofamov1.TopologyNode{{Id: "x1"}}
	dry, err := op.JoinNodes(t.Context(), &lofamov1.JoinNodesRequest{Nodes: x1, DryRun: true})
	if err != nil || dry.GetNodes()[0].GetCoord() != "3,0,0" || dry.GetRevision() != 0 {
		t.Fatalf("dry run: %v, %v", dry, err)
	}
	joined, err := op.JoinNodes(t.Context(), &lofamov1.JoinNodesRequest{Nodes: x1})
	if err != nil || joined.GetNodes()[0].GetCoord() != "3,0,0" || joined.GetDims() != "4x1x1" || joined.GetRevision() == 0 {
		t.Fatalf("%v, %v", joined, err)
	}
	supervisortest.Eventually(t, "all follow the join", func() bool {
		x := c.Agents["x1"].Peers()
		return x.GetCoord() == "3,0,0" && is("x1", grid.XMinus, "n2-0-0", "4x1x1") && is("x1", grid.XPlus, "n0-0-0", "4x1x1") &&
			is("n0-0-0", grid.XMinus, "x1", "4x1x1") && is("n0-0-0", grid.XPlus, "", "4x1x1") &&
			is("n2-0-0", grid.XPlus, "x1", "4x1x1") && is("n1-0-0", grid.XPlus, "", "4x1x1")
	})
	list, err := c.Client(t, c.Configs[leader].GRPC).ListNodes(t.Context(), &lofamov1.ListNodesRequest{})
	if err != nil || len(list.GetNodes()) != 4 || list.GetCluster().GetDims() != "4x1x1" {
		t.Errorf("the map is %v, %v", list, err)
	}

	_, err = op.JoinNodes(t.Context(), &lofamov1.JoinNodesRequest{Nodes: x1})
	wantCode(t, "once more", err, codes.FailedPrecondition, "x1: has the place 3,0,0")
	_, err = op.JoinNodes(t.Context(), &lofamov1.JoinNodesRequest{})
	wantCode(t, "nobody", err, codes.InvalidArgument, "nodes")
	_, err = op.JoinNodes(t.Context(), &lofamov1.JoinNodesRequest{Nodes: []*lofamov1.TopologyNode{{Id: "-"}}})
	wantCode(t, "a bad name", err, codes.InvalidArgument, "nodes[0].id")
	_, err = op.LeaveNodes(t.Context(), &lofamov1.LeaveNodesRequest{Nodes: []string{"nobody"}})
	wantCode(t, "nobody leaves", err, codes.NotFound, "nobody")
	_, err = op.LeaveNodes(t.Context(), &lofamov1.LeaveNodesRequest{Nodes: []string{"0,0,0", "n1-0-0", "n2-0-0"}})
	wantCode(t, "too many leave", err, codes.FailedPrecondition, "want at least 2")
	viewer := lofamov1.NewReconfigureClient(c.Conn(t, pki.RoleViewer, c.Configs[leader].GRPC))
	_, err = viewer.LeaveNodes(t.Context(), &lofamov1.LeaveNodesRequest{Nodes: []string{"x1"}})
	wantCode(t, "a viewer", err, codes.PermissionDenied, "viewer")

	left, err := op.LeaveNodes(t.Context(), &lofamov1.LeaveNodesRequest{Nodes: []string{"3,0,0"}})
	if err != nil || left.GetNodes()[0].GetId() != "x1" || left.GetDims() != "4x1x1 without 3,0,0" {
		t.Fatalf("%v, %v", left, err)
	}
	without, err := grid.ParseDims(left.GetDims())
	if err != nil {
		t.Fatal(err)
	}
	supervisortest.Eventually(t, "all follow the leave", func() bool {
		x := c.Agents["x1"].Peers()
		return x.GetCoord() == "" && len(x.GetPeers()) == 0 && is("n0-0-0", grid.XMinus, "", without.Short()) &&
			is("n2-0-0", grid.XPlus, "", without.Short()) && is("n1-0-0", grid.XPlus, "", without.Short())
	})
}

// A node that leaves and is forgotten learns first that it has no place any more. One whose agent is dead is forgotten too.
func TestForgottenNodeLearnsThatItLeft(t *testing.T) {
	t.Parallel()
	dims := grid.Dims{X: 3, Y: 1, Z: 1}
	c, _, leader := three(t, supervisortest.Options{Dims: dims.String(), Spares: 2})
	op := c.Reconfigure(t, c.Configs[(leader+1)%3].GRPC)
	for id, at := range map[fault.NodeID]string{"n0-0-0": "0,0,0", "n1-0-0": "1,0,0", "n2-0-0": "2,0,0", "x1": "", "x2": ""} {
		c.Agents[id].Link(dims, at)
		c.Agents[id].SayPeers(t, c.Configs[leader].Report)
	}
	for _, id := range []fault.NodeID{"x1", "x2"} {
		supervisortest.Eventually(t, string(id)+" joins", func() bool {
			_, err := op.JoinNodes(t.Context(), &lofamov1.JoinNodesRequest{Nodes: []*lofamov1.TopologyNode{{Id: string(id)}}})
			return err == nil || status.Code(err) == codes.FailedPrecondition
		})
		supervisortest.Eventually(t, string(id)+" follows", func() bool { return c.Agents[id].Peers().GetCoord() != "" })
	}
	nodes := func() (out []string) {
		top, err := c.Client(t, c.Configs[leader].GRPC).GetTopology(t.Context(), &lofamov1.GetTopologyRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range top.GetNodes() {
			out = append(out, n.GetId())
		}
		return out
	}

	// leave repeats the request while no quorum confirms the leader, as its error requests.
	leave := func(id string) (left *lofamov1.LeaveNodesResponse) {
		supervisortest.Eventually(t, id+" leaves", func() (done bool) {
			var err error
			left, err = op.LeaveNodes(t.Context(), &lofamov1.LeaveNodesRequest{Nodes: []string{id}, Forget: true})
			if err != nil && status.Code(err) != codes.Aborted {
				t.Fatal(err)
			}
			return err == nil
		})
		return left
	}
	if left := leave("x1"); left.GetNodes()[0].GetId() != "x1" || left.GetRevision() == 0 {
		t.Fatalf("%v", left)
	}
	if x := c.Agents["x1"].Peers(); x.GetCoord() != "" || len(x.GetPeers()) != 0 {
		t.Errorf("forgotten, and still holds %v", x)
	}
	if all := nodes(); slices.Contains(all, "x1") {
		t.Errorf("the topology has %v", all)
	}
	c.Agents["x2"].Kill(fault.HalfHost, fault.HalfDNP)
	leave("x2")
	if all := nodes(); len(all) != 3 {
		t.Errorf("the topology has %v", all)
	}
	list, err := c.Client(t, c.Configs[leader].GRPC).ListEvents(t.Context(), &lofamov1.ListEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range list.GetEvents() {
		if ev.GetTo() == lofamov1.State_FAILED || ev.GetTo() == lofamov1.State_SICK {
			t.Errorf("a leave is a fault: %v", ev)
		}
	}
}

// A node that nobody hears gets no place, since its neighbours would give up their links to one another. Its name may be a
// typing error. A node that the topology does not have yet gets its place when its agent answers.
func TestOnlyHeardNodesJoin(t *testing.T) {
	t.Parallel()
	dims := grid.Dims{X: 3, Y: 1, Z: 1}
	c, _, leader := three(t, supervisortest.Options{Dims: dims.String(), Spares: 1})
	op := c.Reconfigure(t, c.Configs[(leader+1)%3].GRPC)
	for id, at := range map[fault.NodeID]string{"n0-0-0": "0,0,0", "n1-0-0": "1,0,0", "n2-0-0": "2,0,0"} {
		c.Agents[id].Link(dims, at)
		c.Agents[id].SayPeers(t, c.Configs[leader].Report)
	}
	x1 := c.Agents["x1"].Addr()
	if _, err := op.LeaveNodes(t.Context(), &lofamov1.LeaveNodesRequest{Nodes: []string{"x1"}, Forget: true}); err != nil {
		t.Fatal(err)
	}
	dimsNow := func() string {
		top, err := c.Client(t, c.Configs[leader].GRPC).GetTopology(t.Context(), &lofamov1.GetTopologyRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return top.GetDims()
	}

	typo := &lofamov1.TopologyNode{Id: "x-typo", Service: []string{"127.0.0.1:9"}}
	_, err := op.JoinNodes(t.Context(), &lofamov1.JoinNodesRequest{Nodes: []*lofamov1.TopologyNode{typo}})
	wantCode(t, "nobody hears it", err, codes.Aborted, "x-typo")
	if d := dimsNow(); d != "3x1x1" {
		t.Errorf("the torus is %s", d)
	}
	c.Agents["x1"].Link(dims, "") // from now on it answers
	x := &lofamov1.TopologyNode{Id: "x1", Service: []string{x1}}
	supervisortest.Eventually(t, "a heard node joins", func() bool {
		_, err = op.JoinNodes(t.Context(), &lofamov1.JoinNodesRequest{Nodes: []*lofamov1.TopologyNode{x}})
		return status.Code(err) != codes.Aborted
	})
	if err != nil || dimsNow() != "4x1x1" {
		t.Errorf("the torus is %s: %v", dimsNow(), err)
	}
	forced, err := op.JoinNodes(t.Context(), &lofamov1.JoinNodesRequest{Nodes: []*lofamov1.TopologyNode{typo}, Unheard: true})
	if err != nil || forced.GetNodes()[0].GetCoord() == "" {
		t.Errorf("forced: %v, %v", forced, err)
	}
}
