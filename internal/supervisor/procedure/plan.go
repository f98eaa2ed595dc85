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
	p := Plan{Dims: dims, Nodes: make([]fault.NodeID, len(places)), Absent: absent, Delay: delay, Hop: o.Hop, DrainTimeout: o.DrainTimeout, Diagnose: o.Diagnose}
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

// diameter is that of the present map (§4.3.7), over links that are NORMAL at both ends and not masked. Where these do not connect all members
// the map does not say how a broadcast goes, and the margin for a torus of which nothing is known is taken.
func diameter(dims grid.Dims, places []Place, members []int) int {
	alive := func(rank int, d grid.Direction) bool {
		if places[rank].Node == "" || places[rank].Failed || places[rank].Links>>d.Index()&1 == 0 {
			return false
		}
		c, ok := dims.Neighbour(dims.At(rank), d)
		if !ok {
			return false
		}
		to := &places[dims.Rank(c)]
		return to.Node != "" && !to.Failed && to.Links>>d.Opposite().Index()&1 == 1
	}
	n := express.Diameter(dims, alive)
	if !connected(dims, members, alive) {
		return max(n, express.Margin(dims))
	}
	return n
}

// connected says whether a broadcast of one member reaches all others; alive is the same both ways.
func connected(dims grid.Dims, members []int, alive func(int, grid.Direction) bool) bool {
	seen := make([]bool, dims.Nodes())
	seen[members[0]] = true
	queue := []int{members[0]}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for _, d := range dims.Links() {
			if !alive(at, d) {
				continue
			}
			c, _ := dims.Neighbour(dims.At(at), d)
			if to := dims.Rank(c); !seen[to] {
				seen[to] = true
				queue = append(queue, to)
			}
		}
	}
	return !slices.ContainsFunc(members, func(rank int) bool { return !seen[rank] })
}

// others is for how long the states last that have no bound of the order's: what is stuck is dropped, links are tested.
const others = 5 * time.Second

// Longest is for how long a procedure may go on at some node after it has begun at the first: one state after the other lasts as long as it may, by
// the nodes' own time-outs (pkg/torus/procedure), and the last node hears of it one Network Delay after the first.
func (p Plan) Longest() time.Duration { return 10*p.Delay + 2*p.Hop + p.DrainTimeout + others }

// settle is for how long those who are not through are waited for when the first is: they are apart by a Network Delay, and go on only one or two
// later where they have missed something.
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
