package express

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Data is one node's part in one-to-all data messages (seed 003 §4.3.5): data of up to MaxData bytes, that one node has and all are to have, as
// the configuration at start-up (§4.4.1). It goes in two phases, as in the paper. The set-up says what there is: topic, number, priority, length and
// sum; it is flooded, and from whom it came first is the parent. Then the pieces go down that tree: each node asks its
// parent for them, some at a time, and is given each as soon as the parent has it itself.
//
// Whoever has them gives the same pieces: the sum says what they are. So a node whose parent falls silent asks
// another neighbour, and goes on where it was. A datum arrives whole or not at all. Who asks also acknowledges: nothing is
// lost that is not asked for again. That takes links that carry both ways.
//
// Of each topic a node keeps the newest, and tells it to whoever does not know it. So who starts late, or was cut off, gets it from any neighbour; who
// was restarted too: it says so by a state of topic 0, and nothing of this needs to be in the copy of a half.
//
// A datum of a higher priority goes before others: while pieces of it come no others are asked for. In the paper it makes the source of the
// other one begin anew; here that goes on afterwards. A newer one of the same topic ends an older one.
//
// # Whom to believe
//
// What has come whole is delivered, and is only kept, and the one before it dropped, when Judged says that it is good: an
// insider may make up numbers and sums. It is passed on before that, or each hop would take as long as the whole. A refused one is not
// taken again, nor offered. Each link may begin some data a second, so that made up ones cost little.
//
// # Bounds
//
// Two data for each topic. dataRate pieces a second for each link, dataBurst at once; besides those frames of some 40 bytes: one a change and
// link, one for every four pieces, and repeats, ever more rarely, that ride on ticks.
//
//	no datum ──set-up──► asking ──last piece──► delivered ──good──► kept
//	                      │  ▲ └──nothing comes──► refused for a while ◄──bad, for ever──┘
//	                      └──┘ parent silent: the next neighbour. A newer set-up begins anew with that.
//
// # Payloads, of frames of TypeEureka
//
//	kind 5, a state: what the sender knows     kind 6, a want
//	offset size field                          offset size field
//	  0     1   5                                0     1   6
//	  1     1   topic; 0: it has just begun,     1     1   topic
//	            and knows nothing, or the        2     1   0
//	            answer to that                   3     1   flags: 1 these alone, else these too
//	  2     1   priority                         4     8   number
//	  3     1   flags: 1 answer me              12    16   sum
//	  4     8   number                          28     8   pieces that it wants
//	 12    16   sum
//	 28     4   length in bytes                kind 7, a piece
//	 32     8   pieces that it has               0     1   7
//	                                             1     1   topic
//	                                             2     1   index, from 0
//	                                             3     1   0
//	                                             4     8   number
//	                                            12    16   sum
//	                                            28        DataPiece bytes, the last piece what is left
//
// One goroutine owns it.
type Data struct {
	links  Mask
	period time.Duration
	fits   bool // a piece fits a frame
	ways   Ways
	slots  [DataTopics + 1]slot
	peers  [grid.NumDirections]dataPeer
	bad    []refusedData // the oldest first
	now    time.Time     // of the step
	busy   bool
	out    DataOutput
	stats  DataStats
}

const (
	// dataRate is how many pieces a second are sent by a link, dataBurst how many at once.
	dataRate, dataBurst = 400, 16
	// beginRate is how many data a second a link may begin, beginBurst how many at once.
	beginRate, beginBurst = 1, 4
	// dataWindow is how many pieces are asked for at once. When half of them have come more are.
	dataWindow = 8
	// dataTries is how often a parent is asked again without a piece, before it is another's turn.
	dataTries = 3
	// dataSlowest bounds the wait between repeats, where mostSteps link periods are not longer.
	dataSlowest = time.Second
	// stalled is for how long a datum of a higher priority that makes no progress holds up others.
	stalled = time.Second
	// hellos is how often a neighbour that does not answer is told that this node has begun, at first; it may be of an earlier version, and is
	// told once in helloLater after that.
	hellos     = 8
	helloLater = 30 * time.Second
	maxRefused = 64
	// givenUp is after how long without a piece a datum is given up, so that what nobody has keeps out nothing that there is (givenUpPeriods of links, where that is
	// longer); after refusedFor it may begin again.
	givenUp, refusedFor = 3 * time.Second, 10 * time.Second
	givenUpPeriods      = 128
	// spoiledLater bounds the wait after a datum has come that was not what its sum says.
	spoiledLater = 30 * time.Second
)

// refusedData is not taken again until then; zero: never.
type refusedData struct {
	id    DataID
	until time.Time
}

// slot is what a node has of a topic.
type slot struct {
	kept *datum
	next *transfer // newer than kept
}

type datum struct {
	id   DataID
	prio Priority
	body []byte
}

