package view

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

var day = time.Date(2027, 1, 15, 8, 0, 0, 0, time.UTC)

// TestEvidenceOfNode: the evidence for a SICK node is the evidence for the FAILED or SICK part that causes it.
// Otherwise no policy would ever act on it.
func TestEvidenceOfNode(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	heard := map[fault.NodeID]time.Time{"n1": now.Add(-time.Second), "n2": now.Add(-2 * time.Second), "n3": now.Add(-3 * time.Second)}
	says := func(observer string, s fault.State) awareness.EvidenceStatus {
		return awareness.EvidenceStatus{Kind: fault.KindWatchdog, Observer: observer, State: s, At: now.Add(-time.Hour)}
	}
	st := awareness.NodeStatus{ID: "n1", State: fault.Sick, Cause: fault.CauseHost, Components: []awareness.ComponentStatus{
		{Component: fault.ComponentHost, State: fault.Failed, Cause: fault.CauseHost,
			Evidence: []awareness.EvidenceStatus{says("n1/dnp", fault.Failed), says("n3/host", fault.Failed), says("n2/host", fault.Normal)}},
		{Component: fault.ComponentTemperature, State: fault.Sick, Cause: fault.CauseSensor,
			Evidence: []awareness.EvidenceStatus{says("n2/dnp", fault.Sick)}},
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

// TestNodeCalledSupervisorIsNoSupervisor: a node may have any name. Its statements are as old as its newest report, and make it an accuser.
func TestNodeCalledSupervisorIsNoSupervisor(t *testing.T) {
	now := day.Add(time.Hour)
	lives := map[fault.NodeID]time.Time{"supervisor": day}
	st := awareness.NodeStatus{ID: "a", State: fault.Sick, Cause: fault.CauseHost, Components: []awareness.ComponentStatus{
		{Component: fault.ComponentHost, State: fault.Failed, Cause: fault.CauseHost, Evidence: []awareness.EvidenceStatus{
			{Kind: fault.KindDescriptor, Observer: "supervisor/host", State: fault.Failed, At: day}}}}}
	check := func(what string, at time.Time, accusers, observers []fault.NodeID) {
		t.Helper()
		if ev := Gather(st, fault.ComponentHost, func(id fault.NodeID) time.Time { return lives[id] }, now); !ev.At.Equal(at) {
			t.Errorf("%s: evidence of %s, want %s", what, ev.At, at)
		}
		if got := Accusers(st); !slices.Equal(got, accusers) {
			t.Errorf("%s: accusers %v, want %v", what, got, accusers)
		}
		if got := Observers(st, fault.ComponentHost); !slices.Equal(got, observers) {
			t.Errorf("%s: observers %v, want %v", what, got, observers)
		}
	}
	node := []fault.NodeID{"supervisor"}
	check("a node called supervisor", day, node, node)
	st.Components[0].Evidence[0].Kind = fault.KindChallenge
	check("a supervisor called host", now, nil, nil)
}

func TestEvidenceIsGatheredFromNeighbours(t *testing.T) {
	now := day.Add(time.Hour)
	life := func(id fault.NodeID) time.Time {
		return map[fault.NodeID]time.Time{"a": day, "n1": now.Add(-2 * time.Second), "n2": now.Add(-time.Second)}[id]
	}
	ev := func(k fault.Kind, by string, s fault.State) awareness.EvidenceStatus {
		return awareness.EvidenceStatus{Kind: k, Observer: by, At: day, State: s}
	}
	comp := func(c fault.Component, s fault.State, cause fault.Cause, list ...awareness.EvidenceStatus) awareness.ComponentStatus {
		return awareness.ComponentStatus{Component: c, State: s, Cause: cause, Evidence: list}
	}
	silent := fault.KindSilence
	for name, tc := range map[string]struct {
		st   awareness.NodeStatus
		c    fault.Component
		want response.Evidence
	}{
		"what the node has measured is as new as its last word": {
			awareness.NodeStatus{ID: "a", State: fault.Sick, Components: []awareness.ComponentStatus{
				comp(fault.ComponentMemory, fault.Sick, fault.CauseMemory, ev(fault.KindSelf, "a/host", fault.Sick),
					ev(fault.KindSelf, "a/dnp", fault.Normal)),
			}},
			fault.ComponentMemory, response.Evidence{At: day, Kind: fault.KindSelf, Own: true, Witnesses: []string{"a/host"}},
		},
		"a dead node: its neighbours, of whom the newest counts, each half; not the count of their votes": {
			awareness.NodeStatus{ID: "a", State: fault.Failed, Cause: fault.CauseNode, Components: []awareness.ComponentStatus{
				comp(fault.ComponentHost, fault.Failed, fault.CauseNode, ev(fault.KindVotes, "supervisor/s1", fault.Failed),
					ev(silent, "n1/dnp", fault.Failed), ev(silent, "n2/dnp", fault.Failed), ev(silent, "n2/dnp", fault.Failed),
					ev(fault.KindSelf, "a/host", fault.Normal)),
				comp(fault.ComponentMemory, fault.Failed, fault.CauseMemory, ev(fault.KindSelf, "a/host", fault.Failed)),
			}},
			fault.ComponentNode, response.Evidence{At: now, Kind: fault.KindVotes, Witnesses: []string{"n1/dnp", "n2/dnp"}},
		},
		"the supervisors' own challenge is a witness, and misses an answer now": {
			awareness.NodeStatus{ID: "a", State: fault.Sick, SingleWitness: true, Components: []awareness.ComponentStatus{
				comp(fault.ComponentHost, fault.Failed, fault.CauseHost, ev(fault.KindChallenge, "supervisor/s1", fault.Failed),
					ev(silent, "n1/dnp", fault.Failed)),
			}},
			fault.ComponentHost, response.Evidence{At: now, Kind: fault.KindChallenge, Witnesses: []string{"supervisor/s1", "n1/dnp"},
				SingleWitness: true},
		},
		"UNKNOWN": {
			awareness.NodeStatus{ID: "a", State: fault.Unknown, Components: []awareness.ComponentStatus{
				comp(fault.ComponentHost, fault.Unknown, fault.CauseNone, ev(fault.KindDigest, "supervisor/s1", fault.Unknown),
					ev(fault.KindSelf, "a/host", fault.Normal)),
			}},
			fault.ComponentNode, response.Evidence{At: now, Kind: fault.KindDigest, Witnesses: []string{"supervisor/s1"}},
		},
		"nothing": {awareness.NodeStatus{ID: "a", State: fault.Failed}, fault.ComponentMemory, response.Evidence{}},
	} {
		if got := Gather(tc.st, tc.c, life, now); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %+v: want %+v", name, got, tc.want)
		}
	}
}

// A neighbour's statement about its own end of a link is evidence on the link. It is never the accused's own
// statement, whatever its kind.
func TestNeighbourSelfStatementIsNotOwnWord(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	half := [2]time.Time{now.Add(-time.Minute), now.Add(-time.Second)}
	link := fault.Link(grid.XPlus)
	status := func(c fault.Component, list ...awareness.EvidenceStatus) awareness.NodeStatus {
		return awareness.NodeStatus{
			ID: "a", State: fault.Sick, Cause: c.Cause(), Life: half[1], HalfLife: half,
			Components: []awareness.ComponentStatus{{Component: c, State: fault.Failed, Cause: c.Cause(), Evidence: list}},
		}
	}
	says := func(k fault.Kind, observer string) awareness.EvidenceStatus {
		return awareness.EvidenceStatus{Kind: k, Observer: observer, State: fault.Failed, At: now.Add(-time.Hour)}
	}
	for name, tc := range map[string]struct {
		st   awareness.NodeStatus
		own  bool
		port bool
		life time.Time
	}{
		"SELF of the far end": {status(link, says(fault.KindSelf, "b/host")), false, false, half[1]},
		"ERROR_RATIO of the far end, the own watchdog": {status(link, says(fault.KindErrorRatio, "b/host"), says(fault.KindWatchdog, "a/dnp")),
			false, false, half[1]},
		"silence at the own port":        {status(link, says(fault.KindSilence, "a/host"), says(fault.KindSelf, "b/host")), false, true, half[1]},
		"the own host's memory":          {status(fault.ComponentMemory, says(fault.KindSelf, "a/host")), true, false, half[1]},
		"the watchdog of the other half": {status(fault.ComponentHost, says(fault.KindWatchdog, "a/dnp")), false, false, half[0]},
		"silence towards a host":         {status(fault.ComponentHost, says(fault.KindSilence, "a/dnp")), false, false, half[0]},
		"a dead DNP":                     {status(fault.ComponentDNP, says(fault.KindWatchdog, "a/host")), false, false, half[1]},
	} {
		for _, c := range []fault.Component{tc.st.Components[0].Component, fault.ComponentNode} {
			ev := Gather(tc.st, c, func(fault.NodeID) time.Time { return now }, now)
			if ev.Own != tc.own || ev.Port != tc.port || !ev.Life.Equal(tc.life) {
				t.Errorf("%s, as evidence on %s: own %t, port %t, life %s: want %t, %t, %s", name, c, ev.Own, ev.Port, ev.Life, tc.own,
					tc.port, tc.life)
			}
		}
	}
}

// TestEvidenceIsCommittedWithItsFaults: a stored node restores the evidence for its faults, in a map as well. The number
// of witnesses is bounded.
func TestEvidenceIsCommittedWithItsFaults(t *testing.T) {
	st := sample()
	st.HalfLife = [2]time.Time{now.Add(-time.Minute), now.Add(-time.Second)}
	life := func(fault.NodeID) time.Time { return now.Add(-2 * time.Second) }
	list := GatherAll(st, life, now)
	var parts []fault.Component
	for _, e := range list {
		parts = append(parts, e.Component)
		if want := Gather(st, e.Component, life, now); !reflect.DeepEqual(e.Evidence, want) || e.State != StateOf(st, e.Component) {
			t.Errorf("%s: %+v: want %+v", e.Component, e, want)
		}
	}
	if want := []fault.Component{fault.ComponentNode, fault.ComponentHost}; !slices.Equal(parts, want) { // nothing supports the link's fault
		t.Fatalf("evidence for %v: want %v", parts, want)
	}
	doc := Stored(st)
	PutEvidence(doc, list)
	b, err := proto.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	read := new(lofamov1.Node)
	if err := proto.Unmarshal(b, read); err != nil {
		t.Fatal(err)
	}
	// Entries that only a later version understands are ignored.
	read.FaultEvidence = append(read.FaultEvidence, &lofamov1.FaultEvidence{Component: "antenna", Kind: "SELF", State: lofamov1.State_SICK},
		&lofamov1.FaultEvidence{Component: "host", Kind: "DREAM", State: lofamov1.State_SICK},
		&lofamov1.FaultEvidence{Component: "host", Kind: "SELF", State: 77})
	entry, err := Restore(read)
	if err != nil || !reflect.DeepEqual(entry.Faults, list) {
		t.Fatalf("%v: restored %+v: want %+v", err, entry.Faults, list)
	}
	names := NewNames(grid.Dims{X: 2, Y: 1, Z: 1}, map[grid.Coord]fault.NodeID{{}: "n0-0-0", {X: 1}: "n1-0-0"})
	m := NewBuilder(names, now)
	if m.Set(entry); !reflect.DeepEqual(m.Map(1).At(1).Faults, list) {
		t.Errorf("in the map: %+v", m.Map(1).At(1).Faults)
	}
	if old, err := Restore(Stored(st)); err != nil || old.Faults != nil {
		t.Errorf("a record of an earlier version: %+v, %v", old.Faults, err)
	}
	for i := range 3 * storedWitnesses {
		st.Components[0].Evidence = append(st.Components[0].Evidence,
			awareness.EvidenceStatus{Kind: fault.KindSilence, Observer: fmt.Sprintf("n%d/dnp", i), State: fault.Failed})
	}
	for _, e := range GatherAll(st, life, now) {
		if n := len(e.Witnesses); n != storedWitnesses {
			t.Errorf("%s: %d witnesses: want %d", e.Component, n, storedWitnesses)
		}
	}
	if got := GatherAll(awareness.NodeStatus{ID: "a", State: fault.Unknown, Components: []awareness.ComponentStatus{
		{Component: fault.ComponentHost, State: fault.Unknown, Evidence: []awareness.EvidenceStatus{
			{Kind: fault.KindDigest, Observer: "supervisor/s1", State: fault.Unknown}}},
	}}, life, now); len(got) != 1 || got[0].Component != fault.ComponentNode ||
		!reflect.DeepEqual(got[0].Witnesses, []string{"supervisor/s1"}) {
		t.Errorf("an UNKNOWN node: %+v", got)
	}
}
