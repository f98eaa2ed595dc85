package bulk

import (
	"crypto/ecdh"
	"errors"
	"fmt"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// maxError is the wire format's limit for BulkAnnounce.error, in bytes.
const maxError = 120

// unknownTransfer is the error in the announcement that answers a pull of an unknown transfer: the sender was
// restarted, or the transfer expired. The receiver starts over.
const unknownTransfer = "unknown transfer"

// BusyPrefix begins the error of an announcement that refuses a transfer because others are under way.
const BusyPrefix = "busy: "

// SenderConfig sets a sender.
type SenderConfig struct {
	Objects     []string      // the available ones
	Transfers   int           // at a time, 1 to 16
	Life        time.Duration // of a transfer after the last message of the supervisor
	Idle        time.Duration // after which it makes room for another: a receiver has given up by then
	DirectRate  int           // chunks per second to supervisors, over all transfers
	DirectBurst int           // chunks at once
	TorusRate   int           // chunks per second through the neighbours; leaves half of a relay's capacity to reports
	TorusBurst  int
	Checksum    lofamov1.Checksum // of the whole object
}

// DefaultSenderConfig returns the values of the default preset.
func DefaultSenderConfig() SenderConfig {
	return SenderConfig{
		Objects:     []string{"bundle"},
		Transfers:   2,
		Life:        2 * time.Minute,
		Idle:        30 * time.Second,
		DirectRate:  5000,
		DirectBurst: 64,
		TorusRate:   250,
		TorusBurst:  16,
		Checksum:    servicenet.DefaultChecksum,
	}
}

// Validate names every bad field at once.
func (c SenderConfig) Validate() error {
	var errs []error
	bad := func(field string, given any, want string) {
		errs = append(errs, fmt.Errorf("%s: given %v: want %s", field, given, want))
	}
	if len(c.Objects) == 0 {
		bad("Objects", "none", "at least one")
	}
	if c.Transfers < 1 || c.Transfers > 16 {
		bad("Transfers", c.Transfers, "1 to 16")
	}
	if c.Life < time.Second {
		bad("Life", c.Life, "at least 1s")
	}
	if c.Idle < 1 || c.Idle > c.Life {
		bad("Idle", c.Idle, fmt.Sprintf("more than 0, at most Life (%v)", c.Life))
	}
	for _, f := range []struct {
		name string
		n    int
	}{{"DirectRate", c.DirectRate}, {"TorusRate", c.TorusRate}} {
		if f.n < 1 || f.n > 1e6 {
			bad(f.name, f.n, "1 to 1000000 chunks per second")
		}
	}
	for _, f := range []struct {
		name string
		n    int
	}{{"DirectBurst", c.DirectBurst}, {"TorusBurst", c.TorusBurst}} {
		if f.n < 1 || f.n > maxQueue {
			bad(f.name, f.n, fmt.Sprintf("1 to %d chunks", maxQueue))
		}
	}
	if !servicenet.KnownChecksum(c.Checksum) {
		bad("Checksum", int32(c.Checksum), "a known algorithm")
	}
	return errors.Join(errs...)
}

// SenderEvent is an input of a sender: Requested, Pulled, Ready, Failed, Summed or Tick.
type SenderEvent interface{ senderEvent() }

// Tick says only that time has passed.
type Tick struct{}

// Requested is a BulkRequest that the supervisor has signed.
type Requested struct {
	Message    *lofamov1.BulkRequest
	Supervisor string           // that signed it
	Private    *ecdh.PrivateKey // new; used when the transfer is
}

// Pulled is a BulkPull that the supervisor has signed.
type Pulled struct {
	Message    *lofamov1.BulkPull
	Supervisor string
}

// Ready says that the object is in a file, whose bytes will not change. The shell now computes the checksum.
type Ready struct {
	Transfer Transfer
	Name     string // as a file name
	Size     uint64 // bytes
}

// Failed says that there will be no object.
type Failed struct {
	Transfer Transfer
	Why      string
}

// Summed reports the checksum of the whole object.
type Summed struct {
	Transfer Transfer
	Checksum uint64
}

func (Tick) senderEvent()      {}
func (Requested) senderEvent() {}
func (Pulled) senderEvent()    {}
func (Ready) senderEvent()     {}
func (Failed) senderEvent()    {}
func (Summed) senderEvent()    {}

// Route is the way back to a supervisor.
type Route struct {
	ReplyTo string // address of its report socket
	Via     string // node through which to go, by the torus; empty: directly
}

// Gather requests an object. The shell answers with Ready or Failed, then Summed.
type Gather struct {
	Transfer Transfer
	Object   string
	MaxSize  uint64 // bytes; more is refused, so the shell may stop there
	Checksum lofamov1.Checksum
}

// Announcement is a message to send once.
type Announcement struct {
	Message    *lofamov1.BulkAnnounce
	Supervisor string
	To         Route
}

// Chunk is a part of the object to read, seal (Sender.Seal) and send, now and once.
type Chunk struct {
	Transfer   Transfer
	Index      uint32
	Offset     int64
	Length     int
	Supervisor string
	To         Route
}

// SenderOutput lists the shell's actions.
type SenderOutput struct {
	Gather   []Gather
	Announce []Announcement
	Chunks   []Chunk
	Release  []Transfer // these are no longer needed: stop gathering, remove the file
	Wake     time.Time  // step again then; zero: nothing to wait for
}

// SenderStats counts since the start, except for Transfers and Queued.
type SenderStats struct {
	Transfers int    // known now, those that failed among them
	Queued    int    // chunks asked for and not yet sent
	Chunks    uint64 // sent
	Again     uint64 // of these, sent before
	Refused   uint64 // requests and pulls outside the limits
}

// Sender is the half's end of all transfers. One goroutine owns it.
//
//	            Ready             Summed
//	gathering ─────────► offered ─────────► complete ──┐
//	    │                   │                          ├──► forgotten: done, or Life without a word
//	    └───────────────────┴──► failed ───────────────┘
//	      Failed, or too large
type Sender struct {
	self          fault.Origin
	cfg           SenderConfig
	transfers     []*transfer // oldest first
	turn          int         // whose chunks go first
	direct, torus bucket
	stats         SenderStats
}

// NewSender returns a sender without transfers.
func NewSender(self fault.Origin, cfg SenderConfig) (*Sender, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("bulk sender of %s: %w", self, err)
	}
	if self.Node == "" || !self.Half.Valid() {
		return nil, fmt.Errorf("bulk sender: origin: given %q: want a node and a half", self)
	}
	return &Sender{
		self: self, cfg: cfg,
		direct: newBucket(cfg.DirectRate, cfg.DirectBurst),
		torus:  newBucket(cfg.TorusRate, cfg.TorusBurst),
	}, nil
}

