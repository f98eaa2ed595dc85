package supervisor_test

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor"
	"github.com/lofamo/lofamo/internal/supervisor/api"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// three starts three replicas and returns them with the leader's index.
func three(t *testing.T, o supervisortest.Options) (*supervisortest.Cluster, []*supervisor.Supervisor, int) {
	t.Helper()
	return threeWith(t, o, supervisor.PatientLease, func() *slog.Logger { return supervisortest.Logger(t) })
}

// threeWith is three with another lease and a logger for each replica.
func threeWith(t *testing.T, o supervisortest.Options, lease supervisor.Option, logger func() *slog.Logger) (*supervisortest.Cluster,
	[]*supervisor.Supervisor, int,
) {
	t.Helper()
	o.Replicas = 3
	c := supervisortest.New(t, o)
	sups := make([]*supervisor.Supervisor, 3)
	var wg sync.WaitGroup
	for i := range sups {
		wg.Go(func() {
			s, err := supervisor.New(c.Configs[i], logger(), lease)
			if err == nil {
				err = s.Start(t.Context())
			}
			if err != nil {
				t.Error(err)
				return
			}
			sups[i] = s
		})
	}
	wg.Wait()
	t.Cleanup(func() {
		for _, s := range sups {
			if s != nil {
				wg.Go(func() { _ = s.Stop(t.Context()) }) // without a quorum it cannot resign
			}
		}
		wg.Wait()
	})
	if t.Failed() {
		t.FailNow()
	}
	return c, sups, c.AwaitLeader(t)
}

// freshNode returns a node whose age the leader knows.
func freshNode(t *testing.T, client lofamov1.FaultSupervisorClient, node string) (n *lofamov1.Node) {
	t.Helper()
	supervisortest.Eventually(t, "the leader's answer about "+node, func() bool {
		var err error
		n, err = client.GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: node})
		return err == nil && n.GetAge() != nil
	})
	return n
}

func TestAnyReplicaServes(t *testing.T) {
	c, _, leader := three(t, supervisortest.Options{})
	follower := (leader + 1) % 3
	cfg := c.Configs[follower]
	client := c.Client(t, cfg.GRPC)
	committed, _ := watch(t, client, &lofamov1.WatchRequest{})
	begin(t, committed)
	seen, _ := watch(t, client, &lofamov1.WatchRequest{AsSeen: true, Node: "n0-1-0"})
	begin(t, seen)

	a := c.Agents["n0-1-0"]
	id, b := a.Report(t, fault.HalfHost, false, temperature(fault.Failed))
	a.Send(t, cfg.Report, b)
	rec, com := a.Await(t, id, lofamov1.Ack_RECEIVED), a.Await(t, id, lofamov1.Ack_COMMITTED)
	if rec.From != cfg.ID || com.From != cfg.ID || com.GetLeader() != c.Configs[leader].ID {
		t.Errorf("acks %v and %v, want both from %s, with leader %s", rec, com, cfg.ID, c.Configs[leader].ID)
	}
	ev := awaitEvent(t, committed, "n0-1-0", "temperature", lofamov1.State_FAILED)
	// The first event is as seen, without a revision; the second is committed.
	first := awaitEvent(t, seen, "n0-1-0", "temperature", lofamov1.State_FAILED)
	second := awaitEvent(t, seen, "n0-1-0", "temperature", lofamov1.State_FAILED)
	if !first.GetAsSeen() || first.GetRevision() != 0 || second.GetAsSeen() || second.GetRevision() != ev.GetRevision() {
		t.Errorf("as seen %v, then %v", first, second)
	}
	// The follower asks the leader, which alone knows ages.
	freshNode(t, client, "0,1,0")
	list := supervisortest.Fresh(t, client.ListNodes, &lofamov1.ListNodesRequest{})
	if len(list.GetNodes()) != 4 || list.GetCluster().GetLeader() != c.Configs[leader].ID {
		t.Errorf("list %v", list)
	}
	supervisortest.Eventually(t, "all replicas to know each other", func() bool {
		sups, err := client.ListSupervisors(t.Context(), &lofamov1.ListSupervisorsRequest{})
		return err == nil && !slices.ContainsFunc(sups.GetSupervisors(), func(s *lofamov1.Supervisor) bool {
			return s.GetState() != lofamov1.State_NORMAL || s.GetPid() == 0 || s.GetLeader() != (s.GetId() == c.Configs[leader].ID)
		})
	})
	// Resume at the third replica, from before the change.
	third, _ := watch(t, c.Client(t, c.Configs[(leader+2)%3].GRPC), &lofamov1.WatchRequest{AfterRevision: ev.GetRevision() - 1})
	if resp := nextEvents(t, third); resp.GetRevision() != ev.GetRevision() {
		t.Errorf("resumed with %v, want revision %d", resp, ev.GetRevision())
	}
}

