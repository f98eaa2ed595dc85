package grid

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Join returns the placement with one more node, the first that has no place yet, at the place that Choose takes. Other
// nodes keep their places.
func (p *Placement) Join() (*Placement, error) {
	at, in, err := p.Choose(func(Dims, Coord) bool { return true })
	if err != nil {
		return nil, err
	}
	d, err := in.Filled(at)
	if err != nil {
		return nil, err
	}
	return Place(d, p.domains, append(p.coords(), at))
}

// ErrNoPlace is the error of Choose if no place is permitted.
var ErrNoPlace = errors.New("placement: no place is permitted")

// Choose returns the best permitted place for one more node, the first that has no place yet, and the torus in which that
// place is empty: the present one, or if no place is empty, one with an empty plane more. It asks for places in the order
// of their rating until one is permitted. These count, in this order:
//
//   - for how many label keys the node would be exposed, and for how many all its witnesses would lie in its own domain;
//   - for how many nodes and keys either becomes so by the join;
//   - the number of exposed nodes;
//   - the witnesses of the node, then of the node that has the fewest, then of all nodes;
//   - the domains of the witnesses, and the lowest rank.
//
// The torus grows along its shortest dimension, or if that is better for failure domains, along one that is up to twice as
// long. A dimension of size 1 counts as longer than it is, because the first node of a second row or layer has only one
// witness. No order of growth avoids that node: three nodes with two witnesses each lie on one line, and a further node has
// two witnesses only on the same line, so the torus would stay a ring.
func (p *Placement) Choose(permitted func(in Dims, at Coord) bool) (at Coord, in Dims, err error) {
	if len(p.where) == p.domains.nodes {
		return at, in, errors.New("placement: every node has a place already")
	}
	var tori []*Placement
	var places []candidate
	if !p.dims.Full() {
		tori = append(tori, p)
		places = p.candidates(0, growth{})
	} else {
		for axis, growth := range p.dims.growths() {
			if grown, err := p.grown(axis); err == nil { // else too large in this direction
				places = append(places, grown.candidates(len(tori), growth)...)
				tori = append(tori, grown)
			}
		}
		if len(tori) == 0 {
			return at, in, fmt.Errorf("dims %s: no larger torus has at most %d places", p.dims, MaxPlaces)
		}
	}
	slices.SortFunc(places, func(a, b candidate) int {
		return cmp.Or(slices.Compare(a.worse[:], b.worse[:]), cmp.Compare(a.torus, b.torus), cmp.Compare(a.rank, b.rank))
	})
	for _, c := range places {
		in := tori[c.torus].dims
		if at := in.At(int(c.rank)); permitted(in, at) {
			return at, in, nil
		}
	}
	return at, in, ErrNoPlace
}

// growth rates a dimension along which the torus may grow: lower is better.
type growth struct {
	long   int64 // 1 if the dimension is more than twice as long as the shortest
	length int64
}

// A dimension of size 1 counts as so long when the torus grows.
const (
	secondDimension = 3 // of a ring, which gets a second dimension when it is longer than this
	thirdDimension  = 8
)

// growths rates growth along each axis.
func (d Dims) growths() (out [3]growth) {
	shortest := int64(MaxSize)
	for axis := range out {
		n := int64(d.size(axis))
		switch {
		case n == 1 && d.Places() == max(d.X, d.Y, d.Z):
			n = secondDimension
		case n == 1:
			n = thirdDimension
		}
		out[axis].length, shortest = n, min(shortest, n)
	}
	for axis := range out {
		if out[axis].length > 2*shortest {
			out[axis].long = 1
		}
	}
	return out
}

// grown returns the placement in a torus with one more plane, which is empty. It has no costs.
func (p *Placement) grown(axis int) (*Placement, error) {
	old, d := p.dims, p.dims
	*[3]*int{&d.X, &d.Y, &d.Z}[axis]++
	if err := d.Validate(); err != nil {
		return nil, err
	}
	d, err := d.withoutRanks(func(set func(int)) error {
		for r := range d.Places() {
			if !old.inside(d.At(r)) {
				set(r)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return place(d, p.domains, p.coords())
}

// candidate is an empty place for one more node.
type candidate struct {
	torus, rank int32
	worse       [11]int64 // the rating: lower is better, and the first difference decides
}

// candidates rates the empty places that have neighbours, by rank.
func (p *Placement) candidates(torus int, g growth) []candidate {
	var count [NumDirections + 1]int // of nodes, by their witnesses
	for r := range p.near {
		if !p.dims.emptyRank(r) {
			count[p.near[r].n]++
		}
	}
	out := make([]candidate, 0, p.dims.Places()-p.dims.Nodes())
	for r := range p.near {
		if !p.dims.emptyRank(r) {
			continue
		}
		if w := distinct(p.links[r]); w.n > 0 { // a place without a neighbour would part the torus
			c := candidate{torus: int32(torus), rank: int32(r)} //nolint:gosec // MaxPlaces bounds both
			c.worse = p.rate(c.rank, &w, count, g)
			out = append(out, c)
		}
	}
	return out
}

// rate rates an empty place for the next node.
func (p *Placement) rate(at int32, own *witnesses, count [NumDirections + 1]int, g growth) [11]int64 {
	next, keys := len(p.where), len(p.domains.keys)
	p.node[at] = int32(next) //nolint:gosec // MaxPlaces bounds it
	copy(p.values[int(at)*keys:], p.domains.of[next*keys:][:keys])
	cost, sum := p.cost(at, own), int64(own.n)
	var weak, weaker [exposed + 1]int64 // by weakness: the node, and others
	for k := range keys {
		weak[p.weakness(at, own, k)]++
	}
	count[own.n]++
	for _, r := range own.all() {
		links := p.links[r]
		for dir, to := range p.links[at] {
			if to == r {
				links[dir^1] = at // the opposite direction
			}
		}
		w := distinct(links)
		cost += p.cost(r, &w) - p.cost(r, &p.near[r])
		for k := range keys {
			if is := p.weakness(r, &w, k); is > p.weakness(r, &p.near[r], k) {
				weaker[is]++
			}
		}
		sum += int64(w.n - p.near[r].n)
		count[p.near[r].n]--
		count[w.n]++
	}
	p.node[at] = none
	clear(p.values[int(at)*keys:][:keys])
	least := slices.IndexFunc(count[:], func(n int) bool { return n > 0 })
	// A cost may fall below zero, with a remainder: rounding to the nearest multiple separates the two parts.
	more := (cost + oneExposed/2) >> 36
	return [11]int64{g.long, weak[exposed], weak[within], weaker[exposed], weaker[within], more, g.length,
		-int64(own.n), -int64(least), -sum, cost - more*oneExposed}
}
