package awareness

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// illNode is a node with a fault, or with a part that a fault hides.
type illNode struct {
	id       fault.NodeID
	coord    grid.Coord
	state    fault.State
	cause    fault.Cause
	rule     string
	since    time.Time
	inferred bool
	parts    []illPart // by component
}

// illPart is a faulty component, or an UNKNOWN one that was known before.
type illPart struct {
	component fault.Component
	state     fault.State
	cause     fault.Cause
	rule      string
	since     time.Time
}

func (n *illNode) part(c fault.Component) *illPart {
	if i, ok := slices.BinarySearchFunc(n.parts, c, func(p illPart, c fault.Component) int { return int(p.component) - int(c) }); ok {
		return &n.parts[i]
	}
	return nil
}

func (n *illNode) failed(c fault.Component) bool {
	p := n.part(c)
	return p != nil && p.state == fault.Failed
}

// dead reports whether the whole node is gone, which explains all its parts.
func (n *illNode) dead() bool { return n.state == fault.Failed || n.inferred }

// ports reports whether the map blames the node itself for several bad links. Its cause may be a graver fault beside them.
func (l *Incidents) ports(n *illNode) bool {
	if n.state != fault.Sick || n.cause.Severity() <= fault.CauseLink.Severity() {
		return n.state == fault.Sick && n.cause == fault.CauseLink
	}
	if n.failed(fault.ComponentDNP) {
		return false
	}
	var peers []grid.Coord
	for _, p := range n.parts {
		if d, link := p.component.LinkDirection(); link && p.ofCable() && (p.state == fault.Sick || l.fineBut(n, d)) {
			if to, ok := l.cfg.Dims.Neighbour(n.coord, d); ok && !slices.Contains(peers, to) {
				peers = append(peers, to)
			}
		}
	}
	return len(peers) >= minPorts
}

// fineBut reports whether the node behind a link has no FAILED link to a third node, as badPorts does in the map.
func (l *Incidents) fineBut(n *illNode, d grid.Direction) bool {
	other := l.ill[l.peer(n.coord, d)]
	return other == nil || !slices.ContainsFunc(other.parts, func(p illPart) bool {
		back, link := p.component.LinkDirection()
		return link && p.ofCable() && p.state == fault.Failed && l.peer(other.coord, back) != n.id
	})
}

// hides reports whether a rule leaves a part UNKNOWN because its half or node is dead.
func hides(rule string) bool {
	r := parseRule(rule)
	return r == ruleNodeDead || r == ruleDNPDead || r == ruleHostDead
}

func bad(s fault.State) bool { return s == fault.Sick || s == fault.Failed }

// learn replaces what is known about a node. known reports whether an UNKNOWN component was known before this update; nil:
// none was. A fault that is no longer seen stands until its part is NORMAL, except on a node with revoked certificates,
// and of a link that leads to another node now.
func (l *Incidents) learn(st *NodeStatus, known map[Part]bool) {
	old := l.ill[st.ID]
	var parts []illPart
	for i := range st.Components {
		c := &st.Components[i]
		p := illPart{c.Component, c.State, c.Cause, c.Rule, c.Since}
		switch {
		case st.Rule == RuleRevoked || c.Rule == RuleRevoked || c.Rule == RuleRelinked, c.State == fault.Normal:
			continue
		case c.State == fault.Unknown:
			var was *illPart
			if old != nil {
				was = old.part(c.Component)
			}
			switch {
			case hides(c.Rule) || st.Inferred:
				if was == nil && !known[Part{Node: st.ID, Component: c.Component}] {
					continue
				}
			case was == nil || !bad(was.state):
				continue
			default:
				p = *was // no longer seen, and not well
			}
		}
		parts = append(parts, p)
	}
	if len(parts) == 0 && st.State != fault.Failed && !st.Inferred {
		l.stale = l.stale || old != nil
		delete(l.ill, st.ID)
		return
	}
	slices.SortFunc(parts, func(a, b illPart) int { return int(a.component) - int(b.component) })
	l.stale = true
	l.ill[st.ID] = &illNode{id: st.ID, coord: st.Coord, state: st.State, cause: st.Cause, rule: st.Rule, since: st.Since,
		inferred: st.Inferred, parts: parts}
}

// recall restores a committed fault, or hidden part, of a node whose committed map no longer shows it.
func (l *Incidents) recall(st *NodeStatus, c Consequence) {
	if st == nil || st.Rule == RuleRevoked || c.Component == fault.ComponentNode || !slices.ContainsFunc(st.Components,
		func(s ComponentStatus) bool { return s.Component == c.Component && s.State == fault.Unknown }) {
		return
	}
	n := l.ill[st.ID]
	if n == nil {
		n = &illNode{id: st.ID, coord: st.Coord, state: st.State, cause: st.Cause, rule: st.Rule, since: st.Since}
		l.ill[st.ID] = n
	}
	if n.part(c.Component) == nil {
		n.parts = append(n.parts, illPart{c.Component, c.State, c.Cause, c.Rule, n.since})
		slices.SortFunc(n.parts, func(a, b illPart) int { return int(a.component) - int(b.component) })
	}
}

