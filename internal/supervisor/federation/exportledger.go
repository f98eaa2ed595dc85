package federation

import (
	"cmp"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// streamID is one connection of a region's supervisor; the zero value is none. Later ones have greater numbers.
type streamID uint64

// ledgerConfig configures a ledger.
type ledgerConfig struct {
	Region string
	Dims   string // of the whole torus
	// Member reports whether a node belongs to the region; nil: all do.
	Member func(id string) bool
	// Readable returns an error if this parent cannot read a document; nil: it reads all.
	Readable func(*lofamov1.Document) error
	// Beat is the interval between messages of the region. After Misses intervals without one it is cut off.
	Beat   time.Duration
	Misses int
	// Reconnect is the least time that a region has for its first message to this ledger, or 0. A region notices late that the parent's
	// earlier leader hangs.
	Reconnect time.Duration
	// Mark is the minimum interval between commits of an otherwise unchanged position. They keep the position within
	// the history that the region's store retains. 0 stands for a minute.
	Mark time.Duration
	// MaxBytes bounds a change that consists of several parts. 0 stands for 256 MiB.
	MaxBytes int
}

// ledger accepts one region's changes at the leader of the parent.
//
//	silent ──hello──► greeted ──changes──► … ──beat, all committed──► present
//	   ▲                 ▲──────────────────────newer stream──┘          │
//	   └── stream ended ─┴── and Misses beats without a word ► cut off ◄─┘
//
// The connection and the cut-off are separate states: a connection that breaks and is restored in time is not
// worth an event. A returning region is present only after all its pending changes are committed.
type ledger struct {
	cfg ledgerConfig

	stream  streamID
	pos     Position     // handed on to be committed
	waiting int          // units that are being committed
	next    *pendingUnit // an incomplete change
	applied time.Time

	heard time.Time
	known bool      // by this ledger, not only by an earlier one
	quiet time.Time // the silence that counts began: heard, or later if the parent itself did not listen
	cut   bool
	back  uint64 // with cut: present once this is committed; 0: not caught up yet
}

// pendingUnit is a change with missing parts.
type pendingUnit struct {
	unit  Unit
	event uint64 // number of the next event
	bytes int
}

// newLedger continues from the state of a region in the parent's store.
func newLedger(cfg ledgerConfig, now time.Time, pos Position, cut bool) *ledger {
	cfg.Mark = cmp.Or(cfg.Mark, time.Minute)
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, 256<<20)
	return &ledger{cfg: cfg, pos: pos, heard: now, quiet: now, cut: cut, applied: now}
}

// ledgerInput is something that happens to a ledger.
type ledgerInput interface{ ledgerEvent() }

// The events of a ledger.
type (
	// ledgerHello begins a stream.
	ledgerHello struct {
		Stream streamID
		*lofamov1.UpstreamHello
	}
	// ledgerPart is a change or a part of one.
	ledgerPart struct {
		Stream streamID
		*lofamov1.UpstreamChange
	}
	// ledgerAlive is a beat.
	ledgerAlive struct {
		Stream   streamID
		Revision uint64
	}
	// ledgerClosed says that a stream has ended.
	ledgerClosed struct{ Stream streamID }
	// ledgerCommitted says that the store has the oldest Units of the pending units, all up to Revision of the
	// region's store.
	ledgerCommitted struct {
		Revision uint64
		Units    int
	}
	// ledgerDeaf says that the parent accepted no input until now, so the silence so far is not the region's fault. The wait restarts.
	ledgerDeaf struct{}
	// ledgerTick is the requested wake-up.
	ledgerTick struct{}
)

func (ledgerHello) ledgerEvent()     {}
func (ledgerPart) ledgerEvent()      {}
func (ledgerAlive) ledgerEvent()     {}
func (ledgerClosed) ledgerEvent()    {}
func (ledgerCommitted) ledgerEvent() {}
func (ledgerDeaf) ledgerEvent()      {}
func (ledgerTick) ledgerEvent()      {}

// Refusal is why a stream is ended.
type Refusal uint8

// The refusals.
const (
	RefusedTerm    Refusal = iota + 1 // a newer term has spoken
	RefusedOrder                      // a change that does not follow the one before
	RefusedForeign                    // another torus, another region's node, a document that cannot be read
	RefusedLong                       // a change beyond all bounds
	RefusedStore                      // another store speaks for the region
	Replaced                          // a newer stream took over
)

