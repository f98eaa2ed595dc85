package e2e

import (
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
)

// Nodes get better places while the cluster runs: two of them exchange theirs, and then one moves to an empty place. The map
// accuses nobody because of it, and names a node that dies at its new place.
func TestNodesGetBetterPlaces(t *testing.T) {
	t.Parallel()
	const racks = "cbacbac" // by rank: two nodes have all their witnesses in one rack
	l := clusterOf(t, "2x2x2 without 1,1,1", cluster.Options{Supervisors: 3, Periods: patient(), Supervisor: func(cfg *config.Supervisor) {
		quick(cfg)
		for i := range cfg.Nodes {
			cfg.Nodes[i].Labels = map[string]string{"rack": racks[i : i+1]}
		}
	}})
	try(t, l, "two nodes exchange their places", func(t trial) {
		if out := t.lofamoctl("get", "topology", "--improve"); !strings.Contains(out, "rack: 2 nodes are exposed") {
			t.Fatalf("before:\n%s", out)
		}
		out := t.lofamoctl("node", "improve")
		t.settled()
		t.neverFailed()
		t.othersWereSpared("n0-0-0", "n1-0-0")
		said := strings.Contains(out, "step 1: n0-0-0") && strings.Contains(out, "no node is exposed")
		if n := t.node("n0-0-0"); !said || n.GetCoord() != "1,0,0" {
			t.Errorf("n0-0-0 is at %s:\n%s", n.GetCoord(), out)
		}
	})
	try(t, l, "a node moves to an empty place", func(t trial) {
		t.lofamoctl("node", "move", "n1-1-0", "--to", "1,1,1")
		t.settled()
		t.neverFailed()
		t.othersWereSpared("n1-1-0")
		if n := t.node("n1-1-0"); n.GetCoord() != "1,1,1" {
			t.Errorf("it is at %s", n.GetCoord())
		}
	})
	for _, id := range []string{"n0-0-0", "n1-1-0"} {
		try(t, l, "death of a node that moved: "+id, func(t trial) {
			t.inject(id, simple(cluster.KillNode))
			t.becomes(id, "node", failed)
			t.othersWereSpared(id)
		})
	}
}
