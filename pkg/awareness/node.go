package awareness

import (
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// neighbour is one of the distinct nodes at the other ends of a node's links.
type neighbour struct {
	node  *node
	index uint8      // of this node in the neighbour's own list
	back  directions // the neighbour's links that end here
}

// directions is a set of them, as bits by index.
type directions uint8

func (s directions) has(d grid.Direction) bool { return s>>d.Index()&1 == 1 }

// list returns the directions of the set in order. It must not be changed.
func (s directions) list() []grid.Direction { return directionLists[s] }

var directionLists = func() (lists [1 << grid.NumDirections][]grid.Direction) {
	for s := range lists {
		for _, d := range grid.Directions() {
			if directions(s).has(d) {
				lists[s] = append(lists[s], d)
			}
		}
	}
	return lists
}()

// links returns the neighbour's links that end at the node.
func (nb neighbour) links() []grid.Direction { return nb.back.list() }

// node is what is known of one node.
type node struct {
	*trial // never nil; calm for nearly all

	rank       int
	id         fault.NodeID
	coord      grid.Coord
	foreign    bool       // of another region: it bears witness, and is never judged
	revoked    bool       // its certificates are revoked: it is no witness and is not judged
	ends       directions // its links
	neighbours []neighbour
	peers      [grid.NumDirections]*node // at the end of each link; nil where there is none, or it is unknown

	voices      [2]voice // of the host half, of the DNP half
	components  [fault.NumComponents]component
	stories     []story // of components that have one
	speaker     fault.Half
	registersAt instant // when speaker's newest report came, whose registers are the node's; 0 for none

	standing          // among those that share its fate
	trends   []*trend // of what moves, by component; mostly none
	readings []newest // of what has moved; mostly none

	mood  mood      // as neighbours last saw it
	next  time.Time // when to look again; zero for never
	place int32     // in the heap, -1 for none

	settling, touched bool
	// restless says that more than whether its halves are heard depends on the time, or on when something
	// was said: then every report makes the machine look again.
	restless bool
}

// trial is what is held against a node, and what it was asked. A node against which there is nothing has
// Machine.calm; writers go by Machine.try.
type trial struct {
	rounds [3]round // of challenges: to either half, to the host half, to the DNP half
	failed [2]verdict
	dead   verdict      // the whole node is FAILED
	backAt [2]time.Time // when a half's verdict was last lifted
	nonces []nonce      // newest last
	probed time.Time    // the newest challenge outside of a round
	asked  [3]roundMood // of rounds, as neighbours last saw it
	spoke  time.Time    // when it was last heard again after it had been mute
}

// try returns the node's trial for writing.
func (m *Machine) try(n *node) *trial {
	if n.trial == &m.calm {
		n.trial = &trial{}
	}
	return n.trial
}

// acquit forgets a trial of which nothing counts any more.
func (m *Machine) acquit(n *node, now time.Time) {
	t := n.trial
	if t == &m.calm || t.dead.on || t.failed[0].on || t.failed[1].on {
		return
	}
	for k := range t.rounds {
		if t.rounds[k].open {
			return
		}
	}
	newest := later(later(t.backAt[0], t.backAt[1]), t.probed)
	if len(t.nonces) > 0 {
		newest = later(newest, t.nonces[len(t.nonces)-1].sent)
	}
	if now.Before(newest.Add(max(m.window(), 2*m.cfg.LinkSettle))) {
		return
	}
	n.trial = &m.calm
}

func (n *node) voice(h fault.Half) *voice     { return &n.voices[h-1] }
func (n *node) failure(h fault.Half) *verdict { return &n.failed[h-1] }

// platform returns the platform of the node's halves. If the two halves state different platforms, it returns the safe assumption, a shared
// kernel.
func (n *node) platform() fault.Platform {
	a, b := n.voices[0].platform, n.voices[1].platform
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func (n *node) has(c fault.Component) bool {
	d, ok := c.LinkDirection()
	return !ok || n.ends.has(d)
}
func (n *node) origin(h fault.Half) fault.Origin { return fault.Origin{Node: n.id, Half: h} }

// heard returns when the newest sign of life of the half was made; 0 stands for either half.
func (n *node) heard(h fault.Half) time.Time {
	if h == 0 {
		return later(n.voices[0].heard, n.voices[1].heard)
	}
	return n.voice(h).heard
}

// said returns what the half states of a component of its own node, nil for nothing. The record is good
// until another node is looked at.
func (m *Machine) said(n *node, h fault.Half, c fault.Component) *record {
	return m.record(n.voice(h), ownSlot(c))
}

// saidOf returns what a half of the neighbour states of the node, index being that of the component in
// described; nil for nothing. The record is good until another node is looked at.
func (m *Machine) saidOf(nb neighbour, h fault.Half, index int) *record {
	return m.record(nb.node.voice(h), aboutSlot(int(nb.index), index))
}

// record hands out a statement. Plain ones are made up in a store that is used again for the next node, so
// that looking at a node allocates nothing.
func (m *Machine) record(v *voice, s slot) *record {
	if o := v.other(s); o != nil {
		return o
	}
	t := v.telling(s)
	if t == nil {
		return nil
	}
	m.records = append(m.records, record{})
	r := &m.records[len(m.records)-1]
	v.recall(s, t, m.clock, r)
	return r
}

// allPlain says that neither half of the node says anything but that all is well, of whomever: there is no
// need to look at what it says in particular.
func (n *node) allPlain() bool { return len(n.voices[0].others)+len(n.voices[1].others) == 0 }

// look begins to look at another node: the records of the last one are done with.
func (m *Machine) look() { m.records = m.records[:0] }

// wakeAt asks to be looked at again at t.
func (n *node) wakeAt(t, now time.Time) {
	if t.After(now) {
		n.restless = true
		n.wake(t)
	}
}

// wake is wakeAt for what the word of a half puts off.
func (n *node) wake(t time.Time) {
	if n.next.IsZero() || t.Before(n.next) {
		n.next = t
	}
}

// build makes the nodes and finds their neighbours.
func (m *Machine) build() {
	dims := m.cfg.Dims
	store := make([]node, len(m.cfg.IDs)) // one piece: a hundred thousand would take long to make one by one
	m.nodes = make([]*node, dims.Nodes())
	for rank := range m.nodes {
		at := dims.At(rank)
		id := m.cfg.IDs[at]
		if id == "" {
			continue
		}
		n := &store[0]
		store = store[1:]
		n.trial, n.rank, n.id, n.coord, n.foreign, n.place = &m.calm, rank, id, at, m.cfg.Foreign[id], -1
		for i := range n.components {
			n.components[i] = component{state: fault.Unknown, cause: fault.CauseNone, since: m.clock.instant(m.started), rule: ruleUnheard}
		}
		for i, h := range halves {
			n.voices[i].half = h
		}
		m.nodes[rank], m.ranks[id] = n, rank
		if !n.foreign {
			m.own = append(m.own, n)
		}
	}
	links := dims.Links()
	neighbours := make([]neighbour, 0, len(m.ranks)*len(links))
	for _, n := range m.nodes {
		if n != nil {
			neighbours = m.connect(n, links, neighbours)
		}
	}
	for _, n := range m.nodes {
		if n == nil {
			continue
		}
		for i := range n.neighbours {
			nb := &n.neighbours[i]
			nb.index = uint8(slices.IndexFunc(nb.node.neighbours, func(o neighbour) bool { return o.node == n }))
		}
	}
}

// connect finds the node's peers and neighbours, in the order of directions, and returns the store with
// them. links are the directions in which every node has a link.
func (m *Machine) connect(n *node, links []grid.Direction, store []neighbour) []neighbour {
	start := len(store)
	for _, d := range links {
		n.ends |= 1 << d.Index()
		at, _ := m.cfg.Dims.Neighbour(n.coord, d)
		p := m.nodes[m.cfg.Dims.Rank(at)]
		if p == nil {
			continue
		}
		n.peers[d.Index()] = p
		i := slices.IndexFunc(store[start:], func(nb neighbour) bool { return nb.node == p })
		if i < 0 {
			i = len(store) - start
			store = append(store, neighbour{node: p})
		}
		store[start+i].back |= 1 << d.Opposite().Index()
	}
	n.neighbours = store[start:len(store):len(store)]
	return store
}
