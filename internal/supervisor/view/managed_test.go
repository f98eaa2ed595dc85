package view

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func diagnosed() *lofamov1.DiagnosisReport {
	return &lofamov1.DiagnosisReport{
		Scope: "all", Subject: "operator/ada", Started: timestamppb.New(time.Unix(1000, 0)), Silent: []string{"n9"},
		Faults: []*lofamov1.DiagnosisFault{
			{Part: lofamov1.DiagnosisPart_PART_LINK, Node: "n0", Direction: "X+", Peer: "n1", Explanation: "dead from 0,0,0 to 1,0,0"},
			{Part: lofamov1.DiagnosisPart_PART_HOST_HALF, Node: "n2", Explanation: "it does not answer"},
			{Part: lofamov1.DiagnosisPart_PART_DNP_HALF, Node: "n3"},
			{Part: lofamov1.DiagnosisPart_PART_NODE, Node: "n4"},
		},
		Open: []*lofamov1.DiagnosisQuestion{{Node: "n5"}},
		Links: []*lofamov1.DiagnosedLink{{Node: "n0", Peer: "n1", Verdict: lofamov1.LinkVerdict_LINK_DEAD},
			{Node: "n6", Peer: "n7", Verdict: lofamov1.LinkVerdict_LINK_GOOD}},
	}
}

// The result of a diagnosis is evidence where it belongs: a link at both its ends, a half at the half and its
// node, a node everywhere.
func TestDiagnosisIsEvidenceForItsParts(t *testing.T) {
	r := diagnosed()
	for _, tc := range []struct {
		node string
		c    fault.Component
		want string // empty: nothing
	}{
		{"n0", fault.Link(grid.XPlus), "link n0 X+ to n1 is at fault: dead from 0,0,0 to 1,0,0"},
		{"n1", fault.Link(grid.XMinus), "link n0 X+ to n1 is at fault"},
		{"n0", fault.Link(grid.XMinus), ""},
		{"n1", fault.Link(grid.XPlus), ""},
		{"n0", fault.ComponentNode, ""},
		{"n2", fault.ComponentHost, "host half of n2 is at fault: it does not answer"},
		{"n2", fault.ComponentNode, "host half of n2"},
		{"n2", fault.ComponentDNP, ""},
		{"n3", fault.ComponentDNP, "DNP half of n3"},
		{"n4", fault.Link(grid.YPlus), "node n4"},
		{"n5", fault.ComponentNode, ""}, // an open question names nothing
		{"n9", fault.ComponentNode, ""},
	} {
		got := DiagnosedAs(r, fault.NodeID(tc.node), tc.c)
		if (len(got) == 1) != (tc.want != "") || len(got) == 1 &&
			(!strings.Contains(got[0], tc.want) || !strings.HasPrefix(got[0], "diagnosis of all by operator/ada at 1970-01-01T00:16:40Z: ")) {
			t.Errorf("%s of %s: %q, want %q", tc.c, tc.node, got, tc.want)
		}
	}
	if got := DiagnosedAs(nil, "n0", fault.ComponentNode); len(got) > 0 {
		t.Errorf("without a diagnosis: %q", got)
	}
}

func TestEventsOfDiagnosisAndProcedure(t *testing.T) {
	at := time.Unix(2000, 0)
	ev := DiagnosisEvent(diagnosed(), "n0", at)
	if want := "diagnosis of all: at fault: link n0 X+ to n1, host half of n2, DNP half of n3, node n4; links that are not good: 1; open: " +
		"n5; silent: n9"; ev.GetReason() != want || ev.GetObserver() != "operator/ada" || ev.GetNode() != "n0" {
		t.Errorf("%v\nwant %s", ev, want)
	}
	if want := []string{"n0", "n1", "n2", "n3", "n4", "n5", "n9"}; !slices.Equal(ev.GetConcerned(), want) {
		t.Errorf("it concerns %v, want %v", ev.GetConcerned(), want)
	}
	if got := DiagnosisEvent(&lofamov1.DiagnosisReport{Scope: "node n1", Links: diagnosed().GetLinks()[1:]}, "n1",
		at); got.GetReason() != "diagnosis of node n1: nothing is wrong" || len(got.GetConcerned()) > 0 {
		t.Errorf("%v", got)
	}
	if got := DiagnosisEvent(&lofamov1.DiagnosisReport{Scope: "all", Silent: []string{"n1"}}, "",
		at); got.GetReason() != "diagnosis of all: nothing is proven; silent: n1" {
		t.Errorf("%v", got)
	}
	r := &lofamov1.ProcedureReport{Starter: "n0", Subject: "policy", Reason: "because", Rounds: 3, TookMs: 950}
	for i := range 100 {
		r.Holding = append(r.Holding, fmt.Sprintf("n%03d", i))
	}
	ev = ProcedureEvent(r, at)
	const want = "procedure begun by n0: not clear; messages held: n000, n001, n002, n003 and 96 more; rounds: 3, in 950 ms; because"
	if ev.GetReason() != want || ev.GetClear() || len(ev.GetConcerned()) != maxConcerned {
		t.Errorf("%v\nwant %s", ev, want)
	}
	if got := ProcedureEvent(&lofamov1.ProcedureReport{Starter: "n0", Clear: true, Rounds: 1, TookMs: 9},
		at); got.GetReason() != "procedure begun by n0: clear; rounds: 1, in 9 ms" || !got.GetClear() {
		t.Errorf("%v", got)
	}
	if got := StarterEvent("n0", "too many", "s1", at); got.GetNode() != "n0" || got.GetObserver() != "supervisor/s1" ||
		!slices.Equal(got.GetConcerned(), []string{"n0"}) {
		t.Errorf("%v", got)
	}
}
