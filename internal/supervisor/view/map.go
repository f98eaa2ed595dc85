package view

import (
	"iter"
	"math/bits"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Map is the committed fault map at one revision, by rank. It never changes, costs nothing to copy and may be read
// from any goroutine. It lacks the data that the store does not keep: ages, registers, and evidence of normal
// components.
//
// It is a vector of chunks that versions share: a change copies its chunk and the list of the chunks.
type Map struct {
	Revision uint64
	// Stale: read from a copy, without confirmation by a quorum.
	Stale bool
	// StaleAge is the time since this replica's last such confirmation; -1: none since it started. Only with Stale.
	StaleAge time.Duration
	// Groups are the current group faults, by id, and Warnings the current warnings, by node and component. Both
	// slices are read-only.
	Groups   []awareness.GroupStatus
	Warnings []awareness.WarningStatus

	topo   *topology.Topology // nil in a zero Map
	dims   grid.Dims
	places *places // nil: the nodes have all places of the torus
	chunks []*chunk
	counts Counts
	rules  []string
	member map[fault.NodeID][]string // ids of the groups
}

// Counts are the numbers of nodes and link ends in each state, indexed by fault.State.
type Counts struct {
	Nodes, Links [int(fault.Failed) + 1]int
	// NotNormal are the nodes that are not NORMAL, or have a component that is SICK or FAILED.
	NotNormal int
}

func (c *Counts) add(o *Counts, sign int) {
	for s := range c.Nodes {
		c.Nodes[s] += sign * o.Nodes[s]
		c.Links[s] += sign * o.Links[s]
	}
	c.NotNormal += sign * o.NotNormal
}

// chunkSize is the number of nodes in a chunk. A commit copies this many pointers for a changed node.
const chunkSize = 256

// chunk is a run of nodes. It is immutable once it is in a Map.
type chunk struct {
	nodes     [chunkSize]*packed
	notNormal [chunkSize / 64]uint64 // a bit for each node that Counts.NotNormal counts
	counts    Counts
}

// mark sets or clears the bit of a node that is not normal.
func (c *chunk) mark(i int, notNormal bool) {
	word, bit := &c.notNormal[i/64], uint64(1)<<(i%64)
	if notNormal {
		*word |= bit
	} else {
		*word &^= bit
	}
}

// places are the places of a region's nodes: a part of the torus. A node's rank then counts within the region.
type places struct {
	at     []grid.Coord
	rank   map[grid.Coord]int
	border map[grid.Coord]fault.NodeID // of other regions
}

// Coord is the place of the node of a rank.
func (m Map) Coord(rank int) grid.Coord {
	if m.places != nil {
		return m.places.at[rank]
	}
	return m.dims.At(rank)
}

// IDAt returns the id of the node at a place: of another region's too where it borders on this one, otherwise empty.
func (m Map) IDAt(at grid.Coord) fault.NodeID {
	if m.places == nil {
		return m.ID(m.dims.Rank(at))
	}
	if rank, ok := m.places.rank[at]; ok {
		return m.ID(rank)
	}
	return m.places.border[at]
}

// Len is the number of nodes.
func (m Map) Len() int {
	if m.topo == nil {
		return 0
	}
	return len(m.topo.Placed())
}

// Topology returns the map's topology, with labels and spares. It may be older than the current one.
func (m Map) Topology() *topology.Topology { return m.topo }

// Dims are the sizes of the torus.
func (m Map) Dims() grid.Dims { return m.dims }

// Counts returns the numbers of nodes and link ends in each state.
func (m Map) Counts() Counts { return m.counts }

func (m Map) packed(rank int) *packed { return m.chunks[rank/chunkSize].nodes[rank%chunkSize] }

// At returns the node of a rank, which must be in [0, Len).
func (m Map) At(rank int) Entry {
	p := m.packed(rank)
	e := p.unpack(m.Coord(rank), m.rules)
	e.Status.Components = p.unpackComponents(m.rules)
	e.Status.Groups = m.member[e.Status.ID]
	return e
}

// Brief is At without the components, which are most of an entry.
func (m Map) Brief(rank int) Entry {
	e := m.packed(rank).unpack(m.Coord(rank), m.rules)
	e.Status.Groups = m.member[e.Status.ID]
	return e
}

// ID returns the id of the node of a rank. Like State and Revision, it is far cheaper than At.
func (m Map) ID(rank int) fault.NodeID { return m.packed(rank).id }

// Platform returns the platform of the node of a rank; 0: no report states it.
func (m Map) Platform(rank int) fault.Platform { return m.packed(rank).platform }

// Watchdog returns the hardware watchdog of the node of a rank; nil: the node states none. It is immutable.
func (m Map) Watchdog(rank int) *lofamov1.HardwareWatchdog {
	if x := m.packed(rank).extra; x != nil {
		return x.watchdog
	}
	return nil
}

// GivenUp reports for the host half and the DNP half of the node of a rank whether its recovery daemon has given it up.
func (m Map) GivenUp(rank int) [2]bool { return m.packed(rank).givenUp() }

// State returns the state of the node of a rank.
func (m Map) State(rank int) fault.State { return m.packed(rank).state }

// Stop returns the announced stop of a node, or zero.
func (m Map) Stop(rank int) awareness.Stop {
	if x := m.packed(rank).extra; x != nil {
		return x.stop
	}
	return awareness.Stop{}
}

// NodeRevision returns the revision at which the node of a rank last changed.
func (m Map) NodeRevision(rank int) uint64 { return m.packed(rank).revision }

// Rank returns the rank of a node.
func (m Map) Rank(id fault.NodeID) (int, bool) {
	if m.topo == nil {
		return 0, false
	}
	return m.topo.Rank(id)
}

// Explanation returns the committed map's statement on a component, or on the node. It contains neither the
// present evidence nor the possible changes. ok is false if there is no such node or component.
func (m Map) Explanation(id fault.NodeID, c fault.Component) (awareness.Explanation, bool) {
	e, ok := m.Find(id)
	x := awareness.Explanation{Node: id, Component: c, State: e.Status.State, Cause: e.Status.Cause, Since: e.Status.Since,
		Rule: e.Status.Rule}
	if !ok || c == fault.ComponentNode {
		return x, ok
	}
	for _, cs := range e.Status.Components {
		if cs.Component == c {
			x.State, x.Cause, x.Since, x.Rule, x.Evidence = cs.State, cs.Cause, cs.Since, cs.Rule, cs.Evidence
			return x, true
		}
	}
	return x, false
}

// Group returns a current group fault.
func (m Map) Group(id string) (awareness.GroupStatus, bool) {
	for _, g := range m.Groups {
		if g.ID == id {
			return g, true
		}
	}
	return awareness.GroupStatus{}, false
}

// Find returns a node.
func (m Map) Find(id fault.NodeID) (Entry, bool) {
	rank, ok := m.Rank(id)
	if !ok {
		return Entry{}, false
	}
	return m.At(rank), true
}

// Components returns the components of the node of a rank with their states, by component. It is far cheaper than At.
func (m Map) Components(rank int) iter.Seq2[fault.Component, fault.State] {
	return func(yield func(fault.Component, fault.State) bool) {
		p := m.packed(rank)
		for i := range p.components[:] {
			if s := p.components[i].state; s != 0 && !yield(fault.Component(i), s) {
				return
			}
		}
	}
}

// Faulty returns the components of the node of a rank that are SICK or FAILED, in the same order.
func (m Map) Faulty(rank int) iter.Seq2[fault.Component, fault.State] {
	return func(yield func(fault.Component, fault.State) bool) {
		for c, s := range m.Components(rank) {
			if faulty(s) && !yield(c, s) {
				return
			}
		}
	}
}

// Cause returns the cause of a component's state at the node of a rank.
func (m Map) Cause(rank int, c fault.Component) fault.Cause {
	return m.packed(rank).components[c].cause
}

// NotNormal gives the ranks of the nodes that Counts.NotNormal counts. It reads four words for 256 nodes.
func (m Map) NotNormal() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, c := range m.chunks {
			for w, word := range c.notNormal {
				for ; word != 0; word &= word - 1 {
					if !yield(i*chunkSize + w*64 + bits.TrailingZeros64(word)) {
						return
					}
				}
			}
		}
	}
}

