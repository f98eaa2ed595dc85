package hostcore

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// gossipSigns tracks whether gossip works on the service network while no supervisor answers. Working gossip
// distinguishes supervisors that are gone from a network that is cut: all ways to them lead through the same cards
// and switches.
//
//	starting ──joinBy passed, or first message──► silent ──heard within fresh──► lives ──not heard for silence──► silent
//
// A cut ends answers and gossip at the same moment. Thus fresh must not be longer than the time after which answers
// count as missing. Once alive, gossip may pause for longer, because it comes at its own pace. A half that has just started
// needs time to join the gossip. Until joinBy, or until the first message, missing gossip proves nothing.
type gossipSigns struct {
	fresh, silence time.Duration
	joinBy         time.Time // when missing gossip begins to count, if no message has come before
	heard          time.Time // last; zero: never
	lives          bool

	asked time.Time // when members were last asked for a sign of life
	tries int       // rounds of questions since the last message
}

// The half first asks askFirst members for a sign of life. If none of them answers, it asks askLater members, because some may be dead.
const (
	askFirst = 2
	askLater = 4
)

// within returns how long gossip counts as working after the last message.
func (g *gossipSigns) within() time.Duration {
	if g.lives {
		return g.silence
	}
	return g.fresh
}

// ask returns how many members to ask for a sign of life now; 0: none. answered is when a supervisor last answered on the direct rail,
// or the half's start. In a small cluster, gossip may be quiet for longer than fresh although the network works. So the half asks before
// it judges the silence. It begins at half the time after which answers count as missing, and asks less and less often while no member
// answers.
func (g *gossipSigns) ask(now, answered time.Time) int {
	if !g.heard.Before(g.asked) {
		g.tries = 0
	}
	pause := min(g.fresh/4<<max(g.tries-2, 0), g.silence)
	if now.Sub(answered) < g.fresh/2 || now.Sub(g.heard) < g.within()/2 || now.Sub(g.asked) < pause {
		return 0
	}
	g.asked = now
	if g.tries = min(g.tries+1, 16); g.tries == 1 {
		return askFirst
	}
	return askLater
}

// starting reports whether the half still waits for its first gossip message: none has come, and joinBy has not passed.
func (g *gossipSigns) starting(now time.Time) bool { return g.heard.IsZero() && now.Before(g.joinBy) }

// owesNothingFor moves the limits by the time in which the half did not run: messages of that time may wait in its socket.
func (g *gossipSigns) owesNothingFor(away time.Duration) {
	g.joinBy = g.joinBy.Add(away)
	if !g.heard.IsZero() {
		g.heard = g.heard.Add(away)
	}
}

// look reports whether gossip works now. alone: no supervisor answers.
func (g *gossipSigns) look(now time.Time, alone bool) bool {
	g.lives = alone && !g.heard.IsZero() && now.Sub(g.heard) < g.within()
	return g.lives
}

// followNetwork draws the conclusions when the acknowledgements' verdict on the service network changes,
// or that of the gossip while they are missing.
func (m *Machine) followNetwork(now time.Time) {
	lived := m.gossip.lives
	is, silent, early := m.sender.Network(), m.silentNow(now), m.gossip.starting(now)
	if is == m.network && silent == m.silent && early == m.early && m.gossip.look(now, is == fault.Failed) == lived {
		return
	}
	m.network, m.silent, m.early = is, silent, early
	m.updateServiceNetwork(now)
}

// SupervisorAnswers reports whether a supervisor answers this half's reports on the service network.
func (m *Machine) SupervisorAnswers() bool {
	is := m.sender.Network()
	return is == fault.Normal || is == fault.Sick
}

// silentFor is how long after a silence missing answers are blamed on the supervisors and not on this node's network, in multiples
// of the time after which a network counts as dead: the supervisors may be overloaded and answer rarely.
const silentFor = 8

// silentNow reports whether no rail brings answers, or whether answers have resumed so recently that the direct rail may still
// need more of them to count as alive.
func (m *Machine) silentNow(now time.Time) bool {
	if m.sender.Silent() {
		m.silentAt = now
	}
	return !m.silentAt.IsZero() && now.Sub(m.silentAt) < silentFor*m.gossip.fresh
}

// updateServiceNetwork combines the interface's state with the evidence from missing answers. The age of an
// unanswered network is, like that of a silent link, counted from the last answer. If the torus brings no answer
// either and gossip works, the supervisors are gone, which is no evidence against this node's network. After a start, the
// state is UNKNOWN too, until gossip has had time to join.
func (m *Machine) updateServiceNetwork(now time.Time) {
	s, detail, age := m.network, "", time.Duration(0)
	switch s {
	case fault.Failed:
		detail, age = "no supervisor answers", m.unheardFor(now)
		if m.gossip.look(now, true) {
			s, detail = fault.Sick, "no supervisor answers, but gossip works"
		}
		if s == fault.Sick && m.silent {
			s, detail, age = fault.Unknown, "no supervisor answers by any rail, but gossip works", 0
		}
		if m.early {
			s, detail, age = fault.Unknown, "no supervisor answers, and gossip has not reached another member yet", 0
		}
	case fault.Sick:
		detail = "answers are missing"
	default:
	}
	r := m.sensors[fault.ComponentServiceNetwork]
	if r.State == fault.Failed && m.network != fault.Failed && len(m.cfg.Interfaces) > 1 {
		r.State = fault.Sick // one of several
	}
	if r.State == fault.Failed || r.State == fault.Sick && m.network != fault.Failed {
		s, detail, age = r.State, r.Detail, 0
	}
	if was := m.ledger.State(m.self, fault.ComponentServiceNetwork); was != s {
		why := ""
		if detail != "" {
			why = ": " + detail
		}
		m.note(NoteServiceNet, "service network %s (was %s)%s", s, was, why)
	}
	m.state(now, fault.ComponentServiceNetwork, s, fault.KindSelf, detail, age)
}

// askGossip requests signs of life from gossip members if no supervisor answers and gossip is quiet.
func (m *Machine) askGossip(now time.Time) {
	if m.cfg.GossipSilence > 0 {
		m.out.AskGossip = m.gossip.ask(now, fault.Later(m.start, m.answeredDirectly()))
	}
}

// answeredDirectly returns when a supervisor last answered on the direct rail; zero: none ever has.
func (m *Machine) answeredDirectly() (at time.Time) {
	for _, c := range m.heard {
		at = fault.Later(at, c.at)
	}
	return at
}

// unheardFor returns how long no supervisor has answered on the direct rail; 0: none ever has.
func (m *Machine) unheardFor(now time.Time) time.Duration {
	at := m.answeredDirectly()
	if at.IsZero() {
		return 0
	}
	return now.Sub(at)
}
