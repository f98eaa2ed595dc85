package awareness

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

const (
	maxChallenges = 8  // in one round by all rails: whoever has not answered that many is not asked again unprovoked
	maxNonces     = 48 // remembered a node; older challenges can no longer be answered
	maxExtensions = 3  // of a round by fresh reports of the accused, so that held-back ones win little
	repeatBurst   = 64
	repeatEvery   = time.Millisecond
	patience      = 3 // how many times the wait a round that no new accusation hurries lasts
)

// nonce is a challenge that may still be answered.
type nonce struct {
	value  [16]byte
	serial uint64
	half   fault.Half // who was asked; 0: either
	sent   time.Time
}

// mark is a point in a node's history: when it was, and what had been asked until then.
type mark struct {
	serial uint64
	at     instant
}

func (m *Machine) mark(now time.Time) mark { return mark{serial: m.serial, at: m.clock.instant(now)} }

// proven says that the half has lived after the mark: it answered a challenge that was sent after
// it, or was heard to have booted again. A first report ever is no new boot. A boot that is heard in the very
// moment of the mark counts: which of the two came first, nobody can say.
func (n *node) proven(h fault.Half, since mark) bool {
	v := n.voice(h)
	return v.answered > since.serial || v.booted >= since.at
}

// round is a question put to a node or to one of its halves because of an accusation, and put
// again until it is answered, judged, or the accusation is withdrawn:
//
//	         accused                        answered
//	closed ───────────► open, unanswered ─────────────► open, answered
//	   ▲                  │    ▲  due and enough accusers   │      │
//	   │                  │    └── accused anew, or quiet ──┘      │
//	   │                  ▼        for too long                    │
//	   │               verdict                                     │
//	   └───────────── accusation withdrawn ────────────────────────┘
type round struct {
	open  bool
	since mark      // an answer counts when what it answers was asked after this
	start time.Time // when it was first asked
	next  time.Time // when to ask again
	due   time.Time // by when an answer is to have come; a verdict may fall when all that came by then is known
	waits int       // how many times the wait for an answer, in due
	sent  int       // by all rails
	whole time.Time // when to ask by all rails again; until then straight only
	// extended counts how often a fresh report of the accused began the wait anew.
	extended int
	// checked says that a quorum against an answer was asked once more after LinkSettle.
	checked bool
	// mute is when a node that was asked whether it lives had failed to answer in time; zero when it has
	// not. Only of the round of the whole node: see doubt.go.
	mute time.Time
	owes time.Time // since when a mute node owes a sign of life
	// shared says that neighbours are mute as well: the set is judged as a whole.
	shared bool
}

// roundMood is what neighbours' verdicts rest on.
type roundMood struct {
	open, answered, shared bool
	due, mute              time.Time
}

// answered says whether the round's question has been answered; k is 0 for the whole node.
func (n *node) answered(k fault.Half) bool {
	r := &n.rounds[k]
	if !r.open {
		return false
	}
	if k != 0 {
		return n.proven(k, r.since)
	}
	return n.proven(fault.HalfHost, r.since) || n.proven(fault.HalfDNP, r.since)
}

// suspicion is what is held against a node or half at present.
type suspicion struct {
	latest time.Time     // when the newest accusation arrived
	enough bool          // enough accusers for a verdict
	wait   time.Duration // for an answer, before that verdict
	doubt  bool          // nobody accuses it: only its neighbours are dead or mute
}

// ask runs the round k of the node for one step: opens it, asks, asks again, begins anew.
func (m *Machine) ask(n *node, k fault.Half, s suspicion, now time.Time) {
	r := &m.try(n).rounds[k]
	heard := n.heard(k)
	r.due = m.answerBy(r.start, time.Duration(r.waits)*s.wait)
	switch {
	case !r.open:
		m.begin(n, k, 1, s.doubt, now)
	case n.answered(k):
		m.askAgain(n, k, s, now)
	case heard.After(r.start) && r.extended < maxExtensions:
		// It signs fresh reports, so perhaps it is only slow (faults.md 20).
		old := *r
		m.begin(n, k, old.waits, s.doubt, now)
		r.extended, r.checked = old.extended+1, old.checked
	case s.latest.After(r.start) && !now.Before(m.caughtUp(r.due)) && (heard.After(r.start) || s.latest.Sub(r.start) > m.cfg.ChallengeSingle):
		// What it did not answer then has nothing to do with the new accusation.
		m.begin(n, k, 1, s.doubt, now)
	case r.sent == 0 && !now.Before(m.caughtUp(r.due)):
		// It was asked straight alone, for want of time: nobody is condemned who was not asked by all rails.
		r.start = now
		m.askWhole(n, k, now)
	case s.enough && !now.Before(later(m.caughtUp(r.due), m.graceEnds())):
		// The verdict falls.
	case !r.next.IsZero() && !now.Before(r.next):
		m.repeat(n, k, now)
	}
	r.due = m.answerBy(r.start, time.Duration(r.waits)*s.wait)
	if !n.answered(k) {
		m.wakeWhenDue(n, m.caughtUp(r.due), now)
		if !r.next.IsZero() {
			n.wakeAt(r.next, now)
		}
	}
}

