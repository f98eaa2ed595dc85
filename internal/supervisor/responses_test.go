package supervisor_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// applyReseat applies a policy whose response waits for a person when a memory is FAILED.
func applyReseat(t *testing.T, c *supervisortest.Cluster, addr string) {
	t.Helper()
	operator := lofamov1.NewResponseServiceClient(c.Conn(t, pki.RoleOperator, addr))
	if _, err := operator.ApplyPolicies(t.Context(), &lofamov1.ApplyPoliciesRequest{Documents: `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: reseat}
spec:
  mode: enforce
  match: fault.component == "memory" && fault.state == "FAILED"
  guards: {approvals: 1}
  steps:
  - {name: reseat, executor: command, parameters: {command: reseat}}
`}); err != nil {
		t.Fatal(err)
	}
}

// TestResponses: an agent reports a fault, and a response is proposed. It begins on the leader's evidence once a
// person approves, and fails because no executor exists. After the loss of the leader another one continues with it.
func TestResponses(t *testing.T) {
	t.Parallel()
	c, replicas, leader := three(t, supervisortest.Options{Configure: func(cfg *config.Supervisor) {
		cfg.Responses.Grace, cfg.Responses.StormDelay = 0, 0
	}})
	follower := (leader + 1) % 3
	s := store.NewEtcd(etcdClient(t, c.Configs[follower]), store.Options{})
	applyReseat(t, c, c.Configs[follower].GRPC)
	await := func(what string, want func(*response.Response) bool) *response.Response {
		t.Helper()
		var found *response.Response
		supervisortest.Eventually(t, what, func() bool {
			got, err := s.OwnResponses(t.Context())
			if err = errors.Join(append(got.Unread, err)...); err != nil {
				t.Fatal(err)
			}
			for _, rec := range got.Records {
				if r, ok := rec.(*response.Response); ok && want(r) {
					found = r
				}
			}
			return found != nil
		})
		return found
	}
	tell := func(st fault.State, to string) {
		a := c.Agents["n0-0-0"]
		id, b := a.Report(t, fault.HalfHost, false, fault.Observation{Component: fault.ComponentMemory, State: st, Kind: fault.KindSelf})
		a.Deliver(t, id, b, to)
	}
	tell(fault.Failed, c.Configs[leader].Report)
	waiting := await("a response that waits for a person", func(r *response.Response) bool { return r.Reason == response.ReasonApproval })
	approver := lofamov1.NewResponseServiceClient(c.Person(t, pki.RoleApprover, "ann", c.Configs[follower].GRPC))
	if _, err := approver.ApproveResponse(t.Context(), &lofamov1.ApproveResponseRequest{Id: waiting.ID, Reason: "tried"}); err != nil {
		t.Fatal(err)
	}
	r := await("a response that has failed", func(r *response.Response) bool { return r.State == response.Failed })
	if r.Target != (response.Target{Node: "n0-0-0", Component: fault.ComponentMemory}) || r.Policy != "reseat" || r.Steps[0].Attempt != 1 || r.Steps[0].Changed ||
		r.Steps[0].Detail != "there is no executor for command: responses.executors of the supervisors' configuration names none" {
		t.Errorf("%+v", *r)
	}
	stop(t, replicas[leader])
	tell(fault.Normal, c.Configs[follower].Report)
	closed := await("it to be closed", func(r *response.Response) bool { return !r.Closed.IsZero() })
	if closed.ID != r.ID || closed.Token <= r.Token || closed.State != response.Failed {
		t.Errorf("%+v after %+v", *closed, *r)
	}
	lines, _, err := s.Audit(t.Context(), 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	var acts []response.Act
	for _, l := range lines {
		acts = append(acts, l.Decision.Act)
	}
	if want := []response.Act{response.Proposes, response.Refuses, response.Approves, response.Starts, response.Fails, response.Fails, response.Closes}; !slices.Equal(acts, want) {
		t.Errorf("the audit says %v: want %v", acts, want)
	}
}

// TestResponseToDeadNode: an action that may end work begins on a dead node, because two of its neighbours report it
// dead, and the evidence is as new as their last reports.
func TestResponseToDeadNode(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{Dims: "4x1x1", Configure: func(cfg *config.Supervisor) {
		cfg.Responses.Grace, cfg.Responses.StormDelay, cfg.Responses.MaxEvidenceAge = 0, 0, config.Duration(2*time.Second)
	}})
	cfg := c.Configs[0]
	start(t, cfg)
	c.AwaitLeader(t, 0)
	periods, err := cfg.Timing()
	if err != nil {
		t.Fatal(err)
	}
	operator := lofamov1.NewResponseServiceClient(c.Conn(t, pki.RoleOperator, cfg.GRPC))
	if _, err := operator.ApplyPolicies(t.Context(), &lofamov1.ApplyPoliciesRequest{Documents: `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: reseat}
spec:
  mode: enforce
  match: fault.component == "node" && fault.state == "FAILED" && fault.duration >= duration("3s")
  steps:
  - {name: reseat, executor: command, parameters: {command: reseat}}
`}); err != nil {
		t.Fatal(err)
	}
	stop := c.Speak(t, periods.DigestPeriod/2, cfg.Report, func(fault.NodeID) bool { return true })
	supervisortest.Eventually(t, "all to be well", func() bool {
		sum, err := c.Client(t, cfg.GRPC).GetSummary(t.Context(), &lofamov1.GetSummaryRequest{})
		return err == nil && sum.GetNodes().GetNormal() == 4
	})
	stop()
	c.Agents["n1-0-0"].Kill(fault.HalfHost, fault.HalfDNP)
	defer c.Mourn(t, periods.DigestPeriod/2, cfg.Report, func(id fault.NodeID) bool { return id == "n1-0-0" })()
	supervisortest.Eventually(t, "the step to have been begun", func() bool {
		list, err := operator.ListResponses(t.Context(), &lofamov1.ListResponsesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.GetResponses() {
			if r.GetNode() == "n1-0-0" && r.GetSteps()[0].GetAttempt() > 0 {
				return true
			}
		}
		return false
	})
}
