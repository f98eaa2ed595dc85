package compare

import (
	"math/rand/v2"
	"slices"

	"github.com/lofamo/lofamo/bench/measure"
)

// Spread summarises samples.
type Spread struct {
	N           int
	Median, P99 float64
	Interval    bool    // there is one
	Low, High   float64 // 95 % bootstrap interval of the median
}

const (
	resamples = 2000
	// leastForP99 is the number of samples below which a 99th percentile is only the maximum.
	leastForP99 = 100
	// leastForInterval is the number of samples below which even the range of all holds the median in less than 95 of
	// 100 cases.
	leastForInterval = 6
)

// SpreadOf computes the spread of samples; the zero Spread without any. The interval is the percentile bootstrap with
// 2,000 resamples of a fixed seed, so that the same samples always give the same text. Few samples have no interval.
func SpreadOf(samples []float64) Spread {
	if len(samples) == 0 {
		return Spread{}
	}
	out := Spread{N: len(samples), Median: median(samples), P99: measure.Quantile(samples, .99)}
	if len(samples) < leastForInterval {
		return out
	}
	rnd := rand.New(rand.NewPCG(1, 19))
	medians := make([]float64, resamples)
	again := make([]float64, len(samples))
	for i := range medians {
		for j := range again {
			again[j] = samples[rnd.IntN(len(samples))]
		}
		medians[i] = median(again)
	}
	out.Interval, out.Low, out.High = true, measure.Quantile(medians, .025), measure.Quantile(medians, .975)
	return out
}

// median is the mean of the two middle samples.
func median(samples []float64) float64 {
	s := slices.Sorted(slices.Values(samples))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}
