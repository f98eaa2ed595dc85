package chanmask

import (
	"fmt"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Link is a channel of a torus, named by its lower end: the node from which it leads in a positive direction.
type Link struct {
	Node grid.Coord
	Dir  grid.Direction // X+, Y+ or Z+
}

// LinkAt returns the link that leaves a node in a direction, and false if there is none.
func LinkAt(dims grid.Dims, c grid.Coord, d grid.Direction) (Link, bool) {
	n, ok := dims.Neighbour(c, d)
	switch {
	case !ok:
		return Link{}, false
	case d.Positive():
		return Link{c, d}, true
	}
	return Link{n, d.Opposite()}, true
}

// Ends returns the two nodes of the link; the direction at the second is the opposite one. A torus without this link
// gives its node twice.
func (l Link) Ends(dims grid.Dims) (a, b grid.Coord) {
	n, ok := dims.Neighbour(l.Node, l.Dir)
	if !ok {
		return l.Node, l.Node
	}
	return l.Node, n
}

// String is "0,1,0 X+".
func (l Link) String() string { return l.Node.String() + " " + l.Dir.String() }

// Torus records which channels and nodes of a torus carry messages. A link masked at one end is masked at both.
type Torus struct {
	Dims grid.Dims

	open []Mask // by rank: the channels that work
	gone []bool // by rank: the node is dead or closed
}

// MaxNodes is the largest torus for Find and Close, because they visit every pair of nodes. Larger ones take minutes.
const MaxNodes = 4096

// CheckSize refuses a torus that is too large for Find and Close.
func CheckSize(dims grid.Dims) error {
	if n := dims.Places(); n > MaxNodes {
		return fmt.Errorf("dims %s: %d places: want at most %d, for every pair of them is looked at", dims, n, MaxNodes)
	}
	return nil
}

// NewTorus returns a torus in which everything works.
func NewTorus(dims grid.Dims) (*Torus, error) {
	if err := dims.Validate(); err != nil {
		return nil, err
	}
	t := &Torus{Dims: dims, open: make([]Mask, dims.Places()), gone: make([]bool, dims.Places())}
	for i := range t.open {
		t.gone[i] = !dims.Contains(dims.At(i))
		for _, d := range dims.Links() {
			if t.neighbour(i, d) >= 0 {
				t.open[i] = t.open[i].With(d, true)
			}
		}
	}
	return t, nil
}

// Clone returns a copy.
func (t *Torus) Clone() *Torus {
	return &Torus{Dims: t.Dims, open: append([]Mask(nil), t.open...), gone: append([]bool(nil), t.gone...)}
}

// Cut removes a link, at both ends.
func (t *Torus) Cut(l Link) {
	a, b := l.Ends(t.Dims)
	ra, rb := t.Dims.Rank(a), t.Dims.Rank(b)
	t.open[ra] = t.open[ra].With(l.Dir, false)
	t.open[rb] = t.open[rb].With(l.Dir.Opposite(), false)
}

// Kill removes a node, with all of its links.
func (t *Torus) Kill(c grid.Coord) {
	t.gone[t.Dims.Rank(c)] = true
	for _, d := range t.Dims.Links() {
		if l, ok := LinkAt(t.Dims, c, d); ok {
			t.Cut(l)
		}
	}
}

// Open returns the channels of a node that work.
func (t *Torus) Open(c grid.Coord) Mask { return t.open[t.Dims.Rank(c)] }

// Gone reports whether a node is out.
func (t *Torus) Gone(c grid.Coord) bool { return t.gone[t.Dims.Rank(c)] }

// Dead are the links that do not work, by rank of the lower end and direction.
func (t *Torus) Dead() []Link {
	var out []Link
	for rank, open := range t.open {
		for _, d := range t.Dims.Links() {
			if d.Positive() && !open.Usable(d) && t.neighbour(rank, d) >= 0 {
				out = append(out, Link{t.Dims.At(rank), d})
			}
		}
	}
	return out
}

// Components returns the component of each node by rank, named by its lowest rank; -1: the node is out.
func (t *Torus) Components() []int {
	out := make([]int, len(t.open))
	for i := range out {
		out[i] = -1
	}
	var queue []int
	for start := range t.open {
		if out[start] >= 0 || t.gone[start] {
			continue
		}
		out[start] = start
		for queue = append(queue[:0], start); len(queue) > 0; queue = queue[1:] {
			for _, d := range t.Dims.Links() {
				if !t.open[queue[0]].Usable(d) {
					continue
				}
				n := t.neighbour(queue[0], d)
				if out[n] < 0 && !t.gone[n] {
					out[n] = start
					queue = append(queue, n)
				}
			}
		}
	}
	return out
}

// neighbour returns the rank of the node at the other end of a node's link; -1: there is no such link.
func (t *Torus) neighbour(rank int, d grid.Direction) int {
	at := t.Dims.At(rank)
	n, ok := t.Dims.Neighbour(at, d)
	if !ok || !t.Dims.Contains(at) {
		return -1
	}
	return t.Dims.Rank(n)
}

// Cuts reports whether removing more links would cut off nodes from each other that are connected now, and names two
// such nodes.
func (t *Torus) Cuts(links ...Link) (a, b grid.Coord, cuts bool) {
	was := t.Components()
	after := t.Clone()
	for _, l := range links {
		after.Cut(l)
	}
	is := after.Components()
	first := make(map[int]int, len(is)) // component before → rank of its first node
	for rank, c := range was {
		if c < 0 {
			continue
		}
		f, seen := first[c]
		switch {
		case !seen:
			first[c] = rank
		case is[f] != is[rank]:
			return t.Dims.At(f), t.Dims.At(rank), true
		}
	}
	return grid.Coord{}, grid.Coord{}, false
}