// String returns the refusal's name.
func (r Refusal) String() string {
	switch r {
	case RefusedTerm:
		return "older term"
	case RefusedOrder:
		return "out of order"
	case RefusedForeign:
		return "foreign"
	case RefusedLong:
		return "too long"
	case RefusedStore:
		return "another store"
	case Replaced:
		return "replaced"
	}
	return fmt.Sprintf("Refusal(%d)", uint8(r))
}

// ledgerReply is for a stream: one of the two messages, or a refusal, which ends it.
type ledgerReply struct {
	Stream  streamID
	Message *lofamov1.UpstreamReportResponse
	Refusal Refusal
	Text    string // reason of the refusal
}

// ledgerOutput is the result of a step.
type ledgerOutput struct {
	Replies []ledgerReply
	Apply   *Unit // to be committed after all before it
	// Lost says that the region is now cut off, Back that it is present again.
	Lost, Back bool
	Wake       time.Time
}

// Step processes an event.
func (l *ledger) Step(now time.Time, ev ledgerInput) ledgerOutput {
	var out ledgerOutput
	switch ev := ev.(type) {
	case ledgerHello:
		l.hello(now, ev, &out)
	case ledgerPart:
		l.part(now, ev, &out)
	case ledgerAlive:
		l.alive(now, ev, &out)
	case ledgerClosed:
		if ev.Stream == l.stream {
			l.becomeSilent()
		}
	case ledgerCommitted:
		l.committed(ev, &out)
	case ledgerDeaf:
		l.quiet = now
	case ledgerTick:
	}
	l.watch(now, &out)
	return out
}

// Position returns how far the region was handed on to be committed.
func (l *ledger) Position() Position { return l.pos }

// Cut reports whether the region is cut off.
func (l *ledger) Cut() bool { return l.cut }

// Heard returns the time of the region's last message; false: none at this ledger.
func (l *ledger) Heard() (time.Time, bool) { return l.heard, l.known }

func (l *ledger) limit() time.Duration { return time.Duration(l.cfg.Misses) * l.cfg.Beat }

// watch decides whether the region is cut off.
func (l *ledger) watch(now time.Time, out *ledgerOutput) {
	if l.cut {
		return
	}
	limit := l.limit()
	if !l.known {
		limit = max(limit, l.cfg.Reconnect)
	}
	if end := l.quiet.Add(limit); now.Before(end) {
		out.Wake = end
		return
	}
	l.becomeCut(out)
}

func (l *ledger) becomeCut(out *ledgerOutput) {
	l.cut, l.back, out.Lost = true, 0, true
}

func (l *ledger) becomePresent(out *ledgerOutput) {
	l.cut, l.back, out.Back = false, 0, true
}

// becomeSilent forgets a stream and its unfinished change. After it a region that is cut off has to catch up again.
func (l *ledger) becomeSilent() { l.stream, l.next, l.back = 0, nil, 0 }

// becomeGreeted makes a stream the region's current one.
func (l *ledger) becomeGreeted(s streamID) { l.stream, l.next, l.back = s, nil, 0 }

func (l *ledger) hear(now time.Time) { l.heard, l.quiet, l.known = now, now, true }

