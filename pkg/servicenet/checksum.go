package servicenet

import (
	"fmt"
	"hash/adler32"
	"hash/crc32"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// The end-to-end checksums of seed 002 §4 and §5 (Figure 4) detect bits that flipped on
// the way from one memory to another, on the wire, in the network card or on the bus.
//
// They are not for authentication: anyone can compute these sums. Signatures and MACs stand beside them; the checksum
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
// Sums over words pad the last one with zeros; the length is not part of the sum.

// DefaultChecksum is used until something else is agreed on.
const DefaultChecksum = lofamov1.Checksum_CHECKSUM_CRC32C

// copyBlock is the size of the blocks that Copy copies before it sums: a block and its copy fill an L1 data cache of
// 32 kB, the smallest in use (seed 002 §5.3).
const copyBlock = 16 << 10

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksumNames are the algorithms' names in configuration and output, by value.
var checksumNames = [...]string{"none", "crc32c", "crc32", "fletcher64", "adler32", "xxhash64", "sum64"}

// Checksums returns all that are known, NONE first.
func Checksums() []lofamov1.Checksum {
	out := make([]lofamov1.Checksum, len(checksumNames))
	for i := range out {
		out[i] = lofamov1.Checksum(i)
	}
	return out
}

// KnownChecksum reports whether this version can compute a. Check an algorithm that a peer names with it first.
func KnownChecksum(a lofamov1.Checksum) bool { return a >= 0 && int(a) < len(checksumNames) }

// ChecksumName returns the name that ParseChecksum reads.
func ChecksumName(a lofamov1.Checksum) string {
	if !KnownChecksum(a) {
		return fmt.Sprintf("checksum(%d)", a)
	}
	return checksumNames[a]
}

// ParseChecksum reads a name: none, crc32c, crc32, fletcher64, adler32, xxhash64 or sum64.
func ParseChecksum(name string) (lofamov1.Checksum, error) {
	if i := slices.Index(checksumNames[:], name); i >= 0 {
		return lofamov1.Checksum(i), nil
	}
	return 0, fmt.Errorf("checksum: given %q: want one of %s", name, strings.Join(checksumNames[:], ", "))
}

// ChooseChecksum returns the first offered algorithm that is allowed and known, or, if there is none, the default,
// which every version knows.
func ChooseChecksum(offered, allowed []lofamov1.Checksum) lofamov1.Checksum {
	for _, a := range offered {
		if KnownChecksum(a) && slices.Contains(allowed, a) {
			return a
		}
	}
	return DefaultChecksum
}

// ChecksumOf returns the checksum over the concatenation of the parts; narrower sums stand in the low bits.
// An algorithm that is not KnownChecksum sums to 0, as NONE does.
func ChecksumOf(a lofamov1.Checksum, parts ...[]byte) uint64 {
	var d Checksummer
	d.start(a)
	for _, p := range parts {
		d.add(p)
	}
	return d.Sum64()
}

// Checksummer sums data that is written piece by piece; the piece boundaries do not matter. The zero value sums nothing
// (NONE). A copy goes on independently.
type Checksummer struct {
	algorithm lofamov1.Checksum
	crc       uint32
	adler     uint32
	xx        xxhash.Digest
	fletcher  fletcher
	sum       uint64
	tail      [8]byte // bytes of a word that is not complete
	tailLen   int
}

// NewChecksummer returns a Checksummer that has summed nothing yet.
func NewChecksummer(a lofamov1.Checksum) *Checksummer {
	d := &Checksummer{}
	d.start(a)
	return d
}

func (d *Checksummer) start(a lofamov1.Checksum) {
	d.algorithm, d.adler = a, 1
	if a == lofamov1.Checksum_CHECKSUM_XXHASH64 {
		d.xx.Reset()
	}
}

// Reset forgets the data written so far.
func (d *Checksummer) Reset() {
	a := d.algorithm
	*d = Checksummer{}
	d.start(a)
}

// Algorithm returns the algorithm given to NewChecksummer.
func (d *Checksummer) Algorithm() lofamov1.Checksum { return d.algorithm }

// Write adds p. It never fails.
func (d *Checksummer) Write(p []byte) (int, error) {
	d.add(p)
	return len(p), nil
}

// Copy copies as much of src to dst as fits, returns how much, and adds it to the sum. It works block by block, so
// that the sum reads from the L1 cache the bytes that the copy has just brought there (seed 002 §5.1, §5.3).
func (d *Checksummer) Copy(dst, src []byte) int {
	n := min(len(dst), len(src))
	dst, src = dst[:n], src[:n]
	for len(src) > 0 {
		b := copy(dst[:min(len(dst), copyBlock)], src)
		d.add(dst[:b]) // the copy, so that damage by the copying itself shows as well
		dst, src = dst[b:], src[b:]
	}
	return n
}

func (d *Checksummer) add(p []byte) {
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
func (d *Checksummer) fill(p []byte, word int) []byte {
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
func (d *Checksummer) addTail() {
	clear(d.tail[d.tailLen:])
	if d.algorithm == lofamov1.Checksum_CHECKSUM_FLETCHER64 {
		d.fletcher.add(d.tail[:4])
		return
	}
	sum, _ := sumWords(d.tail[:])
	d.sum += sum
}

func (d *Checksummer) keep(rest []byte) { d.tailLen = copy(d.tail[:], rest) }

// Sum64 returns the checksum of the data so far; more may follow.
func (d *Checksummer) Sum64() uint64 {
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
