package measure

import (
	"fmt"
	"math"
	"slices"
)

// Interval is a median and its 95 % confidence interval.
type Interval struct {
	Median, Low, High float64
	N                 int // number of samples
}

// MedianInterval returns the median of samples and its 95 % confidence interval: the order statistics between which
// the median lies with that probability, for any distribution. With fewer than 6 samples there is none, and both
// bounds are infinite.
func MedianInterval(samples []float64) Interval {
	s := slices.Sorted(slices.Values(samples))
	out := Interval{Median: math.NaN(), Low: math.Inf(-1), High: math.Inf(1), N: len(s)}
	if len(s) == 0 {
		return out
	}
	out.Median = (s[(len(s)-1)/2] + s[len(s)/2]) / 2
	if k := signRank(len(s)); k > 0 {
		out.Low, out.High = s[k-1], s[len(s)-k]
	}
	return out
}

// signRank returns the greatest k for which fewer than k of n fair coins come up heads with a probability of at most
// 2.5 %; 0: there is none.
func signRank(n int) int {
	p := math.Exp2(-float64(n)) // of exactly k heads
	for k, sum := 0, 0.0; k < n; k++ {
		if sum += p; sum > 0.025 {
			return k
		}
		p *= float64(n-k) / float64(k+1)
	}
	return 0
}

// Paired holds measurements with and without a feature, taken by turns, so that slow changes affect both alike.
type Paired struct{ Without, With []float64 }

// Add adds one pair.
func (p *Paired) Add(without, with float64) {
	p.Without, p.With = append(p.Without, without), append(p.With, with)
}

// Percent is the difference that it makes, pair by pair, in percent of the median without.
func (p *Paired) Percent() Interval {
	base := MedianInterval(p.Without).Median
	var d []float64
	for i := range p.Without {
		d = append(d, 100*(p.With[i]-p.Without[i])/base)
	}
	return MedianInterval(d)
}

// String prints an interval with one decimal.
func (i Interval) String() string {
	return fmt.Sprintf("%+.1f [%+.1f, %+.1f]", i.Median, i.Low, i.High)
}