// In gives the ranks of the nodes in a state. It skips chunks without such a node.
func (m Map) In(s fault.State) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, c := range m.chunks {
			if c.counts.Nodes[s] == 0 {
				continue
			}
			for j, p := range c.nodes {
				if p != nil && p.state == s && !yield(i*chunkSize+j) {
					return
				}
			}
		}
	}
}

// Builder makes the successive versions of a map. It is not safe for concurrent use.
type Builder struct {
	now   Map
	own   []bool // whether a chunk is in no Map that was given out
	given bool   // whether the list of the chunks is in one
	rules rules
	above above
}

// NewBuilder begins with all nodes UNKNOWN since the given time.
func NewBuilder(names *Names, since time.Time) *Builder {
	topo := names.Topology()
	placed := topo.Placed()
	n := (len(placed) + chunkSize - 1) / chunkSize
	b := &Builder{
		now: Map{topo: topo, dims: topo.Dims, chunks: make([]*chunk, n)},
		own: make([]bool, n), rules: newRules(), above: newAbove(),
	}
	for i := range b.now.chunks {
		b.now.chunks[i], b.own[i] = new(chunk), true
	}
	if len(placed) < b.now.dims.Places() {
		b.now.places = &places{rank: make(map[grid.Coord]int, len(placed)), border: names.borderIDs()}
		for rank, n := range placed {
			b.now.places.at = append(b.now.places.at, n.Coord)
			b.now.places.rank[n.Coord] = rank
		}
	}
	for rank, n := range placed {
		b.put(rank, Entry{Status: unheard(n.ID, n.Coord, b.now.dims, since)})
	}
	return b
}

