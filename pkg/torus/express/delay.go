package express

import (
	"math"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// The times that a node must wait before it may draw a conclusion from the silence of others (seed 003 §4.3.3,
// §4.3.7). They are functions of the diameter, which is that of the present map where it is known, and Margin where
// it is not.

// HopBound is a time after which a broadcast has been sent to a neighbour repeats+1 times: the wait doubles from one
// period on, and each repeat waits for the next tick, a period at most.
func HopBound(period time.Duration, repeats int) time.Duration {
	sum, step := period, period
	for range repeats {
		sum += step + period
		step = min(2*step, mostSteps*period)
	}
	return sum
}

// NetworkDelay is the worst-case delay across the network: d·s, the diameter times the bound of a hop (§4.3.7).
func NetworkDelay(diameter int, hop time.Duration) time.Duration {
	return time.Duration(max(0, diameter)) * hop
}

// Settle returns how long nothing may be concluded from silence: the phase delay across the network plus the
// broadcast delay (§4.3.3, Figure 4). It is also the time of a broadcast that is pre-empted at the last moment
// (§4.3.4): 2·d·s.
func Settle(networkDelay time.Duration) time.Duration { return 2 * networkDelay }

// Margin returns the diameter to assume in a torus whose working parts are unknown. For two-dimensional meshes with
// random faults the paper finds that 5·√N is enough (Table 3), 2.5 times the sum of the sides; Margin uses that in
// three dimensions too. In one dimension a fault leaves a row. The diameter is never more than N-1 anywhere.
func Margin(dims grid.Dims) int {
	sides, axes := 0, 0
	for _, n := range [3]int{dims.X, dims.Y, dims.Z} {
		if n > 1 {
			sides, axes = sides+n, axes+1
		}
	}
	all := dims.Nodes() - 1
	if axes < 2 {
		return all
	}
	return min(all, int(math.Ceil(2.5*float64(sides))))
}

// exactTo is up to how many nodes Diameter searches from each.
const exactTo = 4096

// Diameter returns the longest of the shortest ways between any two connected nodes, in hops (§4.3.7). A link that
// carries one way counts only for that way. alive reports whether the link of a node, given by rank, works in a
// direction of the torus. Dead nodes are nodes without links.
//
// It searches breadth first from every node, in time N². In a torus of more than 4,096 nodes it is a bound instead,
// of linear time: twice the longest way from or to one node of each component; not more than twice too much.
func Diameter(dims grid.Dims, alive func(rank int, d grid.Direction) bool) int {
	s := newSearch(dims, alive)
	most := 0
	if s.n <= exactTo {
		for from := range s.n {
			_, far := s.from(from, s.out)
			most = max(most, far)
		}
		return most
	}
	done := make([]bool, s.n)
	for from := range s.n {
		if done[from] {
			continue
		}
		seen, far := s.from(from, s.out)
		for _, at := range seen {
			done[at] = true
		}
		_, back := s.from(from, s.in)
		most = max(most, far+back)
	}
	return most
}

// search is a breadth-first search over the links of a torus, which allocates once.
type search struct {
	n       int
	out, in []int32 // of each node, for each direction, the neighbour by a link that carries; -1: none
	queue   []int32
	at      []int32 // round in which a node was seen
	hops    []int32
	round   int32
}

func newSearch(dims grid.Dims, alive func(int, grid.Direction) bool) *search {
	n := dims.Places()
	s := &search{
		n: n, out: make([]int32, n*grid.NumDirections), in: make([]int32, n*grid.NumDirections),
		queue: make([]int32, 0, n), at: make([]int32, n), hops: make([]int32, n),
	}
	for i := range s.out {
		s.out[i], s.in[i] = -1, -1
	}
	for rank := range n {
		for _, d := range dims.Links() {
			c, ok := dims.Neighbour(dims.At(rank), d)
			if !ok || !alive(rank, d) {
				continue
			}
			to := dims.Rank(c)
			s.out[rank*grid.NumDirections+d.Index()] = int32(to)
			s.in[to*grid.NumDirections+d.Opposite().Index()] = int32(rank)
		}
	}
	return s
}

// from returns the nodes that can be reached from a node, and the distance of the farthest.
func (s *search) from(rank int, links []int32) (seen []int32, far int) {
	s.round++
	s.queue = append(s.queue[:0], int32(rank))
	s.at[rank], s.hops[rank] = s.round, 0
	for i := 0; i < len(s.queue); i++ {
		at := s.queue[i]
		far = int(s.hops[at])
		for _, to := range links[int(at)*grid.NumDirections : (int(at)+1)*grid.NumDirections] {
			if to >= 0 && s.at[to] != s.round {
				s.at[to], s.hops[to] = s.round, s.hops[at]+1
				s.queue = append(s.queue, to)
			}
		}
	}
	return s.queue, far
}