func (l *ledger) hello(now time.Time, h ledgerHello, out *ledgerOutput) {
	refuse := func(r Refusal, format string, args ...any) {
		out.Replies = append(out.Replies, ledgerReply{Stream: h.Stream, Refusal: r, Text: fmt.Sprintf(format, args...)})
	}
	switch {
	case h.GetDims() != l.cfg.Dims:
		refuse(RefusedForeign, "region %s: dims: given %q: want %s", l.cfg.Region, h.GetDims(), l.cfg.Dims)
		return
	case max(len(h.GetStore()), len(h.GetRestoredFrom())) > maxStoreName:
		refuse(RefusedLong, "region %s: the names of its stores have %d and %d bytes: want at most %d", l.cfg.Region, len(h.GetStore()),
			len(h.GetRestoredFrom()), maxStoreName)
		return
	case l.another(h) && l.stream != 0 && now.Before(l.quiet.Add(l.limit())):
		refuse(RefusedStore, "region %s: store %s: messages still arrive from store %s", l.cfg.Region, h.GetStore(), l.pos.Store)
		return
	case !l.another(h) && h.GetTerm() < l.pos.Term:
		refuse(RefusedTerm, "region %s: term %d: term %d has spoken since", l.cfg.Region, h.GetTerm(), l.pos.Term)
		return
	case h.Stream < l.stream:
		refuse(Replaced, "region %s: another connection has taken over", l.cfg.Region)
		return
	case !l.another(h) && l.behind(h) && l.justHeard(now):
		// Probably the region's earlier leader passed on a change after the new one read its position. The uplink's next hello has a newer one.
		refuse(RefusedOrder, "region %s: revision %d, next event %d: revision %d, next event %d has just arrived", l.cfg.Region, h.GetRevision(),
			h.GetNextEvent(), l.pos.Revision, l.pos.NextEvent)
		return
	}
	if l.stream != 0 && l.stream != h.Stream {
		out.Replies = append(out.Replies, ledgerReply{Stream: l.stream, Refusal: Replaced,
			Text: fmt.Sprintf("region %s: another connection has taken over", l.cfg.Region)})
	}
	l.becomeGreeted(h.Stream)
	l.hear(now)
	switch {
	case l.another(h):
		first := min(h.GetFirstEvent(), h.GetNextEvent())
		if h.GetRestoredFrom() == l.pos.Store {
			first = min(first, l.pos.NextEvent) // the parent has the snapshot's events only up to its position
		}
		l.pos.Revision, l.pos.NextEvent = 0, max(1, first)
	case l.behind(h):
		// The region's store lost its former state, though it has the same name or none. Its history is not the one
		// we have.
		l.pos.Revision, l.pos.NextEvent = 0, h.GetNextEvent()
	}
	l.pos.Term, l.pos.Store = h.GetTerm(), cmp.Or(h.GetStore(), l.pos.Store)
	out.Replies = append(out.Replies, ledgerReply{Stream: h.Stream, Message: &lofamov1.UpstreamReportResponse{
		Body: &lofamov1.UpstreamReportResponse_Resume{Resume: &lofamov1.UpstreamResume{Revision: l.pos.Revision, NextEvent: l.pos.NextEvent}},
	}})
}

// another reports whether the region has another store than before. A store without a name is of an older version.
func (l *ledger) another(h ledgerHello) bool {
	return l.pos.Store != "" && h.GetStore() != "" && h.GetStore() != l.pos.Store
}

// behind reports whether the parent has more of the region than the region's own store.
func (l *ledger) behind(h ledgerHello) bool {
	return h.GetRevision() < l.pos.Revision || h.GetNextEvent() < l.pos.NextEvent
}

// justHeard reports whether this ledger heard the region within the cut-off time or, if the stream has ended, within the last beat.
func (l *ledger) justHeard(now time.Time) bool {
	recent := l.limit()
	if l.stream == 0 {
		recent = l.cfg.Beat
	}
	return l.known && now.Before(l.quiet.Add(recent))
}

func (l *ledger) alive(now time.Time, a ledgerAlive, out *ledgerOutput) {
	if a.Stream != l.stream || l.stream == 0 {
		return
	}
	l.hear(now)
	if l.pos.Revision == 0 || l.next != nil || a.Revision < l.pos.Revision {
		return // a beat during the greeting, or an outdated one
	}
	l.pos.Revision = a.Revision // the map did not change up to there
	if l.cut {
		l.back = a.Revision
	}
	if now.Sub(l.applied) >= l.cfg.Mark {
		l.apply(now, &Unit{First: l.pos.NextEvent, After: l.pos}, out)
		return
	}
	l.tryBack(out)
}

// tryBack marks a region as present again if it has no more pending changes.
func (l *ledger) tryBack(out *ledgerOutput) {
	if l.cut && l.back != 0 && l.waiting == 0 {
		l.becomePresent(out)
	}
}

func (l *ledger) apply(now time.Time, u *Unit, out *ledgerOutput) {
	l.applied = now
	l.waiting++
	out.Apply = u
}

func (l *ledger) committed(c ledgerCommitted, out *ledgerOutput) {
	l.waiting -= c.Units
	if l.stream != 0 {
		out.Replies = append(out.Replies, ledgerReply{Stream: l.stream, Message: &lofamov1.UpstreamReportResponse{
			Body: &lofamov1.UpstreamReportResponse_Committed{Committed: &lofamov1.UpstreamCommitted{Revision: c.Revision}},
		}})
	}
	l.tryBack(out)
}

// part processes a change or a part of one.
func (l *ledger) part(now time.Time, p ledgerPart, out *ledgerOutput) {
	if p.Stream != l.stream || l.stream == 0 {
		return
	}
	l.hear(now)
	if r, text := l.add(p.UpstreamChange); r != 0 {
		out.Replies = append(out.Replies, ledgerReply{Stream: l.stream, Refusal: r, Text: fmt.Sprintf("region %s: %s", l.cfg.Region, text)})
		l.becomeSilent()
		return
	}
	if p.GetMore() {
		return
	}
	u := l.next.unit
	l.next = nil
	u.trim(max(1, l.pos.NextEvent))
	l.pos = u.After
	l.apply(now, &u, out)
}