// askAgain decides whether an answered round begins anew: for a new accusation, or because the
// accusers stand by theirs and the accused has not been heard for too long.
func (m *Machine) askAgain(n *node, k fault.Half, s suspicion, now time.Time) {
	r := &m.try(n).rounds[k]
	if s.latest.After(r.start) {
		m.begin(n, k, 1, s.doubt, now)
		return
	}
	if !s.enough {
		return
	}
	if k == 0 && !r.checked && !n.failure(fault.HalfDNP).on && !n.proven(fault.HalfDNP, r.since) {
		// The host answered, and should by now have said that its DNP is dead. Is it still there?
		at := r.start.Add(m.cfg.LinkSettle)
		if !now.Before(at) {
			m.begin(n, k, patience, s.doubt, now)
			r.checked = true
			return
		}
		n.wakeAt(at, now)
	}
	at := later(r.start, n.heard(k)).Add(m.overdue())
	if !now.Before(at) {
		m.begin(n, k, patience, s.doubt, now)
		r.checked = true
		return
	}
	n.wakeAt(at, now)
}

// close ends the round: what was asked about is no longer said.
func (m *Machine) close(n *node, k fault.Half) {
	if n.rounds[k] != (round{}) {
		m.try(n).rounds[k] = round{}
	}
}

// begin opens the round, or opens it anew, and asks: by all rails, and once more so within the wait, and
// straight at short intervals as long as the wait lasts, so that lost datagrams condemn nobody: not even
// a node whose DNP hangs, so that the torus carries nothing, and whose only interface loses a third. Who is
// only in doubt is asked straight first, and so is everybody while the shell is behind: when many die at once, most of
// those around them live and answer, and every rail costs them and us.
func (m *Machine) begin(n *node, k fault.Half, waits int, doubt bool, now time.Time) {
	r := &m.try(n).rounds[k]
	*r = round{open: true, since: m.mark(now), start: now, waits: waits, whole: m.caughtUp(now.Add(m.wait(k) / 2))}
	straight := doubt || m.isBehind(now)
	if !straight {
		r.sent = 1
	}
	m.challenge(n, k, straight, now)
	m.plan(r, k, now)
}

// repeat asks again.
func (m *Machine) repeat(n *node, k fault.Half, now time.Time) {
	r := &m.try(n).rounds[k]
	switch {
	case !now.Before(r.whole):
		m.askWhole(n, k, now)
		return
	case affords(&m.spent, now):
		m.challenge(n, k, true, now)
	default:
		r.next = r.whole
		return
	}
	m.plan(r, k, now)
}

// askWhole asks by all rails.
func (m *Machine) askWhole(n *node, k fault.Half, now time.Time) {
	r := &m.try(n).rounds[k]
	m.challenge(n, k, false, now)
	r.sent++
	r.whole = m.caughtUp(now.Add(m.wait(k)))
	m.plan(r, k, now)
}

// NotAsked says that a challenge of the last step could not be sent: it does not count.
func (m *Machine) NotAsked(c Challenge) {
	rank, ok := m.ranks[c.Node]
	if !ok || c.Again {
		return
	}
	if n := m.nodes[rank]; n.rounds[c.Half].open {
		r := &m.try(n).rounds[c.Half]
		r.sent = max(0, r.sent-1)
	}
}

