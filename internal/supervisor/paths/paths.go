// Package paths is the supervisor's end of the exchange that establishes a path between one interface
// of a half and this supervisor (seed 004 §IV-B and Figure 8). It answers requests (REQ) with replies
// (REP), repeats a reply until its acknowledgement (ACK) arrives, and ignores old messages. It knows the
// addresses of a half's established paths, and the session that the half shares with us.
//
//	                 REQ of a new id                 ACK, or the session's MAC
//	(nothing) ──────────────────────► REQUESTED ──────────────────────────────► ESTABLISHED
//	                REP, repeated on a timer; the same id brings the same REP
//
// It is pure: the shell makes keys and names of sessions (Config.Grant), stores the keys, and seals and
// sends. The package does not judge health.
package paths

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet/checksum"
)

// MaxPaths bounds the remembered exchanges of one half, and the places of each: one for each service interface.
const MaxPaths = 8

// Repeats is the number of repetitions of an unacknowledged reply.
const Repeats = 3

// Place is one end of a path: an address of the half, and the number of our socket that reaches it.
type Place struct {
	Addr   netip.AddrPort
	Socket uint8
}

// State of an exchange.
type State uint8

// The states.
const (
	Requested   State = iota + 1 // answered; the half may not have the answer yet
	Established                  // the half has proven receipt of the reply
)

func (s State) String() string {
	switch s {
	case Requested:
		return "REQUESTED"
	case Established:
		return "ESTABLISHED"
	}
	return "NONE"
}

// Outcome is the result of a message of an exchange.
type Outcome uint8

// The outcomes.
const (
	Answered   Outcome = iota + 1 // a new request
	Repeated                      // a repeated request: the same reply
	Old                           // of an earlier epoch, or an id that was passed or used: ignored
	Refused                       // the half's key is not good
	Confirmed                     // the path is established
	Known                         // an acknowledgement without effect
	Unanswered                    // no acknowledgement came after the last repetition
)

// NumOutcomes bounds Outcome values from above.
const NumOutcomes = int(Unanswered) + 1

var outcomeNames = [NumOutcomes]string{"", "answered", "repeated", "old", "refused", "confirmed", "known", "unanswered"}

func (o Outcome) String() string {
	if int(o) >= NumOutcomes {
		return "none"
	}
	return outcomeNames[o]
}

// Request is a verified PathRequest.
type Request struct {
	Origin  fault.Origin
	Epoch   fault.Epoch
	ID      uint64
	Offered []lofamov1.Checksum
	Key     []byte // the half's public key of this exchange
	From    Place
}

// Grant is the session that the shell has made for a request.
type Grant struct {
	Session uint64 // not 0
	Key     []byte // our public key of this exchange
}

// Config of a machine.
type Config struct {
	Allowed []lofamov1.Checksum // that halves may choose from
	Wait    time.Duration       // before the first repetition; doubled with each
	// Grant makes a session for a request. It fails if the half's key is invalid.
	Grant func(Request) (Grant, error)
}

// Send is a reply to be sent.
type Send struct {
	Reply *lofamov1.PathReply // the leader's name is the shell's to add; not changed any more
	To    Place
}

// Output is what the shell has to do.
type Output struct {
	Sends   []Send
	Outcome Outcome // of the event; 0 for a Tick
	// Unanswered exchanges were given up by a Tick.
	Unanswered int
	// Established says that the half has a new path at Place.
	Established bool
	Place       Place
	Ended       []uint64 // sessions that are not used any more
	Wake        time.Time
}

// Machine holds the exchanges of all halves. Its memory is bounded by the number of halves passed to it, and
// MaxPaths each.
type Machine struct {
	cfg     Config
	halves  map[fault.Origin]*half
	waiting queue // for their acknowledgement
}

// half is the known state of one half in one epoch.
type half struct {
	epoch   fault.Epoch
	highest uint64 // id of a request
	seen    uint64 // bit i: highest-i was seen
	list    []*exchange
	// proven is the exchange whose session the half proved last; nil: none.
	proven *exchange
	asked  [askedKept]ask // answered under the session lately
	next   int
}

// exchange is one request. A half that finds no way sends the same one by all of its interfaces.
type exchange struct {
	id       uint64
	reply    *lofamov1.PathReply
	checksum lofamov1.Checksum
	ends     []*end // at most MaxPaths
}

// end is a path of an exchange.
type end struct {
	of      *exchange
	place   Place
	state   State
	repeats int
	wait    time.Duration
	due     time.Time

	// The queue's.
	waits bool
	index int
	order uint64
}

// ask names a datagram by its first report.
type ask struct {
	epoch fault.Epoch
	seq   fault.Seq
}

