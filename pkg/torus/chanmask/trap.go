package chanmask

import (
	"math"
	"math/bits"
	"slices"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Where messages are trapped. By the rules of §5.2.3.1, the next channel of a message depends only on its position,
// its arrival channel, its destination, and chance; the Chaos router keeps no history. So the message walks over
// states (node, channel). It is certain to arrive exactly when every state that it may reach has a way on to its
// destination. A state without such a way is a trap: a message in it circles forever (Figure 16(a)). Linear obstacles
// have no traps, because the walk gets round an end with some probability (Figure 15).

// ways are the channels that a message at a node may take next: profitable and functional without the way back;
// without those any functional one without the way back (fast derouting); and the way back when there is nothing else
// (No Routeback).
func ways(profitable, open, back Mask) Mask {
	switch forward := open &^ back; {
	case profitable&forward != 0:
		return profitable & forward
	case forward != 0:
		return forward
	}
	return open
}

// entries is the number of states of a node: 0 for a message that begins there, and one for each arrival direction.
const entries = 1 + grid.NumDirections

// backOf is the way back of a message that came in a direction, by entry.
func backOf(entry int) Mask {
	if entry == 0 {
		return 0
	}
	return Mask(0).With(grid.Direction(entry).Opposite(), true)
}

// walk looks for traps. It holds the notes for one destination and reuses their memory for the next; marks tell the
// notes of different destinations apart.
//
// Only states near dead channels can be traps, and near empty places, where a node may have no channel that leads nearer.
// So walk looks at no others. Take a set of states that lead only to one
// another and not to the destination, and in that set a state nearest to the destination. If all channels of its node
// worked, a profitable channel other than the way back would lead nearer; and if only the way back is profitable, the
// message came from a nearer state. Either of these is in the set as well, a contradiction. So that state is at a
// node with a dead channel or without a profitable one, and no successor is nearer than the state itself. Where every
// such state has a nearer successor, as at most destinations, no message is trapped (certain). Otherwise walk finds the traps by going back
// from there (caughtFrom), at the cost of a trap and its surroundings, not of the whole torus.
type walk struct {
	t          *Torus
	coords     []grid.Coord
	neighbours [][grid.NumDirections]int32
	injured    []bool // by rank: a channel is dead
	hurt       []int  // ranks of the nodes that may deroute messages for the destination: injured ones, and those without a nearer neighbour

	dst   int
	round uint32   // of the destination under way
	fate  []mark   // by state
	visit []uint32 // by state: the last search that met it
	from  []int32  // by state: the one before it in that search
	seen  uint32   // the search under way
	queue []int32
	ways  []profit // by rank
}

// mark is a note that counts for one round.
type mark struct {
	round uint32
	is    fate
}

// fate is the outcome for a message in a state.
type fate uint8

const (
	arrives fate = iota + 1 // it may still arrive
	lost                    // it never does
)

// profit are the channels of a node towards the destination of a round, and how far it is.
type profit struct {
	round uint32
	mask  Mask
	far   int32
}

func newWalk(t *Torus) *walk {
	n := len(t.open)
	w := &walk{
		t: t, coords: make([]grid.Coord, n), neighbours: make([][grid.NumDirections]int32, n),
		fate: make([]mark, n*entries), visit: make([]uint32, n*entries), from: make([]int32, n*entries), ways: make([]profit, n),
		injured: make([]bool, n),
	}
	for rank := range n {
		w.coords[rank] = t.Dims.At(rank)
		var all Mask
		for _, d := range t.Dims.Links() {
			to := t.neighbour(rank, d)
			w.neighbours[rank][d.Index()] = int32(to)
			all = all.With(d, to >= 0)
		}
		if t.open[rank] != all {
			w.injured[rank] = true
		}
	}
	return w
}

// to looks at the messages for one destination. Only states count to which a message that begins somewhere may come.
// comp are the torus' components.
func (w *walk) to(dst int, comp []int, traps *Traps) {
	w.dst = dst
	w.round++
	w.hurt = w.hurt[:0]
	for rank := range w.t.open {
		if w.injured[rank] || !w.t.Dims.Full() && !w.t.gone[rank] && w.towards(rank).mask == 0 {
			w.hurt = append(w.hurt, rank)
		}
	}
	if w.certain(comp) {
		return
	}
	caught := w.caughtFrom(comp)
	caught = slices.DeleteFunc(caught, func(s int32) bool { return !w.comes(s) })
	if len(caught) > 0 {
		traps.States += len(caught)
		traps.For = append(traps.For, w.coords[dst])
		w.turning(caught, traps.node)
	}
}

// towards returns the routing facts of a node for the current destination.
func (w *walk) towards(rank int) *profit {
	p := &w.ways[rank]
	if p.round != w.round {
		at, to := w.coords[rank], w.coords[w.dst]
		*p = profit{w.round, Mask(w.t.Dims.Nearer(at, to)), int32(w.t.Dims.Distance(at, to))}
	}
	return p
}

func (w *walk) next(rank, entry int) Mask {
	return ways(w.towards(rank).mask, w.t.open[rank], backOf(entry))
}

// certain says that no message for the destination is caught: every state at a node where messages may be derouted has
// one behind it that is nearer.
func (w *walk) certain(comp []int) bool {
	for _, rank := range w.hurt {
		if comp[rank] != comp[w.dst] || rank == w.dst {
			continue
		}
		far := w.towards(rank).far
		nearer := func(s int32) bool { return w.towards(int(s)/entries).far < far }
		for e := range entries {
			if _, ok := w.search(int32(rank*entries+e), nearer); !ok {
				return false
			}
		}
	}
	return true
}

// search explores forward from a state until found returns true. If found never does, the queue holds all reachable
// states. from leads back to the start.
func (w *walk) search(s int32, found func(int32) bool) (at int32, ok bool) {
	w.seen++
	w.queue = append(w.queue[:0], s)
	w.visit[s], w.from[s] = w.seen, s
	for i := 0; i < len(w.queue); i++ {
		is := w.queue[i]
		rank, entry := int(is)/entries, int(is)%entries
		if rank == w.dst {
			continue
		}
		for m := w.next(rank, entry); m != 0; m &= m - 1 {
			d := bits.TrailingZeros8(uint8(m))
			n := w.neighbours[rank][d]*entries + int32(d) + 1
			if w.visit[n] == w.seen {
				continue
			}
			w.visit[n], w.from[n] = w.seen, is
			if found(n) {
				return n, true
			}
			w.queue = append(w.queue, n)
		}
	}
	return 0, false
}

// settle decides whether no way leads on from a state to the destination, and notes the result for all states that it
// visited. news are the newly found states without such a way.
func (w *walk) settle(s int32) (news []int32) {
	if w.fate[s].round == w.round || int(s)/entries == w.dst {
		return nil
	}
	at, ok := w.search(s, func(n int32) bool {
		return int(n)/entries == w.dst || w.fate[n] == mark{w.round, arrives}
	})
	if !ok {
		for _, n := range w.queue {
			if w.fate[n].round != w.round {
				news = append(news, n)
			}
			w.fate[n] = mark{w.round, lost}
		}
		return news
	}
	for n := w.from[at]; ; n = w.from[n] {
		w.fate[n] = mark{w.round, arrives}
		if n == s {
			return nil
		}
	}
}

// caughtFrom returns all states from which no way leads on to the destination. Each of them leads to one at a node where
// messages may be derouted, so caughtFrom checks those first and then all states that may lead to a trapped one.
func (w *walk) caughtFrom(comp []int) (caught []int32) {
	for _, rank := range w.hurt {
		if comp[rank] == comp[w.dst] && rank != w.dst {
			for e := range entries {
				caught = append(caught, w.settle(int32(rank*entries+e))...)
			}
		}
	}
	for i := 0; i < len(caught); i++ {
		w.before(caught[i], func(p int32) bool {
			caught = append(caught, w.settle(p)...)
			return false
		})
	}
	return caught
}

// before calls f with the states that a state may follow, until f says that it is enough.
func (w *walk) before(s int32, f func(int32) bool) bool {
	rank, entry := int(s)/entries, int(s)%entries
	if entry == 0 {
		return false // a message begins there, and came from nowhere
	}
	d := grid.Direction(entry)
	p := int(w.neighbours[rank][d.Opposite().Index()])
	if p < 0 || p == w.dst || !w.t.open[p].Usable(d) {
		return false
	}
	for e := range entries {
		if w.next(p, e).Usable(d) && f(int32(p*entries+e)) {
			return true
		}
	}
	return false
}

// comes reports whether a new message from some node may reach a state. It searches back to a possible start, which
// is one hop for nearly all states.
func (w *walk) comes(s int32) bool {
	w.seen++
	w.queue = append(w.queue[:0], s)
	w.visit[s] = w.seen
	for i := 0; i < len(w.queue); i++ {
		if int(w.queue[i])%entries == 0 {
			return true
		}
		if w.before(w.queue[i], func(p int32) bool {
			if w.visit[p] != w.seen {
				w.visit[p] = w.seen
				w.queue = append(w.queue, p)
			}
			return int(p)%entries == 0
		}) {
			return true
		}
	}
	return false
}

// each calls f with the states that may follow one.
func (w *walk) each(s int32, f func(int32)) {
	rank, entry := int(s)/entries, int(s)%entries
	for m := w.next(rank, entry); m != 0; m &= m - 1 {
		d := bits.TrailingZeros8(uint8(m))
		f(w.neighbours[rank][d]*entries + int32(d) + 1)
	}
}

// turning marks the nodes in which trapped messages circle forever. The trapped states lead only to one another.
// Those in a strongly connected component without an exit are the trap (Tarjan); the others lead into it.
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
				return true // a caller from outside is not in this component
			}
		}
	}
	for _, s := range caught {
		if index[s] == 0 {
			visit(s)
		}
	}
}

// Traps are the states in which messages are trapped forever. The zero value means none.
type Traps struct {
	States int          // of messages, one each for a node, the arrival channel and the destination
	For    []grid.Coord // destinations of messages that are caught, by rank
	node   []bool
}

// Nodes are those among which trapped messages circle, by rank.
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
func (t *Torus) Traps() Traps { return t.traps(math.MaxInt) }

// traps is Traps, but looks no further when as many states are caught as enough says.
func (t *Torus) traps(enough int) Traps {
	traps := Traps{node: make([]bool, len(t.open))}
	w, comp := newWalk(t), t.Components()
	for dst := range t.open {
		if comp[dst] >= 0 && traps.States < enough {
			w.to(dst, comp, &traps)
		}
	}
	return traps
}
