// Package checksum holds the end-to-end checksums of seed 002 §4 and §5 (Figure 4). They detect bits that flipped on
// the way from one memory to another, on the wire, in the network card or on the bus.
//
// It is not for authentication: anyone can compute these sums. Signatures and MACs stand beside them; the checksum
// only distinguishes damage from forgery, cheaply and first.
//
//	NONE        0 bits   finds nothing
//	CRC32C      32 bits  Castagnoli, in hardware; the default, known to all
//	CRC32       32 bits  IEEE 802.3
//	FLETCHER64  64 bits  two sums modulo 2³²-1 over 32-bit little-endian words, the second in the high half
//	ADLER32     32 bits  RFC 1950
//	XXHASH64    64 bits  seed 0
//	SUM64       64 bits  plain sum of 64-bit little-endian words: all single-bit errors, not much more
//
// Sums over words pad the last one with zeros; the length is not part of the sum. It is pure.
package checksum

import (
	"fmt"
	"hash/adler32"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Default is used until something else is agreed on.
const Default = lofamov1.Checksum_CHECKSUM_CRC32C

// copyBlock is the size of the blocks that Copy copies before it sums: a block and its copy fill an L1 data cache of
// 32 kB, the smallest in use (seed 002 §5.3).
const copyBlock = 16 << 10

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// names are the algorithms' names in configuration and output, by value.
var names = [...]string{"none", "crc32c", "crc32", "fletcher64", "adler32", "xxhash64", "sum64"}

// Algorithms returns all that are known, NONE first.
func Algorithms() []lofamov1.Checksum {
	out := make([]lofamov1.Checksum, len(names))
	for i := range out {
		out[i] = lofamov1.Checksum(i)
	}
	return out
}

// Known reports whether this version can compute a. Check an algorithm that a peer names here first.
func Known(a lofamov1.Checksum) bool { return a >= 0 && int(a) < len(names) }

// Name returns the name that Parse reads.
func Name(a lofamov1.Checksum) string {
	if !Known(a) {
		return fmt.Sprintf("checksum(%d)", a)
	}
	return names[a]
}

// Parse reads a name: none, crc32c, crc32, fletcher64, adler32, xxhash64 or sum64.
func Parse(name string) (lofamov1.Checksum, error) {
	if i := slices.Index(names[:], name); i >= 0 {
		return lofamov1.Checksum(i), nil
	}
	return 0, fmt.Errorf("checksum: given %q: want one of %s", name, strings.Join(names[:], ", "))
}

// Choose returns the first offered algorithm that is allowed and known, and the default, which every
// version knows, when there is none.
func Choose(offered, allowed []lofamov1.Checksum) lofamov1.Checksum {
	for _, a := range offered {
		if Known(a) && slices.Contains(allowed, a) {
			return a
		}
	}
	return Default
}

// Sum returns the checksum over the concatenation of the parts; narrower sums stand in the low bits.
// An algorithm that is not Known sums to 0, as NONE does.
func Sum(a lofamov1.Checksum, parts ...[]byte) uint64 {
	var d Digest
	d.start(a)
	for _, p := range parts {
		d.add(p)
	}
	return d.Sum64()
}

// Digest sums data that is written piece by piece; the piece boundaries do not matter. The zero value sums nothing
// (NONE). A copy goes on independently.
type Digest struct {
	algorithm lofamov1.Checksum
	crc       uint32
	adler     uint32
	xx        xxhash.Digest
	fletcher  fletcher
	sum       uint64
	tail      [8]byte // bytes of a word that is not complete
	tailLen   int
}

// New returns a digest of nothing.
func New(a lofamov1.Checksum) *Digest {
	d := &Digest{}
	d.start(a)
	return d
}

func (d *Digest) start(a lofamov1.Checksum) {
	d.algorithm, d.adler = a, 1
	if a == lofamov1.Checksum_CHECKSUM_XXHASH64 {
		d.xx.Reset()
	}
}

// Reset forgets the data written so far.
func (d *Digest) Reset() {
	a := d.algorithm
	*d = Digest{}
	d.start(a)
}

// Algorithm returns the algorithm given to New.
func (d *Digest) Algorithm() lofamov1.Checksum { return d.algorithm }

// Write adds p. It never fails.
func (d *Digest) Write(p []byte) (int, error) {
	d.add(p)
	return len(p), nil
}

// Copy copies as much of src to dst as fits, returns how much, and adds it to the sum. It works block by block, so
// that the sum reads from the L1 cache the bytes that the copy has just brought there (seed 002 §5.1, §5.3).
func (d *Digest) Copy(dst, src []byte) int {
	n := min(len(dst), len(src))
	dst, src = dst[:n], src[:n]
	for len(src) > 0 {
		b := copy(dst[:min(len(dst), copyBlock)], src)
		d.add(dst[:b]) // the copy, so that damage by the copying itself shows as well
		dst, src = dst[b:], src[b:]
	}
	return n
}

func (d *Digest) add(p []byte) {
	switch d.algorithm {
	case lofamov1.Checksum_CHECKSUM_CRC32C:
		d.crc = crc32.Update(d.crc, castagnoli, p)
	case lofamov1.Checksum_CHECKSUM_CRC32:
		d.crc = crc32.Update(d.crc, crc32.IEEETable, p)
	case lofamov1.Checksum_CHECKSUM_ADLER32:
		d.adler = appendAdler(d.adler, adler32.Checksum(p), len(p))
	case lofamov1.Checksum_CHECKSUM_XXHASH64:
		_, _ = d.xx.Write(p) // never fails
	case lofamov1.Checksum_CHECKSUM_FLETCHER64:
		if p = d.fill(p, 4); p != nil {
			d.keep(d.fletcher.add(p))
		}
	case lofamov1.Checksum_CHECKSUM_SUM64:
		if p = d.fill(p, 8); p != nil {
			sum, rest := sumWords(p)
			d.sum += sum
			d.keep(rest)
		}
	case lofamov1.Checksum_CHECKSUM_NONE:
	}
}

// fill completes the word of the given size that the last piece left open, and returns the rest of p: nil when the
// word is still open.
func (d *Digest) fill(p []byte, word int) []byte {
	if d.tailLen == 0 {
		return p
	}
	n := copy(d.tail[d.tailLen:word], p)
	d.tailLen += n
	if d.tailLen < word {
		return nil
	}
	d.addTail()
	d.tailLen = 0
	return p[n:]
}

// addTail adds the open word, zeros behind it.
func (d *Digest) addTail() {
	clear(d.tail[d.tailLen:])
	if d.algorithm == lofamov1.Checksum_CHECKSUM_FLETCHER64 {
		d.fletcher.add(d.tail[:4])
		return
	}
	sum, _ := sumWords(d.tail[:])
	d.sum += sum
}

func (d *Digest) keep(rest []byte) { d.tailLen = copy(d.tail[:], rest) }

// Sum64 returns the checksum of the data so far; more may follow.
func (d *Digest) Sum64() uint64 {
	switch d.algorithm {
	case lofamov1.Checksum_CHECKSUM_CRC32C, lofamov1.Checksum_CHECKSUM_CRC32:
		return uint64(d.crc)
	case lofamov1.Checksum_CHECKSUM_ADLER32:
		return uint64(d.adler)
	case lofamov1.Checksum_CHECKSUM_XXHASH64:
		return d.xx.Sum64()
	case lofamov1.Checksum_CHECKSUM_FLETCHER64:
		end := *d
		if end.tailLen > 0 {
			end.addTail()
		}
		return end.fletcher.sum64()
	case lofamov1.Checksum_CHECKSUM_SUM64:
		end := *d
		if end.tailLen > 0 {
			end.addTail()
		}
		return end.sum
	case lofamov1.Checksum_CHECKSUM_NONE:
	}
	return 0
}

// appendAdler returns the Adler-32 of two pieces from those of each, n being the length of the second.
func appendAdler(first, second uint32, n int) uint32 {
	const mod = 65521
	a1, b1 := uint64(first&0xffff), uint64(first>>16)
	a2, b2 := uint64(second&0xffff), uint64(second>>16)
	// Both sums begin at a=1, b=0: the second piece alone has counted that 1 once in a, n times in b.
	l := uint64(n) % mod
	a := (a1 + a2 + mod - 1) % mod
	b := (b1 + b2 + l*a1 + mod - l) % mod
	return uint32(b<<16 | a)
}
