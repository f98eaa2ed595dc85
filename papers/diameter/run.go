package diameter

import (
	"fmt"
	"slices"
)

// Definition is a reading of the diameter of a network that is in pieces.
type Definition uint8

// The definitions.
const (
	// AnyPair is the longest distance of any two connected nodes, in any piece.
	AnyPair Definition = iota + 1
	// Largest is the diameter of the piece with most nodes; of several as large, of the one with the greater
	// diameter.
	Largest
	// Whole is the diameter of the network while it is in one piece: a run ends with the first fault that cuts a part
	// off.
	Whole
)

// Definitions lists them all.
func Definitions() []Definition { return []Definition{AnyPair, Largest, Whole} }

// String returns the definition's name.
func (d Definition) String() string {
	switch d {
	case AnyPair:
		return "any pair"
	case Largest:
		return "largest piece"
	case Whole:
		return "while whole"
	}
	return fmt.Sprintf("Definition(%d)", uint8(d))
}

// Parts is the kind of parts that fail.
type Parts uint8

// The parts that fail.
const (
	Links Parts = iota + 1
	Routers
)

// String returns the failing parts in words.
func (p Parts) String() string {
	switch p {
	case Links:
		return "links"
	case Routers:
		return "routers"
	}
	return fmt.Sprintf("Parts(%d)", uint8(p))
}

// Count returns how many such parts a network has.
func (p Parts) Count(n *Network) int {
	if p == Routers {
		return n.Nodes()
	}
	return len(n.links)
}

// Rand is where chance comes from; *math/rand/v2.Rand is one.
type Rand interface {
	// IntN returns a number from 0 to n-1, all alike.
	IntN(n int) int
}

// Order returns the parts of a network in the random order in which they fail.
func Order(n *Network, p Parts, r Rand) []int {
	out := make([]int, p.Count(n))
	for i := range out {
		out[i] = i
	}
	for i := len(out) - 1; i > 0; i-- {
		j := r.IntN(i + 1)
		out[i], out[j] = out[j], out[i]
	}
	return out
}

// Maximum is the greatest diameter of a run.
type Maximum struct {
	Diameter int
	Faults   int // how many parts had failed: the most with which it was as great
}

// Maxima are the greatest diameters of one run, by definition.
type Maxima struct{ AnyPair, Largest, Whole Maximum }

// Of returns the maximum by definition d.
func (m Maxima) Of(d Definition) Maximum {
	switch d {
	case Largest:
		return m.Largest
	case Whole:
		return m.Whole
	default:
		return m.AnyPair
	}
}

// Run returns the greatest diameters on the way from a network without faults to one in which all parts have failed,
// in that order. The package comment says how and why that is exact.
func Run(n *Network, p Parts, order []int) Maxima {
	r := run{State: n.NewState(p == Routers, p == Links), piece: make([]int, n.Nodes()), bound: make([]int, n.Nodes())}
	for i := range r.piece {
		r.piece[i] = i
	}
	r.AnyPair.Faults, r.Largest.Faults = len(order), len(order)
	if p == Links {
		r.pieces, r.most = n.Nodes(), 1
	}
	for faults := len(order) - 1; faults >= 0; faults-- {
		if p == Links {
			r.mendLink(order[faults], faults)
		} else {
			r.mendRouter(order[faults], faults)
		}
	}
	return r.Maxima
}

type run struct {
	*State
	Maxima
	piece  []int // of each node: a forest whose roots stand for pieces
	bound  []int // of each root: the upper bound on distances in its piece
	pieces int
	most   int // nodes of the largest piece
	whole  bool
}

func (r *run) root(v int) int {
	for r.piece[v] != v {
		r.piece[v] = r.piece[r.piece[v]]
		v = r.piece[v]
	}
	return v
}

func (r *run) mendLink(i, faults int) {
	l := r.net.links[i]
	a, b := r.root(l.A), r.root(l.B)
	if a == b {
		r.SetLink(i, true)
		return
	}
	across := r.search(l.A) + 1
	size := len(r.queue)
	across += r.search(l.B)
	size += len(r.queue)
	r.SetLink(i, true)
	bound := max(r.bound[a], r.bound[b])
	r.piece[b] = a
	r.pieces--
	r.joined(a, size, bound, across, faults)
}

func (r *run) mendRouter(rank, faults int) {
	r.SetNode(rank, true)
	r.pieces++
	// The deepest node lies in some piece, and the next deepest that counts in another: within a piece distances only
	// shrink.
	across := r.search(rank)
	size := len(r.queue)
	deepest := r.root(int(r.queue[size-1]))
	for _, v := range slices.Backward(r.queue[1:]) {
		if r.root(int(v)) != deepest {
			across += int(r.depth[v])
			break
		}
	}
	bound := 0
	for _, w := range r.net.ways[rank] {
		if other := r.root(int(w.to)); r.node[w.to] && other != rank {
			bound = max(bound, r.bound[other])
			r.piece[other] = rank
			r.pieces--
		}
	}
	r.joined(rank, size, bound, across, faults)
}

// joined records a piece that was just made of others, or of one router: its nodes, the upper bound on distances in
// the previous pieces, and the longest new distance.
func (r *run) joined(root, size, bound, across, faults int) {
	r.bound[root] = max(bound, across)
	r.AnyPair.see(across, faults)
	if size >= r.most {
		r.most = size
		d := across
		// A distance of before counts only now where its piece was not the largest.
		if bound > max(across, r.Largest.Diameter) {
			d = r.exact(root)
			r.bound[root] = d
		}
		r.Largest.see(d, faults)
	}
	switch {
	case r.pieces > 1:
		r.whole = false
	case !r.whole:
		r.whole = true
		r.Whole = Maximum{r.exact(root), faults}
	default:
		r.Whole.see(across, faults)
	}
}

// exact returns the diameter of the piece that a node is in.
func (r *run) exact(rank int) int {
	d := r.search(rank)
	for _, v := range slices.Clone(r.queue) {
		d = max(d, r.search(int(v)))
	}
	return d
}

func (m *Maximum) see(diameter, faults int) {
	if diameter > m.Diameter {
		*m = Maximum{diameter, faults}
	}
}
