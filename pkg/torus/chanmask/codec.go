package chanmask

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// A State on disk, big endian:
//
//	0    4    "LFCM"
//	4    1    version, 1
//	5    1    own mask
//	6    1    the supervisors' mask
//	7    1    mask set by a person at the node, 1: masked; halves of an earlier version have a 0 there, and accept no other
//	8    8    the supervisors' number
//	16   4    CRC-32 (IEEE) of the preceding bytes
const (
	stateMagic   = "LFCM"
	stateVersion = 1
	// StateSize is the size of an encoded State, in bytes.
	StateSize = 20
)

// ErrState is the error of Decode for bytes that are no State.
var ErrState = errors.New("not a channel mask")

// Append encodes the state at the end of dst, which may be nil.
func (s State) Append(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, stateMagic...)
	dst = append(dst, stateVersion, byte(s.Own), byte(s.Ordered), byte(s.Held))
	dst = binary.BigEndian.AppendUint64(dst, s.Number)
	return binary.BigEndian.AppendUint32(dst, crc32.ChecksumIEEE(dst[start:]))
}

// Decode reads the output of Append. On an error, which is an ErrState, the state is Fresh.
func Decode(b []byte) (State, error) {
	switch {
	case len(b) != StateSize:
		return Fresh(), fmt.Errorf("%d bytes: want %d: %w", len(b), StateSize, ErrState)
	case string(b[:4]) != stateMagic:
		return Fresh(), fmt.Errorf("it begins with %q: want %q: %w", b[:4], stateMagic, ErrState)
	case crc32.ChecksumIEEE(b[:16]) != binary.BigEndian.Uint32(b[16:]):
		return Fresh(), fmt.Errorf("its CRC does not match: %w", ErrState)
	case b[4] != stateVersion:
		return Fresh(), fmt.Errorf("version %d: want %d: %w", b[4], stateVersion, ErrState)
	}
	own, err := Parse(uint32(b[5]))
	ordered, err2 := Parse(uint32(b[6]))
	held, err3 := Parse(uint32(b[7]))
	if err := errors.Join(err, err2, err3); err != nil {
		return Fresh(), fmt.Errorf("%w: %w", err, ErrState)
	}
	return State{Own: own, Held: held, Ordered: ordered, Number: binary.BigEndian.Uint64(b[8:])}, nil
}
