package awareness

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Explanation describes why a component has its state, and what would change it.
type Explanation struct {
	Node      fault.NodeID
	Component fault.Component
	State     fault.State
	Cause     fault.Cause
	Since     time.Time
	Rule      string           // its short name, as in docs/awareness.md
	Summary   string           // one sentence
	Because   []string         // the evidence, weightiest first, and the evidence disregarded, with reasons
	Until     []string         // the events that would change the state
	Evidence  []EvidenceStatus // newest first
}

// Explain explains one component of a node, or the node itself (fault.ComponentNode). It returns false if the torus has
// no such node, or the node no such component. Ages are those of the last step.
func (m *Machine) Explain(id fault.NodeID, c fault.Component) (Explanation, bool) {
	rank, ok := m.ranks[id]
	if !ok || !c.Valid() || m.nodes[rank].foreign || !m.nodes[rank].has(c) {
		return Explanation{}, false
	}
	n := m.nodes[rank]
	next, restless := n.next, n.restless // reading the state must not schedule another look
	defer func() { n.next, n.restless = next, restless }()
	m.look()
	x := explainer{Machine: m, n: n, c: c, p: &n.components[c]}
	x.f, x.rule = x.bears()
	what := string(id)
	if c != fault.ComponentNode {
		what = fmt.Sprintf("%s of %s", c, id)
	}
	return Explanation{
		Node: id, Component: c, State: x.p.state, Cause: x.p.cause, Since: m.clock.time(x.p.since), Rule: x.rule.String(),
		Summary: fmt.Sprintf("%s is %s: %s", what, x.p.state, x.f.rule), Because: x.because(), Until: x.until(), Evidence: m.evidenceOf(n, c),
	}, true
}

// explainer collects the explanation of one component.
type explainer struct {
	*Machine
	n     *node
	c     fault.Component
	p     *component
	f     finding
	rule  ruleName
	lines []string
}

// bears returns the finding that supports the state now. It may differ from the one that led to the state: a host's
// recent statement becomes its last word, and a new leader restates a committed state. If the evidence now contradicts
// the state (because it is not settled yet, or flaps), bears returns the original finding.
func (x *explainer) bears() (finding, ruleName) {
	if !x.p.restored {
		if f := x.findAny(x.n, x.c, x.now); !f.keep && f.state == x.p.state && f.cause == x.p.cause && f.name != 0 {
			return f, f.name
		}
	}
	return x.why(x.n, x.c), x.p.rule
}

func (x *explainer) say(format string, args ...any) {
	x.lines = append(x.lines, fmt.Sprintf(format, args...))
}

