package e2e

import (
	"strings"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// A torus with empty places works as any other: links past these places fail and are mended, a dead node is named by its
// neighbours, and a diagnosis and a procedure visit every node.
func TestTorusWithEmptyPlaces(t *testing.T) {
	t.Parallel()
	l := clusterOf(t, "3x2x2 without 1,0,0 2,1,1", cluster.Options{Supervisors: 3, Spares: 1, Periods: patient(),
		Supervisor: quick})
	try(t, l, "cable past an empty place", func(t trial) {
		t.inject("n0-0-0", cluster.Fault{Kind: cluster.CutLink, Dir: grid.XPlus})
		t.becomes("n0-0-0", "link/X+", failed)
		t.becomes("n2-0-0", "link/X-", failed)
		t.othersWereSpared("n0-0-0", "n2-0-0")
	})
	for _, dead := range []string{"n0-0-0", "n1-0-1"} { // beside an empty place, and with fewer neighbours because of one
		try(t, l, "death of "+dead, func(t trial) {
			t.inject(dead, simple(cluster.KillNode))
			t.becomes(dead, "node", failed)
			t.is(dead, failed, lofamov1.Cause_NODE)
			t.othersWereSpared(dead)
		})
	}
	try(t, l, "replacement of a node that is alone on a line", func(t trial) {
		const broken, spare = "n1-0-1", "spare-0"
		t.inject(broken, simple(cluster.KillNode))
		t.becomes(broken, "node", failed)
		t.replace(broken, spare, "")
		t.settled()
		if n := t.node(spare); n.GetCoord() != "1,0,1" || n.GetState() != normal {
			t.Errorf("the spare: %v", n)
		}
	})
	try(t, l, "diagnosis and procedure", func(t trial) {
		const nodes = 10
		t.until("a diagnosis that hears every node", func() bool { // a node that was too late for one diagnosis answers the next
			r := t.diagnose(&lofamov1.DiagnoseRequest{}, nil)
			return r.GetNodes() == nodes && len(r.GetSilent()) == 0 && len(named(r)) == 0
		})
		t.clears(nodes)
		t.neverFailed()
	})
}

// Users make clusters of any number of nodes by one command, and see all nodes in the map.
func TestUpWithAnyNumberOfNodes(t *testing.T) {
	t.Parallel()
	out, err := inShell(t, []string{
		"lofamoctl up --detach --nodes 11", "lofamoctl map", "lofamoctl down",
		"lofamoctl up --detach --force-new --dims '3x2x2 without 1,0,0 2,1,1'", "lofamoctl map", "lofamoctl down",
	})
	if err != nil {
		t.Fatalf("%v; the commands and their output:\n%s", err, out)
	}
	for _, want := range []string{"11: 11 NORMAL", "10: 10 NORMAL", "·"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in what was printed:\n%s", want, out)
		}
	}
}
