package api

import (
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// The topology and the summary name each node that has a single witness, and no other. Where places are fixed, they name no
// remedy.
func TestTopologyAndSummaryNameSingleWitness(t *testing.T) {
	for dims, want := range map[string]string{"4x2x1 without 1,1,0..3,1,0": "n0-1-0", "4x1x1": ""} {
		l := newLeads(dimsOf(t, dims))
		named := func(of []*lofamov1.SingleWitness, remedy bool) (nodes string) {
			for _, w := range of {
				if nodes += w.GetNode(); w.GetWitness() != "n0-0-0" || w.GetReason() == "" || (w.GetRemedy() != "") != remedy {
					t.Errorf("%s: %v: want witness n0-0-0, a reason, a remedy: %t", dims, w, remedy)
				}
			}
			return nodes
		}
		for name, cfg := range map[string]Config{
			"leader":            {Operators: busy{l.names}},
			"without a leader":  {Operators: &elected{after: 1}},
			"parent of regions": {RegionSupervisors: map[string][]string{"west": nil}},
		} {
			cfg.Self, cfg.Names, cfg.Directory = "s1", l.names, led{}
			top, err := New(cfg).GetTopology(asOperator(t), &lofamov1.GetTopologyRequest{})
			if got := named(top.GetSingleWitness(), cfg.RegionSupervisors == nil); err != nil || got != want {
				t.Errorf("%s, %s: topology names %q, %v: want %q", dims, name, got, err, want)
			}
		}
		h := serveNamed(t, l, l.names, 16)
		for _, labels := range []string{"", "gpu", "!gpu"} { // n0-1-0 has the label
			sum, err := h.client.GetSummary(t.Context(), &lofamov1.GetSummaryRequest{LabelSelector: labels})
			chosen := want
			if labels == "!gpu" {
				chosen = ""
			}
			if got := named(sum.GetSingleWitness(), true); err != nil || got != chosen {
				t.Errorf("%s: summary of %q names %q, %v: want %q", dims, labels, got, err, chosen)
			}
		}
	}
}
