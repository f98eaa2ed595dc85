package supervisor_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/respond"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// applyReseat applies a policy whose response waits for a person when a memory is FAILED.
func applyReseat(t *testing.T, c *supervisortest.Cluster, addr string) {
	t.Helper()
	applyPolicy(t, c, addr, `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: reseat}
spec:
  mode: enforce
  match: fault.component == "memory" && fault.state == "FAILED"
  guards: {approvals: 1}
  steps:
  - {name: reseat, executor: command, parameters: {command: reseat}}
`)
}

func applyPolicy(t *testing.T, c *supervisortest.Cluster, addr, document string) {
	t.Helper()
	operator := lofamov1.NewResponseServiceClient(c.Conn(t, pki.RoleOperator, addr))
	if _, err := operator.ApplyPolicies(t.Context(), &lofamov1.ApplyPoliciesRequest{Documents: document}); err != nil {
		t.Fatal(err)
	}
}

// TestApprovedResponseSurvivesLossOfLeader: an agent reports a fault, and a response is proposed. It begins on the leader's evidence once a
// person approves, and fails because no executor exists. After the loss of the leader another one continues the response.
func TestApprovedResponseSurvivesLossOfLeader(t *testing.T) {
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
	if r.Target != (response.Target{Node: "n0-0-0", Component: fault.ComponentMemory}) || r.Policy != "reseat" || r.Steps[0].Attempt != 1 ||
		r.Steps[0].Changed ||
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
	if want := []response.Act{response.Proposes, response.Refuses, response.Approves, response.Starts, response.Fails, response.Fails,
		response.Closes}; !slices.Equal(acts, want) {
		t.Errorf("the audit says %v: want %v", acts, want)
	}
}

// TestResponseToDeadNode: an action that may end work begins on a dead node, because two of its neighbours report it
// dead, and the evidence is as new as their last reports.
func TestResponseToDeadNode(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{Dims: "4x1x1", Preset: config.PresetFast, Configure: func(cfg *config.Supervisor) {
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

// asBefore is a supervisor's awareness with an older map, as a responder has it while a change is on its way.
type asBefore struct {
	respond.Awareness

	m view.Map
}

func (a asBefore) Map(context.Context) (view.Map, error) { return a.m, nil }

// does is an executor that reports the nodes on which it acts.
type does chan fault.NodeID

func (d does) Do(_ context.Context, j executor.Job) executor.Result {
	d <- j.Target.Node
	return executor.Done("done")
}

// TestRecoveredNodeIsSparedAtLastCheck: a node recovers after the gates of a step that may end its work, and the
// step does not begin. The node whose fault stands gets it.
func TestRecoveredNodeIsSparedAtLastCheck(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{Configure: func(cfg *config.Supervisor) { cfg.Responses.Enabled = false }})
	cfg := c.Configs[0]
	sup := start(t, cfg)
	c.AwaitLeader(t, 0)
	const recovered, faulty = fault.NodeID("n0-0-0"), fault.NodeID("n1-0-0")
	memory := fault.ComponentMemory
	tell := func(id fault.NodeID, st fault.State) view.Map {
		t.Helper()
		a := c.Agents[id]
		report, b := a.Report(t, fault.HalfHost, false, fault.Observation{Component: memory, State: st, Kind: fault.KindSelf})
		a.Deliver(t, report, b, cfg.Report)
		var m view.Map
		supervisortest.Eventually(t, "the map to show the report", func() bool {
			var err error
			m, err = sup.Awareness().Map(t.Context())
			e, _ := m.Find(id)
			return err == nil && view.StateOf(e.Status, memory) == st
		})
		return m
	}
	tell(recovered, fault.Normal)
	before := tell(faulty, fault.Normal)
	tell(recovered, fault.Failed)
	during := tell(faulty, fault.Failed)
	tell(recovered, fault.Normal)
	targets := []response.Target{{Node: recovered, Component: memory}, {Node: faulty, Component: memory}}
	seen := sup.Awareness().Evidence(t.Context(), targets)
	if ev, ok := seen[targets[0]]; ok {
		t.Errorf("evidence for a fault that is gone: %+v", ev)
	}
	if ev := seen[targets[1]]; ev.State != fault.Failed || !ev.Evidence.Own {
		t.Errorf("evidence for the fault that stands: %+v", ev)
	}
	applyPolicy(t, c, cfg.GRPC, `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: reseat}
spec:
  mode: enforce
  match: fault.component == "memory" && fault.state == "FAILED"
  steps:
  - {name: reseat, executor: command, parameters: {command: reseat}, retries: 0}
`)
	etcd, acted := etcdClient(t, cfg), make(does, 10)
	const key = store.ElectionPrefix + "/responder of the test"
	put, err := etcd.Put(t.Context(), key, "s")
	if err != nil {
		t.Fatal(err)
	}
	limits := response.Default()
	limits.Grace, limits.StormDelay, limits.MaxPercent, limits.BreakerNodes = 0, 0, 100, 1000
	committed := store.NewEtcd(etcd, store.Options{})
	r, err := respond.New(respond.Config{
		Cluster: cfg.Cluster, Limits: limits, Store: committed, Incidents: store.NewIncidentFeed(committed, supervisortest.Logger(t)),
		Awareness:   asBefore{sup.Awareness(), before},
		Supervisors: func() []response.SupervisorInfo { return []response.SupervisorInfo{{ID: "s1", Alive: true}} },
		Executors:   map[response.Kind]executor.Executor{response.Command: acted},
		Metrics:     respond.NewMetrics(prometheus.NewRegistry()), Logger: supervisortest.Logger(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { r.Run(ctx) })
	wg.Go(func() { r.Lead(ctx, store.Fence{Key: key, Rev: put.Header.Revision}) })
	supervisortest.Eventually(t, "the responder to lead", r.Leading)
	r.MapChanged(during, nil)
	ended := map[fault.NodeID]*response.Response{}
	supervisortest.Eventually(t, "both responses to end", func() bool {
		list, _, err := r.Responses(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, res := range list {
			if res.Steps[0].Attempt > 0 && res.State != response.Running {
				ended[res.Target.Node] = res
			}
		}
		return len(ended) == 2
	})
	if n := len(acted); n != 1 || <-acted != faulty {
		t.Errorf("%d nodes were acted on: want only %s", n, faulty)
	}
	spared := ended[recovered].Steps[0]
	if want := "not begun: the leader's map no longer has evidence of the fault of n0-0-0/memory"; spared.Changed || spared.Detail != want {
		t.Errorf("%+v: want %q", spared, want)
	}
}