// cluster is a root cause with all parts that it explains.
type cluster struct {
	root    Part
	coord   grid.Coord
	peer    fault.NodeID
	state   fault.State // of the root; 0: only its consequences are known
	cause   fault.Cause
	rule    string
	since   time.Time
	parts   []Consequence // without the root
	group   *GroupStatus
	into    *cluster // a group fault that explains it
	implied bool     // the map shows no fault of the root itself, only consequences that name it

	claims []*incident
	held   []*cluster // root causes that wait below this one
	behind []*cluster // those that it explained until now
	until  map[Part]time.Time
	why    *IncidentVerdict // of a root cause that waits: when it was last seen to change
}

// folding is one pass over all faults.
type folding struct {
	l        *Incidents
	clusters map[Part]*cluster
	home     map[Part]*cluster
	order    []*cluster
}

// fold returns the root causes of all known faults: the gravest and oldest first.
func (l *Incidents) fold() *folding {
	parts := 0
	for _, n := range l.ill {
		parts += len(n.parts)
	}
	l.parts = parts
	f := &folding{l: l, clusters: make(map[Part]*cluster, len(l.ill)), home: make(map[Part]*cluster, parts)}
	nodes := make([]*illNode, 0, len(l.ill))
	for _, n := range l.ill {
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b *illNode) int { return l.cfg.Dims.Rank(a.coord) - l.cfg.Dims.Rank(b.coord) })
	for _, n := range nodes {
		f.node(n)
	}
	f.groups()
	out := f.order[:0]
	for _, c := range f.order {
		if c.into == nil {
			out = append(out, c)
		}
	}
	f.order = out
	for _, c := range f.order {
		f.complete(c)
	}
	slices.SortStableFunc(f.order, graver)
	return f
}

// graver orders root causes: the gravest first, and of these the oldest.
func graver(a, b *cluster) int {
	if d := int(severity(b.root, b.state)) - int(severity(a.root, a.state)); d != 0 {
		return d
	}
	if d := a.since.Compare(b.since); d != 0 {
		return d
	}
	return comparePart(a.root, b.root)
}

// complete sorts the consequences. A root that only its consequences show gets its state from them: a half whose restart
// only its neighbours have seen so far. A link that only its upper end accuses is named by that end.
func (f *folding) complete(c *cluster) {
	slices.SortStableFunc(c.parts, worseConsequence)
	if c.state != 0 {
		return
	}
	if _, link := c.root.Component.LinkDirection(); link {
		f.l.name(c, Part{Node: c.parts[0].Node, Component: c.parts[0].Component})
		return
	}
	c.coord, c.state, c.rule, c.implied = f.l.coords[c.root.Node], fault.Sick, c.parts[0].Rule, true
}

// name names a cable by another of its ends, if that one has a fault. The former name stays a consequence if it has one too.
func (l *Incidents) name(c *cluster, end Part) {
	i := slices.IndexFunc(c.parts, func(p Consequence) bool { return p.Node == end.Node && p.Component == end.Component })
	d, link := end.Component.LinkDirection()
	if i < 0 || !link || !bad(c.parts[i].State) {
		return
	}
	to := c.parts[i]
	c.parts = slices.Delete(c.parts, i, i+1)
	if c.state != 0 {
		c.parts = append(c.parts, Consequence{c.root.Node, c.root.Component, c.state, c.cause, c.rule})
		slices.SortStableFunc(c.parts, worseConsequence)
	}
	c.root, c.coord, c.state, c.cause, c.rule = end, l.coords[end.Node], to.State, to.Cause, to.Rule
	c.peer = l.peer(c.coord, d)
}

// key returns the same part for both ends of a cable, and for any other part the part itself.
func (l *Incidents) key(p Part) Part {
	at, ok := l.coords[p.Node]
	if d, link := p.Component.LinkDirection(); link && ok {
		return l.cable(p.Node, at, d)
	}
	return p
}

// of returns the root cause that a part is, or that explains it now; nil: none.
func (f *folding) of(p Part) *cluster {
	key := f.l.key(p)
	c := f.clusters[key]
	for _, part := range []Part{key, p} {
		if c == nil || c.into != nil {
			c = cmp.Or(f.home[part], c)
		}
	}
	for c != nil && c.into != nil {
		c = c.into
	}
	return c
}

