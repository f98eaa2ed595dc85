package orders

import (
	"slices"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// topologyOf has a node of the default name at each place.
func topologyOf(dims grid.Dims, revision uint64) *topology.Topology {
	var nodes []topology.Node
	for at := range dims.All() {
		nodes = append(nodes, topology.Node{ID: fault.DefaultNodeID(at), Coord: at})
	}
	return topology.New(dims, nodes, nil, revision)
}

// changingTorus is a diagnosis of all links of a torus that changes before the report.
func changingTorus(t *testing.T, dims grid.Dims) (*diagnosisRun, *view.Names) {
	t.Helper()
	names := view.NamesOf(topologyOf(dims, 1))
	r := NewDiagnoses(DiagnosisConfig{Names: names, Self: "s1"}).newRun(DiagnosisRequest{Rounds: 1})
	if err := r.plan(); err != nil {
		t.Fatal(err)
	}
	return r, names
}

// answerX passes on the complete findings of both halves of a node in a ring along X. plus and minus say whether its link in that
// direction works.
func answerX(r *diagnosisRun, id string, plus, minus bool) {
	test := func(sent uint32, ok bool) *lofamov1.DiagnosisTest {
		t := &lofamov1.DiagnosisTest{Sent: sent}
		if ok {
			t.Answered, t.MinUs, t.MedianUs, t.MaxUs = sent, 100, 200, 300
		}
		return t
	}
	r.take(&lofamov1.DiagnosisFindings{Node: id, Half: lofamov1.Half_HALF_HOST, Dnp: lofamov1.State_NORMAL})
	for d, ok := range map[grid.Direction]bool{grid.XPlus: plus, grid.XMinus: minus} {
		l := &lofamov1.LinkFinding{Direction: uint32(d), Dnp: test(36, ok), Host: test(6, ok), Through: test(12, ok)}
		if ok {
			l.Heard = 60
		}
		r.take(&lofamov1.DiagnosisFindings{Node: id, Half: lofamov1.Half_HALF_DNP, Links: 3, Link: l, OwnHost: test(6, true)})
	}
}

// openNodes returns the nodes with an open question, in the order of the report.
func openNodes(report *lofamov1.DiagnosisReport) (out []string) {
	for _, q := range report.GetOpen() {
		out = append(out, q.GetNode())
	}
	return out
}

// TestNodeThatLeavesDuringDiagnosisIsNoFault: n1 leaves a ring of four while its neighbours test their links to it. The new link between
// n0 and n2 is untested.
func TestNodeThatLeavesDuringDiagnosisIsNoFault(t *testing.T) {
	dims := grid.Dims{X: 4, Y: 1, Z: 1}
	r, names := changingTorus(t, dims)
	answerX(r, "n0-0-0", false, true)
	answerX(r, "n2-0-0", true, false)
	answerX(r, "n3-0-0", true, true)
	after, err := dims.Without(grid.Coord{X: 1})
	if err != nil {
		t.Fatal(err)
	}
	names.Set(topologyOf(after, 2))
	report := r.report()
	if len(report.GetFaults()) != 0 {
		t.Errorf("faults %v: want none, because the tests were of a former torus", report.GetFaults())
	}
	if got := openNodes(report); !slices.Equal(got, []string{"n0-0-0", "n1-0-0", "n2-0-0"}) {
		t.Errorf("open: %v: want n1-0-0 and its neighbours, but not n3-0-0", got)
	}
	for _, l := range report.GetLinks() {
		want := lofamov1.LinkVerdict_LINK_INCONCLUSIVE
		if l.GetNode() == "n2-0-0" && l.GetPeer() == "n3-0-0" || l.GetNode() == "n3-0-0" && l.GetPeer() == "n0-0-0" {
			want = lofamov1.LinkVerdict_LINK_GOOD
		}
		if l.GetVerdict() != want || l.GetNode() == "n0-0-0" && l.GetPeer() == "n2-0-0" {
			t.Errorf("link %s of %s to %s: %s: want %s of a tested link", l.GetDirection(), l.GetNode(), l.GetPeer(), l.GetVerdict(), want)
		}
	}
}

// TestFaultBesideChangeIsReported: n2 leaves a ring of five. The link between n0 and n4 is dead, and is not near n2.
func TestFaultBesideChangeIsReported(t *testing.T) {
	dims := grid.Dims{X: 5, Y: 1, Z: 1}
	r, names := changingTorus(t, dims)
	answerX(r, "n0-0-0", true, false)
	answerX(r, "n1-0-0", false, true)
	answerX(r, "n3-0-0", true, false)
	answerX(r, "n4-0-0", false, true)
	after, err := dims.Without(grid.Coord{X: 2})
	if err != nil {
		t.Fatal(err)
	}
	names.Set(topologyOf(after, 2))
	faults := r.report().GetFaults()
	if len(faults) != 1 || faults[0].GetNode() != "n4-0-0" || faults[0].GetPeer() != "n0-0-0" {
		t.Errorf("faults %v: want the link from n4-0-0 to n0-0-0", faults)
	}
}

// TestReportSurvivesSmallerTorus: the topology has fewer places at the end than the nodes that were tested.
func TestReportSurvivesSmallerTorus(t *testing.T) {
	r, names := changingTorus(t, grid.Dims{X: 4, Y: 2, Z: 2})
	answerX(r, "n3-1-1", true, true)
	after, err := grid.ParseTorus("2x2x2 without 1,1,1")
	if err != nil {
		t.Fatal(err)
	}
	names.Set(topologyOf(after, 2))
	report := r.report()
	if got := openNodes(report); !slices.Contains(got, "n3-1-1") || len(report.GetFaults()) != 0 {
		t.Errorf("open: %v, faults %v: want n3-1-1 among the open questions, and no fault", got, report.GetFaults())
	}
}
