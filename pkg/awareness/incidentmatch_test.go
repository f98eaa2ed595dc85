package awareness

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestCoverersFindWhatAScanFinds: for each root cause, the index finds the same incident as a scan, among many
// incidents whose root causes have ended.
func TestCoverersFindWhatAScanFinds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	components := []fault.Component{fault.ComponentNode, fault.ComponentHost, fault.ComponentDNP, fault.ComponentMemory,
		fault.Link(grid.XPlus)}
	part := func() Part {
		return Part{Node: fault.NodeID(fmt.Sprint("n", r.IntN(60))), Component: components[r.IntN(len(components))]}
	}
	found := 0
	for range 200 {
		all := make([]*incident, 5*fewCoverers)
		for i := range all {
			all[i] = &incident{covers: map[Part]bool{part(): true, part(): true}}
		}
		index := coverers{all: all}
		for range 50 {
			c := &cluster{root: part()}
			for range r.IntN(3) {
				p := part()
				c.parts = append(c.parts, Consequence{Node: p.Node, Component: p.Component})
			}
			var want *incident
			if i := slices.IndexFunc(all, func(s *incident) bool { return s.covered(c) }); i >= 0 {
				want, found = all[i], found+1
			}
			if got := index.first(c); got != want {
				t.Fatalf("%s with %v: found another incident than the scan", c.root, c.parts)
			}
		}
	}
	if found < 100 {
		t.Errorf("only %d root causes were covered", found)
	}
}
