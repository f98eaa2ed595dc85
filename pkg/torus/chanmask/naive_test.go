package chanmask

import (
	"slices"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// The second implementation, as the paper's words have it: no bits, no tables, nothing kept between two questions.

// naiveState is where a message is, and the direction in which it came; 0: it begins there.
type naiveState struct {
	at   grid.Coord
	came grid.Direction
}

// naiveDistance is the number of hops between two nodes of a whole torus.
func naiveDistance(dims grid.Dims, a, b grid.Coord) int {
	one := func(x, y, size int) int {
		d := max(x-y, y-x)
		return min(d, size-d)
	}
	return one(a.X, b.X, dims.X) + one(a.Y, b.Y, dims.Y) + one(a.Z, b.Z, dims.Z)
}

// naiveNext is §5.2.3.1: the profitable list and the functional list, No Routeback, fast derouting.
func naiveNext(t *Torus, s naiveState, dst grid.Coord) []naiveState {
	var functional, profitable []grid.Direction
	for _, d := range t.Dims.Links() {
		if !t.Open(s.at).Usable(d) {
			continue
		}
		functional = append(functional, d)
		n, _ := t.Dims.Neighbour(s.at, d)
		if naiveDistance(t.Dims, n, dst) < naiveDistance(t.Dims, s.at, dst) {
			profitable = append(profitable, d)
		}
	}
	if s.came != 0 && len(functional) > 1 {
		back := func(d grid.Direction) bool { return d == s.came.Opposite() }
		functional, profitable = slices.DeleteFunc(functional, back), slices.DeleteFunc(profitable, back)
	}
	if len(profitable) > 0 {
		functional = profitable
	}
	var out []naiveState
	for _, d := range functional {
		n, _ := t.Dims.Neighbour(s.at, d)
		out = append(out, naiveState{n, d})
	}
	return out
}

// naiveFrom returns all states that a message may come to, and does not go on from its destination.
func naiveFrom(t *Torus, s naiveState, dst grid.Coord) map[naiveState]bool {
	seen := map[naiveState]bool{s: true}
	for queue := []naiveState{s}; len(queue) > 0; queue = queue[1:] {
		if queue[0].at == dst {
			continue
		}
		for _, n := range naiveNext(t, queue[0], dst) {
			if !seen[n] {
				seen[n] = true
				queue = append(queue, n)
			}
		}
	}
	return seen
}

func naiveArrives(seen map[naiveState]bool, dst grid.Coord) bool {
	for s := range seen {
		if s.at == dst {
			return true
		}
	}
	return false
}

// naiveReach is a breadth-first search.
func naiveReach(t *Torus, from grid.Coord) map[grid.Coord]bool {
	seen := map[grid.Coord]bool{from: true}
	for queue := []grid.Coord{from}; len(queue) > 0; queue = queue[1:] {
		for _, d := range t.Dims.Links() {
			n, ok := t.Dims.Neighbour(queue[0], d)
			if ok && t.Open(queue[0]).Usable(d) && !seen[n] {
				seen[n] = true
				queue = append(queue, n)
			}
		}
	}
	return seen
}

// naiveTraps counts the states in which messages are trapped, and finds the nodes of the trap: those of a state that
// can be reached again from every state that it leads to.
func naiveTraps(t *Torus) (states int, nodes map[grid.Coord]bool) {
	nodes = make(map[grid.Coord]bool)
	for to := range t.Dims.All() {
		if t.Gone(to) {
			continue
		}
		caught := make(map[naiveState]bool)
		for from := range naiveReach(t, to) {
			for s := range naiveFrom(t, naiveState{at: from}, to) {
				if !caught[s] && !naiveArrives(naiveFrom(t, s, to), to) {
					caught[s] = true
				}
			}
		}
		states += len(caught)
		for s := range caught {
			turns := true
			for n := range naiveFrom(t, s, to) {
				turns = turns && naiveFrom(t, n, to)[s]
			}
			if turns {
				nodes[s.at] = true
			}
		}
	}
	return states, nodes
}
