package grid

// Few is a node with fewer than two witnesses: one, or none in a torus of several parts. If the witness dies with the node,
// no link of a living node tells.
type Few struct {
	Node      int
	Witnesses []Coord // their places; the node at a place may belong to somebody else
}

// maxMend bounds the places of a torus in which Mend tries every move: at most a quarter of its square.
const maxMend = 32

// Mend returns the move of a node to an empty place that gives a node with few witnesses a second one. Of such moves it
// takes the one that leaves the fewest nodes with few witnesses, and then the best for failure domains. It returns false if
// no move leaves fewer such nodes than now, or the torus has more than maxMend places.
func (p *Placement) Mend(node int) (best Step, ok bool) {
	if p.dims.Full() || p.dims.Places() > maxMend {
		return best, false
	}
	few, cost := len(p.Quality().Few), int64(0)
	for moving, from := range p.where {
		for _, to := range p.dims.Empty() {
			q, err := p.moved(from, to)
			if err != nil || q.near[q.where[node]].n < 2 {
				continue
			}
			n, c := len(q.Quality().Few), q.total()
			if n < few || ok && n == few && c < cost {
				best, few, cost, ok = Step{Node: moving, From: p.Coord(moving), To: to, With: none}, n, c, true
			}
		}
	}
	return best, ok
}
