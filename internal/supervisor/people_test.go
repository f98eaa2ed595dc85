package supervisor_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// TestResponseWaitsForTwoApprovals: a response waits for two people, who approve through any replica: one before the leader is lost, and
// the other after it. Both approvals are in the audit, whose chain holds across both leaders.
func TestResponseWaitsForTwoApprovals(t *testing.T) {
	t.Parallel()
	c, sups, leader := three(t, supervisortest.Options{Configure: func(cfg *config.Supervisor) {
		cfg.Responses.Grace,
			cfg.Responses.StormDelay = 0, 0
	}})
	follower, other := (leader+1)%3, (leader+2)%3
	as := func(conn *grpc.ClientConn) lofamov1.ResponseServiceClient {
		return lofamov1.NewResponseServiceClient(conn)
	}
	operator := as(c.Person(t, pki.RoleOperator, "olga", c.Configs[follower].GRPC))
	ann := as(c.Person(t, pki.RoleApprover, "ann", c.Configs[follower].GRPC))
	viewer := as(c.Person(t, pki.RoleViewer, "eve", c.Configs[other].GRPC))
	if _, err := operator.ApplyPolicies(t.Context(), &lofamov1.ApplyPoliciesRequest{Documents: `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: cordon}
spec:
  mode: enforce
  match: fault.component == "memory" && fault.state == "FAILED"
  guards: {approvals: 2}
  steps:
  - {name: cordon, executor: kubernetes.cordon}
`}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*supervisortest.Wait)
	defer cancel()
	watch, err := viewer.WatchResponses(ctx, &lofamov1.WatchResponsesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	await := func(what string, want func(*lofamov1.Response) bool) *lofamov1.Response {
		t.Helper()
		for {
			resp, err := watch.Recv()
			if err != nil {
				t.Fatalf("waiting for %s: %v", what, err)
			}
			for _, r := range resp.GetResponses() {
				if want(r) {
					return r
				}
			}
		}
	}
	periods, err := c.Configs[0].Timing()
	if err != nil {
		t.Fatal(err)
	}
	a := c.Agents["n0-0-0"]
	defer supervisortest.Every(periods.DigestPeriod/2, func() { // its fault lasts
		_, b := a.Report(t, fault.HalfHost, true, fault.Observation{Component: fault.ComponentHost, State: fault.Normal, Kind: fault.KindSelf},
			fault.Observation{Component: fault.ComponentMemory, State: fault.Failed, Kind: fault.KindSelf})
		for _, cfg := range c.Configs {
			a.Send(t, cfg.Report, b)
		}
	})()
	r := await("approvals", func(r *lofamov1.Response) bool { return r.GetReason() == "approval" })
	if r.GetPolicy() != "cordon" || r.GetNode() != "n0-0-0" || r.GetState() != lofamov1.ResponseState_RESPONSE_WAITING {
		t.Errorf("%v", r)
	}
	approve := &lofamov1.ApproveResponseRequest{Id: r.GetId(), Reason: "looked at it"}
	_, err = operator.ApproveResponse(t.Context(), approve)
	wantCode(t, "an operator", err, codes.PermissionDenied, "operator")
	if resp, err := ann.ApproveResponse(t.Context(), approve); err != nil || resp.GetResponse().GetDetail()[:6] != "1 of 2" ||
		resp.GetResponse().GetApprovals()[0].GetSubject() != "approver/ann" {
		t.Errorf("%v, %v", resp, err)
	}
	_, err = as(c.Person(t, pki.RoleApprover, "ann", c.Configs[leader].GRPC)).ApproveResponse(t.Context(), approve)
	wantCode(t, "the same person at another replica", err, codes.Aborted, "has approved it")
	_, err = ann.ApproveResponse(t.Context(), &lofamov1.ApproveResponseRequest{Id: "r1-99"})
	wantCode(t, "no such response", err, codes.NotFound, "there is none")

	stop(t, sups[leader])
	sups[leader] = nil
	next := c.AwaitLeader(t, follower, other)
	bob := as(c.Person(t, pki.RoleApprover, "bob", c.Configs[follower+other-next].GRPC))
	supervisortest.Eventually(t, "the next leader hears the other one", func() bool {
		_, err := bob.ApproveResponse(t.Context(), approve)
		return err == nil
	})
	done := await("an end", func(r *lofamov1.Response) bool { return r.GetState() == lofamov1.ResponseState_RESPONSE_FAILED })
	if len(done.GetApprovals()) != 2 || done.GetSteps()[0].GetAttempt() != 1 || done.GetToken() <= r.GetToken() {
		t.Errorf("%v", done)
	}
	export, err := viewer.ExportAudit(t.Context(), &lofamov1.ExportAuditRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var chain response.AuditChecker
	var approved []string
	for {
		resp, err := export.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range resp.GetLines() {
			if err := chain.Check([]byte(l.GetLine())); err != nil {
				t.Error(err)
			}
			if l.GetAct() == "approved" {
				approved = append(approved, l.GetSubject()+": "+l.GetDetail())
			}
		}
	}
	if len(approved) != 2 || approved[0] != "approver/ann: looked at it" || approved[1] != "approver/bob: looked at it" || chain.Lines() < 5 {
		t.Errorf("%d lines, approved by %v", chain.Lines(), approved)
	}
}
