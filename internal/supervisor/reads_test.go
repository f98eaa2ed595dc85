package supervisor_test

import (
	"fmt"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestReadsAtAnyReplica: all pages of a list have one revision at whichever replica, a watch that begins with the map
// loses nothing, and many watchers at all replicas see each change once, in order, across a change of the leader.
func TestReadsAtAnyReplica(t *testing.T) {
	c, sups, leader := three(t, supervisortest.Options{})
	followers := []int{(leader + 1) % 3, (leader + 2) % 3}
	clients := make([]lofamov1.FaultSupervisorClient, 3)
	for i, cfg := range c.Configs {
		clients[i] = c.Client(t, cfg.GRPC)
	}
	report := func(node fault.NodeID, to int, st fault.State) {
		t.Helper()
		a := c.Agents[node]
		id, b := a.Report(t, fault.HalfHost, false, temperature(st))
		a.Deliver(t, id, b, c.Configs[to].Report)
	}
	report("n0-0-0", leader, fault.Sick)

	whole, err := clients[leader].ListNodes(t.Context(), &lofamov1.ListNodesRequest{Brief: true})
	if err != nil {
		t.Fatal(err)
	}
	req := &lofamov1.ListNodesRequest{Brief: true, Limit: 1}
	var got []string
	var revision uint64
	for n := 0; ; n++ {
		page := supervisortest.Fresh(t, clients[followers[n%2]].ListNodes, req)
		if revision == 0 {
			revision = page.GetRevision()
			report("n1-1-0", leader, fault.Sick)
		}
		if page.GetRevision() != revision {
			t.Errorf("page %d: revision %d: want %d", n, page.GetRevision(), revision)
		}
		for _, node := range page.GetNodes() {
			got = append(got, fmt.Sprint(node.GetId(), node.GetState()))
		}
		if req.Continue = page.GetContinue(); req.GetContinue() == "" {
			break
		}
	}
	for i, n := range whole.GetNodes() {
		if i >= len(got) || got[i] != fmt.Sprint(n.GetId(), n.GetState()) {
			t.Errorf("pages %v, want %v", got, whole.GetNodes())
			break
		}
	}

	const sick = "component=temperature,to=SICK"
	first, _ := watch(t, clients[followers[0]], &lofamov1.WatchRequest{Initial: true, FieldSelector: sick})
	initial := nextEvents(t, first)
	if len(initial.GetEvents()) != 2 || !initial.GetSynced() {
		t.Fatalf("the map that a watch begins with: %v", initial)
	}
	after := initial.GetRevision()
	const watchers = 40
	var wg sync.WaitGroup
	for i := range watchers {
		follower := followers[i%2]
		stream, _ := watch(t, clients[follower], &lofamov1.WatchRequest{AfterRevision: after, FieldSelector: sick})
		wg.Go(func() {
			for _, want := range []string{"n1-0-0", "n0-1-0"} {
				resp, err := receiveEvents(stream)
				if err != nil {
					t.Errorf("watcher %d at replica %d: %v, want %s", i, follower, err, want)
					return
				}
				if ev := resp.GetEvents()[0]; ev.GetNode() != want {
					t.Errorf("watcher %d at replica %d: %v, want %s", i, follower, ev, want)
				}
			}
		})
	}
	page := supervisortest.Fresh(t, clients[followers[0]].ListNodes, &lofamov1.ListNodesRequest{Limit: 1})
	report("n1-0-0", followers[0], fault.Sick) // the next leader begins with this map, and never has that of the page
	stop(t, sups[leader])
	c.AwaitLeader(t, followers...)
	report("n0-1-0", followers[1], fault.Sick)
	wg.Wait()
	if resp := nextEvents(t, first); resp.GetEvents()[0].GetNode() != "n1-0-0" {
		t.Errorf("after the map: %v", resp)
	}
	// The new leader does not know the map of the pages.
	_, err = clients[followers[0]].ListNodes(t.Context(), &lofamov1.ListNodesRequest{Limit: 1, Continue: page.GetContinue()})
	if status.Code(err) != codes.OutOfRange {
		t.Errorf("a page of a leader that is gone: %v", err)
	}
	// Either replica reads missed events from history.
	for _, i := range followers {
		stream, _ := watch(t, clients[i], &lofamov1.WatchRequest{AfterRevision: after, FieldSelector: sick})
		for _, want := range []string{"n1-0-0", "n0-1-0"} {
			if ev := nextEvents(t, stream).GetEvents()[0]; ev.GetNode() != want {
				t.Errorf("resumed at replica %d: %v, want %s", i, ev, want)
			}
		}
		sum := supervisortest.Fresh(t, clients[i].GetSummary, &lofamov1.GetSummaryRequest{By: []string{"dimension/X"}})
		if len(sum.GetBy()) != 2 {
			t.Errorf("summary at replica %d: %v", i, sum)
		}
		x := supervisortest.Fresh(t, clients[i].Explain, &lofamov1.ExplainRequest{Node: "0,1,0", Component: "temperature"})
		if x.GetRule() == "" || len(x.GetUntil()) == 0 {
			t.Errorf("explained at replica %d: %v", i, x)
		}
		h := supervisortest.Fresh(t, clients[i].GetHistory, &lofamov1.GetHistoryRequest{Node: "0,1,0", Component: "temperature"})
		if len(h.GetEvents()) == 0 || len(h.GetTimeIn()) != 4 || h.GetTimeIn()[2].GetTimes() != 1 {
			t.Errorf("history at replica %d: %v", i, h)
		}
	}
}
