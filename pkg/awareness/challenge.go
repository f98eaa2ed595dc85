package awareness

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

const (
	maxChallenges = 8  // in one round by all rails: a node that answers none of them is not challenged again unprovoked
	wholeRails    = 2  // in one round by all rails, however many nodes are accused; affords limits further ones
	maxNonces     = 48 // stored per node; older challenges can no longer be answered
	maxExtensions = 3  // of a round by fresh reports of the accused, so that delayed reports win little time
	repeatBurst   = 64
	repeatEvery   = time.Millisecond
	patience      = 3 // factor for the wait of a round without a new accusation
)

// nonce is a challenge that may still be answered.
type nonce struct {
	value  [16]byte
	serial uint64
	half   fault.Half // the challenged half; 0: either
	sent   time.Time
	again  bool // it went straight to the node: no neighbour has read it
	back   bool // the node's kernel has refused it
}

// mark is a point in a node's history: its time, and the newest challenge sent by then.
type mark struct {
	serial uint64
	at     instant
}

func (m *Machine) mark(now time.Time) mark { return mark{serial: m.serial, at: m.clock.instant(now)} }

// proven reports whether the half has lived after the mark: it answered a later challenge, or it booted again. A half's
// first report is no new boot. A boot at the very time of the mark counts, because their order is unknown.
func (n *node) proven(h fault.Half, since mark) bool {
	v := n.voice(h)
	return v.answered > since.serial || v.booted >= since.at
}

// round is the challenging of a node or of one of its halves because of an accusation. Challenges repeat until an
// answer, a verdict, or the withdrawal of the accusation:
//
//	         accused                        answered
//	closed ───────────► open, unanswered ─────────────► open, answered
//	   ▲                  │    ▲  due and enough accusers   │      │
//	   │                  │    └── accused again, or quiet ──┘      │
//	   │                  ▼        for too long                    │
//	   │               verdict                                     │
//	   └───────────── accusation withdrawn ────────────────────────┘
type round struct {
	open  bool
	since mark      // only answers to challenges sent after this count
	start time.Time // time of the first challenge
	next  time.Time // when to challenge again
	due   time.Time // deadline for an answer; a verdict may fall once all arrivals up to then are processed
	waits int       // factor for the wait for an answer, in due
	sent  int       // challenges by all rails, with those that the budget has prevented
	whole time.Time // when to challenge by all rails again; until then directly only
	// extended counts how often a fresh report of the accused restarted the wait.
	extended int
	// refused counts the straight challenges that the node's kernel refused, the newest at refusedAt: see hints.go.
	refused   int
	refusedAt time.Time
	// checked reports that one more challenge was sent after LinkSettle because a quorum contradicted an answer.
	checked bool
	// mute is when a challenged node missed its deadline; zero when it has not. Only set in the round of the whole
	// node: see doubt.go.
	mute time.Time
	owes time.Time // when a mute node began to owe a sign of life
	// shared reports that neighbours are mute as well: the set is judged as a whole.
	shared bool
	// awaits is when the wait for a witness in its grace period ends; until then no link is blamed for the mute node's silence.
	// Zero: there is no such witness. See awaitWitnesses.
	awaits time.Time
}

// roundMood is the part of a round that neighbours' verdicts depend on.
type roundMood struct {
	open, answered, shared bool
	due, mute, awaits      time.Time
}

// answered reports whether the round's challenge has been answered; k is 0 for the whole node.
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

// grounds are the reasons to challenge a node or half now.
type grounds struct {
	latest time.Time     // when the newest accusation arrived
	enough bool          // enough accusers for a verdict
	wait   time.Duration // for an answer, before the verdict
	doubt  bool          // no accuser: only its neighbours are dead or mute
}

