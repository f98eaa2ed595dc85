package orders

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Bounds of an order, as on the wire.
const (
	MinDrain     = 10 * time.Millisecond
	MaxDrain     = time.Minute
	DefaultDrain = time.Second
	// maxAbsent bounds the places that an order can name as absent.
	maxAbsent = 200
	// maxPlaces is the size of the largest torus: every node takes part in a barrier, which is limited to that many
	// members (pkg/torus/express).
	maxPlaces        = 8192
	minHop, maxDelay = 100 * time.Microsecond, 10 * time.Second
)

// maxStarters is the number of nodes that get the order to begin, one after the other: a reason for three to refuse
// applies to the others as well.
const maxStarters = 3

// Place is a place of the torus in the fault map.
type Place struct {
	Node fault.NodeID // empty: vacant
	// Failed: the map calls the node or its DNP half FAILED, so that it cannot confirm that it holds no messages.
	Failed bool
	// Well: the node is NORMAL, and not under maintenance.
	Well bool
	// Links are the directions whose link is NORMAL at this end and not masked: bit 0 X+, and so on to bit 5 Z-.
	Links uint8
	// Dead are the directions whose link is FAILED at this end. Others, masked ones among them, may carry broadcasts.
	Dead uint8
}

// procedureOptions are the parameters of a request.
type procedureOptions struct {
	Starter      fault.NodeID  // node that begins; empty: any healthy one
	Diagnose     bool          // links are tested when the torus is empty
	DrainTimeout time.Duration // MinDrain to MaxDrain
	Hop          time.Duration // duration of a broadcast's hop without loss
	Late         time.Duration // bound of a hop of a broadcast, its repeats included; at least Hop
}

// procedurePlan is an ordered procedure.
type procedurePlan struct {
	Dims    grid.Dims
	Nodes   []fault.NodeID // by rank; empty: vacant
	Members []int          // ranks of the nodes that must confirm that they hold no messages, ascending
	Absent  []uint32       // the other ranks, ascending
	// Starters are the nodes to ask to begin, one after the other, until one does.
	Starters []fault.NodeID
	// Delay is the Network Delay (§4.1) of the present torus.
	Delay, Hop, DrainTimeout time.Duration
	Diagnose                 bool
}

// newProcedurePlan makes a plan from the map's places, by rank. It refuses a procedure that no node can begin.
func newProcedurePlan(dims grid.Dims, places []Place, o procedureOptions) (procedurePlan, error) {
	if n := dims.Places(); n > maxPlaces {
		return procedurePlan{}, fmt.Errorf("the torus has %d places: want at most %d, for barriers have no more members", n, maxPlaces)
	}
	p := wholeTorus(dims, places)
	p.DrainTimeout, p.Diagnose = o.DrainTimeout, o.Diagnose
	if n := len(p.Absent); n > maxAbsent {
		return p, fmt.Errorf("%d places of the torus are FAILED or vacant: want at most %d, for an order names no more", n, maxAbsent)
	}
	if len(p.Members) == 0 {
		return p, fmt.Errorf("no place of the torus has a node that is not FAILED")
	}
	p.Hop = min(max(o.Hop, minHop), maxDelay)
	p.Delay = max(networkDelay(dims, places, p.Members, o.Late), p.Hop)
	var err error
	p.Starters, err = starters(p, places, o.Starter)
	return p, err
}

// wholeTorus returns the places and members: all that is needed to follow a procedure that a node began by itself.
func wholeTorus(dims grid.Dims, places []Place) procedurePlan {
	p := procedurePlan{Dims: dims, Nodes: make([]fault.NodeID, len(places))}
	for rank, at := range places {
		if !dims.Contains(dims.At(rank)) {
			continue // every node knows the empty places
		}
		p.Nodes[rank] = at.Node
		if at.Node == "" || at.Failed {
			p.Absent = append(p.Absent, uint32(rank))
		} else {
			p.Members = append(p.Members, rank)
		}
	}
	return p
}

// orderedBefore returns the plan, in the present torus, of a procedure that an earlier leader ordered.
func orderedBefore(dims grid.Dims, places []Place, absent []uint32, o procedureOptions, delay time.Duration) procedurePlan {
	p := procedurePlan{Dims: dims, Nodes: make([]fault.NodeID, len(places)), Absent: absent, Delay: delay, Hop: o.Hop,
		DrainTimeout: o.DrainTimeout, Diagnose: o.Diagnose}
	for rank, at := range places {
		p.Nodes[rank] = at.Node
		if at.Node != "" && !slices.Contains(absent, uint32(rank)) {
			p.Members = append(p.Members, rank)
		}
	}
	return p
}

