package supervisor_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/node"
	"github.com/lofamo/lofamo/internal/supervisor"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// acting is a node with a simple ledger of actions, as far as these tests need one.
type acting struct {
	mu      sync.Mutex
	allowed []string
	token   uint64
	begun   []*lofamov1.ActOrder
	made    map[string]lofamov1.ActState
}

func (a *acting) answer(o *lofamov1.ActOrder) *lofamov1.ActStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.made == nil {
		a.made = map[string]lofamov1.ActState{}
	}
	st := &lofamov1.ActStatus{State: lofamov1.ActState_ACT_NONE, Ledger: 9, Token: a.token, Allowed: a.allowed}
	k := o.GetResponse()
	switch {
	case a.made[k] != 0:
		st.State = a.made[k]
		a.made[k] = lofamov1.ActState_ACT_DONE // on the second question
	case o.GetAsk():
		a.token = max(a.token, o.GetToken())
	case o.GetToken() < a.token:
		st.State = lofamov1.ActState_ACT_STALE
	default:
		a.begun = append(a.begun, o)
		a.made[k] = lofamov1.ActState_ACT_UNDER_WAY
		st.State = lofamov1.ActState_ACT_UNDER_WAY
	}
	return st
}

func (a *acting) did() []*lofamov1.ActOrder {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]*lofamov1.ActOrder(nil), a.begun...)
}

