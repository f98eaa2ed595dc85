package torus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// HopWindow bounds the messages in flight over a link, from the oldest unacknowledged to the newest.
const HopWindow = 64

// HopHeader stands before the message in a frame of TypeHop.
//
//	offset  size  field
//	     0     4  stream of the message; 0: there is none, the frame only acknowledges
//	     4     4  stream that is acknowledged; 0: none
//	     8     8  number of the message in its stream, from 1
//	    16     8  base: the lowest number that is still tried; those below were taken or given up
//	    24     8  acknowledgement: all up to this number were taken, or given up by their sender
//	    32     8  taken: bit i says that number acknowledgement+1+i was
//	    40     n  the message
//
// A stream is the numbers of one end, from when it began cold until it does so again: sessions come and
// go in it. Its name is drawn at random.
type HopHeader struct {
	Stream, AckStream uint32
	Number, Base      uint64
	Ack, Taken        uint64
}

// HopHeaderSize is the size of a HopHeader.
const HopHeaderSize = 40

// ErrHop refuses the payload of a frame of TypeHop.
var ErrHop = errors.New("payload of a hop frame makes no sense")

// Append encodes h at the end of dst; the message follows.
func (h HopHeader) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, h.Stream)
	dst = binary.BigEndian.AppendUint32(dst, h.AckStream)
	for _, v := range [...]uint64{h.Number, h.Base, h.Ack, h.Taken} {
		dst = binary.BigEndian.AppendUint64(dst, v)
	}
	return dst
}

// DecodeHop reads the payload of a frame of TypeHop. The message is a part of b, and empty where the frame
// only acknowledges.
func DecodeHop(b []byte) (HopHeader, []byte, error) {
	if len(b) < HopHeaderSize {
		return HopHeader{}, nil, fmt.Errorf("%d bytes, want %d: %w", len(b), HopHeaderSize, ErrHop)
	}
	h := HopHeader{
		Stream: binary.BigEndian.Uint32(b), AckStream: binary.BigEndian.Uint32(b[4:]),
		Number: binary.BigEndian.Uint64(b[8:]), Base: binary.BigEndian.Uint64(b[16:]),
		Ack: binary.BigEndian.Uint64(b[24:]), Taken: binary.BigEndian.Uint64(b[32:]),
	}
	switch {
	case h.Stream == 0:
		return h, nil, nil
	case h.Base == 0 || h.Number < h.Base || h.Number-h.Base >= HopWindow:
		return HopHeader{}, nil, fmt.Errorf("number %d on base %d: %w", h.Number, h.Base, ErrHop)
	}
	return h, b[HopHeaderSize:], nil
}

// HopConfig sets the times at which an unacknowledged message is sent again.
type HopConfig struct {
	Again time.Duration // after the first sending; then twice as long each time
	Most  time.Duration // and no longer
}

// Hop is one end of the reliable hop over one link. Messages are numbered, the sender keeps and repeats each one
// until the other end has accepted it, and the receiver accepts it once.
//
// It knows no messages, only numbers, and for those in flight a tag that the owner gives. Storing is the owner's
// task: Receive says that a message is new. Only Take, called when the message and the Snapshot are where they
// outlive the process, lets an acknowledgement cover it. That is the late commit point of seed 000 §4.1: an end that
// acknowledges earlier loses messages that it had not stored yet (Fig. 8), and an end that forgets its numbers
// duplicates repeated messages (Fig. 7).
//
// It belongs to one goroutine, and allocates nothing.
type Hop struct {
	cfg HopConfig

	stream uint32
	next   uint64 // number to give
	base   uint64 // lowest in flight, or next
	flight [HopWindow]flight
	count  int // in flight

	rx      uint32 // stream followed; 0: none yet
	before  uint32 // the previous one: its messages are late
	ack     uint64
	taken   uint64
	changed bool // since Changed
}

// flight is a message on its way, at its number modulo HopWindow.
type flight struct {
	on     bool
	number uint64
	tag    int
	due    time.Time
	wait   time.Duration // from the last sending to due
}

// NewHop begins cold, with a stream of a name never used before, and not 0.
func NewHop(cfg HopConfig, stream uint32) *Hop {
	if stream == 0 || cfg.Again <= 0 || cfg.Most < cfg.Again {
		panic(fmt.Sprintf("torus: NewHop(%+v, %d)", cfg, stream))
	}
	return &Hop{cfg: cfg, stream: stream, next: 1, base: 1, changed: true}
}

// HopSnapshot is the state from which a Hop resumes after its process was killed. Restore returns the messages in
// flight.
type HopSnapshot struct {
	Stream     uint32
	Next       uint64
	Rx, Before uint32
	Ack, Taken uint64
}

