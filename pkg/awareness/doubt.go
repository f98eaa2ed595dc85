package awareness

import (
	"fmt"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// When many neighbours die at once, most of those that could accuse a node are dead themselves, and of
// the nodes inside nobody says anything at all. So doubt spreads: a node that is asked whether it lives and
// does not answer in time is *mute*, and everybody around it is asked in turn, the accusers as well. What
// answers is a live witness; what does not is mute, and no witness. The spreading ends at the live ones.
//
//	asked ──no answer in time──► mute ──all around are dead, mute or accuse──► FAILED (seen from outside)
//	  ▲                           │                                            or inferred (seen by nobody)
//	  └── a neighbour is mute     └──any sign of life──► no longer mute
//
// A connected set of mute nodes is judged as a whole: when the live witnesses around it hear nothing, have
// themselves answered since (else it is this supervisor that is not heard), and ChallengeSingle is over. Where living neighbours
// still hear one of them, the silence may be that of the ways to them: nobody is condemned, unless there are so many accusers for
// each that it rather lies, or does not look. Whom it hears is not condemned even then.

// standing is how a node stands in the groups of those that share its fate.
type standing struct {
	inferred    bool // no sign of life, enclosed by the dead
	unreachable bool // no living way leads there
	marks       marks
	inferredAt  time.Time
}

// doubted returns since when a node owes a sign of life because of a neighbour that is dead or mute; zero
// when it does not. Who accuses a dead neighbour has noticed, and lives.
//
// Who is UNKNOWN and was never heard by this leader owes nothing: there is nothing to be lost.
func (m *Machine) doubted(n *node, now time.Time) time.Time {
	var since time.Time
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
		case p.inferred:
			at = p.inferredAt
		default:
			at, life = p.rounds[0].mute, m.answeredAt(n)
		}
		if at.IsZero() || !life.Before(at) || p.dead.on && m.hearsNothing(p.neighbours[nb.index], now) {
			continue
		}
		if p.dead.on { // its own word may be on its way: it need not have noticed as soon as the others
			if notices := m.deadline(at, m.cfg.ChallengeNode); now.Before(notices) {
				m.wakeWhenDue(n, notices, now)
				continue
			}
		}
		since = later(since, at)
	}
	if !since.IsZero() && now.Before(m.graceEnds()) {
		n.wakeAt(m.graceEnds(), now)
		return time.Time{}
	}
	return since
}

// putsOff says whether a node that is only in doubt is not asked yet: while the shell is behind, doubt spreads no
// faster than it can ask, for those that live are many, and their answers would make it later still.
func (m *Machine) putsOff(n *node, now time.Time) bool {
	if !m.isBehind(now) || affords(&m.doubts, now) {
		return false
	}
	m.wakeWhenDue(n, now.Add(m.behind.by), now)
	return true
}

// answeredAt returns when the newest challenge was sent that the node has answered.
func (m *Machine) answeredAt(n *node) time.Time {
	return m.clock.time(max(n.voices[0].asked, n.voices[1].asked))
}

// speakAgain notes that a mute node has been heard again.
func (m *Machine) speakAgain(n *node, now time.Time) {
	r := &n.rounds[0]
	if r.mute.IsZero() || !n.answered(0) && !n.heard(0).After(r.owes) {
		return
	}
	r.mute, r.shared = time.Time{}, false
	m.try(n).spoke = now
}

// stayMute keeps a mute node mute when it is asked anew because of another accusation: to be accused again is
// no sign of life, and makes nobody a witness. Those around it are asked anew as well.
func (m *Machine) stayMute(n *node, before round) {
	if r := &m.try(n).rounds[0]; !before.mute.IsZero() && r.mute.IsZero() {
		r.mute, r.owes = r.start, before.owes
	}
}

// turnMute notes that a node has not answered in time; around says how many of its neighbours are mute.
func (m *Machine) turnMute(n *node, around int, now time.Time) {
	r := &n.rounds[0]
	if !r.open || n.answered(0) || n.heard(0).After(r.start) {
		return
	}
	due := later(m.deadline(r.start, time.Duration(r.waits)*m.cfg.ChallengeNode), m.graceEnds())
	if r.mute.IsZero() && !now.Before(due) {
		r.mute, r.owes = now, r.start
	}
	r.shared = !r.mute.IsZero() && around > 0
	m.wakeWhenDue(n, due, now)
}