func TestStoppedLeaderLosesNoEvent(t *testing.T) {
	t.Parallel()
	c, sups, leader := three(t, supervisortest.Options{})
	follower := (leader + 1) % 3
	client := c.Client(t, c.Configs[follower].GRPC)
	events, _ := watch(t, client, &lofamov1.WatchRequest{})
	begin(t, events)
	var targets []string
	for _, cfg := range c.Configs {
		targets = append(targets, cfg.Report)
	}
	c.Storm(t, targets, func() {
		start := time.Now()
		stop(t, sups[leader])
		sups[leader] = nil
		next := c.AwaitLeader(t, follower, (leader+2)%3)
		t.Logf("%s stopped and %s led within %v", c.Configs[leader].ID, c.Configs[next].ID, time.Since(start))
	})
	list := supervisortest.Fresh(t, client.ListEvents, &lofamov1.ListEventsRequest{})
	c.CheckStorm(t, "list", list.GetEvents())
	if t.Failed() {
		for _, ev := range list.GetEvents() {
			t.Log(ev)
		}
	}
	var watched []*lofamov1.Event
	for watched == nil || watched[len(watched)-1].GetRevision() < list.GetRevision() && len(watched) < len(list.GetEvents()) {
		watched = append(watched, nextEvents(t, events).GetEvents()...)
	}
	c.CheckStorm(t, "watch", watched)
	nodes := supervisortest.Fresh(t, client.ListNodes, &lofamov1.ListNodesRequest{States: []lofamov1.State{lofamov1.State_SICK}})
	if len(nodes.GetNodes()) != 4 {
		t.Errorf("sick nodes after the change of leader: %v", nodes)
	}
}

func TestQuorumLostAndBack(t *testing.T) {
	t.Parallel()
	c, sups, leader := three(t, supervisortest.Options{})
	a := c.Agents["n0-0-0"]
	id, b := a.Report(t, fault.HalfHost, false, temperature(fault.Sick))
	a.Deliver(t, id, b, c.Configs[leader].Report)
	last := (leader + 1) % 3
	for i := range sups {
		if i != last {
			_ = sups[i].Stop(t.Context()) // the second cannot resign without a quorum
			sups[i] = nil
		}
	}
	client := c.Client(t, c.Configs[last].GRPC)
	supervisortest.Eventually(t, "a stale read", func() bool {
		list, err := client.ListNodes(t.Context(), &lofamov1.ListNodesRequest{})
		return err == nil && list.GetCluster().GetStale() && len(list.GetNodes()) == 4
	})
	node, err := client.GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: "n0-0-0"})
	if err != nil || node.GetState() != lofamov1.State_SICK || node.GetAge() != nil || !node.GetStale() {
		t.Errorf("the copy says %v, %v; want SICK, stale, of unknown age", node, err)
	}
	_, failed := watch(t, client, &lofamov1.WatchRequest{AsSeen: true})
	wantCode(t, "as seen without a leader", <-failed, codes.Unavailable, "leader")

	// The replica receives evidence, which stays with its sender until there is a quorum.
	id, b = a.Report(t, fault.HalfHost, false, fault.Observation{Component: fault.ComponentMemory, State: fault.Sick, Kind: fault.KindSelf})
	a.Send(t, c.Configs[last].Report, b)
	a.Await(t, id, lofamov1.Ack_RECEIVED)
	if n := a.Count(id, lofamov1.Ack_COMMITTED); n != 0 {
		t.Errorf("committed without a quorum")
	}
	sups[leader] = start(t, c.Configs[leader])
	a.Deliver(t, id, b, c.Configs[last].Report)
	c.AwaitLeader(t, leader, last)
	node, err = client.GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: "n0-0-0"})
	if err != nil || node.GetState() != lofamov1.State_SICK {
		t.Errorf("node %v, %v", node, err)
	}
	sups[leader] = nil // start's cleanup stops it
}

