package selftest

import (
	"encoding/binary"
	"math/bits"
)

// Bounds of a probe, in bytes. Its first eight are its number.
const (
	MinProbe = 16
	MaxProbe = 64 << 10
)

// patterns is the number of ways to fill a probe.
const patterns = 5

// fill builds the probe of a number: the number, and a pattern derived from it. So returned probes can be checked
// without a copy.
func fill(dst []byte, id uint64, size int) []byte {
	dst = binary.BigEndian.AppendUint64(dst[:0], id)
	switch id % patterns {
	case 0:
		return appendEach(dst, size, func(int) byte { return 0x00 })
	case 1:
		return appendEach(dst, size, func(int) byte { return 0xff })
	case 2: // neighbouring bits differ, and neighbouring bytes
		return appendEach(dst, size, func(i int) byte { return 0x55 << (i & 1) })
	case 3: // a walking bit
		return appendEach(dst, size, func(i int) byte { return 1 << (i & 7) })
	}
	mix := id
	return appendEach(dst, size, func(i int) byte {
		if i&7 == 0 {
			mix = scramble(mix)
		}
		return byte(mix >> (8 * (i & 7)))
	})
}

func appendEach(dst []byte, size int, at func(i int) byte) []byte {
	for i := len(dst); i < size; i++ {
		dst = append(dst, at(i))
	}
	return dst
}

// scramble is the finalizer of SplitMix64.
func scramble(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// numberOf returns the number in a probe; 0 if there is none.
func numberOf(b []byte) uint64 {
	if len(b) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// near reports whether two numbers may be one with some changed bits.
func near(a, b uint64) bool { return bits.OnesCount64(a^b) <= 3 }
