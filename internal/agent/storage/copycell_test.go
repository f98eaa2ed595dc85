package storage

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
)

func TestCellsHaveTheirPlaces(t *testing.T) {
	for _, half := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		l := newLayout(half)
		numbers := map[uint32]bool{}
		end := 0
		for _, c := range l.all {
			if c.at < end || c.at%8 != 0 || c.at+c.size > l.half || c.room() <= 0 || numbers[c.number] || c.number == 0 {
				t.Fatalf("%s: cell %+v after %d", half, c, end)
			}
			numbers[c.number], end = true, c.at+c.size
		}
		if l.half%pageSize != 0 || CopySize(half) != 2*l.half {
			t.Errorf("%s: half of the file: %d", half, l.half)
		}
		if len(l.relay) != 0 != (half == fault.HalfDNP) || len(l.reports) != NumReports {
			t.Errorf("%s: %d relay slots, %d reports", half, len(l.relay), len(l.reports))
		}
	}
}

// stored returns the bytes that a store leaves in either copy.
func stored(c cell, seq uint64, payload []byte) []byte {
	b := make([]byte, c.size)
	c.put(b, seq, payload)
	return b
}

// After a kill at any byte of a store, with the bytes of one copy in any order, a load returns the old or the new
// payload.
func TestKilledAtAnyByteOfStore(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	c := cell{7, 0, 96}
	payloads := [][]byte{nil, []byte("a"), []byte("some longer payload of a cell"), bytes.Repeat([]byte{0xff}, c.room()),
		make([]byte, c.room())}
	for _, old := range payloads {
		for _, next := range payloads {
			before, after := stored(c, 41, old), stored(c, 42, next)
			n := headerSize + len(next)
			copy(after[n:], before[n:]) // a store does not touch the bytes behind it
			check := func(a, b []byte, may ...[]byte) {
				t.Helper()
				best, _, _ := c.choose(a, b)
				if best == nil {
					t.Fatalf("%q by %q: nothing", old, next)
				}
				for _, want := range may {
					if bytes.Equal(best[headerSize:], want) {
						return
					}
				}
				t.Fatalf("%q by %q: %q", old, next, best[headerSize:])
			}
			for k := range n + 1 {
				prefix, suffix, some := bytes.Clone(before), bytes.Clone(before), bytes.Clone(before)
				copy(prefix, after[:k])
				copy(suffix[k:], after[k:])
				for _, i := range rng.Perm(n)[:k] {
					some[i] = after[i]
				}
				for _, torn := range [][]byte{prefix, suffix, some} {
					check(torn, before, old, next) // A is written first
					check(after, torn, next)       // then B
				}
			}
		}
	}
}

// The CRC finds two flipped bits in a copy, at any place, in cells of every size in use. If both copies are hit, the
// cell is lost or unchanged.
func TestTwoFlipsInOneCopy(t *testing.T) {
	for _, size := range []int{64, 128} {
		c := cell{9, 0, size}
		b := stored(c, 3, bytes.Repeat([]byte{0x5a}, c.room()-1))
		for i := range 8 * size {
			for j := range i {
				b[i/8] ^= 1 << (i % 8)
				b[j/8] ^= 1 << (j % 8)
				if u, good := c.used(b); good && (u[headerSize] != 0x5a || len(u) != size-1) {
					t.Fatalf("bits %d and %d of %d: %x", i, j, size, u)
				}
				b[i/8] ^= 1 << (i % 8)
				b[j/8] ^= 1 << (j % 8)
			}
		}
	}
}

func TestCellKnowsItsPlace(t *testing.T) {
	c, other := cell{1, 0, 64}, cell{2, 0, 64}
	b := stored(c, 1, []byte("x"))
	if _, good := c.used(b); !good {
		t.Error("not good in its own place")
	}
	if _, good := other.used(b); good {
		t.Error("good in another's place")
	}
	if _, good := c.used(make([]byte, 64)); good || !blank(make([]byte, 64)) {
		t.Error("zeros are taken for a cell")
	}
}

func FuzzCopyChoose(f *testing.F) {
	c := cell{5, 0, 64}
	f.Add(stored(c, 1, []byte("one")), stored(c, 2, []byte("two")))
	f.Add(make([]byte, 64), make([]byte, 64))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		a, b = append(a, make([]byte, 64)...)[:64], append(b, make([]byte, 64)...)[:64]
		best, mendA, mendB := c.choose(a, b)
		_, goodA := c.used(a)
		_, goodB := c.used(b)
		if best == nil != (!goodA && !goodB) || mendA && mendB || len(best) > 64 {
			t.Errorf("%x, %t, %t", best, mendA, mendB)
		}
		if mendA {
			copy(a, best)
		}
		if mendB {
			copy(b, best)
		}
		if again, mendA, mendB := c.choose(a, b); best != nil && (!bytes.Equal(again, best) || mendA || mendB) {
			t.Errorf("not mended: %x", again)
		}
	})
}
