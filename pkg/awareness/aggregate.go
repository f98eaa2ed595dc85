package awareness

import (
	"cmp"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// component is one component as the map has it.
type component struct {
	since     instant // of the state
	state     fault.State
	cause     fault.Cause
	rule      ruleName
	single    bool
	restored  bool // no evidence yet since the map was restored
	flapping  bool
	held      bool // a change is being held back
	forgotten bool // it had a story: its last change was that of the state
}

// story is what is remembered of a component that was not always well. Few have one, and those that have been
// quiet for long lose it.
type story struct {
	component    fault.Component
	last, before instant          // the last two changes of a known state
	why          *finding         // of the last change; shared with other components, never written
	evidence     []EvidenceStatus // as restored
}

// story returns the component's story, nil if it has none.
func (n *node) story(c fault.Component) *story {
	for i := range n.stories {
		if n.stories[i].component == c {
			return &n.stories[i]
		}
	}
	return nil
}

// tell returns the component's story for writing.
func (n *node) tell(c fault.Component) *story {
	if s := n.story(c); s != nil {
		return s
	}
	n.stories = append(n.stories, story{component: c})
	return &n.stories[len(n.stories)-1]
}

// lastChange returns when a known state of the component last changed; zero when none ever did.
func (m *Machine) lastChange(n *node, c fault.Component) time.Time {
	if s := n.story(c); s != nil {
		return m.clock.time(s.last)
	}
	if p := &n.components[c]; p.forgotten {
		return m.clock.time(p.since)
	}
	return time.Time{}
}

// forget drops the stories that nothing hangs on any more.
func (m *Machine) forget(n *node, now time.Time) {
	old := m.clock.instant(now.Add(-max(m.window(), 2*m.cfg.HoldOff)))
	n.stories = slices.DeleteFunc(n.stories, func(s story) bool {
		p := &n.components[s.component]
		if p.state == fault.Sick || p.state == fault.Failed || p.restored || s.last > old {
			return false
		}
		p.flapping, p.forgotten = false, s.last != 0
		return true
	})
	if len(n.stories) == 0 {
		n.stories = nil
	}
}

// why returns why the component has its state: as it was found, or, where that was not worth remembering, as
// it is found now.
func (m *Machine) why(n *node, c fault.Component) finding {
	p := &n.components[c]
	if s := n.story(c); s != nil && s.why != nil {
		return *s.why
	}
	if !p.restored {
		next, restless := n.next, n.restless
		f := m.findAny(n, c, m.now)
		n.next, n.restless = next, restless
		if !f.keep && f.state == p.state && f.cause == p.cause {
			return f
		}
	}
	return asCommitted(p)
}

// findAny is find, or findNode.
func (m *Machine) findAny(n *node, c fault.Component, now time.Time) finding {
	if c == fault.ComponentNode {
		return m.findNode(n, now)
	}
	return m.find(n, c, now)
}

// asCommitted is the finding for a state that stands though nothing is known of why.
func asCommitted(p *component) finding {
	return finding{state: p.state, cause: p.cause, kind: fault.KindDigest, name: p.rule, rule: "as committed before"}
}

// publish compares the touched nodes' evidence with the map and updates the map. It handles the components of every node first
// and the nodes afterwards, because the verdict on a node's links depends on its neighbours' other links.
func (m *Machine) publish(now time.Time) {
	for _, n := range m.touched {
		if !n.foreign {
			m.look()
			for c := fault.ComponentHost; c.Valid(); c++ {
				if n.has(c) {
					m.apply(n, c, m.find(n, c, now), now)
				}
			}
		}
	}
	relinked := m.relinked()
	for _, n := range m.touched {
		if !n.foreign {
			m.look()
			m.apply(n, fault.ComponentNode, m.findNode(n, now), now)
			m.publishWarnings(n, now)
			m.forget(n, now)
			m.remark(n, now)
		}
	}
	for _, n := range relinked {
		m.look()
		next, restless := n.next, n.restless // the time of the next check stays unchanged
		m.apply(n, fault.ComponentNode, m.findNode(n, now), now)
		n.next, n.restless, n.touched = next, restless, false
		m.remark(n, now)
	}
	slices.SortStableFunc(m.out.Changes, func(a, b Change) int {
		return cmp.Or(m.ranks[a.Node]-m.ranks[b.Node], int(a.Component)-int(b.Component))
	})
}

// relinked returns the untouched nodes with a neighbour that had a link change just now.
func (m *Machine) relinked() []*node {
	var out []*node
	for _, ch := range m.out.Changes {
		if _, link := ch.Component.LinkDirection(); !link {
			continue
		}
		for _, nb := range m.nodes[m.ranks[ch.Node]].neighbours {
			if p := nb.node; !p.foreign && !p.touched && p.anyLinkBad() {
				p.touched = true
				out = append(out, p)
			}
		}
	}
	sortNodes(out)
	return out
}

// anyLinkBad reports whether any of the node's links is at fault itself.
func (n *node) anyLinkBad() bool {
	return slices.ContainsFunc(n.ends.list(), func(d grid.Direction) bool { return n.linkBad(d) })
}

// linkBad reports whether a link is SICK or FAILED at the node, and neither end's death or restart explains it.
func (n *node) linkBad(d grid.Direction) bool {
	p := &n.components[fault.Link(d)]
	return p.cause == fault.CauseLink && (p.state == fault.Sick || p.state == fault.Failed)
}

// minPorts is the number of distinct neighbours with bad links from which on the node itself is at fault.
const minPorts = 2

// badPorts returns the number of distinct neighbours with bad links that count against the node. Such a link is SICK at the
// node's end, which includes links that only the node accuses, or FAILED while the other end has no FAILED link to a third node.
func (n *node) badPorts() int {
	count := 0
	for _, nb := range n.neighbours {
		for _, back := range nb.links() {
			d := back.Opposite()
			if n.linkBad(d) && (!n.cut(fault.Link(d)) || nb.node.fineBut(n)) {
				count++
				break
			}
		}
	}
	return count
}

// fineBut reports whether the node has no FAILED link to any neighbour but the given one.
func (n *node) fineBut(but *node) bool {
	return !slices.ContainsFunc(n.ends.list(), func(d grid.Direction) bool {
		return n.peers[d.Index()] != but && n.cut(fault.Link(d))
	})
}

// apply changes one component of the map, unless there is a reason to wait.
func (m *Machine) apply(n *node, c fault.Component, f finding, now time.Time) {
	p := &n.components[c]
	f.single = f.single && f.state == fault.Failed // what follows from such a verdict is not marked
	switch {
	case f.keep:
		return
	case f.blank && p.restored:
		// Nothing becomes healthy, and nothing is forgotten, just because the leader changed.
		if end := m.started.Add(m.window()); now.Before(end) {
			n.wakeAt(end, now)
			return
		}
	}
	p.restored = p.restored && f.blank
	if f.state == p.state && f.cause == p.cause && f.single == p.single && !reflagged(c, p.rule, f.name) {
		p.held = false
		return
	}
	if f.state == fault.Failed && p.state != fault.Failed && now.Before(m.graceEnds()) {
		n.wakeAt(m.graceEnds(), now)
		return
	}
	if m.keepsState(n, c, f, now) || m.hold(n, c, f, now) {
		return
	}
	m.change(n, c, f, now)
}

// reflagged reports whether a node starts or stops being inferred dead, unreachable or revoked.
func reflagged(c fault.Component, old, now ruleName) bool {
	flag := func(r ruleName) bool { return r == ruleInferred || r == ruleUnreachable || r == ruleRevoked }
	return c == fault.ComponentNode && old != now && (flag(old) || flag(now))
}

// hold says whether HoldOff forbids the change now. A component may go and come back at once; from
// the third change within HoldOff on it flaps, and changes are HoldOff apart until it has been quiet
// for twice that. Halves, nodes and what follows from them are never held back.
func (m *Machine) hold(n *node, c fault.Component, f finding, now time.Time) bool {
	if c <= fault.ComponentDNP { // the node, its host, its DNP
		return false
	}
	p, s := &n.components[c], n.story(c)
	if m.cfg.HoldOff == 0 || s == nil || s.last == 0 || ofPeer(c, f.cause) || ofPeer(c, p.cause) {
		return false
	}
	last := m.clock.time(s.last)
	if now.Sub(last) >= 2*m.cfg.HoldOff {
		p.flapping = false
	}
	if s.before != 0 && now.Sub(m.clock.time(s.before)) < m.cfg.HoldOff {
		p.flapping = true
	}
	free := last.Add(m.cfg.HoldOff)
	if !p.flapping || !now.Before(free) {
		return false
	}
	p.held = true
	n.wakeAt(free, now)
	return true
}

// ofPeer says whether a link's cause is the peer's death.
func ofPeer(c fault.Component, cause fault.Cause) bool {
	_, link := c.LinkDirection()
	return link && (cause == fault.CauseDNP || cause == fault.CauseNode)
}

// change is the only writer of a component's state in the map.
func (m *Machine) change(n *node, c fault.Component, f finding, now time.Time) {
	p := &n.components[c]
	ch := Change{
		Node: n.id, Component: c, From: p.state, To: f.state, Cause: f.cause, Path: f.path,
		Observer: m.observer(f.from), Latency: -1, Kind: f.kind, Reason: f.rule, SingleWitness: f.single, Flapping: p.held || p.flapping,
		Platform: n.platform(),
	}
	// Neither a first NORMAL nor evidence from before the last change measures awareness of this one.
	old := p.state == fault.Unknown && f.state == fault.Normal || f.state <= p.state && f.began.Before(m.lastChange(n, c))
	if !f.began.IsZero() && !old {
		ch.Latency = max(0, now.Sub(f.began))
	}
	if f.detail != "" {
		ch.Reason += " (" + f.detail + ")"
	}
	if p.held || p.flapping {
		ch.Reason += "; flapping: changes are held back for " + m.cfg.HoldOff.String()
	}
	m.remember(n, c, f, now)
	if p.state != f.state {
		p.since = m.clock.instant(now)
	}
	p.state, p.cause, p.rule, p.single, p.held = f.state, f.cause, f.name, f.single, false
	m.out.Changes = append(m.out.Changes, ch)
}

// remember keeps of a change what will be asked for. The first word, or the first after long silence, is no
// flapping, and unless it is bad nobody will ask for it.
func (m *Machine) remember(n *node, c fault.Component, f finding, now time.Time) {
	p := &n.components[c]
	if p.state == fault.Unknown && f.state <= fault.Normal && n.story(c) == nil {
		return
	}
	s := n.tell(c)
	if p.forgotten {
		s.last, p.forgotten = p.since, false
	}
	if p.state != fault.Unknown {
		s.before, s.last = s.last, m.clock.instant(now)
	}
	if m.newest == nil || *m.newest != f {
		m.newest = &f
	}
	s.why, s.evidence = m.newest, nil
}

// observer names who observed: a half, or this supervisor.
func (m *Machine) observer(o fault.Origin) string {
	if o.Node == "" {
		return "supervisor/" + m.cfg.Supervisor
	}
	return o.String()
}

// findNode sums the node up. Only votes make it FAILED; whatever of it is sick or failed makes it
// SICK, for the gravest cause in the order of fault.Cause; it is NORMAL when both halves are and
// nothing is known to be wrong. A single bad link is only that link's fault; bad links to several neighbours may be the node's:
// see badPorts. Sensors that a machine does not have stay UNKNOWN and do not count.
func (m *Machine) findNode(n *node, now time.Time) finding {
	if n.revoked {
		return m.distrusted(n)
	}
	if n.dead.on {
		return n.dead.finding
	}
	if n.inferred {
		return enclosed(n)
	}
	var worst *component
	var which fault.Component
	for c := fault.ComponentHost; c.Valid(); c++ {
		p := &n.components[c]
		if !n.has(c) || p.state != fault.Sick && p.state != fault.Failed {
			continue
		}
		if _, link := c.LinkDirection(); link && (p.cause != fault.CauseLink || n.badPorts() < minPorts) {
			continue
		}
		if worst == nil || p.cause > worst.cause || (p.cause == worst.cause && p.state > worst.state) {
			worst, which = p, c
		}
	}
	host, dnp := &n.components[fault.ComponentHost], &n.components[fault.ComponentDNP]
	heard := m.current(n, fault.HalfHost, now) || m.current(n, fault.HalfDNP, now)
	switch {
	case worst != nil && (heard || host.state == fault.Failed || dnp.state == fault.Failed):
		f := m.why(n, which)
		f.state, f.cause, f.single, f.keep, f.blank = fault.Sick, worst.cause, false, false, false
		return f
	case !heard || host.state == fault.Unknown || dnp.state == fault.Unknown:
		return m.unheard(n)
	}
	newest := fault.ComponentHost
	for c := fault.ComponentDNP; len(n.stories) > 0 && c.Valid(); c++ {
		if n.has(c) && n.components[c].state == fault.Normal && m.lastChange(n, c).After(m.lastChange(n, newest)) {
			newest = c
		}
	}
	f := m.why(n, newest)
	f.state, f.cause, f.single, f.keep, f.blank = fault.Normal, fault.CauseNone, false, false, false
	return f
}
