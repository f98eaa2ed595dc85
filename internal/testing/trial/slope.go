package trial

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Sample is a measured value at a time since the begin of the run.
type Sample struct {
	At    time.Duration
	Value float64
}

// Slope returns the slope of the least-squares line through the samples, per hour; 0 without two different times.
func Slope(samples []Sample) float64 {
	var n, x, y, xx, xy float64
	for _, s := range samples {
		h := s.At.Hours()
		n, x, y, xx, xy = n+1, x+h, y+s.Value, xx+h*h, xy+h*s.Value
	}
	if d := n*xx - x*x; d > 1e-12 {
		return (n*xy - x*y) / d
	}
	return 0
}

// Quantile returns the smallest value that at least the share q of the values do not exceed; zero without values.
func Quantile[T cmp.Ordered](values []T, q float64) T {
	if len(values) == 0 {
		var none T
		return none
	}
	s := slices.Sorted(slices.Values(values))
	return s[min(len(s)-1, max(0, int(math.Ceil(q*float64(len(s))))-1))]
}
