package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// The computation: a ring of numbers. With every step each number becomes a function of itself and its two neighbours,
// modulo 2^64. The computation is exact, so that the result does not depend on the division of the ring, and reveals a
// single wrong cell.

// begin returns a cell's first value.
func begin(i int) uint64 { return uint64(i)*0x9e3779b97f4a7c15 + 1 }

func next(left, self, right uint64) uint64 { return 3*left + 5*self + 7*right + 1 }

// advance computes the next values of a part of the ring, given its two neighbouring cells.
func advance(part []uint64, left, right uint64) []uint64 {
	out := make([]uint64, len(part))
	for i, self := range part {
		l, r := left, right
		if i > 0 {
			l = part[i-1]
		}
		if i < len(part)-1 {
			r = part[i+1]
		}
		out[i] = next(l, self, r)
	}
	return out
}

// share returns the range of cells of the i-th of n members.
func share(cells, i, n int) (from, to int) { return i * cells / n, (i + 1) * cells / n }

// serial computes the whole ring in one process.
func serial(cells, steps int) []uint64 {
	ring := make([]uint64, cells)
	for i := range ring {
		ring[i] = begin(i)
	}
	for range steps {
		ring = advance(ring, ring[cells-1], ring[0])
	}
	return ring
}

func digest(ring []uint64) string {
	h := sha256.New()
	for _, c := range ring {
		_, _ = h.Write(binary.BigEndian.AppendUint64(nil, c)) // a hash accepts everything
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