// worseConsequence orders consequences. Whole nodes come before their parts, so that the stored ones cover as many nodes as
// possible for the next leader.
func worseConsequence(a, b Consequence) int {
	if a.State != b.State {
		return int(b.State) - int(a.State)
	}
	if a.Component != b.Component {
		return int(a.Component) - int(b.Component)
	}
	return strings.Compare(string(a.Node), string(b.Node))
}

// at returns the cluster of a root, new or not.
func (f *folding) at(root Part) *cluster {
	c := f.clusters[root]
	if c == nil {
		c = &cluster{root: root, cause: root.Component.Cause()}
		f.clusters[root] = c
		f.order = append(f.order, c)
	}
	return c
}

// node folds one node.
func (f *folding) node(n *illNode) {
	if n.dead() {
		root := Part{Node: n.id, Component: fault.ComponentNode}
		if n.inferred {
			root = f.enclosing(n)
		}
		c := f.at(root)
		f.addTo(c, root, n, illPart{fault.ComponentNode, n.state, n.cause, n.rule, n.since})
		for _, p := range n.parts {
			f.addTo(c, root, n, p)
		}
		return
	}
	if i := slices.IndexFunc(n.parts, illPart.ofCable); i >= 0 && f.l.ports(n) {
		port := illPart{fault.ComponentNode, n.state, fault.CauseLink, n.parts[i].rule, n.since}
		f.add(Part{Node: n.id, Component: fault.ComponentNode}, n, port)
	}
	for _, p := range n.parts {
		if root, ok := f.rootOf(n, p); ok {
			f.add(root, n, p)
		}
	}
}

// enclosing returns the root for a node that is inferred dead: an accused neighbour, or else itself.
func (f *folding) enclosing(n *illNode) Part {
	for _, d := range f.l.cfg.Dims.Links() {
		if p := f.l.ill[f.l.peer(n.coord, d)]; p != nil && p.state == fault.Failed {
			return Part{Node: p.id, Component: fault.ComponentNode}
		}
	}
	return Part{Node: n.id, Component: fault.ComponentNode}
}

// ofCable reports whether the part is a link with a fault of its own.
func (p illPart) ofCable() bool {
	_, link := p.component.LinkDirection()
	return link && p.cause == fault.CauseLink && bad(p.state)
}

// rootOf returns the root cause of a part of a living node; false: there is none here.
func (f *folding) rootOf(n *illNode, p illPart) (Part, bool) {
	d, link := p.component.LinkDirection()
	switch {
	case link && bad(p.state):
		return f.rootOfLink(n, d, p)
	case p.component == fault.ComponentHost || p.component == fault.ComponentDNP:
	case link || ofDNP(p.component):
		if n.failed(fault.ComponentDNP) {
			return Part{Node: n.id, Component: fault.ComponentDNP}, true
		}
	case n.failed(fault.ComponentHost):
		return Part{Node: n.id, Component: fault.ComponentHost}, true
	}
	return Part{Node: n.id, Component: p.component}, bad(p.state) // a part that was hidden until now is no fault
}

// rootOfLink returns the root cause of a bad link end: the peer, or the cable, or the end with several bad cables.
func (f *folding) rootOfLink(n *illNode, d grid.Direction, p illPart) (Part, bool) {
	peer := f.l.peer(n.coord, d)
	foreign := peer == "" || f.l.cfg.Foreign[peer]
	if p.cause == fault.CauseNode || p.cause == fault.CauseDNP {
		c := fault.ComponentDNP
		if other := f.l.ill[peer]; p.cause == fault.CauseNode || other != nil && other.dead() {
			c = fault.ComponentNode
		}
		return Part{Node: peer, Component: c}, !foreign
	}
	if n.failed(fault.ComponentDNP) {
		return Part{Node: n.id, Component: fault.ComponentDNP}, true
	}
	other := f.l.ill[peer]
	switch here, there := f.l.ports(n), other != nil && !other.dead() && f.l.ports(other); {
	case here && there && other.cables() > n.cables(), there && !here:
		return Part{Node: peer, Component: fault.ComponentNode}, true
	case here && there && other.cables() == n.cables() && f.l.cfg.Dims.Rank(other.coord) < f.l.cfg.Dims.Rank(n.coord):
		return Part{Node: peer, Component: fault.ComponentNode}, true
	case here:
		return Part{Node: n.id, Component: fault.ComponentNode}, true
	}
	return f.l.cable(n.id, n.coord, d), true
}

// cables counts the node's links with faults of their own.
func (n *illNode) cables() int {
	count := 0
	for _, p := range n.parts {
		if p.ofCable() {
			count++
		}
	}
	return count
}

