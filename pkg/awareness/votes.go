package awareness

import (
	"fmt"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// votes are the positions of a node's neighbours towards it.
type votes struct {
	live    int       // neighbours that can be witnesses
	mute    int       // neighbours that did not answer a challenge themselves: no witnesses
	cast    int       // live neighbours that hear nothing on any of their links to it
	ended   int       // voters whose frames its kernel refused on every link between them
	any     bool      // at least one link to it is silent
	latest  time.Time // arrival of the newest silence
	decides *record   // the longest silence among the votes that count
	by      []*node   // the voters
}

// witness reports whether the node can observe its neighbours' lives: it reports, and its DNP hears.
func (m *Machine) witness(n *node, now time.Time) bool {
	return !n.dead.on && !n.stopped && !n.failure(fault.HalfDNP).on && (m.current(n, fault.HalfHost, now) || m.current(n, fault.HalfDNP, now))
}

// acquits reports whether the node is a witness whose missing accusation speaks for a neighbour.
func (m *Machine) acquits(n *node, now time.Time) bool {
	return m.witness(n, now) && m.hearsLinks(n, now)
}

// hearsLinks reports whether the states of a witness's links are of now. While its DNP half restarts as announced, they date from before
// the restart.
func (m *Machine) hearsLinks(n *node, now time.Time) bool {
	return m.awaited(n, now).Ends(fault.HalfDNP).IsZero()
}

// count counts the votes against the node. Silences that began to arrive at after or later decide: an old silence, of a
// link that was cut long ago, does not tell when the node died. Silences from before forgiven do not count. Old
// silences of a node that was mute or dead count as new once its statements count again: during the earlier challenges,
// none of its observations may have come through.
func (m *Machine) count(n *node, after, forgiven, now time.Time) votes {
	var v votes
	var old *record
	for _, nb := range n.neighbours {
		if m.apart(nb, now) {
			continue
		}
		if !nb.node.rounds[0].mute.IsZero() {
			v.mute++
			if vote, _, _ := m.vote(nb, now); vote != nil { // the round stays open while the neighbour may report again
				v.any, v.latest = true, fault.Later(v.latest, vote.since)
			}
			continue
		}
		if !m.witness(nb.node, now) {
			continue
		}
		vote, all, ended := m.vote(nb, now)
		if all || m.hearsLinks(nb.node, now) {
			v.live++
		}
		if vote != nil && vote.since.Before(forgiven) {
			continue
		}
		if vote != nil {
			v.any = true
			v.latest = fault.Later(v.latest, vote.since)
		}
		if !all {
			continue
		}
		v.cast++
		if ended {
			v.ended++
		}
		v.latest = fault.Later(v.latest, nb.node.believed())
		v.by = append(v.by, nb.node)
		if old == nil || vote.began.Before(old.began) {
			old = vote
		}
		if !vote.since.Before(after) && (v.decides == nil || vote.began.Before(v.decides.began)) {
			v.decides = vote
		}
	}
	if v.decides == nil {
		v.decides = old
	}
	return v
}

// vote returns the newest silence among the neighbour's links, nil if none is silent, whether all of its links are
// silent, and whether the node's kernel refused the neighbour's frames on each of them. A neighbour keeps its vote
// as long as it answers challenges, even if its reports are lost: a leader that is behind drops reports before answers.
func (m *Machine) vote(nb neighbour, now time.Time) (last *record, all, ended bool) {
	if nb.node.allPlain() {
		return nil, false, false
	}
	all, ended = true, true
	for _, d := range nb.links() {
		if m.mayBeSilent(nb.node, d, now) {
			continue
		}
		r, _ := m.newestWord(nb.node, fault.Link(d), func(h fault.Half) bool { return m.current(nb.node, h, now) })
		if !r.silent() {
			all, ended = false, false
			continue
		}
		ended = ended && r.ended
		if last == nil || r.since.After(last.since) || (r.since.Equal(last.since) && r.began.After(last.began)) {
			last = r
		}
	}
	return last, all && last != nil, ended && last != nil
}

// hearsNothing reports whether the neighbour accuses the node, for the choice of rails.
func (m *Machine) hearsNothing(nb neighbour, now time.Time) bool {
	_, all, _ := m.vote(nb, now)
	return all
}

// enough reports whether the votes allow a verdict, and whether the verdict would rest on fewer live witnesses than the
// quorum. It then needs a majority of the live neighbours.
func enough(cast, live, degree int) (ok, single bool) {
	quorum := Quorum(degree)
	if live >= quorum {
		return cast >= quorum, false
	}
	return 2*cast > live, true
}

// judgeNode counts the votes and declares the node dead if they suffice and it does not answer.
func (m *Machine) judgeNode(n *node, now time.Time) {
	m.speakAgain(n, now)
	if m.joining(n, now) && !n.dead.on {
		m.close(n, 0)
		return
	}
	v := m.count(n, n.rounds[0].start, m.forgiven(n, now, halves[:]...), now)
	ok, single, domain := m.verdict(n, v, now)
	if n.dead.on {
		if ok && !single && n.dead.single { // others have come back and confirm it
			d := &m.suspicionOf(n).dead
			d.single, d.name, d.rule = false, ruleQuorum, v.silentTo(n)
		}
		return
	}
	doubt := m.doubted(n, now)
	if !v.any && doubt.IsZero() {
		m.close(n, 0)
		return
	}
	if !v.any && !n.rounds[0].open && m.putsOff(n, now) {
		return
	}
	if !n.rounds[0].open || n.answered(0) {
		v.latest = fault.Later(v.latest, doubt)
	}
	wait := m.waitForNode(n, v, single, now)
	before := n.rounds[0]
	m.ask(n, 0, grounds{latest: v.latest, enough: ok, wait: wait, doubt: !v.any}, now)
	m.stayMute(n, before)
	r := &n.rounds[0]
	if m.restartHolds(n, 0, now) {
		m.turnMute(n, v.mute, now) // no verdict on this node, but the verdicts on its neighbours do not wait for it
		return
	}
	if !ok || n.answered(0) || now.Before(m.caughtUp(r.due)) {
		m.turnMute(n, v.mute, now)
		return
	}
	if now.Before(m.graceEnds()) {
		n.wakeAt(m.graceEnds(), now)
		return
	}
	f := finding{
		state: fault.Failed, cause: fault.CauseNode, kind: fault.KindVotes, path: v.decides.path, single: single,
		began: fault.Later(fault.Later(v.decides.began, n.heard(0)), m.missedStop(n)), // a later sign of life puts the death later
		name:  ruleQuorum,
		rule:  fmt.Sprintf("%s, no answer within %s", v.silentTo(n), roughly(r.due.Sub(r.start))),
	}
	if wait < m.cfg.ChallengeNode {
		f.rule += "; its kernel refused frames and challenges"
	}
	f.rule += m.notBack(n)
	if single {
		f.name = ruleSingle
		if domain != "" {
			f.rule += "; all of them in " + domain
		}
	}
	m.becomeDead(n, f, now)
}

// silentTo lists the accusers and gives the count and the quorum.
func (v votes) silentTo(n *node) string {
	return fmt.Sprintf("silent to %s (%d of %d live neighbours, quorum %d)", join(ids(v.by)), v.cast, v.live, Quorum(len(n.neighbours)))
}

// becomeDead records the verdict on a whole node.
func (m *Machine) becomeDead(n *node, f finding, now time.Time) {
	t := m.suspicionOf(n)
	t.dead = verdict{on: true, at: now, mark: m.mark(now), finding: f}
	for _, h := range halves {
		// Proof of a return from an earlier verdict is older than this verdict and no longer lifts anything.
		if l := &t.failed[h-1]; !l.on || !l.proven.IsZero() {
			*l = verdict{on: true, at: now, mark: m.mark(now), finding: f}
			l.cause = h.Component().Cause()
		}
	}
	t.rounds = [3]round{}
	n.inferred = false
}

func ids(nodes []*node) []fault.NodeID {
	out := make([]fault.NodeID, 0, len(nodes))
	for _, n := range nodes {
		out = append(out, n.id)
	}
	return out
}

func join(ids []fault.NodeID) string {
	var b strings.Builder
	for i, id := range ids {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(id))
	}
	return b.String()
}
