package api

import (
	"context"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// belowTime is how long the supervisors of a region may take to add details that the parent lacks.
const belowTime = 500 * time.Millisecond

// below asks the supervisors of a node's own region, one after the other, and returns nil if none answers. A parent
// of regions has the verdicts, and the region has the evidence for them.
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

// fill adds details from the node's region: ages, registers, evidence and delivery status. The verdicts stay the
// parent's own. If the region's verdict is newer by now, fill adds nothing, so that no reader sees the map go back.
func fill(n, more *lofamov1.Node) {
	if more == nil || more.GetState() != n.GetState() || more.GetCause() != n.GetCause() {
		return
	}
	n.Age, n.Registers, n.HostEpoch, n.DnpEpoch = more.GetAge(), more.GetRegisters(), more.GetHostEpoch(), more.GetDnpEpoch()
	n.Delivery, n.DeliveryAge, n.DeliveryOld = more.GetDelivery(), more.GetDeliveryAge(), more.GetDeliveryOld()
	n.Platform, n.Restarting, n.Stopped = more.GetPlatform(), more.GetRestarting(), more.GetStopped()
	n.Controller, n.HardwareWatchdog = more.GetController(), more.GetHardwareWatchdog()
	n.HostKernel, n.DnpKernel = more.GetHostKernel(), more.GetDnpKernel()
	n.HostHealth, n.DnpHealth, n.Starved = more.GetHostHealth(), more.GetDnpHealth(), more.GetStarved()
	have := make(map[string]*lofamov1.Component, len(more.GetComponents()))
	for _, c := range more.GetComponents() {
		have[c.GetName()] = c
	}
	for _, c := range n.GetComponents() {
		m := have[c.GetName()]
		if c.GetState() == lofamov1.State_UNKNOWN && m.GetState() == lofamov1.State_ABSENT {
			c.State = lofamov1.State_ABSENT
		}
		if m.GetState() == c.GetState() && m.GetCause() == c.GetCause() {
			c.Evidence = m.GetEvidence()
		}
	}
}

// fillExplanation is fill for an explanation.
func fillExplanation(x, more *lofamov1.ExplainResponse) {
	if x.GetState() == lofamov1.State_UNKNOWN && more.GetState() == lofamov1.State_ABSENT {
		x.State = lofamov1.State_ABSENT
	}
	if more == nil || more.GetState() != x.GetState() || more.GetCause() != x.GetCause() {
		return
	}
	x.Rule, x.Summary, x.Because, x.Evidence, x.Until = more.GetRule(), more.GetSummary(), more.GetBecause(), more.GetEvidence(),
		more.GetUntil()
}
