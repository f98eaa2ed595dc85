package servicenet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

const (
	none       = lofamov1.Checksum_CHECKSUM_NONE
	crc32c     = lofamov1.Checksum_CHECKSUM_CRC32C
	crc32ieee  = lofamov1.Checksum_CHECKSUM_CRC32
	fletcher64 = lofamov1.Checksum_CHECKSUM_FLETCHER64
	adler      = lofamov1.Checksum_CHECKSUM_ADLER32
	xxhash64   = lofamov1.Checksum_CHECKSUM_XXHASH64
	sum64      = lofamov1.Checksum_CHECKSUM_SUM64
)

func TestChecksumsEqualPublishedVectors(t *testing.T) {
	zeros, ones, wiki := string(make([]byte, 32)), strings.Repeat("\xff", 32), "Wikipedia"
	for _, tc := range []struct {
		a    lofamov1.Checksum
		in   string
		want uint64
	}{
		{none, "123456789", 0},
		{crc32c, "", 0},
		{crc32c, "123456789", 0xe3069283},
		{crc32c, zeros, 0x8a9136aa}, // RFC 3720 B.4
		{crc32c, ones, 0x62a8ab43},
		{crc32ieee, "123456789", 0xcbf43926},
		{adler, "", 1},
		{adler, wiki, 0x11e60398},
		{fletcher64, "abcde", 0xc8c6c527646362c6},
		{fletcher64, "abcdef", 0xc8c72b276463c8c6},
		{fletcher64, "abcdefgh", 0x312e2b28cccac8c6},
		{xxhash64, "", 0xef46db3751d8e999},
		{xxhash64, "a", 0xd24ec4f1a98c6e5b},
		{xxhash64, "123456789", 0x8cb841db40e6ae83},
		{sum64, "", 0},
		{sum64, "\x01\x00\x00\x00\x00\x00\x00\x00\x02", 3},
		{sum64, ones, 0xfffffffffffffffc},
		{99, "123456789", 0},
	} {
		if got := ChecksumOf(tc.a, []byte(tc.in)); got != tc.want {
			t.Errorf("%s of %.12q: got %#x, want %#x", ChecksumName(tc.a), tc.in, got, tc.want)
		}
	}
}

// naive computes every algorithm from its definition, a bit, a byte or a word at a time.
func naive(a lofamov1.Checksum, p []byte) uint64 {
	switch a {
	case crc32c:
		return uint64(naiveCRC(0x82f63b78, p))
	case crc32ieee:
		return uint64(naiveCRC(0xedb88320, p))
	case adler:
		s1, s2 := uint64(1), uint64(0)
		for _, b := range p {
			s1 = (s1 + uint64(b)) % 65521
			s2 = (s2 + s1) % 65521
		}
		return s2<<16 | s1
	case fletcher64:
		mod := big.NewInt(1<<32 - 1)
		s1, s2 := new(big.Int), new(big.Int)
		for i := 0; i < len(p); i += 4 {
			var w [4]byte
			copy(w[:], p[i:])
			s1.Add(s1, big.NewInt(int64(binary.LittleEndian.Uint32(w[:]))))
			s2.Add(s2, s1)
		}
		return new(big.Int).Mod(s2, mod).Uint64()<<32 | new(big.Int).Mod(s1, mod).Uint64()
	case sum64:
		var s uint64
		for i, b := range p {
			s += uint64(b) << (8 * (i % 8))
		}
		return s
	case xxhash64:
		return naiveXX(p)
	case none:
	}
	return 0
}

func naiveCRC(poly uint32, p []byte) uint32 {
	c := ^uint32(0)
	for _, b := range p {
		c ^= uint32(b)
		for range 8 {
			c = c>>1 ^ poly&-(c&1)
		}
	}
	return ^c
}

