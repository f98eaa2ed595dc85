package awareness

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Explanation says in words why a component has its state, and what would change it.
type Explanation struct {
	Node      fault.NodeID
	Component fault.Component
	State     fault.State
	Cause     fault.Cause
	Since     time.Time
	Rule      string           // its short name, as in docs/awareness.md
	Summary   string           // one sentence
	Because   []string         // what was taken into account, the weightiest first, and what was not and why
	Until     []string         // what would have to come for the state to change
	Evidence  []EvidenceStatus // newest first
}

// Explain explains one component of a node, or with fault.ComponentNode the node; false when the
// torus has no such node, or the node no such component.
func (m *Machine) Explain(id fault.NodeID, c fault.Component) (Explanation, bool) {
	rank, ok := m.ranks[id]
	if !ok || !c.Valid() || !m.nodes[rank].has(c) {
		return Explanation{}, false
	}
	n := m.nodes[rank]
	p := &n.components[c]
	return Explanation{
		Node: id, Component: c, State: p.state, Cause: p.cause, Since: m.clock.time(p.since),
		Rule: p.rule.String(), Summary: m.why(n, c).rule, Evidence: m.evidenceOf(n, c),
	}, true
}
