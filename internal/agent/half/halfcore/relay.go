package halfcore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// A relay is the message format of envelopes that halves forward for others: up to the supervisors (reports and
// answers of a half that has no service network of its own), down to a node that only the torus reaches (seed 001
// §III-D, the last chance of a DNP whose host is dead), and back to the node through which a supervisor requests a
// large object. This file holds the codec, seen.go the memory of messages that were already forwarded. Package dnpcore
// chooses routes and sends.
//
// The same bytes travel as the payload of torus Message frames and, after the time of sending, in mailbox messages
// between the halves of one node:
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
// In test messages the envelope is a probe of the self-test. Version 1 had no kinds 3 and 4 at first: a relay from that
// time refuses such messages as malformed, and the supervisor asks through another node.
//
// A drain of the torus holds messages that may wait (seed 003 §4.5.3; ADR 23). The mark lies in fields that earlier
// relays forward without looking at them, so it survives the way through them.
//
// Hops after the eighth add their time to the eighth's, so that the sum of the ages stays right.

// RelayKind is the direction of a message.
type RelayKind uint8

// The kinds.
const (
	RelayUp   RelayKind = iota + 1 // towards the supervisors, through any node that reaches one
	RelayDown                      // towards the node Dst
	// RelayBack goes to the host half of the node Dst, which passes it to the supervisors. It has a budget of its own at
	// every relay and takes one route at a time. The receiver asks for lost parts again.
	RelayBack
	// RelayTest goes to the node Dst, which sent it, through a neighbour: the self-test of the relay. Relays from before
	// this kind refuse it, so it goes only through neighbours that have answered a test of the link.
	RelayTest
)

