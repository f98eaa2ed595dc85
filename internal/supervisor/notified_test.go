package supervisor_test

import (
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestNodesLearnOfFaultsNearby: the replica that receives a node's digests, which need not lead, tells the node about relevant
// nodes: at first itself and its neighbours, then their changes, and those of the nodes of its jobs once it asks.
func TestNodesLearnOfFaultsNearby(t *testing.T) {
	c, _, leader := three(t, supervisortest.Options{Dims: "4x1x1"})
	cfg := c.Configs[(leader+1)%3]
	a, neighbour, far := c.Agents["n0-0-0"], c.Agents["n1-0-0"], c.Agents["n2-0-0"]
	digest := func() {
		_, b := a.Report(t, fault.HalfHost, true, temperature(fault.Normal))
		a.Send(t, cfg.Report, b)
	}
	told := func(what string, fits func(*lofamov1.FaultUpdate, *lofamov1.NodeView) bool) {
		t.Helper()
		supervisortest.Eventually(t, what, func() bool {
			digest()
			for _, m := range a.FaultUpdates() {
				for _, n := range m.GetNodes() {
					if fits(m, n) {
						return true
					}
				}
			}
			return false
		})
	}
	told("a full update without distant nodes", func(m *lofamov1.FaultUpdate, n *lofamov1.NodeView) bool {
		return m.GetSince() == 0 && len(m.GetNodes()) == 3 && n.GetId() == "n0-0-0"
	})
	sick := func(agent *supervisortest.Agent, s fault.State) {
		t.Helper()
		id, b := agent.Report(t, fault.HalfHost, false, temperature(s))
		agent.Deliver(t, id, b, cfg.Report)
	}
	sick(neighbour, fault.Sick)
	sick(far, fault.Sick)
	told("that a neighbour is SICK", func(_ *lofamov1.FaultUpdate, n *lofamov1.NodeView) bool {
		return n.GetId() == "n1-0-0" && len(n.GetFaults()) == 1 && fault.Component(n.GetFaults()[0].GetComponent()) == fault.ComponentTemperature
	})
	for _, m := range a.FaultUpdates() {
		for _, n := range m.GetNodes() {
			if n.GetId() == "n2-0-0" {
				t.Errorf("told of a node that does not concern it: %v", m)
			}
		}
	}
	a.Say(t, fault.HalfHost, cfg.Report, &lofamov1.Message{Body: &lofamov1.Message_Interest{Interest: &lofamov1.Interest{
		Node: "n0-0-0", Epoch: 1, Serial: 1, Parts: 1, Nodes: []string{"n2-0-0"},
	}}})
	told("that a node of its jobs is SICK", func(m *lofamov1.FaultUpdate, n *lofamov1.NodeView) bool {
		return n.GetId() == "n2-0-0" && n.GetState() == lofamov1.State_SICK && m.GetInterest() == 1
	})
	sick(far, fault.Failed)
	told("that it FAILED", func(m *lofamov1.FaultUpdate, n *lofamov1.NodeView) bool {
		return n.GetId() == "n2-0-0" && len(n.GetFaults()) == 1 && n.GetFaults()[0].GetState() == lofamov1.State_FAILED
	})
}