// affords bounds the challenges that only repeat one, and those to nodes in doubt, each by a time until when they are
// paid for: repeatBurst at once, and one in every repeatEvery. Each costs a signature, and when hundreds are accused
// at once it is not their interfaces that are bad.
func affords(spent *time.Time, now time.Time) bool {
	if *spent = later(*spent, now); spent.Sub(now) >= repeatBurst*repeatEvery {
		return false
	}
	*spent = spent.Add(repeatEvery)
	return true
}

// plan sets when a question is put next; zero for never. While the shell is behind, the last one may not
// have gone yet, or its answer wait in a queue: then to ask again makes it later for all.
func (m *Machine) plan(r *round, k fault.Half, now time.Time) {
	switch soon := m.caughtUp(now.Add(m.cfg.ChallengeHalf / 4)); {
	case soon.Before(r.start.Add(time.Duration(r.waits)*m.wait(k))) && soon.Before(r.whole):
		r.next = soon
	case r.sent < maxChallenges:
		r.next = r.whole
	default:
		r.next = time.Time{}
	}
}

// wait is the time between the later challenges of a round.
func (m *Machine) wait(k fault.Half) time.Duration {
	if k == 0 {
		return m.cfg.ChallengeNode
	}
	return m.cfg.ChallengeHalf
}

// probe asks outside of a round, at most once in every interval.
func (m *Machine) probe(n *node, h fault.Half, interval time.Duration, now time.Time) {
	if !n.probed.IsZero() && now.Sub(n.probed) < interval {
		return
	}
	m.try(n).probed = now
	m.challenge(n, h, false, now)
}

// challenge sends one; again says that it only repeats a question, straight.
func (m *Machine) challenge(n *node, h fault.Half, again bool, now time.Time) {
	m.serial++
	c := nonce{value: m.cfg.Nonce(), serial: m.serial, half: h, sent: now}
	t := m.try(n)
	if len(t.nonces) == maxNonces {
		t.nonces = t.nonces[1:]
	}
	t.nonces = append(t.nonces, c)
	ch := Challenge{Node: n.id, Half: h, Nonce: c.value, Again: again}
	if !again {
		ch.Via = m.via(n, now)
	}
	m.out.Challenges = append(m.out.Challenges, ch)
}

// via returns the neighbours that may pass a challenge on, those that do not accuse the node first.
func (m *Machine) via(n *node, now time.Time) []fault.NodeID {
	var friends, accusers []fault.NodeID
	for _, nb := range n.neighbours {
		switch {
		case !m.witness(nb.node, now) || !m.current(nb.node, fault.HalfHost, now):
		case m.hearsNothing(nb, now):
			accusers = append(accusers, nb.node.id)
		default:
			friends = append(friends, nb.node.id)
		}
	}
	return append(friends, accusers...)
}

// answered takes in an answer. It counts only when it echoes a challenge that is still remembered,
// by a half of the node that was asked.
func (m *Machine) answered(a Answered, now time.Time) {
	rank, ok := m.ranks[a.Origin.Node]
	if !ok || !a.Origin.Half.Valid() {
		return
	}
	n, v := m.nodes[rank], (*voice)(nil)
	if n.revoked {
		return
	}
	for _, c := range n.nonces {
		if c.value == a.Nonce && (c.half == 0 || c.half == a.Origin.Half) {
			v = n.voice(a.Origin.Half)
			if c.serial > v.answered {
				m.took(n, c.sent, now)
				v.answered, v.asked = c.serial, m.clock.instant(c.sent)
			}
			v.heard = later(v.heard, c.sent) // it lived at least then
			// The epoch is for reports to raise, whose jumps the inbox refuses: one absurd epoch, kept from
			// an answer, would make every later leader deaf to the half.
			if a.Epoch > v.epoch && v.epoch > 0 && v.met < m.clock.instant(now) {
				v.booted = m.clock.instant(now)
			}
		}
	}
	if v == nil {
		return
	}
	m.touch(n)
	for _, nb := range n.neighbours {
		m.touch(nb.node) // their silent links may be settled by it
	}
	if n.inferred && !n.heard(0).After(n.inferredAt) {
		m.probe(n, a.Origin.Half, m.cfg.ChallengeHalf, now)
	}
	if f := n.failure(a.Origin.Half); f.on && v.answered <= f.mark.serial {
		// A late answer to what was asked before the verdict.
		m.probe(n, a.Origin.Half, m.cfg.ChallengeHalf, now)
	}
}