const hopSnapshotSize = 3*4 + 3*8

// maxHopNumber limits message numbers. No stream reaches it, so a higher number is damaged, and numbering must not
// restart after it.
const maxHopNumber = 1 << 62

// Snapshot returns the state for ResumeHop.
func (h *Hop) Snapshot() HopSnapshot {
	return HopSnapshot{Stream: h.stream, Next: h.next, Rx: h.rx, Before: h.before, Ack: h.ack, Taken: h.taken}
}

// Append encodes s at the end of dst.
func (s HopSnapshot) Append(dst []byte) []byte {
	for _, v := range [...]uint32{s.Stream, s.Rx, s.Before} {
		dst = binary.BigEndian.AppendUint32(dst, v)
	}
	for _, v := range [...]uint64{s.Next, s.Ack, s.Taken} {
		dst = binary.BigEndian.AppendUint64(dst, v)
	}
	return dst
}

// DecodeHopSnapshot reads the output of Append; ok is false for other bytes.
func DecodeHopSnapshot(b []byte) (HopSnapshot, bool) {
	if len(b) != hopSnapshotSize {
		return HopSnapshot{}, false
	}
	s := HopSnapshot{
		Stream: binary.BigEndian.Uint32(b), Rx: binary.BigEndian.Uint32(b[4:]), Before: binary.BigEndian.Uint32(b[8:]),
		Next: binary.BigEndian.Uint64(b[12:]), Ack: binary.BigEndian.Uint64(b[20:]), Taken: binary.BigEndian.Uint64(b[28:]),
	}
	return s, s.Stream != 0 && s.Next != 0 && s.Next <= maxHopNumber
}

// ResumeHop continues a hop of a process that is gone.
func ResumeHop(cfg HopConfig, s HopSnapshot) *Hop {
	h := NewHop(cfg, s.Stream)
	h.next, h.base = s.Next, s.Next
	h.rx, h.before, h.ack, h.taken = s.Rx, s.Before, s.Ack, s.Taken
	h.changed = false
	return h
}

// Restore says that a message was in flight when the process was killed: it is due at once. Restore refuses a message
// that is too old for the window; the owner must send it under a new number. The snapshot may not know the number,
// because it was stored before the message. Store the snapshot before you forget the message, or its number comes
// twice.
func (h *Hop) Restore(now time.Time, number uint64, tag int) bool {
	next := max(h.next, number+1)
	low := number
	if h.count > 0 {
		low = min(low, h.base)
	}
	if number == 0 || number > maxHopNumber || next-low > HopWindow || h.flight[number%HopWindow].on {
		return false
	}
	if next > h.next {
		h.next, h.changed = next, true
	}
	h.flight[number%HopWindow] = flight{on: true, number: number, tag: tag, due: now, wait: h.cfg.Again}
	h.count++
	h.base = low
	return true
}

// Changed reports whether the snapshot differs from the one at the last call.
func (h *Hop) Changed() bool {
	c := h.changed
	h.changed = false
	return c
}

// InFlight returns the number of messages in flight.
func (h *Hop) InFlight() int { return h.count }

// Full reports whether the window has no room for another message.
func (h *Hop) Full() bool { return h.next-h.base >= HopWindow }

// Send gives a message the next number. It returns false when too many are on their way.
func (h *Hop) Send(now time.Time, tag int) (HopHeader, bool) {
	if h.Full() {
		return HopHeader{}, false
	}
	n := h.next
	h.next++
	h.count++
	h.changed = true
	h.flight[n%HopWindow] = flight{on: true, number: n, tag: tag, due: now.Add(h.cfg.Again), wait: h.cfg.Again}
	return h.header(n), true
}

// header returns the header of a message; it also acknowledges.
func (h *Hop) header(n uint64) HopHeader {
	out := h.Ack()
	out.Stream, out.Number, out.Base = h.stream, n, h.base
	return out
}

// Ack returns a header that acknowledges accepted messages, without a message.
func (h *Hop) Ack() HopHeader { return HopHeader{AckStream: h.rx, Ack: h.ack, Taken: h.taken} }

// Due returns a message that must be sent again now, the oldest first, and false when there is none left.
func (h *Hop) Due(now time.Time) (hd HopHeader, tag int, ok bool) {
	for n := h.base; h.count > 0 && n < h.next; n++ {
		f := &h.flight[n%HopWindow]
		if !f.on || now.Before(f.due) {
			continue
		}
		f.wait = min(2*f.wait, h.cfg.Most)
		f.due = now.Add(f.wait)
		return h.header(n), f.tag, true
	}
	return HopHeader{}, 0, false
}

