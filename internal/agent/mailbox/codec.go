package mailbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// MaxPayload bounds the payload of one message, in bytes.
const MaxPayload = 8192

// overhead is the length of the frame around the payload: one byte of type before, four of CRC-32C after.
const overhead = 1 + 4

// Type is the type of a message. The zero value is invalid.
type Type uint8

// The types.
const (
	Doorbell    Type = iota + 1 // no payload: look at the registers
	Envelope                    // host to DNP: send by the torus; DNP to host: arrived by the torus
	Recovery                    // from the recovery daemon to a half: the record of one half
	Health                      // to the other half: how this one started, and the results of its self-tests
	Test                        // a probe of the self-test, or one of the other half's on its way back
	Jobs                        // a eureka, an arrival at a barrier, or a result: package jobs
	Certificate                 // DNP to host: the end and begin of its certificate
	Setting                     // host to DNP: values for registers of Table VI
	Files                       // between the two ends of a window: files of the state directory; in no mailbox
	DeadHosts                   // host to DNP: the directions whose neighbours have a dead host in the fault map, one byte
	Restart                     // from the DNP half's recovery daemon through a window: its half is restarted, see half.AppendRestart
)

// String returns the type's name.
func (t Type) String() string {
	switch t {
	case Doorbell:
		return "Doorbell"
	case Envelope:
		return "Envelope"
	case Recovery:
		return "Recovery"
	case Health:
		return "Health"
	case Test:
		return "Test"
	case Jobs:
		return "Jobs"
	case Certificate:
		return "Certificate"
	case Setting:
		return "Setting"
	case Files:
		return "Files"
	case DeadHosts:
		return "DeadHosts"
	case Restart:
		return "Restart"
	}
	return fmt.Sprintf("Type(%d)", uint8(t))
}

// Valid reports whether t is one of the types.
func (t Type) Valid() bool { return t >= Doorbell && t <= Restart }

// Later reports whether t may be a type of a later version: during an upgrade a half of that version may share the
// node with this one. Its messages are ignored here without an error.
func (t Type) Later() bool { return t > Restart }

// Message is a message of the mailbox.
type Message struct {
	Type    Type
	Payload []byte // at most MaxPayload bytes; none with Doorbell
}

var (
	// ErrTooLong is wrapped when a message is longer than MaxPayload allows.
	ErrTooLong = errors.New("mailbox message too long")
	// ErrMalformed is wrapped when a datagram is no message.
	ErrMalformed = errors.New("mailbox message malformed")
	// ErrCRC is wrapped when a message does not match its CRC-32C.
	ErrCRC = errors.New("mailbox message has a wrong CRC")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Append appends the datagram of a message to dst: type, payload, CRC-32C of both, little-endian.
func (m Message) Append(dst []byte) ([]byte, error) {
	if err := m.validate(); err != nil {
		return dst, err
	}
	start := len(dst)
	dst = append(dst, byte(m.Type))
	dst = append(dst, m.Payload...)
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli)), nil
}

func (m Message) validate() error {
	switch {
	case !m.Type.Valid():
		return fmt.Errorf("%w: type is %d: want 1 to %d", ErrMalformed, uint8(m.Type), uint8(Restart))
	case len(m.Payload) > MaxPayload:
		return fmt.Errorf("%w: payload of %d bytes: want at most %d", ErrTooLong, len(m.Payload), MaxPayload)
	case m.Type == Doorbell && len(m.Payload) > 0:
		return fmt.Errorf("%w: doorbell with a payload of %d bytes: want none", ErrMalformed, len(m.Payload))
	}
	return nil
}

// Decode reads a datagram, including types of a later version. The payload is a part of b. An empty datagram is also
// a doorbell, so that any process that can send to a socket can ring.
func Decode(b []byte) (Message, error) {
	switch {
	case len(b) == 0:
		return Message{Type: Doorbell}, nil
	case len(b) < overhead:
		return Message{}, fmt.Errorf("%w: %d bytes: want 0, or %d to %d", ErrMalformed, len(b), overhead, overhead+MaxPayload)
	case len(b) > overhead+MaxPayload:
		return Message{}, fmt.Errorf("%w: datagram of %d bytes: want at most %d", ErrTooLong, len(b), overhead+MaxPayload)
	}
	body, tail := b[:len(b)-4], b[len(b)-4:]
	if got, want := binary.LittleEndian.Uint32(tail), crc32.Checksum(body, castagnoli); got != want {
		return Message{}, fmt.Errorf("%w: 0x%08x: want 0x%08x", ErrCRC, got, want)
	}
	m := Message{Type: Type(body[0])}
	if len(body) > 1 {
		m.Payload = body[1:]
	}
	if m.Type.Later() {
		return m, nil
	}
	if err := m.validate(); err != nil {
		return Message{}, err
	}
	return m, nil
}
