package awareness

import (
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// relinks are the link ends of a node that lead to another peer since a change of places. Both ends of a link follow
// their orders at different times, and reports about the former link are still on their way. Until the link is known to
// work, it is UNKNOWN by rule "relinked", and silence on it is no vote, neither for nor against:
//
//	                 an end that has followed says that it works, and the other one does not deny it
//	relinked ────────────────────────────────────────────────────────► as its ends say
//	         ────────────────────────────────────────────────────────►
//	                               RelinkBound
//
// An end has followed once its node has reported the link as not working, because every link begins cold. If the former link did not
// work either, the end has followed once its node has reported the link as UNKNOWN. The reports of a joiner, and of an end that had no
// link before, are always about the new link. A report from one such end is enough: it means that frames pass in both directions. While
// any link of a joiner waits, silence on its links accuses no node, and the joiner is no witness. Before the first report of the joiner
// the wait has no bound, because the joiner may start at any time. A joiner that had another place before counts as heard after twice
// RelinkBound: its halves ran, so their silence means something.
//
// A link may get another peer again before it has settled. The reports of its end may then be about the peer in between, so that end is
// blurred: it does not end the wait, and the wait lasts for a third of RelinkBound at least, because the order about the peer in between
// may still be on its way. If a joiner left its place less than RelinkBound ago, all its ends are blurred too, because its daemon may not
// have ended its halves yet. Such halves keep their links, and report that these work. But the other ends may not have followed, and may
// still begin their links again.
type relinks struct {
	until  [grid.NumDirections]time.Time // zero: the end does not wait
	turned directions                    // ends that have followed
	// blurred are ends that got another peer before the link to the earlier one was settled, and those of a joiner that left its place just
	// before. The reports of their node may be about either link, so they do not tell whether the end has followed.
	blurred directions
	// dark are ends of which the former link did not work. Only UNKNOWN, the state of a link that begins, shows that they
	// have followed.
	dark   directions
	joiner bool
	met    bool // a joiner that was heard
	// placed is when a joiner got its place; zero: under an earlier leader.
	placed time.Time
	// former are the boot epochs of the halves at the place that the node had before, zero for a half that was never heard.
	// A node begins a new life at another place, so reports of these epochs are about the former place. formerUntil bounds
	// the wait for the new life; zero: the node has not moved. See moving.
	former      [2]fault.Epoch
	formerUntil time.Time
	// joined is the time from which a joiner counts like any other node, even if its links change later. It is zero before the first sign
	// of life of the joiner, and after that time.
	joined time.Time
}

// waits reports whether any end of the node waits.
func (r *relinks) waits(now time.Time) bool {
	for _, t := range r.until {
		if now.Before(t) {
			return true
		}
	}
	return false
}

// relinksOf returns the node's relinks for writing.
func (m *Machine) relinksOf(n *node) *relinks {
	r := m.rewired[n]
	if r == nil {
		if m.rewired == nil {
			m.rewired = make(map[*node]*relinks)
		}
		r = &relinks{}
		m.rewired[n] = r
	}
	return r
}

// Relinked returns the nodes with links that wait, by id. Their rules must outlive the leader.
func (m *Machine) Relinked() []fault.NodeID {
	out := make([]fault.NodeID, 0, len(m.rewired))
	for n := range m.rewired {
		if !n.foreign {
			out = append(out, n.id)
		}
	}
	slices.Sort(out)
	return out
}

// placed returns when a joiner got its place; zero: the node is none, or got it under an earlier leader.
func (m *Machine) placed(n *node) time.Time {
	if r := m.rewired[n]; r != nil && r.joiner {
		return r.placed
	}
	return time.Time{}
}

// joining reports whether the node is a joiner that was not heard yet, or not on all its links.
func (m *Machine) joining(n *node, now time.Time) bool {
	r := m.rewired[n]
	return r != nil && r.joiner && (!r.met || r.waits(now) && now.Before(r.joined))
}

// expected reports whether the node is a joiner that was not heard yet.
func (m *Machine) expected(n *node) bool {
	r := m.rewired[n]
	return r != nil && r.joiner && !r.met
}

// becomeMoved makes a node a joiner with a former place. The wait for its first report has a bound, unlike the wait for other
// joiners, because a node that dies on its way must not stay UNKNOWN.
func (m *Machine) becomeMoved(r *relinks, former [2]fault.Epoch, now time.Time) {
	r.joiner, r.turned = true, allDirections
	r.former, r.formerUntil = former, now.Add(2*m.cfg.RelinkBound)
}

// began reports whether a half of a node that has moved was heard from the present place.
func (r *relinks) began(n *node, h fault.Half) bool { return n.voice(h).epoch > r.former[h-1] }

// comes reports whether a joiner was heard. A node that has moved counts as heard at formerUntil, so that the usual judgement
// begins.
func (r *relinks) comes(n *node, now time.Time) bool {
	heard := n.heard(0) // before it got its place: a relay held a report of an earlier life
	return !heard.IsZero() && !heard.Before(r.placed) || !r.formerUntil.IsZero() && !now.Before(r.formerUntil)
}

// moving reports whether a half of a node that has moved was not heard from its new place yet, and may still come.
func (m *Machine) moving(n *node, now time.Time) bool {
	r := m.rewired[n]
	return r != nil && now.Before(r.formerUntil) && (!r.began(n, fault.HalfHost) || !r.began(n, fault.HalfDNP))
}

// moveHolds reports whether a verdict on a half waits, because its process may not run yet at the node's new place. Links that
// work show that the DNP half runs there.
func (m *Machine) moveHolds(n *node, h fault.Half, now time.Time) bool {
	r := m.rewired[n]
	if !m.moving(n, now) || r.began(n, h) || h == fault.HalfDNP && !m.joining(n, now) {
		return false
	}
	n.wakeAt(r.formerUntil, now)
	return true
}

// ofFormerPlace reports whether a message is from a half at the former place of its node. The epoch of a half without reports
// from there proves nothing, so the other half must report first.
func (m *Machine) ofFormerPlace(n *node, h fault.Half, e fault.Epoch, now time.Time) bool {
	r := m.rewired[n]
	return r != nil && now.Before(r.formerUntil) && (e <= r.former[h-1] || r.former[h-1] == 0 && !r.met)
}

// expects reports whether a peer of the node is a joiner that was not heard yet: what the node says until then still tells
// whether its end has followed.
func (m *Machine) expects(n *node) bool {
	return slices.ContainsFunc(n.peers[:], func(p *node) bool { return p != nil && m.expected(p) })
}

// waiting reports whether a link end waits until the link works.
func (m *Machine) waiting(n *node, d grid.Direction, now time.Time) bool {
	if len(m.rewired) == 0 {
		return false
	}
	if m.expected(n) || n.peers[d.Index()] != nil && m.expected(n.peers[d.Index()]) {
		return true
	}
	r := m.rewired[n]
	return r != nil && now.Before(r.until[d.Index()])
}

// mayBeSilent reports whether silence on a link proves nothing: it waits until it works, or one of its ends is a joiner.
func (m *Machine) mayBeSilent(n *node, d grid.Direction, now time.Time) bool {
	if len(m.rewired) == 0 {
		return false
	}
	return m.waiting(n, d, now) || m.joining(n, now) || n.peers[d.Index()] != nil && m.joining(n.peers[d.Index()], now)
}

// apart reports whether the neighbour cannot be a witness, because silence on each of its links to the node proves
// nothing.
func (m *Machine) apart(nb neighbour, now time.Time) bool {
	if len(m.rewired) == 0 {
		return false
	}
	for _, d := range nb.links() {
		if !m.mayBeSilent(nb.node, d, now) {
			return false
		}
	}
	return true
}

// settleRelinks ends the wait of a node's links that work, or have waited for too long.
func (m *Machine) settleRelinks(n *node, now time.Time) {
	r := m.rewired[n]
	if r == nil {
		return
	}
	if r.joiner && !r.met {
		if !r.comes(n, now) {
			n.wakeAt(r.formerUntil, now)
			return
		}
		m.meet(n, r, now)
	}
	m.countJoined(n, r, now)
	for _, d := range grid.Directions() {
		t := &r.until[d.Index()]
		p := n.peers[d.Index()]
		if p != nil && m.expected(p) {
			m.follows(n, r, d, now)
			continue
		}
		if t.IsZero() {
			continue
		}
		followed, denied := m.follows(n, r, d, now)
		if p != nil {
			also, not := m.follows(p, m.relinksOf(p), d.Opposite(), now)
			followed, denied = followed || also, denied || not
		}
		clear := m.clears(r, d)
		if p != nil {
			clear = fault.Later(clear, m.clears(m.rewired[p], d.Opposite()))
		}
		switch { // an end that leads nowhere waits for its whole time: its words are about the former link
		case n.ends.has(d) && followed && !denied && !now.Before(clear) || !now.Before(*t):
			m.endRelink(n, d)
			if p != nil {
				m.endRelink(p, d.Opposite())
			}
		default:
			n.wakeAt(*t, now)
			if clear.After(now) {
				n.wakeAt(clear, now)
			}
		}
	}
	if m.moving(n, now) {
		n.wake(r.formerUntil)
		return
	}
	if !r.waits(now) && !m.expects(n) {
		delete(m.rewired, n)
		m.settled(n)
		m.touchAround(n)
	}
}

// settled adds a node to Output.Settled, because the store's record of the node's waiting links, or of its move, is out of date.
func (m *Machine) settled(n *node) {
	if !n.foreign {
		m.out.Settled = append(m.out.Settled, n.id)
	}
}

// countJoined looks at a joiner and its neighbours again once the joiner counts like any other node.
func (m *Machine) countJoined(n *node, r *relinks, now time.Time) {
	switch {
	case r.joined.IsZero():
	case now.Before(r.joined):
		n.wakeAt(r.joined, now)
	default:
		r.joined = time.Time{}
		m.touchAround(n)
	}
}

// follows reports whether the node says that the link works and means the new one, and whether it says anything else.
func (m *Machine) follows(n *node, r *relinks, d grid.Direction, now time.Time) (followed, denied bool) {
	word, _ := m.ownWord(n, fault.Link(d), now)
	if word == nil {
		return false, false
	}
	if !word.works() {
		if word.state == fault.Unknown || !r.dark.has(d) {
			r.turned |= 1 << d.Index()
		}
		return false, true
	}
	return r.turned.has(d) && !r.blurred.has(d), false
}

// clears returns the time until which a blurred end may still follow an order about the peer in between, which ends a link that
// works already. Zero: the end is not blurred.
func (m *Machine) clears(r *relinks, d grid.Direction) time.Time {
	if r == nil || !r.blurred.has(d) {
		return time.Time{}
	}
	return r.until[d.Index()].Add(m.cfg.RelinkBound/3 - m.cfg.RelinkBound)
}

// meet records the first sign of life of a joiner: from now on its links have the usual time.
func (m *Machine) meet(n *node, r *relinks, now time.Time) {
	r.met = true
	until := now.Add(m.cfg.RelinkBound)
	r.joined = until
	for _, d := range n.ends.list() {
		r.until[d.Index()] = until
		if p := n.peers[d.Index()]; p != nil {
			m.relinksOf(p).until[d.Opposite().Index()] = until
		}
	}
	m.touchAround(n)
}

// endRelink ends the wait of a link end.
func (m *Machine) endRelink(n *node, d grid.Direction) {
	r := m.rewired[n]
	if r == nil {
		return
	}
	r.until[d.Index()] = time.Time{}
	r.blurred &^= 1 << d.Index()
	if p := &n.components[fault.Link(d)]; p.rule == ruleRelinked && p.state == fault.Unknown {
		p.rule = ruleUnheard // if its ends say nothing at all
		m.settled(n)
	}
	m.touchAround(n)
}

// isRelinked reports whether a link is UNKNOWN because it waits until it works. The peer's death, or the revocation of
// its certificates, explains the link before that.
func (m *Machine) isRelinked(n *node, d grid.Direction, now time.Time) bool {
	p := n.peers[d.Index()]
	return m.waiting(n, d, now) && (p == nil || !p.revoked && !p.stopped && !p.failure(fault.HalfDNP).on)
}

// relinkedLink returns the finding for a link that waits.
func (m *Machine) relinkedLink(n *node, d grid.Direction) finding {
	f := finding{state: fault.Unknown, cause: fault.CauseNone, kind: fault.KindDigest, name: ruleRelinked,
		rule: "it leads to another node since a change of the topology, and is not known to work yet"}
	if p := n.peers[d.Index()]; p != nil && m.expected(p) {
		f.rule = "it leads to " + string(p.id) + ", which joins and was not heard yet"
	}
	return f
}

// restoreRelinks restores the waits of an earlier leader's links, which the map names by their rule. Their time begins again,
// because the earlier leader's clock may be another one. Peers that no leader has ever heard are joiners. The earlier leader
// may have ended after a change of places and before it stored the map: a link whose stored peer is another one than now
// waits as well.
func (m *Machine) restoreRelinks(saved []NodeStatus) {
	for i := range saved {
		if w := &saved[i].Wiring; w.Former != [2]fault.Epoch{} {
			m.restoreMoved(m.nodes[m.ranks[saved[i].ID]], w.Former)
		}
	}
	for i := range saved {
		if w := &saved[i].Wiring; *w != (Wiring{}) {
			m.restoreWiring(m.nodes[m.ranks[saved[i].ID]], w)
		}
	}
	for _, n := range m.own {
		for _, d := range n.ends.list() {
			if n.components[fault.Link(d)].rule != ruleRelinked {
				continue
			}
			p := n.peers[d.Index()]
			m.restoreRelink(n, d)
			if p != nil {
				m.restoreRelink(p, d.Opposite())
			}
		}
	}
}

// restoreWiring restores what an earlier leader knew about the links of a node that wait, and begins the wait for links
// that lead to other peers than those of its committed state. That state has a link that is gone: the change to UNKNOWN is part
// of the first step.
//
// The topology may have changed since that state was stored. Then a link that waits may have led to another peer in between, and
// what its ends say may be about that peer or about the earlier link.
func (m *Machine) restoreWiring(n *node, was *Wiring) {
	now := m.wiring(n)
	unclear := directions(was.Unclear)
	if was.Revision != 0 && was.Revision != now.Revision {
		unclear = allDirections
	}
	for _, d := range grid.Directions() {
		i, bit := d.Index(), directions(1)<<d.Index()
		waits := n.components[fault.Link(d)].rule == ruleRelinked
		if waits {
			r := m.relinksOf(n)
			r.turned = r.turned&^bit | directions(was.Followed)&bit // restoreMoved has set it
			r.blurred |= unclear & bit
			r.dark |= bit
			r.until[i] = m.started
		}
		if now.Peers[i] == was.Peers[i] {
			continue
		}
		m.relink(n, d, was.Peers[i] != "", m.started)
		if p := n.peers[i]; p != nil {
			r := m.relinksOf(p)
			r.until[d.Opposite().Index()] = m.started.Add(m.cfg.RelinkBound)
			m.restoreJoiner(p, r)
		}
	}
}

// restoreMoved makes a node a joiner that had another place before. Its time begins again, like the time of its links.
func (m *Machine) restoreMoved(n *node, former [2]fault.Epoch) {
	r := m.relinksOf(n)
	r.placed = m.started
	m.becomeMoved(r, former, m.started)
	if r.met = r.began(n, fault.HalfHost) || r.began(n, fault.HalfDNP); r.met {
		r.joined = m.started.Add(m.cfg.RelinkBound)
	}
}

// restoreJoiner makes a node a joiner that no leader has ever heard.
func (m *Machine) restoreJoiner(n *node, r *relinks) {
	r.dark = allDirections
	if !n.foreign && n.voices[0].epoch == 0 && n.voices[1].epoch == 0 {
		m.becomeJoiner(r, n.id, m.started)
	}
}

// wiring returns where the links of a node lead.
func (m *Machine) wiring(n *node) (w Wiring) {
	w.Revision = m.cfg.Revision
	for i, p := range n.peers {
		if p != nil {
			w.Peers[i] = p.id
		}
	}
	if r := m.rewired[n]; r != nil {
		w.Followed, w.Unclear = uint8(r.turned), uint8(r.blurred)
		if m.moving(n, m.now) {
			w.Former = r.former
		}
	}
	return w
}

func (m *Machine) restoreRelink(n *node, d grid.Direction) {
	r := m.relinksOf(n)
	m.restoreJoiner(n, r)
	r.until[d.Index()] = m.started.Add(m.cfg.RelinkBound)
}
