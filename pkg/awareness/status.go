package awareness

import (
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Nodes returns the whole map by rank.
func (m *Machine) Nodes() []NodeStatus {
	out := make([]NodeStatus, 0, len(m.own))
	for _, n := range m.own {
		out = append(out, m.status(n, false))
	}
	return out
}

// Len returns the number of nodes in the map.
func (m *Machine) Len() int { return len(m.own) }

// NodeAt returns the i-th node of the map, 0 to Len()-1, in the order of rank, so that callers can read the map in
// pieces.
func (m *Machine) NodeAt(i int) NodeStatus { return m.status(m.own[i], false) }

// Node returns one node.
func (m *Machine) Node(id fault.NodeID) (NodeStatus, bool) {
	rank, ok := m.ranks[id]
	if !ok || m.nodes[rank].foreign {
		return NodeStatus{}, false
	}
	return m.status(m.nodes[rank], false), true
}

// NodeToCommit returns the status like Node, but without evidence that a NORMAL component is NORMAL, because no record stores it. In a
// healthy node this is all evidence, and collecting it costs more than the rest of the status.
func (m *Machine) NodeToCommit(id fault.NodeID) (NodeStatus, bool) {
	rank, ok := m.ranks[id]
	if !ok || m.nodes[rank].foreign {
		return NodeStatus{}, false
	}
	return m.status(m.nodes[rank], true), true
}

// Life returns the time of a node's newest report; zero: none, or no such node in the map.
func (m *Machine) Life(id fault.NodeID) time.Time {
	rank, ok := m.ranks[id]
	if !ok || m.nodes[rank].foreign {
		return time.Time{}
	}
	return m.nodes[rank].heard(0)
}

// Links returns every link end by rank and direction.
func (m *Machine) Links() []LinkStatus {
	var out []LinkStatus
	for _, n := range m.own {
		m.look()
		for _, d := range n.ends.list() {
			c := fault.Link(d)
			at, _ := m.cfg.Dims.Neighbour(n.coord, d)
			s := &n.components[c]
			l := LinkStatus{
				Node: n.id, Coord: n.coord, Direction: d, PeerCoord: at,
				State: s.state, Cause: s.cause, Since: m.clock.time(s.since), Rule: s.rule.String(), Flapping: s.flapping,
				Evidence: m.evidenceOf(n, c),
			}
			if p := n.peers[d.Index()]; p != nil {
				l.Peer = p.id
			}
			out = append(out, l)
		}
	}
	return out
}

// status returns the node's status. If it is terse, the evidence on NORMAL components leaves out all NORMAL statements.
func (m *Machine) status(n *node, terse bool) NodeStatus {
	m.look()
	self := &n.components[fault.ComponentNode]
	out := NodeStatus{
		ID: n.id, Coord: n.coord, State: self.state, Cause: self.cause, SingleWitness: self.single,
		Inferred: n.inferred, Unreachable: n.unreachable && self.state == fault.Unknown, Groups: m.groupsOf(n),
		Rule: self.rule.String(), Reason: n.reason(fault.ComponentNode),
		Since: m.clock.time(self.since), Life: n.heard(0), HalfLife: [2]time.Time{n.voices[0].heard,
			n.voices[1].heard}, RegistersAt: m.clock.time(n.registersAt),
		HostEpoch: n.voices[0].epoch, DNPEpoch: n.voices[1].epoch,
		Platform: n.platform(), Restart: m.awaited(n, m.now), Stop: m.isStopped(n), LinksSettle: m.linksSettle(n),
		Wiring: m.wiring(n),
	}
	if n.speaker != 0 {
		out.Registers = n.voice(n.speaker).registers
	}
	out.Components = make([]ComponentStatus, 0, fault.NumComponents)
	for c := fault.ComponentHost; c.Valid(); c++ {
		if n.has(c) {
			p := &n.components[c]
			s := ComponentStatus{
				Component: c, State: p.state, Cause: p.cause, Since: m.clock.time(p.since), Rule: p.rule.String(), Reason: n.reason(c),
				Flapping: p.flapping,
			}
			if terse && p.state == fault.Normal {
				s.Evidence = m.contradicting(n, c)
			} else {
				s.Evidence = m.evidenceOf(n, c)
			}
			out.Components = append(out.Components, s)
		}
	}
	return out
}

// reason returns the rule behind a state other than NORMAL in words; empty if it was not kept.
func (n *node) reason(c fault.Component) string {
	s := n.story(c)
	if s == nil || s.why == nil || n.components[c].state == fault.Normal {
		return ""
	}
	if s.why.detail != "" {
		return s.why.rule + " (" + s.why.detail + ")"
	}
	return s.why.rule
}

// evidenceOf gathers every statement that bears on the component, newest first.
func (m *Machine) evidenceOf(n *node, c fault.Component) []EvidenceStatus {
	var out []EvidenceStatus
	m.statements(n, c, m.record, func(r *record, by fault.Origin) {
		out = append(out, r.evidence(by))
	})
	out = append(out, m.ownEvidence(n, c)...)
	if len(out) == 0 {
		if s := n.story(c); s != nil {
			return slices.Clone(s.evidence)
		}
		return nil
	}
	sortEvidence(out)
	return out
}

// contradicting is evidenceOf for a NORMAL component, without the NORMAL statements.
func (m *Machine) contradicting(n *node, c fault.Component) []EvidenceStatus {
	var out []EvidenceStatus
	m.statements(n, c, (*voice).other, func(r *record, by fault.Origin) {
		if r.state != fault.Normal {
			out = append(out, r.evidence(by))
		}
	})
	for _, e := range m.ownEvidence(n, c) {
		if e.State != fault.Normal {
			out = append(out, e)
		}
	}
	sortEvidence(out)
	return out
}

func (r *record) evidence(by fault.Origin) EvidenceStatus {
	return EvidenceStatus{Kind: r.kind, Observer: by.String(), Path: r.path, At: r.began, State: r.state, Detail: r.detail}
}

func sortEvidence(list []EvidenceStatus) {
	slices.SortStableFunc(list, func(a, b EvidenceStatus) int {
		if d := b.At.Compare(a.At); d != 0 {
			return d
		}
		return strings.Compare(a.Observer, b.Observer)
	})
}

// statements calls add with every statement that bears on the component. find returns a half's statement, nil if it has
// none.
func (m *Machine) statements(n *node, c fault.Component, find func(*voice, slot) *record, add func(*record, fault.Origin)) {
	both := func(of *node, s slot) {
		for _, h := range halves {
			if r := find(of.voice(h), s); r != nil {
				add(r, of.origin(h))
			}
		}
	}
	both(n, ownSlot(c))
	if k, ok := describedIndex(c); ok {
		for _, nb := range n.neighbours {
			both(nb.node, aboutSlot(int(nb.index), k))
		}
	}
	if d, ok := c.LinkDirection(); ok && n.peers[d.Index()] != nil {
		both(n.peers[d.Index()], ownSlot(fault.Link(d.Opposite())))
	}
	if c != fault.ComponentDNP && (c != fault.ComponentHost || !n.dead.on) {
		return
	}
	for _, nb := range n.neighbours {
		for _, d := range nb.links() {
			for _, h := range halves {
				if r := find(nb.node.voice(h), ownSlot(fault.Link(d))); r.silent() {
					add(r, nb.node.origin(h))
				}
			}
		}
	}
}

// ownEvidence returns the supervisor's own evidence: challenges, verdicts, missing digests.
func (m *Machine) ownEvidence(n *node, c fault.Component) []EvidenceStatus {
	var out []EvidenceStatus
	add := func(k fault.Kind, at time.Time, s fault.State, detail string) {
		out = append(out, EvidenceStatus{Kind: k, Observer: m.observer(fault.Origin{}), At: at, State: s,
			Detail: fault.Cut(detail, fault.MaxDetail)})
	}
	for _, h := range halves {
		if c != h.Component() {
			continue
		}
		if f := n.failure(h); f.on {
			kind := fault.KindChallenge
			if n.dead.on {
				kind, f = fault.KindVotes, &n.dead
			}
			add(kind, m.fell(n, c, f.at), fault.Failed, f.rule)
		}
		for _, k := range [...]fault.Half{0, h} {
			r := &n.rounds[k]
			switch {
			case !r.open:
			case n.proven(h, r.since):
				add(fault.KindChallenge, r.start, fault.Normal, "answered")
			default:
				add(fault.KindChallenge, r.start, fault.Unknown, "not answered yet")
			}
		}
	}
	if n.components[c].state == fault.Unknown {
		if f := m.why(n, c); f.kind == fault.KindDigest && !f.began.IsZero() {
			add(fault.KindDigest, f.began, fault.Unknown, f.rule)
		}
	}
	return out
}
