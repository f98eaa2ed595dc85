package torus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Sizes of frames, in bytes.
const (
	// MinPacket and MaxFrame are the smallest and largest packets of the DNP: 256 to 65,792 bits
	// (seed 001 §IV-B). Our smallest frame is HeartbeatSize.
	MinPacket = 32
	MaxFrame  = 8224
	// DefaultMaxFrame is the UDP payload of a path with an MTU of 1,500 over IPv4.
	DefaultMaxFrame = 1472
	// HeartbeatSize is a frame without payload, and so the size of everything but the payload.
	HeartbeatSize = headerSize + MACSize + crcSize
	// MACSize is the size of the authentication tag.
	MACSize = 16

	headerSize = 56
	crcSize    = 4

	seqAt, ackAt = 32, 40 // offsets, of 8 bytes each
)

const (
	magic   = 0x4c46
	version = 1
)

// FrameType is the kind of payload. A receiver ignores the payload of an unknown type; the frame still counts as a
// sign of life.
type FrameType uint8

// The frame types.
const (
	TypeHeartbeat  FrameType = iota + 1 // no payload
	TypeMessage                         // relayed bytes: mailbox and envelope, see internal/agent
	TypeTest                            // a probe of the self-test, or its echo: see internal/agent/dnp/dnpcore
	TypeEureka                          // express broadcast: see pkg/torus/express
	TypeBarrier                         // state of a barrier: see pkg/torus/express
	TypeRestarting                      // the sender's DNP half is being restarted: see Restarting
	TypeHop                             // relayed bytes that are acknowledged, or the acknowledgement: see HopHeader
	TypeAsk                             // no payload: a heartbeat that wants another one at once, see Refused
)

var frameTypeNames = [...]string{TypeHeartbeat: "heartbeat", TypeMessage: "message", TypeTest: "test", TypeEureka: "eureka",
	TypeBarrier: "barrier", TypeRestarting: "restarting", TypeHop: "hop", TypeAsk: "ask"}

// String returns the type's name.
func (t FrameType) String() string {
	if t >= 1 && int(t) < len(frameTypeNames) {
		return frameTypeNames[t]
	}
	return fmt.Sprintf("FrameType(%d)", uint8(t))
}

// Flags are one-bit statements of the sender. Bits without a name are kept and ignored.
type Flags uint8

// The flags.
const (
	// FlagHostDead: the sender's DNP half finds its host half's watchdog word stale (host breakdown).
	FlagHostDead Flags = 1 << iota
	// FlagDeaf: the sender hears nothing authentic from the receiver. The link machine sets it.
	FlagDeaf
	// FlagRestart: the sender's DNP half is not there and means to be back.
	FlagRestart
	// FlagHops: the sender understands frames of TypeHop. A peer that does not set it gets messages as TypeMessage.
	FlagHops
	// FlagExpress: the sender understands frames of TypeEureka and TypeBarrier. A peer that does not set it gets
	// none.
	FlagExpress
	// FlagMasked: the sender's channel mask keeps messages off this link (seed 003 §5.2.3.1).
	FlagMasked
	// FlagDiagnosis: the sender passes the probes of a diagnosis on (seed 003 §5.2.2).
	FlagDiagnosis
	// FlagAnswers: the sender answers a frame of TypeAsk by a heartbeat at once.
	FlagAnswers
)

// Frame is one decoded packet of a link. Direction, Src and Dst are the sender's: Direction is
// the way it left the sender.
type Frame struct {
	Type      FrameType
	Direction grid.Direction
	Flags     Flags
	Src, Dst  grid.Coord
	Session   uint32
	Epoch     fault.Epoch
	Seq, Ack  uint64
	DNP, Host uint32 // the sender's watchdog words, as in registers Table III and IV
	Payload   []byte // after Decode it points into the packet: copy it to keep it
}