// Stats returns the counters.
func (s *Sender) Stats() SenderStats {
	st := s.stats
	st.Transfers = len(s.transfers)
	for _, t := range s.transfers {
		st.Queued += len(t.queue)
	}
	return st
}

// Seal appends the packet of a chunk that Step has just named to dst; data is the chunk's part of the file.
func (s *Sender) Seal(dst []byte, c Chunk, data []byte) ([]byte, error) {
	t := s.find(c.Transfer)
	if t == nil || t.key == nil {
		return nil, fmt.Errorf("seal chunk %d of transfer %s: no longer known", c.Index, c.Transfer)
	}
	if len(data) != c.Length {
		return nil, fmt.Errorf("seal chunk %d of transfer %s: given %d bytes: want %d", c.Index, c.Transfer, len(data), c.Length)
	}
	return t.key.Seal(dst, c.Index, data)
}

// Step handles one event.
func (s *Sender) Step(now time.Time, ev SenderEvent) SenderOutput {
	var out SenderOutput
	switch ev := ev.(type) {
	case Tick:
	case Requested:
		s.request(now, ev, &out)
	case Pulled:
		s.pull(now, ev, &out)
	case Ready:
		s.ready(ev, &out)
	case Failed:
		if t := s.find(ev.Transfer); t != nil {
			s.becomeFailed(t, ev.Why, &out)
		}
	case Summed:
		s.summed(ev, &out)
	}
	s.expire(now, &out)
	s.send(now, &out)
	out.Wake = s.wake(now)
	return out
}

func (s *Sender) find(id Transfer) *transfer {
	if i := slices.IndexFunc(s.transfers, func(t *transfer) bool { return t.id == id }); i >= 0 {
		return s.transfers[i]
	}
	return nil
}

// request begins a transfer, or repeats the announcement of a known one.
func (s *Sender) request(now time.Time, ev Requested, out *SenderOutput) {
	m := ev.Message
	id, to, ok := s.addressed(m)
	if !ok {
		return
	}
	if t := s.find(id); t != nil {
		if t.supervisor != ev.Supervisor {
			s.stats.Refused++
			return
		}
		t.asked, t.to = now, to
		s.announce(t, to, out)
		return
	}
	t := &transfer{id: id, supervisor: ev.Supervisor, to: to, asked: now, maxSize: m.GetMaxSize()}
	if why := s.refusal(m, ev, t); why != "" || !s.makeRoom(now, out) {
		if why == "" {
			why = fmt.Sprintf(BusyPrefix+"%d transfers under way", len(s.transfers))
		}
		s.stats.Refused++
		t.failure = why
		s.announce(t, to, out)
		return
	}
	s.transfers = append(s.transfers, t)
	out.Gather = append(out.Gather, Gather{id, m.GetObject(), t.maxSize, s.cfg.Checksum})
	s.announce(t, to, out)
}

// makeRoom reports whether one more transfer may begin. It drops a failed transfer for that, or an idle one, whose
// final message was lost.
func (s *Sender) makeRoom(now time.Time, out *SenderOutput) bool {
	if len(s.transfers) < s.cfg.Transfers {
		return true
	}
	i := slices.IndexFunc(s.transfers, func(t *transfer) bool {
		return t.failure != "" || now.Sub(t.asked) >= s.cfg.Idle
	})
	if i < 0 {
		return false
	}
	s.forget(s.transfers[i], out)
	return true
}

