package awareness

import (
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Nodes returns the whole map by rank.
func (m *Machine) Nodes() []NodeStatus {
	out := make([]NodeStatus, 0, len(m.nodes))
	for _, n := range m.nodes {
		out = append(out, m.status(n))
	}
	return out
}

// Len returns the number of nodes in the map.
func (m *Machine) Len() int { return len(m.nodes) }

// NodeAt returns the i-th node of the map, 0 to Len()-1, in the order of rank: for reading it in pieces.
func (m *Machine) NodeAt(i int) NodeStatus { return m.status(m.nodes[i]) }

// Node returns one node.
func (m *Machine) Node(id fault.NodeID) (NodeStatus, bool) {
	rank, ok := m.ranks[id]
	if !ok {
		return NodeStatus{}, false
	}
	return m.status(m.nodes[rank]), true
}

// Links returns every link end by rank and direction.
func (m *Machine) Links() []LinkStatus {
	var out []LinkStatus
	for _, n := range m.nodes {
		for _, d := range m.cfg.Dims.Links() {
			c, p := fault.Link(d), n.peers[d.Index()]
			s := &n.components[c]
			out = append(out, LinkStatus{
				Node: n.id, Coord: n.coord, Direction: d, Peer: p.id, PeerCoord: p.coord,
				State: s.state, Cause: s.cause, Since: s.since, Rule: s.why.name.String(), Flapping: s.flapping, Evidence: m.evidenceOf(n, c),
			})
		}
	}
	return out
}

func (m *Machine) status(n *node) NodeStatus {
	self := &n.components[fault.ComponentNode]
	out := NodeStatus{
		ID: n.id, Coord: n.coord, State: self.state, Cause: self.cause, SingleWitness: self.single, Inferred: n.inferred, Unreachable: n.unreachable && self.state == fault.Unknown, Groups: m.groupsOf(n), Rule: self.why.name.String(), Since: self.since,
		Life: n.heard(0), Registers: n.registers, RegistersAt: n.registersAt,
		HostEpoch: n.voices[0].epoch, DNPEpoch: n.voices[1].epoch,
	}
	for c := fault.ComponentHost; c.Valid(); c++ {
		if n.has(c) {
			p := &n.components[c]
			out.Components = append(out.Components, ComponentStatus{
				Component: c, State: p.state, Cause: p.cause, Since: p.since, Rule: p.why.name.String(), Flapping: p.flapping, Evidence: m.evidenceOf(n, c),
			})
		}
	}
	return out
}

// evidenceOf gathers every statement that bears on the component, newest first.
func (m *Machine) evidenceOf(n *node, c fault.Component) []EvidenceStatus {
	var out []EvidenceStatus
	add := func(r *record, by fault.Origin) {
		if r != nil {
			out = append(out, EvidenceStatus{Kind: r.kind, Observer: by.String(), Path: r.path, At: r.began, State: r.state, Detail: r.detail})
		}
	}
	for _, h := range halves {
		add(n.voice(h).own[c], n.origin(h))
	}
	if k, ok := describedIndex(c); ok {
		for _, nb := range n.neighbours {
			for _, h := range halves {
				add(nb.node.voice(h).about[nb.index][k], nb.node.origin(h))
			}
		}
	}
	if d, ok := c.LinkDirection(); ok {
		for _, h := range halves {
			p := n.peers[d.Index()]
			add(p.voice(h).own[fault.Link(d.Opposite())], p.origin(h))
		}
	}
	if c == fault.ComponentDNP || c == fault.ComponentHost && n.dead.on {
		for _, nb := range n.neighbours {
			for _, d := range nb.back {
				for _, h := range halves {
					if r := nb.node.voice(h).own[fault.Link(d)]; r.silent() {
						add(r, nb.node.origin(h))
					}
				}
			}
		}
	}
	out = append(out, m.ownEvidence(n, c)...)
	if len(out) == 0 {
		return slices.Clone(n.components[c].evidence)
	}
	slices.SortStableFunc(out, func(a, b EvidenceStatus) int {
		if d := b.At.Compare(a.At); d != 0 {
			return d
		}
		return strings.Compare(a.Observer, b.Observer)
	})
	return out
}

// ownEvidence is what the supervisor itself contributes: challenges, verdicts, missing digests.
func (m *Machine) ownEvidence(n *node, c fault.Component) []EvidenceStatus {
	var out []EvidenceStatus
	add := func(k fault.Kind, at time.Time, s fault.State, detail string) {
		if len(detail) > fault.MaxDetail {
			detail = detail[:fault.MaxDetail]
		}
		out = append(out, EvidenceStatus{Kind: k, Observer: m.observer(fault.Origin{}), At: at, State: s, Detail: detail})
	}
	for _, h := range halves {
		if c != halfComponent(h) {
			continue
		}
		if f := n.failure(h); f.on {
			kind := fault.KindChallenge
			if n.dead.on {
				kind, f = fault.KindVotes, &n.dead
			}
			add(kind, f.at, fault.Failed, f.rule)
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
	if p := &n.components[c]; p.state == fault.Unknown && p.why.kind == fault.KindDigest && !p.why.began.IsZero() {
		add(fault.KindDigest, p.why.began, fault.Unknown, p.why.rule)
	}
	return out
}
