package awareness

import (
	"maps"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Revoked holds all nodes with revoked certificates, with the times of the revocations. From then on a node is UNKNOWN
// by rule "revoked": it is no witness, accusations against it do not count, and its links explain nothing, because its
// neighbours reject its messages. A node that reports under a newer certificate is judged again.
type Revoked struct {
	Nodes map[fault.NodeID]time.Time
}

func (Revoked) event() {}

// revocation is a machine's record of a node with revoked certificates.
type revocation struct {
	at time.Time
	// deaf is the time until which the machine ignores the node: its reports from before the revocation may still be in
	// queues.
	deaf time.Time
	// old marks a revocation from before this leader's term. The map stays as committed until the node has had time to
	// report.
	old bool
}

// revokedNodes applies the whole list.
func (m *Machine) revokedNodes(ev Revoked, now time.Time) {
	for _, id := range slices.Sorted(maps.Keys(ev.Nodes)) {
		rank, ok := m.ranks[id]
		if !ok || m.nodes[rank].foreign {
			continue
		}
		n, at := m.nodes[rank], ev.Nodes[id]
		if r, known := m.revocations[n]; known && r.at.Equal(at) {
			continue // even if the node has reported since
		}
		if m.revocations == nil {
			m.revocations = make(map[*node]revocation)
		}
		r := revocation{at: at, deaf: now.Add(m.window()), old: at.Before(m.started)}
		if r.old {
			r.deaf = now
		}
		m.revocations[n] = r
		if r.old && m.judgedSince(n, at) {
			continue
		}
		m.silence(n)
	}
	for n := range m.revocations {
		if _, still := ev.Nodes[n.id]; !still {
			delete(m.revocations, n)
			m.restoreTrust(n, now)
		}
	}
}

// judgedSince reports whether an earlier leader has judged the node after a revocation, under a newer certificate: its state in the
// map as committed is clearly newer than the revocation, and has another rule. The two times are of different clocks.
func (m *Machine) judgedSince(n *node, revoked time.Time) bool {
	p := &n.components[fault.ComponentNode]
	return p.restored && p.rule != ruleRevoked && m.clock.time(p.since).After(revoked.Add(m.window()))
}

// silence forgets a node's statements and the accusations against it.
func (m *Machine) silence(n *node) {
	n.revoked, n.inferred, n.unreachable = true, false, false
	for i, h := range halves {
		n.voices[i] = voice{half: h, epoch: n.voices[i].epoch, floor: n.voices[i].floor}
	}
	n.suspicion, n.trends, n.readings = &m.calm, nil, nil
	m.touchAround(n)
}

// restoreTrust ends a node's revocation. Its links are then found again one by one.
func (m *Machine) restoreTrust(n *node, now time.Time) {
	if !n.revoked {
		return
	}
	n.revoked = false
	t := m.suspicionOf(n)
	t.backAt = [2]time.Time{now, now}
	if m.regained == nil {
		m.regained = make(map[*node]time.Time)
	}
	m.regained[n] = now
	m.touchAround(n)
}

func (m *Machine) touchAround(n *node) {
	m.touch(n)
	for _, nb := range n.neighbours {
		m.touch(nb.node)
	}
}

// relinking returns the time until which silence on a link proves nothing, because one end has only just regained the
// other's trust; zero if never.
func (m *Machine) relinking(n, p *node, now time.Time) (until time.Time) {
	for _, end := range [...]*node{n, p} {
		if at, ok := m.regained[end]; ok {
			t := at.Add(2 * m.relinks()) // each half loads its new keys at its own time
			if !t.After(now) {
				delete(m.regained, end)
			}
			until = fault.Later(until, t)
		}
	}
	return until
}

// refuses reports whether the machine ignores a node's report. A report verified after the revocation belongs to a
// newer certificate, and ends it.
func (m *Machine) refuses(n *node, now time.Time) bool {
	if !n.revoked {
		return false
	}
	if r := m.revocations[n]; now.Before(r.deaf) {
		return true
	}
	m.restoreTrust(n, now)
	return false
}

// distrusted returns the finding for every component of a node with revoked certificates.
func (m *Machine) distrusted(n *node) finding {
	return finding{
		state: fault.Unknown, cause: fault.CauseNone, kind: fault.KindDigest, name: ruleRevoked,
		rule: "its certificates are revoked: all others ignore it, and its silence is no fault", blank: m.revocations[n].old,
	}
}

// distrustedPeer returns the finding for a link to such a node.
func (m *Machine) distrustedPeer(p *node) finding {
	return finding{
		state: fault.Unknown, cause: fault.CauseNone, kind: fault.KindDigest, name: ruleRevoked,
		rule:  "the certificates of " + string(p.id) + " are revoked",
		blank: m.revocations[p].old,
	}
}
