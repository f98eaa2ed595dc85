package e2e

import (
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
)

// TestBorderNodeDiesInTwoRegions: real processes in two regions below a parent, cut across X. A node at the border dies: witnesses on both
// sides accuse it, its own region finds it FAILED, no node beside it is called SICK, and the parent shows it. Then only
// its host dies: its DNP half's report travels through a neighbour, in either region.
func TestBorderNodeDiesInTwoRegions(t *testing.T) {
	t.Parallel()
	l := clusterOf(t, "4x2", cluster.Options{Supervisors: 1, Regions: 2, Periods: patient()})
	try(t, l, "node at the border", func(t trial) {
		t.inject("n1-0-0", simple(cluster.KillNode))
		t.becomes("n1-0-0", "node", failed)
		n := t.is("n1-0-0", failed, lofamov1.Cause_NODE)
		if n.GetSingleWitness() || n.GetRegion() != "region-0" {
			t.Errorf("%v", n)
		}
		t.heal("n1-0-0")
		t.othersWereSpared("n1-0-0")
	})
	try(t, l, "host at the border", func(t trial) {
		t.inject("n2-1-0", simple(cluster.KillHost))
		t.becomes("n2-1-0", "host", failed)
		t.is("n2-1-0", sick, lofamov1.Cause_HOST)
		t.heal("n2-1-0")
		t.othersWereSpared("n2-1-0")
	})
}
