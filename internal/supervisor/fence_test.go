package supervisor_test

import (
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestFenceOfDeadNode: two nodes die. The step that rests on fencing begins only for the one that stated a self-fencing watchdog, and
// not before the node is down. The neighbours' links to the dead nodes are the proof that the dead nodes have no contact.
func TestFenceOfDeadNode(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{Dims: "6x1x1", Preset: config.PresetFast, Configure: func(cfg *config.Supervisor) {
		cfg.Responses.Grace, cfg.Responses.StormDelay, cfg.Responses.MaxEvidenceAge = 0, 0, config.Duration(2*time.Second)
		cfg.Responses.FenceMargin, cfg.Responses.BreakerNodes, cfg.Responses.BreakerPercent = config.Duration(time.Second), 6, 50
		cfg.Responses.SupervisorNodes = map[string]string{"*": config.NoNode}
	}})
	cfg := c.Configs[0]
	start(t, cfg)
	c.AwaitLeader(t, 0)
	periods, err := cfg.Timing()
	if err != nil {
		t.Fatal(err)
	}
	operator := lofamov1.NewResponseServiceClient(c.Conn(t, pki.RoleOperator, cfg.GRPC))
	applyPolicy(t, c, cfg.GRPC, `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: detach}
spec:
  mode: enforce
  match: fault.component == "node" && fault.state == "FAILED"
  steps:
  - {name: fence, executor: node.fence, timeout: 1m}
  - {name: detach, executor: command, parameters: {command: detach}}
`)
	const timeout, contact = time.Second, 2 * time.Second
	c.Agents["n1-0-0"].SetHealth(&lofamov1.HalfHealth{HardwareWatchdog: &lofamov1.HardwareWatchdog{
		Armed: true, TimeoutMs: uint32(timeout.Milliseconds()), ContactWithinMs: uint32(contact.Milliseconds()), Boot: 7}})
	c.Agents["n4-0-0"].SetHealth(&lofamov1.HalfHealth{HardwareWatchdog: &lofamov1.HardwareWatchdog{
		TimeoutMs: uint32(timeout.Milliseconds()), ContactWithinMs: uint32(contact.Milliseconds()), Boot: 8}})
	stop := c.Speak(t, periods.DigestPeriod/2, cfg.Report, func(fault.NodeID) bool { return true })
	client := c.Client(t, cfg.GRPC)
	supervisortest.Eventually(t, "all to be well, and the watchdogs to be known", func() bool {
		sum, err := client.GetSummary(t.Context(), &lofamov1.GetSummaryRequest{})
		if err != nil || sum.GetNodes().GetNormal() != 6 {
			return false
		}
		n, err := client.GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: "n1-0-0"})
		w := n.GetHardwareWatchdog()
		return err == nil && w.GetArmed() && w.GetBoot() == 7 && w.GetSince() != nil
	})
	stop()
	dead := func(id fault.NodeID) bool { return id == "n1-0-0" || id == "n4-0-0" }
	for id, a := range c.Agents {
		if dead(id) {
			a.Kill(fault.HalfHost, fault.HalfDNP)
		}
	}
	defer c.Mourn(t, periods.DigestPeriod/2, cfg.Report, dead)()
	supervisortest.Eventually(t, "one response to wait for its fencing, and then to act; the other one to fail", func() bool {
		list, err := operator.ListResponses(t.Context(), &lofamov1.ListResponsesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		acted, refused := false, false
		for _, r := range list.GetResponses() {
			fence, detach := r.GetSteps()[0], r.GetSteps()[1]
			switch r.GetNode() {
			case "n4-0-0":
				refused = strings.Contains(fence.GetDetail(), "not armed")
				if detach.GetAttempt() > 0 {
					t.Fatalf("a step that rests on the fencing of a node without one: %v", r)
				}
			case "n1-0-0":
				if acted = detach.GetAttempt() > 0; !acted {
					continue
				}
				if took := detach.GetStarted().AsTime().Sub(fence.GetStarted().AsTime()); took < 2*timeout+contact+time.Second {
					t.Fatalf("the step began %s after the wait: want at least %s", took, 2*timeout+contact+time.Second)
				}
			}
		}
		return acted && refused
	})
}
