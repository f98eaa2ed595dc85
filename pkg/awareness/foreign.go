package awareness

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// ForeignVerdict is what another region has found of a node of its own that borders on ours: which halves are FAILED.
// It is not judged again, and explains why links to the node are silent. It counts for as long as the word of a half
// does; its region says it again in time.
type ForeignVerdict struct {
	Node      fault.NodeID
	Host, DNP bool // FAILED
}

func (ForeignVerdict) event() {}

// foreignVerdict takes another region's word for a node that is that region's.
func (m *Machine) foreignVerdict(v ForeignVerdict, now time.Time) {
	rank, ok := m.ranks[v.Node]
	if !ok || !m.nodes[rank].foreign {
		return
	}
	n := m.nodes[rank]
	if !v.Host && !v.DNP && !n.failed[0].on && !n.failed[1].on {
		return
	}
	m.becomeForeign(n, v, now)
	m.touch(n)
}

// becomeForeign puts a foreign node's verdicts in place of those before; it alone does so.
func (m *Machine) becomeForeign(n *node, v ForeignVerdict, now time.Time) {
	t := m.try(n)
	for i, on := range [...]bool{v.Host, v.DNP} {
		was := t.failed[i].on
		switch {
		case on:
			t.failed[i] = verdict{on: true, at: now, mark: m.mark(now), finding: finding{
				state: fault.Failed, cause: halfComponent(halves[i]).Cause(), name: ruleNodeDead, rule: "its own region says so",
			}}
		case was:
			t.failed[i] = verdict{}
			t.backAt[i] = now // its links are found again by and by
		}
	}
	t.dead = verdict{}
	if v.Host && v.DNP {
		t.dead = t.failed[0]
		t.dead.cause = fault.CauseNode
	}
}

// settleForeign forgets a verdict that its region has not said again.
func (m *Machine) settleForeign(n *node, now time.Time) {
	for i := range n.failed {
		if !n.failed[i].on {
			continue
		}
		if end := n.failed[i].at.Add(m.window()); end.After(now) {
			n.wakeAt(end, now)
		} else {
			m.becomeForeign(n, ForeignVerdict{Node: n.id}, now)
			return
		}
	}
}
