package compare

import (
	"flag"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/golden"
)

const (
	recordFile = "testdata/compare.json"
	pageFile   = "../../docs/compare.md"
)

var render = flag.Bool("render", false, "write docs/compare.md from its record")

func kills(ms ...int) (out []Kill) {
	for i, d := range ms {
		out = append(out, Kill{Member: i, First: time.Duration(d) * time.Millisecond / 2, All: time.Duration(d) * time.Millisecond})
	}
	return out
}

func example() Run {
	return Run{
		Commit: "0123abc", Short: true, Lanes: "one system after the other", Seed: 7, Begun: time.Unix(1e9, 0), Took: time.Minute,
		Machine: "2 × test", LoadFrom: "1 2 3", LoadTo: "4 5 6", Beside: "compilers", Limit: time.Minute, Steady: 5 * time.Second,
		Systems: []System{{Name: "our|s", Version: "v1"}, {Name: "peer", Version: "v2", Settings: "a\nb"}},
		Cells: []Cell{
			{System: "peer", Members: 8, Load: Load{Loops: 4}, Kills: append(kills(5000), Kill{3, time.Second, Missed}), False: 2,
				Observed: 90 * time.Second, Failure: "no\nleader"},
			{System: "peer", Members: 8, Kills: append(kills(6000, 7000, 5000), Kill{3, Missed, Missed}, Kill{4, Missed, Missed})},
			{System: "peer", Members: 27, Kills: append(kills(1000, 1000, 1000, 1000, 1000), Kill{5, Missed, Missed})},
			{System: "peer", Members: 64},
			{System: "our|s", Members: 8, Kills: kills(90, 110, 100, 100, 100, 100), CPU: .125, Bytes: 1234, Memory: 45.25e6,
				Note: "preset default"},
		},
		LeftOut: []string{"third: no program"},
	}
}

func TestPageHasEveryResultAndFailure(t *testing.T) {
	page := example().Page()
	for _, want := range []string{
		"**short form**", "| seed | 7 |", "| other work on the machine | compilers |",
		"| 0 loops | 8 | our\\|s | 6 | 50 [48, 52], 55 | 100 [95, 105], 110 | 0 | 0 in 0s | 12.5 | 1234 | 45.2 |",
		"| 4 loops | 8 | peer (**broke off**) | 2 | 1750 [–], 2500 | > limit [–], > limit | 1 | 2 in 1m30s | – | – | – |",
		"| 0 loops | 8 | peer | 5 | 3500 [–], > limit | 7000 [–], > limit | 2 | 0 in 0s |",
		"| 0 loops | 27 | peer | 6 | 500 [500, > limit], > limit | 1000 [1000, > limit], > limit | 1 | 0 in 0s |",
		"| 0 loops | 64 | peer | 0 | – | – | 0 | 0 in 0s |", "\npeer               no kill\n",
		"- peer, 8 members, 4 loops, after 2 kills: no leader", "- not run: third: no program", "| peer | v2 | a b |",
		"- our|s, 8 members: preset default.",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	if strings.Index(page, "| 0 loops | 8 | our") > strings.Index(page, "| 0 loops | 8 | peer") {
		t.Error("the cells are not in the order of the systems")
	}
}

func TestRecordPrintsTheSamePage(t *testing.T) {
	b, err := example().Record()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if line := golden.FirstDifference(again.Page(), example().Page()); line != "" {
		t.Error(line)
	}
	for text, want := range map[string]string{
		"{": "unexpected end",
		`{"cells":[{"system":"x"}],"systems":[]}`: `cells[0].system "x": want the name of one of the systems`,
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q", text, err, want)
		}
	}
}

// TestDocumentIsWhatIsPrinted: docs/compare.md equals the output for the record of its run, so no number or sentence in
// it is written by hand. With -render the test writes the file.
func TestDocumentIsWhatIsPrinted(t *testing.T) {
	b, err := os.ReadFile(recordFile)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if *render {
		if err := os.WriteFile(pageFile, []byte(r.Page()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(pageFile)
	if err != nil {
		t.Fatal(err)
	}
	if line := golden.FirstDifference(string(got), r.Page()); line != "" {
		t.Errorf("docs/compare.md is not what its record prints: %s", line)
	}
	if golden.FirstDifference(string(got)+"\nWritten by hand.\n", r.Page()) == "" {
		t.Error("a line written by hand is not noticed")
	}
	if r.Short {
		t.Error("docs/compare.md is of the short form: want the whole form")
	}
}

func TestSpread(t *testing.T) {
	if s := SpreadOf(nil); s != (Spread{}) {
		t.Errorf("without samples: %+v", s)
	}
	if s := SpreadOf([]float64{5}); s != (Spread{N: 1, Median: 5, P99: 5}) {
		t.Errorf("one sample: %+v", s)
	}
	var samples []float64
	for i := range 1001 {
		samples = append(samples, float64((i*7919)%1001))
	}
	s := SpreadOf(samples)
	// The exact 95 % interval by order statistics is 500 ± 31.
	if s.Median != 500 || s.P99 != 990 || s.Low < 460 || s.Low > 480 || s.High < 520 || s.High > 540 {
		t.Errorf("of 0 to 1000: %+v", s)
	}
	if again := SpreadOf(samples); again != s {
		t.Errorf("the same samples give %+v and %+v", s, again)
	}
	if s := SpreadOf([]float64{7, 7, 7, 7, 7}); s != (Spread{N: 5, Median: 7, P99: 7}) {
		t.Errorf("an interval of five samples: %+v", s)
	}
	if s := SpreadOf([]float64{7, 7, 7, 7, 7, 7}); s != (Spread{N: 6, Median: 7, P99: 7, Interval: true, Low: 7, High: 7}) {
		t.Errorf("six samples: %+v", s)
	}
	if s := SpreadOf([]float64{1, 2, 3, 10}); s.Median != 2.5 {
		t.Errorf("median of an even number of samples: %v: want 2.5", s.Median)
	}
}

func TestBarsStayOnTheAxis(t *testing.T) {
	for _, c := range []struct {
		s    Spread
		want string
	}{
		{Spread{}, "no kill"},
		{Spread{N: 2, Median: 100, P99: math.Inf(1)}, strings.Repeat(" ", 15) + "o" + strings.Repeat(" ", 44) + "9"},
		{Spread{N: 9, Median: math.Inf(1), Interval: true, Low: 50000, High: math.Inf(1), P99: math.Inf(1)},
			strings.Repeat(" ", 55) + "=====o"},
		{Spread{N: 9, Interval: true, Median: 100, Low: 50, High: 200, P99: 1000},
			strings.Repeat(" ", 10) + "=====o=====" + strings.Repeat(" ", 9) + "9"},
		{Spread{N: 9, Interval: true, Median: 1, Low: 1, High: 1, P99: 1e9}, "o" + strings.Repeat(" ", 59) + "9"},
	} {
		if got := bar(c.s); got != c.want {
			t.Errorf("%+v:\n%s|\nwant\n%s|", c.s, got, c.want)
		}
	}
	if a := axis(); strings.Index(a, "|1 s") != 30 || strings.Index(a, "|100 s") != 60 {
		t.Errorf("axis:\n%s", a)
	}
}
