package awareness

import (
	"cmp"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// component is the state of one component in the map.
type component struct {
	since     instant // of the state
	state     fault.State
	cause     fault.Cause
	rule      ruleName
	single    bool
	restored  bool // no evidence yet since the map was restored
	flapping  bool
	held      bool // a change is being held back
	forgotten bool // its last change was that of the story it once had
}

// story is the history of a component that was not always healthy. Few components have one; a long quiet period deletes
// it.
type story struct {
	component    fault.Component
	last, before instant          // the last two changes of a known state
	why          *finding         // of the last change; shared with other components, read-only
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

// tell returns the component's story for writing and creates it if necessary.
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

// forget drops stories that are no longer needed.
func (m *Machine) forget(n *node, now time.Time) {
	old := m.clock.instant(now.Add(-max(m.window(), 2*m.cfg.HoldOff)))
	n.stories = slices.DeleteFunc(n.stories, func(s story) bool {
		p := &n.components[s.component]
		if p.state == fault.Sick || p.state == fault.Failed || p.restored || s.last > old || m.lacked(n, s) {
			return false
		}
		p.flapping, p.forgotten = false, s.last != 0
		return true
	})
	if len(n.stories) == 0 {
		n.stories = nil
	}
}

// lacked reports whether only the restored evidence says that the node does not have the component. The node may be dead, and never say it
// again.
func (m *Machine) lacked(n *node, s story) bool {
	if n.components[s.component].state != fault.Unknown || m.said(n, fault.HalfHost, s.component) != nil ||
		m.said(n, fault.HalfDNP, s.component) != nil {
		return false
	}
	return slices.ContainsFunc(s.evidence, func(e EvidenceStatus) bool { return e.Kind == fault.KindAbsent })
}

// why returns the reason for the component's state: the recorded finding, or a fresh one if none was kept.
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

// findAny calls findNode for the node itself and find for every other component.
func (m *Machine) findAny(n *node, c fault.Component, now time.Time) finding {
	if c == fault.ComponentNode {
		return m.findNode(n, now)
	}
	return m.find(n, c, now)
}

// asCommitted returns the finding for a committed state whose reason was not kept.
func asCommitted(p *component) finding {
	return finding{state: p.state, cause: p.cause, kind: fault.KindDigest, name: p.rule, rule: "as committed before"}
}

// publish compares the touched nodes' evidence with the map and updates the map. It handles the components of every
// node first and the nodes afterwards, because the verdict on a node's links depends on its neighbours' other links.
func (m *Machine) publish(now time.Time) {
	for _, n := range m.touched {
		delete(m.discounted, n)
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

// relinked returns the untouched nodes with a neighbour that had a link change in this step.
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

// minPorts is the number of distinct neighbours with bad links at which the node itself counts as faulty.
const minPorts = 2

// badPorts returns the number of distinct neighbours with bad links that count against the node. Such a link is SICK at
// the node's end, which includes links that only the node accuses, or FAILED while the other end has no FAILED link to
// a third node.
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

// fineBut reports whether the node has no FAILED link to any neighbour other than the given one.
func (n *node) fineBut(but *node) bool {
	return !slices.ContainsFunc(n.ends.list(), func(d grid.Direction) bool {
		return n.peers[d.Index()] != but && n.cut(fault.Link(d))
	})
}

// apply changes one component of the map, unless there is a reason to wait.
func (m *Machine) apply(n *node, c fault.Component, f finding, now time.Time) {
	p := &n.components[c]
	f.single = f.single && f.state == fault.Failed // findings derived from such a verdict are not marked
	switch {
	case f.keep:
		return
	case f.blank:
		// A change of leader alone makes nothing healthy and withdraws nothing. Neither do lost messages.
		var losses, restored time.Time
		if f.name != ruleRevoked {
			losses = m.lossesEnd()
		}
		if p.restored {
			restored = m.restoredUntil()
		}
		if end := fault.Later(losses, restored); now.Before(end) {
			if f.state != p.state && !now.Before(restored) {
				m.discounted[n] = true
			}
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

// reflagged reports whether the change sets or clears one of a node's flags: inferred dead, unreachable, revoked or stopped.
func reflagged(c fault.Component, old, now ruleName) bool { return flagOf(c, old) != flagOf(c, now) }

// flagOf returns the flag that a rule gives a node; empty: none.
func flagOf(c fault.Component, r ruleName) string {
	if c == fault.ComponentNode && (r == ruleInferred || r == ruleUnreachable || r == ruleRevoked || r == ruleStopped) {
		return r.String()
	}
	return ""
}

// hold reports whether HoldOff delays the change. A component may fail and recover at once. From its third change
// within HoldOff it is flapping: its changes are then HoldOff apart until it has been quiet for twice that time.
// Halves, nodes and changes derived from them are never delayed.
func (m *Machine) hold(n *node, c fault.Component, f finding, now time.Time) bool {
	if c <= fault.ComponentDNP { // the node, its host, its DNP
		return false
	}
	p, s := &n.components[c], n.story(c)
	if m.cfg.HoldOff == 0 || s == nil || s.last == 0 || f.name == ruleStopped || p.rule == ruleStopped {
		return false
	}
	if ofPeer(c, f.cause) || ofPeer(c, p.cause) {
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

// ofPeer reports whether a link's cause is the peer's death.
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
		Platform: n.platform(), Flag: flagOf(c, f.name), Was: Aspect{p.cause, p.single, flagOf(c, p.rule)},
	}
	// A first NORMAL, or evidence older than the last change, does not measure the latency of this change.
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

// remember keeps the details of a change that readers may request later. A first statement, or the first after a long
// silence, is not flapping; its details are kept only if the state is bad.
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

// observer returns the observer's name: a half, or this supervisor.
func (m *Machine) observer(o fault.Origin) string {
	if o.Node == "" {
		return "supervisor/" + m.cfg.Supervisor
	}
	return o.String()
}

// findNode derives the state of the node itself. Only votes make it FAILED. A SICK or FAILED component makes it SICK,
// with the gravest cause (fault.Cause.Severity). It is NORMAL when both halves are NORMAL and no fault is known. A
// single bad link is only that link's fault; bad links to several neighbours may be the node's: see badPorts. Sensors
// that a machine lacks stay UNKNOWN and do not count.
func (m *Machine) findNode(n *node, now time.Time) finding {
	if n.revoked {
		return m.distrusted(n)
	}
	if n.stopped {
		return m.stoppedPart(n, fault.ComponentNode)
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
		if worst == nil || p.cause.Severity() > worst.cause.Severity() || (p.cause == worst.cause && p.state > worst.state) {
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
	case !heard && n.rounds[0].open && !n.answered(0) && !m.missedStop(n).IsZero():
		return finding{keep: true} // the verdict is under way
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
