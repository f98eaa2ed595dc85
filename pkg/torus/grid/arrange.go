package grid

import (
	"errors"
	"fmt"
	"slices"
)

// Arrange places the nodes of a torus so that the death of one failure domain takes all witnesses of as few of the other
// nodes as possible, and the witnesses of each node lie in many domains. Nodes 0 to len(fixed)-1 have a place already and
// keep it. The result is the same on every machine.
//
// It exchanges nodes as long as that helps, from several starts if there are few nodes. The work is bounded: 10,000 nodes take
// some seconds.
func Arrange(d Dims, ds Domains, fixed []Coord) (*Placement, error) {
	if n := d.Nodes(); n != ds.nodes {
		return nil, fmt.Errorf("nodes: given %d: want one for each of %d places", ds.nodes, n)
	}
	if _, err := Place(d, ds, fixed); err != nil {
		return nil, err
	}
	free := d.without(fixed)
	order := make([]int, len(free)) // order[i] is the node at free[i]
	for i := range order {
		order[i] = len(fixed) + i
	}
	starts, work := startsOf(len(free))
	var best *Placement
	random := dice(1)
	for start := range starts {
		switch start {
		case 0: // as given
		case 1:
			order = ds.dealt(order)
		default:
			random.shuffle(order)
		}
		at := slices.Grow(slices.Clone(fixed), len(free))[:ds.nodes]
		for i, node := range order {
			at[node] = free[i]
		}
		p, err := Place(d, ds, at)
		if err != nil {
			return nil, err
		}
		s := search{Placement: p, fixed: len(fixed), dice: &random, left: work}
		s.run()
		if best == nil || p.total() < best.total() {
			best = p
		}
		if best.total() == best.floor() {
			break
		}
	}
	return best, nil
}

// startsOf returns how many starts Arrange tries, and how many exchanges from each.
func startsOf(nodes int) (starts, exchanges int) {
	switch {
	case nodes <= 32:
		return 12, 20_000
	case nodes <= 1_000:
		return 3, 300_000
	}
	return 2, 800_000
}

// without returns the places with a node that are not among these, by rank.
func (d Dims) without(places []Coord) []Coord {
	taken := make(map[Coord]bool, len(places))
	for _, c := range places {
		taken[c] = true
	}
	out := make([]Coord, 0, d.Nodes())
	for c := range d.All() {
		if !taken[c] {
			out = append(out, c)
		}
	}
	return out
}

// dealt orders nodes so that those in a row differ in the first key: one of each domain, then the next of each.
func (ds Domains) dealt(nodes []int) []int {
	keys := len(ds.keys)
	if keys == 0 {
		return nodes
	}
	turn := make([]int, len(ds.values[0])) // by value
	type card struct{ node, round int }
	cards := make([]card, len(nodes))
	for i, n := range nodes {
		v := ds.of[n*keys]
		cards[i] = card{n, turn[v]}
		turn[v]++
	}
	slices.SortStableFunc(cards, func(a, b card) int { return a.round - b.round })
	out := make([]int, len(nodes))
	for i, c := range cards {
		out[i] = c.node
	}
	return out
}

// dice is a generator of pseudo-random numbers (xorshift64).
type dice uint64

func (x *dice) below(n int) int {
	*x ^= *x << 13
	*x ^= *x >> 7
	*x ^= *x << 17
	return int(uint64(*x) >> 11 % uint64(n)) //nolint:gosec // n is positive, and the result below it
}

func (x *dice) shuffle(list []int) {
	for i := len(list) - 1; i > 0; i-- {
		j := x.below(i + 1)
		list[i], list[j] = list[j], list[i]
	}
}

// total returns the cost of the whole placement.
func (p *Placement) total() (c int64) {
	for _, one := range p.costs {
		c += one
	}
	return c
}

// floor returns a cost that no exchange of nodes can go below.
func (p *Placement) floor() (c int64) {
	most := p.most()
	for r := range p.near {
		if p.node[r] != none {
			c += p.floorAt(r, most)
		}
	}
	return c
}

// most returns, by key, the number of domains, where nodes without a value count as one each.
func (p *Placement) most() []int {
	keys := len(p.domains.keys)
	out := make([]int, keys)
	for k := range out {
		out[k] = len(p.domains.values[k]) - 1
		for n := range p.where {
			if p.domains.of[n*keys+k] == 0 {
				out[k]++
			}
		}
	}
	return out
}

func (p *Placement) floorAt(r int, most []int) (c int64) {
	for _, n := range most {
		shared := int64(max(0, p.near[r].n-n))
		c += shared * shared
	}
	return c
}

// search exchanges nodes of a placement.
type search struct {
	*Placement
	fixed int // nodes below it keep their places
	dice  *dice
	left  int // exchanges that it may still try
}

const (
	fewNodes = 128 // so many can be tried in full for each place
	sample   = 16  // nodes to try, among more of them
	calm     = 3   // rounds without an improvement that end a search among more of them
)

// run exchanges nodes while that lowers the cost.
func (s *search) run() {
	most, still := s.most(), 0
	for still < calm && s.left > 0 {
		before := s.total()
		for r := range s.near {
			if s.node[r] != none && s.costs[r] > s.floorAt(r, most) {
				s.relieve(int32(r)) //nolint:gosec // MaxPlaces bounds it
			}
		}
		switch {
		case s.total() < before:
			still = 0
		case len(s.where) <= fewNodes:
			return
		default:
			still++
		}
	}
}

