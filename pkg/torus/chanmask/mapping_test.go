package chanmask

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func TestMergeAndExtend(t *testing.T) {
	for _, c := range []struct{ a, b, merged, extended Knowledge }{
		{Good, Good, Good, Good},
		{Good, Bad, Bad, Bad},
		{Bad, Bad, Bad, Bad},
		{Good, Unknown, Unknown, Good},
		{Bad, Unknown, Bad, Bad},
		{Unknown, Unknown, Unknown, Unknown},
	} {
		for range 2 {
			if got := both(c.a, c.b); got != c.merged {
				t.Errorf("merge %v and %v: %v: want %v", c.a, c.b, got, c.merged)
			}
			if got := add(c.a, c.b); got != c.extended {
				t.Errorf("extend %v by %v: %v: want %v", c.a, c.b, got, c.extended)
			}
			c.a, c.b = c.b, c.a
		}
	}
}

// survey returns the findings of a mapper: it explores the true torus from its place, up to horizon hops.
func survey(truth *Torus, from grid.Coord, horizon int) *Map {
	m := NewMap(truth.Dims)
	m.SetNode(from, Good)
	far := map[grid.Coord]int{from: 0}
	for queue := []grid.Coord{from}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for _, d := range truth.Dims.Links() {
			l, _ := LinkAt(truth.Dims, at, d)
			n, _ := truth.Dims.Neighbour(at, d)
			if !truth.Open(at).Usable(d) {
				m.SetLink(l, Bad)
				continue
			}
			m.SetLink(l, Good)
			m.SetNode(n, Good)
			if _, seen := far[n]; !seen && far[at]+1 < horizon {
				far[n] = far[at] + 1
				queue = append(queue, n)
			}
		}
	}
	return m
}

// delegate maps by delegation until no mapper finds anything more, and returns the number of mappers used.
func delegate(truth *Torus, m *Map, horizon int) (*Map, int) {
	tried := make(map[grid.Coord]bool)
	asked := 0
	for {
		plan := m.Plan(truth.Dims.Nodes(), func(d Delegation) bool { return tried[d.Mapper] })
		if len(plan) == 0 {
			return m, asked
		}
		for _, d := range plan {
			asked++
			tried[d.Mapper] = true
			m = Extend(m, survey(truth, d.Mapper, horizon))
		}
	}
}

// Figure 18: A maps the nodes that it reaches, C and D the rest. In the end everything connected with A is known,
// however short the mappers' horizon, and everything else stays unknown.
func TestDelegatedMappingFindsAllNodes(t *testing.T) {
	for _, dims := range []string{"6x6", "4x4x4", "9"} {
		for seed := range uint64(10) {
			rng := rand.New(rand.NewPCG(seed, 3))
			truth := randomTorus(t, rng, dims)
			for range truth.Dims.Nodes() {
				at := truth.Dims.At(rng.IntN(truth.Dims.Nodes()))
				links := truth.Dims.Links()
				l, _ := LinkAt(truth.Dims, at, links[rng.IntN(len(links))])
				truth.Cut(l)
			}
			a := truth.Dims.At(rng.IntN(truth.Dims.Nodes()))
			m, asked := delegate(truth, survey(truth, a, 1), 1)
			reach := naiveReach(truth, a)
			for rank := range truth.Dims.Nodes() {
				at := truth.Dims.At(rank)
				if known := m.Node(at) == Good; known != reach[at] {
					t.Errorf("%s, seed %d: node %s is %v: connected with %s %t", dims, seed, at, m.Node(at), a, reach[at])
				}
			}
			if asked > truth.Dims.Nodes() {
				t.Errorf("%s, seed %d: %d nodes were asked", dims, seed, asked)
			}
		}
	}
}

// A region without a live neighbour has no mapper. Otherwise the neighbour with the most links to the region maps it.
func TestNeighbourWithMostLinksMapsRegion(t *testing.T) {
	m := NewMap(grid.Dims{X: 5, Y: 1, Z: 1})
	if plan := m.Plan(9, nil); len(plan) != 0 {
		t.Errorf("nobody is known, and %v is to map", plan)
	}
	m.SetNode(grid.Coord{X: 0}, Good)
	m.SetNode(grid.Coord{X: 3}, Good)
	m.SetLink(Link{grid.Coord{X: 0}, grid.XPlus}, Bad)
	plan := m.Plan(9, nil)
	if len(plan) != 2 || plan[0].Mapper != (grid.Coord{X: 3}) || len(plan[0].Region) != 2 || plan[1].Mapper != (grid.Coord{X: 0}) {
		t.Errorf("plan %+v", plan)
	}
	if plan := m.Plan(9, func(d Delegation) bool { return d.Mapper == grid.Coord{X: 3} }); len(plan) != 1 || len(plan[0].Region) != 1 {
		t.Errorf("plan without 3: %+v", plan)
	}
}

// In a large region a mapper gets the nearest nodes, but none that it can reach only through others.
func TestPlanOfLargeRegion(t *testing.T) {
	m := NewMap(grid.Dims{X: 20, Y: 1, Z: 1})
	m.SetNode(grid.Coord{}, Good)
	plan := m.Plan(4, nil)
	if want := []grid.Coord{{X: 1}, {X: 2}, {X: 18}, {X: 19}}; len(plan) != 1 || !slices.Equal(plan[0].Region, want) {
		t.Errorf("plan %+v: want %v", plan, want)
	}
	m.SetLink(Link{grid.Coord{X: 19}, grid.XPlus}, Bad)
	m.SetLink(Link{grid.Coord{X: 2}, grid.XPlus}, Bad)
	plan = m.Plan(4, nil)
	if want := []grid.Coord{{X: 1}, {X: 2}}; len(plan) != 1 || !slices.Equal(plan[0].Region, want) {
		t.Errorf("plan %+v: want %v", plan, want)
	}
}
