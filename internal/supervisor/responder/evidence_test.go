package responder

import (
	"slices"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestEvidenceOfNode: the evidence for a SICK node is the evidence for the FAILED or SICK part that causes it.
// Otherwise no policy would ever act on it.
func TestEvidenceOfNode(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	heard := map[fault.NodeID]time.Time{"n1": now.Add(-time.Second), "n2": now.Add(-2 * time.Second), "n3": now.Add(-3 * time.Second)}
	says := func(observer string, s fault.State) awareness.EvidenceStatus {
		return awareness.EvidenceStatus{Kind: fault.KindWatchdog, Observer: observer, State: s, At: now.Add(-time.Hour)}
	}
	st := awareness.NodeStatus{ID: "n1", State: fault.Sick, Cause: fault.CauseHost, Components: []awareness.ComponentStatus{
		{Component: fault.ComponentHost, State: fault.Failed, Cause: fault.CauseHost, Evidence: []awareness.EvidenceStatus{says("n1/dnp", fault.Failed), says("n3/host", fault.Failed), says("n2/host", fault.Normal)}},
		{Component: fault.ComponentTemperature, State: fault.Sick, Cause: fault.CauseSensor, Evidence: []awareness.EvidenceStatus{says("n2/dnp", fault.Sick)}},
		{Component: fault.ComponentMemory, State: fault.Unknown, Evidence: []awareness.EvidenceStatus{says("n2/host", fault.Unknown)}},
	}}
	gather := func() ([]string, time.Time) {
		ev := Gather(st, fault.ComponentNode, func(id fault.NodeID) time.Time { return heard[id] }, now)
		return ev.Witnesses, ev.At
	}
	if who, at := gather(); !slices.Equal(who, []string{"n1/dnp", "n3/host"}) || !at.Equal(heard["n1"]) {
		t.Errorf("%v at %v", who, at)
	}
	st.Cause = fault.CauseSensor
	if who, at := gather(); !slices.Equal(who, []string{"n2/dnp"}) || !at.Equal(heard["n2"]) {
		t.Errorf("%v at %v", who, at)
	}
	st.State, st.Cause = fault.Failed, fault.CauseHost // the SICK part is no evidence for this cause
	st.Components[0].Cause = fault.CauseNone
	if who, _ := gather(); !slices.Equal(who, []string{"n1/dnp", "n3/host"}) {
		t.Errorf("%v", who)
	}
}
