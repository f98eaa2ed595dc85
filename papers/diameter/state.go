package diameter

// State is a network and its presently working parts.
type State struct {
	net   *Network
	link  []bool // by index: works
	node  []bool // by rank: works
	alive int

	// Of the last search; a mark other than mark is old.
	marks []int32
	depth []int32
	queue []int32
	mark  int32
}

// NewState returns the network with all or nothing of it working.
func (n *Network) NewState(links, nodes bool) *State {
	s := &State{net: n, link: make([]bool, len(n.links)), node: make([]bool, n.Nodes()),
		marks: make([]int32, n.Nodes()), depth: make([]int32, n.Nodes()), queue: make([]int32, 0, n.Nodes())}
	for i := range s.link {
		s.link[i] = links
	}
	for i := range s.node {
		s.node[i] = nodes
	}
	if nodes {
		s.alive = n.Nodes()
	}
	return s
}

// SetLink mends or breaks the link with that index.
func (s *State) SetLink(i int, works bool) { s.link[i] = works }

// SetNode mends or breaks a router: none of its links leads anywhere while it is broken.
func (s *State) SetNode(rank int, works bool) {
	switch {
	case works && !s.node[rank]:
		s.alive++
	case !works && s.node[rank]:
		s.alive--
	}
	s.node[rank] = works
}

// search visits all nodes that are reachable from a working node and returns the greatest depth. The visited nodes
// are in s.queue, nearest first.
func (s *State) search(from int) int {
	s.mark++
	s.queue = append(s.queue[:0], int32(from))
	s.marks[from], s.depth[from] = s.mark, 0
	for i := 0; i < len(s.queue); i++ {
		at := s.queue[i]
		for _, w := range s.net.ways[at] {
			if s.marks[w.to] != s.mark && s.link[w.link] && s.node[w.to] {
				s.marks[w.to], s.depth[w.to] = s.mark, s.depth[at]+1
				s.queue = append(s.queue, w.to)
			}
		}
	}
	return int(s.depth[s.queue[len(s.queue)-1]])
}

// Piece is a set of working nodes that reach one another and no others.
type Piece struct{ Nodes, Diameter int }

// Pieces returns all pieces in the order of their lowest rank, their diameters by a search from every node.
func (s *State) Pieces() []Piece {
	var out []Piece
	of := make([]int, s.net.Nodes()) // piece, from 1
	for from := range of {
		if !s.node[from] {
			continue
		}
		d := s.search(from)
		if of[from] == 0 {
			out = append(out, Piece{Nodes: len(s.queue)})
			for _, v := range s.queue {
				of[v] = len(out)
			}
		}
		p := &out[of[from]-1]
		p.Diameter = max(p.Diameter, d)
	}
	return out
}

// Path returns the ranks of a shortest path, both ends included, or nil when there is none. Of several it always
// returns the same one.
func (s *State) Path(from, to int) []int {
	if !s.node[from] || !s.node[to] {
		return nil
	}
	s.search(to)
	if s.marks[from] != s.mark {
		return nil
	}
	path := []int{from}
	for at := from; at != to; {
		for _, w := range s.net.ways[at] {
			if s.link[w.link] && s.marks[w.to] == s.mark && s.depth[w.to] == s.depth[at]-1 {
				at = int(w.to)
				break
			}
		}
		path = append(path, at)
	}
	return path
}

// Farthest returns the lowest pair of connected nodes that is as far apart as any, and its distance; false when no
// router works.
func (s *State) Farthest() (a, b, distance int, ok bool) {
	distance = -1
	for from := range s.net.Nodes() {
		if !s.node[from] {
			continue
		}
		if d := s.search(from); d > distance {
			a, distance = from, d
			b = int(s.queue[len(s.queue)-1])
			for _, v := range s.queue {
				if int(s.depth[v]) == d {
					b = min(b, int(v))
				}
			}
		}
	}
	return a, b, max(distance, 0), distance >= 0
}
