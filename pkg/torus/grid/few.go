package grid

// Few is a node with fewer than two witnesses: one, or none in a torus of several parts. If the witness dies with the node,
// no link of a living node tells.
type Few struct {
	Node      int
	Witnesses []Coord // their places; the node at a place may belong to somebody else
}

// maxMend bounds the places of a torus in which Mend tries every move: at most a quarter of its square.
const maxMend = 64

// Mend returns the move of a node to an empty place that leaves the fewest nodes with few witnesses, and of those the one
// that is best for failure domains. It returns false if no move leaves fewer than now, or the torus has more than maxMend
// places.
func (p *Placement) Mend() (Step, bool) {
	var best Step
	few, cost := len(p.Quality().Few), p.total()
	if few == 0 || p.dims.Places() > maxMend || p.dims.Full() {
		return best, false
	}
	found := false
	for node, from := range p.where {
		for _, to := range p.dims.Empty() {
			q, err := p.moved(from, to)
			if err != nil {
				continue
			}
			n, c := len(q.Quality().Few), q.total()
			if n < few || found && n == few && c < cost {
				best, few, cost, found = Step{Node: node, From: p.Coord(node), To: to, With: none}, n, c, true
			}
		}
	}
	return best, found
}
