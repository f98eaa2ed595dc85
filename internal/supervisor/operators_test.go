package supervisor_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

func topologyOf(t testing.TB, c lofamov1.FaultSupervisorClient) *lofamov1.Topology {
	t.Helper()
	top, err := c.GetTopology(t.Context(), &lofamov1.GetTopologyRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return top
}

// edited returns a copy with one node changed.
func edited(top *lofamov1.Topology, id string, edit func(*lofamov1.TopologyNode)) *lofamov1.Topology {
	out := proto.CloneOf(top)
	for _, n := range out.GetNodes() {
		if n.GetId() == id {
			edit(n)
		}
	}
	return out
}

func labelled(top *lofamov1.Topology, id, key, value string) *lofamov1.Topology {
	return edited(top, id, func(n *lofamov1.TopologyNode) { n.Labels = map[string]string{key: value} })
}

// swapped gives a spare the place of a node, which becomes a spare.
func swapped(top *lofamov1.Topology, spare, node string) *lofamov1.Topology {
	place := ""
	out := edited(top, node, func(n *lofamov1.TopologyNode) { place, n.Coord = n.GetCoord(), "" })
	return edited(out, spare, func(n *lofamov1.TopologyNode) { n.Coord = place })
}

func TestTopologyIsChangedAtAnyReplica(t *testing.T) {
	t.Parallel()
	c, _, leader := three(t, supervisortest.Options{Spares: 1})
	follower := c.Operator(t, c.Configs[(leader+1)%3].GRPC)
	first := topologyOf(t, follower)
	if first.GetRevision() == 0 || len(first.GetNodes()) != 5 || first.GetNodes()[4].GetId() != "x1" {
		t.Fatalf("the first topology is %v", first)
	}
	events, _ := watch(t, c.Client(t, c.Configs[(leader+2)%3].GRPC), &lofamov1.WatchRequest{FieldSelector: "kind=TOPOLOGY_CHANGED"})
	begin(t, events)

	to := labelled(first, "n1-0-0", "rack", "r1")
	dry, err := follower.ApplyTopology(t.Context(), &lofamov1.ApplyTopologyRequest{Topology: to, DryRun: true})
	if want := "node n1-0-0: label rack=r1 is new"; err != nil || !slices.Equal(dry.GetChanges(), []string{want}) {
		t.Errorf("dry run: %v, %v", dry, err)
	}
	if now := topologyOf(t, follower); !proto.Equal(now, first) {
		t.Errorf("a dry run leaves %v", now)
	}
	done, err := follower.ApplyTopology(t.Context(), &lofamov1.ApplyTopologyRequest{Topology: to, IfRevision: first.GetRevision()})
	if err != nil || done.GetTopology().GetRevision() <= first.GetRevision() {
		t.Fatalf("%v, %v", done, err)
	}
	ev := nextEvents(t, events).GetEvents()[0]
	if ev.GetKind() != lofamov1.EventKind_TOPOLOGY_CHANGED || ev.GetNode() != "n1-0-0" || ev.GetLabels()["rack"] != "r1" ||
		ev.GetObserver() != "operator/someone" || ev.GetRevision() != done.GetTopology().GetRevision() {
		t.Errorf("event %v", ev)
	}
	for i, cfg := range c.Configs {
		client := c.Client(t, cfg.GRPC)
		if now := topologyOf(t, client); !proto.Equal(now, done.GetTopology()) {
			t.Errorf("replica %d has %v", i, now)
		}
		list := supervisortest.Fresh(t, client.ListNodes, &lofamov1.ListNodesRequest{LabelSelector: "rack=r1"})
		if len(list.GetNodes()) != 1 || list.GetNodes()[0].GetId() != "n1-0-0" {
			t.Errorf("replica %d lists %v", i, list)
		}
		supervisortest.Eventually(t, "the copy of "+cfg.ID, func() bool {
			return strings.Contains(scrape(t, cfg.HTTP),
				fmt.Sprintf("lofamo_topology_revision %d\n", done.GetTopology().GetRevision()))
		})
	}
	again, err := follower.ApplyTopology(t.Context(), &lofamov1.ApplyTopologyRequest{Topology: to})
	if err != nil || len(again.GetChanges()) != 0 || again.GetTopology().GetRevision() != done.GetTopology().GetRevision() {
		t.Errorf("once more: %v, %v", again, err)
	}

	_, err = c.Client(t, c.Configs[leader].GRPC).ApplyTopology(t.Context(), &lofamov1.ApplyTopologyRequest{Topology: to})
	wantCode(t, "a viewer", err, codes.PermissionDenied, "viewer")
	bad := edited(labelled(first, "n0-1-0", "-", "x"), "x1", func(n *lofamov1.TopologyNode) { n.Coord = "0,0,0" })
	_, err = follower.ApplyTopology(t.Context(), &lofamov1.ApplyTopologyRequest{Topology: bad})
	wantCode(t, "two mistakes", err, codes.InvalidArgument, "nodes[4].coord: given 0,0,0: want a place of its own: nodes[0] has it")
	details := status.Convert(err).Details()
	if len(details) != 1 || len(details[0].(*errdetails.BadRequest).GetFieldViolations()) != 2 {
		t.Errorf("details %v", details)
	}
	_, err = follower.ApplyTopology(t.Context(), &lofamov1.ApplyTopologyRequest{})
	wantCode(t, "nothing", err, codes.InvalidArgument, "dims")
	_, err = follower.ApplyTopology(t.Context(), &lofamov1.ApplyTopologyRequest{Topology: first, IfRevision: first.GetRevision()})
	wantCode(t, "an old revision", err, codes.Aborted, "start again")
	foreign := proto.CloneOf(to)
	foreign.Region = "west"
	_, err = follower.ApplyTopology(t.Context(), &lofamov1.ApplyTopologyRequest{Topology: foreign})
	wantCode(t, "another region", err, codes.InvalidArgument, "region")
	if now := topologyOf(t, follower); !proto.Equal(now, done.GetTopology()) {
		t.Errorf("refusals leave %v", now)
	}

	concurrentApplies(t, c, done.GetTopology())
}

// TestLabelsAreSetWhileAllIsHeard: the leader keeps its evidence when labels change, whether the change is small or
// has more nodes than fit a transaction.
func TestLabelsAreSetWhileAllIsHeard(t *testing.T) {
	t.Parallel()
	c, _, leader := three(t, supervisortest.Options{Dims: "8x8x1"})
	operator := c.Operator(t, c.Configs[(leader+1)%3].GRPC)
	a := c.Agents["n0-0-0"]
	id, b := a.Report(t, fault.HalfHost, false, temperature(fault.Sick))
	a.Deliver(t, id, b, c.Configs[leader].Report)
	node := func() *lofamov1.Node {
		t.Helper()
		return freshNode(t, operator, "n0-0-0")
	}
	if n := node(); n.GetRegisters() == nil {
		t.Fatalf("before: %v", n)
	}
	to := labelled(topologyOf(t, operator), "n0-0-0", "rack", "r1")
	for range 2 {
		done, err := operator.ApplyTopology(t.Context(), &lofamov1.ApplyTopologyRequest{Topology: to})
		if err != nil {
			t.Fatal(err)
		}
		if n := node(); n.GetRegisters() == nil || n.GetState() != lofamov1.State_SICK || n.GetLabels()["rack"] != "r1" {
			t.Errorf("after %d changes: %v", len(done.GetChanges()), n)
		}
		if _, err := operator.SetMaintenance(t.Context(),
			&lofamov1.SetMaintenanceRequest{Nodes: []string{"n0-0-0"}, Reason: "new fan"}); err != nil {
			t.Fatal(err)
		}
		if n := node(); n.GetRegisters() == nil || n.GetMaintenance() == nil {
			t.Errorf("under maintenance: %v", n)
		}
		for _, n := range to.GetNodes() {
			n.Labels = map[string]string{"rack": "r1", "power": "p"}
		}
	}
}

// concurrentApplies lets two operators change the same topology at two replicas: one change comes too late.
func concurrentApplies(t *testing.T, c *supervisortest.Cluster, from *lofamov1.Topology) {
	t.Helper()
	var wg sync.WaitGroup
	var done, aborted atomic.Int32
	for i := range 2 {
		operator := c.Operator(t, c.Configs[i].GRPC)
		wg.Go(func() {
			_, err := operator.ApplyTopology(t.Context(), &lofamov1.ApplyTopologyRequest{
				Topology: labelled(from, "n0-0-0", "rack", fmt.Sprint("r", i)), IfRevision: from.GetRevision(),
			})
			switch status.Code(err) {
			case codes.OK:
				done.Add(1)
			case codes.Aborted:
				aborted.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if done.Load() != 1 || aborted.Load() != 1 {
		t.Errorf("%d are done, %d aborted", done.Load(), aborted.Load())
	}
}

// TestSpareIsSwappedIn: a spare takes a place while all replicas receive reports. No report is lost, no remaining
// node is mistaken for another or for dead, and the spare reports at its new place.
func TestSpareIsSwappedIn(t *testing.T) {
	t.Parallel()
	c, _, leader := three(t, supervisortest.Options{Spares: 1})
	operator := c.Operator(t, c.Configs[(leader+1)%3].GRPC)
	events, _ := watch(t, operator, &lofamov1.WatchRequest{})
	begin(t, events)
	var targets []string
	for _, cfg := range c.Configs {
		targets = append(targets, cfg.Report)
	}
	a := c.Agents["n0-0-0"]
	id, b := a.Report(t, fault.HalfHost, false, temperature(fault.Sick))
	a.Deliver(t, id, b, targets...)
	before := freshNode(t, operator, "n0-0-0")

	first := topologyOf(t, operator)
	var wg sync.WaitGroup
	swap := make(chan struct{})
	for _, name := range []fault.NodeID{"n0-1-0", "n1-1-0"} {
		wg.Go(func() {
			for i := range 30 {
				if i == 10 {
					swap <- struct{}{}
				}
				st := fault.Sick
				if i%2 == 1 {
					st = fault.Normal
				}
				agent := c.Agents[name]
				id, b := agent.Report(t, fault.HalfHost, false, temperature(st))
				agent.Deliver(t, id, b, targets[i%3:]...)
			}
		})
	}
	<-swap
	<-swap
	if _, err := operator.ApplyTopology(t.Context(), &lofamov1.ApplyTopologyRequest{Topology: swapped(first, "x1", "n1-0-0")}); err != nil {
		t.Fatal(err)
	}
	wg.Wait()

	after := freshNode(t, operator, "n0-0-0")
	if after.GetState() != before.GetState() || after.GetCause() != before.GetCause() ||
		!after.GetSince().AsTime().Equal(before.GetSince().AsTime()) {
		t.Errorf("who stays was %v and is %v", before, after)
	}
	x := c.Agents["x1"]
	id, b = x.Report(t, fault.HalfHost, false, temperature(fault.Failed))
	x.Deliver(t, id, b, targets...)
	if ev := awaitEvent(t, events, "x1", "temperature", lofamov1.State_FAILED); ev.GetCoord() != "1,0,0" {
		t.Errorf("the spare at its place: %v", ev)
	}
	gone, err := operator.GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: "n1-0-0"})
	if err != nil || !gone.GetSpare() || gone.GetCoord() != "" || gone.GetState() != lofamov1.State_UNKNOWN {
		t.Errorf("who left: %v, %v", gone, err)
	}
	all, err := operator.ListEvents(t.Context(), &lofamov1.ListEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range all.GetEvents() {
		if ev.GetKind() == lofamov1.EventKind_COMPONENT_CHANGED && ev.GetComponent() == "node" && ev.GetTo() == lofamov1.State_FAILED {
			t.Errorf("somebody is taken for dead: %v", ev)
		}
	}
}

// TestTopologyAndMarksSurvive the loss of the leader, and a stop of all replicas, whose files then differ.
func TestTopologyAndMarksSurvive(t *testing.T) {
	t.Parallel()
	c, sups, leader := three(t, supervisortest.Options{Spares: 1})
	follower := (leader + 1) % 3
	operator := c.Operator(t, c.Configs[follower].GRPC)
	first := topologyOf(t, operator)
	if _, err := operator.SetMaintenance(t.Context(),
		&lofamov1.SetMaintenanceRequest{Nodes: []string{"n0-0-0"}, Reason: "new fan"}); err != nil {
		t.Fatal(err)
	}
	if _, err := operator.ApplyTopology(t.Context(), &lofamov1.ApplyTopologyRequest{Topology: swapped(first, "x1", "n1-0-0")}); err != nil {
		t.Fatal(err)
	}
	stop(t, sups[leader])
	c.AwaitLeader(t, follower, (leader+2)%3)
	second, err := operator.ApplyTopology(t.Context(),
		&lofamov1.ApplyTopologyRequest{Topology: labelled(topologyOf(t, operator), "x1", "rack", "r7")})
	if err != nil || len(second.GetChanges()) != 1 {
		t.Fatalf("under the next leader: %v, %v", second, err)
	}
	for _, s := range sups {
		stop(t, s)
	}
	configs := slices.Clone(c.Configs)
	for i := range configs {
		configs[i].Spares = nil
	}
	startAll(t, configs...)
	c.AwaitLeader(t)
	if now := topologyOf(t, operator); !proto.Equal(now, second.GetTopology()) {
		t.Errorf("after the restart the topology is %v, want %v", now, second.GetTopology())
	}
	marked := supervisortest.Fresh(t, operator.ListNodes, &lofamov1.ListNodesRequest{FieldSelector: "maintenance=true"}).GetNodes()
	if len(marked) != 1 || marked[0].GetId() != "n0-0-0" || marked[0].GetMaintenance().GetReason() != "new fan" ||
		marked[0].GetMaintenance().GetBy() != "operator/someone" {
		t.Errorf("after the restart: %v", marked)
	}
	// A removed node loses its mark.
	to := topologyOf(t, operator)
	to = swapped(to, "n1-0-0", "n0-0-0")
	to.Nodes = slices.DeleteFunc(to.GetNodes(), func(n *lofamov1.TopologyNode) bool { return n.GetId() == "n0-0-0" })
	if _, err := operator.ApplyTopology(t.Context(), &lofamov1.ApplyTopologyRequest{Topology: to}); err != nil {
		t.Fatal(err)
	}
	_, err = operator.EndMaintenance(t.Context(), &lofamov1.EndMaintenanceRequest{Nodes: []string{"n0-0-0"}})
	wantCode(t, "a node that was removed", err, codes.NotFound, "no node of that id")
}

func TestMaintenanceMarksSurviveLeaderLoss(t *testing.T) {
	t.Parallel()
	c, sups, leader := three(t, supervisortest.Options{Spares: 1})
	operator := c.Operator(t, c.Configs[(leader+1)%3].GRPC)
	events, _ := watch(t, operator, &lofamov1.WatchRequest{FieldSelector: "kind=MAINTENANCE_CHANGED"})
	begin(t, events)
	marked := func() []string {
		t.Helper()
		list, err := operator.ListNodes(t.Context(), &lofamov1.ListNodesRequest{FieldSelector: "maintenance=true"})
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, n := range list.GetNodes() {
			out = append(out, n.GetId()+" "+n.GetMaintenance().GetReason())
		}
		return out
	}
	set := func(reason string, d time.Duration, nodes ...string) (*lofamov1.SetMaintenanceResponse, error) {
		req := &lofamov1.SetMaintenanceRequest{Nodes: nodes, Reason: reason}
		if d != 0 {
			req.Duration = durationpb.New(d)
		}
		return operator.SetMaintenance(t.Context(), req)
	}
	for _, tc := range []struct {
		what, reason string
		d            time.Duration
		nodes        []string
		code         codes.Code
		text         string
	}{
		{"no reason", " ", 0, []string{"n0-0-0"}, codes.InvalidArgument, "reason: given 1 bytes: want 1 to 256"},
		{"a long reason", strings.Repeat("x", 257), 0, []string{"n0-0-0"}, codes.InvalidArgument, "reason: given 257 bytes"},
		{"no time", "fan", time.Second, []string{"n0-0-0"}, codes.InvalidArgument, "duration: given 1s: want 1m to 720h"},
		{"a negative time", "fan", -time.Hour, []string{"n0-0-0"}, codes.InvalidArgument, "duration: given -1h"},
		{"too long", "fan", 721 * time.Hour, []string{"n0-0-0"}, codes.InvalidArgument, "duration: given 721h"},
		{"no nodes", "fan", 0, nil, codes.InvalidArgument, "nodes: given 0: want 1 to 1024"},
		{"many nodes", "fan", 0, make([]string, 1025), codes.InvalidArgument, "nodes: given 1025"},
		{"an unknown node", "fan", 0, []string{"n0-0-0", "nobody"}, codes.NotFound, `node "nobody"`},
		{"a place outside", "fan", 0, []string{"n0-0-0", "7,0,0"}, codes.InvalidArgument, "outside"},
	} {
		_, err := set(tc.reason, tc.d, tc.nodes...)
		wantCode(t, tc.what, err, tc.code, tc.text)
	}
	_, err := c.Client(t, c.Configs[leader].GRPC).SetMaintenance(t.Context(),
		&lofamov1.SetMaintenanceRequest{Nodes: []string{"n0-0-0"}, Reason: "fan"})
	wantCode(t, "a viewer", err, codes.PermissionDenied, "viewer")
	if got := marked(); len(got) != 0 {
		t.Fatalf("refusals leave marks: %v", got)
	}

	resp, err := set("new fan", time.Hour, "1,0,0", "x1", "n1-0-0")
	if err != nil || len(resp.GetMaintenance()) != 2 || resp.GetMaintenance()[0].GetBy() != "operator/someone" ||
		resp.GetMaintenance()[0].GetUntil() == nil {
		t.Fatalf("%v, %v", resp, err)
	}
	if got := marked(); !slices.Equal(got, []string{"n1-0-0 new fan", "x1 new fan"}) {
		t.Errorf("marked are %q", got)
	}
	told := nextEvents(t, events)
	if len(told.GetEvents()) != 2 || told.GetRevision() != resp.GetRevision() {
		t.Fatalf("%v", told)
	}
	if ev := told.GetEvents()[0]; ev.GetKind() != lofamov1.EventKind_MAINTENANCE_CHANGED || ev.GetNode() != "n1-0-0" ||
		ev.GetCoord() != "1,0,0" || ev.GetMaintenance().GetReason() != "new fan" || ev.GetEnded() {
		t.Errorf("%v", ev)
	}
	// A changed mark keeps its start.
	changed, err := set("new fan and new disk", 0, "n1-0-0")
	if err != nil || !proto.Equal(changed.GetMaintenance()[0].GetSince(), resp.GetMaintenance()[0].GetSince()) ||
		changed.GetMaintenance()[0].GetUntil() != nil {
		t.Errorf("%v, %v", changed, err)
	}
	for i, cfg := range c.Configs {
		supervisortest.Eventually(t, "the copy of "+cfg.ID, func() bool {
			return strings.Contains(scrape(t, c.Configs[i].HTTP), "lofamo_maintenance_nodes 2\n")
		})
	}
	_, err = operator.EndMaintenance(t.Context(), &lofamov1.EndMaintenanceRequest{Nodes: []string{"x1", "n0-0-0"}})
	wantCode(t, "one that has none", err, codes.NotFound, "node n0-0-0: not under maintenance: nothing was changed")
	if _, err := operator.EndMaintenance(t.Context(), &lofamov1.EndMaintenanceRequest{Nodes: []string{"x1", "1,0,0"}}); err != nil {
		t.Error(err)
	}
	if got := marked(); len(got) != 0 {
		t.Errorf("after the end: %v", got)
	}

	// No replica leads.
	before := topologyOf(t, operator)
	wg := sync.WaitGroup{}
	for _, i := range []int{leader, (leader + 2) % 3} {
		wg.Go(func() { _ = sups[i].Stop(t.Context()) }) // the second cannot resign without a quorum
	}
	wg.Wait()
	_, err = set("new fan", 0, "n0-0-0")
	wantCode(t, "without a leader", err, codes.Unavailable, "no leader: nothing was changed: ")
	_, err = operator.ApplyTopology(t.Context(), &lofamov1.ApplyTopologyRequest{Topology: labelled(before, "n0-0-0", "rack", "r1")})
	wantCode(t, "without a leader", err, codes.Unavailable, "no leader: nothing was changed: ")
	if now := topologyOf(t, operator); !proto.Equal(now, before) {
		t.Errorf("without a leader the topology is %v", now)
	}
}
