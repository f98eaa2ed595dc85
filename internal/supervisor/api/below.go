package api

import (
	"context"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// belowTime is how long the supervisors of a region may take to add what the parent does not have.
const belowTime = 500 * time.Millisecond

// below asks the supervisors of a node's own region, one after the other; nil: there are none that can be asked. A
// parent of regions has verdicts; what they rest on the region knows.
func below[R any](ctx context.Context, s *Server, id fault.NodeID,
	ask func(context.Context, lofamov1.FaultSupervisorClient) (*R, error)) *R {
	if s.cfg.Below == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, belowTime)
	defer cancel()
	for _, c := range s.cfg.Below(id) {
		if resp, err := ask(ctx, c); err == nil {
			return resp
		}
	}
	return nil
}

// fill adds to a node what its region knows of it besides: ages, registers, evidence, and how its reports fare. The
// verdicts stay the parent's own; where the region's are newer by now nothing is added, so that nobody sees the map go back.
func fill(n, more *lofamov1.Node) {
	if more == nil || more.GetState() != n.GetState() || more.GetCause() != n.GetCause() {
		return
	}
	n.Age, n.Registers, n.HostEpoch, n.DnpEpoch = more.GetAge(), more.GetRegisters(), more.GetHostEpoch(), more.GetDnpEpoch()
	n.Delivery, n.DeliveryAge, n.DeliveryOld = more.GetDelivery(), more.GetDeliveryAge(), more.GetDeliveryOld()
	n.Platform, n.Restarting = more.GetPlatform(), more.GetRestarting()
	n.HostHealth, n.DnpHealth = more.GetHostHealth(), more.GetDnpHealth()
	have := make(map[string]*lofamov1.Component, len(more.GetComponents()))
	for _, c := range more.GetComponents() {
		have[c.GetName()] = c
	}
	for _, c := range n.GetComponents() {
		if m := have[c.GetName()]; m.GetState() == c.GetState() && m.GetCause() == c.GetCause() {
			c.Evidence = m.GetEvidence()
		}
	}
}

// fillExplanation is fill for an explanation.
func fillExplanation(x, more *lofamov1.ExplainResponse) {
	if more == nil || more.GetState() != x.GetState() || more.GetCause() != x.GetCause() {
		return
	}
	x.Rule, x.Summary, x.Because, x.Evidence, x.Until = more.GetRule(), more.GetSummary(), more.GetBecause(), more.GetEvidence(), more.GetUntil()
}
