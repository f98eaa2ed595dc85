package express

import (
	"bytes"
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

const (
	// Life is how long nodes try to send a broadcast, from when it was raised.
	Life = 5 * time.Second
	// Remember is how long nodes remember its ID at least.
	Remember = 2 * Life
	// LinkRate bounds the new broadcasts a second that come by a link.
	LinkRate = 400
	// LinkBurst bounds those that come at once.
	LinkBurst = 256
	// OriginRate bounds the broadcasts of an origin, per second. The origin itself uses a little less.
	OriginRate = 50
	// OriginBurst bounds those that come at once.
	OriginBurst       = 64
	ownRate, ownBurst = 40, 48
	// maxOrigins is of how many origins the budgets are kept apart: more do not begin within a second or two in a
	// cluster that is well.
	maxOrigins = 4096
	// mostSteps bounds the wait between repeats, in link periods.
	mostSteps = 16
)

// Machine floods the broadcasts of one node. One goroutine owns it. It is small as long as it holds nothing.
type Machine struct {
	cfg    Config
	number uint64 // last used
	ways   Ways
	seen   seen
	budget budgets

	held   []*held // the highest priority first, then by age here
	places uint64  // the occupied ones
	flight [grid.NumDirections]uint8
	moved  bool // there may be something to send
	untold int  // held that are not known to be delivered

	pings *pings
	rarer int            // pings of links that answer are so many times rarer; 0 counts as 1
	ackBy grid.Direction // of the step under way: valid if ackOf needs an acknowledgement
	ackOf ID
	out   Output
	stats Stats
}

// held is a broadcast that not all neighbours are known to have.
type held struct {
	msg   Message
	at    time.Time      // when it came
	age   time.Duration  // then
	from  grid.Direction // its parent in the tree; invalid: raised here
	place int
	told  bool // the copy knows that it was delivered
	owed  bool // an earlier life did not get to that
	given bool // this life has delivered it
	sure  bool // and its receivers have it: see HandedOver
	wait  Mask // neighbours not known to have it
	sent  Mask // where it is on its way
	step  time.Duration
	again time.Time // zero: it is nowhere on its way
}

func (h *held) ageAt(now time.Time) time.Duration { return h.age + max(0, now.Sub(h.at)) }

// New returns a machine that begins at now. No way is open.
func New(cfg Config, now time.Time) *Machine {
	if cfg.Period <= 0 || cfg.Links>>grid.NumDirections != 0 {
		panic(fmt.Sprintf("express: New(%+v)", cfg))
	}
	cfg.MaxPayload = cmp.Or(cfg.MaxPayload, MaxPayload)
	m := &Machine{cfg: cfg, number: cfg.Resume.Number}
	m.budget.links = cfg.Links
	m.seen.restore(now, cfg.Resume.Seen)
	for i, k := range cfg.Resume.Held {
		m.restore(now, i, k)
	}
	m.cfg.Resume = Resume{}
	return m
}

// restore takes over a broadcast that an earlier life held. All neighbours but the parent get it again, and ignore
// duplicates.
func (m *Machine) restore(now time.Time, place int, k Kept) {
	if len(k.Bytes) < keepHeader {
		return
	}
	told, from := k.Bytes[0]&1 != 0, grid.Direction(k.Bytes[1])
	msg, age, err := decodeMessage(k.Bytes[keepHeader:])
	if err != nil || from != 0 && !from.Valid() {
		return
	}
	msg.Body = bytes.Clone(msg.Body)
	h := &held{msg: msg, at: now, age: age + max(0, k.Age), from: from, place: place, told: told, owed: !told, wait: m.cfg.Links}
	if from.Valid() {
		h.wait &^= MaskOf(from)
	}
	m.places |= 1 << place
	m.insert(h)
	m.seen.add(now, msg.ID)
	if !told {
		m.untold++
	}
}

// Step handles one event.
func (m *Machine) Step(now time.Time, ev Event) Output {
	m.out = Output{Send: m.out.Send[:0], Keep: m.out.Keep[:0]}
	if m.untold > 0 {
		m.tell(now)
	}
	switch ev := ev.(type) {
	case Tick:
		m.expire(now)
	case *Received:
		m.receive(now, ev)
	case Raise:
		m.out.Raised, m.out.Err = m.raise(now, ev)
	case Relinked:
		m.relink(ev.Links)
	case Ways:
		m.setWays(now, ev)
	}
	if m.moved {
		m.pump(now)
	}
	m.sendAck()
	if _, tick := ev.(Tick); tick {
		m.ping(now)
		m.repeat(now)
	}
	m.out.KeepSeen = m.seen.changes()
	m.out.Deaf = m.pings.deafness()
	m.out.Wake = m.wake()
	return m.out
}

// HandedOver says that the receivers have everything that the steps so far delivered. Only then the copy records the
// deliveries. If the owner is killed between steps and the hand-over, the machine delivers again in its next life.
func (m *Machine) HandedOver() {
	if m.untold == 0 {
		return
	}
	for _, h := range m.held {
		h.sure = h.given
	}
}

// tell records the delivered messages in the copy, and delivers those that an earlier life could not.
func (m *Machine) tell(now time.Time) {
	m.untold = 0
	for _, h := range m.held {
		switch {
		case h.told:
		case h.owed:
			h.owed, h.given = false, true
			m.untold++
			m.out.Deliver = append(m.out.Deliver, h.msg)
		case h.sure:
			h.told = true
			m.keep(now, h)
		default:
			m.untold++
		}
	}
}

func (m *Machine) raise(now time.Time, r Raise) (ID, error) {
	switch {
	case r.Topic == 0:
		return ID{}, fmt.Errorf("raise a broadcast: topic 0, want 1 to 255: %w", ErrInvalid)
	case r.Priority > MaxPriority:
		return ID{}, fmt.Errorf("raise a broadcast on %s: priority %d, want 0 to %d: %w", r.Topic, r.Priority, MaxPriority, ErrInvalid)
	case headerSize+len(r.Body) > min(MaxPayload, m.cfg.MaxPayload):
		return ID{}, fmt.Errorf("raise a broadcast on %s: body of %d bytes, want at most %d: %w", r.Topic, len(r.Body),
			min(MaxPayload, m.cfg.MaxPayload)-headerSize, ErrInvalid)
	case !m.budget.own(now, r.Topic):
		m.stats.Refused[r.Topic.index()]++
		return ID{}, fmt.Errorf("raise a broadcast on %s: %d a second: %w", r.Topic, ownRate, ErrRate)
	}
	place, ok := m.admit(r.Priority)
	if !ok {
		m.stats.Refused[r.Topic.index()]++
		return ID{}, fmt.Errorf("raise a broadcast on %s: priority %d: %w", r.Topic, r.Priority, ErrNoRoom)
	}
	m.budget.takeOwn(r.Topic)
	m.number++
	id := ID{Origin: m.cfg.Self, Epoch: m.cfg.Epoch, Number: m.number}
	m.stats.Raised[r.Topic.index()]++
	m.take(now, &held{msg: Message{ID: id, Topic: r.Topic, Priority: r.Priority, Body: r.Body}, at: now, place: place, wait: m.cfg.Links})
	return id, nil
}

// take holds a new broadcast, and delivers it.
func (m *Machine) take(now time.Time, h *held) {
	m.seen.add(now, h.msg.ID)
	m.out.Deliver = append(m.out.Deliver, h.msg)
	if h.wait == 0 {
		m.places &^= 1 << h.place
		return
	}
	h.given = true
	m.insert(h)
	m.keep(now, h)
	m.untold++
}

func (m *Machine) insert(h *held) {
	i, _ := slices.BinarySearchFunc(m.held, h, func(a, b *held) int {
		if a.msg.Priority < b.msg.Priority {
			return 1
		}
		return -1 // before it, also where it is of the same priority
	})
	m.held = slices.Insert(m.held, i, h)
	m.moved = true
}

func (m *Machine) receive(now time.Time, r *Received) {
	p, err := decode(r.Payload)
	if err != nil || !m.cfg.Links.Has(r.Dir) {
		m.bad()
		return
	}
	switch p.kind {
	case kindMessage:
		m.onMessage(now, r.Dir, &p)
	case kindAck:
		for b := p.acks; len(b) > 0; b = b[idSize:] {
			if h := m.find(idAt(b)); h != nil {
				m.reached(h, MaskOf(r.Dir))
			}
		}
	case kindPing:
		m.send(r.Dir, appendPing(make([]byte, 0, pingSize), kindEcho, p.ping))
	case kindEcho:
		m.echoed(r.Dir, p.ping)
	default: // of a later version
	}
}

func (m *Machine) bad() {
	m.out.Bad = true
	m.stats.Bad++
}

func (m *Machine) onMessage(now time.Time, d grid.Direction, p *payload) {
	id := p.msg.ID
	own := id.Origin == m.cfg.Self && id.Epoch == m.cfg.Epoch
	switch {
	case own && id.Number > m.number: // this node never raised that
		m.bad()
	case own || m.seen.has(id):
		m.stats.Duplicates++
		m.again(d, id)
	case p.age >= Life:
		m.ack(d, id) // so that it ends there as well
	default:
		m.onNew(now, d, p)
	}
}

// again handles a duplicate. If the broadcast is on its way to the sender, both ends know that the other one has it;
// otherwise again acknowledges it.
func (m *Machine) again(d grid.Direction, id ID) {
	h := m.find(id)
	crossed := h != nil && h.wait.Has(d) && h.sent.Has(d)
	if h != nil {
		m.reached(h, MaskOf(d))
	}
	if !crossed {
		m.ack(d, id)
	}
}

func (m *Machine) onNew(now time.Time, d grid.Direction, p *payload) {
	topic := p.msg.Topic.index()
	budget := m.budget.take(now, d, p.msg.Origin)
	if budget == nil {
		m.stats.Refused[topic]++
		return
	}
	place, ok := m.admit(p.msg.Priority)
	if !ok {
		m.stats.Refused[topic]++
		return
	}
	budget()
	m.ack(d, p.msg.ID)
	m.stats.Delivered[topic]++
	msg := p.msg
	msg.Body = bytes.Clone(msg.Body)
	m.take(now, &held{msg: msg, at: now, age: p.age, from: d, place: place, wait: m.cfg.Links &^ MaskOf(d)})
}

// admit finds a place for a broadcast; ok is false if there is none. A broadcast that waits only for broken links,
// and has no higher priority, makes room.
func (m *Machine) admit(p Priority) (int, bool) {
	for len(m.held) >= Room(p) {
		i := -1
		for j, h := range m.held { // the last one found is of the lowest priority; of those the oldest
			if h.wait&m.ways.Good == 0 && h.msg.Priority <= p && (i < 0 || h.msg.Priority < m.held[i].msg.Priority) {
				i = j
			}
		}
		if i < 0 {
			return 0, false
		}
		m.stats.Evicted[m.held[i].msg.Topic.index()]++
		m.release(i)
	}
	place := bits.TrailingZeros64(^m.places)
	m.places |= 1 << place
	return place, true
}

func (m *Machine) find(id ID) *held {
	for _, h := range m.held {
		if h.msg.ID == id {
			return h
		}
	}
	return nil
}

// reached notes that neighbours have a broadcast.
func (m *Machine) reached(h *held, who Mask) {
	m.land(h, who)
	h.wait &^= who
	if h.wait == 0 {
		m.release(slices.Index(m.held, h))
	}
	m.moved = true
}

// land notes that a broadcast is not on its way to neighbours any more.
func (m *Machine) land(h *held, who Mask) {
	(h.wait & h.sent & who).each(func(i int) { m.flight[i]-- })
	h.sent &^= who
}

func (m *Machine) release(i int) {
	h := m.held[i]
	m.land(h, h.wait)
	m.held = slices.Delete(m.held, i, i+1)
	m.places &^= 1 << h.place
	m.out.Keep = append(m.out.Keep, Keep{Place: h.place})
	m.moved = true
}

// relink changes the node's links. Broadcasts wait no longer for a link that is gone.
func (m *Machine) relink(links Mask) {
	gone := m.cfg.Links &^ links
	m.cfg.Links, m.budget.links = links, links
	for _, h := range slices.Clone(m.held) {
		if h.wait&gone != 0 {
			m.reached(h, gone)
		}
	}
}

func (m *Machine) setWays(now time.Time, w Ways) {
	w.Open &= m.cfg.Links
	w.Good &= w.Open
	closed := m.ways.Open &^ w.Open
	m.ways = w
	for _, h := range m.held {
		m.land(h, closed)
	}
	m.pings.begin(now, w)
	m.moved = true
}

// pump sends pending broadcasts as far as the windows allow, the highest priority first.
func (m *Machine) pump(now time.Time) {
	m.moved = false
	for _, h := range m.held {
		var b []byte
		(h.wait &^ h.sent & m.ways.Open).each(func(i int) {
			if m.flight[i] >= Window && !m.displace(i, h.msg.Priority) {
				return
			}
			if b == nil {
				b = m.encode(now, h)
			}
			m.send(grid.Directions()[i], b)
			m.stats.Sent[h.msg.Topic.index()]++
			m.flight[i]++
			h.sent |= 1 << i
			h.step, h.again = m.cfg.Period, fault.Earliest(h.again, now.Add(m.cfg.Period))
		})
	}
}

// displace has a broadcast of the lowest priority that is on its way by a link wait for one of a higher priority, if
// there is one.
func (m *Machine) displace(i int, p Priority) bool {
	for _, h := range slices.Backward(m.held) {
		if h.msg.Priority >= p {
			return false
		}
		if w := h.wait & h.sent & (1 << i); w != 0 {
			m.land(h, w)
			m.stats.Preempted[h.msg.Topic.index()]++
			m.moved = true
			return true
		}
	}
	return false
}

func (m *Machine) encode(now time.Time, h *held) []byte {
	hops := h.msg.Hops
	if hops < 1<<16-1 {
		hops++
	}
	return appendMessage(make([]byte, 0, headerSize+len(h.msg.Body)), &h.msg, hops, h.ageAt(now))
}

func (m *Machine) send(d grid.Direction, b []byte) { m.out.Send = append(m.out.Send, Send{d, b}) }

// repeat sends unacknowledged broadcasts again.
func (m *Machine) repeat(now time.Time) {
	for _, h := range m.held {
		if h.again.IsZero() || now.Before(h.again) {
			continue
		}
		who := h.wait & h.sent & m.ways.Open
		if who == 0 {
			h.again = time.Time{}
			continue
		}
		b := m.encode(now, h)
		who.each(func(i int) {
			m.send(grid.Directions()[i], b)
			m.stats.Repeated[h.msg.Topic.index()]++
		})
		h.step = min(2*h.step, mostSteps*m.cfg.Period)
		h.again = now.Add(h.step)
	}
}

// expire gives up broadcasts that are too old.
func (m *Machine) expire(now time.Time) {
	for i := len(m.held) - 1; i >= 0; i-- {
		h := m.held[i]
		if h.ageAt(now) < Life {
			continue
		}
		if h.wait&m.ways.Good != 0 {
			m.stats.Expired[h.msg.Topic.index()]++
		}
		m.release(i)
	}
}

// ack has a broadcast acknowledged with this step: there is one at most.
func (m *Machine) ack(d grid.Direction, id ID) { m.ackBy, m.ackOf = d, id }

func (m *Machine) sendAck() {
	if m.ackBy.Valid() {
		m.send(m.ackBy, appendAcks(make([]byte, 0, 2+idSize), m.ackOf))
		m.ackBy = 0
	}
}

// keep has a broadcast stored.
func (m *Machine) keep(now time.Time, h *held) {
	b := make([]byte, 0, keepHeader+headerSize+len(h.msg.Body))
	var told byte
	if h.told {
		told = 1
	}
	b = append(b, told, byte(h.from))
	m.out.Keep = append(m.out.Keep, Keep{h.place, appendMessage(b, &h.msg, h.msg.Hops, h.ageAt(now))})
}

func (m *Machine) wake() time.Time {
	w := m.pings.wake()
	for _, h := range m.held {
		w = fault.Earliest(w, h.again)
		w = fault.Earliest(w, h.at.Add(Life-h.age))
	}
	return w
}

// SetEpoch changes the boot epoch of the broadcasts that are raised from now on. The numbers go on.
func (m *Machine) SetEpoch(e fault.Epoch) { m.cfg.Epoch = e }

// Number returns the last number used: to be stored before anything of the step is sent.
func (m *Machine) Number() uint64 { return m.number }

// Busy reports whether a Tick may have an effect before the next ping.
func (m *Machine) Busy() bool { return len(m.held) > 0 }

// Stats returns the counters.
func (m *Machine) Stats() Stats {
	s := m.stats
	s.Held = len(m.held)
	return s
}
