package orders

import (
	"maps"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// mappingTiming configures a mappingMachine.
type mappingTiming struct {
	After  time.Duration // time a node must be unknown before it is mapped
	Again  time.Duration // between two orders to a mapper with incomplete findings
	GiveUp time.Duration // from a mapper's first order until it is given up; a run takes up to 10 s
	Least  time.Duration // from the end of one mapping to the next
	Most   time.Duration // the same, without new findings: it doubles each time
	AtOnce int           // mappers that work at the same time
	Orders int           // orders of one mapping, their repeats not counted
}

// defaultMapping waits until awareness has resolved short gaps.
func defaultMapping() mappingTiming {
	return mappingTiming{
		After: 5 * time.Second, Again: 3 * time.Second, GiveUp: 20 * time.Second, Least: 30 * time.Second,
		Most: 10 * time.Minute, AtOnce: 4, Orders: 64,
	}
}

// mappingOrder is an order to a mapper, ready to send.
type mappingOrder struct {
	Number *lofamov1.OrderNumber
	Mapper grid.Coord
	Region []uint32     // ranks, ascending
	Via    []grid.Coord // through these as well: by them the mapper was found
	Try    int          // from 1
}

// mappingFound is a mapper's finding on a node.
type mappingFound struct {
	Node, By  fault.NodeID // the node, and the mapper
	At        time.Time    // time of the finding
	DNP, Host chanmask.Knowledge
	Good, Bad uint8         // its links, bit 0 X+ to bit 5 Z-; of an unreached node: as its neighbours report
	RoundTrip time.Duration // the fastest; 0: none
}

// mappingMachine is the leader's side of mapping by delegation (seed 003 §5.2.3.2, Figure 18). It decides which nodes
// the leader asks to map the regions for which it has no evidence of its own, and collects their findings.
//
//	idle ──a node has been unknown for After──► mapping ──no mapper is left, or the limit of Orders is reached──► idle
//	  ▲                                                                                                             │
//	  └──after Least, doubled up to Most without new findings; at once for other unknown nodes──────────────────────┘
//
// Each region goes to a living node that borders on it. The nodes that this mapper reaches may be the mappers of the
// next step: an order goes to such a node directly, and through the mapper that found it. Findings are no evidence: a
// node keeps its state in the map, and the map shows the mapper's finding beside it. A link that was found dead counts
// as dead if there is no other evidence, so that masks fit the actual torus. A link counts as alive only if two
// successive maps agree on that (§6.1).
//
// It serves one term of leadership. It is not safe for concurrent use.
type mappingMachine struct {
	cfg   mappingTiming
	term  uint64
	count uint64

	evidence  *chanmask.Map     // nil: none yet
	occupants []fault.NodeID    // of the evidence, by rank
	since     map[int]time.Time // by rank: since when a node is unknown

	run    *mappingRun // nil: idle
	next   time.Time
	wait   time.Duration
	mapped map[int]bool // nodes that the last mapping was of
	found  map[int]mappingFound
	last   *chanmask.Map // result of the last mapping
	alive  *chanmask.Map // intersection of the last two mappings
	made   uint64
}

// mappingRun is one mapping.
type mappingRun struct {
	found   *chanmask.Map
	nodes   map[int]mappingFound
	of      map[int]bool
	left    map[int]bool                       // places whose node has been replaced: findings about them are of the former node
	asked   map[grid.Coord]map[grid.Coord]bool // by mapper: regions ordered
	root    map[grid.Coord]grid.Coord          // by found node: the known node where its mapping began
	pending map[uint64]*pendingMapping         // by count
	orders  int
}

// pendingMapping is an order that has not been answered.
type pendingMapping struct {
	order mappingOrder
	parts []*lofamov1.MapFindings
	first time.Time
	timer order.Timer
}

// newMappingMachine returns a machine for a term, without any knowledge.
func newMappingMachine(cfg mappingTiming, term uint64) *mappingMachine {
	return &mappingMachine{cfg: cfg, term: term, since: make(map[int]time.Time), wait: cfg.Least, found: make(map[int]mappingFound)}
}

// Evidence sets the supervisors' own evidence on the torus, and the nodes that it is about, by rank. The machine keeps both.
func (m *mappingMachine) Evidence(now time.Time, is *chanmask.Map, occupants []fault.NodeID) {
	if m.evidence != nil && m.evidence.Dims != is.Dims {
		fresh := newMappingMachine(m.cfg, m.term)
		fresh.count, fresh.made = m.count, m.made // two orders of a term never have the same number
		*m = *fresh
	}
	for rank, former := range m.occupants {
		if former != occupants[rank] {
			m.vacate(rank)
		}
	}
	m.evidence, m.occupants = is, occupants
	for rank := range is.Dims.Places() {
		switch _, known := m.since[rank]; {
		case is.Node(is.Dims.At(rank)) != chanmask.Unknown:
			delete(m.since, rank)
			delete(m.found, rank)
			delete(m.mapped, rank) // the finding is deleted: if it becomes unknown again, it counts as new
		case !known:
			m.since[rank] = now
		}
	}
}

// vacate forgets the earlier node of a place: all findings about that node and its links, and the orders to that node.
func (m *mappingMachine) vacate(rank int) {
	delete(m.since, rank)
	delete(m.found, rank)
	delete(m.mapped, rank)
	at := m.evidence.Dims.At(rank)
	for _, mapped := range []*chanmask.Map{m.last, m.alive} {
		if mapped != nil {
			clearPlace(mapped, at)
		}
	}
	r := m.run
	if r == nil {
		return
	}
	r.left[rank] = true
	clearPlace(r.found, at)
	delete(r.nodes, rank)
	delete(r.of, rank)
	delete(r.root, at)
	delete(r.asked, at)
	maps.DeleteFunc(r.pending, func(_ uint64, p *pendingMapping) bool { return p.order.Mapper == at })
}

// clearPlace makes a place and its links unknown.
func clearPlace(m *chanmask.Map, at grid.Coord) {
	m.SetNode(at, chanmask.Unknown)
	for _, d := range m.Dims.LinksOf(at) {
		if l, ok := chanmask.LinkAt(m.Dims, at, d); ok {
			m.SetLink(l, chanmask.Unknown)
		}
	}
}

// Nothing says that no node is unknown. It has the effect of Evidence, at no cost.
func (m *mappingMachine) Nothing() {
	m.evidence, m.occupants, m.run, m.last, m.alive = nil, nil, nil, nil, nil
	clear(m.since)
	clear(m.found)
	clear(m.mapped)
}

// Tick returns the orders that are due.
func (m *mappingMachine) Tick(now time.Time) (out []mappingOrder) {
	if m.evidence == nil || m.run == nil && !m.begin(now) {
		return nil
	}
	r := m.run
	for _, count := range slices.Sorted(maps.Keys(r.pending)) {
		p := r.pending[count]
		switch {
		case now.Sub(p.first) >= m.cfg.GiveUp:
			m.take(now, p)
		case p.timer.Due(now, m.retry()):
			p.order.Try = p.timer.Try
			out = append(out, p.order)
		}
	}
	out = append(out, m.plan(now)...)
	if len(r.pending) == 0 {
		m.end(now)
	}
	return out
}

// begin begins a mapping, if there are nodes to map and the time has come.
func (m *mappingMachine) begin(now time.Time) bool {
	due, other := false, false
	for rank, since := range m.since {
		if now.Sub(since) >= m.cfg.After {
			due, other = true, other || !m.mapped[rank]
		}
	}
	if !due || now.Before(m.next) && !other {
		return false
	}
	m.run = &mappingRun{
		found: chanmask.NewMap(m.evidence.Dims), nodes: make(map[int]mappingFound), of: make(map[int]bool), left: make(map[int]bool),
		asked: make(map[grid.Coord]map[grid.Coord]bool),
		root:  make(map[grid.Coord]grid.Coord), pending: make(map[uint64]*pendingMapping),
	}
	for rank := range m.since {
		m.run.of[rank] = true
	}
	return true
}

func (m *mappingMachine) retry() order.Retry { return order.Retry{First: m.cfg.Again} }

// plan orders regions that have not been ordered yet, while there is room.
func (m *mappingMachine) plan(now time.Time) (out []mappingOrder) {
	r := m.run
	known := chanmask.Extend(m.evidence, r.found)
	busy := make(map[grid.Coord]bool)
	under := make(map[grid.Coord]bool)
	for _, p := range r.pending {
		busy[p.order.Mapper] = true
		for _, rank := range p.order.Region {
			under[known.Dims.At(int(rank))] = true
		}
	}
	for _, d := range known.Plan(servicenet.MaxMapRegion, r.wasAsked) {
		if busy[d.Mapper] || len(r.pending) >= m.cfg.AtOnce || r.orders >= m.cfg.Orders ||
			slices.ContainsFunc(d.Region, func(c grid.Coord) bool { return under[c] }) {
			continue // wait for the mapping in progress
		}
		r.orders++
		m.count++
		p := &pendingMapping{first: now, order: mappingOrder{Number: &lofamov1.OrderNumber{Term: m.term, Count: m.count},
			Mapper: d.Mapper, Try: 1}}
		p.timer.Due(now, m.retry()) // sent now
		if r.asked[d.Mapper] == nil {
			r.asked[d.Mapper] = make(map[grid.Coord]bool)
		}
		for _, c := range d.Region {
			r.asked[d.Mapper][c] = true
			p.order.Region = append(p.order.Region, uint32(known.Dims.Rank(c)))
		}
		if root, ok := r.root[d.Mapper]; ok {
			p.order.Via = append(p.order.Via, root)
		}
		busy[d.Mapper] = true
		r.pending[m.count] = p
		out = append(out, p.order)
	}
	return out
}

// wasAsked reports whether the mapper already had orders for the whole region.
func (r *mappingRun) wasAsked(d chanmask.Delegation) bool {
	return !slices.ContainsFunc(d.Region, func(c grid.Coord) bool { return !r.asked[d.Mapper][c] })
}

// Findings processes the answer of a node's DNP half to an order.
func (m *mappingMachine) Findings(now time.Time, from grid.Coord, f *lofamov1.MapFindings) {
	if m.run == nil || m.evidence == nil || f.GetNumber().GetTerm() != m.term {
		return
	}
	p := m.run.pending[f.GetNumber().GetCount()]
	if p == nil || p.order.Mapper != from {
		return
	}
	if p.parts == nil {
		p.parts = make([]*lofamov1.MapFindings, f.GetParts())
	}
	if int(f.GetParts()) != len(p.parts) {
		return
	}
	p.parts[f.GetPart()] = f
	if f.GetError() != "" || !slices.Contains(p.parts, nil) {
		m.take(now, p)
	}
}

// take processes a mapper's complete or partial findings, and closes its order.
func (m *mappingMachine) take(now time.Time, p *pendingMapping) {
	r, dims := m.run, m.evidence.Dims
	delete(r.pending, p.order.Number.GetCount())
	root := p.order.Mapper
	if of, ok := r.root[root]; ok {
		root = of
	}
	for _, part := range p.parts {
		for _, n := range part.GetNodes() {
			if _, asked := slices.BinarySearch(p.order.Region, n.GetRank()); !asked || r.left[int(n.GetRank())] {
				continue
			}
			at := dims.At(int(n.GetRank()))
			f := mappingFound{
				Node: m.occupants[n.GetRank()], By: m.occupants[dims.Rank(p.order.Mapper)], At: now,
				DNP: knowledgeOf(n.GetDnp()), Host: knowledgeOf(n.GetHost()),
				Good: uint8(n.GetLinksGood()), Bad: uint8(n.GetLinksBad()),
				RoundTrip: time.Duration(n.GetRoundTripUs()) * time.Microsecond,
			}
			if was, ok := r.nodes[int(n.GetRank())]; !ok || was.DNP != chanmask.Good {
				r.nodes[int(n.GetRank())] = f
			}
			if f.DNP == chanmask.Good {
				r.found.SetNode(at, chanmask.Good)
				r.root[at] = root
			}
			r.links(at, f)
		}
	}
}

// links processes findings on a node's links: a link is dead if any mapper found it dead. It skips links to a place whose node has
// been replaced.
func (r *mappingRun) links(at grid.Coord, f mappingFound) {
	for _, d := range r.found.Dims.Links() {
		l, ok := chanmask.LinkAt(r.found.Dims, at, d)
		peer, _ := r.found.Dims.Neighbour(at, d)
		switch bit := uint8(1) << d.Index(); {
		case !ok || r.left[r.found.Dims.Rank(peer)]:
		case f.Bad&bit != 0:
			r.found.SetLink(l, chanmask.Bad)
		case f.Good&bit != 0 && r.found.Link(l) == chanmask.Unknown:
			r.found.SetLink(l, chanmask.Good)
		}
	}
}

func knowledgeOf(k lofamov1.MapKnowledge) chanmask.Knowledge {
	switch k {
	case lofamov1.MapKnowledge_MAP_GOOD:
		return chanmask.Good
	case lofamov1.MapKnowledge_MAP_BAD:
		return chanmask.Bad
	default:
		return chanmask.Unknown
	}
}

// end ends a mapping. The fewer news it brought, the later the next mapping of the same nodes.
func (m *mappingMachine) end(now time.Time) {
	r := m.run
	m.run, m.mapped = nil, r.of
	m.made++
	was := m.found
	m.found = make(map[int]mappingFound)
	news := false
	for rank, f := range r.nodes {
		if _, unknown := m.since[rank]; !unknown {
			continue
		}
		m.found[rank] = f
		if w, ok := was[rank]; !ok || w.DNP != f.DNP || w.Host != f.Host {
			news = true
		}
	}
	m.alive = r.found
	if m.last != nil {
		m.alive = chanmask.Merge(m.last, r.found)
	}
	m.last = r.found
	if news {
		m.wait = m.cfg.Least
	} else {
		m.wait = min(2*m.wait, m.cfg.Most)
	}
	m.next = now.Add(m.wait)
}

// Found returns the findings on unknown nodes, by rank. The caller owns the map.
func (m *mappingMachine) Found() map[int]mappingFound { return maps.Clone(m.found) }

// Dead returns the links that were found dead, and for which the supervisors have no evidence of their own.
func (m *mappingMachine) Dead() (out []chanmask.Link) {
	if m.alive == nil || m.evidence == nil {
		return nil
	}
	dims := m.evidence.Dims
	for rank := range dims.Places() {
		for _, d := range dims.Links() {
			if l := (chanmask.Link{Node: dims.At(rank), Dir: d}); d.Positive() && m.alive.Link(l) == chanmask.Bad &&
				m.evidence.Link(l) == chanmask.Unknown {
				out = append(out, l)
			}
		}
	}
	return out
}

// Made returns the number of finished mappings.
func (m *mappingMachine) Made() uint64 { return m.made }

// Mapping reports whether a mapping is in progress.
func (m *mappingMachine) Mapping() bool { return m.run != nil }