// String returns "up", "down", "back" or "test".
func (k RelayKind) String() string {
	switch k {
	case RelayUp:
		return "up"
	case RelayDown:
		return "down"
	case RelayBack:
		return "back"
	case RelayTest:
		return "test"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Valid reports whether k is one of the kinds.
func (k RelayKind) Valid() bool { return k >= RelayUp && k <= RelayTest }

// RelayKindOf returns the kind of an encoded message without decoding the rest; 0 for none.
func RelayKindOf(b []byte) RelayKind {
	if len(b) > relayHeaderSize && b[0] == relayVersion && RelayKind(b[1]).Valid() {
		return RelayKind(b[1])
	}
	return 0
}

// Bounds of a message.
const (
	MaxRelayEnvelope = 1200 // bytes; with header and 8 hops it fits a torus frame of the usual MTU
	MaxRelayRecorded = 8    // hops kept one by one

	relayVersion    = 1
	relayUpWaits    = 1 // destination x of an up message that may wait
	relayHeaderSize = 11
	relayHopSize    = 15
	// MaxRelaySize bounds an encoded message.
	MaxRelaySize = relayHeaderSize + MaxRelayRecorded*relayHopSize + MaxRelayEnvelope
)

// Errors of Decode.
var (
	ErrRelayShort   = errors.New("relay message: too short")
	ErrRelayTooLong = errors.New("relay message: too long")
	ErrRelayVersion = errors.New("relay message: unknown version")
	ErrRelayKind    = errors.New("relay message: unknown kind")
	ErrRelayField   = errors.New("relay message: field out of range")
)

// RelayHop is one station that a message passed.
type RelayHop struct {
	Coord grid.Coord
	Half  fault.Half
	Held  time.Duration
}

// Relay is one envelope in transit.
type Relay struct {
	Kind     RelayKind
	Made     uint8      // torus hops made
	Limit    uint8      // torus hops allowed
	Dst      grid.Coord // of a Down or Back message
	Hops     []RelayHop // of an Up or Back message
	MayWait  bool       // of an Up or Down message: a drain of the torus may hold it; see Waits
	Envelope []byte     // a serialised lofamo.v1.Envelope, or a chunk packet
}

// Waits reports whether a drain of the torus may hold m, by its mark or by its kind. Awareness, challenges, answers and
// orders are never marked, nor are messages of earlier versions.
func (m *Relay) Waits() bool { return m.MayWait || m.Kind == RelayBack || m.Kind == RelayTest }

// AddHop returns m with another station recorded. It does not write to the slice of the original.
func (m Relay) AddHop(h RelayHop) Relay {
	if h.Held < 0 {
		h.Held = 0
	}
	hops := make([]RelayHop, len(m.Hops), len(m.Hops)+1)
	copy(hops, m.Hops)
	if len(hops) >= MaxRelayRecorded {
		hops[len(hops)-1].Held += h.Held
	} else {
		hops = append(hops, h)
	}
	m.Hops = hops
	return m
}

// Previous returns the station before the last recorded one: the node from which the last one received m. It returns false if m has fewer
// than two recorded hops, or so many that later ones may not have been recorded.
func (m *Relay) Previous() (grid.Coord, bool) {
	n := len(m.Hops)
	if n < 2 || n >= MaxRelayRecorded {
		return grid.Coord{}, false
	}
	return m.Hops[n-2].Coord, true
}

// RelayRoomDown returns the maximum length of an envelope for a payload, in a message without recorded hops, such as a Down
// message.
func RelayRoomDown(payload int) int { return min(MaxRelayEnvelope, payload-relayHeaderSize) }

// Append appends the encoding of m to dst.
func (m Relay) Append(dst []byte) ([]byte, error) {
	switch {
	case !m.Kind.Valid():
		return dst, fmt.Errorf("%w: kind %d: want 1 to 4", ErrRelayField, m.Kind)
	case len(m.Envelope) == 0 || len(m.Envelope) > MaxRelayEnvelope:
		return dst, fmt.Errorf("%w: envelope of %d bytes: want 1 to %d", ErrRelayTooLong, len(m.Envelope), MaxRelayEnvelope)
	case len(m.Hops) > MaxRelayRecorded:
		return dst, fmt.Errorf("%w: %d hops: want at most %d", ErrRelayTooLong, len(m.Hops), MaxRelayRecorded)
	}
	to, hops := m.Dst, m.Hops
	switch m.Kind {
	case RelayUp:
		to = grid.Coord{}
		if m.MayWait {
			to.X = relayUpWaits
		}
	case RelayDown:
		hops = nil
		if m.MayWait {
			hops = []RelayHop{{Half: fault.HalfDNP}}
		}
	default:
	}
	dst = append(dst, relayVersion, byte(m.Kind), m.Made, m.Limit)
	dst = appendRelayCoord(dst, to)
	dst = append(dst, byte(len(hops)))
	for _, h := range hops {
		dst = appendRelayCoord(dst, h.Coord)
		dst = append(dst, byte(h.Half))
		dst = binary.BigEndian.AppendUint64(dst, uint64(max(h.Held, 0)))
	}
	return append(dst, m.Envelope...), nil
}

// DecodeRelay reads a message. Its Envelope aliases b.
func DecodeRelay(b []byte) (Relay, error) {
	switch {
	case len(b) <= relayHeaderSize:
		return Relay{}, ErrRelayShort
	case len(b) > MaxRelaySize:
		return Relay{}, ErrRelayTooLong
	case b[0] != relayVersion:
		return Relay{}, fmt.Errorf("%w %d: want %d", ErrRelayVersion, b[0], relayVersion)
	}
	m := Relay{Kind: RelayKind(b[1]), Made: b[2], Limit: b[3], Dst: relayCoord(b[4:])}
	if !m.Kind.Valid() {
		return Relay{}, fmt.Errorf("%w %d: want 1 to 4", ErrRelayKind, b[1])
	}
	n := int(b[10])
	if n > MaxRelayRecorded {
		return Relay{}, fmt.Errorf("%w: %d hops: want at most %d", ErrRelayField, n, MaxRelayRecorded)
	}
	rest := b[relayHeaderSize:]
	if len(rest) <= n*relayHopSize {
		return Relay{}, ErrRelayShort
	}
	for i := range n {
		h := rest[i*relayHopSize:]
		hop := RelayHop{Coord: relayCoord(h), Half: fault.Half(h[6]), Held: time.Duration(binary.BigEndian.Uint64(h[7:]))}
		if !hop.Half.Valid() || hop.Held < 0 || hop.Held > MaxRelayHeld {
			return Relay{}, fmt.Errorf("%w: hop %d: half %d held %d ns: want half 1 or 2 and at most %s", ErrRelayField, i, h[6], hop.Held,
				MaxRelayHeld)
		}
		m.Hops = append(m.Hops, hop)
	}
	m.Envelope = rest[n*relayHopSize:]
	if len(m.Envelope) > MaxRelayEnvelope {
		return Relay{}, ErrRelayTooLong
	}
	switch m.Kind {
	case RelayUp:
		m.MayWait, m.Dst = m.Dst.X == relayUpWaits, grid.Coord{}
	case RelayDown:
		m.MayWait, m.Hops = n > 0, nil
	default:
	}
	return m, nil
}

// MaxRelayHeld bounds the time that one hop may claim, so that sums of ages cannot overflow.
const MaxRelayHeld = 24 * time.Hour

func appendRelayCoord(dst []byte, c grid.Coord) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(c.X))
	dst = binary.BigEndian.AppendUint16(dst, uint16(c.Y))
	return binary.BigEndian.AppendUint16(dst, uint16(c.Z))
}

func relayCoord(b []byte) grid.Coord {
	return grid.Coord{
		X: int(binary.BigEndian.Uint16(b)),
		Y: int(binary.BigEndian.Uint16(b[2:])),
		Z: int(binary.BigEndian.Uint16(b[4:])),
	}
}
