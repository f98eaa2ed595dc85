package awareness

import (
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// missed reports whether all of a node's statements have expired, and this leader has listened long enough without losing
// messages.
func (m *Machine) missed(n *node, now time.Time) bool {
	return !m.current(n, fault.HalfHost, now) && !m.current(n, fault.HalfDNP, now) && !now.Before(m.listened()) &&
		!now.Before(m.lossesEnd())
}

// cut reports whether the link is out of use according to the map: the link itself has FAILED at either end.
func (n *node) cut(c fault.Component) bool {
	p := &n.components[c]
	return p.state == fault.Failed && p.cause == fault.CauseLink
}

// joined reports whether a working link joins the node and its neighbour.
func joined(n *node, nb neighbour) bool {
	for _, d := range nb.links() {
		if !nb.node.cut(fault.Link(d)) && !n.cut(fault.Link(d.Opposite())) {
			return true
		}
	}
	return false
}

// partitions returns the parts of the torus without any live path to them: connected components of the remaining torus
// (nodes that are not dead, links that are not FAILED) without a node that reports. Only nodes that once reported are
// members: a node that never booted is not missing.
//
// The walk visits unheard nodes only, so it costs nothing while all nodes report.
func (m *Machine) partitions(marked []*node, now time.Time) [][]*node {
	var out [][]*node
	seen := map[*node]bool{}
	for _, n := range marked {
		if n.marks&markUnheard == 0 || seen[n] {
			continue
		}
		set, heard := []*node{n}, false
		seen[n] = true
		for i := 0; i < len(set); i++ {
			for _, nb := range set[i].neighbours {
				p := nb.node
				switch {
				case seen[p] || p.dead.on || p.inferred || p.revoked || p.stopped || !joined(set[i], nb):
				case !m.missed(p, now):
					heard = true
				default:
					seen[p] = true
					set = append(set, p)
				}
			}
		}
		if set = slices.DeleteFunc(set, func(p *node) bool {
			return p.foreign || p.voices[0].epoch == 0 &&
				p.voices[1].epoch == 0
		}); !heard && len(set) > 0 {
			slices.SortFunc(set, func(a, b *node) int { return a.rank - b.rank })
			out = append(out, set)
		}
	}
	return out
}

// strand marks exactly the nodes of the partitions as unreachable.
func (m *Machine) strand(parts [][]*node) {
	now := map[int]*node{}
	for _, set := range parts {
		for _, n := range set {
			now[n.rank] = n
		}
	}
	for rank, n := range m.common.stranded {
		if now[rank] == nil {
			n.unreachable = false
			m.touch(n)
		}
	}
	for rank, n := range now {
		if m.common.stranded[rank] == nil {
			n.unreachable = true
			m.touch(n)
		}
	}
	m.common.stranded = now
}

// restoreStranded records a node that was unreachable in the last committed map.
func (m *Machine) restoreStranded(n *node) {
	if m.common.stranded == nil {
		m.common.stranded = map[int]*node{}
	}
	m.common.stranded[n.rank] = n
}

// cutOff reports whether this supervisor receives nothing at all: then the other nodes are not the unreachable ones.
func (m *Machine) cutOff(now time.Time) bool {
	return m.heard.IsZero() || now.Sub(m.heard) >= m.window()
}
