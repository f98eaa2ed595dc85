package awareness

import (
	"container/heap"
	"fmt"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Machine is the fault map and its evidence. One goroutine owns it. That goroutine reports the shell's delay before a
// step (late.go), and after it the challenges that could not be sent.
//
// A step processes its event, then settles the nodes that it touches (challenges, votes and lasting verdicts:
// challenge.go, votes.go, halves.go, doubt.go), then publishes them (components.go, links.go, aggregate.go), and
// occasionally searches for common causes (group.go, common.go, partition.go). A node's changes may touch its
// neighbours, but no other nodes, so a step costs O(changes) regardless of the size of the torus.
type Machine struct {
	cfg     Config
	nodes   []*node      // by rank; nil where IDs has no node
	empty   []grid.Coord // places of the torus without a node
	own     []*node      // those of the map, in the same order: all but foreign ones
	ranks   map[fault.NodeID]int
	clock   clock
	serial  uint64    // of the newest challenge
	spent   time.Time // until when the budget for repeated challenges is used
	wholes  time.Time // the same for later challenges by all rails
	doubts  time.Time // the same for nodes in doubt while the shell is behind
	started time.Time // when this leader took over
	now     time.Time // of this step: time never goes back
	awake   time.Time // time of the previous step

	// A machine that was itself late doubts itself: messages from the time of its sleep may still be queued. doubt is
	// when it last woke so late that all waits restart. After a shorter delay no verdict falls before listens. delays
	// counts consecutive delays, because a machine that is always late must still reach verdicts.
	doubt   time.Time
	listens time.Time
	delays  int
	behind  lag       // the shell's delay
	lost    time.Time // when the shell last lost messages: see Lost
	trips   []trip    // of the newest answers, at most one per node

	// If no input has come for so long that all reports have expired, the machine itself was cut off.
	heard    time.Time // last arrival from any node
	returned time.Time // first arrival after such a time

	domains domains
	sizes   map[domain]int // of the rows and planes of a region, or of a torus with empty places; nil if not counted: see size
	common  common

	wakes   wakeHeap
	dirty   []*node // to settle, then to publish
	wave    []*node // being settled
	touched []*node // to publish
	// revocations holds the nodes with revoked certificates; nil if there are none.
	revocations map[*node]revocation
	// restarts holds the announced restarts; nil if there were none.
	restarts map[*node]*restarts
	// stops holds the announced stops; nil if there were none.
	stops map[*node]*stops
	// notices wait for the next step: see stopNotice.
	notices []notice
	// regained holds the times when nodes became trusted again, as long as they matter: see relinking.
	regained map[*node]time.Time
	// rewired holds the nodes with links that lead to another peer since a change of places; nil if there was none.
	rewired map[*node]*relinks
	// left holds the times at which nodes left their places. The next change of places drops times that are older than RelinkBound.
	left map[fault.NodeID]time.Time
	// discounted holds the nodes with a state that only losses keep: see Discounted.
	discounted map[*node]bool

	records []record  // records in use for the current node: see said
	calm    suspicion // shared suspicion of all nodes without a case against them; read-only
	newest  *finding  // newest finding that a story keeps
	out     Output
	atStart []Change // to the saved map, before the first step
}

// halves are both halves, the host's first.
var halves = [2]fault.Half{fault.HalfHost, fault.HalfDNP}

// New returns a machine with the last committed map; saved is empty for a first start. Restored states stand until
// there is evidence. All except FAILED halves and nodes also end after DigestMisses digest periods without a report.
// Anything that saved omits is UNKNOWN.
func New(cfg Config, now time.Time, saved []NodeStatus) (*Machine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.PauseSettle == 0 {
		cfg.PauseSettle = cfg.HalfBound / 3
	}
	if cfg.LinkSettle == 0 {
		cfg.LinkSettle = cfg.HalfBound
	}
	if cfg.LinkGrace == 0 {
		cfg.LinkGrace = DefaultLinkGrace
	}
	if cfg.RelinkBound == 0 {
		cfg.RelinkBound = DefaultRelinkBound
	}
	m := &Machine{cfg: cfg, ranks: make(map[fault.NodeID]int, len(cfg.IDs)), clock: newClock(now), started: now, now: now,
		left: make(map[fault.NodeID]time.Time), discounted: make(map[*node]bool)}
	m.build()
	m.domains = newDomains(cfg, m.nodes)
	seen := make(map[fault.NodeID]bool, len(saved))
	for _, s := range saved {
		if err := m.restore(s, seen[s.ID]); err != nil {
			return nil, err
		}
		seen[s.ID] = true
	}
	for _, n := range m.own {
		m.fillCauses(n)
	}
	m.restoreRelinks(saved)
	m.atStart = m.out.Changes
	return m, nil
}

// restore restores one node as committed.
func (m *Machine) restore(s NodeStatus, again bool) error {
	rank, ok := m.ranks[s.ID]
	switch {
	case !ok:
		return fmt.Errorf("restore fault map: node %q: want one of the nodes of the %s torus", s.ID, m.cfg.Dims)
	case again:
		return fmt.Errorf("restore fault map: node %s: given twice", s.ID)
	case m.nodes[rank].foreign:
		return fmt.Errorf("restore fault map: node %s: is of another region: want only nodes of this one", s.ID)
	case s.Coord != m.nodes[rank].coord:
		return fmt.Errorf("restore fault map: node %s: given coordinate %s: want %s", s.ID, s.Coord, m.nodes[rank].coord)
	}
	n := m.nodes[rank]
	n.voices[0].epoch, n.voices[0].floor = s.HostEpoch, s.HostEpoch
	n.voices[1].epoch, n.voices[1].floor = s.DNPEpoch, s.DNPEpoch
	n.speaker, n.registersAt = fault.HalfHost, m.clock.instant(s.RegistersAt)
	n.voices[0].registers, n.voices[0].platform = s.Registers, s.Platform
	if err := m.restoreComponent(n, &ComponentStatus{Component: fault.ComponentNode, State: s.State, Cause: s.Cause, Since: s.Since,
		Rule: s.Rule, Reason: s.Reason}); err != nil {
		return err
	}
	for i := range s.Components {
		if err := m.restoreComponent(n, &s.Components[i]); err != nil {
			return err
		}
	}
	n.components[fault.ComponentNode].single = s.SingleWitness
	for _, h := range halves {
		if c := &n.components[h.Component()]; s.State == fault.Failed || c.state == fault.Failed {
			m.suspicionOf(n).failed[h-1] = verdict{on: true, at: m.started, mark: m.mark(m.started), finding: m.why(n, h.Component())}
		}
	}
	if s.State == fault.Failed {
		t := m.suspicionOf(n)
		t.dead = verdict{on: true, at: m.started, mark: m.mark(m.started), finding: m.why(n, fault.ComponentNode)}
		t.dead.single = s.SingleWitness
	}
	m.restoreRestart(n, s.Restart)
	m.restoreStop(n, s.Stop)
	m.restoreReturn(n, s.LinksSettle)
	if n.unreachable = s.Unreachable; s.Unreachable {
		m.restoreStranded(n)
	}
	if s.Inferred {
		m.becomeInferred(n, m.started)
	}
	m.touch(n)
	return nil
}

// restoreComponent restores one component. Evidence for a healthy component is not kept.
func (m *Machine) restoreComponent(n *node, c *ComponentStatus) error {
	if !c.Component.Valid() || !c.State.Valid() {
		return fmt.Errorf("restore fault map: node %s: component %s is %s: want a component of the node and a state", n.id, c.Component, c.State)
	}
	n.components[c.Component] = component{state: c.State, cause: c.Cause, since: m.clock.instant(c.Since), rule: parseRule(c.Rule),
		restored: true}
	if len(c.Evidence) > 0 && c.State != fault.Normal {
		n.tell(c.Component).evidence = c.Evidence
	}
	if c.Reason != "" && c.State != fault.Normal {
		why := asCommitted(&n.components[c.Component])
		why.rule = c.Reason
		n.tell(c.Component).why = &why
	}
	return nil
}

// fillCauses sets the causes of restored components that the store may not have kept.
func (m *Machine) fillCauses(n *node) {
	for c := fault.ComponentHost; c.Valid(); c++ {
		p := &n.components[c]
		if p.cause > fault.CauseNone {
			continue
		}
		p.cause = fault.CauseNone
		if p.state == fault.Sick || p.state == fault.Failed {
			p.cause = c.Cause()
			d, link := c.LinkDirection()
			switch {
			case link && n.peers[d.Index()] != nil && n.peers[d.Index()].dead.on:
				p.cause = fault.CauseNode
			case link && n.peers[d.Index()] != nil && n.peers[d.Index()].failure(fault.HalfDNP).on:
				p.cause = fault.CauseDNP
			case n.dead.on && (c == fault.ComponentHost || c == fault.ComponentDNP):
				p.cause = fault.CauseNode
			}
		}
	}
	for _, h := range halves {
		if n.failure(h).on {
			f := &m.suspicionOf(n).failed[h-1]
			f.state, f.cause = fault.Failed, h.Component().Cause()
		}
	}
}

// Step processes one event. A time before that of the last step counts as that of the last step.
func (m *Machine) Step(now time.Time, ev Event) Output {
	if r, ok := ev.(Restated); ok && m.unknown(r) {
		return Output{Unknown: true, Wake: m.wake()}
	}
	now = fault.Later(now, m.now)
	m.doubtIfLate(now)
	if now.After(m.now) {
		m.doubtIfAllAreLate(now)
	}
	m.awake, m.now = m.now, now
	m.out = Output{Changes: m.atStart}
	m.atStart = nil
	m.look()
	m.waitingNotices(now)
	switch ev := ev.(type) {
	case Evidence:
		m.hears(now)
		m.evidence(ev.Delivery, now)
	case Restated:
		m.hears(now)
		m.restated(ev, now)
	case Answered:
		m.hears(now)
		m.answered(ev, now)
	case Refused:
		m.refused(ev, now)
	case ForeignVerdict:
		m.foreignVerdict(ev, now)
	case GossipOpinion:
		if rank, ok := m.ranks[ev.Node]; ok && !ev.Alive && !m.nodes[rank].foreign && !m.nodes[rank].revoked && !m.nodes[rank].stopped {
			m.probe(m.nodes[rank], 0, m.cfg.DigestPeriod, now)
		}
	case Labelled:
		m.labelled(ev, now)
	case Moved:
		m.moved(ev, now)
	case Revoked:
		m.revokedNodes(ev, now)
	}
	for len(m.wakes) > 0 && !m.wakes[0].next.After(now) {
		n := heap.Pop(&m.wakes).(*node)
		if m.doubt.Equal(now) {
			m.respite(n)
		}
		m.touch(n)
	}
	m.lookAtGroups(now)
	m.run(now)
	m.sortOutput()
	m.out.Wake = m.wake()
	return m.out
}

// wake returns when the machine needs its next step; zero for never.
func (m *Machine) wake() time.Time {
	at := m.common.nextLook()
	if len(m.wakes) > 0 {
		at = fault.Earliest(at, m.wakes[0].next)
	}
	if len(m.notices) > 0 {
		at = fault.Earliest(at, m.now.Add(lull))
	}
	return at
}

// evidence processes one report.
func (m *Machine) evidence(d fault.Delivery, now time.Time) {
	id := d.Report.ID
	rank, ok := m.ranks[id.Origin.Node]
	if !ok || !id.Origin.Half.Valid() || id.Epoch == 0 || id.Seq == 0 || !d.Path.Valid() {
		return
	}
	n, h := m.nodes[rank], id.Origin.Half
	if m.refuses(n, now) || m.ofFormerPlace(n, h, id.Epoch, now) {
		return
	}
	still := m.undisturbed(n, h, now)
	a := arrival{Delivery: d, clock: m.clock, now: now, window: m.window(), placed: m.placed(n), changed: func(s slot) {
		still = false
		about, c := s.about()
		if about >= 0 {
			m.touch(n.neighbours[about].node)
		} else if dir, ok := c.LinkDirection(); ok && n.peers[dir.Index()] != nil {
			m.touch(n.peers[dir.Index()])
		}
	}}
	epoch := n.voice(h).epoch
	fresh := n.voice(h).take(a, n.index)
	if fresh {
		n.speaker, n.registersAt = h, m.clock.instant(now)
	}
	m.foresees(n, d, now)
	m.notice(n, d, now)
	m.stopNotice(n, d, now)
	if still && n.voice(h).epoch == epoch && len(d.Report.Readings) == 0 {
		return
	}
	m.disturb(n, h, fresh, now)
}

// speaks returns the node whose digest is restated; nil if the message is invalid.
func (m *Machine) speaks(r Restated) *node {
	rank, ok := m.ranks[r.Origin.Node]
	if !ok || !r.Origin.Half.Valid() || r.Epoch == 0 || r.Seq == 0 || !r.Path.Valid() {
		return nil
	}
	return m.nodes[rank]
}

// unknown reports whether the restated digest's content is unknown.
func (m *Machine) unknown(r Restated) bool {
	n := m.speaks(r)
	return n != nil && n.voice(r.Origin.Half).unknown(stamp{r.Epoch, r.Seq})
}

// restated processes a repetition of a half's newest digest.
func (m *Machine) restated(r Restated, now time.Time) {
	n := m.speaks(r)
	if n == nil || m.refuses(n, now) || m.ofFormerPlace(n, r.Origin.Half, r.Epoch, now) {
		return
	}
	h := r.Origin.Half
	still := m.undisturbed(n, h, now)
	fresh := n.voice(h).restate(stamp{r.Epoch, r.Seq}, r.Path, now.Add(-max(0, r.Held)), now, m.clock)
	if fresh {
		n.speaker, n.registersAt = h, m.clock.instant(now)
	}
	if still {
		return
	}
	m.disturb(n, h, fresh, now)
}

// disturb looks at a node because one of its halves has sent a report.
func (m *Machine) disturb(n *node, h fault.Half, fresh bool, now time.Time) {
	m.touch(n)
	m.touchDisputed(n)
	if f := n.failure(h); fresh && f.on && !n.foreign && !n.proven(h, f.mark) {
		// The report may have been sent just before death: send a challenge.
		m.probe(n, h, m.cfg.ChallengeHalf, now)
	}
}

// undisturbed reports whether a report of the half without news has no effect: the half's statements count, and the node's
// state does not depend on the times of statements. The node's next look stays as scheduled; a deadline that this
// report renewed then turns out not to be due.
func (m *Machine) undisturbed(n *node, h fault.Half, now time.Time) bool {
	return !n.restless && !n.settling && m.states(n, h, now)
}

// index returns the neighbour that an observation of the node's halves is about, -1 for the node itself.
func (n *node) index(about fault.NodeID) (int, bool) {
	if about == n.id || about == "" {
		return -1, true
	}
	for i := range n.neighbours {
		if n.neighbours[i].node.id == about {
			return i, true
		}
	}
	return 0, false
}

// touchDisputed touches the neighbours on which the node's two halves disagree: even a repetition then decides which
// statement is newer.
func (m *Machine) touchDisputed(n *node) {
	n.disputed(func(s slot) {
		about, c := s.about()
		if about >= 0 {
			m.touch(n.neighbours[about].node)
		} else if d, ok := c.LinkDirection(); ok && n.peers[d.Index()] != nil {
			m.touch(n.peers[d.Index()])
		}
	})
}

// disputed calls f for every slot on which the node's two halves disagree. Two plain statements differ at most in kind;
// each half's statement about itself then counts.
func (n *node) disputed(f func(slot)) {
	for i := range n.voices {
		v, o := &n.voices[i], &n.voices[1-i]
		for k := range v.others {
			r := &v.others[k]
			if was, _, ok := o.last(r.slot); ok && (was.state != r.state || was.kind != r.kind) {
				f(r.slot)
			}
		}
	}
}

// touch marks a node to be settled and published in this step.
func (m *Machine) touch(n *node) {
	if !n.settling {
		n.settling = true
		m.dirty = append(m.dirty, n)
	}
}

// run settles the touched nodes and the nodes that these touch in turn, lowest rank first, then publishes them. It
// terminates because a verdict falls and is lifted at most once per step.
func (m *Machine) run(now time.Time) {
	m.touched = m.touched[:0]
	for len(m.dirty) > 0 {
		m.wave, m.dirty = m.dirty, m.wave[:0]
		sortNodes(m.wave)
		for _, n := range m.wave {
			n.settling = false
			if !n.touched {
				n.touched = true
				m.touched = append(m.touched, n)
			}
			m.wakes.drop(n)
			m.look()
			m.settle(n, now)
			if m.moves(n, now) {
				m.touch(n) // its halves' verdicts depend on one another
				for _, nb := range n.neighbours {
					m.touch(nb.node)
				}
			}
		}
	}
	sortNodes(m.touched)
	m.publish(now)
	for _, n := range m.touched {
		n.touched = false
		if !n.foreign {
			m.acquit(n, now)
			m.forgetRestart(n, now)
			m.forgetStop(n, now)
		}
		n.disputed(func(slot) { n.restless = true })
		n.restless = n.restless || n.inferred || n.suspicion != &m.calm
		m.wakes.set(n)
	}
}

// mood is the part of a node's condition that its neighbours' verdicts depend on, besides statements and suspicion.asked.
type mood struct {
	current, states, failed [2]bool
	dead, inferred          bool
}

// moves records the node's mood and reports whether it has changed since the neighbours last saw it.
func (m *Machine) moves(n *node, now time.Time) bool {
	is, asked := mood{dead: n.dead.on, inferred: n.inferred}, [3]roundMood{}
	for i, h := range halves {
		is.current[i], is.states[i], is.failed[i] = m.current(n, h, now), m.states(n, h, now), n.failed[i].on
	}
	for k := range n.rounds {
		r := &n.rounds[k]
		asked[k] = roundMood{r.open, n.answered(fault.Half(k)), r.shared, r.due, r.mute, r.awaits}
	}
	if is == n.mood && asked == n.asked {
		return false
	}
	n.mood = is
	if asked != n.asked {
		m.suspicionOf(n).asked = asked
	}
	return true
}

func sortNodes(nodes []*node) {
	slices.SortFunc(nodes, func(a, b *node) int { return a.rank - b.rank })
}

func (m *Machine) sortOutput() {
	slices.SortStableFunc(m.out.Challenges, func(a, b Challenge) int {
		if d := m.ranks[a.Node] - m.ranks[b.Node]; d != 0 {
			return d
		}
		return int(a.Half) - int(b.Half)
	})
}
