package store

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// A report that is too long loses its good parts first, and says how many. Any report can be cut to the required
// length.
func TestLongReportLosesGoodPartsFirst(t *testing.T) {
	d := &lofamov1.DiagnosisReport{Scope: "all", Faults: []*lofamov1.DiagnosisFault{{Node: "n7"}}}
	for i := range 1000 {
		l := &lofamov1.DiagnosedLink{Node: fmt.Sprint("n", i), Direction: "X+", Peer: "peer", Verdict: lofamov1.LinkVerdict_LINK_GOOD,
			Here: &lofamov1.LinkFinding{Heard: 70}}
		if i%100 == 0 {
			l.Verdict = lofamov1.LinkVerdict_LINK_DEAD
		}
		d.Links = append(d.Links, l)
	}
	p := &lofamov1.ProcedureReport{Subject: "policy", Diagnosis: d, Silent: []string{"n3"}}
	for i := range 1000 {
		n := &lofamov1.ProcedureNode{Node: fmt.Sprint("n", i), Clear: true, Steps: []*lofamov1.ProcedureStep{{TookUs: 1_000_000}}}
		if i%100 == 0 {
			n.Held = 3
		}
		p.Nodes = append(p.Nodes, n)
	}
	if BoundDiagnosis(d, MaxReport) != d || BoundProcedure(p, MaxReport) != p {
		t.Error("what is short enough is changed")
	}
	got := BoundDiagnosis(d, 1000)
	if len(got.GetLinks()) != 10 || got.GetOmitted() != 990 || len(got.GetFaults()) != 1 || len(d.GetLinks()) != 1000 {
		t.Errorf("%d links, %d left out", len(got.GetLinks()), got.GetOmitted())
	}
	gotP := BoundProcedure(p, 2000)
	if len(gotP.GetNodes()) != 10 || gotP.GetOmitted() != 990 || len(gotP.GetDiagnosis().GetLinks()) != 10 || len(gotP.GetSilent()) != 1 {
		t.Errorf("%d nodes, %d left out, %d links", len(gotP.GetNodes()), gotP.GetOmitted(), len(gotP.GetDiagnosis().GetLinks()))
	}
	for _, size := range []int{300, 150, 60} {
		if d, p := BoundDiagnosis(d, size), BoundProcedure(p, size); proto.Size(d) > size || proto.Size(p) > size || d.GetOmitted() < 990 {
			t.Errorf("%d bytes: %d of the diagnosis, %d of the procedure", size, proto.Size(d), proto.Size(p))
		}
	}
}
