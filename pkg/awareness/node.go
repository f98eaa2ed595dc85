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

// directions is a set of directions, one bit per index.
type directions uint8

const allDirections directions = 1<<grid.NumDirections - 1

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

// node is all knowledge about one node.
type node struct {
	*suspicion // never nil; calm for nearly all

	rank       int
	id         fault.NodeID
	coord      grid.Coord
	foreign    bool       // of another region: it is a witness, and is never judged
	revoked    bool       // its certificates are revoked: it is no witness and is not judged
	stopped    bool       // it has announced a stop: the same, until it is back
	ends       directions // its links
	neighbours []neighbour
	peers      [grid.NumDirections]*node // at the end of each link; nil if there is no link or the peer is unknown

	voices      [2]voice // of the host half, of the DNP half
	components  [fault.NumComponents]component
	stories     []story // of the components that have one
	speaker     fault.Half
	registersAt instant // arrival of speaker's newest report, whose registers are the node's; 0 for none

	standing          // membership in groups with the same fate
	trends   []*trend // of moving quantities, by component; usually none
	readings []newest // of quantities that have moved; usually none

	mood  mood      // as neighbours last saw it
	next  time.Time // when to look at it again; zero for never
	place int32     // in the heap, -1 for none

	settling, touched bool
	// restless reports that the state depends on time, or on the times of statements, and not only on whether the
	// halves are current: then every report leads to another look.
	restless bool
}

// suspicion is the case against a node, with its challenges. A node without a case has Machine.calm; writers use
// Machine.suspect.
type suspicion struct {
	rounds [3]round // of challenges: to either half, to the host half, to the DNP half
	failed [2]verdict
	dead   verdict      // the whole node is FAILED
	backAt [2]time.Time // when a half's verdict was last lifted
	linked time.Time    // until then its neighbours may not hear its DNP yet, which is back
	nonces []nonce      // newest last
	probed time.Time    // time of the newest challenge outside of a round
	asked  [3]roundMood // of rounds, as neighbours last saw them
	spoke  time.Time    // its first sign of life after it was mute
}

// suspicionOf returns the node's suspicion for writing.
func (m *Machine) suspicionOf(n *node) *suspicion {
	if n.suspicion == &m.calm {
		n.suspicion = &suspicion{}
	}
	return n.suspicion
}

// acquit drops a suspicion that no longer matters.
func (m *Machine) acquit(n *node, now time.Time) {
	t := n.suspicion
	if t == &m.calm || t.dead.on || t.failed[0].on || t.failed[1].on {
		return
	}
	for k := range t.rounds {
		if t.rounds[k].open {
			return
		}
	}
	newest := fault.Later(fault.Later(t.backAt[0], t.backAt[1]), t.probed)
	if len(t.nonces) > 0 {
		newest = fault.Later(newest, t.nonces[len(t.nonces)-1].sent)
	}
	if now.Before(newest.Add(max(m.window(), 2*m.cfg.LinkSettle))) || now.Before(m.allBack(n)) {
		return
	}
	n.suspicion = &m.calm
}

func (n *node) voice(h fault.Half) *voice     { return &n.voices[h-1] }
func (n *node) failure(h fault.Half) *verdict { return &n.failed[h-1] }

// platform returns the platform of the node's halves. If the two halves state different platforms, it returns the safe
// assumption, a shared kernel.
func (n *node) platform() fault.Platform {
	a, b := n.voices[0].platform, n.voices[1].platform
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// has reports whether the node has the component. A node has a bus if its halves run under separate kernels, or if
// the map still holds a state for a bus.
func (n *node) has(c fault.Component) bool {
	if c == fault.ComponentBus {
		return n.components[c].state != fault.Unknown || n.platform() == fault.PlatformDPU
	}
	d, ok := c.LinkDirection()
	return !ok || n.ends.has(d)
}
func (n *node) origin(h fault.Half) fault.Origin { return fault.Origin{Node: n.id, Half: h} }

// heard returns when the newest sign of life of the half was made; 0 stands for either half.
func (n *node) heard(h fault.Half) time.Time {
	if h == 0 {
		return fault.Later(n.voices[0].heard, n.voices[1].heard)
	}
	return n.voice(h).heard
}

// said returns the half's statement on a component of its own node, nil if there is none. The record is valid until the
// machine looks at another node.
func (m *Machine) said(n *node, h fault.Half, c fault.Component) *record {
	return m.record(n.voice(h), ownSlot(c))
}

// saidOf returns the statement of a half of the neighbour about the node, nil if there is none; index is the
// component's index in described. The record is valid until the machine looks at another node.
func (m *Machine) saidOf(nb neighbour, h fault.Half, index int) *record {
	return m.record(nb.node.voice(h), aboutSlot(int(nb.index), index))
}

// record returns a statement. Plain ones are built in storage that the next node reuses, so that looking at a node
// allocates nothing.
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

// allPlain reports whether all statements of both halves are plain, regardless of their subjects: the caller can then
// skip them.
func (n *node) allPlain() bool { return len(n.voices[0].others)+len(n.voices[1].others) == 0 }

// look starts to look at another node and releases the records of the last one.
func (m *Machine) look() { m.records = m.records[:0] }

// wakeAt schedules another look at t.
func (n *node) wakeAt(t, now time.Time) {
	if t.After(now) {
		n.restless = true
		n.wake(t)
	}
}

// wake is wakeAt for a time that any report of a half postpones.
func (n *node) wake(t time.Time) { n.next = fault.Earliest(n.next, t) }

// build creates the nodes and connects the neighbours.
func (m *Machine) build() {
	dims := m.cfg.Dims
	m.empty = dims.Empty()
	store := make([]node, len(m.cfg.IDs)) // in one allocation: a hundred thousand separate ones would be slow
	m.nodes = make([]*node, dims.Places())
	for rank := range m.nodes {
		at := dims.At(rank)
		id := m.cfg.IDs[at]
		if id == "" {
			continue
		}
		n := &store[0]
		store = store[1:]
		m.create(n, rank, id, at, m.started)
		m.nodes[rank], m.ranks[id] = n, rank
		if !n.foreign {
			m.own = append(m.own, n)
		}
	}
	neighbours := make([]neighbour, 0, len(m.ranks)*len(dims.Links()))
	for _, n := range m.nodes {
		if n != nil {
			neighbours = m.connect(n, neighbours)
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

// create fills in a node that was never heard.
func (m *Machine) create(n *node, rank int, id fault.NodeID, at grid.Coord, now time.Time) {
	n.suspicion, n.rank, n.id, n.coord, n.foreign, n.place = &m.calm, rank, id, at, m.cfg.Foreign[id], -1
	for i := range n.components {
		n.components[i] = component{state: fault.Unknown, cause: fault.CauseNone, since: m.clock.instant(now), rule: ruleUnheard}
	}
	for i, h := range halves {
		n.voices[i].half = h
	}
}

// connect sets the node's peers and neighbours, in the order of directions, and returns the store with them appended.
func (m *Machine) connect(n *node, store []neighbour) []neighbour {
	start := len(store)
	n.ends, n.peers = 0, [grid.NumDirections]*node{}
	for _, d := range grid.Directions() {
		at, ok := m.cfg.Dims.Neighbour(n.coord, d)
		if !ok {
			continue
		}
		n.ends |= 1 << d.Index()
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