// TestHealthSeparatesLeadQuorumAndReplica: only the leader's health service reports the lead. Without a quorum the store does not serve,
// but the replica still does, and marks its answers with their age.
func TestHealthSeparatesLeadQuorumAndReplica(t *testing.T) {
	t.Parallel()
	const serving, not = healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING
	c, sups, leader := three(t, supervisortest.Options{})
	are := func(what string, i int, leads, store healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		h := healthpb.NewHealthClient(c.Conn(t, pki.RoleViewer, c.Configs[i].GRPC))
		for service, want := range map[string]healthpb.HealthCheckResponse_ServingStatus{
			"": serving, lofamov1.FaultSupervisor_ServiceDesc.ServiceName: serving, api.HealthLeader: leads, api.HealthStore: store,
		} {
			supervisortest.Eventually(t, fmt.Sprintf("%s: health %q to be %s", what, service, want), func() bool {
				resp, err := h.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
				return err == nil && resp.GetStatus() == want
			})
		}
	}
	are("the leader", leader, serving, serving)
	last := (leader + 1) % 3
	are("a follower", last, not, serving)
	are("the other follower", (leader+2)%3, not, serving)
	var wg sync.WaitGroup
	for i := range sups {
		if i != last {
			wg.Go(func() { _ = sups[i].Stop(t.Context()) }) // the second cannot resign without a quorum
		}
	}
	wg.Wait()
	are("without a quorum", last, not, not)
	supervisortest.Eventually(t, "nobody to be called the leader", func() bool {
		resp, err := c.Client(t, c.Configs[last].GRPC).ListSupervisors(t.Context(), &lofamov1.ListSupervisorsRequest{})
		return err == nil && len(resp.GetSupervisors()) == 3 && !slices.ContainsFunc(resp.GetSupervisors(), (*lofamov1.Supervisor).GetLeader)
	})
	for i := range sups {
		if i != last {
			sups[i] = nil
		}
	}
}

func TestRestartRestoresMap(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	cfg := c.Configs[0]
	s := start(t, cfg)
	c.AwaitLeader(t)
	a := c.Agents["n1-1-0"]
	id, b := a.Report(t, fault.HalfHost, false, temperature(fault.Sick))
	a.Deliver(t, id, b, cfg.Report)
	client := c.Client(t, cfg.GRPC)
	before, err := client.GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: "n1-1-0"})
	if err != nil {
		t.Fatal(err)
	}
	stop(t, s)
	start(t, cfg)
	c.AwaitLeader(t)
	after, err := client.GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: "n1-1-0"})
	if err != nil {
		t.Fatal(err)
	}
	if after.GetState() != before.GetState() || after.GetCause() != before.GetCause() || after.GetHostEpoch() != before.GetHostEpoch() ||
		!after.GetSince().AsTime().Equal(before.GetSince().AsTime()) || after.GetAge() != nil || after.GetRegisters() != nil {
		t.Errorf("after the restart:\n%v\nbefore:\n%v", after, before)
	}
	for i, comp := range before.GetComponents() {
		got := after.GetComponents()[i]
		if got.GetState() != comp.GetState() || !got.GetSince().AsTime().Equal(comp.GetSince().AsTime()) {
			t.Errorf("%s was %v, is %v", comp.GetName(), comp, got)
		}
	}
	// Earlier commits are known to be committed.
	a.Repeat(t, id, b, cfg.Report)
	events, err := client.ListEvents(t.Context(), &lofamov1.ListEventsRequest{Node: "n1-1-0"})
	if err != nil {
		t.Fatal(err)
	}
	sick := 0
	for _, ev := range events.GetEvents() {
		if ev.GetComponent() == "temperature" {
			sick++
		}
	}
	if sick != 1 {
		t.Errorf("%d events of one change: %v", sick, events)
	}
}