// ask runs the round k of the node for one step: it opens or restarts the round, and sends and repeats its challenges.
func (m *Machine) ask(n *node, k fault.Half, s grounds, now time.Time) {
	r := &m.suspicionOf(n).rounds[k]
	heard := n.heard(k)
	r.due = m.answerBy(r.start, time.Duration(r.waits)*s.wait)
	switch {
	case !r.open:
		m.begin(n, k, 1, s.doubt, now)
	case n.answered(k):
		m.askAgain(n, k, s, now)
	case heard.After(r.start) && r.extended < maxExtensions:
		// It still signs fresh reports, so perhaps it is only slow.
		old := *r
		m.begin(n, k, old.waits, s.doubt, now)
		r.extended, r.checked = old.extended+1, old.checked
	case s.latest.After(r.start) && !now.Before(m.caughtUp(r.due)) && (heard.After(r.start) || s.latest.Sub(r.start) > m.cfg.ChallengeSingle):
		// The earlier challenges that it missed are unrelated to the new accusation.
		m.begin(n, k, 1, s.doubt, now)
	case r.sent == 0 && !now.Before(m.caughtUp(r.due)):
		// There was only time for direct challenges. No node is condemned before a challenge by all rails.
		r.start = now
		m.askWhole(n, k, now)
	case s.enough && !now.Before(fault.Later(m.caughtUp(r.due), m.graceEnds())):
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

// askAgain decides whether an answered round restarts: for a new accusation, or because the accusers insist and the
// accused has been silent for too long.
func (m *Machine) askAgain(n *node, k fault.Half, s grounds, now time.Time) {
	r := &m.suspicionOf(n).rounds[k]
	if s.latest.After(r.start) {
		m.begin(n, k, 1, s.doubt, now)
		return
	}
	if !s.enough {
		return
	}
	if k == 0 && !r.checked && !n.failure(fault.HalfDNP).on && !n.proven(fault.HalfDNP, r.since) {
		// The host answered, and should by now have reported its DNP dead. Check that it is still alive.
		at := r.start.Add(m.cfg.LinkSettle)
		if !now.Before(at) {
			m.begin(n, k, patience, s.doubt, now)
			r.checked = true
			return
		}
		n.wakeAt(at, now)
	}
	at := fault.Later(r.start, n.heard(k)).Add(m.overdue())
	if !now.Before(at) {
		m.begin(n, k, patience, s.doubt, now)
		r.checked = true
		return
	}
	n.wakeAt(at, now)
}

// close ends the round: its accusation has been withdrawn.
func (m *Machine) close(n *node, k fault.Half) {
	if n.rounds[k] != (round{}) {
		m.suspicionOf(n).rounds[k] = round{}
	}
}

// begin opens or restarts the round and sends its challenge. A round uses all rails twice within the wait, and sends
// direct challenges at short intervals throughout, so that lost datagrams condemn no node. That holds even if the DNP
// hangs, so that the torus carries nothing, and the only interface loses a third of its packets. A node that is only in
// doubt gets a direct challenge first, and so does every node while the shell is behind. When many nodes die at once,
// most of the nodes around them live and answer, and every rail has a cost for them and us.
func (m *Machine) begin(n *node, k fault.Half, waits int, doubt bool, now time.Time) {
	r := &m.suspicionOf(n).rounds[k]
	*r = round{open: true, since: m.mark(now), start: now, waits: waits, whole: m.caughtUp(now.Add(m.wait(k) / 2))}
	direct := doubt || m.isBehind(now)
	if !direct {
		r.sent = 1
	}
	m.challenge(n, k, direct, now)
	m.plan(r, k, now)
}

// repeat sends the round's challenge again.
func (m *Machine) repeat(n *node, k fault.Half, now time.Time) {
	r := &m.suspicionOf(n).rounds[k]
	switch {
	case !now.Before(r.whole):
		if r.sent < wholeRails || affords(&m.wholes, now) {
			m.challenge(n, k, false, now)
		}
		m.countWhole(r, k, now) // one that the budget prevents too, so that the round ends
		return
	case affords(&m.spent, now):
		m.challenge(n, k, true, now)
	default:
		r.next = r.whole
		return
	}
	m.plan(r, k, now)
}

// askWhole sends the challenge by all rails.
func (m *Machine) askWhole(n *node, k fault.Half, now time.Time) {
	r := &m.suspicionOf(n).rounds[k]
	m.challenge(n, k, false, now)
	m.countWhole(r, k, now)
}

// countWhole counts a challenge by all rails, and plans the next one.
func (m *Machine) countWhole(r *round, k fault.Half, now time.Time) {
	r.sent++
	r.whole = m.caughtUp(now.Add(m.wait(k)))
	m.plan(r, k, now)
}

// NotAsked reports that a challenge of the last step could not be sent: it does not count.
func (m *Machine) NotAsked(c Challenge) {
	rank, ok := m.ranks[c.Node]
	if !ok || c.Again {
		return
	}
	if n := m.nodes[rank]; n.rounds[c.Half].open {
		r := &m.suspicionOf(n).rounds[c.Half]
		r.sent = max(0, r.sent-1)
	}
}

// affords reports whether a budget allows one more challenge, and takes it from the budget. Three kinds of challenges each have a budget:
// direct repeats, challenges by all rails after the first two of a round, and challenges to nodes in doubt. A budget allows repeatBurst at
// once, then one every repeatEvery. spent is the time until which it is used. Each challenge costs a signature, and when hundreds of nodes
// are accused at once, bad interfaces are not the reason.
func affords(spent *time.Time, now time.Time) bool {
	if *spent = fault.Later(*spent, now); spent.Sub(now) >= repeatBurst*repeatEvery {
		return false
	}
	*spent = spent.Add(repeatEvery)
	return true
}

// plan sets the time of the round's next challenge; zero for never. While the shell is behind, the last challenge may
// still be queued, or its answer may be. Another challenge would then add to the delay.
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

// probe sends a challenge outside of a round, at most one per interval.
func (m *Machine) probe(n *node, h fault.Half, interval time.Duration, now time.Time) {
	if !n.probed.IsZero() && now.Sub(n.probed) < interval {
		return
	}
	m.suspicionOf(n).probed = now
	m.challenge(n, h, false, now)
}

// challenge sends one challenge; again marks a repetition that goes directly only.
func (m *Machine) challenge(n *node, h fault.Half, again bool, now time.Time) {
	m.serial++
	c := nonce{value: m.cfg.Nonce(), serial: m.serial, half: h, sent: now, again: again}
	t := m.suspicionOf(n)
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

// via returns the neighbours that may forward a challenge, those that do not accuse the node first.
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

// answered processes an answer. It counts only if it echoes a stored challenge and comes from a half that the challenge
// addressed.
func (m *Machine) answered(a Answered, now time.Time) {
	rank, ok := m.ranks[a.Origin.Node]
	if !ok || !a.Origin.Half.Valid() {
		return
	}
	n, v := m.nodes[rank], (*voice)(nil)
	if n.revoked || m.ofFormerPlace(n, a.Origin.Half, a.Epoch, now) {
		return
	}
	for _, c := range n.nonces {
		if c.value == a.Nonce && (c.half == 0 || c.half == a.Origin.Half) {
			v = n.voice(a.Origin.Half)
			if c.serial > v.answered {
				m.took(n, c.sent, now)
				v.answered, v.asked, v.answeredAt = c.serial, m.clock.instant(c.sent), m.clock.instant(now)
			}
			v.heard = fault.Later(v.heard, c.sent) // it was alive at least then
			// Only reports may raise the epoch, because the inbox rejects their jumps. One absurd epoch from an answer
			// would make every later leader ignore the half.
			if a.Epoch > max(v.epoch, v.shown) && v.epoch > 0 && v.met < m.clock.instant(now) {
				v.booted = m.clock.instant(now)
			}
			v.shown = max(v.shown, a.Epoch)
		}
	}
	if v == nil {
		return
	}
	m.touch(n)
	for _, nb := range n.neighbours {
		m.touch(nb.node) // the answer may settle their silent links
	}
	if n.inferred && !n.heard(0).After(n.inferredAt) {
		m.probe(n, a.Origin.Half, m.cfg.ChallengeHalf, now)
	}
	if f := n.failure(a.Origin.Half); f.on && v.answered <= f.mark.serial {
		// A late answer to a challenge from before the verdict.
		m.probe(n, a.Origin.Half, m.cfg.ChallengeHalf, now)
	}
}