// askedKept is the number of remembered answers; a retry comes within a few tens of milliseconds.
const askedKept = 16

// New returns a machine.
func New(cfg Config) *Machine {
	return &Machine{cfg: cfg, halves: make(map[fault.Origin]*half)}
}

// Request processes a REQ.
func (m *Machine) Request(now time.Time, r Request) Output {
	var out Output
	h := m.heard(r.Origin, r.Epoch, &out)
	e, fresh := h.judge(r)
	switch {
	case h.epoch > r.Epoch, e == nil && !fresh:
		out.Outcome = Old
	case e != nil:
		out.Outcome = Repeated
		m.reply(now, e, r.From, &out)
	default:
		m.open(now, h, r, &out)
	}
	out.Wake = m.waiting.wake()
	return out
}

// judge looks an id up: it returns the id's exchange, or whether the id is new. Requests of two paths may overtake
// each other, hence the window; on one path an id below the last is old. A used id is never new, so that a
// recorded request makes no second session.
func (h *half) judge(r Request) (e *exchange, fresh bool) {
	for _, x := range h.list {
		if x.id == r.ID {
			e = x
		}
		if x.id > r.ID && x.at(r.From) != nil {
			return nil, false
		}
	}
	if e != nil || r.ID > h.highest {
		return e, e == nil
	}
	back := h.highest - r.ID
	return nil, back < 64 && h.seen&(1<<back) == 0
}

func (h *half) mark(id uint64) {
	if id > h.highest {
		h.seen = shift(h.seen, id-h.highest) | 1
		h.highest = id
		return
	}
	h.seen |= 1 << (h.highest - id)
}

func shift(bits, n uint64) uint64 {
	if n >= 64 {
		return 0
	}
	return bits << n
}

// at returns the exchange's end at a place, or nil.
func (e *exchange) at(p Place) *end {
	for _, x := range e.ends {
		if x.place == p {
			return x
		}
	}
	return nil
}

// open begins the exchange of a new request.
func (m *Machine) open(now time.Time, h *half, r Request, out *Output) {
	h.mark(r.ID)
	g, err := m.cfg.Grant(r)
	if err != nil {
		out.Outcome = Refused
		return
	}
	e := &exchange{id: r.ID, checksum: checksum.Choose(r.Offered, m.cfg.Allowed)}
	e.reply = &lofamov1.PathReply{
		Node: string(r.Origin.Node), Half: lofamov1.Half(r.Origin.Half), Epoch: uint64(r.Epoch), Id: r.ID,
		Checksum: e.checksum, Key: g.Key, Session: g.Session,
	}
	out.Outcome = Answered
	if len(h.list) == MaxPaths {
		m.end(h, h.oldest(), out)
	}
	h.list = append(h.list, e)
	m.reply(now, e, r.From, out)
}

// oldest is the exchange of the lowest id that is not the one in use.
func (h *half) oldest() *exchange {
	list := slices.DeleteFunc(slices.Clone(h.list), func(e *exchange) bool { return e == h.proven })
	return slices.MinFunc(list, func(a, b *exchange) int { return cmp.Compare(a.id, b.id) })
}

// reply answers at a place, and repeats the answer until the acknowledgement comes. If a request came by more
// places than there are interfaces, the excess ones get one answer for each request.
func (m *Machine) reply(now time.Time, e *exchange, at Place, out *Output) {
	out.Sends = append(out.Sends, Send{e.reply, at})
	x := e.at(at)
	switch {
	case x == nil && len(e.ends) == MaxPaths, x != nil && x.state == Established:
		return
	case x == nil:
		x = &end{of: e, place: at, state: Requested}
		e.ends = append(e.ends, x)
	}
	m.waiting.remove(x)
	x.repeats, x.wait, x.due = 0, m.cfg.Wait, now.Add(m.cfg.Wait)
	m.waiting.put(x)
}

// end forgets an exchange.
func (m *Machine) end(h *half, e *exchange, out *Output) {
	out.Ended = append(out.Ended, e.reply.GetSession())
	h.list = slices.DeleteFunc(h.list, func(x *exchange) bool { return x == e })
	if h.proven == e {
		h.proven = nil
	}
	for _, x := range e.ends {
		m.waiting.remove(x)
	}
}

// Ack processes an ACK from a place.
func (m *Machine) Ack(o fault.Origin, epoch fault.Epoch, id uint64, from Place) Output {
	var out Output
	h := m.heard(o, epoch, &out)
	out.Outcome = Old
	for _, e := range h.list {
		if h.epoch == epoch && e.id == id {
			m.confirm(h, e, from, &out)
			break
		}
	}
	out.Wake = m.waiting.wake()
	return out
}

