package chaos

import (
	"fmt"
	"math"
	"slices"
)

// sourceRoom is the number of packets that wait at a source before it makes no more: enough that no packet is refused
// at loads which the network can carry.
const sourceRoom = 32

// Traffic is the load that the processors offer.
type Traffic struct {
	// packets that a node makes in a cycle, on average (geometric gaps), 0 to 1. The injection frame takes at most one in
	// Config.Flits cycles
	Rate     float64
	HotSpots []int // nodes that are a destination HotFactor times as often as another
	// HotFactor is 1 or more where there are hot spots: ten in the paper's experiments (§5.2.1.3).
	HotFactor float64
}

// sources are the processors' packets that have not entered the network: rings, one a node.
type sources struct {
	dst, born    []int32
	head, length []uint8
	traffic      Traffic
	skip         int     // node-cycles until the next packet is made
	cold, hot    []int32 // destinations
	hotMass      float64 // of cold plus hotMass, the part for hot spots
	logMiss      float64 // log(1-Rate)
}

func newSources(nodes int) sources {
	return sources{dst: make([]int32, nodes*sourceRoom), born: make([]int32, nodes*sourceRoom), head: make([]uint8, nodes),
		length: make([]uint8, nodes)}
}

func (s *sources) push(r int, dst, born int32) bool {
	if s.length[r] == sourceRoom {
		return false
	}
	i := r*sourceRoom + int(s.head[r]+s.length[r])%sourceRoom
	s.dst[i], s.born[i] = dst, born
	s.length[r]++
	return true
}

func (s *sources) pop(r int) (dst, born int32) {
	i := r*sourceRoom + int(s.head[r])
	s.head[r] = (s.head[r] + 1) % sourceRoom
	s.length[r]--
	return s.dst[i], s.born[i]
}

// Offer has the processors make packets from now on. Nodes without router send none and get none.
func (n *Network) Offer(t Traffic) error {
	if !(t.Rate >= 0 && t.Rate <= 1) {
		return fmt.Errorf("chaos: Rate is %g, must be 0 to 1", t.Rate)
	}
	if len(t.HotSpots) > 0 && !(t.HotFactor >= 1 && t.HotFactor <= 1e9) {
		return fmt.Errorf("chaos: HotFactor is %g, must be 1 to 1e9", t.HotFactor)
	}
	s := &n.source
	s.traffic, s.cold, s.hot = t, s.cold[:0], s.hot[:0]
	for i, r := range t.HotSpots {
		if r < 0 || r >= n.nodes || n.dead[r] || slices.Contains(t.HotSpots[:i], r) {
			return fmt.Errorf("chaos: HotSpots[%d] is node %d, must be one with a router, of 0 to %d, and named once", i, r, n.nodes-1)
		}
		s.hot = append(s.hot, int32(r))
	}
	for r := range n.nodes {
		if !n.dead[r] && !slices.Contains(t.HotSpots, r) {
			s.cold = append(s.cold, int32(r))
		}
	}
	if len(s.hot)+len(s.cold) < 2 {
		return fmt.Errorf("chaos: %d nodes have a router, must be two or more", len(s.hot)+len(s.cold))
	}
	s.hotMass = t.HotFactor * float64(len(s.hot))
	s.logMiss = math.Log1p(-t.Rate)
	s.skip = n.gap()
	return nil
}

// StopInjection ends injection: the processors make no more packets, and those that wait at the sources are put aside
// (§5.2.1.3: injection is suspended at the source). A packet in an injection frame is in the network.
func (n *Network) StopInjection() {
	n.source.traffic.Rate = 0
	clear(n.source.length)
}

// Send puts one packet at its source; false if 32 wait there.
func (n *Network) Send(src, dst int) bool {
	if !n.source.push(src, int32(dst), n.now) {
		n.count.Refused++
		return false
	}
	n.count.Offered++
	n.wake[src] = min(n.wake[src], n.now)
	return true
}

// gap draws how many node-cycles pass without a packet: one number for each packet instead of one for each node and
// cycle.
func (n *Network) gap() int {
	switch rate := n.source.traffic.Rate; {
	case rate <= 0:
		return never
	case rate >= 1:
		return 0
	}
	u := 1 - float64(n.dice.next()>>11)*(1.0/(1<<53))
	return int(min(math.Log(u)/n.source.logMiss, never))
}

func (n *Network) generate() {
	s := &n.source
	if s.traffic.Rate <= 0 {
		return
	}
	for s.skip < n.nodes {
		if r := s.skip; !n.dead[r] {
			n.Send(r, int(n.destination(int32(r))))
		}
		s.skip += 1 + n.gap()
	}
	s.skip -= n.nodes
}

// destination draws a node other than r.
func (n *Network) destination(r int32) int32 {
	s := &n.source
	all := s.hotMass + float64(len(s.cold))
	for {
		x := float64(n.dice.next()>>11) * (1.0 / (1 << 53)) * all
		var d int32
		if x < s.hotMass {
			d = s.hot[min(int(x/s.traffic.HotFactor), len(s.hot)-1)]
		} else {
			d = s.cold[min(int(x-s.hotMass), len(s.cold)-1)]
		}
		if d != r {
			return d
		}
	}
}

// Choose draws k different nodes that have a router, for hot spots or faults.
func (n *Network) Choose(k int) []int {
	var out []int
	for len(out) < k {
		if r := n.dice.below(n.nodes); !n.dead[r] && !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}
