package e2e

import (
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// scale lets nodes join or leave, and returns those.
func (t trial) scale(nodes int) (steps []cluster.Scaled) {
	t.Helper()
	if err := t.Cluster.Scale(t.Context(), nodes, func(s cluster.Scaled) { steps = append(steps, s) }); err != nil {
		t.Fatal(err)
	}
	return steps
}

// Nodes join a running torus and leave it, and the map never accuses anybody because of it. A node that joined is like any
// other: its neighbours report its death, and a cut cable beside it is named.
func TestNodesJoinAndLeaveRunningTorus(t *testing.T) {
	t.Parallel()
	l := clusterOf(t, "2x2x1", cluster.Options{Supervisors: 3, Periods: patient(), Supervisor: quick})
	var first cluster.Scaled
	try(t, l, "two nodes join", func(t trial) {
		steps := t.scale(6)
		t.settled()
		t.neverFailed()
		if first = steps[0]; len(steps) != 2 || steps[1].Dims != "2x3x1" {
			t.Errorf("%+v: want two nodes, and 2x3x1, where their neighbours lie in both racks", steps)
		}
	})
	joined := string(first.Node)
	try(t, l, "cut cable at a node that joined", func(t trial) {
		t.inject(joined, cluster.Fault{Kind: cluster.CutLink, Dir: grid.YPlus})
		t.becomes(joined, "link/Y+", failed)
		t.becomes("n0-0-0", "link/Y-", failed)
		t.othersWereSpared(joined, "n0-0-0")
	})
	try(t, l, "death of a node that joined", func(t trial) {
		t.inject(joined, simple(cluster.KillNode))
		t.becomes(joined, "node", failed)
		t.othersWereSpared(joined)
	})
	try(t, l, "an old neighbour dies", func(t trial) {
		t.inject("n0-1-0", simple(cluster.KillNode))
		t.becomes("n0-1-0", "node", failed)
		t.othersWereSpared("n0-1-0")
	})
	try(t, l, "they leave, and one of the first too", func(t trial) {
		steps := t.scale(3)
		t.settled()
		t.neverFailed()
		if len(steps) != 3 || steps[2].Node != "n1-1-0" || steps[2].Dims != "2x3x1 without 1,1,0..1,2,0" {
			t.Errorf("%+v: want n1-1-0 to leave last", steps)
		}
	})
	try(t, l, "it comes back to its place", func(t trial) {
		steps := t.scale(4)
		t.settled()
		t.neverFailed()
		if len(steps) != 1 || steps[0].Node != "n1-1-0" || steps[0].Coord != "1,1,0" {
			t.Errorf("%+v: want n1-1-0 at 1,1,0", steps)
		}
	})
	try(t, l, "new machines join by the names of those that left", func(t trial) {
		steps := t.scale(6)
		t.settled()
		t.neverFailed()
		if len(steps) != 2 || string(steps[0].Node) != joined {
			t.Errorf("%+v: want %s first of two", steps, joined)
		}
	})
}

// Users change the size of a local cluster, and let single nodes leave and join.
func TestScaleFromShell(t *testing.T) {
	t.Parallel()
	out, err := inShell(t, []string{
		"lofamoctl up --detach --force-new --nodes 5", "lofamoctl scale --nodes 7", "lofamoctl map", "lofamoctl node leave node-5 --dry-run",
		"lofamoctl node leave node-5", "lofamoctl down", "lofamoctl up --detach", // the node that has left is not waited for
		"lofamoctl node join node-5", "lofamoctl scale --nodes 5", "lofamoctl get nodes", "lofamoctl down",
	})
	if err != nil {
		t.Fatalf("%v; the commands and their output:\n%s", err, out)
	}
	for _, want := range []string{
		"node-6 joins at", "7 nodes NORMAL", "1 node (node-5) would leave", "node-5 joins at", "node-5 is NORMAL", "node-6 has left",
		"5 nodes NORMAL",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in what was printed:\n%s", want, out)
		}
	}
}