// The errors of Decode, each counted separately. ErrCRC is a damaged frame; ErrMAC is an undamaged frame from a
// sender without the key; ErrSession is a frame of a session whose key is not (or no longer) here; the others are
// malformed. Test with errors.Is.
var (
	ErrShort     = errors.New("shorter than a frame without payload")
	ErrTooLong   = errors.New("longer than the largest frame allowed")
	ErrCRC       = errors.New("CRC does not match")
	ErrMagic     = errors.New("not a frame of ours: wrong magic")
	ErrVersion   = errors.New("unknown frame version")
	ErrLength    = errors.New("length field differs from the packet's length")
	ErrType      = errors.New("frame type 0")
	ErrDirection = errors.New("direction outside 1 to 6")
	ErrSession   = errors.New("no key for this session")
	ErrMAC       = errors.New("MAC does not match")
)

// Sealer makes the MAC of outgoing frames.
type Sealer interface {
	// Seal appends the MAC of data to dst. A sequence number must never come twice in a session.
	Seal(dst []byte, session uint32, seq uint64, data []byte) ([]byte, error)
}

// Opener checks the MAC of incoming frames.
type Opener interface {
	// Open returns ErrSession for an unknown session, ErrMAC for a wrong MAC. It keeps no slice.
	Open(session uint32, seq uint64, data, mac []byte) error
}

// Append encodes f at the end of dst, which may be nil, and returns the longer slice.
func (f *Frame) Append(dst []byte, auth Sealer) ([]byte, error) {
	size := HeartbeatSize + len(f.Payload)
	switch {
	case size > MaxFrame:
		return dst, fmt.Errorf("encode %s frame: payload of %d bytes: want at most %d", f.Type, len(f.Payload), MaxFrame-HeartbeatSize)
	case f.Type == 0:
		return dst, errors.New("encode frame: type is 0: want 1 to 255")
	case !f.Direction.Valid():
		return dst, fmt.Errorf("encode %s frame: direction is %d: want 1 to 6", f.Type, uint8(f.Direction))
	}
	for _, c := range [2]grid.Coord{f.Src, f.Dst} {
		if !encodable(c) {
			return dst, fmt.Errorf("encode %s frame: coordinate %s: want each part 0 to %d", f.Type, c, grid.MaxSize-1)
		}
	}
	start := len(dst)
	b := f.appendHeader(dst, size)
	b = append(b, f.Payload...)
	b, err := auth.Seal(b, f.Session, f.Seq, b[start:])
	if err != nil {
		return dst, fmt.Errorf("encode %s frame %d: %w", f.Type, f.Seq, err)
	}
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b[start:])), nil
}

// appendHeader encodes everything before the payload of a frame of this size.
func (f *Frame) appendHeader(b []byte, size int) []byte {
	b = binary.BigEndian.AppendUint16(b, magic)
	b = append(b, version, byte(f.Type))
	b = binary.BigEndian.AppendUint16(b, uint16(size))
	b = append(b, byte(f.Direction), byte(f.Flags))
	b = appendCoord(appendCoord(b, f.Src), f.Dst)
	b = binary.BigEndian.AppendUint32(b, f.Session)
	b = binary.BigEndian.AppendUint64(b, uint64(f.Epoch))
	b = binary.BigEndian.AppendUint64(b, f.Seq)
	b = binary.BigEndian.AppendUint64(b, f.Ack)
	b = binary.BigEndian.AppendUint32(b, f.DNP)
	return binary.BigEndian.AppendUint32(b, f.Host)
}

// Word is a word of an encoded frame.
type Word struct {
	At    int // offset in bytes
	Value uint32
}

// StatusWords returns the words that every heartbeat with f's addresses, session and status has in common: all but
// sequence number, acknowledgement, MAC and CRC.
func (f *Frame) StatusWords() []Word {
	h := *f
	h.Type, h.Payload = TypeHeartbeat, nil
	b := h.appendHeader(make([]byte, 0, headerSize), HeartbeatSize)
	var out []Word
	for at := 0; at < headerSize; at += 4 {
		if at < seqAt || at >= ackAt+8 {
			out = append(out, Word{at, binary.BigEndian.Uint32(b[at:])})
		}
	}
	return out
}

func encodable(c grid.Coord) bool {
	in := func(v int) bool { return v >= 0 && v < grid.MaxSize }
	return in(c.X) && in(c.Y) && in(c.Z)
}

