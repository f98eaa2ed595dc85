package supervisor_test

import (
	"errors"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/supervisor"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// dying holds the set of dead nodes.
type dying struct {
	mu   sync.Mutex
	dead map[fault.NodeID]bool
}

func (d *dying) is(id fault.NodeID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dead[id]
}

func (d *dying) set(a *supervisortest.Agent, dead bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead[a.ID] = dead
	if dead {
		a.Kill(fault.HalfHost, fault.HalfDNP)
	} else {
		a.Revive(fault.HalfHost, fault.HalfDNP)
	}
}

func states(t *testing.T, c lofamov1.FaultSupervisorClient) map[string]lofamov1.State {
	t.Helper()
	resp, err := c.ListNodes(t.Context(), &lofamov1.ListNodesRequest{})
	if err != nil {
		return nil
	}
	out := make(map[string]lofamov1.State)
	for _, n := range resp.GetNodes() {
		out[n.GetId()] = n.GetState()
	}
	return out
}

func startAll(t *testing.T, list ...config.Supervisor) []*supervisor.Supervisor {
	t.Helper()
	out, errs := make([]*supervisor.Supervisor, len(list)), make([]error, len(list))
	var wg sync.WaitGroup
	for i, cfg := range list {
		wg.Go(func() { out[i], errs[i] = launch(t, cfg) })
	}
	wg.Wait()
	for _, s := range out {
		if s != nil {
			t.Cleanup(func() { stop(t, s) })
		}
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestBorderNodeNeedsWitnessesOfBothRegions: the ring of four nodes is two regions. Each node has one neighbour in its
// own region and one in the other, and both must report it dead. The parent shows the data of both regions. A region
// that is cut off is UNKNOWN there, and comes back.
func TestBorderNodeNeedsWitnessesOfBothRegions(t *testing.T) {
	t.Parallel()
	r := supervisortest.NewRegions(t, supervisortest.Options{Dims: "4x1x1", Preset: config.PresetDefault}, 1, "west", "east")
	west := startAll(t, r.Region["west"]...)[0]
	startAll(t, r.Region["east"]...)
	startAll(t, r.Parent...)
	periods, err := r.Parent[0].Timing()
	if err != nil {
		t.Fatal(err)
	}
	d := &dying{dead: make(map[fault.NodeID]bool)}
	stopAgents := r.Live(t, periods.DigestPeriod/4, d.is)
	defer stopAgents()
	parent := r.Client(t, r.Parent[0].GRPC)
	regional := r.Client(t, r.Region["west"][0].GRPC)
	all := func(want lofamov1.State, ids ...string) func() bool {
		return func() bool {
			got := states(t, parent)
			for _, id := range ids {
				if got[id] != want {
					return false
				}
			}
			return len(ids) > 0
		}
	}
	supervisortest.Eventually(t, "four NORMAL nodes at the parent", all(lofamov1.State_NORMAL, "n0-0-0", "n1-0-0", "n2-0-0", "n3-0-0"))
	supervisortest.Eventually(t, "the west to show its own two nodes", func() bool {
		got := states(t, regional)
		return len(got) == 2 && got["n0-0-0"] == lofamov1.State_NORMAL
	})
	// The parent shows marks that operators set in a region.
	operator := r.Operator(t, r.Region["west"][0].GRPC)
	if _, err := operator.SetMaintenance(t.Context(),
		&lofamov1.SetMaintenanceRequest{Nodes: []string{"n0-0-0"}, Reason: "new fan"}); err != nil {
		t.Fatal(err)
	}
	labelled := topologyOf(t, regional)
	labelled.Nodes[0].Labels = map[string]string{"rack": "r7"}
	labelled.Nodes = append(labelled.Nodes, &lofamov1.TopologyNode{Id: "spare-1", Service: []string{"127.0.0.1:9"}})
	if _, err := operator.ApplyTopology(t.Context(), &lofamov1.ApplyTopologyRequest{Topology: labelled}); err != nil {
		t.Fatal(err)
	}
	supervisortest.Eventually(t, "what operators have set to be shown at the parent", func() bool {
		list, err := parent.ListNodes(t.Context(), &lofamov1.ListNodesRequest{LabelSelector: "rack=r7"})
		spare, serr := parent.GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: "spare-1"})
		return err == nil && len(list.GetNodes()) == 1 && list.GetNodes()[0].GetMaintenance().GetReason() == "new fan" &&
			serr == nil && spare.GetSpare() && spare.GetRegion() == "west" && len(topologyOf(t, parent).GetNodes()) == 5
	})
	if _, err := operator.EndMaintenance(t.Context(), &lofamov1.EndMaintenanceRequest{Nodes: []string{"n0-0-0"}}); err != nil {
		t.Fatal(err)
	}
	supervisortest.Eventually(t, "the mark to be gone at the parent", func() bool {
		n, err := parent.GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: "n0-0-0"})
		return err == nil && n.GetMaintenance() == nil
	})
	d.set(r.Agents["n1-0-0"], true)
	supervisortest.Eventually(t, "the dead node to be FAILED at the parent", all(lofamov1.State_FAILED, "n1-0-0"))
	// On a busy machine the statement of one witness may be late. Until it arrives, the other one is a single witness.
	supervisortest.Eventually(t, "the west to have it from both witnesses", func() bool {
		node, err := regional.GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: "n1-0-0"})
		return err == nil && node.GetState() == lofamov1.State_FAILED && !node.GetSingleWitness() && node.GetRegion() == "west"
	})
	// Beyond the border its death explains the silent link: the neighbour there is not sick.
	supervisortest.Eventually(t, "the link beyond the border to be explained", func() bool {
		links, err := parent.ListLinks(t.Context(), &lofamov1.ListLinksRequest{Node: "n2-0-0"})
		if err != nil {
			return false
		}
		for _, l := range links.GetLinks() {
			if l.GetDirection() == "X-" && l.GetState() == lofamov1.State_FAILED && l.GetCause() == lofamov1.Cause_NODE {
				return states(t, parent)["n2-0-0"] == lofamov1.State_NORMAL
			}
		}
		return false
	})
	list, err := parent.ListNodes(t.Context(), &lofamov1.ListNodesRequest{FieldSelector: "region=west,spare=false"})
	if err != nil || len(list.GetNodes()) != 2 || list.GetNodes()[1].GetRegion() != "west" || len(list.GetCluster().GetRegions()) != 2 {
		t.Errorf("the west at the parent: %v, %v", list, err)
	}
	// A region gives up no place, and takes none of another.
	to := topologyOf(t, regional)
	to.Nodes[1].Coord = "2,0,0"
	_, err = r.Operator(t, r.Region["west"][0].GRPC).ApplyTopology(t.Context(), &lofamov1.ApplyTopologyRequest{Topology: to})
	wantCode(t, "a place of the east", err, codes.InvalidArgument, "want no place of another region than west")
	// The parent asks the region for data that only the region has.
	supervisortest.Eventually(t, "the region's own word of a node", func() bool {
		n, err := parent.GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: "n0-0-0"})
		x, xerr := parent.Explain(t.Context(), &lofamov1.ExplainRequest{Node: "n1-0-0"})
		return err == nil && n.GetAge() != nil && xerr == nil && x.GetRule() == "quorum" && len(x.GetBecause()) > 0
	})
	d.set(r.Agents["n1-0-0"], false)
	supervisortest.Eventually(t, "the node to be NORMAL again", all(lofamov1.State_NORMAL, "n1-0-0"))

	events, _ := watch(t, parent, &lofamov1.WatchRequest{FieldSelector: "kind=REGION_CHANGED"})
	begin(t, events)
	stop(t, west)
	becomes := func(to lofamov1.State) {
		for {
			if ev := nextEvents(t, events).GetEvents()[0]; ev.GetRegion() == "west" && ev.GetTo() == to {
				return
			}
		}
	}
	becomes(lofamov1.State_UNKNOWN)
	supervisortest.Eventually(t, "only the nodes of the west to be UNKNOWN", func() bool {
		return all(lofamov1.State_UNKNOWN, "n0-0-0", "n1-0-0")() && all(lofamov1.State_NORMAL, "n2-0-0")()
	})
	node, err := parent.GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: "n0-0-0"})
	if err != nil || node.GetAge().AsDuration() <= 0 {
		t.Errorf("a node of the west: %v, %v", node, err)
	}
	start(t, r.Region["west"][0])
	supervisortest.Eventually(t, "the west to be back", all(lofamov1.State_NORMAL, "n0-0-0", "n1-0-0", "n2-0-0", "n3-0-0"))
	becomes(lofamov1.State_NORMAL)
	_, err = r.Operator(t, r.Parent[0].GRPC).SetMaintenance(t.Context(),
		&lofamov1.SetMaintenanceRequest{Nodes: []string{"n0-0-0"}, Reason: "x"})
	wantCode(t, "an operator's change at the parent", err, codes.FailedPrecondition, "region west ("+r.Region["west"][0].GRPC+")")
}
