package procedure

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// The body of an express broadcast of the topic manage, all integers big endian. Kinds that are not known are ignored.
//
//	kind 1, a Message                     kind 2, the order that begins a procedure
//	offset size field                     offset size field
//	  0     1   1                           0     1   2
//	  1     1   flags: 1 Holding,           1     3   0
//	            2 Clear, 4 Diagnose         4     8   wave
//	  2     1   state, 1 to 7              12     8   run
//	  3     1   0                          20     n   the supervisor's envelope, as it came
//	  4     8   wave, from 1
//	 12     8   run
//	 20     4   starter
//	 24     4   round
//	 28     8   term of the order, 0: none
//	 36     8   count of it
//	 44     4   Network Delay in µs
//	 48     4   hop in µs
//	 52     4   drain time-out in ms
//	 56     2   n, at most MaxAbsent
//	 58    2·n  ranks of the absent, ascending
const (
	kindMessage, kindOrder = 1, 2

	messageHeader = 58
	orderHeader   = 20
	// MaxMessage bounds an encoded Message, in bytes.
	MaxMessage = messageHeader + 2*MaxAbsent
	// OrderOverhead is the size of the header before an envelope.
	OrderOverhead = orderHeader
)

const (
	flagHolding = 1 << iota
	flagClear
	flagDiagnose
)

// ErrBody refuses a body that makes no sense. Test with errors.Is.
var ErrBody = errors.New("not a body of the fault management procedure")

// Begin is a supervisor's order on its way to all: the procedure's name but for its starter, which is the origin of
// the broadcast, and the envelope.
type Begin struct {
	Wave, Run uint64
	Envelope  []byte
}

// Append encodes a Begin behind dst.
func (b *Begin) Append(dst []byte) []byte {
	dst = append(dst, kindOrder, 0, 0, 0)
	dst = binary.BigEndian.AppendUint64(dst, b.Wave)
	dst = binary.BigEndian.AppendUint64(dst, b.Run)
	return append(dst, b.Envelope...)
}

// Append encodes a message behind dst. Its plan must have passed Validate.
func (m *Message) Append(dst []byte) []byte {
	var flags byte
	for _, f := range [...]struct {
		set bool
		bit byte
	}{{m.Holding, flagHolding}, {m.Clear, flagClear}, {m.Diagnose, flagDiagnose}} {
		if f.set {
			flags |= f.bit
		}
	}
	dst = append(dst, kindMessage, flags, byte(m.State), 0)
	dst = binary.BigEndian.AppendUint64(dst, m.Wave)
	dst = binary.BigEndian.AppendUint64(dst, m.Run)
	dst = binary.BigEndian.AppendUint32(dst, uint32(m.Starter))
	dst = binary.BigEndian.AppendUint32(dst, m.Round)
	dst = binary.BigEndian.AppendUint64(dst, m.Order.Term)
	dst = binary.BigEndian.AppendUint64(dst, m.Order.Count)
	dst = binary.BigEndian.AppendUint32(dst, uint32(m.Plan.Delay/time.Microsecond))
	dst = binary.BigEndian.AppendUint32(dst, uint32(m.Plan.Hop/time.Microsecond))
	dst = binary.BigEndian.AppendUint32(dst, uint32(m.Plan.DrainTimeout/time.Millisecond))
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(m.Plan.Absent)))
	for _, r := range m.Plan.Absent {
		dst = binary.BigEndian.AppendUint16(dst, uint16(r))
	}
	return dst
}

// Decode reads a body: a message, or the beginning of an ordered procedure, whose envelope aliases b. A body of a
// later version is neither.
func Decode(b []byte) (*Message, *Begin, error) {
	switch {
	case len(b) == 0:
		return nil, nil, fmt.Errorf("%w: no bytes", ErrBody)
	case b[0] == kindMessage:
		m, err := decodeMessage(b)
		return m, nil, err
	case b[0] != kindOrder:
		return nil, nil, nil // of a later version
	case len(b) <= orderHeader:
		return nil, nil, fmt.Errorf("%w: order of %d bytes: want more than %d", ErrBody, len(b), orderHeader)
	}
	begin := &Begin{Wave: binary.BigEndian.Uint64(b[4:]), Run: binary.BigEndian.Uint64(b[12:]), Envelope: b[orderHeader:]}
	if begin.Wave == 0 {
		return nil, nil, fmt.Errorf("%w: wave 0: want at least 1", ErrBody)
	}
	return nil, begin, nil
}

func decodeMessage(b []byte) (*Message, error) {
	if len(b) < messageHeader {
		return nil, fmt.Errorf("%w: message of %d bytes: want at least %d", ErrBody, len(b), messageHeader)
	}
	n := int(binary.BigEndian.Uint16(b[56:]))
	m := &Message{
		Key: Key{Wave: binary.BigEndian.Uint64(b[4:]), Run: binary.BigEndian.Uint64(b[12:]),
			Starter: int(binary.BigEndian.Uint32(b[20:]) & math.MaxInt32)},
		State: State(b[2]), Round: binary.BigEndian.Uint32(b[24:]),
		Holding: b[1]&flagHolding != 0, Clear: b[1]&flagClear != 0, Diagnose: b[1]&flagDiagnose != 0,
		Order: Order{binary.BigEndian.Uint64(b[28:]), binary.BigEndian.Uint64(b[36:])},
		Plan: Plan{
			Delay:        time.Duration(binary.BigEndian.Uint32(b[44:])) * time.Microsecond,
			Hop:          time.Duration(binary.BigEndian.Uint32(b[48:])) * time.Microsecond,
			DrainTimeout: time.Duration(binary.BigEndian.Uint32(b[52:])) * time.Millisecond,
		},
	}
	switch {
	case !m.State.Valid():
		return nil, fmt.Errorf("%w: state %d: want 1 to %d", ErrBody, b[2], Diagnostics)
	case m.Wave == 0:
		return nil, fmt.Errorf("%w: wave 0: want at least 1", ErrBody)
	case m.Starter > MaxRank:
		return nil, fmt.Errorf("%w: starter %d: want at most %d", ErrBody, m.Starter, MaxRank)
	case n > MaxAbsent || len(b) != messageHeader+2*n:
		return nil, fmt.Errorf("%w: %d bytes with %d absent: want %d, and at most %d", ErrBody, len(b), n, messageHeader+2*n, MaxAbsent)
	}
	for i := range n {
		m.Plan.Absent = append(m.Plan.Absent, int(binary.BigEndian.Uint16(b[messageHeader+2*i:])))
	}
	if err := m.Plan.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBody, err)
	}
	return m, nil
}
