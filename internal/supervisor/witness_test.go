package supervisor_test

import (
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor/process"
	"github.com/lofamo/lofamo/internal/executor/process/powertest"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// TestControllerIsEvidenceForPeopleAndPolicies: two nodes have the same fault. The controller of one reports critical hardware, and only
// there a policy that requires it acts. Explain and the node show the controller's words, also through a follower. A healthy
// node whose controller claims that it is off stays NORMAL, and nothing acts on it.
func TestControllerIsEvidenceForPeopleAndPolicies(t *testing.T) {
	t.Parallel()
	made := t.TempDir()
	critical, good, liar := powertest.New(t), powertest.New(t), powertest.New(t)
	critical.Set("On", "Critical")
	critical.Log(powertest.Entry{ID: "7", Created: "2026-03-01T11:00:00Z", Severity: "Critical", Message: "DIMM A1 has uncorrectable errors"})
	liar.Set("Off", "Critical")
	at := func(e *powertest.Emulator) process.Controller {
		return process.Controller{Kind: "redfish", Address: e.URL, System: powertest.System, Username: "root",
			PasswordFile: filepath.Join(e.Dir, "password"), CAFile: filepath.Join(e.Dir, "ca.pem")}
	}
	var once sync.Once
	var address string
	c, _, leader := three(t, supervisortest.Options{Configure: func(cfg *config.Supervisor) {
		once.Do(func() {
			address = executorProcess(t, filepath.Dir(cfg.TLS.CA), made, func(p *process.Config) {
				p.Controllers.Every = config.Duration(time.Minute)
				p.Controllers.Nodes = map[fault.NodeID]process.Controller{"n1-0-0": at(liar), "n0-0-0": at(critical), "n0-1-0": at(good)}
			})
		})
		r := &cfg.Responses
		r.Grace, r.StormDelay, r.MaxNodes, r.MaxPercent, r.MaxPerDomain, r.MaxPerPlane, r.BreakerPercent, r.BreakerNodes = 0, 0, 4,
			100, 4, 4, 50, 4
		r.Executors.Process = &config.ExecutorClient{Address: address}
	}})
	follower := (leader + 1) % 3
	s := storedPolicy(t, c.Configs[follower], `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: repair}
spec:
  mode: enforce
  match: fault.state == "FAILED"
  outside: [{condition: lofamo.io/HardwareCritical}]
  steps:
  - {name: repair, executor: command, parameters: {command: repair}, timeout: 20s}
`)
	for _, id := range []fault.NodeID{"n0-0-0", "n0-1-0"} {
		a := c.Agents[id]
		report, b := a.Report(t, fault.HalfHost, false,
			fault.Observation{Component: fault.ComponentMemory, State: fault.Failed, Kind: fault.KindSelf})
		a.Deliver(t, report, b, c.Configs[leader].Report)
	}
	client := c.Client(t, c.Configs[follower].GRPC)
	node := func(id string) *lofamov1.Node { // nil if no replica answers
		n, _ := client.GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: id})
		return n
	}
	var off *lofamov1.Node
	supervisortest.Eventually(t, "a follower shows three readings", func() bool {
		off = node("n1-0-0")
		return node("n0-0-0").GetController().GetHealth() == lofamov1.ControllerHealth_HEALTH_CRITICAL &&
			node("n0-1-0").GetController().GetHealth() == lofamov1.ControllerHealth_HEALTH_GOOD &&
			off.GetController().GetFinding() == lofamov1.ControllerFinding_POWERED_OFF
	})
	if off.GetState() != lofamov1.State_NORMAL && off.GetState() != lofamov1.State_UNKNOWN {
		t.Errorf("%v: a controller has changed the map", off)
	}
	x := supervisortest.Fresh(t, client.Explain, &lofamov1.ExplainRequest{Node: "n0-0-0"})
	because := strings.Join(x.GetBecause(), "\n")
	for _, want := range []string{"outside evidence, not a verdict: management controller: powered on for ", ", hardware critical",
		"event log (its own clock): 2026-03-01T11:00:00Z Critical: DIMM A1 has uncorrectable errors"} {
		if !strings.Contains(because, want) {
			t.Errorf("explain: %s\nwant %s", because, want)
		}
	}
	var seen []fault.NodeID
	supervisortest.Eventually(t, "a response for the node with critical hardware", func() bool {
		got, err := s.OwnResponses(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen = nil
		done := false
		for _, rec := range got.Records {
			if r, ok := rec.(*response.Response); ok {
				seen = append(seen, r.Target.Node)
				done = done || r.Target.Node == "n0-0-0" && r.State == response.Done
			}
		}
		return done
	})
	if slices.ContainsFunc(seen, func(id fault.NodeID) bool { return id != "n0-0-0" }) {
		t.Errorf("responses for %v: want n0-0-0 alone", seen)
	}
	if n := critical.Others() + good.Others() + liar.Others(); n != 0 {
		t.Errorf("%d requests that are not GET", n)
	}
}
