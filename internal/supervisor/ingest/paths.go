// The path machine is the supervisor's end of the exchange that establishes a path between one interface
// of a half and this supervisor (seed 004 §IV-B and Figure 8). It answers requests (REQ) with replies
// (REP), repeats a reply until its acknowledgement (ACK) arrives, and ignores old messages. It knows the
// addresses of a half's established paths, and the session that the half shares with us.
//
//	                 REQ of a new id                 ACK, or the session's MAC
//	(nothing) ──────────────────────► REQUESTED ──────────────────────────────► ESTABLISHED
//	                REP, repeated on a timer; the same id brings the same REP
//
// It is pure: the shell makes keys and names of sessions (pathConfig.Grant), stores the keys, and seals and
// sends. It does not judge health.

package ingest

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// maxPaths bounds the remembered exchanges of one half, and the places of each: one for each service interface.
const maxPaths = 8

// pathRepeats is the number of repetitions of an unacknowledged reply.
const pathRepeats = 3

// Place is one end of a path: an address of the half, and the number of our socket that reaches it.
type Place struct {
	Addr   netip.AddrPort
	Socket uint8
}

// pathState is the state of an exchange.
type pathState uint8

// The states.
const (
	pathRequested   pathState = iota + 1 // answered; the half may not have the answer yet
	pathEstablished                      // the half has proven receipt of the reply
)

func (s pathState) String() string {
	switch s {
	case pathRequested:
		return "REQUESTED"
	case pathEstablished:
		return "ESTABLISHED"
	}
	return "NONE"
}

// pathOutcome is the result of a message of an exchange.
type pathOutcome uint8

// The outcomes.
const (
	pathAnswered   pathOutcome = iota + 1 // a new request
	pathRepeated                          // a repeated request: the same reply
	pathOld                               // of an earlier epoch, or an id that was passed or used: ignored
	pathRefused                           // the half's key is not good
	pathConfirmed                         // the path is established
	pathKnown                             // an acknowledgement without effect
	pathUnanswered                        // no acknowledgement came after the last repetition
)

// numPathOutcomes bounds Outcome values from above.
const numPathOutcomes = int(pathUnanswered) + 1

var pathOutcomeNames = [numPathOutcomes]string{"", "answered", "repeated", "old", "refused", "confirmed", "known", "unanswered"}

func (o pathOutcome) String() string {
	if int(o) >= numPathOutcomes {
		return "none"
	}
	return pathOutcomeNames[o]
}

// pathRequest is a verified PathRequest.
type pathRequest struct {
	Origin  fault.Origin
	Epoch   fault.Epoch
	ID      uint64
	Offered []lofamov1.Checksum
	Key     []byte // the half's public key of this exchange
	From    Place
}

// pathGrant is the session that the shell has made for a request.
type pathGrant struct {
	Session uint64 // not 0
	Key     []byte // our public key of this exchange
}

// pathConfig configures a path machine.
type pathConfig struct {
	Allowed []lofamov1.Checksum // that halves may choose from
	Wait    time.Duration       // before the first repetition; doubled with each
	// Grant makes a session for a request. It may drop the sessions that end with the request. It fails if the half's key is
	// invalid, and then drops none.
	Grant func(r pathRequest, ended []uint64) (pathGrant, error)
}

// pathSend is a reply to be sent.
type pathSend struct {
	Reply *lofamov1.PathReply // the leader's name is the shell's to add; not changed any more
	To    Place
}

// pathOutput lists the actions of the shell.
type pathOutput struct {
	Sends   []pathSend
	Outcome pathOutcome // of the event; 0 for a Tick
	// Unanswered exchanges were given up by a Tick.
	Unanswered int
	// Established says that the half has a new path at Place.
	Established bool
	Place       Place
	Ended       []uint64 // sessions that are not used any more
	Wake        time.Time
}

// pathMachine holds the exchanges of all halves, at most maxPaths of each. Keep bounds the number of halves.
type pathMachine struct {
	cfg     pathConfig
	halves  map[fault.Origin]*pathHalf
	waiting pathQueue // for their acknowledgement
}

// pathHalf is the known state of one half in one epoch.
type pathHalf struct {
	epoch   fault.Epoch
	highest uint64 // id of a request
	seen    uint64 // bit i: highest-i was seen
	list    []*pathExchange
	// proven is the exchange whose session the half proved last; nil: none.
	proven *pathExchange
	asked  [pathAsksKept]pathAsk // answered under the session lately
	next   int
}

// pathExchange is one request. A half that finds no way sends the same one by all of its interfaces.
type pathExchange struct {
	id       uint64
	reply    *lofamov1.PathReply
	checksum lofamov1.Checksum
	ends     []*pathEnd // at most maxPaths
}

// pathEnd is a path of an exchange.
type pathEnd struct {
	of      *pathExchange
	place   Place
	state   pathState
	repeats int
	wait    time.Duration
	due     time.Time

	// The queue's.
	waits bool
	index int
	order uint64
}