// relieve makes the best exchange of a place's node, or of one of its neighbours.
func (s *search) relieve(r int32) {
	var best int64
	from, to := int32(none), int32(none)
	nodes := len(s.where) - s.fixed
	tries := nodes
	if nodes > fewNodes {
		tries = sample
	}
	w := s.near[r]
	for _, a := range append(w.all(), r) {
		if s.node[a] < int32(s.fixed) { //nolint:gosec // MaxPlaces bounds it
			continue
		}
		for i := range tries {
			if nodes > fewNodes {
				i = s.dice.below(nodes)
			}
			b := s.where[s.fixed+i]
			if s.left--; s.left < 0 {
				break
			}
			if gain := s.gain(a, b); gain > best {
				best, from, to = gain, a, b
			}
		}
	}
	if best > 0 {
		s.swap(from, to)
	}
}

// gain returns by how much an exchange of two nodes lowers the cost.
func (p *Placement) gain(a, b int32) (gain int64) {
	keys := len(p.domains.keys)
	if a == b || slices.Equal(p.values[int(a)*keys:][:keys], p.values[int(b)*keys:][:keys]) {
		return 0
	}
	p.exchange(a, b)
	var buf [2*NumDirections + 2]int32
	for _, r := range p.affected(a, b, buf[:0]) {
		gain += p.costs[r] - p.cost(r, &p.near[r])
	}
	p.exchange(a, b)
	return gain
}

// affected returns the places whose costs depend on the nodes at two places.
func (p *Placement) affected(a, b int32, out []int32) []int32 {
	out = append(out, a, b)
	for _, list := range [2][]int32{p.near[a].all(), p.near[b].all()} {
		for _, r := range list {
			if !slices.Contains(out, r) {
				out = append(out, r)
			}
		}
	}
	return out
}

func (p *Placement) exchange(a, b int32) {
	keys := len(p.domains.keys)
	x, y := p.values[int(a)*keys:][:keys], p.values[int(b)*keys:][:keys]
	for k := range x {
		x[k], y[k] = y[k], x[k]
	}
}

// swap exchanges the nodes at two places.
func (p *Placement) swap(a, b int32) {
	p.exchange(a, b)
	p.node[a], p.node[b] = p.node[b], p.node[a]
	p.where[p.node[a]], p.where[p.node[b]] = a, b
	for _, r := range p.affected(a, b, nil) {
		p.costs[r] = p.cost(r, &p.near[r])
	}
}

// Step is one step to a better placement: two nodes exchange their places, or one moves to an empty place.
type Step struct {
	Node int
	From Coord
	To   Coord
	With int // the node that goes from To to From; -1: To was empty
}

// Improve returns a placement with fewer exposed nodes, and at most so many steps that lead to it. Each step
// leaves fewer nodes exposed, no node with fewer witnesses than the worst had before, and the torus in one part. If one
// step alone cannot help, there is none.
func (p *Placement) Improve(steps int) (*Placement, []Step, error) {
	now, err := Place(p.dims, p.domains, p.coords())
	if err != nil {
		return nil, nil, err
	}
	var out []Step
	for len(out) < steps {
		step, ok := now.bestSwap()
		if ok {
			now.swap(now.where[step.Node], now.where[step.With])
		} else if now, step, ok = now.bestMove(); !ok {
			break
		}
		out = append(out, step)
	}
	return now, out, nil
}

// maxTried bounds the exposed places for which Improve tries each step.
const maxTried = 16

// bestSwap returns the exchange that relieves the most nodes.
func (p *Placement) bestSwap() (Step, bool) {
	var best int64 = oneExposed / 2 // less relieves no node
	from, to := int32(none), int32(none)
	tried := 0
	for r, cost := range p.costs {
		if cost < oneExposed {
			continue
		}
		if tried++; tried > maxTried || tried > 1 && from != none {
			break
		}
		w := p.near[r]
		for _, a := range append(w.all(), int32(r)) { //nolint:gosec // MaxPlaces bounds it
			if p.node[a] == none {
				continue
			}
			for _, b := range p.where {
				if gain := p.gain(a, b); gain > best {
					best, from, to = gain, a, b
				}
			}
		}
	}
	if from == none {
		return Step{}, false
	}
	return Step{Node: int(p.node[from]), From: p.dims.At(int(from)), To: p.dims.At(int(to)), With: int(p.node[to])}, true
}

// maxMoves bounds the moves to empty places that one step of Improve tries, each at the cost of a whole placement.
const maxMoves = 256

// bestMove returns the placement after the move to an empty place that relieves the most nodes.
func (p *Placement) bestMove() (*Placement, Step, bool) {
	var empty []Coord
	if !p.dims.Full() {
		empty = p.dims.Empty()
	}
	best, step, moved := p, Step{}, 0
	least := p.Quality().Witnesses
	for r, cost := range p.costs {
		if cost < oneExposed || len(empty) == 0 {
			continue
		}
		w := p.near[r]
		for _, a := range append(w.all(), int32(r)) { //nolint:gosec // MaxPlaces bounds it
			if p.node[a] == none {
				continue
			}
			for _, to := range empty {
				if moved++; moved > maxMoves {
					return best, step, best != p
				}
				q, err := p.moved(a, to)
				if err == nil && q.total()+oneExposed/2 < best.total() && q.Quality().Witnesses >= least {
					best, step = q, Step{Node: int(p.node[a]), From: p.dims.At(int(a)), To: to, With: none}
				}
			}
		}
	}
	return best, step, best != p
}

var errParted = errors.New("the torus would be in several parts")

// moved returns the placement after the move of a node to an empty place.
func (p *Placement) moved(from int32, to Coord) (*Placement, error) {
	d, err := p.dims.Box().withoutRanks(func(set func(int)) error {
		for r := range p.dims.Places() {
			if r == int(from) || p.dims.emptyRank(r) && r != p.dims.Rank(to) {
				set(r)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if d.CheckConnected() != nil {
		return nil, errParted
	}
	at := p.coords()
	at[p.node[from]] = to
	return Place(d, p.domains, at)
}