// refusal says why a new transfer is not begun, and otherwise makes its key.
func (s *Sender) refusal(m *lofamov1.BulkRequest, ev Requested, t *transfer) string {
	if !slices.Contains(s.cfg.Objects, m.GetObject()) {
		return fmt.Sprintf("object: given %q: there is no such", fault.Cut(m.GetObject(), 40))
	}
	if t.maxSize < 1 || t.maxSize > MaxSize {
		return fmt.Sprintf("max_size: given %d: want 1 to %d", t.maxSize, MaxSize)
	}
	key, err := NewKey(ev.Private, m.GetKey(), t.id, s.self, ev.Supervisor)
	if err != nil {
		return "key: want an X25519 public key"
	}
	t.key, t.public = key, ev.Private.PublicKey().Bytes()
	return ""
}

// addressed returns the transfer that a message names and where the answers go. False means that it is no
// name or not for this half, which was counted.
func (s *Sender) addressed(m interface {
	GetTransfer() []byte
	GetNode() string
	GetHalf() lofamov1.Half
	GetReplyTo() string
	GetVia() string
}) (Transfer, Route, bool) {
	id, err := ParseTransfer(m.GetTransfer())
	ok := err == nil && servicenet.OriginOf(m) == s.self
	if !ok {
		s.stats.Refused++
	}
	return id, Route{m.GetReplyTo(), m.GetVia()}, ok
}

func (s *Sender) ready(ev Ready, out *SenderOutput) {
	t := s.find(ev.Transfer)
	if t == nil || t.offered || t.failure != "" {
		return
	}
	if ev.Size > t.maxSize {
		s.becomeFailed(t, fmt.Sprintf("the object has %d bytes: want at most %d", ev.Size, t.maxSize), out)
		return
	}
	s.becomeOffered(t, ev)
	if ev.Size > 0 { // an empty object is announced only with its checksum
		s.announce(t, t.to, out)
	}
}

func (s *Sender) becomeOffered(t *transfer, ev Ready) {
	t.offered, t.name, t.size = true, ev.Name, ev.Size
	t.sent = make([]bool, t.chunks())
}

func (s *Sender) summed(ev Summed, out *SenderOutput) {
	if t := s.find(ev.Transfer); t != nil && t.offered && !t.complete && t.failure == "" {
		t.complete, t.sum = true, ev.Checksum
		s.announce(t, t.to, out)
	}
}

func (s *Sender) becomeFailed(t *transfer, why string, out *SenderOutput) {
	if t.failure != "" {
		return
	}
	if why == "" || why == unknownTransfer {
		why = "failed"
	}
	t.failure, t.queue, t.queued = fault.Clean(why, maxError), nil, nil
	out.Release = append(out.Release, t.id)
	s.announce(t, t.to, out)
}

func (s *Sender) announce(t *transfer, to Route, out *SenderOutput) {
	m := &lofamov1.BulkAnnounce{
		Transfer:          t.id[:],
		Node:              string(s.self.Node),
		Half:              lofamov1.Half(s.self.Half),
		ChecksumAlgorithm: s.cfg.Checksum,
		Error:             t.failure,
	}
	if t.failure == "" {
		m.Key, m.ChunkSize = t.public, ChunkSize
		m.Name, m.Size, m.Checksum, m.Complete = t.name, t.size, t.sum, t.complete
	}
	out.Announce = append(out.Announce, Announcement{m, t.supervisor, to})
}

// pull queues chunks, says where a transfer stands, or ends it.
func (s *Sender) pull(now time.Time, ev Pulled, out *SenderOutput) {
	m := ev.Message
	id, to, ok := s.addressed(m)
	if !ok {
		return
	}
	t := s.find(id)
	switch {
	case t == nil && m.GetDone():
	case t == nil:
		s.announce(&transfer{id: id, supervisor: ev.Supervisor, failure: unknownTransfer}, to, out)
	case t.supervisor != ev.Supervisor:
		s.stats.Refused++
	case m.GetDone():
		s.forget(t, out)
	case len(m.GetRanges()) == 0 || !t.offered || t.failure != "":
		t.asked = now
		s.announce(t, to, out)
	case !t.valid(m.GetRanges()):
		s.stats.Refused++
	default:
		t.asked = now
		t.enqueue(m.GetRanges(), to)
	}
}

func (s *Sender) forget(t *transfer, out *SenderOutput) {
	if t.failure == "" {
		out.Release = append(out.Release, t.id)
	}
	s.transfers = slices.DeleteFunc(s.transfers, func(o *transfer) bool { return o == t })
}

// expire forgets transfers without a request for a Life.
func (s *Sender) expire(now time.Time, out *SenderOutput) {
	for _, t := range slices.Clone(s.transfers) {
		if now.Sub(t.asked) >= s.cfg.Life {
			s.forget(t, out)
		}
	}
}