func appendCoord(b []byte, c grid.Coord) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(c.X))
	b = binary.BigEndian.AppendUint16(b, uint16(c.Y))
	return binary.BigEndian.AppendUint16(b, uint16(c.Z))
}

// Decode reads a packet of at most maxSize bytes and checks it from the outside in: size, CRC,
// shape, MAC. On an error the frame is zero. The payload points into b.
func Decode(b []byte, maxSize int, auth Opener) (Frame, error) {
	switch {
	case len(b) < HeartbeatSize:
		return Frame{}, fmt.Errorf("packet of %d bytes: %w", len(b), ErrShort)
	case len(b) > min(maxSize, MaxFrame):
		return Frame{}, fmt.Errorf("packet of %d bytes: %w", len(b), ErrTooLong)
	}
	body := b[:len(b)-crcSize]
	if crc32.ChecksumIEEE(body) != binary.BigEndian.Uint32(b[len(body):]) {
		return Frame{}, ErrCRC
	}
	switch {
	case binary.BigEndian.Uint16(b) != magic:
		return Frame{}, ErrMagic
	case b[2] != version:
		return Frame{}, fmt.Errorf("version %d: %w", b[2], ErrVersion)
	case int(binary.BigEndian.Uint16(b[4:])) != len(b):
		return Frame{}, ErrLength
	case b[3] == 0:
		return Frame{}, ErrType
	case !grid.Direction(b[6]).Valid():
		return Frame{}, ErrDirection
	}
	signed, mac := body[:len(body)-MACSize], body[len(body)-MACSize:]
	f := Frame{
		Type:      FrameType(b[3]),
		Direction: grid.Direction(b[6]),
		Flags:     Flags(b[7]),
		Src:       coordAt(b[8:]),
		Dst:       coordAt(b[14:]),
		Session:   binary.BigEndian.Uint32(b[20:]),
		Epoch:     fault.Epoch(binary.BigEndian.Uint64(b[24:])),
		Seq:       binary.BigEndian.Uint64(b[seqAt:]),
		Ack:       binary.BigEndian.Uint64(b[ackAt:]),
		DNP:       binary.BigEndian.Uint32(b[48:]),
		Host:      binary.BigEndian.Uint32(b[52:]),
		Payload:   signed[headerSize:],
	}
	if err := auth.Open(f.Session, f.Seq, signed, mac); err != nil {
		return Frame{}, err
	}
	return f, nil
}

func coordAt(b []byte) grid.Coord {
	return grid.Coord{
		X: int(binary.BigEndian.Uint16(b)),
		Y: int(binary.BigEndian.Uint16(b[2:])),
		Z: int(binary.BigEndian.Uint16(b[4:])),
	}
}

// MaxPayload is the payload that fits a frame of maxSize bytes.
func MaxPayload(maxSize int) int { return max(0, min(maxSize, MaxFrame)-HeartbeatSize) }

// BadKind classifies bad packets by their meaning for the link.
type BadKind uint8

// The kinds of bad packets.
const (
	BadCRC       BadKind = iota + 1 // damaged: a link error, if a sequence gap bears it out
	BadMAC                          // forged: an attack, never a link error
	BadSession                      // of a session unknown here: a peer or we have restarted
	BadMalformed                    // not a frame, though its CRC is right, or of impossible size
	BadInterface                    // counted by the interface itself, which dropped it
)

var badKindNames = [...]string{BadCRC: "crc", BadMAC: "mac", BadSession: "session", BadMalformed: "malformed", BadInterface: "interface"}

// String returns the kind's name.
func (k BadKind) String() string {
	if k >= 1 && int(k) < len(badKindNames) {
		return badKindNames[k]
	}
	return fmt.Sprintf("BadKind(%d)", uint8(k))
}

// KindOf sorts an error of Decode. A damaged packet may also be one cut short on the way.
func KindOf(err error) BadKind {
	switch {
	case errors.Is(err, ErrCRC):
		return BadCRC
	case errors.Is(err, ErrMAC):
		return BadMAC
	case errors.Is(err, ErrSession):
		return BadSession
	}
	return BadMalformed
}
