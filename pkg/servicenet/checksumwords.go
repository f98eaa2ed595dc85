package servicenet

import "encoding/binary"

// fletcherMod is 2³²-1 (seed 002 §4, its reference [9]).
const fletcherMod = 1<<32 - 1

// fletcherBlock bounds the bytes summed before the sums are reduced: 2,048 words in each of four
// lanes keep the second sums below 2⁵⁴.
const fletcherBlock = 32 << 10

// fletcher is the state of a Fletcher-64 sum; both halves are below the modulus.
type fletcher struct{ first, second uint64 }

func (f *fletcher) sum64() uint64 { return f.second<<32 | f.first }

// add adds the whole words of p and returns the bytes after the last.
func (f *fletcher) add(p []byte) []byte {
	for len(p) >= 16 {
		n := min(len(p), fletcherBlock) &^ 15
		f.addBlock(p[:n])
		p = p[n:]
	}
	for len(p) >= 4 {
		f.first = (f.first + uint64(binary.LittleEndian.Uint32(p))) % fletcherMod
		f.second = (f.second + f.first) % fletcherMod
		p = p[4:]
	}
	return p
}

// addBlock adds a multiple of four words, at most fletcherBlock bytes. Word i goes to lane i mod 4, so
// that four chains of additions run side by side; a lane's own second sum counts its word at
// distance m (in rounds, 1 for the last) m times, where the whole counts it 4m-j times in lane j.
func (f *fletcher) addBlock(p []byte) {
	words := uint64(len(p) / 4)
	var a0, a1, a2, a3, b0, b1, b2, b3 uint64
	for ; len(p) >= 32; p = p[32:] {
		q := p[:32:32]
		x, y := binary.LittleEndian.Uint64(q), binary.LittleEndian.Uint64(q[8:])
		a0 += x & fletcherMod
		a1 += x >> 32
		a2 += y & fletcherMod
		a3 += y >> 32
		b0 += a0
		b1 += a1
		b2 += a2
		b3 += a3
		x, y = binary.LittleEndian.Uint64(q[16:]), binary.LittleEndian.Uint64(q[24:])
		a0 += x & fletcherMod
		a1 += x >> 32
		a2 += y & fletcherMod
		a3 += y >> 32
		b0 += a0
		b1 += a1
		b2 += a2
		b3 += a3
	}
	if len(p) >= 16 {
		a0 += uint64(binary.LittleEndian.Uint32(p))
		a1 += uint64(binary.LittleEndian.Uint32(p[4:]))
		a2 += uint64(binary.LittleEndian.Uint32(p[8:]))
		a3 += uint64(binary.LittleEndian.Uint32(p[12:]))
		b0 += a0
		b1 += a1
		b2 += a2
		b3 += a3
	}
	// b_j ≥ a_j, so the difference is not negative.
	second := 4*(b0+b1+b2+b3) - a1 - 2*a2 - 3*a3
	f.second = (f.second + words*f.first + second) % fletcherMod
	f.first = (f.first + a0 + a1 + a2 + a3) % fletcherMod
}

// sumWords returns the sum of the 64-bit words of p, modulo 2⁶⁴, and the bytes after the last.
func sumWords(p []byte) (sum uint64, rest []byte) {
	var s0, s1, s2, s3 uint64
	for ; len(p) >= 64; p = p[64:] {
		q := p[:64:64]
		s0 += binary.LittleEndian.Uint64(q)
		s1 += binary.LittleEndian.Uint64(q[8:])
		s2 += binary.LittleEndian.Uint64(q[16:])
		s3 += binary.LittleEndian.Uint64(q[24:])
		s0 += binary.LittleEndian.Uint64(q[32:])
		s1 += binary.LittleEndian.Uint64(q[40:])
		s2 += binary.LittleEndian.Uint64(q[48:])
		s3 += binary.LittleEndian.Uint64(q[56:])
	}
	for ; len(p) >= 8; p = p[8:] {
		s0 += binary.LittleEndian.Uint64(p)
	}
	return s0 + s1 + s2 + s3, p
}
