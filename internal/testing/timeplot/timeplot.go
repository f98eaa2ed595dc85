// Package timeplot bins and draws the course of a stream of reports around a fault, as text. The measurements and the
// injection campaign use it.
package timeplot

import (
	"fmt"
	"slices"
	"strconv"
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

// None is a value that a Column does not have.
const None = -1

// Column is one bar of each line of a Plot: a value for each interval, or None.
type Column struct {
	Values []int
	Bar    int // length of the bar of Full
	Full   int // 0: the greatest of the values
}

// Plot draws columns side by side, one line an interval. The times are the beginnings of the intervals, relative to
// zero. A mark is a note at the end of the line with its number.
func Plot(width, zero time.Duration, marks map[int]string, columns ...Column) string {
	var b strings.Builder
	for i := range columns[0].Values {
		var l strings.Builder
		fmt.Fprintf(&l, "%+6d ms", (time.Duration(i)*width - zero).Milliseconds())
		for j, c := range columns {
			room := c.Bar
			if j == len(columns)-1 && marks[i] == "" {
				room = 0
			}
			number, bar := "–", ""
			if n := c.Values[i]; n != None {
				most := max(1, c.Full)
				if c.Full == 0 {
					most = max(1, slices.Max(c.Values))
				}
				number, bar = strconv.Itoa(n), strings.Repeat("#", (n*c.Bar+most-1)/most)
			}
			fmt.Fprintf(&l, " %4s %-*s", number, room, bar)
		}
		if marks[i] != "" {
			l.WriteString(" ← " + marks[i])
		}
		b.WriteString(l.String() + "\n")
	}
	return b.String()
}
