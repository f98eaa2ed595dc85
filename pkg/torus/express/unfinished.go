package express

import (
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// A liar can announce newer data without end, which no node has. It can send a piece now and then, so that they seem to
// come. Such data must not keep real data out. So a topic is wary when it has had transfers, and no good datum, for
// unfinishedMost. A wary topic differs in these respects:
//
//   - It announces only its kept datum.
//   - It begins only data that a neighbour announces as whole, and takes pieces only from the neighbour that it asks.
//   - The neighbours have turns. A newer datum does not replace one in transfer, which has unfinishedMost.
//
// So honest neighbours wait for at most one turn of each lying one. The datum then takes its whole time at each hop. A
// topic is wary until no transfer has failed for unfinishedCalm.

const (
	// unfinishedMost is how long a topic may have transfers without a good datum before it is wary, and how long each
	// transfer of a wary topic may take (unfinishedPeriods of links, where that is longer).
	unfinishedMost    = 10 * time.Second
	unfinishedPeriods = 512
	unfinishedCalm    = time.Minute
)

func (m *Data) unfinishedMost() time.Duration { return max(unfinishedMost, unfinishedPeriods*m.period) }

// patience is the time without a piece after which a node gives a datum up.
func (m *Data) patience() time.Duration { return max(givenUp, givenUpPeriods*m.period) }

// guard updates whether a topic is wary. It also asks neighbours for their data while transfers fail: a neighbour that
// has seen this node announce a newer datum announces no older one.
func (m *Data) guard(now time.Time, s *slot, topic Topic) {
	if s.next == nil && now.Sub(s.lost) >= unfinishedCalm {
		s.since = time.Time{}
	}
	if s.since.IsZero() {
		s.wary = false
		return
	}
	s.wary = now.Sub(s.since) >= m.unfinishedMost()
	if now.Sub(s.since) < slowest(m.period) || now.Before(s.poll) {
		return
	}
	s.poll = now.Add(slowest(m.period))
	m.ways.Good.each(func(i int) {
		if m.peers[i].met { // no node has this datum, so the neighbour answers with its own
			m.send(i, &dataFrame{kind: kindWant, id: DataID{Topic: topic, Number: 1}, flag: true})
			m.sayState(i, topic, false)
		}
	})
}

// begin begins the datum that a neighbour announces, unless its link has begun too many. A transfer that it replaces
// counts as failed.
func (m *Data) begin(now time.Time, s *slot, topic Topic, i int) bool {
	p := &m.peers[i]
	p.begins.settle(now, beginRate)
	if !p.begins.has(beginBurst) {
		return false
	}
	p.begins.spent++
	if s.next != nil {
		s.lost = now
	}
	if s.since.IsZero() {
		s.since = now
	}
	t := &p.topics[topic]
	// §4.3.5: the first sender
	s.next = &transfer{
		datum: datum{id: t.id, prio: t.prio, body: make([]byte, t.length)}, parent: i, progress: now, begun: now,
	}
	return true
}

// takeTurn begins a datum of a wary topic, from the next neighbour that has one.
func (m *Data) takeTurn(now time.Time, s *slot, topic Topic) {
	for k := 0; k < grid.NumDirections && s.next == nil; k++ {
		i := (s.turn + k) % grid.NumDirections
		t := &m.peers[i].topics[topic]
		if m.ways.Good>>i&1 != 0 && t.whole && t.id.Number != 0 && m.unknown(s, t) && m.begin(now, s, topic, i) {
			s.turn = i + 1
			return
		}
	}
}
