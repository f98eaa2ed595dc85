package awareness

import (
	"cmp"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// How long statements stay valid and answers may take, and how a machine that was itself late adjusts these times.

// maxDelays is the number of consecutive late steps that may delay verdicts.
const maxDelays = 4

// slack is the lateness that the machine tolerates, and how long it listens after a longer one: the shell delivers one
// event at a time, and the answer may come after the Tick.
func (m *Machine) slack() time.Duration { return m.cfg.ChallengeHalf / 2 }

// doubtIfLate records that the machine itself was late. Until it has caught up, it blames no node for a missing answer.
// After a long sleep the waits start again.
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

// deadline returns when the machine may judge a challenge sent at start with the given wait.
func (m *Machine) deadline(start time.Time, wait time.Duration) time.Time {
	return m.caughtUp(m.answerBy(start, wait))
}

// answerBy returns when the answer to a challenge sent at start is due, with the given wait.
func (m *Machine) answerBy(start time.Time, wait time.Duration) time.Time {
	by := m.promptAnswerBy(start, wait)
	if !m.returned.IsZero() {
		by = fault.Later(by, m.returned.Add(returnGrace))
	}
	return by
}

// promptAnswerBy is answerBy for an accusation that rests on more than silence: it allows no time for the return path
// to recover.
func (m *Machine) promptAnswerBy(start time.Time, wait time.Duration) time.Time {
	return fault.Later(fault.Later(start, m.doubt).Add(wait), m.listens)
}

// lag is the shell's delay.
type lag struct {
	by time.Duration // the longest delay of the last lagTime
	at time.Time     // when that delay occurred
}

// lagTime is how long a delay counts without another of that size. A shell that is behind reports the delay with every
// event.
const lagTime = 50 * time.Millisecond

// Behind records the shell's delay: how long ago the next step's event arrived, and how long the machine's messages
// will wait to be sent. A delay up to slack counts as none. The machine blames no node for an answer that may still be
// queued: a verdict waits as long as the shell is behind, but DigestPeriod at most.
func (m *Machine) Behind(now time.Time, by time.Duration) {
	if by <= m.slack() {
		by = 0
	}
	if by = min(by, m.cfg.DigestPeriod); by >= m.behind.by || now.Sub(m.behind.at) > lagTime {
		m.behind = lag{by, now}
	}
}

const (
	manyAnswers = 8 // the newest answers of this many nodes measure the response time
	fewAnswers  = 4 // fewer may all be of slow nodes
)

// trip is a node's response time.
type trip struct {
	node *node
	took time.Duration
	at   time.Time
}

// took records the response time of an answer that has just come. An answer of a node that was stopped and now works
// off its queue is no measure for the others.
func (m *Machine) took(n *node, sent, now time.Time) {
	if n.dead.on || now.Sub(sent) > 2*m.cfg.DigestPeriod {
		return
	}
	m.trips = slices.DeleteFunc(m.trips, func(t trip) bool { return t.node == n })
	if len(m.trips) == manyAnswers {
		m.trips = slices.Delete(m.trips, 0, 1)
	}
	m.trips = append(m.trips, trip{n, now.Sub(sent), now})
}

// doubtIfAllAreLate takes the fastest recent answer as a measure of the delay in the shell, the sockets and the
// network. If even that answer exceeded the allowed time, the other nodes are not dead.
func (m *Machine) doubtIfAllAreLate(now time.Time) {
	m.trips = slices.DeleteFunc(m.trips, func(t trip) bool { return now.Sub(t.at) > m.cfg.ChallengeSingle })
	if len(m.trips) < fewAnswers {
		return
	}
	m.Behind(now, slices.MinFunc(m.trips, func(a, b trip) int { return cmp.Compare(a.took, b.took) }).took)
}

// caughtUp returns when all arrivals up to t have been processed: t plus the shell's delay, if it was behind at t.
func (m *Machine) caughtUp(t time.Time) time.Time {
	if by := m.behind.by; t.Before(m.behind.at.Add(by)) {
		return t.Add(by)
	}
	return t
}

// wakeWhenDue schedules the next look at the node for the time when something is probably due: a shell that is behind
// may catch up sooner.
func (m *Machine) wakeWhenDue(n *node, due, now time.Time) {
	if m.isBehind(now) {
		due = now.Add(min(due.Sub(now), max(due.Sub(now)/2, m.slack())))
	}
	n.wakeAt(due, now)
}

func (m *Machine) isBehind(now time.Time) bool { return m.caughtUp(now).After(now) }

// Lost records that the shell may have lost messages of any nodes at that time, for instance because a queue was full.
// The silence of a half proves nothing then: for a window, no component becomes UNKNOWN for lack of evidence. Otherwise a
// supervisor that falls behind would call all nodes UNKNOWN, and would fall further behind by committing these changes.
// Votes, and evidence that counts, are not affected.
func (m *Machine) Lost(at time.Time) { m.lost = fault.Later(m.lost, at) }

// lossesEnd returns when the absence of evidence counts again after the last loss, or the past.
func (m *Machine) lossesEnd() time.Time { return m.lost.Add(m.window()) }

// Discounted returns the number of nodes with a state that has no evidence, and that only the losses keep.
func (m *Machine) Discounted() int { return len(m.discounted) }

// respite extends the validity of reports and signs of life by one period for halves that fell silent while the machine
// slept.
func (m *Machine) respite(n *node) {
	until := m.doubt.Add(m.cfg.DigestPeriod)
	for _, h := range halves {
		v := n.voice(h)
		if m.statementsExpire(n, h).After(m.awake) {
			v.reported = max(v.reported, m.clock.instant(until.Add(-m.window())))
		}
		if m.expiry(n, h).After(m.awake) {
			v.respite = m.clock.instant(until)
		}
	}
}

// current reports whether the half has given a recent sign of life and is not FAILED.
func (m *Machine) current(n *node, h fault.Half, now time.Time) bool {
	return !n.failure(h).on && now.Before(m.expiry(n, h))
}

// states reports whether the half's statements count: its newest report is recent and it is not FAILED. An answer to a
// challenge proves its life, and renews no statement. A DNP half reports only while its host does not, so it may live
// on with an old last statement.
func (m *Machine) states(n *node, h fault.Half, now time.Time) bool {
	return !n.failure(h).on && now.Before(m.statementsExpire(n, h))
}

// window is how long a half's statements count.
func (m *Machine) window() time.Duration { return m.cfg.Window() }

// listened returns when this leader has listened for a whole window.
func (m *Machine) listened() time.Time { return m.started.Add(m.window()) }

// restoredUntil returns how long restored states stand without any evidence.
func (m *Machine) restoredUntil() time.Time {
	return fault.Later(m.listened(), m.started.Add(m.cfg.StartGrace))
}

// overdue is the time after its last sign of life at which a half has certainly missed a digest.
func (m *Machine) overdue() time.Duration { return m.cfg.DigestPeriod * 3 / 2 }

// statementsExpire returns when the half's statements expire without another report.
func (m *Machine) statementsExpire(n *node, h fault.Half) time.Time {
	v := n.voice(h)
	if v.reported == 0 {
		return time.Time{}
	}
	return m.clock.time(v.reported).Add(m.window())
}

// expiry returns when the half is no longer heard without another sign of life.
func (m *Machine) expiry(n *node, h fault.Half) time.Time {
	v := n.voice(h)
	if v.heard.IsZero() {
		return time.Time{}
	}
	return fault.Later(v.heard.Add(m.window()), m.clock.time(v.respite))
}

// graceEnds returns when this leader may issue FAILED verdicts.
func (m *Machine) graceEnds() time.Time { return m.started.Add(m.cfg.Grace) }

// returnGrace is how long a machine that was cut off blames no node for missing answers: paths come back one by one,
// and each end's kernel may wait a second for its next attempt to resolve the other (arp(7): retrans_time).
const returnGrace = 1250 * time.Millisecond

// hears records an arrival from any node, and the return from a time without any.
func (m *Machine) hears(now time.Time) {
	if !m.heard.IsZero() && now.Sub(m.heard) >= m.window() {
		m.returned = now
	}
	m.heard = now
}
