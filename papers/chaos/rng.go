package chaos

import "math/bits"

// dice is SplitMix64: the model draws some numbers in every cycle of every router that has a choice, and pure
// packages import no generator.
type dice struct{ state uint64 }

func (d *dice) next() uint64 {
	d.state += 0x9e3779b97f4a7c15
	z := d.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below draws from 0 to n-1. The bias is under n/2^64.
func (d *dice) below(n int) int {
	hi, _ := bits.Mul64(d.next(), uint64(n))
	return int(hi)
}

// chance is true with probability p.
func (d *dice) chance(p float64) bool { return float64(d.next()>>11)*(1.0/(1<<53)) < p }

// bit draws one of the bits that are set in m, which is not 0. A single one costs no number.
func (d *dice) bit(m uint32) int {
	if m&(m-1) == 0 {
		return bits.TrailingZeros32(m)
	}
	for k := d.below(bits.OnesCount32(m)); k > 0; k-- {
		m &= m - 1
	}
	return bits.TrailingZeros32(m)
}
