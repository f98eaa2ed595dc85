package chanmask

import (
	"cmp"
	"maps"
	"slices"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Knowledge is the state of a node or a link in a map (§5.2.3.2: known good, known bad, and unknown). The zero value
// is no state.
type Knowledge uint8

// The states.
const (
	Unknown Knowledge = iota + 1
	Good
	Bad
)

var knowledgeNames = [...]string{"invalid", "unknown", "good", "bad"}

// String returns unknown, good or bad.
func (k Knowledge) String() string {
	if int(k) < len(knowledgeNames) {
		return knowledgeNames[k]
	}
	return knowledgeNames[0]
}

// Map records the known state of every node and link of a torus.
type Map struct {
	Dims  grid.Dims
	nodes []Knowledge
	links [][3]Knowledge // by rank of the lower end and axis
}

// NewMap returns a map on which everything is unknown.
func NewMap(dims grid.Dims) *Map {
	m := &Map{Dims: dims, nodes: make([]Knowledge, dims.Places()), links: make([][3]Knowledge, dims.Places())}
	for i := range m.nodes {
		m.nodes[i], m.links[i] = Unknown, [3]Knowledge{Unknown, Unknown, Unknown}
	}
	return m
}

// Node returns the known state of a node.
func (m *Map) Node(c grid.Coord) Knowledge { return m.nodes[m.Dims.Rank(c)] }

// Link returns the known state of a link.
func (m *Map) Link(l Link) Knowledge { return m.links[m.Dims.Rank(l.Node)][l.Dir.Axis()] }

// SetNode sets the state of a node.
func (m *Map) SetNode(c grid.Coord, k Knowledge) { m.nodes[m.Dims.Rank(c)] = k }

// SetLink sets the state of a link.
func (m *Map) SetLink(l Link, k Knowledge) { m.links[m.Dims.Rank(l.Node)][l.Dir.Axis()] = k }

// both merges the entries of two maps of different times: alive only when alive in both (§6.1); unknown if either is
// unknown, unless the other is dead.
func both(a, b Knowledge) Knowledge {
	switch {
	case a == Bad || b == Bad:
		return Bad
	case a == Good && b == Good:
		return Good
	}
	return Unknown
}

// add merges the findings of one mapper into a map. Findings fill in unknown entries, and an entry is dead if either
// side says so.
func add(a, b Knowledge) Knowledge {
	switch {
	case a == Bad || b == Bad:
		return Bad
	case a == Good || b == Good:
		return Good
	}
	return Unknown
}

// Merge combines an earlier map with the present one: only entries that are alive in both stay alive.
func Merge(before, now *Map) *Map { return combine(before, now, both) }

// Extend adds a mapper's findings in its region to m.
func Extend(m, findings *Map) *Map { return combine(m, findings, add) }

// combine is for two maps of one torus.
func combine(a, b *Map, one func(a, b Knowledge) Knowledge) *Map {
	out := NewMap(a.Dims)
	for i := range out.nodes {
		out.nodes[i] = one(a.nodes[i], b.nodes[i])
		for axis := range out.links[i] {
			out.links[i][axis] = one(a.links[i][axis], b.links[i][axis])
		}
	}
	return out
}

// Delegation asks one node to map a region.
type Delegation struct {
	Mapper grid.Coord
	Region []grid.Coord // unknown nodes that lie together, by rank
}

// Plan assigns the mapping of unknown regions. The mapper of a region is a node that is known to be good and borders
// on it by a link that is not known to be dead: the one with the most such links, then the one with the lowest rank.
// If a region has more than most nodes, the mapper gets the nearest of these. asked reports whether a mapper was given
// a region already, and Plan does not assign that pair again; a nil asked means that none was. A region without a
// possible mapper gets no delegation and stays unknown.
//
// Delegation proceeds in steps: the findings of one mapper may give others a border (Figure 18: C, then D).
func (m *Map) Plan(most int, asked func(Delegation) bool) []Delegation {
	var out []Delegation
	seen := make([]bool, len(m.nodes))
	for rank, k := range m.nodes {
		if k != Unknown || seen[rank] {
			continue
		}
		region, border := m.region(rank, seen)
		mappers := slices.SortedFunc(maps.Keys(border), func(a, b int) int {
			return cmp.Or(cmp.Compare(border[b], border[a]), cmp.Compare(a, b))
		})
		for _, b := range mappers {
			d := Delegation{Mapper: m.Dims.At(b), Region: m.near(b, region, most)}
			if asked == nil || !asked(d) {
				out = append(out, d)
				break
			}
		}
	}
	return out
}

// near returns the nodes of a region that lie nearest to a mapper, by rank: no more than most, and only nodes that
// the mapper can reach within the region.
func (m *Map) near(mapper int, region []int, most int) []grid.Coord {
	left := make(map[int]bool, len(region))
	for _, r := range region {
		left[r] = true
	}
	ranks := []int{mapper}
	for i := 0; i < len(ranks); i++ {
		at := m.Dims.At(ranks[i])
		for _, d := range m.Dims.Links() {
			c, ok := m.Dims.Neighbour(at, d)
			if l, _ := LinkAt(m.Dims, at, d); ok && left[m.Dims.Rank(c)] && m.Link(l) != Bad && len(ranks) <= most {
				delete(left, m.Dims.Rank(c))
				ranks = append(ranks, m.Dims.Rank(c))
			}
		}
	}
	ranks = ranks[1:]
	slices.Sort(ranks)
	out := make([]grid.Coord, len(ranks))
	for i, r := range ranks {
		out[i] = m.Dims.At(r)
	}
	return out
}

// region returns the unknown nodes that lie together with one, by rank, and how many links that may work lead to them
// from each good node. It notes them in seen.
func (m *Map) region(start int, seen []bool) (region []int, border map[int]int) {
	border = make(map[int]int)
	seen[start] = true
	region = []int{start}
	for i := 0; i < len(region); i++ {
		at := m.Dims.At(region[i])
		for _, d := range m.Dims.Links() {
			l, ok := LinkAt(m.Dims, at, d)
			if !ok || m.Link(l) == Bad {
				continue
			}
			c, _ := m.Dims.Neighbour(at, d)
			switch n := m.Dims.Rank(c); {
			case m.nodes[n] == Good:
				border[n]++
			case m.nodes[n] == Unknown && !seen[n]:
				seen[n] = true
				region = append(region, n)
			}
		}
	}
	slices.Sort(region)
	return region, border
}
