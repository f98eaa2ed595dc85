package grid

import (
	"errors"
	"fmt"
	"slices"
)

// Join returns the placement with one more node, the first that has no place yet, at the best empty place. If there is
// none, the torus grows by a plane in one dimension. The best place leaves the fewest nodes exposed. Then count the
// witnesses of the node that has the fewest, the witnesses of all nodes, the domains of the witnesses, and the lowest
// rank. Other nodes keep their places.
func (p *Placement) Join() (*Placement, error) {
	if len(p.where) == p.domains.nodes {
		return nil, errors.New("placement: every node has a place already")
	}
	if !p.dims.Full() {
		rank, _ := p.bestEmpty()
		return p.joined(rank)
	}
	var best *Placement
	var at int
	var most []int64
	for _, axis := range [3]int{0, 1, 2} {
		grown, err := p.grown(axis)
		if err != nil {
			continue // too large in this direction
		}
		rank, is := grown.bestEmpty()
		if is = append(is, -int64(p.dims.size(axis))); best == nil || slices.Compare(is, most) > 0 {
			best, at, most = grown, rank, is
		}
	}
	if best == nil {
		return nil, fmt.Errorf("dims %s: no larger torus has at most %d places", p.dims, MaxPlaces)
	}
	return best.joined(at)
}

// grown returns the placement in a torus with one more plane, which is empty.
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
	return Place(d, p.domains, p.coords())
}

// joined returns the placement with one more node at an empty place.
func (p *Placement) joined(rank int) (*Placement, error) {
	d, err := p.dims.Box().withoutRanks(func(set func(int)) error {
		for r := range p.dims.Places() {
			if r != rank && p.dims.emptyRank(r) {
				set(r)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return Place(d, p.domains, append(p.coords(), p.dims.At(rank)))
}

// bestEmpty returns the rank of the best empty place for the next node, and its rating: higher is better.
func (p *Placement) bestEmpty() (rank int, most []int64) {
	next, keys := len(p.where), len(p.domains.keys)
	have := p.domains.of[next*keys:][:keys]
	var count [NumDirections + 1]int // of nodes, by their witnesses
	for r := range p.near {
		if !p.dims.emptyRank(r) {
			count[p.near[r].n]++
		}
	}
	rank = none
	for r := range p.near {
		if !p.dims.emptyRank(r) {
			continue
		}
		is := p.rate(int32(r), int32(next), have, count) //nolint:gosec // MaxPlaces bounds both
		if is != nil && (rank == none || slices.Compare(is, most) > 0) {
			rank, most = r, is
		}
	}
	return rank, most
}

// rate rates an empty place for a node. A place without any neighbour has no rating.
func (p *Placement) rate(at, next int32, values []int32, count [NumDirections + 1]int) []int64 {
	own := distinct(p.links[at])
	if own.n == 0 {
		return nil
	}
	p.node[at] = next
	copy(p.values[int(at)*len(values):], values)
	cost, sum := p.cost(at, &own), int64(own.n)
	count[own.n]++
	for _, r := range own.all() {
		links := p.links[r]
		for dir, to := range p.links[at] {
			if to == r {
				links[dir^1] = at // the opposite direction
			}
		}
		w := distinct(links)
		cost += p.cost(r, &w) - p.costs[r]
		sum += int64(w.n - p.near[r].n)
		count[p.near[r].n]--
		count[w.n]++
	}
	p.node[at] = none
	clear(p.values[int(at)*len(values):][:len(values)])
	least := slices.IndexFunc(count[:], func(n int) bool { return n > 0 })
	// A cost may fall below zero, with a remainder: rounding to the nearest multiple separates the two parts.
	exposed := (cost + oneExposed/2) >> 36
	return []int64{-exposed, int64(least), sum, -(cost - exposed*oneExposed)}
}
