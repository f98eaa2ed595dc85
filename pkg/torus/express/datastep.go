package express

import (
	"crypto/sha256"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// NewData returns the initial state of a node: no data, and no way is open. period is that of a link's heartbeats.
// maxPayload bounds the payloads sent; 0 means MaxDataPayload. Where data does not fit into that, the node takes no
// part.
func NewData(links Mask, period time.Duration, maxPayload int) *Data {
	if period <= 0 || links>>grid.NumDirections != 0 {
		panic(fmt.Sprintf("express: NewData(%b, %s)", links, period))
	}
	return &Data{links: links, period: period, fits: maxPayload == 0 || maxPayload >= MaxDataPayload}
}

// Step handles one event.
func (m *Data) Step(now time.Time, ev Event) DataOutput {
	m.out, m.now = DataOutput{Send: m.out.Send[:0]}, now
	if !m.fits {
		if _, publish := ev.(Publish); publish {
			m.out.Err = fmt.Errorf("publish data: frames are shorter than %d bytes: %w", MaxDataPayload, ErrInvalid)
		}
		return m.out
	}
	switch ev := ev.(type) {
	case Publish:
		m.out.Err = m.publish(ev)
	case Judged:
		m.judged(ev)
	case *Received:
		m.receive(now, ev)
	case Relinked:
		m.links = ev.Links
	case Ways:
		m.setWays(ev)
	case Tick:
	}
	m.forgetOld(now)
	for i := range m.slots {
		s := &m.slots[i]
		m.guard(now, s, Topic(i))
		if s.next != nil && !s.next.whole() {
			m.giveUp(now, s)
		}
		m.consider(now, s, Topic(i))
	}
	m.tell(now)
	m.ask(now)
	m.serve(now)
	m.busy = m.pending()
	return m.out
}

// Busy reports whether a Tick may have an effect soon.
func (m *Data) Busy() bool { return m.busy }

// Due reports whether a Tick may have an effect now.
func (m *Data) Due(now time.Time) bool { return m.busy || !m.forget.IsZero() && !now.Before(m.forget) }

// Stats returns the counters.
func (m *Data) Stats() DataStats { return m.stats }

// Newest returns the newest datum of a topic that was published here, or judged good.
func (m *Data) Newest(t Topic) (Datum, bool) {
	if t > DataTopics || m.slots[t].kept == nil {
		return Datum{}, false
	}
	k := m.slots[t].kept
	return Datum{k.id, k.prio, k.body}, true
}

func (m *Data) publish(p Publish) error {
	switch {
	case p.Topic == 0 || p.Topic > DataTopics:
		return fmt.Errorf("publish data: topic %d, want 1 to %d: %w", p.Topic, DataTopics, ErrInvalid)
	case p.Priority > MaxPriority:
		return fmt.Errorf("publish data on %s: priority %d, want 0 to %d: %w", p.Topic, p.Priority, MaxPriority, ErrInvalid)
	case p.Number == 0:
		return fmt.Errorf("publish data on %s: number 0, want 1 or more: %w", p.Topic, ErrInvalid)
	case len(p.Body) < 1 || len(p.Body) > MaxData:
		return fmt.Errorf("publish data on %s: %d bytes, want 1 to %d: %w", p.Topic, len(p.Body), MaxData, ErrInvalid)
	}
	s := &m.slots[p.Topic]
	d := &datum{id: DataID{p.Topic, p.Number, sumOf(p.Body)}, prio: p.Priority, body: p.Body}
	if s.kept != nil && d.id == s.kept.id {
		return nil
	}
	if s.kept != nil && s.kept.id.newer(d.id) {
		return fmt.Errorf("publish data %s: there is %s: %w", d.id, s.kept.id, ErrOld)
	}
	m.stats.Published++
	s.kept = d
	if s.next != nil && !s.next.id.newer(d.id) {
		s.next = nil
	}
	m.news(p.Topic)
	return nil
}

func sumOf(b []byte) [sumSize]byte {
	sum := sha256.Sum256(b)
	return [sumSize]byte(sum[:])
}

// best is the newest datum that the node announces, and the pieces of it that are here.
func (s *slot) best() (*datum, uint64) {
	switch {
	case s.next != nil && !s.wary:
		return &s.next.datum, s.next.have
	case s.kept != nil:
		return s.kept, allPieces(len(s.kept.body))
	}
	return nil, 0
}

// find is the datum of that name, and the pieces of it that are here.
func (s *slot) find(id DataID) (*datum, uint64) {
	switch {
	case s.next != nil && s.next.id == id:
		return &s.next.datum, s.next.have
	case s.kept != nil && s.kept.id == id:
		return s.kept, allPieces(len(s.kept.body))
	}
	return nil, 0
}

// news announces a topic to all neighbours at once.
func (m *Data) news(t Topic) {
	for i := range m.peers {
		m.peers[i].topics[t].tell = timer{}
	}
}

func (m *Data) judged(j Judged) {
	if j.ID.Topic > DataTopics {
		return
	}
	s := &m.slots[j.ID.Topic]
	if s.next == nil || s.next.id != j.ID || !s.next.whole() {
		return // something newer has come meanwhile
	}
	if !j.Good {
		m.stats.Refused++
		until := time.Time{}
		if j.For > 0 {
			until = m.now.Add(j.For)
		}
		m.refuse(s, 0, until)
		return
	}
	s.kept, s.next = &s.next.datum, nil
	if s.wary {
		m.news(j.ID.Topic)
	} else {
		s.since = time.Time{}
	}
	if j.For > 0 {
		s.kept.lasts, s.kept.until = j.For, m.now.Add(j.For)
		m.forget = fault.Earliest(m.forget, s.kept.until)
	}
}

// forgetOld drops data that is kept only for a while. Neighbours that still have it have announced that; the node
// does not ask them again.
func (m *Data) forgetOld(now time.Time) {
	if m.forget.IsZero() || now.Before(m.forget) {
		return
	}
	m.forget = time.Time{}
	for i := range m.slots {
		s := &m.slots[i]
		switch {
		case s.kept == nil || s.kept.until.IsZero():
		case now.Before(s.kept.until):
			m.forget = fault.Earliest(m.forget, s.kept.until)
		default:
			m.ban(refusedData{s.kept.id, 0, now.Add(s.kept.lasts)})
			for k := range m.peers {
				if t := &m.peers[k].topics[i]; t.id == s.kept.id {
					t.id = DataID{}
				}
			}
			s.kept = nil
		}
	}
}

// giveUp drops a transfer that makes no progress: all neighbours have dropped the datum, as they do after judging it
// bad, or it has taken too long. The time for a transfer of a wary topic is bounded, also if pieces come.
func (m *Data) giveUp(now time.Time, s *slot) {
	met, told := false, false
	for i := range m.peers {
		p := &m.peers[i]
		met, told = met || p.met, told || p.topics[s.next.id.Topic].has(s.next)
	}
	switch {
	case met && !told:
		t := s.next.id.Topic
		s.next, s.lost = nil, now
		m.news(t)
	case now.Sub(s.next.progress) >= m.patience(), s.wary && now.Sub(s.next.begun) >= m.unfinishedMost():
		m.refuse(s, len(s.next.body), now.Add(refusedFor))
	}
}

// refuse drops the transfer, and refuses its datum until the given time. A length above 0 refuses only announcements of that length.
func (m *Data) refuse(s *slot, length int, until time.Time) {
	id := s.next.id
	m.ban(refusedData{id, length, until})
	s.next, s.lost = nil, m.now
	m.news(id.Topic)
}

// ban records a refused datum. It replaces the earlier refusals that b includes, and drops the oldest when there are too many.
func (m *Data) ban(b refusedData) {
	m.bad = slices.DeleteFunc(m.bad, func(r refusedData) bool { return r.id == b.id && (b.length == 0 || r.length == b.length) })
	if m.bad = append(m.bad, b); len(m.bad) > maxRefused {
		m.bad = slices.Delete(m.bad, 0, 1)
	}
}

// refused reports whether the datum is not taken now, as the neighbour announces it.
func (m *Data) refused(t *peerTopic) bool {
	return slices.ContainsFunc(m.bad, func(r refusedData) bool {
		return r.id == t.id && (r.length == 0 || r.length == t.length) && (r.until.IsZero() || m.now.Before(r.until))
	})
}

func (m *Data) setWays(w Ways) {
	w.Open &= m.links
	w.Good &= w.Open
	(w.Open &^ m.ways.Open).each(func(i int) { m.peers[i] = dataPeer{} })
	(m.ways.Open &^ w.Open).each(func(i int) { m.peers[i] = dataPeer{} })
	(w.Good &^ m.ways.Good).each(func(i int) { // earlier announcements may not have arrived
		p := &m.peers[i]
		p.hellos, p.hello = 0, timer{}
		for k := range p.topics {
			p.topics[k].tell = timer{}
		}
	})
	m.ways = w
}

func (m *Data) receive(now time.Time, r *Received) {
	f, err := decodeData(r.Payload)
	if err != nil {
		m.out.Bad = true
		m.stats.Bad++
		return
	}
	i := r.Dir.Index()
	if !m.ways.Open.Has(r.Dir) || f.id.Topic > DataTopics {
		return
	}
	switch f.kind {
	case kindState:
		m.onState(now, i, &f)
	case kindWant:
		m.onWant(i, &f)
	case kindPiece:
		m.onPiece(now, i, &f)
	default: // of a Machine
	}
}

func (m *Data) onState(now time.Time, i int, f *dataFrame) {
	p := &m.peers[i]
	if f.id.Topic == 0 {
		if f.flag { // it has begun: it knows nothing
			p.topics = [DataTopics + 1]peerTopic{}
			m.send(i, &dataFrame{kind: kindState})
		}
		p.met = true
		return
	}
	p.met = true
	t := &p.topics[f.id.Topic]
	if t.id != f.id {
		t.tell = timer{}
	}
	t.id, t.prio, t.length, t.whole = f.id, f.prio, f.length, f.pieces == allPieces(f.length)
	s := &m.slots[f.id.Topic]
	if n := s.next; n != nil && t.has(n) && f.pieces&^n.have != 0 && now.Sub(n.progress) > mostSteps*m.period {
		m.turnTo(n, i) // it has pieces that no neighbour gave
	}
	if !f.flag {
		return
	}
	m.consider(now, s, f.id.Topic) // so that the answer includes this datum
	if !m.lacks(t, f.id.Topic) || !t.tell.due(now) {
		m.sayState(i, f.id.Topic, false)
	}
}

// sayState sends a neighbour this node's state of a topic.
func (m *Data) sayState(i int, t Topic, ask bool) {
	if d, have := m.slots[t].best(); d != nil {
		m.stats.States++
		m.send(i, &dataFrame{kind: kindState, id: d.id, prio: d.prio, flag: ask, length: len(d.body), pieces: have})
	}
}

// consider begins the newest datum of a topic that a neighbour knows, and this node does not.
func (m *Data) consider(now time.Time, s *slot, topic Topic) {
	if s.wary {
		m.takeTurn(now, s, topic)
		return
	}
	for i := range m.peers {
		if t := &m.peers[i].topics[topic]; t.id.Number != 0 && m.unknown(s, t) && m.begin(now, s, topic, i) {
			m.news(topic)
		}
	}
}

// unknown reports whether a neighbour announces a datum that is newer than the known ones, and not refused.
func (m *Data) unknown(s *slot, t *peerTopic) bool {
	best, _ := s.best()
	return (best == nil || t.id.newer(best.id)) && !m.refused(t)
}

// tell sends neighbours the news that they lack: this node's start, and the newest datum of each topic.
func (m *Data) tell(now time.Time) {
	m.ways.Open.each(func(i int) {
		p := &m.peers[i]
		if !p.met {
			m.greet(now, i)
			return
		}
		for k := range m.slots {
			t := &p.topics[k]
			if m.lacks(t, Topic(k)) && t.tell.due(now) {
				t.tell.next(now, m.period)
				m.sayState(i, Topic(k), true)
			}
		}
	})
}

// lacks reports whether a neighbour does not know the newest datum of a topic.
func (m *Data) lacks(t *peerTopic, topic Topic) bool {
	best, _ := m.slots[topic].best()
	return best != nil && (best.id.newer(t.id) || best.id != t.id && m.refused(t))
}

func (m *Data) greet(now time.Time, i int) {
	p := &m.peers[i]
	if !p.hello.due(now) {
		return
	}
	if p.hellos++; p.hellos < hellos {
		p.hello.next(now, m.period)
	} else {
		p.hello = timer{at: now.Add(helloLater)}
	}
	m.send(i, &dataFrame{kind: kindState, flag: true})
}

// pending reports whether a repetition or a transfer is outstanding.
func (m *Data) pending() bool {
	for i := range m.slots {
		if s := &m.slots[i]; !s.since.IsZero() || s.next != nil && !s.next.whole() {
			return true
		}
	}
	for open := m.ways.Open; open != 0; open &= open - 1 {
		p := &m.peers[bits.TrailingZeros8(uint8(open))]
		if !p.met {
			return true
		}
		for k := range p.topics {
			t := &p.topics[k]
			if t.pieces != 0 || m.lacks(t, Topic(k)) || t.id.Number != 0 && m.unknown(&m.slots[k], t) {
				return true
			}
		}
	}
	return false
}
