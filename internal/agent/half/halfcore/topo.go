package halfcore

import (
	"hash/crc32"
	"slices"
	"strings"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Topology is one node's view of the torus around it: its place, its neighbours and the names of nodes. It knows no
// addresses and no states. Build it with NewTopology; it does not change afterwards.
type Topology struct {
	Node       fault.NodeID
	Coord      grid.Coord
	Dims       grid.Dims
	Links      []grid.Direction // in which the node has a link: not where it has no end of its own
	Neighbours []Neighbour      // the distinct ones, in the order of the directions
	named      map[grid.Coord]fault.NodeID
	at         map[fault.NodeID]grid.Coord
}

// Neighbour is another node with one or more links to this one.
type Neighbour struct {
	ID    fault.NodeID
	Coord grid.Coord
	Dirs  []grid.Direction // of the links to the neighbour: two in a dimension of size 2
	Mark  uint32           // see PeerMark
}

// NewTopology returns the view of the node at coord. peers names the neighbours that do not have the
// default name.
func NewTopology(node fault.NodeID, coord grid.Coord, dims grid.Dims, peers map[grid.Direction]fault.NodeID) *Topology {
	m := &Topology{
		Node: node, Coord: coord, Dims: dims, Links: dims.LinksOf(coord),
		named: map[grid.Coord]fault.NodeID{coord: node}, at: map[fault.NodeID]grid.Coord{},
	}
	for _, d := range m.Links {
		if id, ok := peers[d]; ok && id != "" {
			n, _ := dims.Neighbour(coord, d)
			m.named[n] = id
		}
	}
	for c, id := range m.named {
		m.at[id] = c
	}
	for _, c := range dims.Neighbours(coord) {
		m.Neighbours = append(m.Neighbours, Neighbour{
			ID: m.ID(c), Coord: c, Dirs: dims.LinksTo(coord, c), Mark: max(1, crc32.ChecksumIEEE([]byte(m.ID(c)))),
		})
	}
	return m
}

// Without returns the view without some of the node's links, as if the nodes at their other ends were not linked to it.
func (m *Topology) Without(dirs ...grid.Direction) *Topology {
	if len(dirs) == 0 {
		return m
	}
	out := *m
	gone := func(d grid.Direction) bool { return slices.Contains(dirs, d) }
	out.Links = slices.DeleteFunc(slices.Clone(m.Links), gone)
	out.Neighbours = nil
	for _, n := range m.Neighbours {
		if n.Dirs = slices.DeleteFunc(slices.Clone(n.Dirs), gone); len(n.Dirs) > 0 {
			out.Neighbours = append(out.Neighbours, n)
		}
	}
	return &out
}

// PeerMark returns a checksum of the name of the node at the other end of a link, or 0 if the node has no such link. The two halves of
// a node learn of a change of places at different times. They compare marks to see whether they have the same peer on a link.
func (m *Topology) PeerMark(d grid.Direction) uint32 {
	for _, n := range m.Neighbours {
		if slices.Contains(n.Dirs, d) {
			return n.Mark
		}
	}
	return 0
}

// ID returns the name of the node at c: the given one of this node and its neighbours, the
// default one of all others.
func (m *Topology) ID(c grid.Coord) fault.NodeID {
	if id, ok := m.named[c]; ok {
		return id
	}
	return fault.DefaultNodeID(c)
}

// At returns the place of the node of that name. It returns false for a name that is neither known nor of the default
// form, or lies outside the torus.
func (m *Topology) At(id fault.NodeID) (grid.Coord, bool) {
	if c, ok := m.at[id]; ok {
		return c, true
	}
	rest, ok := strings.CutPrefix(string(id), "n")
	if !ok {
		return grid.Coord{}, false
	}
	c, err := grid.ParseCoord(strings.ReplaceAll(rest, "-", ","))
	if err != nil || !m.Dims.Contains(c) || fault.DefaultNodeID(c) != id {
		return grid.Coord{}, false
	}
	if _, renamed := m.named[c]; renamed {
		return grid.Coord{}, false
	}
	return c, true
}

// NeighbourIDs returns the ids of the distinct neighbours.
func (m *Topology) NeighbourIDs() []fault.NodeID {
	out := make([]fault.NodeID, len(m.Neighbours))
	for i, n := range m.Neighbours {
		out[i] = n.ID
	}
	return out
}
