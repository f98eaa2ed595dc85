package chaos

import "math/bits"

// Walk is the path of a single packet through an otherwise empty network, as a Markov chain. The packet's position
// and arrival channel are its state, and it takes each channel on its list with the same probability. That is exact
// for the model too, as long as the packet does not meet its own tail, that is, for packets shorter than a loop.
type Walk struct {
	n      *Network
	dst    int
	stride int
	list   []uint32 // by state: channels
}

// Walk is the chain of packets for dst under the masks in force. The algorithm must be Chaotic.
func (n *Network) Walk(dst int) *Walk {
	w := &Walk{n: n, dst: dst, stride: n.chans + 1, list: make([]uint32, n.nodes*(n.chans+1))}
	for r := range n.nodes {
		if r == dst {
			continue
		}
		for from := -1; from < n.chans; from++ {
			// A dead channel that the mask does not know accepts the packet and keeps it.
			w.list[r*w.stride+from+1] = n.channels(r, dst, from)
		}
	}
	return w
}

// At is the state of a packet at its source.
func (w *Walk) At(node int) int { return node * w.stride }

// Arrived is the state of a packet at node that came in by channel from.
func (w *Walk) Arrived(node, from int) int { return node*w.stride + from + 1 }

func (w *Walk) next(node, c int) int {
	return int(w.n.neighbour[node*w.n.chans+c])*w.stride + (c ^ 1) + 1
}

// Mean returns the average of v over the successors of state s: 0 for a dead channel.
func (w *Walk) Mean(v []float64, s int) float64 {
	node, m := s/w.stride, w.list[s]
	if m == 0 {
		return 0
	}
	sum := 0.0
	for c := m & w.n.live[node]; c != 0; c &= c - 1 {
		sum += v[w.next(node, bits.TrailingZeros32(c))]
	}
	return sum / float64(bits.OnesCount32(m))
}

// Within is, by state, the probability that the packet has reached its destination after at most so many hops.
func (w *Walk) Within(hops int) []float64 {
	v, u := make([]float64, len(w.list)), make([]float64, len(w.list))
	for s := w.At(w.dst); s < w.At(w.dst)+w.stride; s++ {
		v[s], u[s] = 1, 1
	}
	for range hops {
		for s := range v {
			if s/w.stride != w.dst {
				u[s] = w.Mean(v, s)
			}
		}
		v, u = u, v
	}
	return v
}

// Delivered is, by state, the probability that the packet reaches its destination at all: less than 1 is livelock, or
// an end without way.
func (w *Walk) Delivered() []float64 {
	return w.Reach(func(node int) bool { return node == w.dst }, func(int) bool { return false })
}

// Reach is, by state, the probability that the packet enters a node of goal before one of avoid; 1 and 0 where it is
// in one.
func (w *Walk) Reach(goal, avoid func(node int) bool) []float64 {
	const unknown = -1
	v := make([]float64, len(w.list))
	before := w.predecessors()
	var can []int32
	for s := range v {
		switch node := s / w.stride; {
		case goal(node):
			v[s] = 1
			can = append(can, int32(s))
		case avoid(node), node == w.dst:
			v[s] = 0
		default:
			v[s] = unknown
		}
	}
	// The probability is 0 where goal cannot be reached at all, and 1 where nothing else than goal can. Only the rest
	// is a system of equations, and that one is well behaved.
	reaches := w.flood(before, can, func(s int32) bool { return v[s] == unknown })
	var cannot []int32
	for s := range v {
		if v[s] == unknown && !reaches[s] {
			v[s] = 0
		}
		if v[s] == 0 || v[s] == unknown && w.list[s]&^w.n.live[s/w.stride] != 0 {
			cannot = append(cannot, int32(s))
		}
	}
	loses := w.flood(before, cannot, func(s int32) bool { return v[s] == unknown })
	var open []int
	for s := range v {
		switch {
		case v[s] != unknown:
		case !loses[s]:
			v[s] = 1
		default:
			v[s] = 0
			open = append(open, s)
		}
	}
	for change := 1.0; change > 1e-14; {
		change = 0
		for _, s := range open {
			m := w.Mean(v, s)
			change = max(change, m-v[s], v[s]-m)
			v[s] = m
		}
	}
	return v
}

// predecessors lists, by state, the states from which it can follow.
func (w *Walk) predecessors() [][]int32 {
	before := make([][]int32, len(w.list))
	for s, m := range w.list {
		node := s / w.stride
		for c := m & w.n.live[node]; c != 0; c &= c - 1 {
			to := w.next(node, bits.TrailingZeros32(c))
			before[to] = append(before[to], int32(s))
		}
	}
	return before
}

func (w *Walk) flood(before [][]int32, from []int32, through func(int32) bool) []bool {
	seen := make([]bool, len(w.list))
	queue := append([]int32(nil), from...)
	for _, s := range from {
		seen[s] = true
	}
	for len(queue) > 0 {
		s := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, b := range before[s] {
			if !seen[b] && through(b) {
				seen[b] = true
				queue = append(queue, b)
			}
		}
	}
	return seen
}

// Connected is which nodes the living links join to node r.
func (n *Network) Connected(r int) []bool {
	seen := make([]bool, n.nodes)
	seen[r] = true
	for queue := []int{r}; len(queue) > 0; {
		a := queue[0]
		queue = queue[1:]
		for m := n.live[a]; m != 0; m &= m - 1 {
			if b := int(n.neighbour[a*n.chans+bits.TrailingZeros32(m)]); !seen[b] {
				seen[b] = true
				queue = append(queue, b)
			}
		}
	}
	return seen
}
