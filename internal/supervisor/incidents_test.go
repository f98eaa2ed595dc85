package supervisor_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// listed returns all incidents, in pages of one.
func listed(t *testing.T, c lofamov1.FaultSupervisorClient, req *lofamov1.ListIncidentsRequest) []*lofamov1.Incident {
	t.Helper()
	var out []*lofamov1.Incident
	for req.Limit = 1; ; {
		resp, err := c.ListIncidents(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.GetIncidents()) > 1 {
			t.Fatalf("a page has %d incidents: want 1", len(resp.GetIncidents()))
		}
		out = append(out, resp.GetIncidents()...)
		if req.Continue = resp.GetContinue(); req.GetContinue() == "" {
			return out
		}
	}
}

// TestIncidentsAreServedByAnyReplica: every replica lists, watches and acknowledges the same incidents, and refuses what
// does not exist.
func TestIncidentsAreServedByAnyReplica(t *testing.T) {
	t.Parallel()
	c, _, leader := three(t, supervisortest.Options{})
	follower := c.Operator(t, c.Configs[(leader+1)%3].GRPC)
	ctx, cancel := context.WithTimeout(t.Context(), 4*supervisortest.Wait)
	defer cancel()
	watching, err := follower.WatchIncidents(ctx, &lofamov1.WatchIncidentsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if first, err := watching.Recv(); err != nil || len(first.GetIncidents()) != 0 {
		t.Fatalf("%v, %v", first, err)
	}
	for _, node := range []string{"n0-0-0", "n1-0-0"} {
		a := c.Agents[fault.NodeID(node)]
		id, b := a.Report(t, fault.HalfHost, false, temperature(fault.Sick))
		a.Deliver(t, id, b, c.Configs[leader].Report)
	}
	var seen []*lofamov1.WatchIncidentsResponse
	for n := 0; n < 2; {
		resp, err := watching.Recv()
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, resp)
		n += len(resp.GetIncidents())
	}
	all := listed(t, follower, &lofamov1.ListIncidentsRequest{})
	if len(all) != 2 || all[0].GetComponent() != "temperature" || all[0].GetState() != lofamov1.IncidentState_OPEN ||
		all[0].GetNode() != "n1-0-0" {
		t.Fatalf("incidents %v", all)
	}
	for i, cfg := range c.Configs {
		here := listed(t, c.Client(t, cfg.GRPC), &lofamov1.ListIncidentsRequest{Node: "1,0,0"})
		if len(here) != 1 || !proto.Equal(here[0], all[0]) {
			t.Errorf("replica %d lists %v: want %v", i, here, all[0])
		}
	}
	resumed, err := c.Client(t, c.Configs[leader].GRPC).WatchIncidents(ctx,
		&lofamov1.WatchIncidentsRequest{AfterRevision: seen[0].GetRevision()})
	if err != nil {
		t.Fatal(err)
	}
	if len(seen) == 2 { // else one commit had both
		if resp, err := resumed.Recv(); err != nil || len(resp.GetIncidents()) != 1 || resp.GetIncidents()[0].GetId() != all[0].GetId() {
			t.Errorf("the watch resumes with %v, %v: want only incident %s", resp, err, all[0].GetId())
		}
	}
	acknowledgeAll(t, follower, all[0])
	resp, err := watching.Recv()
	for err == nil && resp.GetIncidents()[0].GetAcknowledgement() == nil {
		resp, err = watching.Recv()
	}
	if err != nil || resp.GetIncidents()[0].GetId() != all[0].GetId() {
		t.Errorf("%v, %v", resp, err)
	}
	refusedIncidents(t, follower)
}

// acknowledgeAll adds as many notes as there may be.
func acknowledgeAll(t *testing.T, c lofamov1.FaultSupervisorClient, in *lofamov1.Incident) {
	t.Helper()
	for i := range 33 {
		resp, err := c.AcknowledgeIncident(t.Context(), &lofamov1.AcknowledgeIncidentRequest{Id: in.GetId(), Note: fmt.Sprint(i)})
		if i == 32 {
			wantCode(t, "33 notes", err, codes.ResourceExhausted, "want at most 32")
			return
		}
		if err != nil || len(resp.GetIncident().GetNotes()) != i+1 || resp.GetIncident().GetAcknowledgement().GetBy() != "operator/someone" ||
			resp.GetRevision() <= in.GetRevision() {
			t.Fatalf("note %d: %v, %v", i, resp, err)
		}
	}
}

func refusedIncidents(t *testing.T, c lofamov1.FaultSupervisorClient) {
	t.Helper()
	_, err := c.ListIncidents(t.Context(), &lofamov1.ListIncidentsRequest{States: []lofamov1.IncidentState{9}})
	wantCode(t, "a bad state", err, codes.InvalidArgument, "states: given 9: want OPEN, RECOVERING or CLOSED")
	_, err = c.ListIncidents(t.Context(), &lofamov1.ListIncidentsRequest{Node: "nobody"})
	wantCode(t, "an unknown node", err, codes.NotFound, "nobody")
	_, err = c.ListIncidents(t.Context(), &lofamov1.ListIncidentsRequest{Limit: 10_001})
	wantCode(t, "a large page", err, codes.InvalidArgument, "limit")
	_, err = c.ListIncidents(t.Context(), &lofamov1.ListIncidentsRequest{Continue: "x"})
	wantCode(t, "a bad token", err, codes.InvalidArgument, "continue")
	_, err = c.GetIncident(t.Context(), &lofamov1.GetIncidentRequest{Id: "x"})
	wantCode(t, "a bad id", err, codes.InvalidArgument, `id: given "x"`)
	_, err = c.GetIncident(t.Context(), &lofamov1.GetIncidentRequest{Id: "aaaa-aaaaaaaa"})
	wantCode(t, "another cluster", err, codes.NotFound, "belongs to another cluster")
	_, err = c.AcknowledgeIncident(t.Context(), &lofamov1.AcknowledgeIncidentRequest{Id: "x"})
	wantCode(t, "acknowledges a bad id", err, codes.InvalidArgument, `id: given "x": want an incident's id, such as `)
	_, err = c.AcknowledgeIncident(t.Context(), &lofamov1.AcknowledgeIncidentRequest{Id: "aaaa-aaaaaaaa", Note: strings.Repeat("x", 4097)})
	wantCode(t, "another cluster's", err, codes.NotFound, "belongs to another cluster")
	_, err = c.AcknowledgeIncident(t.Context(), &lofamov1.AcknowledgeIncidentRequest{Id: "aaaa-aaaaaaaa", Note: strings.Repeat("x", 8<<20)})
	wantCode(t, "a note of 8 MiB", err, codes.ResourceExhausted, "note: want at most 4096 bytes")
	watching, err := c.WatchIncidents(t.Context(), &lofamov1.WatchIncidentsRequest{AfterRevision: 1 << 60})
	if err == nil {
		_, err = watching.Recv()
	}
	wantCode(t, "a revision of the future", err, codes.OutOfRange, "after_revision")
}
