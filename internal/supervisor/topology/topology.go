// Package topology is the owner's description of the torus: its size, the places of nodes, the spares, their
// labels and the addresses of their service interfaces.
//
// It is pure. Every Topology is valid: only FromProto and FromConfig make one, and their errors name every bad field at
// once. Other packages store it (package store), check who may change it (package api), and act on changes. It
// contains no faults.
package topology

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Topology is the torus. It is immutable.
type Topology struct {
	Dims grid.Dims
	// Nodes has first the nodes with a place, by rank, then the spares by id.
	Nodes []Node
	// DomainLabels are the label keys that are failure domains.
	DomainLabels []string
	// Revision in the store of its last change; 0: not stored yet.
	Revision uint64

	// Region is the name of the topology's region, whose nodes have a part of the places. Empty: the nodes have all
	// places.
	Region string

	index  map[fault.NodeID]int
	placed int
	owners map[netip.AddrPort]fault.NodeID
}

// Node is one node.
type Node struct {
	ID      fault.NodeID
	Coord   grid.Coord // of no meaning for a spare
	Spare   bool
	Joining bool // a spare that has enrolled, and waits for its first place
	Proved  bool // it has enrolled, and has answered a challenge at each address of Service
	Labels  map[string]string
	Service []netip.AddrPort // of its service interfaces, by their numbers
}

// place is where the node is, in words.
func (n Node) place() string {
	if n.Spare {
		return "spare"
	}
	return n.Coord.String()
}

// Equal reports whether two nodes are equal in every field.
func (n Node) Equal(o Node) bool {
	return n.ID == o.ID && n.Coord == o.Coord && n.Spare == o.Spare && n.Joining == o.Joining && n.Proved == o.Proved &&
		maps.Equal(n.Labels, o.Labels) && slices.Equal(n.Service, o.Service)
}

// New makes a topology of valid nodes, and sorts them.
func New(dims grid.Dims, nodes []Node, domainLabels []string, revision uint64) *Topology {
	t := &Topology{
		Dims: dims, Nodes: nodes, DomainLabels: domainLabels, Revision: revision,
		index: make(map[fault.NodeID]int, len(nodes)), owners: make(map[netip.AddrPort]fault.NodeID, len(nodes)),
	}
	slices.SortFunc(t.Nodes, func(a, b Node) int {
		switch {
		case a.Spare != b.Spare:
			if b.Spare {
				return -1
			}
			return 1
		case a.Spare:
			return cmp.Compare(a.ID, b.ID)
		}
		return cmp.Compare(dims.Rank(a.Coord), dims.Rank(b.Coord))
	})
	for i, n := range t.Nodes {
		t.index[n.ID] = i
		if !n.Spare {
			t.placed++
		}
		for _, a := range n.Service {
			t.owners[plain(a)] = n.ID
		}
	}
	return t
}