// pathAsk names a datagram by its first report.
type pathAsk struct {
	epoch fault.Epoch
	seq   fault.Seq
}

// pathAsksKept is the number of remembered answers; a retry comes within a few tens of milliseconds.
const pathAsksKept = 16

// newPathMachine returns a machine.
func newPathMachine(cfg pathConfig) *pathMachine {
	return &pathMachine{cfg: cfg, halves: make(map[fault.Origin]*pathHalf)}
}

// Request processes a REQ.
func (m *pathMachine) Request(now time.Time, r pathRequest) pathOutput {
	var out pathOutput
	h := m.heard(r.Origin, r.Epoch, &out)
	e, fresh := h.judge(r)
	switch {
	case h.epoch > r.Epoch, e == nil && !fresh:
		out.Outcome = pathOld
	case e != nil:
		out.Outcome = pathRepeated
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
func (h *pathHalf) judge(r pathRequest) (e *pathExchange, fresh bool) {
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

func (h *pathHalf) mark(id uint64) {
	if id > h.highest {
		h.seen = shiftBits(h.seen, id-h.highest) | 1
		h.highest = id
		return
	}
	h.seen |= 1 << (h.highest - id)
}

func shiftBits(bits, n uint64) uint64 {
	if n >= 64 {
		return 0
	}
	return bits << n
}

// at returns the exchange's end at a place, or nil.
func (e *pathExchange) at(p Place) *pathEnd {
	for _, x := range e.ends {
		if x.place == p {
			return x
		}
	}
	return nil
}

// open begins the exchange of a new request.
func (m *pathMachine) open(now time.Time, h *pathHalf, r pathRequest, out *pathOutput) {
	h.mark(r.ID)
	ended := out.Ended
	var replaced *pathExchange
	if len(h.list) == maxPaths {
		replaced = h.oldest()
		ended = append(slices.Clip(ended), replaced.reply.GetSession())
	}
	g, err := m.cfg.Grant(r, ended)
	if err != nil {
		out.Outcome = pathRefused
		return
	}
	if replaced != nil {
		m.end(h, replaced, out)
	}
	e := &pathExchange{id: r.ID, checksum: servicenet.ChooseChecksum(r.Offered, m.cfg.Allowed)}
	e.reply = &lofamov1.PathReply{
		Node: string(r.Origin.Node), Half: lofamov1.Half(r.Origin.Half), Epoch: uint64(r.Epoch), Id: r.ID,
		Checksum: e.checksum, Key: g.Key, Session: g.Session,
	}
	out.Outcome = pathAnswered
	h.list = append(h.list, e)
	m.reply(now, e, r.From, out)
}

// oldest is the exchange of the lowest id that is not the one in use.
func (h *pathHalf) oldest() *pathExchange {
	list := slices.DeleteFunc(slices.Clone(h.list), func(e *pathExchange) bool { return e == h.proven })
	return slices.MinFunc(list, func(a, b *pathExchange) int { return cmp.Compare(a.id, b.id) })
}

// reply answers at a place, and repeats the answer until the acknowledgement comes. If a request came by more
// places than there are interfaces, the excess ones get one answer for each request.
func (m *pathMachine) reply(now time.Time, e *pathExchange, at Place, out *pathOutput) {
	out.Sends = append(out.Sends, pathSend{e.reply, at})
	x := e.at(at)
	switch {
	case x == nil && len(e.ends) == maxPaths, x != nil && x.state == pathEstablished:
		return
	case x == nil:
		x = &pathEnd{of: e, place: at, state: pathRequested}
		e.ends = append(e.ends, x)
	}
	m.waiting.remove(x)
	x.repeats, x.wait, x.due = 0, m.cfg.Wait, now.Add(m.cfg.Wait)
	m.waiting.put(x)
}

// end forgets an exchange.
func (m *pathMachine) end(h *pathHalf, e *pathExchange, out *pathOutput) {
	out.Ended = append(out.Ended, e.reply.GetSession())
	h.list = slices.DeleteFunc(h.list, func(x *pathExchange) bool { return x == e })
	if h.proven == e {
		h.proven = nil
	}
	for _, x := range e.ends {
		m.waiting.remove(x)
	}
}

// endAll forgets all exchanges of a half.
func (m *pathMachine) endAll(h *pathHalf, out *pathOutput) {
	for _, e := range slices.Clone(h.list) {
		m.end(h, e, out)
	}
}

// Ack processes an ACK from a place.
func (m *pathMachine) Ack(o fault.Origin, epoch fault.Epoch, id uint64, from Place) pathOutput {
	var out pathOutput
	h := m.heard(o, epoch, &out)
	out.Outcome = pathOld
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
func (m *pathMachine) Proved(o fault.Origin, session uint64, from Place) pathOutput {
	var out pathOutput
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
func (m *pathMachine) confirm(h *pathHalf, e *pathExchange, from Place, out *pathOutput) {
	h.proven = e
	out.Outcome = pathKnown
	if x := e.at(from); x != nil && x.state != pathEstablished {
		m.establish(h, x, out)
	}
}

// establish is the only writer of Established. A path replaces older ones with the same end; an exchange that
// loses its last path is over.
func (m *pathMachine) establish(h *pathHalf, x *pathEnd, out *pathOutput) {
	x.state = pathEstablished
	m.waiting.remove(x)
	out.Outcome, out.Established, out.Place = pathConfirmed, true, x.place
	for _, old := range slices.Clone(h.list) {
		y := old.at(x.place)
		if y == nil || old.id >= x.of.id {
			continue
		}
		m.waiting.remove(y)
		old.ends = slices.DeleteFunc(old.ends, func(e *pathEnd) bool { return e == y })
		if len(old.ends) == 0 {
			m.end(h, old, out)
		}
	}
}

// Heard records the boot epoch of a verified message. A half in a higher epoch has restarted: its paths and
// sessions are gone.
func (m *pathMachine) Heard(o fault.Origin, epoch fault.Epoch) pathOutput {
	var out pathOutput
	if m.halves[o] != nil {
		m.heard(o, epoch, &out)
	}
	out.Wake = m.waiting.wake()
	return out
}

// heard returns the half. It resets the half if the epoch supersedes the half's.
func (m *pathMachine) heard(o fault.Origin, epoch fault.Epoch, out *pathOutput) *pathHalf {
	h := m.halves[o]
	if h != nil && !servicenet.EpochSupersedes(epoch, h.epoch) {
		return h
	}
	if h != nil {
		m.endAll(h, out)
	}
	h = &pathHalf{epoch: epoch}
	m.halves[o] = h
	return h
}

// Keep forgets the halves of all other nodes.
func (m *pathMachine) Keep(known func(fault.NodeID) bool) pathOutput {
	var out pathOutput
	for o, h := range m.halves {
		if !known(o.Node) {
			m.endAll(h, &out)
			delete(m.halves, o)
		}
	}
	out.Wake = m.waiting.wake()
	return out
}

// Tick repeats the replies that are due.
func (m *pathMachine) Tick(now time.Time) pathOutput {
	var out pathOutput
	for e := m.waiting.due(now); e != nil; e = m.waiting.due(now) {
		if e.repeats == pathRepeats {
			out.Unanswered++
			continue
		}
		e.repeats++
		e.wait *= 2
		e.due = now.Add(e.wait)
		m.waiting.put(e)
		out.Sends = append(out.Sends, pathSend{e.of.reply, e.place})
	}
	out.Wake = m.waiting.wake()
	return out
}

// Reply returns the session for the answer to a datagram of the half, and the checksum; 0: sign the answer. The
// datagram is named by its first report. If it was answered under the session before, this is a retry, and the
// half may have lost the session: from then on it gets signatures, until it proves a session again.
func (m *pathMachine) Reply(o fault.Origin, epoch fault.Epoch, seq fault.Seq) (session uint64, sum lofamov1.Checksum) {
	h := m.halves[o]
	if h == nil || h.proven == nil {
		return 0, servicenet.DefaultChecksum
	}
	a := pathAsk{epoch, seq}
	if slices.Contains(h.asked[:], a) {
		h.proven, h.asked = nil, [pathAsksKept]pathAsk{}
		return 0, servicenet.DefaultChecksum
	}
	h.asked[h.next] = a
	h.next = (h.next + 1) % pathAsksKept
	return m.Session(o)
}

// Session returns the session for other messages to the half, like Reply.
func (m *pathMachine) Session(o fault.Origin) (session uint64, sum lofamov1.Checksum) {
	h := m.halves[o]
	if h == nil || h.proven == nil {
		return 0, servicenet.DefaultChecksum
	}
	return h.proven.reply.GetSession(), h.proven.checksum
}

// Places returns the addresses of the half's established paths, the newest first, at most maxPaths. Replays from
// other addresses add to them.
func (m *pathMachine) Places(o fault.Origin) []Place {
	h := m.halves[o]
	if h == nil {
		return nil
	}
	list := slices.Clone(h.list)
	slices.SortFunc(list, func(a, b *pathExchange) int { return cmp.Compare(b.id, a.id) })
	var out []Place
	for _, e := range list {
		for _, x := range e.ends {
			if x.state == pathEstablished && !slices.Contains(out, x.place) {
				out = append(out, x.place)
			}
		}
	}
	return out[:min(len(out), maxPaths)]
}

// Sessions returns the number of known sessions.
func (m *pathMachine) Sessions() int {
	n := 0
	for _, h := range m.halves {
		n += len(h.list)
	}
	return n
}