// transfer is a datum that is on its way, or not judged yet.
type transfer struct {
	datum
	have     uint64
	asked    uint64 // of the parent, and not come
	parent   int    // index of a direction; -1: none
	asks     int    // without a piece
	again    time.Time
	step     time.Duration
	progress time.Time
	// spoiled is how often its pieces made what the sum does not say. From then on all of them are of one neighbour: who passes on what another
	// one has made up is none the wiser, so that nobody is blamed, but one after the other is asked, ever more rarely.
	spoiled int
}

func (t *transfer) whole() bool { return t.have == allPieces(len(t.body)) }

// dataPeer is what is known of a neighbour.
type dataPeer struct {
	met    bool // it has answered, or begun by itself: it understands data
	hellos int
	hello  timer
	topics [DataTopics + 1]peerTopic
	pieces bucket
	begins bucket
}

type peerTopic struct {
	id     DataID // newest that it knows; number 0: none
	prio   Priority
	length int
	tell   timer
	wants  DataID // of pieces that it has asked for
	pieces uint64
}

// timer is a repetition, ever more rarely.
type timer struct {
	at   time.Time
	step time.Duration
}

func (t *timer) due(now time.Time) bool { return !now.Before(t.at) }

func (t *timer) next(now time.Time, period time.Duration) {
	t.step = min(max(2*t.step, 2*period), slowest(period))
	t.at = now.Add(t.step)
}

func slowest(period time.Duration) time.Duration { return max(dataSlowest, mostSteps*period) }

// Events of Data, besides *Received (of a payload for which IsData holds), Tick and Ways.
type (
	// Publish has a datum told to all. The body is the machine's from then on.
	Publish struct {
		Topic    Topic // 1 to DataTopics
		Priority Priority
		Number   uint64 // above all that there were of the topic
		Body     []byte // 1 to MaxData bytes
	}
	// Judged says whether a datum that was delivered is good: newer than the last that was, and of whom may say so.
	Judged struct {
		ID   DataID
		Good bool
	}
)

func (Publish) expressEvent() {}
func (Judged) expressEvent()  {}

// Datum is one that has come whole. Its Body is not to be changed.
type Datum struct {
	DataID
	Priority Priority
	Body     []byte
}

// DataOutput is what is to be done: send frames of TypeEureka, and judge what has come.
type DataOutput struct {
	Send    []Send
	Deliver []Datum
	Bad     bool  // what was received makes no sense
	Err     error // of Publish
}

// ErrOld refuses to publish what is older than what the node knows. Test with errors.Is.
var ErrOld = errors.New("there is newer data")

// DataStats count.
type DataStats struct {
	Published, Delivered uint64 // Delivered: whole, of others
	Refused              uint64 // judged bad
	Spoiled              uint64 // whole, and not what the sum says
	Sent                 uint64 // pieces
	Duplicates           uint64 // pieces that were there, or were not asked for
	Asked                uint64 // wants sent
	States               uint64 // sent
	Parents              uint64 // times that another neighbour was turned to
	Bad                  uint64 // payloads that make no sense
}