// starters returns the candidates, the best first: healthy nodes with most of their links.
func starters(p procedurePlan, places []Place, named fault.NodeID) ([]fault.NodeID, error) {
	if named != "" {
		rank := slices.Index(p.Nodes, named)
		switch {
		case rank < 0:
			return nil, fmt.Errorf("node %s has no place in the torus, and can begin nothing", named)
		case places[rank].Failed:
			return nil, fmt.Errorf("node %s or its DNP half is FAILED, and can begin nothing", named)
		}
		return []fault.NodeID{named}, nil
	}
	ranks := slices.Clone(p.Members)
	merit := func(rank int) int {
		n := bits.OnesCount8(places[rank].Links)
		if places[rank].Well {
			n += grid.NumDirections + 1
		}
		return n
	}
	slices.SortStableFunc(ranks, func(a, b int) int { return cmp.Compare(merit(b), merit(a)) })
	var out []fault.NodeID
	for _, rank := range ranks[:min(len(ranks), maxStarters)] {
		out = append(out, p.Nodes[rank])
	}
	return out, nil
}

// networkDelay returns the Network Delay of the map's torus, for the members. late bounds a hop with its repeats.
func networkDelay(dims grid.Dims, places []Place, members []int, late time.Duration) time.Duration {
	return min(max(express.NetworkDelay(diameter(dims, places, members), late), minHop), maxDelay)
}

// diameter returns the diameter of the present map (§4.3.7), over links that are NORMAL at both ends and not
// masked. If these do not connect all members, but members are still connected by links that may carry broadcasts,
// the map does not show the broadcast's way. Then diameter returns the margin for an unknown torus. No broadcast
// reaches a member behind FAILED links only, so no node waits longer for such a member.
func diameter(dims grid.Dims, places []Place, members []int) int {
	link := func(has func(p *Place, d grid.Direction) bool) func(int, grid.Direction) bool {
		end := func(rank int, d grid.Direction) bool {
			p := &places[rank]
			return p.Node != "" && !p.Failed && has(p, d)
		}
		return func(rank int, d grid.Direction) bool {
			c, ok := dims.Neighbour(dims.At(rank), d)
			return ok && end(rank, d) && end(dims.Rank(c), d.Opposite())
		}
	}
	alive := link(func(p *Place, d grid.Direction) bool { return p.Links>>d.Index()&1 == 1 })
	n := express.Diameter(dims, alive)
	known, perhaps := parts(dims, members, alive), parts(dims, members,
		link(func(p *Place, d grid.Direction) bool { return p.Dead>>d.Index()&1 == 0 }))
	for _, rank := range members {
		if first := perhaps[rank]; known[rank] != known[first] {
			return max(n, express.Margin(dims))
		}
	}
	return n
}

// parts returns, for each rank, the first member in its part of the torus. alive is symmetric.
func parts(dims grid.Dims, members []int, alive func(int, grid.Direction) bool) []int {
	const none = -1
	out := slices.Repeat([]int{none}, dims.Places())
	for _, first := range members {
		if out[first] != none {
			continue
		}
		out[first] = first
		for queue := []int{first}; len(queue) > 0; queue = queue[1:] {
			for _, d := range dims.Links() {
				if !alive(queue[0], d) {
					continue
				}
				c, _ := dims.Neighbour(dims.At(queue[0]), d)
				if to := dims.Rank(c); out[to] == none {
					out[to] = first
					queue = append(queue, to)
				}
			}
		}
	}
	return out
}

// others is the duration of the states that the order does not bound: dropping stuck messages and testing links.
const others = 5 * time.Second

// Longest returns the maximum duration of a procedure at any node, counted from its beginning at the first one.
// Every state lasts as long as the nodes' own time-outs allow (pkg/torus/procedure), and the last node learns of
// the procedure one Network Delay after the first.
func (p procedurePlan) Longest() time.Duration { return 10*p.Delay + 2*p.Hop + p.DrainTimeout + others }

// settle returns the time to wait for the other nodes after the first one is through. They are at most a Network
// Delay apart, plus one or two more for a node that missed a message.
func (p procedurePlan) settle() time.Duration { return 3 * p.Delay }

// name returns the node at a rank, or the place if it is vacant.
func (p procedurePlan) name(rank uint32) string {
	switch {
	case int(rank) >= len(p.Nodes):
		return fmt.Sprintf("place %d", rank)
	case p.Nodes[rank] == "":
		return p.Dims.At(int(rank)).String()
	}
	return string(p.Nodes[rank])
}
