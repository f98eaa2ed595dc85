package api

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// leader is an engine that has received one report.
type leader struct {
	follower
	asked chan engine.ReportQuery
}

func (l leader) Reports(_ context.Context, q engine.ReportQuery) (engine.ReportView, error) {
	l.asked <- q
	status := &lofamov1.DeliveryStatus{State: lofamov1.PathState_ARMED, Primary: "eth0>s1"}
	return engine.ReportView{
		Reports: []engine.Received{{
			ID:   fault.ReportID{Origin: fault.Origin{Node: "b", Half: fault.HalfDNP}, Epoch: 3, Seq: 9},
			Path: fault.PathTorus, Hops: []fault.Hop{{Node: "b", Half: fault.HalfDNP, Held: time.Millisecond}, {Node: "a", Half: fault.HalfHost}},
			From: "10.0.0.1:7000", Latency: 12 * time.Millisecond, Arrived: time.Now(), Copies: 2,
			Committed: true, Commit: 4 * time.Millisecond,
			Said: []engine.Said{{Node: "b", Component: fault.Link(grid.XPlus), State: fault.Failed}},
		}},
		Senders: map[fault.NodeID]engine.Sender{"b": {Status: status, At: time.Now(), OldAt: time.Now().Add(time.Hour)},
			"a": {Status: status, At: time.Now().Add(-time.Minute), OldAt: time.Now().Add(-time.Second)}},
	}, nil
}

func TestReportsAreListedFromLeader(t *testing.T) {
	l := leader{asked: make(chan engine.ReportQuery, 4)}
	h := serveAs(t, l, 16)
	resp, err := h.client.ListReports(t.Context(), &lofamov1.ListReportsRequest{Node: "1,0,0", Limit: 7, Digests: true})
	if err != nil {
		t.Fatal(err)
	}
	if q := <-l.asked; q != (engine.ReportQuery{Node: "b", Limit: 7, Digests: true}) {
		t.Errorf("asked for %+v", q)
	}
	want := &lofamov1.ReportStatus{
		Node: "b", Half: "dnp", Epoch: 3, Seq: 9, Path: lofamov1.Path_TORUS, From: "10.0.0.1:7000",
		Latency: durationpb.New(12 * time.Millisecond),
		Hops: []*lofamov1.ReportHop{{Node: "b", Half: "dnp", Held: durationpb.New(time.Millisecond)},
			{Node: "a", Half: "host", Held: durationpb.New(0)}},
		Commit: durationpb.New(4 * time.Millisecond), Committed: true, Copies: 2, Says: []string{"b link/X+ FAILED"},
	}
	if d := cmp.Diff(want, resp.GetReports()[0], protocmp.Transform(), protocmp.IgnoreFields(&lofamov1.ReportStatus{}, "age")); d != "" {
		t.Error(d)
	}
	if resp.GetReports()[0].GetAge() == nil {
		t.Error("no age")
	}
	if s := resp.GetSenders(); len(s) != 1 || s[0].GetNode() != "b" || s[0].GetCoord() != "1,0,0" ||
		s[0].GetDelivery().GetPrimary() != "eth0>s1" || s[0].GetAge() == nil {
		t.Errorf("senders %v", s)
	}
	resp, err = h.client.ListReports(t.Context(), &lofamov1.ListReportsRequest{})
	if q := <-l.asked; err != nil || q != (engine.ReportQuery{Limit: 100}) || len(resp.GetSenders()) != 2 ||
		resp.GetSenders()[0].GetNode() != "a" ||
		!resp.GetSenders()[0].GetOld() || resp.GetSenders()[1].GetOld() {
		t.Errorf("asked for %+v; %v, %v", q, resp, err)
	}
}

func TestListReportsRefusals(t *testing.T) {
	h := serve(t, 16)
	for _, tc := range []struct {
		req  *lofamov1.ListReportsRequest
		code codes.Code
		text string
	}{
		{&lofamov1.ListReportsRequest{Limit: 4097}, codes.InvalidArgument, "limit: given 4097: want at most 4096"},
		{&lofamov1.ListReportsRequest{Node: "9,0,0"}, codes.InvalidArgument, "outside"},
		{&lofamov1.ListReportsRequest{Node: "nobody"}, codes.NotFound, "nobody"},
		{&lofamov1.ListReportsRequest{}, codes.Unavailable, "only the leader"},
	} {
		_, err := h.client.ListReports(t.Context(), tc.req)
		refused(t, tc.req.String(), err, tc.code, tc.text)
	}
	_, err := h.client.ListReports(metadata.AppendToOutgoingContext(t.Context(), proxiedKey, "1"), &lofamov1.ListReportsRequest{})
	refused(t, "passed on", err, codes.FailedPrecondition, "does not lead")
}
