package dnpcore

import (
	"bytes"
	"math/bits"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// A forwarded message is held in a slot, here and in the copy, until its next station has taken it: the neighbours that
// it was sent to, or the host half's mailbox. Only then the slot is freed, or when another slot holds the same message for
// its destination (see merge). The neighbour that sent the message gets an acknowledgement only when the slot and the window
// are in the copy (seed 000 §4.1). So this half may be killed at any instruction and still resumes with all messages it had
// taken.
//
// A message whose only routes are broken links waits here, for at most hopLife, until any route works. Without a free
// slot a message is refused, and its sender retries. Messages of this half, and of neighbours that know no hops, then
// travel without a slot; back messages always do.

const (
	// NumHeld is the maximum number of held messages.
	NumHeld = 64
	// hopLife is how long a message is retried: by then its origin has long found another route.
	hopLife = 5 * time.Second
	// hopRetry is the time between attempts to send a message that has no route.
	hopRetry = 100 * time.Millisecond
	// mailRetry is the same for the host half's mailbox.
	mailRetry = 20 * time.Millisecond
)

// Hops is the state from which the machine resumes the messages of an earlier incarnation. The zero value: there was
// none.
type Hops struct {
	// Stream numbers the stream of a link that starts cold. It was never used before; 0: derived from the boot epoch.
	Stream uint32
	// Links is the stored state of each link.
	Links [grid.NumDirections][]byte
	// Held is the stored content of the slots; nil: free.
	Held [NumHeld]Held
}

// Held is a message that an earlier incarnation had taken.
type Held struct {
	Bytes []byte
	Age   time.Duration // since it was first stored
}

// Keep is a part of the copy to store now: the hops of a link or, with an invalid Dir, a slot. Nil Bytes free the slot.
type Keep struct {
	Dir   grid.Direction
	Slot  int
	New   bool // the slot held another message, or none: Held.Age counts from now
	Bytes []byte
}

// HostMail is a held message for the host half's mailbox: send NotTaken when the mailbox refuses it.
type HostMail struct {
	Slot    int
	Message halfcore.Relay
}

// NotTaken says that the mailbox refused the message of a slot. It must precede the next Tick.
type NotTaken struct{ Slot int }

func (NotTaken) dnpEvent() {}

// HopStats counts the outcomes of messages.
type HopStats struct {
	Held    int    // now
	Again   uint64 // sent again
	Seen    uint64 // arrived again, and dropped
	Refused uint64 // refused because all slots were full
	Expired uint64 // given up after hopLife
}

// hops are the messages that are held.
type hops struct {
	slots   [NumHeld]slot
	on      uint64 // bit i: slot i is in use
	changed uint64 // bit i: slot i differs from its stored copy
	freed   uint64 // bit i: slot i is stored but no longer in use
	keep    []Keep // of the current step
	stats   HopStats
}

// slot is a message that is held.
type slot struct {
	kept   bool           // the copy's slot holds something
	fresh  bool           // and that is not this message
	msg    halfcore.Relay // includes this station among its hops
	from   grid.Direction // the link by which it arrived; invalid: from the host half, or this half
	stream uint32         // the stream of the hop by which it arrived; 0: none
	number uint64
	wait   [grid.NumDirections]uint64 // its numbers on the links where it is in flight
	passed bool                       // a next station has taken it, or another slot holds it
	mail   mailState
	leaves bool      // goes out with this step, to a neighbour that does not acknowledge: done at the next tick
	at     time.Time // when this half took it
	again  time.Time // when to try it again; zero: it is in flight
}

// mailState is the state of a message for the host half.
type mailState uint8

const (
	mailNone    mailState = iota
	mailHanded            // the mailbox has it, unless NotTaken arrives before the next tick
	mailRefused           // to be retried
)

// none is the slot number of a message that is not held.
const none = -1

func (m *Machine) hopConfig() torus.HopConfig {
	p := m.cfg.Periods.LinkPeriod
	return torus.HopConfig{Again: p, Most: 8 * p}
}

// resumeHops restores the state that an earlier incarnation kept. Call it once, when all links exist.
func (m *Machine) resumeHops(now time.Time, of Hops) {
	stream := of.Stream
	if stream == 0 {
		stream = uint32(m.sender.Epoch())<<1 | 1
	}
	for i, l := range m.links {
		if l == nil {
			continue
		}
		if s, ok := torus.DecodeHopSnapshot(of.Links[i]); ok {
			l.hop = torus.ResumeHop(m.hopConfig(), s)
		} else {
			l.hop = torus.NewHop(m.hopConfig(), stream)
		}
	}
	for i, h := range of.Held {
		s, ok := decodeSlot(h.Bytes)
		if !ok {
			continue
		}
		s.kept, s.at, s.again = true, now.Add(-h.Age), now
		if from := m.link(s.from); from != nil && s.stream != 0 {
			from.hop.Took(s.stream, s.number)
		}
		for d, n := range s.wait {
			if l := m.links[d]; n != 0 && l != nil && l.hop.Restore(now, n, i) {
				s.again = time.Time{}
			} else {
				s.wait[d] = 0
			}
		}
		m.hops.slots[i] = s
		m.hops.on |= 1 << i
		m.seen.First(now, s.msg)
	}
}

// link returns the link in a direction, nil for an invalid one.
func (m *Machine) link(d grid.Direction) *link {
	if !d.Valid() {
		return nil
	}
	return m.links[d.Index()]
}

// hold puts a message into a slot. The machine must own the envelope. A message with a number was admitted already.
func (m *Machine) hold(now time.Time, msg halfcore.Relay, from *link, hd torus.HopHeader) int {
	h := &m.hops
	if hd.Stream == 0 && m.full() {
		return none
	}
	i := bits.TrailingZeros64(^h.on)
	h.slots[i] = slot{kept: h.slots[i].kept, fresh: true, msg: msg, stream: hd.Stream, number: hd.Number, at: now}
	if from != nil {
		h.slots[i].from = from.dir
	}
	h.on |= 1 << i
	h.changed |= 1 << i
	h.freed &^= 1 << i
	return i
}

func (m *Machine) release(i int) {
	h := &m.hops
	for d, n := range h.slots[i].wait {
		if n != 0 {
			m.links[d].hop.Abandon(n)
		}
	}
	kept := h.slots[i].kept
	h.slots[i] = slot{kept: kept}
	h.on &^= 1 << i
	h.changed &^= 1 << i
	if kept {
		h.freed |= 1 << i
	}
}

// pass forwards a message: to the supervisors through this node's host half or the neighbours, to this node, or towards
// another node.
func (m *Machine) pass(now time.Time, i int, msg halfcore.Relay, from *link) {
	switch {
	case msg.Kind == halfcore.RelayUp && m.hostCarries():
		m.hand(i, msg)
	case msg.Kind == halfcore.RelayUp:
		m.flood(now, i, msg, from)
	case msg.Dst == m.cfg.Topo.Coord:
		m.arrive(now, from, msg.Envelope)
		if i != none {
			m.hops.slots[i].leaves = true
		}
	default:
		m.route(now, i, msg, from)
	}
	m.settle(now, i)
}

// hand puts a message into the host half's mailbox.
func (m *Machine) hand(i int, msg halfcore.Relay) {
	if i == none {
		m.out.ToHost = append(m.out.ToHost, msg)
		return
	}
	s := &m.hops.slots[i]
	s.mail, s.again = mailHanded, time.Time{}
	m.out.Hand = append(m.out.Hand, HostMail{i, msg})
}

func (m *Machine) onNotTaken(now time.Time, i int) {
	if s := &m.hops.slots[i]; s.mail == mailHanded {
		s.mail, s.again = mailRefused, now.Add(mailRetry)
	}
}

// settle frees the slot of a message that is not in flight any more, or schedules its next attempt.
func (m *Machine) settle(now time.Time, i int) {
	if i == none || m.hops.on>>i&1 == 0 {
		return
	}
	s := &m.hops.slots[i]
	switch {
	case s.leaves || s.mail != mailNone:
	case m.underWay(s):
		s.again = time.Time{}
	case s.passed:
		m.release(i)
	case s.again.IsZero():
		s.again = now.Add(hopRetry)
	}
}

// underWay reports whether a message waits for a neighbour that is worth waiting for. A message that waits at broken
// links alone is meanwhile tried by other routes, and the first neighbour that takes it keeps it.
func (m *Machine) underWay(s *slot) bool {
	for d, n := range s.wait {
		if l := m.links[d]; n != 0 && l.detail.State() != torus.LinkBroken && !m.masked(l) {
			return true
		}
	}
	return false
}

// tickHeld checks all held messages: those that the mailbox or this half took before this tick are done.
func (m *Machine) tickHeld(now time.Time) {
	for on := m.hops.on; on != 0; on &= on - 1 {
		i := bits.TrailingZeros64(on)
		s := &m.hops.slots[i]
		if s.leaves || s.mail == mailHanded {
			s.leaves, s.mail, s.passed = false, mailNone, true
		}
		switch {
		case now.Sub(s.at) > hopLife:
			m.hops.stats.Expired++
			m.release(i)
		case due(now, s.again) && !m.underWay(s):
			s.again, s.mail = time.Time{}, mailNone
			m.pass(now, i, m.aged(s, now), m.link(s.from))
		default:
			m.settle(now, i)
		}
	}
}

func due(now, at time.Time) bool { return !at.IsZero() && !now.Before(at) }

// aged returns the message with its holding time here added.
func (m *Machine) aged(s *slot, now time.Time) halfcore.Relay {
	held := now.Sub(s.at)
	if held <= 0 || len(s.msg.Hops) == 0 {
		return s.msg
	}
	msg := s.msg
	msg.Hops = append([]halfcore.RelayHop(nil), msg.Hops...)
	last := &msg.Hops[len(msg.Hops)-1]
	last.Held = min(last.Held+held, halfcore.MaxRelayHeld)
	return msg
}

// send sends a message by a link, after its hop was counted. A neighbour that knows hops has taken it only when it
// acknowledges, even over a broken link, because this half has promised the message to the previous station and must
// not drop it on a guess. A neighbour that knows no hops counts as having it at once.
func (m *Machine) send(now time.Time, i int, l *link, msg halfcore.Relay) {
	if i == none {
		m.forward(now, l, msg)
		return
	}
	s := &m.hops.slots[i]
	if s.wait[l.dir.Index()] != 0 {
		return
	}
	if msg.Kind == halfcore.RelayDown && msg.Dst == l.dst && m.merge(now, i, l) {
		return
	}
	if m.acknowledges(l) {
		hd, ok := l.hop.Send(now, i)
		if !ok {
			return // too many are in flight: try again later
		}
		if m.sendHop(now, l, hd, msg) {
			s.wait[l.dir.Index()] = hd.Number
			m.hops.changed |= 1 << i
			return
		}
		l.hop.Abandon(hd.Number)
	}
	s.leaves = true
	m.forward(now, l, msg)
}

// merge releases a slot if another one holds the same message, in flight to the neighbour that is its destination. The other slot then
// holds the message as if it had just arrived, with the larger number of hops left. On detours a message passes by several times while its
// destination has announced that it is away. If each copy took a slot until the destination is back, a few messages would fill all slots,
// and this half would refuse all others.
func (m *Machine) merge(now time.Time, i int, l *link) bool {
	s := &m.hops.slots[i]
	for on := m.hops.on; on != 0; on &= on - 1 {
		j := bits.TrailingZeros64(on)
		o := &m.hops.slots[j]
		if o.wait[l.dir.Index()] == 0 || o.msg.Kind != s.msg.Kind || o.msg.Dst != s.msg.Dst || !bytes.Equal(o.msg.Envelope, s.msg.Envelope) {
			continue
		}
		o.msg.Made = min(o.msg.Made, s.msg.Made)
		o.at, o.fresh, o.passed, s.passed = now, true, false, true
		m.hops.changed |= 1 << j
		return true
	}
	return false
}

// acknowledges reports whether the neighbour acknowledges messages.
func (m *Machine) acknowledges(l *link) bool { return !m.cfg.NoHops && l.session && l.peer.Hops }

// sendHop sends a message under a number, and reports whether it fits.
func (m *Machine) sendHop(now time.Time, l *link, hd torus.HopHeader, msg halfcore.Relay) bool {
	payload, err := msg.Append(hd.Append(make([]byte, 0, torus.HopHeaderSize+halfcore.MaxRelaySize)))
	if err != nil {
		m.raise(now, watchdog.AddrRouter0, watchdog.RouterMalformed)
		return false
	}
	if len(payload) > torus.MaxPayload(m.cfg.MaxFrame) {
		return false
	}
	m.useLink(now, l, msg.Kind)
	f := torus.Frame{Type: torus.TypeHop, Payload: payload}
	l.machine.Fill(&f)
	m.frames = append(m.frames, Outgoing{l.dir, f})
	return true
}

// resend repeats messages that the neighbour has not acknowledged, along with the link's heartbeats.
func (m *Machine) resend(now time.Time, l *link) {
	if l.hop.InFlight() == 0 || !l.session || l.detail.Restarting || m.masked(l) {
		return
	}
	for hd, i, ok := l.hop.Due(now); ok; hd, i, ok = l.hop.Due(now) {
		msg := m.aged(&m.hops.slots[i], now)
		msg.Made++
		m.sendHop(now, l, hd, msg)
		m.hops.stats.Again++
	}
}

// onHop handles a message with a hop header, or an acknowledgement.
func (m *Machine) onHop(now time.Time, l *link, epoch fault.Epoch, payload []byte) {
	if m.cfg.NoHops {
		return
	}
	hd, msg, err := torus.DecodeHop(payload)
	if err != nil {
		m.breaks(now, l, halfcore.RuleMalformed, 1)
		return
	}
	m.checkHop(now, l, epoch, hd)
	for i, ok := l.hop.Acked(hd); ok; i, ok = l.hop.Acked(hd) {
		l.swap = false
		s := &m.hops.slots[i]
		s.wait[l.dir.Index()], s.passed = 0, true
		m.settle(now, i)
	}
	if hd.Stream == 0 {
		return
	}
	switch l.hop.Receive(hd) {
	case torus.HopNew:
		m.keepHop(l) // a new stream is known before its first message
		if m.onMessage(now, l, msg, hd) {
			l.hop.Take(hd.Number)
			l.ackDue = true
		}
	case torus.HopSeen:
		m.hops.stats.Seen++
		l.ackDue = true
	default: // late
	}
}

// reroute sends messages that wait for a silent or absent neighbour by another route. A message for a neighbour that
// will return stays there, and one without another route keeps waiting under its number.
func (m *Machine) reroute(now time.Time, l *link) {
	d, broken := l.dir.Index(), l.detail.State() == torus.LinkBroken
	for on := m.hops.on; on != 0; on &= on - 1 {
		i := bits.TrailingZeros64(on)
		s := &m.hops.slots[i]
		n := s.wait[d]
		switch {
		case n == 0, m.acknowledges(l) && !broken && !m.masked(l) && s.msg.Kind == halfcore.RelayDown && s.msg.Dst == l.dst:
			continue
		case !m.acknowledges(l):
			m.giveUp(i, l)
		}
		if !s.elsewhere(d) {
			m.pass(now, i, m.aged(s, now), m.link(s.from))
		}
		if s.elsewhere(d) {
			m.giveUp(i, l)
		}
		m.settle(now, i)
	}
}

// elsewhere reports whether a neighbour has accepted a message, or it is in flight, by a route other than this link.
func (s *slot) elsewhere(link int) bool {
	wait := s.wait
	wait[link] = 0
	return wait != [grid.NumDirections]uint64{} || s.passed || s.leaves || s.mail != mailNone
}

// giveUp ends a message's wait at a link.
func (m *Machine) giveUp(i int, l *link) {
	n := &m.hops.slots[i].wait[l.dir.Index()]
	if *n != 0 {
		l.hop.Abandon(*n)
		*n = 0
		m.hops.changed |= 1 << i
	}
}

// hopChanged handles a change of the link or the neighbour for the messages that wait there.
func (m *Machine) hopChanged(now time.Time, l *link, was torus.Detail, knew bool) {
	broken := func(d torus.Detail) bool { return d.State() == torus.LinkBroken }
	d := l.detail
	switch {
	case broken(d) && !broken(was), d.Restarting && !was.Restarting, knew && !l.peer.Hops:
		m.reroute(now, l)
	case was.Restarting && !d.Restarting: // it finds the messages that waited for it first
		l.hop.Put(now.Add(m.cfg.Periods.LinkPeriod))
	}
}

// keepHop stores the state of a link's hop if it has changed.
func (m *Machine) keepHop(l *link) {
	if l.hop.Changed() {
		m.hops.keep = append(m.hops.keep, Keep{Dir: l.dir, Bytes: l.hop.Snapshot().Append(nil)})
	}
}

// commit stores all changes in the required order: messages before the windows that acknowledge them, and both before
// slots are freed. Then it acknowledges the messages taken.
func (m *Machine) commit() {
	h := &m.hops
	for c := h.changed & h.on; c != 0; c &= c - 1 {
		i := bits.TrailingZeros64(c)
		b, err := h.slots[i].encode()
		if err != nil {
			continue // it could not be sent either
		}
		h.keep = append(h.keep, Keep{Slot: i, New: h.slots[i].fresh, Bytes: b})
		h.slots[i].kept, h.slots[i].fresh = true, false
	}
	for _, l := range m.links {
		if l != nil {
			m.keepHop(l)
		}
	}
	for f := h.freed; f != 0; f &= f - 1 {
		i := bits.TrailingZeros64(f)
		h.slots[i].kept = false
		h.keep = append(h.keep, Keep{Slot: i})
	}
	h.changed, h.freed = 0, 0
	m.out.Keep = h.keep
	for _, l := range m.links {
		if l == nil || !l.ackDue {
			continue
		}
		l.ackDue = false
		if l.session {
			f := torus.Frame{Type: torus.TypeHop, Payload: l.hop.Ack().Append(nil)}
			l.machine.Fill(&f)
			m.frames = append(m.frames, Outgoing{l.dir, f})
		}
	}
}

// HopStats returns the counters.
func (m *Machine) HopStats() HopStats {
	s := m.hops.stats
	s.Held = bits.OnesCount64(m.hops.on)
	return s
}
