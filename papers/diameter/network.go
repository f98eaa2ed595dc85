// Package diameter studies how far apart the nodes of a mesh or torus get when its links or its routers fail at random
// (seed 003 §4.3.7: Figures 5 and 6, Table 3). The Network Delay, and with it every time-out of the fault management
// procedure, is a multiple of that distance.
//
// It is a model of the graph alone: no packets, no time, no protocol. Randomness is injected, so that a seed gives
// the same numbers everywhere.
//
// # The diameter of a network in pieces
//
// The paper defines the diameter as "the longest minimum distance between any two nodes in the network, taking faulty
// components into account", and says that it drops when a fault cuts the path that determines it, that the diameter
// "of the resulting subnetworks" is then less, that it may go up and down afterwards, and that it is zero when all
// links are faulty. So pairs without a path do not count, and the network is not one of the pieces. Three readings
// remain, which Definition lists; Table 3 is AnyPair (docs/papers/chaos.md compares them).
//
// # How the greatest diameter is found without searching all pairs after each fault
//
// A run is examined backwards: from a network in which everything is faulty, one link after the other is mended. A
// link inside a piece can only shorten distances. A link {u, v} between two pieces A and B leaves the distances
// inside both unchanged, for it is a bridge, and makes the longest distance between them ecc_A(u) + 1 + ecc_B(v). So
// the diameter of any piece at any time is at most the greatest such sum so far, and each sum is the distance of two
// nodes at that moment: the greatest diameter of the run is the greatest of at most N-1 sums, each found by two
// searches of a piece. Routers are alike: a mended router w joins the pieces around it, and the sum is that of the
// two greatest depths seen from w. That is exact, takes some N² steps a run instead of some N³, and is checked
// against a plain second implementation in the tests.
package diameter

import (
	"fmt"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// MaxNodes bounds a network: a run takes time in proportion to its square.
const MaxNodes = 1 << 16

// Link joins two nodes, given by their ranks (grid.Dims.Rank).
type Link struct{ A, B int }

type way struct{ to, link int32 }

// Network is a mesh or a torus without faults. It does not change.
type Network struct {
	dims  grid.Dims
	wraps bool
	links []Link
	ways  [][]way // of each node
}

// Mesh returns a network whose outermost nodes have no links outwards.
func Mesh(dims grid.Dims) (*Network, error) { return build(dims, false) }

// Torus returns a network whose rows end where they began. Along a dimension of size 2 two nodes are joined by two
// links, as in pkg/torus/grid.
func Torus(dims grid.Dims) (*Network, error) { return build(dims, true) }

func build(dims grid.Dims, wraps bool) (*Network, error) {
	if err := dims.Validate(); err != nil {
		return nil, err
	}
	if dims.Nodes() > MaxNodes {
		return nil, fmt.Errorf("dims %s: %d nodes: want at most %d", dims, dims.Nodes(), MaxNodes)
	}
	n := &Network{dims: dims, wraps: wraps, ways: make([][]way, dims.Nodes())}
	for a := range dims.Nodes() {
		from := dims.At(a)
		for _, dir := range dims.Links() {
			to, _ := dims.Neighbour(from, dir)
			if !dir.Positive() || !wraps && dims.Rank(to) < a {
				continue
			}
			n.join(a, dims.Rank(to))
		}
	}
	return n, nil
}

func (n *Network) join(a, b int) {
	l := int32(len(n.links))
	n.links = append(n.links, Link{a, b})
	n.ways[a] = append(n.ways[a], way{int32(b), l})
	n.ways[b] = append(n.ways[b], way{int32(a), l})
}

// Dims returns the sizes.
func (n *Network) Dims() grid.Dims { return n.dims }

// Wraps reports whether the network is a torus.
func (n *Network) Wraps() bool { return n.wraps }

// Nodes returns the number of nodes.
func (n *Network) Nodes() int { return len(n.ways) }

// Links returns all links; a link's index is its name. The caller must not change them.
func (n *Network) Links() []Link { return n.links }

// LinkBetween returns the index of a link that joins a and b, and false when there is none.
func (n *Network) LinkBetween(a, b int) (int, bool) {
	for _, w := range n.ways[a] {
		if int(w.to) == b {
			return int(w.link), true
		}
	}
	return 0, false
}

// String returns the sizes and the shape: "8x8x1 mesh".
func (n *Network) String() string {
	if n.wraps {
		return n.dims.String() + " torus"
	}
	return n.dims.String() + " mesh"
}
