package express

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// kind is the first byte of a payload.
type kind uint8

const (
	kindMessage kind = iota + 1
	kindAck
	kindPing
	kindEcho
)

const (
	idSize     = 6 + 8 + 8
	headerSize = 8 + idSize
	pingSize   = 1 + 8
	maxAge     = 1<<16 - 1 // ms

	// MaxPayload is the longest payload of a frame of TypeEureka, in bytes.
	MaxPayload = headerSize + MaxBody
)

// ErrPayload refuses a payload that no correct node sends.
var ErrPayload = errors.New("express payload makes no sense")

// payload is a decoded payload. body points into the decoded bytes.
type payload struct {
	kind kind
	msg  Message // of kindMessage
	age  time.Duration
	acks []byte // of kindAck: IDs
	ping uint64
}

func appendID(b []byte, id ID) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(id.Origin.X))
	b = binary.BigEndian.AppendUint16(b, uint16(id.Origin.Y))
	b = binary.BigEndian.AppendUint16(b, uint16(id.Origin.Z))
	b = binary.BigEndian.AppendUint64(b, uint64(id.Epoch))
	return binary.BigEndian.AppendUint64(b, id.Number)
}

func idAt(b []byte) ID {
	return ID{
		Origin: grid.Coord{X: int(binary.BigEndian.Uint16(b)), Y: int(binary.BigEndian.Uint16(b[2:])), Z: int(binary.BigEndian.Uint16(b[4:]))},
		Epoch:  fault.Epoch(binary.BigEndian.Uint64(b[6:])), Number: binary.BigEndian.Uint64(b[14:]),
	}
}

// appendMessage encodes a broadcast with the hops and the age given.
func appendMessage(b []byte, m *Message, hops uint16, age time.Duration) []byte {
	b = append(b, byte(kindMessage), byte(m.Topic), byte(m.Priority), 0)
	b = binary.BigEndian.AppendUint16(b, hops)
	b = binary.BigEndian.AppendUint16(b, uint16(min(max(0, age.Milliseconds()), maxAge)))
	return append(appendID(b, m.ID), m.Body...)
}

func decodeMessage(b []byte) (m Message, age time.Duration, err error) {
	if len(b) < headerSize || len(b) > MaxPayload {
		return m, 0, fmt.Errorf("broadcast of %d bytes, want %d to %d: %w", len(b), headerSize, MaxPayload, ErrPayload)
	}
	m = Message{
		ID: idAt(b[8:]), Topic: Topic(b[1]), Priority: Priority(b[2]), Hops: binary.BigEndian.Uint16(b[4:]), Body: b[headerSize:],
	}
	switch {
	case m.Topic == 0:
		err = fmt.Errorf("broadcast %s: topic 0, want 1 to 255: %w", m.ID, ErrPayload)
	case m.Priority > MaxPriority:
		err = fmt.Errorf("broadcast %s: priority %d, want 0 to %d: %w", m.ID, m.Priority, MaxPriority, ErrPayload)
	case m.Number == 0:
		err = fmt.Errorf("broadcast %s: number 0, want 1 or more: %w", m.ID, ErrPayload)
	}
	return m, time.Duration(binary.BigEndian.Uint16(b[6:])) * time.Millisecond, err
}

// decode reads the payload of a frame. For an unknown kind it returns only the kind.
func decode(b []byte) (payload, error) {
	if len(b) == 0 {
		return payload{}, fmt.Errorf("nothing in it: %w", ErrPayload)
	}
	p := payload{kind: kind(b[0])}
	var err error
	switch p.kind {
	case kindMessage:
		p.msg, p.age, err = decodeMessage(b)
	case kindAck:
		if len(b) < 2 || b[1] == 0 || b[1] > MaxAcks || len(b) != 2+idSize*int(b[1]) {
			return payload{}, fmt.Errorf("acknowledgement of %d bytes: want 2 and %d for each of 1 to %d: %w", len(b), idSize, MaxAcks, ErrPayload)
		}
		p.acks = b[2:]
	case kindPing, kindEcho:
		if len(b) != pingSize {
			return payload{}, fmt.Errorf("ping of %d bytes, want %d: %w", len(b), pingSize, ErrPayload)
		}
		p.ping = binary.BigEndian.Uint64(b[1:])
	default:
	}
	if err != nil {
		return payload{}, err
	}
	return p, nil
}

func appendAcks(b []byte, ids ...ID) []byte {
	b = append(b, byte(kindAck), byte(len(ids)))
	for _, id := range ids {
		b = appendID(b, id)
	}
	return b
}

func appendPing(b []byte, k kind, n uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, byte(k)), n)
}
