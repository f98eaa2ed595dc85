// Package relay is what the halves pass on for others: envelopes on their way up to the
// supervisors (reports and answers of a half that has no service network of its own), down to
// a node that only the torus reaches (seed 001 §III-D, the last chance of a DNP whose host is
// dead), and back to the node through which a supervisor asks for a large object. It holds the
// message codec and the memory of what was passed on already. It does not look into envelopes,
// choose ways (internal/agent/dnp/dnpcore) or send.
//
// The same bytes travel as the payload of torus Message frames and, behind the time of sending, in
// mailbox messages between the halves of one node:
//
//	offset  size  field
//	0       1     version, 1
//	1       1     kind: 1 up, 2 down, 3 back, 4 test
//	2       1     hops made so far
//	3       1     hops allowed
//	4       6     destination x, y, z, 16 bits each, big endian; in up messages 0, or x is 1: it may wait
//	10      1     number n of recorded hops, at most 8; in down messages 0, or 1 of no meaning: it may wait
//	11      15 n  hops: x, y, z, 16 bits each; half, 8 bits; time held in ns, 64 bits
//	        rest  the envelope, 1 to 1,200 bytes; in back messages also a chunk packet (package bulk), in down
//	              messages also a piece of an envelope that is longer (package routing)
//
// In test messages the envelope is a probe of the self-test. Version 1 knew no kinds 3 and 4 at first: a relay of that time
// refuses such messages as malformed, and the supervisor asks through another node.
//
// What may wait is held by a drain of the torus (seed 003 §4.5.3; ADR 23). The mark lies where relays of before it look at
// nothing, and pass on what they find: so it is kept on its way through them.
//
// Hops after the eighth add their time to the eighth's: the sum of the ages stays right.
package relay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Kind says which way a message goes.
type Kind uint8

// The kinds.
const (
	Up   Kind = iota + 1 // towards the supervisors, by whoever reaches one
	Down                 // towards the node Dst
	// Back goes to the host half of the node Dst, which passes it to the supervisors. It has a budget of
	// its own at every relay and one way at a time: what is lost is asked for again.
	Back
	// Test goes to the node Dst, which sent it, by a neighbour: the self-test of the relay. Relays of before
	// this kind refuse it, so that it goes by neighbours alone that have answered a test of the link.
	Test
)

