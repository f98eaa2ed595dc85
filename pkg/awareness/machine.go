package awareness

import (
	"container/heap"
	"fmt"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Machine is the fault map and what it rests on. It is owned by one goroutine.
//
// A step takes in its event, then settles the nodes that it touches (challenges, votes and verdicts
// that stay: judge.go, votes.go, halves.go), then publishes them (components.go, links.go,
// aggregate.go). What a node's settling changes may touch its neighbours; nobody else is looked at,
// so a step costs O(changes) whatever the size of the torus.
type Machine struct {
	cfg     Config
	nodes   []*node // by rank
	ranks   map[fault.NodeID]int
	serial  uint64    // of the newest challenge
	started time.Time // when this leader took over
	now     time.Time // of this step: time never goes back
	awake   time.Time // of the step before

	// A machine that was itself late doubts itself: what it missed while it slept may still be in its
	// queue. doubt is when it last woke so late that all waits begin again. After less of a delay no
	// verdict falls before listens; delays counts the delays in a row, since a machine that is always
	// late must come to a verdict all the same.
	doubt   time.Time
	listens time.Time
	delays  int

	// A machine that heard nobody for so long that nobody's word counts any more was cut off itself.
	heard    time.Time // when it last heard anybody
	returned time.Time // when it last heard somebody again after such a time

	domains domains
	common  common

	wakes wakeHeap
	dirty []*node // to settle, then to publish
	out   Output
}

// neighbour is one of the distinct nodes at the other ends of a node's links.
type neighbour struct {
	node  *node
	index int              // of this node in the neighbour's own list
	back  []grid.Direction // the neighbour's links that end here
}

// node is what is known of one node.
type node struct {
	rank       int
	id         fault.NodeID
	coord      grid.Coord
	neighbours []neighbour
	peers      [grid.NumDirections]*node // at the end of each link; nil where there is none

	voices   [2]voice // of the host half, of the DNP half
	rounds   [3]round // of challenges: to either half, to the host half, to the DNP half
	failed   [2]verdict
	dead     verdict      // the whole node is FAILED
	standing              // among those that share its fate
	backAt   [2]time.Time // when a half's verdict was last lifted

	trends []*trend  // of what moves, by component; mostly none
	nonces []nonce   // newest last
	probed time.Time // the newest challenge outside of a round

	components  [fault.NumComponents]component
	registers   fault.Registers
	registersAt time.Time

	mood  mood      // as neighbours last saw it
	next  time.Time // when to look again; zero for never
	place int       // in the heap, -1 for none
	state struct{ settling, touched bool }
}

func (n *node) voice(h fault.Half) *voice     { return &n.voices[h-1] }
func (n *node) failure(h fault.Half) *verdict { return &n.failed[h-1] }
func (n *node) has(c fault.Component) bool {
	d, ok := c.LinkDirection()
	return !ok || n.peers[d.Index()] != nil
}
func (n *node) origin(h fault.Half) fault.Origin { return fault.Origin{Node: n.id, Half: h} }

// heard returns when the newest sign of life of the half was made; 0 stands for either half.
func (n *node) heard(h fault.Half) time.Time {
	if h == 0 {
		return later(n.voices[0].heard, n.voices[1].heard)
	}
	return n.voice(h).heard
}

// wakeAt asks to be looked at again at t.
func (n *node) wakeAt(t, now time.Time) {
	if t.After(now) && (n.next.IsZero() || t.Before(n.next)) {
		n.next = t
	}
}

// halves are both halves, the host's first.
var halves = [2]fault.Half{fault.HalfHost, fault.HalfDNP}

// New returns a machine with the map that was committed last; saved is empty for a first start. The
// restored states stand until there is evidence or, for all but FAILED halves and nodes, until they
// have gone unheard for DigestMisses digest periods. What saved does not mention is UNKNOWN.
func New(cfg Config, now time.Time, saved []NodeStatus) (*Machine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.LinkSettle == 0 {
		cfg.LinkSettle = cfg.HalfBound
	}
	m := &Machine{cfg: cfg, ranks: make(map[fault.NodeID]int, cfg.Dims.Nodes()), started: now, now: now}
	for rank := range cfg.Dims.Nodes() {
		at := cfg.Dims.At(rank)
		n := &node{rank: rank, id: cfg.IDs[at], coord: at, place: -1}
		for i := range n.components {
			n.components[i].state, n.components[i].cause, n.components[i].since = fault.Unknown, fault.CauseNone, now
		}
		m.nodes = append(m.nodes, n)
		m.ranks[n.id] = rank
	}
	for _, n := range m.nodes {
		m.connect(n)
	}
	m.domains = newDomains(cfg, m.nodes)
	seen := make(map[fault.NodeID]bool, len(saved))
	for _, s := range saved {
		if err := m.restore(s, seen[s.ID]); err != nil {
			return nil, err
		}
		seen[s.ID] = true
	}
	for _, n := range m.nodes {
		n.fillCauses()
	}
	return m, nil
}

// connect finds a node's neighbours.
func (m *Machine) connect(n *node) {
	dims := m.cfg.Dims
	for _, d := range dims.Links() {
		p, _ := dims.Neighbour(n.coord, d)
		n.peers[d.Index()] = m.nodes[dims.Rank(p)]
	}
	for _, c := range dims.Neighbours(n.coord) {
		n.neighbours = append(n.neighbours, neighbour{
			node:  m.nodes[dims.Rank(c)],
			index: slices.Index(dims.Neighbours(c), n.coord),
			back:  dims.LinksTo(c, n.coord),
		})
	}
	for i := range n.voices {
		n.voices[i].about = make([][len(described)]*record, len(n.neighbours))
	}
}

// restore puts back one node as it was committed.
func (m *Machine) restore(s NodeStatus, again bool) error {
	rank, ok := m.ranks[s.ID]
	switch {
	case !ok:
		return fmt.Errorf("restore fault map: node %q: want one of the nodes of the %s torus", s.ID, m.cfg.Dims)
	case again:
		return fmt.Errorf("restore fault map: node %s: given twice", s.ID)
	case s.Coord != m.nodes[rank].coord:
		return fmt.Errorf("restore fault map: node %s: given coordinate %s: want %s", s.ID, s.Coord, m.nodes[rank].coord)
	}
	n := m.nodes[rank]
	n.voices[0].epoch, n.voices[0].floor = s.HostEpoch, s.HostEpoch
	n.voices[1].epoch, n.voices[1].floor = s.DNPEpoch, s.DNPEpoch
	n.registers, n.registersAt = s.Registers, s.RegistersAt
	for _, c := range append([]ComponentStatus{{Component: fault.ComponentNode, State: s.State, Cause: s.Cause, Since: s.Since, Rule: s.Rule}}, s.Components...) {
		if !c.Component.Valid() || !c.State.Valid() {
			return fmt.Errorf("restore fault map: node %s: component %s is %s: want a component of the node and a state", s.ID, c.Component, c.State)
		}
		n.components[c.Component] = component{
			state: c.State, cause: c.Cause, since: c.Since, restored: true, evidence: c.Evidence,
			why: finding{state: c.State, cause: c.Cause, kind: fault.KindDigest, name: parseRule(c.Rule), rule: "as committed before"},
		}
	}
	n.components[fault.ComponentNode].single = s.SingleWitness
	for _, h := range halves {
		if c := &n.components[halfComponent(h)]; s.State == fault.Failed || c.state == fault.Failed {
			*n.failure(h) = verdict{on: true, at: m.started, mark: m.mark(m.started), finding: c.why}
		}
	}
	if s.State == fault.Failed {
		n.dead = verdict{on: true, at: m.started, mark: m.mark(m.started), finding: n.components[fault.ComponentNode].why}
		n.dead.single = s.SingleWitness
	}
	if n.unreachable = s.Unreachable; s.Inferred {
		m.becomeInferred(n, m.started)
	}
	m.touch(n)
	return nil
}

// fillCauses gives restored components the causes that a store may not have kept.
func (n *node) fillCauses() {
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
		p.why.cause = p.cause
	}
	for _, h := range halves {
		if f := n.failure(h); f.on {
			f.state, f.cause = fault.Failed, halfComponent(h).Cause()
		}
	}
}