// Limits on sizes. If the store refused a transaction for its size, the parent would retry it for ever, and commit nothing for any region.
const (
	// maxValue bounds the bytes of an event or a document. An event, the document that it changes and the region's head share a transaction,
	// and etcd's default limit is 1.5 MiB.
	maxValue     = 512 << 10
	maxStoreName = 128 // bytes
)

// add appends a part to the earlier ones.
func (l *ledger) add(c *lofamov1.UpstreamChange) (Refusal, string) {
	if l.next == nil {
		if r, text := l.begin(c); r != 0 {
			return r, text
		}
	}
	n := l.next
	if c.GetRevision() != n.unit.After.Revision || c.GetSnapshot() != n.unit.Snapshot {
		return RefusedOrder, fmt.Sprintf("a part of revision %d amid revision %d", c.GetRevision(), n.unit.After.Revision)
	}
	if c.GetFirstEvent() != n.event {
		return RefusedOrder, fmt.Sprintf("revision %d goes on with event %d: want %d", c.GetRevision(), c.GetFirstEvent(), n.event)
	}
	if n.bytes += proto.Size(c); n.bytes > l.cfg.MaxBytes {
		return RefusedLong, fmt.Sprintf("revision %d has more than %d bytes", c.GetRevision(), l.cfg.MaxBytes)
	}
	for _, ev := range c.GetEvents() {
		if size := proto.Size(ev); size > maxValue {
			return RefusedLong, fmt.Sprintf("an event of revision %d has %d bytes: want at most %d", c.GetRevision(), size, maxValue)
		}
	}
	for _, d := range c.GetDocuments() {
		if len(d.GetValue()) > maxValue {
			return RefusedLong, fmt.Sprintf("document %.80q has %d bytes: want at most %d", d.GetKey(), len(d.GetValue()), maxValue)
		}
		if err := checkDocument(d, l.cfg.Member); err != nil {
			return RefusedForeign, err.Error()
		}
		if l.cfg.Readable == nil {
			continue
		}
		if err := l.cfg.Readable(d); err != nil {
			return RefusedForeign, fmt.Sprintf("document %.80q: %v", d.GetKey(), err)
		}
	}
	n.event += uint64(len(c.GetEvents()))
	n.unit.Events = append(n.unit.Events, c.GetEvents()...)
	n.unit.Documents = append(n.unit.Documents, c.GetDocuments()...)
	n.unit.After.NextEvent = n.event
	return 0, ""
}

// begin checks the first part of a change.
func (l *ledger) begin(c *lofamov1.UpstreamChange) (Refusal, string) {
	rev := c.GetRevision()
	switch {
	case c.GetSnapshot() && (rev == 0 || rev < l.pos.Revision):
		return RefusedOrder, fmt.Sprintf("a snapshot of revision %d after revision %d", rev, l.pos.Revision)
	case !c.GetSnapshot() && l.pos.Revision == 0:
		return RefusedOrder, fmt.Sprintf("revision %d before any snapshot", rev)
	case !c.GetSnapshot() && (c.GetPrevious() != l.pos.Revision || rev <= l.pos.Revision):
		return RefusedOrder, fmt.Sprintf("revision %d after %d: want the revision after %d", rev, c.GetPrevious(), l.pos.Revision)
	case c.GetFirstEvent() == 0:
		return RefusedOrder, fmt.Sprintf("revision %d: first_event: given 0: want the number of the first event", rev)
	case !c.GetSnapshot() && c.GetFirstEvent() > l.pos.NextEvent:
		return RefusedOrder, fmt.Sprintf("revision %d begins with event %d: want %d", rev, c.GetFirstEvent(), l.pos.NextEvent)
	}
	l.next = &pendingUnit{event: c.GetFirstEvent(), unit: Unit{
		Snapshot: c.GetSnapshot(), First: c.GetFirstEvent(),
		After: Position{Revision: rev, NextEvent: c.GetFirstEvent(), Term: l.pos.Term, Store: l.pos.Store},
	}}
	return 0, ""
}

// trim drops the events before a number, which are stored already, or records how many are missing.
func (u *Unit) trim(next uint64) {
	if u.First >= next {
		u.Lost = u.First - next
		return
	}
	u.Events = u.Events[min(next-u.First, uint64(len(u.Events))):]
	u.After.NextEvent = max(u.After.NextEvent, next)
	u.First = u.After.NextEvent - uint64(len(u.Events))
}