// String returns "up", "down", "back" or "test".
func (k Kind) String() string {
	switch k {
	case Up:
		return "up"
	case Down:
		return "down"
	case Back:
		return "back"
	case Test:
		return "test"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Valid says whether k is one of the kinds.
func (k Kind) Valid() bool { return k >= Up && k <= Test }

// KindOf returns the kind of an encoded message before anything else of it is looked at; 0 for none.
func KindOf(b []byte) Kind {
	if len(b) > headerSize && b[0] == version && Kind(b[1]).Valid() {
		return Kind(b[1])
	}
	return 0
}

// Bounds of a message.
const (
	MaxEnvelope = 1200 // bytes; with header and 8 hops it fits a torus frame of the usual MTU
	MaxRecorded = 8    // hops kept one by one
	MaxHops     = 255  // the register has 8 bits (AddrMaxHops)

	version    = 1
	upWaits    = 1 // destination x of an up message that may wait
	headerSize = 11
	hopSize    = 15
	// MaxSize bounds an encoded message.
	MaxSize = headerSize + MaxRecorded*hopSize + MaxEnvelope
)

// What is wrong with a message that does not decode.
var (
	ErrShort   = errors.New("relay message: too short")
	ErrTooLong = errors.New("relay message: too long")
	ErrVersion = errors.New("relay message: unknown version")
	ErrField   = errors.New("relay message: field out of range")
)

// Hop is one station that a message passed.
type Hop struct {
	Coord grid.Coord
	Half  fault.Half
	Held  time.Duration
}

// Message is one envelope under way.
type Message struct {
	Kind     Kind
	Made     uint8      // torus hops made
	Limit    uint8      // torus hops allowed
	Dst      grid.Coord // of a Down or Back message
	Hops     []Hop      // of an Up or Back message
	MayWait  bool       // of an Up or Down message: a drain of the torus may hold it; Waits is what counts
	Envelope []byte     // a serialised lofamo.v1.Envelope, or a chunk packet
}

// Waits says whether a drain of the torus may hold m: what has the mark, and what is so by its kind. Awareness, challenges,
// answers and orders are never marked, nor is anything of an earlier version.
func (m *Message) Waits() bool { return m.MayWait || m.Kind == Back || m.Kind == Test }

// AddHop records a station. The slice of the original is not written to.
func (m Message) AddHop(h Hop) Message {
	if h.Held < 0 {
		h.Held = 0
	}
	hops := make([]Hop, len(m.Hops), len(m.Hops)+1)
	copy(hops, m.Hops)
	if len(hops) >= MaxRecorded {
		hops[len(hops)-1].Held += h.Held
	} else {
		hops = append(hops, h)
	}
	m.Hops = hops
	return m
}

// RoomDown is the longest envelope of a message with no recorded hops, as Down messages have none, that fits so many bytes.
func RoomDown(payload int) int { return min(MaxEnvelope, payload-headerSize) }

// Append encodes m behind dst.
func (m Message) Append(dst []byte) ([]byte, error) {
	switch {
	case !m.Kind.Valid():
		return dst, fmt.Errorf("%w: kind %d: want 1 to 4", ErrField, m.Kind)
	case len(m.Envelope) == 0 || len(m.Envelope) > MaxEnvelope:
		return dst, fmt.Errorf("%w: envelope of %d bytes: want 1 to %d", ErrTooLong, len(m.Envelope), MaxEnvelope)
	case len(m.Hops) > MaxRecorded:
		return dst, fmt.Errorf("%w: %d hops: want at most %d", ErrTooLong, len(m.Hops), MaxRecorded)
	}
	to, hops := m.Dst, m.Hops
	switch m.Kind {
	case Up:
		to = grid.Coord{}
		if m.MayWait {
			to.X = upWaits
		}
	case Down:
		hops = nil
		if m.MayWait {
			hops = []Hop{{Half: fault.HalfDNP}}
		}
	default:
	}
	dst = append(dst, version, byte(m.Kind), m.Made, m.Limit)
	dst = appendCoord(dst, to)
	dst = append(dst, byte(len(hops)))
	for _, h := range hops {
		dst = appendCoord(dst, h.Coord)
		dst = append(dst, byte(h.Half))
		dst = binary.BigEndian.AppendUint64(dst, uint64(max(h.Held, 0)))
	}
	return append(dst, m.Envelope...), nil
}

// Decode reads a message. Its Envelope is a part of b.
func Decode(b []byte) (Message, error) {
	switch {
	case len(b) <= headerSize:
		return Message{}, ErrShort
	case len(b) > MaxSize:
		return Message{}, ErrTooLong
	case b[0] != version:
		return Message{}, fmt.Errorf("%w %d: want %d", ErrVersion, b[0], version)
	}
	m := Message{Kind: Kind(b[1]), Made: b[2], Limit: b[3], Dst: coord(b[4:])}
	if !m.Kind.Valid() {
		return Message{}, fmt.Errorf("%w: kind %d: want 1 to 4", ErrField, b[1])
	}
	n := int(b[10])
	if n > MaxRecorded {
		return Message{}, fmt.Errorf("%w: %d hops: want at most %d", ErrField, n, MaxRecorded)
	}
	rest := b[headerSize:]
	if len(rest) <= n*hopSize {
		return Message{}, ErrShort
	}
	for i := range n {
		h := rest[i*hopSize:]
		hop := Hop{Coord: coord(h), Half: fault.Half(h[6]), Held: time.Duration(binary.BigEndian.Uint64(h[7:]))}
		if !hop.Half.Valid() || hop.Held < 0 || hop.Held > MaxHeld {
			return Message{}, fmt.Errorf("%w: hop %d: half %d held %d ns: want half 1 or 2 and at most %s", ErrField, i, h[6], hop.Held, MaxHeld)
		}
		m.Hops = append(m.Hops, hop)
	}
	m.Envelope = rest[n*hopSize:]
	if len(m.Envelope) > MaxEnvelope {
		return Message{}, ErrTooLong
	}
	switch m.Kind {
	case Up:
		m.MayWait, m.Dst = m.Dst.X == upWaits, grid.Coord{}
	case Down:
		m.MayWait, m.Hops = n > 0, nil
	default:
	}
	return m, nil
}

// MaxHeld bounds the time that one hop may claim, so that sums of ages cannot overflow.
const MaxHeld = 24 * time.Hour

func appendCoord(dst []byte, c grid.Coord) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(c.X))
	dst = binary.BigEndian.AppendUint16(dst, uint16(c.Y))
	return binary.BigEndian.AppendUint16(dst, uint16(c.Z))
}

func coord(b []byte) grid.Coord {
	return grid.Coord{
		X: int(binary.BigEndian.Uint16(b)),
		Y: int(binary.BigEndian.Uint16(b[2:])),
		Z: int(binary.BigEndian.Uint16(b[4:])),
	}
}
