// Package measure turns samples into the published figures, and reads the costs of processes and links. It starts
// nothing and decides nothing; cmd/lofamo-bench does.
package measure

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Latencies are samples of one kind.
type Latencies []time.Duration

// Quantile returns the smallest sample that at least the share q (0 to 1) of the samples do not
// exceed; zero without samples.
func Quantile[T cmp.Ordered](samples []T, q float64) T {
	if len(samples) == 0 {
		var none T
		return none
	}
	s := slices.Sorted(slices.Values(samples))
	i := int(q*float64(len(s))+0.9999999) - 1
	return s[min(max(i, 0), len(s)-1)]
}

// Quantile is the function of that name on l.
func (l Latencies) Quantile(q float64) time.Duration { return Quantile(l, q) }

// Median returns the 0.5 quantile.
func (l Latencies) Median() time.Duration { return l.Quantile(0.5) }

// P99 returns the 0.99 quantile.
func (l Latencies) P99() time.Duration { return l.Quantile(0.99) }

// Max returns the largest sample.
func (l Latencies) Max() time.Duration { return l.Quantile(1) }

// Millis prints a duration in milliseconds with one decimal, "-" for none.
func Millis(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", float64(d)/float64(time.Millisecond))
}

// Micros prints a duration in microseconds with one decimal.
func Micros(d time.Duration) string {
	return fmt.Sprintf("%.1f", float64(d)/float64(time.Microsecond))
}

// Over returns how much longer d is than the bound, in percent; 0 without a bound.
func Over(d, bound time.Duration) float64 {
	if bound == 0 {
		return 0
	}
	return 100 * (float64(d)/float64(bound) - 1)
}