// naiveXX follows the specification of XXH64 step by step.
func naiveXX(p []byte) uint64 {
	const (
		p1 = 0x9E3779B185EBCA87
		p2 = 0xC2B2AE3D27D4EB4F
		p3 = 0x165667B19E3779F9
		p4 = 0x85EBCA77C2B2AE63
		p5 = 0x27D4EB2F165667C5
	)
	rotl := func(x uint64, r int) uint64 { return x<<r | x>>(64-r) }
	round := func(acc, lane uint64) uint64 { return rotl(acc+lane*p2, 31) * p1 }
	n, h, one := uint64(len(p)), uint64(p5), uint64(p1)
	if len(p) >= 32 {
		acc := [4]uint64{one + p2, p2, 0, -one}
		for ; len(p) >= 32; p = p[32:] {
			for i := range acc {
				acc[i] = round(acc[i], binary.LittleEndian.Uint64(p[8*i:]))
			}
		}
		h = rotl(acc[0], 1) + rotl(acc[1], 7) + rotl(acc[2], 12) + rotl(acc[3], 18)
		for _, a := range acc {
			h = (h^round(0, a))*p1 + p4
		}
	}
	h += n
	for ; len(p) >= 8; p = p[8:] {
		h = rotl(h^round(0, binary.LittleEndian.Uint64(p)), 27)*p1 + p4
	}
	if len(p) >= 4 {
		h = rotl(h^uint64(binary.LittleEndian.Uint32(p))*p1, 23)*p2 + p3
		p = p[4:]
	}
	for _, b := range p {
		h = rotl(h^uint64(b)*p5, 11) * p1
	}
	h = (h ^ h>>33) * p2
	h = (h ^ h>>29) * p3
	return h ^ h>>32
}

func TestChecksumsAgreeWithNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := object(t)
		for _, a := range Checksums() {
			if got, want := ChecksumOf(a, p), naive(a, p); got != want {
				t.Fatalf("%s of %d bytes: got %#x, want %#x", ChecksumName(a), len(p), got, want)
			}
		}
	})
}

// object is either any bytes, or many equal ones, which drive the deferred reductions to their bounds.
func object(t *rapid.T) []byte {
	if rapid.Bool().Draw(t, "any") {
		return rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "bytes")
	}
	return bytes.Repeat([]byte{rapid.SampledFrom([]byte{0, 1, 0x7f, 0xff}).Draw(t, "byte")},
		rapid.IntRange(0, 3*fletcherBlock+40).Draw(t, "length"))
}

func TestSplitsDoNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := object(t)
		cuts := rapid.SliceOfN(rapid.IntRange(0, 40), 0, 20).Draw(t, "cuts")
		for _, a := range Checksums() {
			want := ChecksumOf(a, p)
			d := NewChecksummer(a)
			_, _ = d.Write([]byte("something else"))
			d.Reset()
			var parts [][]byte
			rest := p
			for _, n := range cuts {
				n = min(n, len(rest))
				parts = append(parts, rest[:n])
				_, _ = d.Write(rest[:n])
				rest = rest[n:]
				if got := d.Sum64(); got != ChecksumOf(a, p[:len(p)-len(rest)]) {
					t.Fatalf("%s: on the way at %d: %#x", ChecksumName(a), len(p)-len(rest), got)
				}
			}
			dst := make([]byte, len(rest))
			if n := d.Copy(dst, rest); n != len(rest) || !bytes.Equal(dst, rest) {
				t.Fatalf("%s: copied %d of %d", ChecksumName(a), n, len(rest))
			}
			if got := d.Sum64(); got != want {
				t.Fatalf("%s: pieces and a copy give %#x, want %#x", ChecksumName(a), got, want)
			}
			if got := ChecksumOf(a, append(parts, rest)...); got != want {
				t.Fatalf("%s: parts give %#x, want %#x", ChecksumName(a), got, want)
			}
		}
	})
}

func TestChecksumIgnoresSplits(t *testing.T) {
	p := pattern(70)
	for _, a := range Checksums() {
		want := ChecksumOf(a, p)
		for i := range len(p) + 1 {
			for j := i; j <= len(p); j++ {
				if got := ChecksumOf(a, p[:i], p[i:j], p[j:]); got != want {
					t.Fatalf("%s cut at %d and %d: got %#x, want %#x", ChecksumName(a), i, j, got, want)
				}
			}
		}
	}
}

func TestCopiedChecksummerIsIndependent(t *testing.T) {
	p := pattern(50)
	for _, a := range Checksums() {
		d := NewChecksummer(a)
		_, _ = d.Write(p[:21])
		e := *d
		_, _ = e.Write([]byte("other"))
		_, _ = d.Write(p[21:])
		if got, want := d.Sum64(), ChecksumOf(a, p); got != want {
			t.Errorf("%s: a copy changed it: got %#x, want %#x", ChecksumName(a), got, want)
		}
	}
}

func TestCopyIsBounded(t *testing.T) {
	d := NewChecksummer(DefaultChecksum)
	dst := make([]byte, 5)
	if n := d.Copy(dst, []byte("123456789")); n != 5 || string(dst) != "12345" || d.Sum64() != ChecksumOf(DefaultChecksum, dst) {
		t.Errorf("copied %d: %q", n, dst)
	}
	if n := d.Copy(make([]byte, 9), nil); n != 0 || d.Algorithm() != DefaultChecksum {
		t.Errorf("copied %d of nothing with %s", n, ChecksumName(d.Algorithm()))
	}
}

