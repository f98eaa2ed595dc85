package awareness

import (
	"fmt"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// When many neighbours die at once, most potential accusers of a node are dead themselves, and the nodes
// inside have no accusers at all. So doubt spreads: a node that does not answer a challenge in time is *mute*,
// and all nodes around it are challenged in turn, the accusers as well. A node that answers is a live witness.
// A node that does not is mute, and no witness. The spreading ends at the live nodes.
//
//	asked ──no answer in time──► mute ──all around are dead, mute or accuse──► FAILED (seen from outside)
//	  ▲                           │                                            or inferred (seen by none)
//	  └── a neighbour is mute     └──any sign of life──► no longer mute
//
// A connected set of mute nodes is judged as a whole. The verdict falls when the live witnesses around it hear
// nothing, have themselves answered since (otherwise this supervisor may be cut off), and ChallengeSingle is over.
// If live neighbours still hear a node of the set, the paths to the set may be at fault, and no node is condemned.
// The exception is a set with so many accusers per such neighbour that the neighbour probably lies or does not
// look. Even then, the nodes that it hears are not condemned.

// standing is a node's membership in groups of nodes with the same fate.
type standing struct {
	inferred    bool // no sign of life, enclosed by dead nodes
	unreachable bool // no live path leads to it
	marks       marks
	inferredAt  time.Time
}

// doubted returns since when a node owes a sign of life because a neighbour is dead or mute; zero when it does not. A
// node that accuses a dead neighbour has noticed the death, so it lives.
//
// A node that is UNKNOWN and that this leader has never heard owes nothing: it has no state to lose.
func (m *Machine) doubted(n *node, now time.Time) time.Time {
	var since time.Time
	if m.joining(n, now) {
		return since
	}
	if n.heard(0).IsZero() && n.components[fault.ComponentNode].state == fault.Unknown {
		return since
	}
	for _, nb := range n.neighbours {
		p := nb.node
		var at time.Time
		life := n.heard(0)
		switch {
		case p.dead.on:
			at = p.dead.at
		case m.unseen(p, now):
			at = p.inferredAt
		default:
			at, life = p.rounds[0].mute, m.askedAt(n)
		}
		if at.IsZero() || !life.Before(at) || p.dead.on && m.hearsNothing(p.neighbours[nb.index], now) {
			continue
		}
		if p.dead.on { // its own accusation may be on its way: the node need not have noticed as soon as the others
			if notices := m.deadline(at, m.cfg.ChallengeNode); now.Before(notices) {
				m.wakeWhenDue(n, notices, now)
				continue
			}
		}
		since = fault.Later(since, at)
	}
	if !since.IsZero() && now.Before(m.graceEnds()) {
		n.wakeAt(m.graceEnds(), now)
		return time.Time{}
	}
	return since
}

// putsOff reports whether the challenge to a node that is only in doubt must wait. While the shell is behind, doubt
// spreads no faster than challenges can go out: the live nodes are many, and their answers would add to the delay.
func (m *Machine) putsOff(n *node, now time.Time) bool {
	if !m.isBehind(now) || affords(&m.doubts, now) {
		return false
	}
	m.wakeWhenDue(n, now.Add(m.behind.by), now)
	return true
}

// askedAt returns when the newest challenge that the node has answered was sent.
func (m *Machine) askedAt(n *node) time.Time {
	return m.clock.time(max(n.voices[0].asked, n.voices[1].asked))
}

// speakAgain records a sign of life from a mute node.
func (m *Machine) speakAgain(n *node, now time.Time) {
	r := &n.rounds[0]
	if r.mute.IsZero() || !n.answered(0) && !n.heard(0).After(r.owes) {
		return
	}
	r.mute, r.shared, r.awaits = time.Time{}, false, time.Time{}
	m.suspicionOf(n).spoke = now
}

// stayMute keeps a mute node mute when another accusation restarts its round: a new accusation is no sign of life and
// makes the node no witness. The nodes around it are challenged again as well.
func (m *Machine) stayMute(n *node, before round) {
	if r := &m.suspicionOf(n).rounds[0]; !before.mute.IsZero() && r.mute.IsZero() {
		r.mute, r.owes, r.awaits = r.start, before.owes, before.awaits
	}
}

// turnMute marks a node that missed its deadline as mute; around is the number of its mute neighbours.
func (m *Machine) turnMute(n *node, around int, now time.Time) {
	r := &n.rounds[0]
	if !r.open || n.answered(0) || n.heard(0).After(r.start) {
		return
	}
	due := fault.Later(m.deadline(r.start, time.Duration(r.waits)*m.cfg.ChallengeNode), m.graceEnds())
	if r.mute.IsZero() && !now.Before(due) {
		r.mute, r.owes = now, r.start
	}
	r.shared = !r.mute.IsZero() && around > 0
	m.wakeWhenDue(n, due, now)
}

// noteMute maintains the list of mute nodes without a judgement.
func (m *Machine) noteMute(n *node, now time.Time) {
	if n.inferred && n.heard(0).After(n.inferredAt) {
		n.inferred = false
	}
	if n.rounds[0].mute.IsZero() || n.dead.on || m.unseen(n, now) {
		delete(m.common.mutes, n.rank)
		return
	}
	if m.common.mutes == nil {
		m.common.mutes = map[int]*node{}
	}
	m.common.mutes[n.rank] = n
	if m.common.judge.IsZero() {
		m.common.judge = now.Add(m.cfg.ChallengeNode / 4)
	}
}

// judgeMutes judges every connected set of mute nodes.
func (m *Machine) judgeMutes(now time.Time) {
	m.common.judge = time.Time{}
	var again time.Time
	seen := map[*node]bool{}
	for _, n := range byRank(m.common.mutes) {
		if seen[n] {
			continue
		}
		set := connected(n, seen, func(p *node) bool { return p.dead.on || p.inferred || !p.rounds[0].mute.IsZero() })
		m.awaitWitnesses(set, now)
		ready, ok := m.encloses(set, now)
		switch {
		case !ok || m.alone(set, now):
		case now.Before(ready):
			again = fault.Earliest(again, ready)
		default:
			m.condemn(set, now)
		}
	}
	m.common.judge = again
}

// awaitWitnesses sets awaits of the mute nodes in a set: until then, no link is blamed for their silence. It does so if a witness whose
// DNP half has just started still waits for their first frames, and no neighbour hears any of them.
func (m *Machine) awaitWitnesses(set []*node, now time.Time) {
	var until time.Time
	heard := false
	for _, n := range set {
		r := &n.rounds[0]
		if r.mute.IsZero() || n.dead.on || m.unseen(n, now) {
			continue
		}
		for _, nb := range n.neighbours {
			if !nb.node.rounds[0].mute.IsZero() || m.apart(nb, now) || !m.acquits(nb.node, now) {
				continue
			}
			since, hears := m.firstFrames(nb, now)
			heard = heard || hears
			if !since.IsZero() {
				until = fault.Later(until, fault.Earlier(since, r.owes.Add(m.cfg.LinkGrace)).Add(m.cfg.LinkGrace+m.cfg.DigestPeriod))
			}
		}
	}
	if heard {
		until = time.Time{}
	}
	for _, n := range set {
		if r := &n.rounds[0]; !r.mute.IsZero() && !r.awaits.Equal(until) {
			m.suspicionOf(n).rounds[0].awaits = until
			m.touch(n)
		}
	}
}

// firstFrames returns since when the neighbour waits for the first frame on a link to the node; zero: it does not wait. It also returns
// whether the neighbour hears the node.
func (m *Machine) firstFrames(nb neighbour, now time.Time) (since time.Time, hears bool) {
	for _, d := range nb.links() {
		switch r, _ := m.ownWord(nb.node, fault.Link(d), now); {
		case r == nil:
		case r.state == fault.Unknown:
			since = fault.Later(since, r.since)
		case !r.silent():
			hears = true
		}
	}
	return since, hears
}

// judged returns until when silence towards a mute node waits for the verdict on the node's set. The set is ready when
// ChallengeSingle is over for its last challenged node, which gets the full time. If the set is not condemned by then,
// some node hears it, and the links may cause the silence, or its links have not settled (see unsettled).
func (m *Machine) judged(r *round) time.Time {
	return m.deadline(r.start, 2*time.Duration(r.waits)*m.cfg.ChallengeSingle)
}

// alone reports whether only one node of the set is mute and none of the witnesses around it is: then the votes on that
// node decide.
func (m *Machine) alone(set []*node, now time.Time) bool {
	var one *node
	for _, n := range set {
		if n.dead.on || m.unseen(n, now) {
			continue
		}
		if one != nil {
			return false
		}
		one = n
	}
	if one == nil {
		return false
	}
	v := m.count(one, now, time.Time{}, now)
	return v.live > 0 && v.mute == 0
}

// connected returns the nodes that belong and are connected to n over links, in the order found.
func connected(n *node, seen map[*node]bool, belongs func(*node) bool) []*node {
	set := []*node{n}
	seen[n] = true
	for i := 0; i < len(set); i++ {
		for _, nb := range set[i].neighbours {
			if !seen[nb.node] && belongs(nb.node) {
				seen[nb.node] = true
				set = append(set, nb.node)
			}
		}
	}
	return set
}

// encloses reports whether all nodes around a set of mute and dead nodes are silent or accuse it, and when the set may
// be condemned.
func (m *Machine) encloses(set []*node, now time.Time) (ready time.Time, ok bool) {
	accused := false
	accusers, dissenters := map[*node]bool{}, map[*node]bool{}
	for _, n := range set {
		accused = accused || n.dead.on || n.inferred
		r := &n.rounds[0]
		if r.mute.IsZero() || n.dead.on || m.unseen(n, now) {
			continue
		}
		v := m.count(n, r.start, m.forgiven(n, now, halves[:]...), now)
		if m.owed(n, now) {
			return time.Time{}, false
		}
		for _, nb := range n.neighbours {
			switch w := nb.node; {
			case m.apart(nb, now):
				continue
			case slices.Contains(v.by, w):
				if accusers[w] = true; !w.foreign && m.askedAt(w).Before(r.mute) {
					return time.Time{}, false // already challenged
				}
			case w.rounds[0].mute.IsZero() && m.acquits(w, now):
				dissenters[w] = true
			default:
				continue
			}
			if nb.node.heard(0).Before(r.mute) {
				return time.Time{}, false // already challenged
			}
		}
		if v.cast > 0 {
			accused = true
			ready = fault.Later(ready, m.deadline(r.start, time.Duration(r.waits)*m.cfg.ChallengeSingle))
		}
	}
	if d := len(dissenters); d > 0 && (len(accusers) < outvotes*d) {
		return time.Time{}, false
	}
	return ready, accused
}

// outvotes is the number of accusers that outweigh one neighbour which still hears a node of a silent set.
const outvotes = 8

// owed reports whether a neighbour without a sign of life still has time to answer. A stopped one is not asked.
func (m *Machine) owed(n *node, now time.Time) bool {
	for _, nb := range n.neighbours {
		p := nb.node
		if !m.joining(p, now) && !p.foreign && !p.stopped && !p.dead.on && !p.inferred && p.rounds[0].mute.IsZero() && !p.heard(0).IsZero() &&
			!m.current(p, fault.HalfHost, now) && !m.current(p, fault.HalfDNP, now) {
			return true
		}
	}
	return false
}

// condemn issues the verdict on a set of mute nodes: nodes that a live witness accuses are FAILED, the others inferred
// dead.
func (m *Machine) condemn(set []*node, now time.Time) {
	type vote struct {
		n *node
		votes
	}
	var accused []vote
	for _, n := range set {
		if n.dead.on || m.unseen(n, now) || m.restartHolds(n, 0, now) {
			continue
		}
		v := m.count(n, n.rounds[0].start, m.forgiven(n, now, halves[:]...), now)
		switch {
		case v.cast < v.live, v.cast == 0 && m.unsettled(n, now):
			continue
		case v.cast == 0:
			m.becomeInferred(n, now)
			continue
		}
		accused = append(accused, vote{n, v})
	}
	for _, a := range accused { // after the count: a verdict changes the set of witnesses
		m.becomeDead(a.n, finding{
			state: fault.Failed, cause: fault.CauseNode, kind: fault.KindVotes, path: a.decides.path, single: true, name: ruleEnclosed,
			began: fault.Later(a.decides.began, a.n.heard(0)),
			rule: fmt.Sprintf("%s, no answer within %s, nor of the %d others of its block", a.silentTo(a.n),
				roughly(now.Sub(a.n.rounds[0].start)), len(set)-1),
		}, now)
	}
	for _, n := range set {
		m.touch(n)
		for _, nb := range n.neighbours {
			m.touch(nb.node)
		}
	}
}

// unsettled reports whether a live neighbour is no witness only because its links to the node have not settled. The node may be alive, and
// cut off from the torus until it has followed its order.
func (m *Machine) unsettled(n *node, now time.Time) bool {
	return slices.ContainsFunc(n.neighbours, func(nb neighbour) bool {
		return m.apart(nb, now) && nb.node.rounds[0].mute.IsZero() && m.witness(nb.node, now)
	})
}

// unseen reports whether the node is inferred dead and no live witness accuses it. If a neighbour comes back and accuses it, the machine
// judges it again like any mute node.
func (m *Machine) unseen(n *node, now time.Time) bool {
	return n.inferred && m.count(n, now, m.forgiven(n, now, halves[:]...), now).cast == 0
}

// becomeInferred marks a node as inferred dead because no live witness can see it.
func (m *Machine) becomeInferred(n *node, now time.Time) {
	n.inferred, n.inferredAt = true, now
}

// enclosed is the finding for a node that is inferred dead, and for all its components.
func enclosed(n *node) finding {
	return finding{
		state: fault.Unknown, cause: fault.CauseNone, kind: fault.KindVotes, began: n.heard(0), name: ruleInferred,
		rule: "inferred dead: no answer, and all its neighbours are dead or silent themselves",
	}
}

// byRank returns the nodes in the order of rank.
func byRank(set map[int]*node) []*node {
	out := make([]*node, 0, len(set))
	for _, n := range set {
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b *node) int { return a.rank - b.rank })
	return out
}