// TestNodeActsOnOrderOfLeader: the leader makes a node act and notifies jobs. A node of an earlier version gets no orders. A link is
// masked and restored only in the response's own name.
func TestNodeActsOnOrderOfLeader(t *testing.T) {
	c, sups, leader := three(t, supervisortest.Options{Dims: "3x1x1", Configure: func(cfg *config.Supervisor) {
		cfg.Responses.Grace, cfg.Responses.StormDelay = 0, 0
	}})
	lead := sups[leader]
	executors, err := supervisor.NodeExecutors(lead, config.NodeExecutor{MaskChannels: true, AskFor: config.Duration(5 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	token := lead.Term()
	n := &acting{allowed: []string{"eureka", "node.check"}}
	c.Agents["n1-0-0"].Acts(n.answer)
	do := func(kind response.Kind, id fault.NodeID, component fault.Component, response string, edit func(*executor.Job)) executor.Result {
		t.Helper()
		j := executor.Job{Policy: "p", Fault: executor.Fault{State: fault.Sick}}
		j.Response, j.Attempt.Attempt, j.Kind, j.Token, j.Timeout = response, 1, kind, token, supervisortest.Wait
		j.Target.Node, j.Target.Component = id, component
		if edit != nil {
			edit(&j)
		}
		return executors[kind].Do(t.Context(), j)
	}
	want := func(r executor.Result, o response.Outcome, detail string) {
		t.Helper()
		if r.Outcome != o || !strings.Contains(r.Detail, detail) {
			t.Errorf("%+v: want %d, %q", r, o, detail)
		}
	}
	want(do(response.NodeCheck, "n1-0-0", fault.ComponentMemory, "r1-1", nil), response.Succeeded, "")
	want(do(response.NodeRestartHalf, "n1-0-0", fault.ComponentMemory, "r1-2", nil), response.Unchanged, "does not allow node.restart-half")
	want(do(response.NodeCheck, "n0-0-0", fault.ComponentMemory, "r1-3", nil), response.Unchanged, "earlier version")
	want(do(response.NodeCheck, "n1-0-0", fault.ComponentMemory, "r1-4", func(j *executor.Job) { j.Token-- }), response.StaleToken, "")
	if did := n.did(); len(did) != 1 || did[0].GetKind() != "node.check" || did[0].GetTarget() != "n1-0-0/memory" ||
		did[0].GetToken() != token {
		t.Errorf("%v", did)
	}

	want(do(response.Eureka, "n1-0-0", fault.ComponentMemory, "r1-9", nil), response.Unchanged, "no healthy node can raise it")
	wantedByPolicy(t, c, leader, n, token)
	well := &acting{allowed: []string{"eureka"}}
	// n0-0-0 has an earlier version.
	for id, answer := range map[fault.NodeID]func(*lofamov1.ActOrder) *lofamov1.ActStatus{"n0-0-0": nil, "n2-0-0": well.answer} {
		a := c.Agents[id]
		a.Acts(answer)
		report, b := a.Report(t, fault.HalfHost, false,
			fault.Observation{Component: fault.ComponentHost, State: fault.Normal, Kind: fault.KindSelf},
			fault.Observation{Component: fault.ComponentDNP, State: fault.Normal, Kind: fault.KindWatchdog})
		a.Deliver(t, report, b, c.Configs[leader].Report)
	}
	supervisortest.Eventually(t, "nodes that are well", func() bool {
		return do(response.Eureka, "n1-0-0", fault.ComponentMemory, "r1-9", nil).Outcome == response.Succeeded
	})
	if did := well.did(); len(did) != 1 || did[0].GetKind() != "eureka" || did[0].GetTarget() != "n1-0-0/memory" {
		t.Errorf("%v", did)
	}

	link := fault.Link(grid.XPlus)
	a, b := c.Agents["n0-0-0"], c.Agents["n1-0-0"]
	want(do(response.NodeMaskChannel, "n0-0-0", link, "r1-5", nil), response.Succeeded, "is masked")
	want(do(response.NodeMaskChannel, "n0-0-0", link, "r1-5", nil), response.Succeeded, "is masked") // it owns the mask
	supervisortest.Eventually(t, "both ends have it", func() bool { return a.Mask().GetMask() == 0x3e && b.Mask().GetMask() == 0x3d })
	want(do(response.NodeMaskChannel, "n1-0-0", fault.Link(grid.XMinus), "r1-6", nil), response.Succeeded,
		"already masked by response/r1-5/0: that mask stays")
	undo := func(j *executor.Job) { j.Undo = true }
	want(do(response.NodeMaskChannel, "n1-0-0", fault.Link(grid.XMinus), "r1-6", undo), response.Succeeded, "unchanged")
	want(do(response.NodeMaskChannel, "n1-0-0", link, "r1-7", nil), response.Unchanged, "no way through the torus")
	want(do(response.NodeMaskChannel, "n0-0-0", link, "r1-5", func(j *executor.Job) { j.Token-- }), response.StaleToken, "token")
	want(do(response.NodeMaskChannel, "n0-0-0", link, "r1-5", undo), response.Succeeded, "is restored")
	if err := lead.MaskUnder(t.Context(), token-1, "n0-0-0", grid.XPlus, "response/r1-8/0"); !errors.Is(err, node.ErrStale) {
		t.Errorf("committed under a later term than the attempt's, or not known: %v", err)
	}
	supervisortest.Eventually(t, "both ends are restored", func() bool { return a.Mask().GetMask() == 0x3f && b.Mask().GetMask() == 0x3f })
}

// wantedByPolicy makes a node act through a policy, beginning with the report of a fault.
func wantedByPolicy(t *testing.T, c *supervisortest.Cluster, leader int, n *acting, token uint64) {
	t.Helper()
	s := storedPolicy(t, c.Configs[leader], `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: look}
spec:
  mode: enforce
  match: fault.component == "memory" && fault.state == "SICK"
  steps:
  - {name: look, executor: node.check, parameters: {script: memory}}
`)
	before := len(n.did())
	a := c.Agents["n1-0-0"]
	id, b := a.Report(t, fault.HalfHost, false, fault.Observation{Component: fault.ComponentMemory, State: fault.Sick, Kind: fault.KindSelf})
	a.Deliver(t, id, b, c.Configs[leader].Report)
	var r *response.Response
	supervisortest.Eventually(t, "a response that is done", func() bool {
		got, err := s.OwnResponses(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, rec := range got.Records {
			if is, ok := rec.(*response.Response); ok {
				r = is
			}
		}
		return r != nil && r.State == response.Done
	})
	did := n.did()[before:]
	if len(did) != 1 || did[0].GetResponse() != r.ID || did[0].GetToken() != token || did[0].GetTarget() != "n1-0-0/memory" ||
		len(did[0].GetParameters()) != 1 ||
		did[0].GetParameters()[0].GetValue() != "memory" || r.Steps[0].Attempt != 1 || !r.Steps[0].Changed {
		t.Errorf("%v for %+v", did, r)
	}
}