func TestSingleBitErrorsAreFound(t *testing.T) {
	for _, size := range []int{1, 3, 4, 8, 13, 64, 1400} {
		p := pattern(size)
		for _, a := range Checksums() {
			want := ChecksumOf(a, p)
			for bit := range 8 * size {
				p[bit/8] ^= 1 << (bit % 8)
				if got := ChecksumOf(a, p); (got == want) != (a == none) {
					t.Fatalf("%s: bit %d of %d bytes flipped: %#x, was %#x", ChecksumName(a), bit, size, got, want)
				}
				p[bit/8] ^= 1 << (bit % 8)
			}
		}
	}
}

func TestChecksumNamesRoundTrip(t *testing.T) {
	for _, a := range Checksums() {
		if got, err := ParseChecksum(ChecksumName(a)); err != nil || got != a || !KnownChecksum(a) {
			t.Errorf("%s: got %v, %v", ChecksumName(a), got, err)
		}
		if _, ok := lofamov1.Checksum_name[int32(a)]; !ok {
			t.Errorf("%s is not on the wire", ChecksumName(a))
		}
	}
	if len(Checksums()) != len(lofamov1.Checksum_name) {
		t.Errorf("%d algorithms, the wire has %d", len(Checksums()), len(lofamov1.Checksum_name))
	}
	for _, bad := range []string{"", "CRC32C", "md5"} {
		if _, err := ParseChecksum(bad); err == nil || !strings.Contains(err.Error(), "crc32c") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if got := ChecksumName(99); got != "checksum(99)" || KnownChecksum(99) || KnownChecksum(-1) {
		t.Errorf("99 is %s", got)
	}
}

func TestStrongestCommonChecksumIsChosen(t *testing.T) {
	list := func(a ...lofamov1.Checksum) []lofamov1.Checksum { return a }
	for _, tc := range []struct {
		offered, allowed []lofamov1.Checksum
		want             lofamov1.Checksum
	}{
		{list(sum64, crc32c), list(crc32c, sum64), sum64},
		{list(sum64, adler), list(adler), adler},
		{list(none), list(none, crc32c), none},
		{list(none), list(adler), crc32c},
		{list(99, xxhash64), list(99, xxhash64), xxhash64},
		{nil, nil, crc32c},
	} {
		if got := ChooseChecksum(tc.offered, tc.allowed); got != tc.want {
			t.Errorf("offered %v, allowed %v: got %s, want %s", tc.offered, tc.allowed, ChecksumName(got), ChecksumName(tc.want))
		}
	}
}

func TestSumDoesNotAllocate(t *testing.T) {
	p := pattern(1400)
	for _, a := range Checksums() {
		if n := testing.AllocsPerRun(20, func() { ChecksumOf(a, p[:100], p[100:]) }); n != 0 {
			t.Errorf("%s: %v allocations", ChecksumName(a), n)
		}
	}
}

func pattern(n int) []byte {
	p := make([]byte, n)
	x := uint32(1)
	for i := range p {
		x = x*1664525 + 1013904223
		p[i] = byte(x >> 24)
	}
	return p
}

// BenchmarkSum is Figure 4 of seed 002: blocks of 32 kB that are in the cache.
func BenchmarkSum(b *testing.B) {
	p := pattern(32 << 10)
	for _, a := range Checksums() {
		b.Run(ChecksumName(a), func(b *testing.B) {
			b.SetBytes(int64(len(p)))
			for b.Loop() {
				ChecksumOf(a, p)
			}
		})
	}
}

// BenchmarkCopy copies blocks of 32 kB, which stay in the cache in any case, and whole objects of the
// largest size, which do not: "only" does not sum, "then" sums in a second pass over the copy,
// "folded" is Checksummer.Copy (seed 002 §5.1).
func BenchmarkCopy(b *testing.B) {
	for _, size := range []int{32 << 10, 64 << 20} {
		src, dst := pattern(size), make([]byte, size)
		run := func(name string, do func()) {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				b.SetBytes(int64(size))
				for b.Loop() {
					do()
				}
			})
		}
		run("only", func() { copy(dst, src) })
		for _, a := range Checksums()[1:] {
			d := NewChecksummer(a)
			run("then/"+ChecksumName(a), func() { copy(dst, src); _, _ = d.Write(dst) })
			run("folded/"+ChecksumName(a), func() { d.Copy(dst, src) })
		}
	}
}
