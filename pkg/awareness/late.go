package awareness

import (
	"cmp"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// How long a word counts and an answer is waited for, and what a machine that was itself late makes of that.

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
	return m.caughtUp(m.answerBy(start, wait))
}

// answerBy is by when the answer to a question asked at start is to have come, if it is waited for so long.
func (m *Machine) answerBy(start time.Time, wait time.Duration) time.Time {
	by := m.promptAnswerBy(start, wait)
	if !m.returned.IsZero() {
		by = later(by, m.returned.Add(returnGrace))
	}
	return by
}

// promptAnswerBy is answerBy where more than silence accuses: the way back need not have been found.
func (m *Machine) promptAnswerBy(start time.Time, wait time.Duration) time.Time {
	return later(later(start, m.doubt).Add(wait), m.listens)
}

// lag is how far behind the shell is.
type lag struct {
	by time.Duration // the longest delay of the last lagTime
	at time.Time     // when something was so late
}

// lagTime is how long a delay counts where nothing later is as late. A shell that is behind tells it with everything that it
// hands over.
const lagTime = 50 * time.Millisecond

// Behind notes how far behind the shell is: what it hands over in the next step came so long ago, and what the machine
// sends then waits so long until it goes. Up to slack that is nothing. Nobody is blamed for an answer that may still be in a
// queue: a verdict waits as long as the shell is behind, though by DigestPeriod at most.
func (m *Machine) Behind(now time.Time, by time.Duration) {
	if by <= m.slack() {
		by = 0
	}
	if by = min(by, m.cfg.DigestPeriod); by >= m.behind.by || now.Sub(m.behind.at) > lagTime {
		m.behind = lag{by, now}
	}
}

const (
	manyAnswers = 8 // the newest of so many nodes tell how long answers take
	fewAnswers  = 4 // fewer may be of nodes that are slow themselves
)

// trip is how long a node's answer took.
type trip struct {
	rank int
	took time.Duration
	at   time.Time
}

// took notes how long an answer took that just came. That of a node which was stopped, and answers what it finds, tells
// nothing of the others.
func (m *Machine) took(n *node, sent, now time.Time) {
	if n.dead.on || now.Sub(sent) > 2*m.cfg.DigestPeriod {
		return
	}
	m.trips = slices.DeleteFunc(m.trips, func(t trip) bool { return t.rank == n.rank })
	if len(m.trips) == manyAnswers {
		m.trips = slices.Delete(m.trips, 0, 1)
	}
	m.trips = append(m.trips, trip{n.rank, now.Sub(sent), now})
}

// doubtIfAllAreLate takes the quickest of the newest answers for a measure of how far the shell and what is beyond
// it are behind, sockets and network included: when even that took longer than there was time, it is not the
// others that are dead.
func (m *Machine) doubtIfAllAreLate(now time.Time) {
	m.trips = slices.DeleteFunc(m.trips, func(t trip) bool { return now.Sub(t.at) > m.cfg.ChallengeSingle })
	if len(m.trips) < fewAnswers {
		return
	}
	m.Behind(now, slices.MinFunc(m.trips, func(a, b trip) int { return cmp.Compare(a.took, b.took) }).took)
}

// caughtUp returns when what comes by t has been taken in. What was in the queues when the shell was last
// behind is in so much later.
func (m *Machine) caughtUp(t time.Time) time.Time {
	if by := m.behind.by; t.Before(m.behind.at.Add(by)) {
		return t.Add(by)
	}
	return t
}

// wakeWhenDue asks to look at the node again when something is due, as far as that is known: a shell that is behind
// may catch up sooner.
func (m *Machine) wakeWhenDue(n *node, due, now time.Time) {
	if m.isBehind(now) {
		due = now.Add(min(due.Sub(now), max(due.Sub(now)/2, m.slack())))
	}
	n.wakeAt(due, now)
}

func (m *Machine) isBehind(now time.Time) bool { return m.caughtUp(now).After(now) }

// respite lets the word of halves that fell silent while the machine slept count for one more period.
func (m *Machine) respite(n *node) {
	for _, h := range halves {
		if t := m.expiry(n, h); t.After(m.awake) {
			n.voice(h).respite = m.clock.instant(m.doubt.Add(m.cfg.DigestPeriod))
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
	v := n.voice(h)
	if v.heard.IsZero() {
		return time.Time{}
	}
	return later(v.heard.Add(m.window()), m.clock.time(v.respite))
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
