package supervisor_test

import (
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestMaskStaysUntilBothEndsHaveRecovered: both ends report their cable as SICK, so two responses want it masked. The link stays masked
// when one end has recovered, and is restored when both have.
func TestMaskStaysUntilBothEndsHaveRecovered(t *testing.T) {
	c, _, leader := three(t, supervisortest.Options{Dims: "4x4x1", Configure: func(cfg *config.Supervisor) {
		cfg.Responses.Executors.Node.MaskChannels = true
		cfg.Responses.Grace, cfg.Responses.StormDelay, cfg.Responses.MaxPercent = 0, 0, 50
	}})
	ends := map[fault.NodeID]fault.Component{"n0-0-0": fault.Link(grid.XPlus), "n1-0-0": fault.Link(grid.XMinus)}
	report := func(id fault.NodeID, state fault.State) {
		t.Helper()
		a := c.Agents[id]
		report, b := a.Report(t, fault.HalfHost, false,
			fault.Observation{Component: ends[id], State: state, Kind: fault.KindSelf})
		a.Deliver(t, report, b, c.Configs[leader].Report)
	}
	report("n0-0-0", fault.Sick)
	report("n1-0-0", fault.Sick)
	s := storedPolicy(t, c.Configs[leader], `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: mask}
spec:
  mode: enforce
  match: fault.component.startsWith("link/") && fault.state == "SICK"
  steps: [{name: mask, executor: node.mask-channel, timeout: 30s}]
  undo: {onRecovery: true, after: 1s}
`)
	ids := map[fault.NodeID]string{}
	// until waits until the responses of n0-0-0 and n1-0-0 have the given states.
	until := func(lower, upper response.State) {
		t.Helper()
		supervisortest.Eventually(t, "responses that are "+lower.String()+" and "+upper.String(), func() bool {
			got, err := s.OwnResponses(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			states := map[fault.NodeID]response.State{}
			for _, rec := range got.Records {
				if r, ok := rec.(*response.Response); ok {
					states[r.Target.Node], ids[r.Target.Node] = r.State, r.ID
				}
			}
			return states["n0-0-0"] == lower && states["n1-0-0"] == upper
		})
	}
	a, b := c.Agents["n0-0-0"], c.Agents["n1-0-0"]
	until(response.Done, response.Done)
	supervisortest.Eventually(t, "both ends have the mask", func() bool { return a.Mask().GetMask() == 0x3e && b.Mask().GetMask() == 0x3d })
	report("n0-0-0", fault.Normal)
	until(response.Undone, response.Done)
	list, err := c.Reconfigure(t, c.Configs[leader].GRPC).ListMasks(t.Context(), &lofamov1.ListMasksRequest{})
	if got := list.GetMasks(); err != nil || len(got) != 1 || got[0].GetBy() != "response/"+ids["n1-0-0"]+"/0" {
		t.Errorf("%v, %v: want the mask of response %s", got, err, ids["n1-0-0"])
	}
	report("n1-0-0", fault.Normal)
	until(response.Undone, response.Undone)
	supervisortest.Eventually(t, "both ends are restored", func() bool { return a.Mask().GetMask() == 0x3f && b.Mask().GetMask() == 0x3f })
}
