package routing

import (
	"math/rand/v2"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// faulty is a torus with dead nodes and dead links: the second, deliberately naive implementation, by searches and
// tables.
type faulty struct {
	dims  grid.Dims
	nodes []bool                     // by rank: dead
	links [][grid.NumDirections]bool // by rank: dead; both ends say so
	next  [][grid.NumDirections]int  // by rank: the neighbour's, -1 for none
	whole map[grid.Coord][]int       // by destination: hops to it from each rank, without the faults
}

func newFaulty(dims grid.Dims) *faulty {
	n := dims.Places()
	f := &faulty{dims: dims, nodes: make([]bool, n), links: make([][grid.NumDirections]bool, n),
		next: make([][grid.NumDirections]int, n), whole: map[grid.Coord][]int{}}
	for r := range n {
		f.nodes[r] = !dims.Contains(dims.At(r))
		for _, d := range grid.Directions() {
			f.next[r][d.Index()] = -1
			if c, ok := dims.Neighbour(dims.At(r), d); ok {
				f.next[r][d.Index()] = dims.Rank(c)
			}
		}
	}
	return f
}

// kill has each link, and each node, be dead with a probability.
func (f *faulty) kill(rnd *rand.Rand, links, nodes float64) {
	for r := range f.nodes {
		f.nodes[r] = rnd.Float64() < nodes
		for _, d := range f.dims.Links() {
			if d.Positive() && rnd.Float64() < links {
				f.cut(r, d)
			}
		}
	}
}

func (f *faulty) cut(rank int, d grid.Direction) {
	f.links[rank][d.Index()] = true
	f.links[f.next[rank][d.Index()]][d.Opposite().Index()] = true
}

func (f *faulty) alive(rank int, d grid.Direction) bool {
	n := f.next[rank][d.Index()]
	return n >= 0 && !f.links[rank][d.Index()] && !f.nodes[rank] && !f.nodes[n]
}

func (f *faulty) functional(rank int) (s Set) {
	for _, d := range grid.Directions() {
		if f.alive(rank, d) {
			s |= SetOf(d)
		}
	}
	return s
}

// search returns the hops to a destination from each rank, -1 where there is no way; with or without the faults.
func (f *faulty) search(dst int, faults bool) []int {
	hops := make([]int, len(f.nodes))
	for i := range hops {
		hops[i] = -1
	}
	hops[dst] = 0
	for queue := []int{dst}; len(queue) > 0; queue = queue[1:] {
		r := queue[0]
		for _, d := range grid.Directions() {
			if n := f.next[r][d.Index()]; n >= 0 && hops[n] < 0 && (!faults || f.alive(r, d)) {
				hops[n] = hops[r] + 1
				queue = append(queue, n)
			}
		}
	}
	return hops
}

// ways returns the channels that an algorithm may take, by the words of the thesis: a channel is profitable when the
// node behind it has fewer hops to go in a torus without faults.
func (f *faulty) ways(a Algorithm, at, dst int, from grid.Direction, routeback bool) (out []grid.Direction) {
	c := f.dims.At(dst)
	if f.whole[c] == nil {
		f.whole[c] = f.search(dst, false)
	}
	hops := f.whole[c]
	var profitable, functional []grid.Direction
	for _, d := range grid.Directions() {
		if n := f.next[at][d.Index()]; n >= 0 && hops[n] < hops[at] {
			profitable = append(profitable, d)
		}
		if f.alive(at, d) {
			functional = append(functional, d)
		}
	}
	if a == DimensionOrder {
		if f.alive(at, profitable[0]) {
			return profitable[:1]
		}
		return nil
	}
	if from.Valid() && !routeback {
		var others []grid.Direction
		for _, d := range functional {
			if f.next[at][d.Index()] != f.next[at][from.Index()] {
				others = append(others, d)
			}
		}
		if len(others) > 0 {
			functional = others
		}
	}
	for _, d := range profitable {
		for _, g := range functional {
			if d == g {
				out = append(out, d)
			}
		}
	}
	if len(out) == 0 && a == Chaos {
		return functional
	}
	return out
}

// state is where a message is and by which channel it came: 0 for none, or 1 more than its index.
type state struct{ at, from int }

// steps returns the states that may follow one, each as likely as the others.
func (f *faulty) steps(a Algorithm, s state, dst int, routeback bool) (out []state) {
	for _, d := range f.ways(a, s.at, dst, grid.Direction(s.from), routeback) {
		out = append(out, state{f.next[s.at][d.Index()], int(d.Opposite())})
	}
	return out
}

// fate returns the theoretical fate of a message: whether it may arrive, and whether it must in the end, because the
// destination can be reached from every state that it may come to.
func (f *faulty) fate(a Algorithm, src, dst int, routeback bool) (may, must bool) {
	first := state{src, 0}
	reached := map[state]bool{first: true}
	before := map[state][]state{}
	var ends []state
	for queue := []state{first}; len(queue) > 0; queue = queue[1:] {
		s := queue[0]
		if s.at == dst {
			ends = append(ends, s)
			continue
		}
		for _, n := range f.steps(a, s, dst, routeback) {
			before[n] = append(before[n], s)
			if !reached[n] {
				reached[n] = true
				queue = append(queue, n)
			}
		}
	}
	good := map[state]bool{}
	for len(ends) > 0 {
		s := ends[len(ends)-1]
		ends = ends[:len(ends)-1]
		if good[s] {
			continue
		}
		good[s] = true
		ends = append(ends, before[s]...)
	}
	return good[first], len(good) == len(reached)
}

// chances returns the probability to have arrived after 0, 1, … hops: exactly, from the chain of states.
func (f *faulty) chances(a Algorithm, src, dst, hops int, routeback bool) []float64 {
	now := map[state]float64{{src, 0}: 1}
	out := []float64{0}
	arrived := 0.0
	known := map[state][]state{}
	for range hops {
		next := map[state]float64{}
		for s, p := range now {
			if _, ok := known[s]; !ok {
				known[s] = f.steps(a, s, dst, routeback)
			}
			to := known[s]
			for _, n := range to {
				if n.at == dst {
					arrived += p / float64(len(to))
				} else {
					next[n] += p / float64(len(to))
				}
			}
		}
		now = next
		out = append(out, arrived)
	}
	return out
}

// walk sends a message by Decide, and returns its hops and how it ended: Route when it has arrived, Deroute when its
// hops are over.
func (f *faulty) walk(a Algorithm, src, dst, bound int, routeback bool, chance func(int) int) (int, Outcome) {
	return f.travel(a, src, dst, bound, Query{Routeback: routeback}, nil, chance)
}

// travel is walk among nodes that remember by which channels the message left, where left is not nil.
func (f *faulty) travel(a Algorithm, src, dst, bound int, q Query, left map[int]Set, chance func(int) int) (int, Outcome) {
	at, from := src, grid.Direction(0)
	for hops := range bound {
		if at == dst {
			return hops, Route
		}
		s := f.functional(at)
		q.Dims, q.At, q.Dst, q.From, q.Functional, q.Ready, q.Left = f.dims, f.dims.At(at), f.dims.At(dst), from, s, s, left[at]
		d, how := a.Decide(&q, chance)
		if how == Stuck {
			return hops, Stuck
		}
		if left != nil {
			left[at] |= SetOf(d)
		}
		at, from = f.next[at][d.Index()], d.Opposite()
	}
	if at == dst {
		return bound, Route
	}
	return bound, Deroute
}
