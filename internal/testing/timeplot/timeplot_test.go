package timeplot

import (
	"slices"
	"testing"
	"time"
)

const ms = time.Millisecond

func TestIntervals(t *testing.T) {
	at := []time.Duration{-1 * ms, 0, 9 * ms, 10 * ms, 31 * ms, 39 * ms, 55 * ms}
	if got, want := Intervals(at, 10*ms, 39*ms), []int{2, 1, 0, 2}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got, want := Intervals(nil, 10*ms, 10*ms), []int{0, 0}; !slices.Equal(got, want) {
		t.Errorf("of nothing: got %v, want %v", got, want)
	}
}

func TestLongestSilence(t *testing.T) {
	at := []time.Duration{90 * ms, 10 * ms, 40 * ms, 20 * ms} // in any order
	for _, tc := range []struct{ from, to, want time.Duration }{
		{0, 100 * ms, 50 * ms},
		{15 * ms, 40 * ms, 20 * ms},
		{41 * ms, 45 * ms, 4 * ms}, // nothing between: the whole
		{30 * ms, 30 * ms, 0},
	} {
		if got := LongestSilence(at, tc.from, tc.to); got != tc.want {
			t.Errorf("from %s to %s: got %s, want %s", tc.from, tc.to, got, tc.want)
		}
	}
}

func TestLongestRun(t *testing.T) {
	for _, tc := range []struct {
		counts []int
		want   int
	}{{nil, 0}, {[]int{1, 2}, 0}, {[]int{0, 1, 0, 0, 3, 0}, 2}, {[]int{0, 0, 0}, 3}} {
		if got := LongestRun(tc.counts); got != tc.want {
			t.Errorf("%v: got %d, want %d", tc.counts, got, tc.want)
		}
	}
}

func TestPlotOfOneColumn(t *testing.T) {
	const want = "   -10 ms    4 ####\n    +0 ms    0 \n   +10 ms    1 #\n"
	if got := Plot(10*ms, 10*ms, nil, Column{Values: []int{4, 0, 1}, Bar: 4}); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := Plot(10*ms, 0, nil, Column{Values: []int{0}, Bar: 4}); got != "    +0 ms    0 \n" {
		t.Errorf("of nothing: got %q", got)
	}
}

func TestPlotAlignsColumnsAndMarks(t *testing.T) {
	const want = "   -10 ms    1 #       2 #\n" +
		"    +0 ms    –         0    ← flip\n" +
		"   +10 ms    4 ####    1 #\n"
	got := Plot(10*ms, 10*ms, map[int]string{1: "flip"}, Column{Values: []int{1, None, 4}, Bar: 4},
		Column{Values: []int{2, 0, 1}, Bar: 2, Full: 4})
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
