package view

import (
	"fmt"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// groupComponent is the component of an incident of a group fault.
const groupComponent = "group"

// Incident renders an incident for the store.
func Incident(in *awareness.Incident) *lofamov1.Incident {
	out := &lofamov1.Incident{
		Id: in.ID, State: lofamov1.IncidentState(in.State), Severity: lofamov1.IncidentSeverity(in.Severity),
		Component: groupComponent, Cause: lofamov1.Cause(in.Cause), Peer: string(in.Peer), Group: in.Root.Group, Fault: lofamov1.State(in.Fault),
		Since: Timestamp(in.Since), Until: Timestamp(in.Until), Summary: in.Summary, ConsequenceCount: uint32(in.Count),
		MergedInto: in.MergedInto, Merged: in.Merged, SplitFrom: in.SplitFrom, Reopened: uint32(in.Reopened), Labels: in.Labels,
		Runbook: runbook(in), Version: in.Version, Escalations: uint32(in.Escalations), Escalated: Timestamp(in.Escalated),
		Verdict: &lofamov1.Verdict{
			Time: Timestamp(in.Verdict.At), Rule: in.Verdict.Rule, Reason: in.Verdict.Reason, Witnesses: in.Verdict.Witnesses,
			Evidence: Evidence(in.Verdict.Evidence, in.Verdict.At), SingleWitness: in.Verdict.SingleWitness, Leader: in.Verdict.Supervisor,
		},
	}
	out.LastWords, out.LastBoot, out.Kernel = in.LastWords, in.LastBoot, kernelVerdict(in.Kernel)
	if in.Root.Group == "" {
		out.Node, out.Coord, out.Component = string(in.Root.Node), in.Coord.String(), in.Root.Component.String()
	}
	for _, c := range in.Consequences {
		out.Consequences = append(out.Consequences, &lofamov1.Consequence{
			Node: string(c.Node), Component: c.Component.String(), State: lofamov1.State(c.State), Cause: lofamov1.Cause(c.Cause), Reason: c.Rule,
		})
	}
	return out
}

// RestoreIncident is the inverse of Incident. It leaves out evidence and consequences that only another version understands.
func RestoreIncident(in *lofamov1.Incident) (awareness.Incident, error) {
	v := in.GetVerdict()
	out := awareness.Incident{
		ID: in.GetId(), State: awareness.IncidentState(in.GetState()), Severity: awareness.IncidentSeverity(in.GetSeverity()),
		Peer: fault.NodeID(in.GetPeer()), Cause: fault.Cause(in.GetCause()), Fault: fault.State(in.GetFault()),
		Since: fromTimestamp(in.GetSince()), Until: fromTimestamp(in.GetUntil()), Summary: in.GetSummary(),
		Count: int(in.GetConsequenceCount()), MergedInto: in.GetMergedInto(), Merged: in.GetMerged(), SplitFrom: in.GetSplitFrom(),
		Reopened: int(in.GetReopened()), Escalations: int(in.GetEscalations()), Escalated: fromTimestamp(in.GetEscalated()),
		Labels: in.GetLabels(), Version: in.GetVersion(),
		LastWords: in.GetLastWords(), LastBoot: in.GetLastBoot(), Kernel: kernel(in.GetKernel()),
		Verdict: awareness.IncidentVerdict{
			At: fromTimestamp(v.GetTime()), Rule: v.GetRule(), Reason: v.GetReason(), Witnesses: v.GetWitnesses(),
			SingleWitness: v.GetSingleWitness(), Supervisor: v.GetLeader(),
		},
	}
	var err error
	if in.GetComponent() == groupComponent {
		out.Root.Group = in.GetGroup()
	} else {
		out.Root.Node = fault.NodeID(in.GetNode())
		if out.Root.Component, err = fault.ParseComponent(in.GetComponent()); err != nil {
			return out, fmt.Errorf("restore incident %s: %w", in.GetId(), err)
		}
		if out.Coord, err = grid.ParseCoord(in.GetCoord()); err != nil {
			return out, fmt.Errorf("restore incident %s: %w", in.GetId(), err)
		}
	}
	if in.GetId() == "" || !out.State.Valid() || !out.Fault.Valid() {
		return out, fmt.Errorf("restore incident %q: state %v of a %v fault", in.GetId(), in.GetState(), in.GetFault())
	}
	for _, e := range v.GetEvidence() {
		kind, err := fault.ParseKind(e.GetKind())
		if err != nil {
			continue
		}
		st := awareness.EvidenceStatus{Kind: kind, Observer: e.GetObserver(), Path: fault.Path(e.GetPath()), State: fault.State(e.GetState()),
			Detail: e.GetDetail()}
		if e.GetAge() != nil {
			st.At = out.Verdict.At.Add(-e.GetAge().AsDuration())
		}
		out.Verdict.Evidence = append(out.Verdict.Evidence, st)
	}
	for _, c := range in.GetConsequences() {
		component, err := fault.ParseComponent(c.GetComponent())
		if err != nil {
			continue
		}
		out.Consequences = append(out.Consequences, awareness.Consequence{Node: fault.NodeID(c.GetNode()), Component: component,
			State: fault.State(c.GetState()), Cause: fault.Cause(c.GetCause()), Rule: c.GetReason()})
	}
	return out, nil
}

// runbook returns the name of the runbook for a root cause: that of the alert that it fires (deploy/prometheus).
func runbook(in *awareness.Incident) string {
	_, link := in.Root.Component.LinkDirection()
	switch {
	case in.Root.Group != "":
		return "LofamoGroupFailed"
	case in.Fault != fault.Failed:
		return "LofamoPartFaulty"
	case link:
		return "LofamoLinkBroken"
	case in.Root.Component == fault.ComponentNode:
		return "LofamoNodeFailed"
	case in.Root.Component == fault.ComponentHost, in.Root.Component == fault.ComponentDNP, in.Root.Component == fault.ComponentDNPCore:
		return "LofamoHalfFailed"
	}
	return "LofamoPartFaulty"
}