// roughly formats a duration with a precision that suits a reader.
func roughly(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// ago formats the time between t and the last step.
func (x *explainer) ago(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return roughly(max(0, x.now.Sub(t))) + " ago"
}

// lasting formats how long a state has lasted that began at t: "for 382ms".
func (x *explainer) lasting(t time.Time) string { return "for " + roughly(max(0, x.now.Sub(t))) }

func (x *explainer) because() []string {
	if x.p.restored {
		x.say("nothing has arrived since supervisor %s took over %s; until then the committed state stands", x.cfg.Supervisor, x.ago(x.started))
	}
	x.restarts()
	x.stopped()
	h, ofHalf := halfOf(x.c)
	_, link := x.c.LinkDirection()
	switch {
	case x.c == fault.ComponentNode:
		x.ofNode()
	case ofHalf:
		x.ofHalf(h)
	case link:
		x.ofLink()
	default:
		x.ofPart()
	}
	if x.p.flapping || x.p.held {
		x.flaps()
	}
	return x.lines
}

// flaps reports that changes are held back, and until when.
func (x *explainer) flaps() {
	text := fmt.Sprintf("it changes too often: its changes are limited to one in %s", x.cfg.HoldOff)
	if s := x.n.story(x.c); s != nil && s.last != 0 {
		last := x.clock.time(s.last)
		free, calm := last.Add(x.cfg.HoldOff).Sub(x.now), last.Add(2*x.cfg.HoldOff).Sub(x.now)
		switch {
		case x.p.held && free > 0:
			text += fmt.Sprintf("; a change waits for %s more", roughly(free))
		case calm > 0:
			text += fmt.Sprintf("; it no longer flaps if nothing changes for %s", roughly(calm))
		}
	}
	x.say("%s", text)
}

// restarts lists the announced restarts that keep the state.
func (x *explainer) restarts() {
	nodes := []*node{x.n}
	if d, link := x.c.LinkDirection(); link && x.n.peers[d.Index()] != nil {
		nodes = append(nodes, x.n.peers[d.Index()])
	}
	for _, n := range nodes {
		r := x.announced(n, x.now)
		for _, h := range halves {
			if until := r.Ends(h); !until.IsZero() {
				x.say("%s restarts its %s half, as it announced: until it is back, for at most %s more, the state stays unchanged", n.id, h,
					roughly(until.Sub(x.now)))
			}
		}
	}
}

func halfOf(c fault.Component) (fault.Half, bool) {
	for _, h := range halves {
		if h.Component() == c {
			return h, true
		}
	}
	return 0, false
}

func (x *explainer) ofNode() {
	for _, id := range x.groupsOf(x.n) {
		x.say("it is one of the members of %s", id)
	}
	x.verdicts()
	for c := fault.ComponentHost; c.Valid() && !x.n.dead.on && !x.n.inferred; c++ {
		if p := &x.n.components[c]; x.n.has(c) && (p.state == fault.Sick || p.state == fault.Failed) {
			weight := ""
			switch _, link := c.LinkDirection(); {
			case ofPeer(c, p.cause):
				weight = ", which is its peer's fault and does not count"
			case link && x.n.badPorts() < minPorts:
				weight = ", which is the link's fault and does not count"
			}
			x.say("its %s is %s: %s%s", c, p.state, x.why(x.n, c).rule, weight)
		}
	}
	if bad := x.n.badPorts(); bad >= minPorts && !x.n.dead.on && !x.n.inferred {
		x.say("its links to %d living peers are bad, and the peers' other links work: suspect its ports rather than that many cables", bad)
	}
	x.life()
	x.neighbours()
	x.asked(0)
}

// badLinks counts the distinct neighbours without a working link to the node.
func badLinks(n *node) int {
	bad := 0
	for _, nb := range n.neighbours {
		if !joined(n, nb) {
			bad++
		}
	}
	return bad
}

// verdicts lists the standing verdicts.
func (x *explainer) verdicts() {
	if d := &x.n.dead; d.on {
		x.say("the verdict on the whole node was reached %s: %s", x.ago(x.fell(x.n, fault.ComponentNode, d.at)), d.rule)
		if d.single {
			x.say("it is marked single-witness: no destructive response may rest on it")
		}
		x.back()
		return
	}
	if x.n.inferred {
		x.say("it was inferred dead %s", x.ago(x.n.inferredAt))
	}
	for _, h := range halves {
		if f := x.n.failure(h); f.on {
			x.say("the verdict on its %s half was reached %s: %s", h,
				x.ago(x.fell(x.n, h.Component(), f.at)), f.rule)
		}
	}
	x.back()
}

// fell returns the time of a verdict. For a verdict of an earlier leader, that is when the state of its component changed.
func (m *Machine) fell(n *node, c fault.Component, at time.Time) time.Time {
	if since := m.clock.time(n.components[c].since); at.Equal(m.started) && !since.IsZero() && since.Before(at) {
		return since
	}
	return at
}

// back reports that the DNP is coming back.
func (x *explainer) back() {
	if f := x.n.failure(fault.HalfDNP); f.on && !f.proven.IsZero() {
		x.say("its dnp half showed a sign of life %s; its neighbours do not hear it yet", x.ago(f.proven))
	}
}

// life reports the halves' newest signs of life.
func (x *explainer) life() {
	for _, h := range halves {
		v := x.n.voice(h)
		switch {
		case v.heard.IsZero() && h == fault.HalfDNP && x.current(x.n, fault.HalfHost, x.now):
			x.say("no message has come directly from its dnp half: it sends directly only while its host half does not")
		case v.heard.IsZero():
			x.say("this supervisor has no message from its %s half", h)
		case h == fault.HalfDNP && !x.n.failure(h).on && !x.current(x.n, h, x.now) && x.current(x.n, fault.HalfHost, x.now):
			x.say("its dnp half was last heard %s: it reports by itself only while its host half does not", x.ago(v.heard))
		case !x.current(x.n, h, x.now):
			x.say("its %s half was last heard %s: its statements no longer count (%s without a sign of life, or a verdict)", h,
				x.ago(v.heard), x.window())
		case !x.states(x.n, h, x.now) && (h == fault.HalfHost || !x.states(x.n, fault.HalfHost, x.now)): // it only answers challenges
			x.say("its %s half showed a sign of life %s, but %s: its statements count only for %s", h, x.ago(v.heard), x.lastReport(v), x.window())
		default:
			x.say("last message from its %s half: %s", h, x.ago(v.heard))
		}
	}
}

// lastReport returns a clause that says when a half's newest report came.
func (x *explainer) lastReport(v *voice) string {
	if v.reported == 0 {
		return "this supervisor has no report from it"
	}
	return "its newest report came " + x.ago(x.clock.time(v.reported))
}

// neighbours lists each neighbour's position towards the node, and the resulting vote.
func (x *explainer) neighbours() {
	var accuse, hear, out []string
	v := x.count(x.n, x.n.rounds[0].start, x.forgiven(x.n, x.now, halves[:]...), x.now)
	for _, nb := range x.n.neighbours {
		p := nb.node
		vote, all, _ := x.vote(nb, x.now)
		switch {
		case p.dead.on:
			out = append(out, string(p.id)+" (dead)")
		case p.inferred:
			out = append(out, string(p.id)+" (inferred dead)")
		case !p.rounds[0].mute.IsZero():
			out = append(out, string(p.id)+" (does not answer itself)")
		case p.failure(fault.HalfDNP).on:
			out = append(out, string(p.id)+" (its DNP is dead)")
		case !x.witness(p, x.now):
			out = append(out, string(p.id)+" (not heard)")
		case all && contains(v.by, p):
			accuse = append(accuse, fmt.Sprintf("%s (%s)", p.id, x.lasting(vote.began)))
		case all:
			out = append(out, string(p.id)+" (accuses since before it came back)")
		case !x.acquits(p, x.now):
			out = append(out, string(p.id)+" (its DNP half restarts)")
		case vote != nil:
			hear = append(hear, string(p.id)+" (on one link, not on another)")
		default:
			hear = append(hear, string(p.id))
		}
	}
	if len(accuse) > 0 {
		x.say("silent on all its links to %s", strings.Join(accuse, ", "))
	}
	if len(accuse) > 0 || len(out) > 0 || x.p.state != fault.Normal {
		x.say("%d of %d live witnesses accuse it; a quorum of its %d neighbours is %d", v.cast, v.live, len(x.n.neighbours),
			Quorum(len(x.n.neighbours)))
	}
	if len(accuse) > 0 && len(hear) > 0 {
		x.say("frames from it reach %s", strings.Join(hear, ", "))
	}
	if len(out) > 0 {
		x.say("not counted: %s", strings.Join(out, ", "))
	}
	if k, value, ok := x.domains.shared(x.n, v.by); ok {
		x.say("all accusers are in %s: they do not confirm one another, and count as one witness", x.domains.name(k, value))
	}
}

func contains(nodes []*node, n *node) bool {
	return slices.Contains(nodes, n)
}

// asked reports the progress of the open challenge.
func (x *explainer) asked(k fault.Half) {
	r := &x.n.rounds[k]
	switch {
	case !r.open:
	case x.n.answered(k):
		x.say("challenged %s: it answered", x.ago(r.start))
	case x.now.Before(x.caughtUp(r.due)):
		x.say("challenged %s: it has not answered yet, and has %s more", x.ago(r.start), roughly(x.caughtUp(r.due).Sub(x.now)))
	default:
		x.say("challenged %s: it has not answered", x.ago(r.start))
	}
	if r.open && r.refused > 0 {
		x.say("its kernel refused %d of the challenges: no process listens there", r.refused)
	}
}

func (x *explainer) ofHalf(h fault.Half) {
	x.verdicts()
	x.life()
	if a := x.accused(x.n, h, x.now); a.bus {
		x.say("the %s half hears nothing from it over the bus %s", h.Other(), x.lasting(a.record.began))
	}
	if r := x.said(x.n, h.Other(), x.c); r != nil && r.kind == fault.KindWatchdog {
		weight := ""
		if !x.states(x.n, h.Other(), x.now) {
			weight = ", whose statements no longer count,"
		}
		x.say("the watchdog of the %s half%s has found it %s %s", h.Other(), weight, r.state, x.lasting(r.began))
	}
	if a := x.accused(x.n, h, x.now); a.count > 0 {
		x.say("descriptors of %d of its neighbours say that it is dead; %d are needed", a.count, Quorum(len(x.n.neighbours)))
		if a.domain != "" {
			x.say("all of these are in %s: they do not confirm one another, and count as one witness", a.domain)
		}
	}
	x.asked(h)
	if x.n.dead.on || x.n.inferred || !x.n.failure(h).proven.IsZero() {
		x.neighbours()
	}
}

// waits returns a note if the verdict behind the state only waits for the links of a DNP that has shown a sign of life,
// with the remaining time; "" otherwise.
func (x *explainer) waits() string {
	n, then := x.n, "then the verdict is lifted"
	d, link := x.c.LinkDirection()
	switch x.rule {
	case rulePeerDead:
		n = n.peers[d.Index()]
	case ruleDNPDead, ruleNodeDead:
		if !link && !ofDNP(x.c) {
			return ""
		}
		then += ", and a new report on it"
	default:
		if x.c != fault.ComponentDNP && (x.c != fault.ComponentNode || !n.dead.on) {
			return ""
		}
	}
	f := n.failure(fault.HalfDNP)
	if !f.on || f.proven.IsZero() {
		return ""
	}
	who := "its neighbours hear it"
	if n != x.n {
		who = fmt.Sprintf("the neighbours of %s hear it", n.id)
	}
	return fmt.Sprintf("%s again, or %s are over since its sign of life %s: %s", who, x.relinks(), x.ago(f.proven), then)
}

func (x *explainer) ofPart() {
	x.ends()
	x.word("the node itself", x.n, x.c)
	if x.c == fault.ComponentBus {
		x.asked(fault.HalfHost)
		x.asked(fault.HalfDNP)
		return
	}
	x.measured()
	if _, ok := describedIndex(x.c); ok {
		if first, count, _ := x.describedFailed(x.n, x.c, x.now); count > 0 {
			x.say("descriptors of %d of its neighbours have said FAILED %s; they count when its host is dead or has not been heard for %s", count,
				x.lasting(first.began), x.overdue())
		}
	}
}

// measured reports the component's last reading and its threshold.
func (x *explainer) measured() {
	if x.cfg.Horizon == 0 {
		return
	}
	for _, r := range x.n.readings {
		if r.component != x.c {
			continue
		}
		unit := r.quantity.Unit()
		x.say("the newest reading, %s, is %s%s, and the threshold %s%s: a node sends readings of moving values only",
			x.ago(x.clock.time(r.at)), figure(float64(r.value)), unit, figure(float64(r.threshold)), unit)
		return
	}
	if ofDNP(x.c) && x.c != fault.ComponentDNPCore {
		x.say("no reading of it has come since supervisor %s took over: a node sends readings of moving values only", x.cfg.Supervisor)
	}
}

// until lists the events that would change the state, by the rule behind it.
func (x *explainer) until() []string {
	window := x.window()
	if x.c == fault.ComponentNode && x.p.state == fault.Sick {
		return []string{"no part of it is SICK or FAILED any longer: then NORMAL",
			"both its halves are FAILED, or a quorum accuses it and it does not answer: then FAILED"}
	}
	if w := x.waits(); w != "" {
		return []string{w}
	}
	if h, half := halfOf(x.c); x.rule == ruleRestored && (half && x.n.failure(h).on || x.c == fault.ComponentNode && x.n.dead.on) {
		x.rule = ruleQuorum // any rule of a verdict: they all end in the same way
	}
	switch x.rule {
	case ruleQuorum, ruleSingle, ruleEnclosed, ruleBothHalves, ruleWatchdog, ruleDescriptors:
		out := []string{"it answers a challenge sent after the verdict", "it reports with a newer boot epoch",
			"the watchdog of its other half, itself alive, finds it running"}
		if x.p.single {
			out = append(out, "a quorum of live witnesses agrees: then the mark single-witness ends")
		}
		return out
	case ruleAnswers:
		return []string{"the accusation is withdrawn: then NORMAL",
			fmt.Sprintf("it is not heard for %s and does not answer again: then FAILED", x.overdue())}
	case ruleInferred:
		return []string{"any sign of life from it", "a living neighbour accuses it: then FAILED"}
	case ruleUnreachable:
		return []string{"a report from it, or from a node linked to it"}
	case rulePeerDead, ruleNodeDead, ruleHostDead, ruleDNPDead, ruleLastWord:
		return []string{"a sign of life that lifts the verdict, and a new report"}
	case ruleStopped:
		return []string{"the node is back, and its halves pass their self-tests: then NORMAL", "it is not back in time: the usual rules apply"}
	case ruleRestarting:
		return []string{"the half is back: then the link's state before the restart",
			"the half is not back at the announced time: then it counts as silent, and the link is FAILED"}
	case ruleDisputed:
		return []string{"the far end finds it FAILED as well: then FAILED at both ends",
			"the near end reports that it hears the other again: then NORMAL"}
	case ruleBus:
		return []string{"both halves hear each other over the bus again: then NORMAL",
			"one of the halves does not answer any more: then that half is FAILED, and the bus UNKNOWN"}
	case ruleNearEnd, ruleFarEnd:
		return []string{"that end reports that it hears the other again", fmt.Sprintf("that end is not heard for %s: then UNKNOWN", window)}
	case ruleDescribed, ruleDescribedOne:
		return []string{"its host reports again, with another state", "the neighbours' descriptors give another state"}
	case ruleUnheard:
		return []string{"a report on it by the node's own halves"}
	case ruleRestored:
		return []string{"any report on it",
			fmt.Sprintf("no report within %s of the start of this leader: then UNKNOWN, except FAILED halves and nodes", window)}
	default:
	}
	if x.p.state == fault.Normal {
		return []string{"a report of a fault", "a neighbour that accuses it, and no answer to the challenge",
			fmt.Sprintf("no message from the node for %s: then UNKNOWN", window)}
	}
	return []string{"a newer statement of the node's own halves", fmt.Sprintf("no statement from them for %s: then UNKNOWN", window)}
}