// plain returns the address in a form that is the same for dual-stack and IPv4 sockets.
func plain(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// Owner finds the node that has a service address.
func (t *Topology) Owner(addr netip.AddrPort) (fault.NodeID, bool) {
	id, ok := t.owners[plain(addr)]
	return id, ok
}

// At returns a copy of another revision.
func (t *Topology) At(revision uint64) *Topology {
	out := *t
	out.Revision = revision
	return &out
}

// Node finds a node by its id.
func (t *Topology) Node(id fault.NodeID) (Node, bool) {
	i, ok := t.index[id]
	if !ok {
		return Node{}, false
	}
	return t.Nodes[i], true
}

// Rank returns the rank of a node with a place, which is its index in Placed.
func (t *Topology) Rank(id fault.NodeID) (int, bool) {
	i, ok := t.index[id]
	if !ok || i >= t.placed {
		return 0, false
	}
	return i, true
}

// Find finds a node by its id, or by its place as "x,y,z".
func (t *Topology) Find(name string) (Node, bool) {
	if n, ok := t.Node(fault.NodeID(name)); ok {
		return n, true
	}
	at, err := grid.ParseCoord(name)
	if err != nil || !t.Dims.Contains(at) {
		return Node{}, false
	}
	return t.Place(at)
}

// Placed are the nodes with a place, by rank.
func (t *Topology) Placed() []Node { return t.Nodes[:t.placed] }

// Ordinary reports whether all nodes with a place have enrolled: their links are flows over an ordinary network, not cables. A cluster
// without nodes is ordinary, because only enrolment brings it some.
func (t *Topology) Ordinary() bool {
	return !slices.ContainsFunc(t.Placed(), func(n Node) bool { return !n.Proved })
}

// Spares are the nodes without one, by id.
func (t *Topology) Spares() []Node { return t.Nodes[t.placed:] }

// Place finds the node at a place.
func (t *Topology) Place(at grid.Coord) (Node, bool) {
	i, ok := slices.BinarySearchFunc(t.Placed(), t.Dims.Rank(at),
		func(n Node, rank int) int { return cmp.Compare(t.Dims.Rank(n.Coord), rank) })
	if !ok {
		return Node{}, false
	}
	return t.Nodes[i], true
}

// Neighbours returns the nodes at the places next to a node's; none for a node without a place.
func (t *Topology) Neighbours(id fault.NodeID) []fault.NodeID {
	n, ok := t.Node(id)
	if !ok || n.Spare {
		return nil
	}
	var out []fault.NodeID
	for _, at := range t.Dims.Neighbours(n.Coord) {
		if nb, ok := t.Place(at); ok {
			out = append(out, nb.ID)
		}
	}
	return out
}

// IDs are the ids of the nodes with a place.
func (t *Topology) IDs() map[grid.Coord]fault.NodeID {
	out := make(map[grid.Coord]fault.NodeID, t.placed)
	for _, n := range t.Placed() {
		out[n.Coord] = n.ID
	}
	return out
}

// Labels returns the labels of the nodes with a place.
func (t *Topology) Labels() map[fault.NodeID]map[string]string {
	out := make(map[fault.NodeID]map[string]string)
	for _, n := range t.Placed() {
		if len(n.Labels) > 0 {
			out[n.ID] = n.Labels
		}
	}
	return out
}

// Equal reports whether two topologies are equal in all but their revisions.
func (t *Topology) Equal(o *Topology) bool {
	return t.Dims == o.Dims && t.Region == o.Region && slices.Equal(t.DomainLabels, o.DomainLabels) &&
		slices.EqualFunc(t.Nodes, o.Nodes, Node.Equal)
}

// SamePlaces reports whether two topologies have the same nodes at the same places. Then they differ only in
// labels, addresses and spares.
func (t *Topology) SamePlaces(o *Topology) bool {
	return t.Dims == o.Dims && slices.EqualFunc(t.Placed(), o.Placed(), func(a, b Node) bool { return a.ID == b.ID && a.Coord == b.Coord })
}

// Proto renders the topology.
func (t *Topology) Proto() *lofamov1.Topology {
	out := &lofamov1.Topology{Dims: t.Dims.String(), Revision: t.Revision, DomainLabels: slices.Clone(t.DomainLabels), Region: t.Region}
	for _, n := range t.Nodes {
		out.Nodes = append(out.Nodes, n.Proto())
	}
	return out
}

// Proto renders the node.
func (n Node) Proto() *lofamov1.TopologyNode {
	out := &lofamov1.TopologyNode{Id: string(n.ID), Labels: maps.Clone(n.Labels), Joining: n.Joining, Proved: n.Proved}
	if !n.Spare {
		out.Coord = n.Coord.String()
	}
	for _, a := range n.Service {
		out.Service = append(out.Service, a.String())
	}
	return out
}

// FromConfig returns the topology that a supervisor's file describes: in a region that of the region.
func FromConfig(c config.Supervisor) (*Topology, error) {
	p := &lofamov1.Topology{Dims: c.Dims, DomainLabels: c.DomainLabels, Region: c.Region}
	for _, n := range c.Nodes {
		if c.Region != "" && n.Region != c.Region {
			continue
		}
		p.Nodes = append(p.Nodes, &lofamov1.TopologyNode{Id: string(n.NodeID()), Coord: n.Coord, Labels: n.Labels, Service: n.Services()})
	}
	for _, n := range c.Spares {
		p.Nodes = append(p.Nodes, &lofamov1.TopologyNode{Id: string(n.ID), Labels: n.Labels, Service: n.Services()})
	}
	return FromProto(p)
}

// BorderFromConfig returns the nodes of other regions that border on the file's region, by rank, and the region of
// each. The file must be valid.
func BorderFromConfig(c config.Supervisor) (border []Node, regions map[fault.NodeID]string) {
	dims, err := grid.ParseDims(c.Dims)
	if err != nil || c.Region == "" {
		return nil, nil
	}
	at := make(map[grid.Coord]config.NodeEntry, len(c.Nodes))
	for _, n := range c.Nodes {
		if coord, err := grid.ParseCoord(n.Coord); err == nil {
			at[coord] = n
		}
	}
	regions = make(map[fault.NodeID]string)
	for coord := range dims.All() {
		n := at[coord]
		if n.Region == c.Region || !slices.ContainsFunc(dims.Neighbours(coord), func(o grid.Coord) bool { return at[o].Region == c.Region }) {
			continue
		}
		b := Node{ID: n.NodeID(), Coord: coord, Labels: n.Labels}
		for _, text := range n.Services() {
			if addr, err := netip.ParseAddrPort(text); err == nil {
				b.Service = append(b.Service, addr)
			}
		}
		border = append(border, b)
		regions[b.ID] = n.Region
	}
	return border, regions
}
