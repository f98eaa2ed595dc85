package orders

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// All nodes that the map does not call FAILED are members, and the others are named as absent.
func TestFailedNodesAreNoMembers(t *testing.T) {
	dims := grid.Dims{X: 3, Y: 3, Z: 1}
	all := places(dims)
	all[4].Failed = true
	all[7].Node = ""
	p, err := newProcedurePlan(dims, all, options())
	if err != nil || !slices.Equal(p.Members, []int{0, 1, 2, 3, 5, 6, 8}) || !slices.Equal(p.Absent, []uint32{4, 7}) {
		t.Errorf("%v, %v, %v", p.Members, p.Absent, err)
	}
	if p.name(4) != "n1-1-0" || p.name(7) != "1,2,0" || p.name(9) != "place 9" {
		t.Errorf("names: %s, %s, %s", p.name(4), p.name(7), p.name(9))
	}
	large := grid.Dims{X: 16, Y: 16, Z: 1}
	all = places(large)
	for rank := range maxAbsent + 1 {
		all[rank].Failed = true
	}
	if _, err := newProcedurePlan(large, all, options()); err == nil ||
		!strings.Contains(err.Error(), "201 places of the torus are FAILED or vacant: want at most 200") {
		t.Errorf("%v", err)
	}
	if _, err := newProcedurePlan(grid.Dims{X: 1, Y: 1, Z: 1}, []Place{{Node: "a", Failed: true}}, options()); err == nil {
		t.Error("a torus of which nothing lives")
	}
}

// The Network Delay is the diameter of the working links. It is the margin if those do not connect members that
// may be connected by links not known to be dead.
func TestNetworkDelayIsDiameterOfWorkingLinks(t *testing.T) {
	const hop = 50 * time.Millisecond
	dims := grid.Dims{X: 4, Y: 4, Z: 1}
	cut := func(all []Place, rank int, d grid.Direction) { all[rank].Links &^= 1 << d.Index() }
	for _, tc := range []struct {
		what string
		edit func([]Place)
		hops int
	}{
		{"all works", func([]Place) {}, 4},
		{"a link is masked at one end", func(all []Place) { cut(all, 0, grid.XPlus) }, 4},
		{"a ring is cut twice, and rows go round it", func(all []Place) { cut(all, 0, grid.XPlus); cut(all, 2, grid.XPlus) }, 4},
		{"all links of X but one row", func(all []Place) {
			for rank := range all {
				if dims.At(rank).Y != 0 {
					cut(all, rank, grid.XPlus)
				}
			}
		}, 6},
		{"of a node no link is well", func(all []Place) { all[5].Links = 0 }, 15}, // the margin
		{"all links of a node are dead at its end", func(all []Place) { all[5].Links, all[5].Dead = 0, 0x0f }, 4},
		{"all links of a node are dead at one of their ends", func(all []Place) {
			all[5].Links, all[5].Dead = 0, 0x03
			for _, d := range []grid.Direction{grid.YPlus, grid.YMinus} {
				to, _ := dims.Neighbour(dims.At(5), d)
				all[dims.Rank(to)].Dead |= 1 << d.Opposite().Index()
			}
		}, 4},
		{"all but one", func(all []Place) { all[5].Links, all[5].Dead = 0, 0x07 }, 15},
		{"two nodes have one another", func(all []Place) {
			all[5].Links, all[5].Dead = 1<<grid.XPlus.Index(), 0x0f&^(1<<grid.XPlus.Index())
			all[6].Links, all[6].Dead = 1<<grid.XMinus.Index(), 0x0f&^(1<<grid.XMinus.Index())
		}, 4},
		{"a node is dead", func(all []Place) { all[5].Failed, all[5].Links = true, 0 }, 4},
	} {
		all := places(dims)
		tc.edit(all)
		p, err := newProcedurePlan(dims, all, procedureOptions{DrainTimeout: time.Second, Hop: hop / 4, Late: hop})
		if err != nil || p.Delay != time.Duration(tc.hops)*hop || p.Hop != hop/4 {
			t.Errorf("%s: a delay of %s, %v: want %d hops", tc.what, p.Delay, err, tc.hops)
		}
	}
	one, err := newProcedurePlan(grid.Dims{X: 1, Y: 1, Z: 1}, []Place{{Node: "a", Well: true}}, procedureOptions{DrainTimeout: time.Second})
	if err != nil || one.Delay != minHop || one.Hop != minHop {
		t.Errorf("one node: %s, %s, %v", one.Delay, one.Hop, err)
	}
	far, err := newProcedurePlan(dims, places(dims), procedureOptions{DrainTimeout: time.Second, Hop: time.Minute, Late: time.Hour})
	if err != nil || far.Delay != maxDelay || far.Hop != maxDelay {
		t.Errorf("slow links: %s, %s, %v", far.Delay, far.Hop, err)
	}
}

// Starters are healthy and have most of their links; FAILED nodes begin nothing.
func TestHealthyNodesAreStarters(t *testing.T) {
	dims := grid.Dims{X: 2, Y: 2, Z: 2}
	all := places(dims)
	all[0].Well = false
	all[1].Links &= 0x0f
	all[2].Failed = true
	p, err := newProcedurePlan(dims, all, options())
	if want := []fault.NodeID{"n1-1-0", "n0-0-1", "n1-0-1"}; err != nil || !slices.Equal(p.Starters, want) {
		t.Errorf("%v, %v: want %v", p.Starters, err, want)
	}
	for name, want := range map[fault.NodeID]string{"n0-1-0": "is FAILED", "nobody": "has no place"} {
		o := options()
		o.Starter = name
		if _, err := newProcedurePlan(dims, all, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	o := options()
	o.Starter = "n0-0-0"
	if p, err := newProcedurePlan(dims, all, o); err != nil || !slices.Equal(p.Starters, []fault.NodeID{"n0-0-0"}) {
		t.Errorf("%v, %v", p.Starters, err)
	}
	for rank := range all {
		all[rank].Well = false
	}
	if p, err := newProcedurePlan(dims, all, options()); err != nil || len(p.Starters) != 3 {
		t.Errorf("when none is well, somebody is to try: %v, %v", p.Starters, err)
	}
}
