package diagnosis

import (
	"encoding/binary"
	"fmt"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Kind is which way a probe goes.
type Kind uint8

// The kinds.
const (
	DNP     Kind = iota + 1 // to the neighbour's DNP half
	Host                    // to the neighbour's host half
	Through                 // to the DNP half of the node behind the neighbour, in the same dimension
)

// String returns "dnp", "host" or "through".
func (k Kind) String() string {
	switch k {
	case DNP:
		return "dnp"
	case Host:
		return "host"
	case Through:
		return "through"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Valid reports whether k is one of the kinds.
func (k Kind) Valid() bool { return k >= DNP && k <= Through }

// A probe, big endian. Behind its head is a bit pattern that follows from the number, so that nothing of it is kept.
//
//	0   4  "LFDP"
//	4   1  kind
//	5   1  direction of the link under test, at the node that tests
//	6   2  number within the run, from 0
//	8   8  the run
//	16     the pattern
//
// On its way behind the neighbour's DNP half it has a wrapper, by which that half, which keeps nothing, knows where
// to send the echo:
//
//	0   4  "LFDT"
//	4   1  kind, Host or Through
//	5   1  direction of the link by which it came, at the neighbour
//	6      the probe
const (
	probeHead   = 16
	wrapperHead = 6
	// MinSize and MaxSize bound a probe, in bytes.
	MinSize = probeHead
	MaxSize = 8 << 10
	// Overhead is the size that a wrapper adds to a probe, in bytes.
	Overhead = wrapperHead
)

var (
	probeMagic   = [4]byte{'L', 'F', 'D', 'P'}
	wrapperMagic = [4]byte{'L', 'F', 'D', 'T'}
)

// patterns is the number of ways to fill a probe.
const patterns = 4

func appendProbe(dst []byte, k Kind, d grid.Direction, number uint16, run uint64, size int) []byte {
	at := len(dst)
	dst = append(dst, probeMagic[:]...)
	dst = append(dst, byte(k), byte(d))
	dst = binary.BigEndian.AppendUint16(dst, number)
	dst = binary.BigEndian.AppendUint64(dst, run)
	mix := run ^ uint64(number)<<48
	for i := probeHead; i < size; i++ {
		if i&7 == 0 {
			mix = scramble(mix)
		}
		dst = append(dst, pattern(number, i, mix))
	}
	return dst[:at+max(size, probeHead)]
}

// pattern is the byte at a place: all bits clear, all set, neighbours that differ, or noise.
func pattern(number uint16, i int, mix uint64) byte {
	switch number % patterns {
	case 0:
		return 0
	case 1:
		return 0xff
	case 2:
		return 0x55 << (i & 1)
	}
	return byte(mix >> (8 * (i & 7)))
}

// scramble is the finalizer of SplitMix64.
func scramble(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// head is the decoded start of a probe.
type head struct {
	kind   Kind
	dir    grid.Direction
	number uint16
	run    uint64
}

// readHead reads the head of a probe, and reports whether b has one.
func readHead(b []byte) (head, bool) {
	if len(b) < probeHead || [4]byte(b) != probeMagic {
		return head{}, false
	}
	h := head{Kind(b[4]), grid.Direction(b[5]), binary.BigEndian.Uint16(b[6:]), binary.BigEndian.Uint64(b[8:])}
	return h, h.kind.Valid() && h.dir.Valid()
}

// KindOf returns the kind of a probe, and whether bytes are one.
func KindOf(b []byte) (Kind, bool) {
	h, ok := readHead(b)
	return h.kind, ok
}

// IsProbe reports whether bytes are a probe of some run, and not of the self-test.
func IsProbe(b []byte) bool { _, ok := readHead(b); return ok }

// Wrap appends a probe to be passed on, of kind Host or Through, that came by the link back.
func Wrap(dst []byte, k Kind, back grid.Direction, probe []byte) []byte {
	dst = append(dst, wrapperMagic[:]...)
	dst = append(dst, byte(k), byte(back))
	return append(dst, probe...)
}

// Unwrap reads the output of Wrap; ok is false for other bytes. The probe aliases b.
func Unwrap(b []byte) (k Kind, back grid.Direction, probe []byte, ok bool) {
	if len(b) <= wrapperHead || [4]byte(b) != wrapperMagic {
		return 0, 0, nil, false
	}
	k, back = Kind(b[4]), grid.Direction(b[5])
	if k != Host && k != Through || !back.Valid() {
		return 0, 0, nil, false
	}
	return k, back, b[wrapperHead:], true
}