// peer returns the node at the other end of a link; empty: none is known there.
func (l *Incidents) peer(at grid.Coord, d grid.Direction) fault.NodeID {
	to, ok := l.cfg.Dims.Neighbour(at, d)
	if !ok {
		return ""
	}
	return l.cfg.IDs[to]
}

// cable returns the name of a link: that of its lower end, unless that one is in another region.
func (l *Incidents) cable(id fault.NodeID, at grid.Coord, d grid.Direction) Part {
	if peer := l.peer(at, d); !slices.Contains(ups[:], d) && peer != "" && !l.cfg.Foreign[peer] {
		return Part{Node: peer, Component: fault.Link(d.Opposite())}
	}
	return Part{Node: id, Component: fault.Link(d)}
}

// add adds a part of a node to the cluster of a root.
func (f *folding) add(root Part, n *illNode, p illPart) { f.addTo(f.at(root), root, n, p) }

// addTo is add with the cluster of the root.
func (f *folding) addTo(c *cluster, root Part, n *illNode, p illPart) {
	part := Part{Node: n.id, Component: p.component}
	f.home[part] = c
	if d, _ := root.Component.LinkDirection(); (c.state == 0 || d != 0) && (c.since.IsZero() || p.since.Before(c.since)) {
		c.since = p.since
	}
	if part != root {
		c.parts = append(c.parts, Consequence{n.id, p.component, p.state, p.cause, p.rule})
		return
	}
	d, link := p.component.LinkDirection()
	if !link || c.since.IsZero() || p.since.Before(c.since) { // a cable is bad since its first end is
		c.since = p.since
	}
	c.coord, c.state, c.cause, c.rule = n.coord, p.state, p.cause, p.rule
	if p.component == fault.ComponentNode && n.inferred {
		c.cause = fault.CauseNode
	}
	if link {
		c.peer = f.l.peer(n.coord, d)
	}
}

// groups folds the root causes of a group fault's members into the group.
func (f *folding) groups() {
	for i := range f.l.groups {
		g := &f.l.groups[i]
		component, ok := memberComponent(g)
		if !ok {
			continue
		}
		var members []*cluster
		for _, id := range g.Members {
			at := f.home[Part{Node: id, Component: component}]
			if at != nil && at.group == nil && at.into == nil && !at.rootedElsewhere(component) {
				members = append(members, at)
				at.into = &cluster{} // set below; each member once
			}
		}
		if len(members) == 0 && g.Kind != GroupPartition {
			continue
		}
		c := f.at(Part{Group: g.ID})
		c.group, c.state, c.cause, c.rule, c.since = g, g.State, g.Cause, g.Rule, g.Since
		for _, m := range members {
			m.into = c
			if m.since.Before(c.since) && !m.since.IsZero() {
				c.since = m.since
			}
			if m.root.Component != 0 && m.state != 0 {
				c.parts = append(c.parts, Consequence{m.root.Node, m.root.Component, m.state, m.cause, m.rule})
			}
			c.parts = append(c.parts, m.parts...)
			f.home[m.root] = c
		}
		if g.Kind == GroupPartition {
			for _, id := range g.Members {
				part := Part{Node: id, Component: fault.ComponentNode}
				if f.home[part] == nil {
					f.home[part] = c
					c.parts = append(c.parts, Consequence{id, fault.ComponentNode, fault.Unknown, fault.CauseNone, ruleUnreachable.String()})
				}
			}
		}
		for _, p := range c.parts {
			f.home[Part{Node: p.Node, Component: p.Component}] = c
		}
	}
}

// rootedElsewhere reports whether a member's fault has a root cause that the group fault does not explain: a cable of a bundle is
// down because one of its ends is dead, or a node of a failed service network has died.
func (c *cluster) rootedElsewhere(component fault.Component) bool {
	root := c.root.Component
	_, cable := component.LinkDirection()
	_, own := root.LinkDirection()
	return root != 0 && component != fault.ComponentNode && root != component && (!cable || !own)
}

// memberComponent returns the component of a group's members that has failed.
func memberComponent(g *GroupStatus) (fault.Component, bool) {
	switch g.Cause {
	case fault.CauseNone, fault.CauseNode:
		return fault.ComponentNode, true
	case fault.CauseHost:
		return fault.ComponentHost, true
	case fault.CauseDNP:
		return fault.ComponentDNP, true
	case fault.CauseServiceNetwork:
		return fault.ComponentServiceNetwork, true
	case fault.CauseLink: // plane/X=2/LINK: the links of the members in direction X+
		for axis, name := range axes {
			if strings.HasPrefix(g.ID, "plane/"+name+"=") {
				return fault.Link(ups[axis]), true
			}
		}
	default:
	}
	return 0, false
}