// Step takes in one event. A time before that of the last step counts as that of the last step.
func (m *Machine) Step(now time.Time, ev Event) Output {
	now = later(now, m.now)
	m.doubtIfLate(now)
	m.awake, m.now = m.now, now
	m.out = Output{}
	switch ev := ev.(type) {
	case Evidence:
		m.hears(now)
		m.evidence(ev.Delivery, now)
	case Restated:
		m.out.Unknown = true
	case Answered:
		m.hears(now)
		m.answered(ev, now)
	case GossipOpinion:
		if rank, ok := m.ranks[ev.Node]; ok && !ev.Alive {
			m.probe(m.nodes[rank], 0, m.cfg.DigestPeriod, now)
		}
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
	m.out.Wake = m.common.nextLook()
	if len(m.wakes) > 0 && (m.out.Wake.IsZero() || m.wakes[0].next.Before(m.out.Wake)) {
		m.out.Wake = m.wakes[0].next
	}
	return m.out
}

// evidence takes in one report.
func (m *Machine) evidence(d fault.Delivery, now time.Time) {
	id := d.Report.ID
	rank, ok := m.ranks[id.Origin.Node]
	if !ok || !id.Origin.Half.Valid() || id.Epoch == 0 || id.Seq == 0 || !d.Path.Valid() {
		return
	}
	n := m.nodes[rank]
	index := func(about fault.NodeID) (int, bool) {
		if about == n.id || about == "" {
			return -1, true
		}
		i := slices.IndexFunc(n.neighbours, func(nb neighbour) bool { return nb.node.id == about })
		return i, i >= 0
	}
	fresh := n.voice(id.Origin.Half).take(d, index, now, func(about int, c fault.Component) {
		if about >= 0 {
			m.touch(n.neighbours[about].node)
		} else if dir, ok := c.LinkDirection(); ok && n.peers[dir.Index()] != nil {
			m.touch(n.peers[dir.Index()])
		}
	})
	m.foresees(n, d, now)
	m.touch(n)
	m.touchDisputed(n)
	if !fresh {
		return
	}
	n.registers, n.registersAt = d.Report.Registers, now
	if f := n.failure(id.Origin.Half); f.on && !n.proven(id.Origin.Half, f.mark) {
		// It may have been sent just before death: ask.
		m.probe(n, id.Origin.Half, m.cfg.ChallengeHalf, now)
	}
}

// touchDisputed touches the neighbours of whom the node's two halves say different things: then even
// a mere repetition decides whose word is the newer.
func (m *Machine) touchDisputed(n *node) {
	differ := func(a, b *record) bool { return a != nil && b != nil && (a.state != b.state || a.kind != b.kind) }
	for _, d := range grid.Directions() {
		if p, c := n.peers[d.Index()], fault.Link(d); p != nil && differ(n.voices[0].own[c], n.voices[1].own[c]) {
			m.touch(p)
		}
	}
	for i, nb := range n.neighbours {
		for j := range described {
			if differ(n.voices[0].about[i][j], n.voices[1].about[i][j]) {
				m.touch(nb.node)
			}
		}
	}
}

// maxDelays is how many late steps in a row hold verdicts back.
const maxDelays = 4

// slack is how late the machine may be without doubting itself, and how long it listens when it was
// later: the shell hands over one thing at a time, and the answer may come after the Tick.
func (m *Machine) slack() time.Duration { return m.cfg.ChallengeHalf / 2 }

// doubtIfLate notes when the machine itself was late: then nobody is blamed for not having answered
// a machine that did not listen. After a long sleep the waits start again.
func (m *Machine) doubtIfLate(now time.Time) {
	if len(m.wakes) == 0 || m.wakes[0].next.After(now) {
		return
	}
	late := now.Sub(m.wakes[0].next)
	if late > 2*m.cfg.ChallengeNode {
		m.doubt = now
	}
	switch {
	case late <= m.slack():
		m.delays = 0
	case m.delays < maxDelays:
		m.delays++
		m.listens = now.Add(m.slack())
	}
}

// deadline is when a question asked at start may be judged, if it is waited for so long.
func (m *Machine) deadline(start time.Time, wait time.Duration) time.Time {
	due := m.promptDeadline(start, wait)
	if !m.returned.IsZero() {
		due = later(due, m.returned.Add(returnGrace))
	}
	return due
}

// promptDeadline is deadline where more than silence accuses: the way back need not have been found.
func (m *Machine) promptDeadline(start time.Time, wait time.Duration) time.Time {
	return later(later(start, m.doubt).Add(wait), m.listens)
}

// respite lets the word of halves that fell silent while the machine slept count for one more period.
func (m *Machine) respite(n *node) {
	for _, h := range halves {
		if t := m.expiry(n, h); t.After(m.awake) {
			n.voice(h).respite = m.doubt.Add(m.cfg.DigestPeriod)
		}
	}
}

// current says whether the half's word counts: it was heard lately and is not FAILED.
func (m *Machine) current(n *node, h fault.Half, now time.Time) bool {
	return !n.failure(h).on && now.Before(m.expiry(n, h))
}

// window is how long a half's word counts.
func (m *Machine) window() time.Duration {
	return time.Duration(m.cfg.DigestMisses) * m.cfg.DigestPeriod
}

// overdue is how long after its last sign of life a half has missed a digest for certain.
func (m *Machine) overdue() time.Duration { return m.cfg.DigestPeriod * 3 / 2 }

// expiry returns when the half's word ceases to count, unless it is heard again.
func (m *Machine) expiry(n *node, h fault.Half) time.Time {
	heard := n.voice(h).heard
	if heard.IsZero() {
		return time.Time{}
	}
	return later(heard.Add(m.window()), n.voice(h).respite)
}

// graceEnds is when this leader may say FAILED.
func (m *Machine) graceEnds() time.Time { return m.started.Add(m.cfg.Grace) }

// returnGrace is how long a machine that was cut off accuses nobody of not answering: paths come back one
// by one, and each end's kernel may wait a second for its next try to find the other (arp(7): retrans_time).
const returnGrace = 1250 * time.Millisecond

// hears notes that something of somebody has come, and the return from a time in which nothing did.
func (m *Machine) hears(now time.Time) {
	if !m.heard.IsZero() && now.Sub(m.heard) >= m.window() {
		m.returned = now
	}
	m.heard = now
}

// touch marks a node to be settled and published in this step.
func (m *Machine) touch(n *node) {
	if !n.state.settling {
		n.state.settling = true
		m.dirty = append(m.dirty, n)
	}
}

// run settles what was touched and what that touches in turn, lowest rank first, then publishes it.
// It ends because within one step verdicts only fall once and are only lifted once.
func (m *Machine) run(now time.Time) {
	var touched []*node
	for len(m.dirty) > 0 {
		wave := m.dirty
		m.dirty = nil
		sortNodes(wave)
		for _, n := range wave {
			n.state.settling = false
			if !n.state.touched {
				n.state.touched = true
				touched = append(touched, n)
			}
			m.wakes.drop(n)
			m.settle(n, now)
			if mood := m.moodOf(n, now); mood != n.mood {
				n.mood = mood
				m.touch(n) // its halves' verdicts rest on one another
				for _, nb := range n.neighbours {
					m.touch(nb.node)
				}
			}
		}
	}
	sortNodes(touched)
	for _, n := range touched {
		n.state.touched = false
		m.publish(n, now)
		m.wakes.set(n)
	}
}

// mood is what of a node its neighbours' verdicts rest on besides statements.
type mood struct {
	current, failed [2]bool
	dead, inferred  bool
	rounds          [3]roundMood
}

func (m *Machine) moodOf(n *node, now time.Time) mood {
	out := mood{dead: n.dead.on, inferred: n.inferred}
	for i, h := range halves {
		out.current[i], out.failed[i] = m.current(n, h, now), n.failed[i].on
	}
	for k := range n.rounds {
		out.rounds[k] = roundMood{n.rounds[k].open, n.answered(fault.Half(k)), n.rounds[k].due, n.rounds[k].mute}
	}
	return out
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

// wakeHeap holds the nodes that have a deadline, the earliest first.
type wakeHeap []*node

func (w wakeHeap) Len() int { return len(w) }
func (w wakeHeap) Less(i, j int) bool {
	if !w[i].next.Equal(w[j].next) {
		return w[i].next.Before(w[j].next)
	}
	return w[i].rank < w[j].rank
}
func (w wakeHeap) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].place, w[j].place = i, j
}

// Push is for container/heap.
func (w *wakeHeap) Push(x any) {
	n := x.(*node)
	n.place = len(*w)
	*w = append(*w, n)
}

// Pop is for container/heap.
func (w *wakeHeap) Pop() any {
	old := *w
	n := old[len(old)-1]
	old[len(old)-1] = nil
	*w = old[:len(old)-1]
	n.place = -1
	return n
}

// drop takes the node out and forgets its deadline. The deadline of a node in the heap never changes.
func (w *wakeHeap) drop(n *node) {
	if n.place >= 0 {
		heap.Remove(w, n.place)
	}
	n.next = time.Time{}
}

// set puts in a node that is not in the heap, if it has a deadline.
func (w *wakeHeap) set(n *node) {
	if !n.next.IsZero() {
		heap.Push(w, n)
	}
}