// Wake returns the time at which Due has a message; zero: never, in the present state.
func (h *Hop) Wake() time.Time {
	var w time.Time
	for n := h.base; h.count > 0 && n < h.next; n++ {
		if f := &h.flight[n%HopWindow]; f.on {
			w = fault.Earliest(w, f.due)
		}
	}
	return w
}

// Put makes all messages in flight due at a time: the link was silent meanwhile, and the other end is back.
func (h *Hop) Put(due time.Time) {
	for i := range h.flight {
		h.flight[i].due, h.flight[i].wait = due, h.cfg.Again
	}
}

// Acked handles the other end's acknowledgement, and returns the tag of one message that the other end has accepted;
// call it until it returns false. An acknowledgement of another stream has no effect.
func (h *Hop) Acked(hd HopHeader) (tag int, ok bool) {
	if hd.AckStream != h.stream || hd.Ack >= h.next {
		return 0, false
	}
	for n := h.base; h.count > 0 && n < h.next; n++ {
		f := &h.flight[n%HopWindow]
		above := n - hd.Ack - 1
		if f.on && (n <= hd.Ack || above < 64 && hd.Taken>>above&1 != 0) {
			h.land(f)
			return f.tag, true
		}
	}
	return 0, false
}

// Impossible reports whether the other end acknowledges numbers of this stream that no message ever had. No loss,
// delay or restart explains that (a channel protocol check, seed 003 §5.2.1.2).
func (h *Hop) Impossible(hd HopHeader) bool {
	if hd.AckStream != h.stream {
		return false
	}
	if hd.Ack >= h.next {
		return true
	}
	known := h.next - hd.Ack - 1 // assigned numbers above the acknowledgement
	return known < 64 && hd.Taken>>known != 0
}

// Renamed reports whether a message begins a new stream after another one: the other end has begun cold.
func (h *Hop) Renamed(hd HopHeader) bool {
	return h.rx != 0 && hd.Stream != 0 && hd.Stream != h.rx && hd.Stream != h.before
}

// Abandon gives up a message that is on its way: it goes another way, or nowhere. Whether the other end has taken
// it is not known.
func (h *Hop) Abandon(number uint64) {
	if f := &h.flight[number%HopWindow]; f.on && f.number == number {
		h.land(f)
	}
}

func (h *Hop) land(f *flight) {
	f.on = false
	h.count--
	for h.base < h.next && !h.flight[h.base%HopWindow].on {
		h.base++
	}
}

// HopVerdict is Receive's verdict on a message.
type HopVerdict uint8

// The verdicts.
const (
	HopNew  HopVerdict = iota + 1 // call Take, and acknowledge; or do neither, and it comes again
	HopSeen                       // a duplicate: acknowledge again
	HopLate                       // of a stream that has ended: drop it
)

var hopVerdictNames = [...]string{HopNew: "new", HopSeen: "seen", HopLate: "late"}

// String returns the verdict's name.
func (v HopVerdict) String() string {
	if v >= 1 && int(v) < len(hopVerdictNames) {
		return hopVerdictNames[v]
	}
	return fmt.Sprintf("HopVerdict(%d)", uint8(v))
}

// Receive judges a message whose header DecodeHop has accepted.
func (h *Hop) Receive(hd HopHeader) HopVerdict {
	switch hd.Stream {
	case h.rx:
	case h.before:
		return HopLate
	default: // the other end has begun cold
		h.before, h.rx = h.rx, hd.Stream
		h.ack, h.taken, h.changed = hd.Base-1, 0, true
	}
	if hd.Base-1 > h.ack { // given up
		h.taken >>= hd.Base - 1 - h.ack
		h.ack, h.changed = hd.Base-1, true
		h.gather()
	}
	if h.has(hd.Number) {
		return HopSeen
	}
	return HopNew
}

func (h *Hop) has(n uint64) bool {
	return n <= h.ack || n-h.ack <= 64 && h.taken>>(n-h.ack-1)&1 != 0
}

// Take says that a new message, and with it the snapshot that includes it, is stored, or will be before the next
// acknowledgement leaves.
func (h *Hop) Take(number uint64) {
	if h.has(number) || number-h.ack > 64 {
		return
	}
	h.taken |= 1 << (number - h.ack - 1)
	h.changed = true
	h.gather()
}

// gather moves the acknowledgement up to the first number that is missing.
func (h *Hop) gather() {
	n := bits.TrailingZeros64(^h.taken)
	h.ack += uint64(n)
	h.taken >>= n
}

// Took says that the copy has a message of that stream and number. Call it after ResumeHop, for a message that was
// stored before the snapshot that includes it. The snapshot knows the stream: changes by Receive are stored before
// the message is.
func (h *Hop) Took(stream uint32, number uint64) {
	if stream == h.rx {
		h.Take(number)
	}
}