// unheard returns a node of unknown state. Whether it has a bus is unknown, so it has none.
func unheard(id fault.NodeID, at grid.Coord, dims grid.Dims, since time.Time) awareness.NodeStatus {
	st := awareness.NodeStatus{ID: id, Coord: at, State: fault.Unknown, Cause: fault.CauseNone, Since: since}
	links := dims.LinksOf(at)
	for c := fault.ComponentHost; c < fault.ComponentBus; c++ {
		if d, link := c.LinkDirection(); !link || slices.Contains(links, d) {
			st.Components = append(st.Components, awareness.ComponentStatus{Component: c, State: fault.Unknown, Cause: fault.CauseNone,
				Since: since})
		}
	}
	return st
}

// Set replaces a node. It reports whether the map has that node at that place.
func (b *Builder) Set(e Entry) bool {
	rank, ok := b.now.Rank(e.Status.ID)
	if !ok || b.now.Coord(rank) != e.Status.Coord {
		return false
	}
	b.put(rank, e)
	return true
}

// Relabel sets another topology for later maps, with the same nodes at the same places. It returns false for any
// other topology.
func (b *Builder) Relabel(topo *topology.Topology) bool {
	if !b.now.topo.SamePlaces(topo) {
		return false
	}
	b.now.topo = topo
	return true
}

// Move returns a builder for the names' topology, in which nodes have other places. Nodes at their former places keep
// their states. All others are UNKNOWN since the given time, like links that a node did not have. It also returns the
// nodes at their former places whose set of links has changed. The builder b must not be used any more.
func (b *Builder) Move(names *Names, since time.Time) (next *Builder, relinked []fault.NodeID) {
	next = NewBuilder(names, since)
	next.rules, next.above = b.rules, b.above
	next.above.changed = true // the index of the nodes
	for rank := range next.now.Len() {
		id, at := next.now.ID(rank), next.now.Coord(rank)
		was, ok := b.now.Rank(id)
		if !ok || b.now.Coord(was) != at {
			continue
		}
		p := b.now.packed(was)
		fresh := next.now.packed(rank)
		for _, d := range grid.Directions() {
			i := fault.Link(d)
			if (p.components[i].state == 0) == (fresh.components[i].state == 0) {
				continue
			}
			if len(relinked) == 0 || relinked[len(relinked)-1] != id {
				other := *p
				p, relinked = &other, append(relinked, id)
			}
			p.components[i] = fresh.components[i]
		}
		next.set(rank, p)
	}
	return next, relinked
}

// Reset makes a node UNKNOWN again.
func (b *Builder) Reset(id fault.NodeID, since time.Time) {
	if rank, ok := b.now.Rank(id); ok {
		b.put(rank, Entry{Status: unheard(id, b.now.Coord(rank), b.now.dims, since)})
	}
}

func (b *Builder) put(rank int, e Entry) {
	b.set(rank, b.pack(e))
}

func (b *Builder) set(rank int, p *packed) {
	i, j := rank/chunkSize, rank%chunkSize
	if b.given {
		b.now.chunks = append([]*chunk(nil), b.now.chunks...)
		b.given = false
	}
	if !b.own[i] {
		c := *b.now.chunks[i]
		b.now.chunks[i], b.own[i] = &c, true
	}
	c := b.now.chunks[i]
	if old := c.nodes[j]; old != nil {
		was := old.counts()
		c.counts.add(&was, -1)
		b.now.counts.add(&was, -1)
	}
	c.nodes[j] = p
	is := p.counts()
	c.mark(j, is.NotNormal > 0)
	c.counts.add(&is, 1)
	b.now.counts.add(&is, 1)
}

// At returns the node of that id as it was set last.
func (b *Builder) At(id fault.NodeID) (Entry, bool) {
	b.now.rules = b.rules.names
	return b.now.Find(id)
}

// Plain returns the node of that id as it was set last, without its components. ok is false if there is no such node, if it is
// not NORMAL, if one of its components is at fault or flapping, or if it has announced a restart.
func (b *Builder) Plain(id fault.NodeID) (e Entry, ok bool) {
	rank, ok := b.now.Rank(id)
	if !ok {
		return Entry{}, false
	}
	p := b.now.packed(rank)
	if p.notNormal() || p.flapping() || p.extra != nil && (p.extra.restart.Half != 0 || p.extra.stop.Reason != 0) {
		return Entry{}, false
	}
	return p.unpack(b.now.Coord(rank), b.rules.names), true
}

// Has reports whether the map has a node of that id.
func (b *Builder) Has(id fault.NodeID) bool {
	_, ok := b.now.Rank(id)
	return ok
}

// State returns the latest state of a node, or UNKNOWN if there is no such node.
func (b *Builder) State(id fault.NodeID) fault.State {
	if rank, ok := b.now.Rank(id); ok {
		return b.now.State(rank)
	}
	return fault.Unknown
}

// Map returns the present map.
func (b *Builder) Map(revision uint64) Map {
	b.given = true
	clear(b.own)
	b.now.rules = b.rules.names
	b.above.into(&b.now)
	m := b.now
	m.Revision = revision
	return m
}
