package awareness

import (
	"container/heap"
	"maps"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Moved replaces the nodes' places; see Config for the fields, which the shell has validated. A node with the same id at
// the same place keeps all its evidence, except statements about former neighbours and about links that lead to another
// peer now: see relinks. Any other node is new. The machine forgets nodes that have left their places, and ignores their
// reports.
type Moved struct {
	Dims         grid.Dims
	IDs          map[grid.Coord]fault.NodeID
	Labels       map[fault.NodeID]map[string]string
	DomainLabels []string
	Revision     uint64 // as in Config
}

func (Moved) event() {}

// whyMoved begins the reasons for what a change of places ends.
const whyMoved = "the topology has changed: "

// moved applies a change of places. Its cost grows with the number of nodes, but only nodes at changed links are looked
// at again.
func (m *Machine) moved(ev Moved, now time.Time) {
	gone := m.replace(ev, now)
	m.forgetGone(gone, now)
	changed := m.reconnect(now)
	m.domains = newDomains(m.cfg, m.nodes)
	m.sizes = nil // counted on demand
	m.common.marked, m.common.stranded, m.common.mutes = rekeyed(m.common.marked), rekeyed(m.common.stranded), rekeyed(m.common.mutes)
	m.moveGroups()
	heap.Init(&m.wakes) // ranks decide between equal times
	for _, n := range changed {
		m.touchAround(n)
	}
	for _, n := range m.own {
		if n.suspicion != &m.calm {
			m.touch(n)
		}
	}
	if c := &m.common; c.look.IsZero() {
		c.first, c.look = now, fault.Later(now.Add(m.settleGroups()), m.graceEnds())
	} else if !c.look.After(now) {
		c.first, c.look = now, now.Add(time.Millisecond) // a group changes at most once in a step
	}
}

// replace gives every node its rank, creates the new nodes, and returns those that have left.
func (m *Machine) replace(ev Moved, now time.Time) (gone []*node) {
	maps.DeleteFunc(m.left, func(_ fault.NodeID, at time.Time) bool { return now.Sub(at) > m.cfg.RelinkBound })
	was, ranks := m.nodes, m.ranks
	m.cfg.Dims, m.cfg.IDs, m.cfg.Labels, m.cfg.DomainLabels = ev.Dims, ev.IDs, ev.Labels, ev.DomainLabels
	m.cfg.Revision = ev.Revision
	m.nodes, m.ranks, m.own = make([]*node, ev.Dims.Places()), make(map[fault.NodeID]int, len(ev.IDs)), make([]*node, 0, len(ev.IDs))
	m.empty = ev.Dims.Empty()
	stays := make([]bool, len(was))
	for rank := range m.nodes {
		at := ev.Dims.At(rank)
		id := ev.IDs[at]
		if id == "" {
			continue
		}
		var n *node
		if old, known := ranks[id]; known && was[old].coord == at {
			n, stays[old] = was[old], true
			n.rank = rank
		} else {
			n = &node{}
			m.create(n, rank, id, at, now)
			r := m.relinksOf(n)
			r.placed = now
			m.becomeJoiner(r, id, now)
			if known && (was[old].voices[0].epoch|was[old].voices[1].epoch) != 0 { // late reports of its former life stay what they are
				for i := range n.voices {
					n.voices[i].epoch, n.voices[i].floor = was[old].voices[i].epoch, was[old].voices[i].floor
				}
				m.becomeMoved(r, [2]fault.Epoch{n.voices[0].epoch, n.voices[1].epoch}, now)
			}
		}
		m.nodes[rank], m.ranks[id] = n, rank
		if !n.foreign {
			m.own = append(m.own, n)
		}
	}
	for rank, n := range was {
		if n != nil && !stays[rank] {
			gone = append(gone, n)
		}
	}
	return gone
}

// forgetGone removes nodes that have left their places, and ends their warnings.
func (m *Machine) forgetGone(gone []*node, now time.Time) {
	for _, n := range gone {
		if _, placed := m.ranks[n.id]; !placed {
			m.left[n.id] = now
		}
		for _, t := range n.trends {
			m.endWarning(t, whyMoved+"the node has left its place")
		}
		delete(m.discounted, n)
		m.wakes.drop(n)
		n.rank = -1
		delete(m.rewired, n)
		delete(m.revocations, n)
		delete(m.restarts, n)
		delete(m.stops, n)
		delete(m.regained, n)
	}
	left := func(n *node) bool { return n.rank < 0 }
	m.dirty = slices.DeleteFunc(m.dirty, left)
	m.trips = slices.DeleteFunc(m.trips, func(t trip) bool { return left(t.node) })
}

// becomeJoiner makes a node a joiner: its reports can only be about its new links, unless it has just left its place.
func (m *Machine) becomeJoiner(r *relinks, id fault.NodeID, now time.Time) {
	r.joiner, r.turned = true, allDirections
	if m.leftLately(id, now) {
		r.blurred = allDirections
	}
}

// leftLately reports whether a joiner may have left its place within RelinkBound, so that its halves may be those of its earlier life. An
// earlier leader may have seen it leave.
func (m *Machine) leftLately(id fault.NodeID, now time.Time) bool {
	_, left := m.left[id]
	return left || m.cfg.Known != nil && now.Sub(m.started) <= m.cfg.RelinkBound && m.cfg.Known(id)
}

// reconnect connects the nodes whose links lead elsewhere, and returns them.
func (m *Machine) reconnect(now time.Time) (changed []*node) {
	for _, n := range m.nodes {
		if n == nil {
			continue
		}
		peers, ends := m.peersOf(n)
		if peers == n.peers && ends == n.ends && n.neighbours != nil {
			continue
		}
		changed = append(changed, n)
		before, had, neighbours := n.peers, n.ends, n.neighbours
		m.connect(n, nil)
		lost := directions(0) // ends of which earlier statements are about another cable
		for _, d := range grid.Directions() {
			i := d.Index()
			if before[i] == n.peers[i] && had.has(d) == n.ends.has(d) {
				continue
			}
			lost |= 1 << i
			m.relink(n, d, had.has(d), now)
		}
		for i := range n.voices {
			n.voices[i].carry(neighbours, n.neighbours, lost)
		}
	}
	for _, n := range changed {
		for i := range n.neighbours {
			nb := &n.neighbours[i]
			nb.index = uint8(slices.IndexFunc(nb.node.neighbours, func(o neighbour) bool { return o.node == n }))
			nb.node.neighbours[nb.index].index = uint8(i)
		}
	}
	return changed
}

// peersOf returns the peers of a node's links, and the links.
func (m *Machine) peersOf(n *node) (peers [grid.NumDirections]*node, ends directions) {
	for _, d := range grid.Directions() {
		if at, ok := m.cfg.Dims.Neighbour(n.coord, d); ok {
			ends |= 1 << d.Index()
			peers[d.Index()] = m.nodes[m.cfg.Dims.Rank(at)]
		}
	}
	return peers, ends
}

// relink begins the wait for a link end that leads to another peer now, or to none; had says that it led anywhere before.
func (m *Machine) relink(n *node, d grid.Direction, had bool, now time.Time) {
	c := fault.Link(d)
	p, r := &n.components[c], m.relinksOf(n)
	if word, _ := m.ownWord(n, c, now); word.works() {
		r.dark &^= 1 << d.Index()
	} else {
		r.dark |= 1 << d.Index()
	}
	p.flapping, p.held, p.restored = false, false, false
	if s := n.story(c); s != nil {
		s.last, s.before = 0, 0
	}
	why := "the link leads elsewhere"
	if !n.ends.has(d) {
		why = "the node has no such link any more"
	}
	m.forgetReadings(n, c, whyMoved+why)
	if p.forgotten = false; !n.ends.has(d) {
		// So that old reports are not attributed to a new link at this end:
		r.until[d.Index()] = now.Add(m.cfg.RelinkBound)
		if p.state != fault.Unknown { // a link that comes back before the next commit must not change without an event
			m.change(n, c, m.goneLink(), now)
		}
		n.stories = slices.DeleteFunc(n.stories, func(s story) bool { return s.component == c })
		*p = component{state: fault.Unknown, cause: fault.CauseNone, since: m.clock.instant(now), rule: ruleUnheard}
		return
	}
	if !r.until[d.Index()].IsZero() {
		r.blurred |= 1 << d.Index()
	}
	switch {
	case !had:
		r.turned |= 1 << d.Index() // there is no former link of which the node could speak
	case !r.joiner || r.met || r.blurred.has(d):
		r.turned &^= 1 << d.Index()
	}
	r.until[d.Index()] = now.Add(m.cfg.RelinkBound)
	if p.state == fault.Unknown {
		p.rule, p.since = ruleRelinked, m.clock.instant(now) // no change of the state will set them
	}
}

// goneLink returns the finding for a link that a node has no more.
func (m *Machine) goneLink() finding {
	return finding{state: fault.Unknown, cause: fault.CauseNone, kind: fault.KindDigest, name: ruleUnheard,
		rule: whyMoved + "the node has no such link any more"}
}

// carry moves the statements about neighbours to the neighbours' new places in the list, and drops those about former
// neighbours and lost links. The half's newest digest may state more than was understood: only a full one tells.
func (v *voice) carry(from, to []neighbour, lost directions) {
	var slots [maxSlots]int16
	for s := range slots {
		slots[s] = int16(s)
		about, c := slot(s).about()
		if d, link := c.LinkDirection(); about < 0 && link && lost.has(d) {
			slots[s] = -1
		}
		if about < 0 {
			continue
		}
		slots[s] = -1
		if about < len(from) {
			if i := slices.IndexFunc(to, func(nb neighbour) bool { return nb.node == from[about].node }); i >= 0 {
				slots[s] = int16(slotOf(i, c))
			}
		}
	}
	move := func(set uint64) (out uint64) {
		for s, at := range slots {
			if at >= 0 && set&slot(s).bit() != 0 {
				out |= slot(at).bit()
			}
		}
		return out
	}
	v.digest.plain = move(v.digest.plain)
	for i := range v.more {
		v.more[i].plain = move(v.more[i].plain)
	}
	if v.more = slices.DeleteFunc(v.more, func(t telling) bool { return t.plain == 0 }); len(v.more) == 0 {
		v.more = nil
	}
	if v.others = slices.DeleteFunc(v.others, func(r record) bool { return slots[r.slot] < 0 }); len(v.others) == 0 {
		v.others = nil
	}
	for i := range v.others {
		v.others[i].slot = slot(slots[v.others[i].slot])
	}
	if v.ages != nil {
		ages := *v.ages
		for s, at := range slots {
			if at >= 0 {
				v.ages[at] = ages[s]
			}
		}
	}
	v.cut = true
}

// rekeyed returns the nodes by their new ranks, without those that have left.
func rekeyed(nodes map[int]*node) map[int]*node {
	if nodes == nil {
		return nil
	}
	out := make(map[int]*node, len(nodes))
	for _, n := range nodes {
		if n.rank >= 0 {
			out[n.rank] = n
		}
	}
	return out
}

// moveGroups removes nodes that have left from the groups, and ends groups without a member.
func (m *Machine) moveGroups() {
	groups := make([]group, 0, len(m.common.groups))
	for _, g := range m.common.groups {
		count := len(g.members)
		g.members = slices.DeleteFunc(slices.Clone(g.members), func(n *node) bool { return n.rank < 0 })
		sortNodes(g.members)
		if len(g.members) == count {
			groups = append(groups, g)
			continue
		}
		if g.Members, g.Inferred = ids(g.members), 0; len(g.members) == 0 {
			g.State, g.Rule = fault.Normal, whyMoved+"its members are gone"
			m.out.Groups = append(m.out.Groups, g.GroupStatus)
			continue
		}
		for _, n := range g.members {
			if n.inferred {
				g.Inferred++
			}
		}
		m.out.Groups = append(m.out.Groups, g.GroupStatus)
		groups = append(groups, g)
	}
	m.setGroups(groups)
}
