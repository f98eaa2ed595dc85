package awareness

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// ForeignVerdict is another region's verdict on one of its nodes that borders on ours: which halves are FAILED. This
// machine does not judge it again, and uses it to explain silent links to the node. It is valid for as long as a half's
// report; its region restates it in time.
type ForeignVerdict struct {
	Node      fault.NodeID
	Host, DNP bool // FAILED
}

func (ForeignVerdict) event() {}

// foreignVerdict accepts another region's verdict on a node of that region.
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

// becomeForeign replaces a foreign node's verdicts; it is their only writer.
func (m *Machine) becomeForeign(n *node, v ForeignVerdict, now time.Time) {
	t := m.suspicionOf(n)
	for i, on := range [...]bool{v.Host, v.DNP} {
		was := t.failed[i].on
		switch {
		case on:
			t.failed[i] = verdict{on: true, at: now, mark: m.mark(now), finding: finding{
				state: fault.Failed, cause: halves[i].Component().Cause(), name: ruleNodeDead, rule: "its own region says so",
			}}
		case was:
			t.failed[i] = verdict{}
			t.backAt[i] = now // its links come back one by one
		}
	}
	t.dead = verdict{}
	if v.Host && v.DNP {
		t.dead = t.failed[0]
		t.dead.cause = fault.CauseNode
	}
}

// settleForeign forgets a verdict that its region has not restated.
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
