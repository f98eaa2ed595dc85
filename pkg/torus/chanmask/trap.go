package chanmask

import (
	"math/bits"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Where a message is caught. By the rules of §5.2.3.1 the next channel of a message depends on where it is, by which
// channel it came and where it is for, and on chance; on nothing else, for the Chaos router keeps no history. So the message
// walks over states (node, channel), and it is certain to arrive in the end exactly while every state that it may come
// to has a way on to its destination. A state without one is a trap: what comes there turns round in it for ever
// (Figure 16(a)). Linear obstacles have none, for there the walk gets round an end with some probability (Figure 15).

// ways are the channels that a message at a node may take next: profitable and functional without the way back; without
// those any functional one without the way back (fast derouting); and the way back when there is nothing else (No Routeback).
func ways(profitable, open, back Mask) Mask {
	switch forward := open &^ back; {
	case profitable&forward != 0:
		return profitable & forward
	case forward != 0:
		return forward
	}
	return open
}

// entries is how many states a node has: 0 for a message that begins there, and one for each direction in which
// one came.
const entries = 1 + grid.NumDirections

// backOf is the way back of a message that came in a direction, by entry.
func backOf(entry int) Mask {
	if entry == 0 {
		return 0
	}
	return Mask(0).With(grid.Direction(entry).Opposite(), true)
}

// walk looks for traps. It has what one destination needs, so that the next one needs no memory.
type walk struct {
	t          *Torus
	neighbours [][grid.NumDirections]int32
	arrives    []bool // by state: may still arrive
	seen       []bool
	queue      []int32
	profit     []Mask // by rank: towards the destination under way
	maimed     []int  // ranks of the nodes with a dead channel
	far        int    // hops that are more than a message makes that finds its way
}

func newWalk(t *Torus) *walk {
	n := len(t.open)
	w := &walk{
		t: t, neighbours: make([][grid.NumDirections]int32, n), profit: make([]Mask, n),
		arrives: make([]bool, n*entries), seen: make([]bool, n*entries), far: 2 * (t.Dims.X + t.Dims.Y + t.Dims.Z),
	}
	var all Mask
	for _, d := range t.Dims.Links() {
		all = all.With(d, true)
	}
	for rank := range n {
		for _, d := range t.Dims.Links() {
			w.neighbours[rank][d.Index()] = int32(t.neighbour(rank, d))
		}
		if t.open[rank] != all {
			w.maimed = append(w.maimed, rank)
		}
	}
	return w
}

// profitable are the channels that bring a message nearer to its destination.
func profitable(dims grid.Dims, from, to grid.Coord) Mask {
	var m Mask
	for axis, v := range [3][3]int{{from.X, to.X, dims.X}, {from.Y, to.Y, dims.Y}, {from.Z, to.Z, dims.Z}} {
		up := (v[1] - v[0] + v[2]) % v[2]
		if up == 0 {
			continue
		}
		if 2*up <= v[2] {
			m |= 1 << (2 * axis)
		}
		if 2*up >= v[2] {
			m |= 2 << (2 * axis)
		}
	}
	return m
}

// to looks at the messages for one destination. Only states count to which a message that begins somewhere may come. comp are
// the torus' components.
func (w *walk) to(dst int, comp []int, traps *Traps) {
	dims, at := w.t.Dims, w.t.Dims.At(dst)
	for rank := range w.profit {
		w.profit[rank] = 0
		if comp[rank] == comp[dst] {
			w.profit[rank] = profitable(dims, dims.At(rank), at)
		}
	}
	if w.certain(dst, comp) || !w.arriving(dst, comp) {
		return
	}
	if caught := w.coming(dst, comp); len(caught) > 0 {
		traps.States += len(caught)
		traps.For = append(traps.For, at)
		w.turning(caught, traps.node)
	}
}

func (w *walk) next(rank, entry int) Mask { return ways(w.profit[rank], w.t.open[rank], backOf(entry)) }

// certain says that no message for dst is caught, or that it cannot tell. It follows one way from every state at a node with a dead
// channel. When all of them arrive there is no trap: of the states of one, take those nearest to dst, at a node all of
// whose channels work. If a profitable one is not the way back, the message comes nearer; if only the way back is profitable, it
// came from nearer. Either is of the trap as well, and nearer than the nearest.
func (w *walk) certain(dst int, comp []int) bool {
	clear(w.arrives)
	var way []int32
	for _, rank := range w.maimed {
		if comp[rank] != comp[dst] || rank == dst {
			continue
		}
		for e := range entries {
			way = way[:0]
			s := int32(rank*entries + e)
			for ; int(s)/entries != dst && !w.arrives[s]; s = w.first(s) {
				if way = append(way, s); len(way) > w.far {
					return false
				}
			}
			for _, s := range way {
				w.arrives[s] = true
			}
		}
	}
	return true
}

// first is one of the states that may follow.
func (w *walk) first(s int32) int32 {
	d := bits.TrailingZeros8(uint8(w.next(int(s)/entries, int(s)%entries)))
	return w.neighbours[int(s)/entries][d]*entries + int32(d) + 1
}

// arriving marks the states from which dst may be reached, going back from it, and says whether any of its component is not
// among them.
func (w *walk) arriving(dst int, comp []int) bool {
	clear(w.arrives)
	w.queue = w.queue[:0]
	states := 0
	mark := func(s int32) {
		if !w.arrives[s] {
			w.arrives[s] = true
			w.queue = append(w.queue, s)
		}
	}
	for e := range entries {
		mark(int32(dst*entries + e))
	}
	for rank := range comp {
		if comp[rank] == comp[dst] {
			states += entries
		}
	}
	for i := 0; i < len(w.queue); i++ {
		rank, entry := int(w.queue[i])/entries, int(w.queue[i])%entries
		if entry == 0 {
			continue // a message begins there, and came from nowhere
		}
		d := grid.Direction(entry)
		p := int(w.neighbours[rank][d.Opposite().Index()])
		if p == dst || !w.t.open[p].Usable(d) {
			continue
		}
		for e := range entries {
			if w.next(p, e).Usable(d) {
				mark(int32(p*entries + e))
			}
		}
	}
	return len(w.queue) < states
}

// coming goes forward from every node of dst's component, and returns the states from which no way leads on to it.
func (w *walk) coming(dst int, comp []int) (caught []int32) {
	clear(w.seen)
	w.queue = w.queue[:0]
	see := func(s int32) {
		if w.seen[s] {
			return
		}
		w.seen[s] = true
		w.queue = append(w.queue, s)
		if !w.arrives[s] {
			caught = append(caught, s)
		}
	}
	for rank := range comp {
		if comp[rank] == comp[dst] && rank != dst {
			see(int32(rank * entries))
		}
	}
	for i := 0; i < len(w.queue); i++ {
		if rank := int(w.queue[i]) / entries; rank != dst {
			w.each(w.queue[i], see)
		}
	}
	return caught
}

// each calls f with the states that may follow one.
func (w *walk) each(s int32, f func(int32)) {
	rank, entry := int(s)/entries, int(s)%entries
	for m := w.next(rank, entry); m != 0; m &= m - 1 {
		d := bits.TrailingZeros8(uint8(m))
		f(w.neighbours[rank][d]*entries + int32(d) + 1)
	}
}

// turning notes the nodes in which caught messages turn round for ever. Of the caught states, which lead only to one another,
// those are in the strongly connected components that nothing leaves (Tarjan); the others are on the way there.
func (w *walk) turning(caught []int32, node []bool) {
	index := make(map[int32]int, len(caught)) // from 1, in the order of discovery
	low := make(map[int32]int, len(caught))
	closed := make(map[int32]bool, len(caught)) // in a component that is complete
	var stack []int32
	var visit func(s int32) (leaves bool)
	visit = func(s int32) (leaves bool) {
		index[s] = len(index) + 1
		low[s] = index[s]
		stack = append(stack, s)
		w.each(s, func(n int32) {
			switch {
			case closed[n]:
				leaves = true
			case index[n] == 0:
				if visit(n) {
					leaves = true
				}
				low[s] = min(low[s], low[n])
			default:
				low[s] = min(low[s], index[n])
			}
		})
		if low[s] != index[s] {
			return leaves
		}
		for {
			top := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			closed[top] = true
			if !leaves {
				node[int(top)/entries] = true
			}
			if top == s {
				return true // who came here from outside leaves its own component
			}
		}
	}
	for _, s := range caught {
		if index[s] == 0 {
			visit(s)
		}
	}
}

// Traps are where messages are caught for ever. The zero value: nowhere.
type Traps struct {
	States int          // of messages, one each for a node, the channel by which they came and their destination
	For    []grid.Coord // destinations of messages that are caught, by rank
	node   []bool
}

// Nodes are those among which caught messages turn round, by rank.
func (tr Traps) Nodes(dims grid.Dims) []grid.Coord {
	var out []grid.Coord
	for rank, is := range tr.node {
		if is {
			out = append(out, dims.At(rank))
		}
	}
	return out
}

// Traps looks at the messages from all nodes to all nodes that they have a way to.
func (t *Torus) Traps() Traps {
	traps := Traps{node: make([]bool, len(t.open))}
	w, comp := newWalk(t), t.Components()
	for dst := range t.open {
		if comp[dst] >= 0 {
			w.to(dst, comp, &traps)
		}
	}
	return traps
}
