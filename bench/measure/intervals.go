package measure

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Intervals counts events by intervals of width. The first interval begins at time 0, and the last one contains end.
// Events outside are ignored.
func Intervals(at []time.Duration, width, end time.Duration) []int {
	out := make([]int, int(end/width)+1)
	for _, t := range at {
		if i := int(t / width); t >= 0 && i < len(out) {
			out[i]++
		}
	}
	return out
}

// LongestSilence is the longest time from one happening to the next, between from and to; both ends
// count as happenings.
func LongestSilence(at []time.Duration, from, to time.Duration) time.Duration {
	in := []time.Duration{from, to}
	for _, t := range at {
		if t > from && t < to {
			in = append(in, t)
		}
	}
	slices.Sort(in)
	var longest time.Duration
	for i := 1; i < len(in); i++ {
		longest = max(longest, in[i]-in[i-1])
	}
	return longest
}

// LongestRun is the greatest number of intervals in a row without anything.
func LongestRun(counts []int) int {
	longest, run := 0, 0
	for _, n := range counts {
		if run++; n > 0 {
			run = 0
		}
		longest = max(longest, run)
	}
	return longest
}

// Plot draws counts as bars, one line an interval; the times are the intervals' beginnings, relative to zero.
func Plot(counts []int, width, zero time.Duration, bar int) string {
	most := max(1, slices.Max(counts))
	var b strings.Builder
	for i, n := range counts {
		t := time.Duration(i)*width - zero
		fmt.Fprintf(&b, "%+6d ms %4d %s\n", t.Milliseconds(), n, strings.Repeat("#", (n*bar+most-1)/most))
	}
	return b.String()
}
