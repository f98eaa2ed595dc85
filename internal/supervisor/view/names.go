package view

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Names finds nodes by name, that is by id or coordinates, and answers questions about the topology. It follows
// the topology while the replica runs. Its methods may be called from any goroutine.
//
// In a region it also knows the bordering nodes of other regions, but only Foreign and Services return them: they
// have no place in the map.
type Names struct {
	now    atomic.Pointer[topology.Topology]
	border map[fault.NodeID]topology.Node // of other regions; immutable

	mu      sync.Mutex
	changed chan struct{} // closed by the next change; nil: nobody waits
}

// NewNames returns the names of a torus whose every node has an id.
func NewNames(dims grid.Dims, ids map[grid.Coord]fault.NodeID) *Names {
	nodes := make([]topology.Node, 0, len(ids))
	for c, id := range ids {
		nodes = append(nodes, topology.Node{ID: id, Coord: c})
	}
	return NamesOf(topology.New(dims, nodes, fault.DomainLabels(), 0))
}

// NamesOf returns the names of a topology.
func NamesOf(t *topology.Topology) *Names {
	n := new(Names)
	n.now.Store(t)
	return n
}

// WithBorder adds the nodes of other regions that border on this one. It must be called before the names are used.
func (n *Names) WithBorder(border []topology.Node) *Names {
	n.border = make(map[fault.NodeID]topology.Node, len(border))
	for _, b := range border {
		n.border[b.ID] = b
	}
	return n
}

// Foreign finds a node of another region that borders on this one.
func (n *Names) Foreign(id fault.NodeID) (topology.Node, bool) {
	b, ok := n.border[id]
	return b, ok
}

// Border returns those nodes, in random order.
func (n *Names) Border() []topology.Node { return slices.Collect(maps.Values(n.border)) }

func (n *Names) borderIDs() map[grid.Coord]fault.NodeID {
	out := make(map[grid.Coord]fault.NodeID, len(n.border))
	for _, b := range n.border {
		out[b.Coord] = b.ID
	}
	return out
}

// Topology returns the present topology.
func (n *Names) Topology() *topology.Topology { return n.now.Load() }

// Set applies a newer topology. It reports whether the topology changed, and ignores one that is not newer. A topology that differs from
// the present one only in the revision shares its memory: a large one takes some 30 MB.
func (n *Names) Set(t *topology.Topology) bool {
	for {
		have := n.now.Load()
		if t.Revision <= have.Revision {
			return false
		}
		if t.Equal(have) {
			t = have.At(t.Revision)
		}
		if n.now.CompareAndSwap(have, t) {
			n.mu.Lock()
			defer n.mu.Unlock()
			if n.changed != nil {
				close(n.changed)
				n.changed = nil
			}
			return true
		}
	}
}

// Changed returns a channel that is closed by the next Set. Call it before Topology.
func (n *Names) Changed() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.changed == nil {
		n.changed = make(chan struct{})
	}
	return n.changed
}

// Replace sets a topology that is assembled from several, and so has no revision that orders versions. A caller of
// Replace must not call Set.
func (n *Names) Replace(t *topology.Topology) { n.now.Store(t) }

// Dims returns the torus' sizes.
func (n *Names) Dims() grid.Dims { return n.now.Load().Dims }

// All returns every node with a place, by rank.
func (n *Names) All() []fault.NodeID {
	placed := n.now.Load().Placed()
	out := make([]fault.NodeID, len(placed))
	for i := range placed {
		out[i] = placed[i].ID
	}
	return out
}

// Known reports whether a node of that id has a place.
func (n *Names) Known(id fault.NodeID) bool {
	_, ok := n.Coord(id)
	return ok
}

// Coord returns where a node is; a spare is nowhere.
func (n *Names) Coord(id fault.NodeID) (grid.Coord, bool) {
	node, ok := n.now.Load().Node(id)
	return node.Coord, ok && !node.Spare
}

// Labels returns the labels of a node, which are not to be changed.
func (n *Names) Labels(id fault.NodeID) map[string]string {
	node, _ := n.now.Load().Node(id)
	return node.Labels
}

// Services returns the addresses of a node's service interfaces, by their numbers.
func (n *Names) Services(id fault.NodeID) []netip.AddrPort {
	node, ok := n.now.Load().Node(id)
	if !ok {
		node, _ = n.Foreign(id)
	}
	return node.Service
}

// Owner returns the node that has a service address.
func (n *Names) Owner(addr netip.AddrPort) (fault.NodeID, bool) { return n.now.Load().Owner(addr) }

// UnknownNodeError says that the name is a valid id, but no node has it.
type UnknownNodeError struct{ Name string }

func (e *UnknownNodeError) Error() string { return fmt.Sprintf("node %q: no node of that id", e.Name) }

// Find returns the node of that name, which may be a spare. An error other than UnknownNodeError describes a
// malformed name.
func (n *Names) Find(name string) (fault.NodeID, error) {
	t := n.now.Load()
	if name == "" {
		return "", fmt.Errorf("node: empty name: want an id or coordinates x,y,z")
	}
	if _, ok := t.Node(fault.NodeID(name)); ok {
		return fault.NodeID(name), nil
	}
	if !strings.ContainsAny(name[:1], "0123456789") {
		if strings.ContainsAny(name, " ,/") {
			return "", fmt.Errorf("node %q: neither an id nor coordinates x,y,z", name)
		}
		return "", &UnknownNodeError{Name: name}
	}
	c, err := grid.ParseCoord(name)
	if err != nil {
		return "", fmt.Errorf("node %q: neither an id nor coordinates: %w", name, err)
	}
	if err := t.Dims.Check(c); err != nil {
		return "", fmt.Errorf("node %q: %w", name, err)
	}
	node, ok := t.Place(c)
	if !ok {
		return "", fmt.Errorf("node %q: not a place of this region", name)
	}
	return node.ID, nil
}