// noteMute keeps the list of the mute nodes that are not judged yet.
func (m *Machine) noteMute(n *node, now time.Time) {
	if n.inferred && n.heard(0).After(n.inferredAt) {
		n.inferred = false
	}
	if n.rounds[0].mute.IsZero() || n.dead.on || n.inferred {
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
		ready, ok := m.encloses(set, now)
		switch {
		case !ok || m.alone(set, now):
		case now.Before(ready):
			if again.IsZero() || ready.Before(again) {
				again = ready
			}
		default:
			m.condemn(set, now)
		}
	}
	m.common.judge = again
}

// judged returns until when silence towards a mute node waits for the verdict on the set that it belongs to.
// The set is ready when ChallengeSingle is over for the one of it that was asked last: there is as long again
// for that. A set that is not condemned by then is heard by somebody, and the silence may be that of the links.
func (m *Machine) judged(r *round) time.Time {
	return m.deadline(r.start, 2*time.Duration(r.waits)*m.cfg.ChallengeSingle)
}

// alone says that only one of the set is mute, and among the witnesses around it nobody: then its votes decide.
func (m *Machine) alone(set []*node, now time.Time) bool {
	var one *node
	for _, n := range set {
		if n.dead.on || n.inferred {
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

// connected returns the nodes that belong, and hang together with n over links, in the order found.
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

// encloses says whether all around a set of mute and dead nodes is silent or accuses, and from when on it
// may be condemned.
func (m *Machine) encloses(set []*node, now time.Time) (ready time.Time, ok bool) {
	accused := false
	accusers, dissenters := map[*node]bool{}, map[*node]bool{}
	for _, n := range set {
		accused = accused || n.dead.on || n.inferred
		r := &n.rounds[0]
		if r.mute.IsZero() || n.dead.on || n.inferred {
			continue
		}
		v := m.count(n, r.start, m.forgiven(n, now, halves[:]...), now)
		if m.owed(n, now) {
			return time.Time{}, false
		}
		for _, nb := range n.neighbours {
			switch w := nb.node; {
			case slices.Contains(v.by, w):
				if accusers[w] = true; !w.foreign && m.answeredAt(w).Before(r.mute) {
					return time.Time{}, false // it has been asked
				}
			case w.rounds[0].mute.IsZero() && m.witness(w, now):
				dissenters[w] = true
			default:
				continue
			}
			if nb.node.heard(0).Before(r.mute) {
				return time.Time{}, false // it has been asked
			}
		}
		if v.cast > 0 {
			accused = true
			ready = later(ready, m.deadline(r.start, time.Duration(r.waits)*m.cfg.ChallengeSingle))
		}
	}
	if d := len(dissenters); d > 0 && (len(accusers) < outvotes*d) {
		return time.Time{}, false
	}
	return ready, accused
}

// outvotes is how many accusers it takes for each neighbour that still hears one of a silent set.
const outvotes = 8

// owed says whether a neighbour of whom nothing is heard has not been given the time to answer yet.
func (m *Machine) owed(n *node, now time.Time) bool {
	for _, nb := range n.neighbours {
		p := nb.node
		if !p.foreign && !p.dead.on && !p.inferred && p.rounds[0].mute.IsZero() && !p.heard(0).IsZero() &&
			!m.current(p, fault.HalfHost, now) && !m.current(p, fault.HalfDNP, now) {
			return true
		}
	}
	return false
}

// condemn is the verdict on a set of mute nodes: those that a live witness accuses are FAILED, the
// others inferred dead.
func (m *Machine) condemn(set []*node, now time.Time) {
	type vote struct {
		n *node
		votes
	}
	var accused []vote
	for _, n := range set {
		if n.dead.on || n.inferred {
			continue
		}
		v := m.count(n, n.rounds[0].start, m.forgiven(n, now, halves[:]...), now)
		switch {
		case v.cast < v.live:
			continue
		case v.cast == 0:
			m.becomeInferred(n, now)
			continue
		}
		accused = append(accused, vote{n, v})
	}
	for _, a := range accused { // after all have been counted: a verdict changes who is a witness
		m.becomeDead(a.n, finding{
			state: fault.Failed, cause: fault.CauseNode, kind: fault.KindVotes, path: a.decides.path, single: true, name: ruleEnclosed,
			began: later(a.decides.began, a.n.heard(0)),
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

// becomeInferred marks a node that nobody living can see as inferred dead.
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