// NewData returns what a node begins with: nothing, and no way is open. Period is of a link's heartbeats. maxPayload bounds what is sent; 0:
// MaxDataPayload. Where that does not fit, the node has no part in it.
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
	case Ways:
		m.setWays(ev)
	case Tick:
	}
	for i := range m.slots {
		s := &m.slots[i]
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

// Busy says whether a Tick may do something.
func (m *Data) Busy() bool { return m.busy }

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
	d := &datum{DataID{p.Topic, p.Number, sumOf(p.Body)}, p.Priority, p.Body}
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

// best is the newest datum that is known, and the pieces of it that are here.
func (s *slot) best() (*datum, uint64) {
	switch {
	case s.next != nil:
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

// news has all neighbours told of a topic at once.
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
	if j.Good {
		s.kept, s.next = &s.next.datum, nil
		return
	}
	m.stats.Refused++
	m.refuse(s, time.Time{})
}

// giveUp drops what does not come: all neighbours have dropped it, as they do with what is judged bad; or it has taken too long.
func (m *Data) giveUp(now time.Time, s *slot) {
	met, told := false, false
	for i := range m.peers {
		p := &m.peers[i]
		met, told = met || p.met, told || p.topics[s.next.id.Topic].id == s.next.id
	}
	switch {
	case met && !told:
		t := s.next.id.Topic
		s.next = nil
		m.news(t)
	case now.Sub(s.next.progress) >= max(givenUp, givenUpPeriods*m.period):
		m.refuse(s, now.Add(refusedFor))
	}
}

// refuse drops what is on its way, and does not take it again until then.
func (m *Data) refuse(s *slot, until time.Time) {
	id := s.next.id
	m.bad = slices.DeleteFunc(m.bad, func(r refusedData) bool { return r.id == id })
	if m.bad = append(m.bad, refusedData{id, until}); len(m.bad) > maxRefused {
		m.bad = slices.Delete(m.bad, 0, 1)
	}
	s.next = nil
	m.news(id.Topic)
}

func (m *Data) refused(id DataID) bool {
	return slices.ContainsFunc(m.bad, func(r refusedData) bool { return r.id == id && (r.until.IsZero() || m.now.Before(r.until)) })
}

func (m *Data) setWays(w Ways) {
	w.Open &= m.links
	w.Good &= w.Open
	(w.Open &^ m.ways.Open).each(func(i int) { m.peers[i] = dataPeer{} })
	(m.ways.Open &^ w.Open).each(func(i int) { m.peers[i] = dataPeer{} })
	(w.Good &^ m.ways.Good).each(func(i int) { // what was said before may have been said to nobody
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
	t.id, t.prio, t.length = f.id, f.prio, f.length
	s := &m.slots[f.id.Topic]
	if n := s.next; n != nil && n.id == f.id && f.pieces&^n.have != 0 && now.Sub(n.progress) > mostSteps*m.period {
		m.turnTo(n, i) // it has what nobody gave
	}
	if !f.flag {
		return
	}
	m.consider(now, s, f.id.Topic) // so that the answer is that this is known
	if !m.lacks(t, f.id.Topic) || !t.tell.due(now) {
		m.sayState(i, f.id.Topic, false)
	}
}

// sayState tells a neighbour what is known of a topic.
func (m *Data) sayState(i int, t Topic, ask bool) {
	if d, have := m.slots[t].best(); d != nil {
		m.stats.States++
		m.send(i, &dataFrame{kind: kindState, id: d.id, prio: d.prio, flag: ask, length: len(d.body), pieces: have})
	}
}

// consider begins the newest datum of a topic that a neighbour knows, and this node does not.
func (m *Data) consider(now time.Time, s *slot, topic Topic) {
	for i := range m.peers {
		p := &m.peers[i]
		t := &p.topics[topic]
		if t.id.Number == 0 || !m.unknown(s, t.id) {
			continue
		}
		p.begins.settle(now, beginRate)
		if !p.begins.has(beginBurst) {
			continue
		}
		p.begins.spent++
		s.next = &transfer{datum: datum{t.id, t.prio, make([]byte, t.length)}, parent: i, progress: now} // §4.3.5: who it came from first
		m.news(topic)
	}
}

// unknown says whether a datum is newer than what is known, and not refused.
func (m *Data) unknown(s *slot, id DataID) bool {
	best, _ := s.best()
	return (best == nil || id.newer(best.id)) && !m.refused(id)
}

// tell says to neighbours what they do not know: that this node has begun, and the newest of each topic.
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

// lacks says whether a neighbour does not know the newest of a topic.
func (m *Data) lacks(t *peerTopic, topic Topic) bool {
	best, _ := m.slots[topic].best()
	return best != nil && (best.id.newer(t.id) || best.id != t.id && m.refused(t.id))
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

// ask asks for pieces of what is on its way, the highest priority first; of a lower one only when nothing comes of a higher one.
func (m *Data) ask(now time.Time) {
	var order [DataTopics + 1]*transfer
	n := 0
	for i := range m.slots {
		if t := m.slots[i].next; t != nil && !t.whole() {
			order[n] = t
			n++
		}
	}
	slices.SortStableFunc(order[:n], func(a, b *transfer) int { return int(b.prio) - int(a.prio) })
	for _, t := range order[:n] {
		m.askFor(now, t)
		if now.Sub(t.progress) < stalled {
			return
		}
	}
}

func (m *Data) askFor(now time.Time, t *transfer) {
	if !m.parent(t.parent, t) {
		m.nextParent(t)
	}
	if t.parent < 0 {
		return
	}
	switch due := !t.again.IsZero() && !now.Before(t.again); {
	case due:
		if t.asks >= dataTries {
			m.nextParent(t)
		}
		m.want(now, t, true)
	case t.again.IsZero():
		m.want(now, t, true)
	case t.asked != 0 && bits.OnesCount64(t.asked) <= dataWindow/2 && t.asked|t.have != allPieces(len(t.body)):
		m.want(now, t, false)
	}
}

// parent says whether a neighbour can be asked for a datum.
func (m *Data) parent(i int, t *transfer) bool {
	return i >= 0 && m.ways.Good>>i&1 != 0 && m.peers[i].topics[t.id.Topic].id == t.id
}

// nextParent turns to the next neighbour that can be asked; to the same one if there is no other.
func (m *Data) nextParent(t *transfer) {
	for k := 1; k <= grid.NumDirections; k++ {
		if i := (max(t.parent, 0) + k) % grid.NumDirections; m.parent(i, t) {
			m.turnTo(t, i)
			return
		}
	}
	m.turnTo(t, -1)
}

// turnTo has another neighbour asked from now on; -1: nobody.
func (m *Data) turnTo(t *transfer, i int) {
	if i != t.parent {
		m.stats.Parents++
		if t.spoiled > 0 {
			t.have = 0
		}
	}
	t.parent, t.asked, t.asks, t.step, t.again = i, 0, 0, 0, time.Time{}
}

// want asks the parent: again for all that did not come, or for more.
func (m *Data) want(now time.Time, t *transfer, again bool) {
	more := uint64(0)
	if again {
		t.asks++
		more, t.asked = t.asked, 0
	}
	for missing := allPieces(len(t.body)) &^ t.have &^ t.asked &^ more; missing != 0 && bits.OnesCount64(t.asked|more) < dataWindow; missing &= missing - 1 {
		more |= missing & -missing
	}
	t.asked |= more
	if !again {
		t.step = 0
	}
	quiet := min(now.Sub(t.progress)/8, slowest(m.period)) // ever more rarely, whoever is asked
	t.step = max(2*t.step, 2*m.period, quiet)
	t.again = now.Add(t.step)
	m.stats.Asked++
	m.send(t.parent, &dataFrame{kind: kindWant, id: t.id, flag: again, pieces: more})
}

// onWant takes what a neighbour asks for. If nothing of it is here yet it is told so, and given it when it comes.
func (m *Data) onWant(i int, f *dataFrame) {
	m.peers[i].met = true
	d, have := m.slots[f.id.Topic].find(f.id)
	if d == nil || f.flag && have&f.pieces == 0 {
		m.sayState(i, f.id.Topic, false)
	}
	if d == nil {
		return
	}
	t := &m.peers[i].topics[f.id.Topic]
	if t.wants != f.id || f.flag {
		t.wants, t.pieces = f.id, 0
	}
	t.pieces |= f.pieces & allPieces(len(d.body))
}

func (m *Data) onPiece(now time.Time, i int, f *dataFrame) {
	m.peers[i].met = true
	s := &m.slots[f.id.Topic]
	t := s.next
	if t == nil || t.id != f.id || t.have>>f.index&1 != 0 || t.spoiled > 0 && i != t.parent {
		m.stats.Duplicates++
		return
	}
	from, to := pieceOf(f.index, len(t.body))
	if to-from != len(f.data) {
		m.out.Bad = true
		m.stats.Bad++
		return
	}
	copy(t.body[from:to], f.data)
	t.have |= 1 << f.index
	t.asked &^= 1 << f.index
	t.asks, t.step, t.progress = 0, 0, now
	if t.again = now.Add(2 * m.period); !t.whole() {
		return
	}
	if sumOf(t.body) == t.id.Sum {
		m.stats.Delivered++
		m.out.Deliver = append(m.out.Deliver, Datum{t.id, t.prio, t.body})
		return
	}
	m.stats.Spoiled++
	t.spoiled++
	t.have = 0
	m.nextParent(t)
	t.again = now.Add(min(m.period<<min(t.spoiled, 16), spoiledLater))
}

// serve sends neighbours the pieces that they want and that are here, the highest priority first.
func (m *Data) serve(now time.Time) {
	m.ways.Open.each(func(i int) {
		p := &m.peers[i]
		for {
			var best *peerTopic
			var of *datum
			var ready uint64
			for k := range p.topics {
				t := &p.topics[k]
				if t.pieces == 0 {
					continue
				}
				d, have := m.slots[k].find(t.wants)
				if d == nil {
					t.pieces = 0
				} else if t.pieces&have != 0 && (best == nil || d.prio > of.prio) {
					best, of, ready = t, d, t.pieces&have
				}
			}
			if best == nil {
				return
			}
			p.pieces.settle(now, dataRate)
			if !p.pieces.has(dataBurst) {
				return
			}
			p.pieces.spent++
			k := bits.TrailingZeros64(ready)
			best.pieces &^= 1 << k
			from, to := pieceOf(k, len(of.body))
			m.stats.Sent++
			m.send(i, &dataFrame{kind: kindPiece, id: of.id, index: k, data: of.body[from:to]})
		}
	})
}

func (m *Data) send(i int, f *dataFrame) {
	size := stateSize
	if f.kind == kindPiece {
		size = pieceHeader + len(f.data)
	}
	m.out.Send = append(m.out.Send, Send{grid.Directions()[i], f.append(make([]byte, 0, size))})
}

// pending says whether something is to be repeated, or waits.
func (m *Data) pending() bool {
	for i := range m.slots {
		if t := m.slots[i].next; t != nil && !t.whole() {
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
			if t.pieces != 0 || m.lacks(t, Topic(k)) || t.id.Number != 0 && m.unknown(&m.slots[k], t.id) {
				return true
			}
		}
	}
	return false
}