// Proved records a message of the half under a session's MAC from a place. It counts as an ACK as well.
func (m *Machine) Proved(o fault.Origin, session uint64, from Place) Output {
	var out Output
	if h := m.halves[o]; h != nil {
		for _, e := range h.list {
			if e.reply.GetSession() == session {
				m.confirm(h, e, from, &out)
				break
			}
		}
	}
	out.Wake = m.waiting.wake()
	return out
}

// confirm notes that the half has an exchange's session, and that its path from a place works.
func (m *Machine) confirm(h *half, e *exchange, from Place, out *Output) {
	h.proven = e
	out.Outcome = Known
	if x := e.at(from); x != nil && x.state != Established {
		m.establish(h, x, out)
	}
}

// establish is the only writer of Established. A path replaces older ones with the same end; an exchange that
// loses its last path is over.
func (m *Machine) establish(h *half, x *end, out *Output) {
	x.state = Established
	m.waiting.remove(x)
	out.Outcome, out.Established, out.Place = Confirmed, true, x.place
	for _, old := range slices.Clone(h.list) {
		y := old.at(x.place)
		if y == nil || old.id >= x.of.id {
			continue
		}
		m.waiting.remove(y)
		old.ends = slices.DeleteFunc(old.ends, func(e *end) bool { return e == y })
		if len(old.ends) == 0 {
			m.end(h, old, out)
		}
	}
}

// Heard records the boot epoch of a verified message. A half in a higher epoch has restarted: its paths and
// sessions are gone.
func (m *Machine) Heard(o fault.Origin, epoch fault.Epoch) Output {
	var out Output
	if h := m.halves[o]; h != nil && epoch > h.epoch {
		m.heard(o, epoch, &out)
	}
	out.Wake = m.waiting.wake()
	return out
}

// heard returns the half. It resets the half if the epoch is higher.
func (m *Machine) heard(o fault.Origin, epoch fault.Epoch, out *Output) *half {
	h := m.halves[o]
	if h != nil && h.epoch >= epoch {
		return h
	}
	if h != nil {
		for _, e := range slices.Clone(h.list) {
			m.end(h, e, out)
		}
	}
	h = &half{epoch: epoch}
	m.halves[o] = h
	return h
}

// Tick repeats the replies that are due.
func (m *Machine) Tick(now time.Time) Output {
	var out Output
	for e := m.waiting.due(now); e != nil; e = m.waiting.due(now) {
		if e.repeats == Repeats {
			out.Unanswered++
			continue
		}
		e.repeats++
		e.wait *= 2
		e.due = now.Add(e.wait)
		m.waiting.put(e)
		out.Sends = append(out.Sends, Send{e.of.reply, e.place})
	}
	out.Wake = m.waiting.wake()
	return out
}

// Reply returns the session for the answer to a datagram of the half, and the checksum; 0: sign the answer. The
// datagram is named by its first report. If it was answered under the session before, this is a retry, and the
// half may have lost the session: from then on it gets signatures, until it proves a session again.
func (m *Machine) Reply(o fault.Origin, epoch fault.Epoch, seq fault.Seq) (session uint64, sum lofamov1.Checksum) {
	h := m.halves[o]
	if h == nil || h.proven == nil {
		return 0, checksum.Default
	}
	a := ask{epoch, seq}
	if slices.Contains(h.asked[:], a) {
		h.proven, h.asked = nil, [askedKept]ask{}
		return 0, checksum.Default
	}
	h.asked[h.next] = a
	h.next = (h.next + 1) % askedKept
	return m.Session(o)
}

// Session returns the session for other messages to the half, like Reply.
func (m *Machine) Session(o fault.Origin) (session uint64, sum lofamov1.Checksum) {
	h := m.halves[o]
	if h == nil || h.proven == nil {
		return 0, checksum.Default
	}
	return h.proven.reply.GetSession(), h.proven.checksum
}

// Places returns the addresses of the half's established paths, the newest first, at most MaxPaths. Replays from
// other addresses add to them.
func (m *Machine) Places(o fault.Origin) []Place {
	h := m.halves[o]
	if h == nil {
		return nil
	}
	list := slices.Clone(h.list)
	slices.SortFunc(list, func(a, b *exchange) int { return cmp.Compare(b.id, a.id) })
	var out []Place
	for _, e := range list {
		for _, x := range e.ends {
			if x.state == Established && !slices.Contains(out, x.place) {
				out = append(out, x.place)
			}
		}
	}
	return out[:min(len(out), MaxPaths)]
}

// Sessions returns the number of known sessions.
func (m *Machine) Sessions() int {
	n := 0
	for _, h := range m.halves {
		n += len(h.list)
	}
	return n
}
