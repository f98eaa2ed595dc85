package procedure

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
	// MaxAbsent is how many places an order can name that need not answer.
	MaxAbsent = 200
	// MaxPlaces is the size of the largest torus: what all must say goes into barriers, which have so many members (pkg/torus/express).
	MaxPlaces        = 8192
	minHop, maxDelay = 100 * time.Microsecond, 10 * time.Second
)

// maxStarters is how many nodes are asked to begin, one after the other: what three refuse, others refuse as well.
const maxStarters = 3

// Place is what the fault map says of a place of the torus.
type Place struct {
	Node fault.NodeID // empty: nobody is there
	// Failed: the map calls the node or its DNP half FAILED, so that it cannot say that it holds nothing.
	Failed bool
	// Well: the node is NORMAL, and not under maintenance.
	Well bool
	// Links are the directions whose link is NORMAL at this end and not masked: bit 0 X+, and so on to bit 5 Z-.
	Links uint8
	// Dead are those whose link is FAILED at this end. Others, masked ones among them, may carry broadcasts.
	Dead uint8
}

// Options are what is asked for.
type Options struct {
	Starter      fault.NodeID  // who is to begin; empty: whoever is well
	Diagnose     bool          // links are tested when the torus is empty
	DrainTimeout time.Duration // MinDrain to MaxDrain
	Hop          time.Duration // of a broadcast that nothing is lost of
	Late         time.Duration // bound of a hop of a broadcast, its repeats included; at least Hop
}

// Plan is a procedure as it is ordered.
type Plan struct {
	Dims    grid.Dims
	Nodes   []fault.NodeID // by rank; empty: nobody is there
	Members []int          // ranks of those that must say that they hold nothing, ascending
	Absent  []uint32       // the other ranks, ascending
	// Starters are asked to begin, one after the other, until one does.
	Starters []fault.NodeID
	// Delay is the Network Delay (§4.1) of the torus as it is now.
	Delay, Hop, DrainTimeout time.Duration
	Diagnose                 bool
}

// NewPlan makes a plan of what the map says of all places, by rank. It refuses what no node can begin.
func NewPlan(dims grid.Dims, places []Place, o Options) (Plan, error) {
	if n := dims.Nodes(); n > MaxPlaces {
		return Plan{}, fmt.Errorf("the torus has %d places: want at most %d, for barriers have no more members", n, MaxPlaces)
	}
	p := Whole(dims, places)
	p.DrainTimeout, p.Diagnose = o.DrainTimeout, o.Diagnose
	if n := len(p.Absent); n > MaxAbsent {
		return p, fmt.Errorf("%d places of the torus are FAILED or empty: want at most %d, for an order names no more", n, MaxAbsent)
	}
	if len(p.Members) == 0 {
		return p, fmt.Errorf("no place of the torus has a node that is not FAILED")
	}
	p.Hop = min(max(o.Hop, minHop), maxDelay)
	p.Delay = max(Delay(dims, places, p.Members, o.Late), p.Hop)
	var err error
	p.Starters, err = starters(p, places, o.Starter)
	return p, err
}

// Whole is who is where and who is a member: what is needed to follow a procedure that somebody else has begun.
func Whole(dims grid.Dims, places []Place) Plan {
	p := Plan{Dims: dims, Nodes: make([]fault.NodeID, len(places))}
	for rank, at := range places {
		p.Nodes[rank] = at.Node
		if at.Node == "" || at.Failed {
			p.Absent = append(p.Absent, uint32(rank))
		} else {
			p.Members = append(p.Members, rank)
		}
	}
	return p
}

// Again is the plan of a procedure that was ordered before, by an earlier leader, in the torus as it is now.
func Again(dims grid.Dims, places []Place, absent []uint32, o Options, delay time.Duration) Plan {
	p := Plan{Dims: dims, Nodes: make([]fault.NodeID, len(places)), Absent: absent, Delay: delay, Hop: o.Hop,
		DrainTimeout: o.DrainTimeout, Diagnose: o.Diagnose}
	for rank, at := range places {
		p.Nodes[rank] = at.Node
		if at.Node != "" && !slices.Contains(absent, uint32(rank)) {
			p.Members = append(p.Members, rank)
		}
	}
	return p
}

// starters are those that can begin, the best first: who is well and has most of its links.
func starters(p Plan, places []Place, named fault.NodeID) ([]fault.NodeID, error) {
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

// Delay is the Network Delay of the torus as the map has it, for those who are members; late bounds a hop, its repeats included.
func Delay(dims grid.Dims, places []Place, members []int, late time.Duration) time.Duration {
	return min(max(express.NetworkDelay(diameter(dims, places, members), late), minHop), maxDelay)
}

// diameter is that of the present map (§4.3.7), over links that are NORMAL at both ends and not masked. Where these do not
// connect members whom links connect that may carry broadcasts all the same, the map does not say how one goes, and the margin
// for a torus of which nothing is known is taken. To members whom nothing but FAILED links leads to none goes at all: nobody
// waits longer for them.
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

// parts is for each rank the first of the members in its part of the torus; alive is the same both ways.
func parts(dims grid.Dims, members []int, alive func(int, grid.Direction) bool) []int {
	const none = -1
	out := slices.Repeat([]int{none}, dims.Nodes())
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

// others is for how long the states last that have no bound of the order's: what is stuck is dropped, links are tested.
const others = 5 * time.Second

// Longest is for how long a procedure may go on at some node after it has begun at the first: one state after the other lasts as
// long as it may, by the nodes' own time-outs (pkg/torus/procedure), and the last node hears of it one Network Delay after the
// first.
func (p Plan) Longest() time.Duration { return 10*p.Delay + 2*p.Hop + p.DrainTimeout + others }

// settle is for how long those who are not through are waited for when the first is: they are apart by a Network Delay, and go on
// only one or two later where they have missed something.
func (p Plan) settle() time.Duration { return 3 * p.Delay }

// name is who is at a rank; its place where nobody is.
func (p Plan) name(rank uint32) string {
	switch {
	case int(rank) >= len(p.Nodes):
		return fmt.Sprintf("place %d", rank)
	case p.Nodes[rank] == "":
		return p.Dims.At(int(rank)).String()
	}
	return string(p.Nodes[rank])
}
