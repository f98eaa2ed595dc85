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

func piece(commit string, seed uint64) Piece {
	return Piece{
		Commit: commit, Lanes: "one system after the other", Seed: seed, Begun: time.Unix(1e9, 0), Took: time.Minute, Machine: "2 × test",
		LoadFrom: "1 2 3", LoadTo: "4 5 6", Beside: "compilers", Kills: 20, Limit: time.Minute, Steady: 5 * time.Second,
	}
}

func example() Run {
	r := Run{
		Short: true, Pieces: []Piece{piece("0123abc", 7)}, Namespace: "a namespace", LeftOut: []string{"third: no program"},
		Systems: []System{{Name: "our|s", Version: "v1"}, {Name: "peer", Version: "v2", Settings: "a\nb"}},
	}
	for _, c := range []Cell{
		{System: "peer", Members: 8, Load: Load{Loops: 4}, Kills: append(kills(5000), Kill{3, time.Second, Missed}), False: 2,
			Observed: 90 * time.Second, Failure: "no\nleader"},
		{System: "peer", Members: 8, Kills: append(kills(6000, 7000, 5000), Kill{3, Missed, Missed}, Kill{4, Missed, Missed})},
		{System: "peer", Members: 27, Kills: append(kills(1000, 1000, 1000, 1000, 1000), Kill{5, Missed, Missed})},
		{System: "peer", Members: 64},
		{System: "our|s", Members: 8, Kills: kills(90, 110, 100, 100, 100, 100), CPU: .125, Bytes: 1234, Memory: 45.25e6,
			Note: "preset default"},
	} {
		r.Add(c)
	}
	return r
}

func TestPageHasEveryResultAndFailure(t *testing.T) {
	page := example().Page()
	for _, want := range []string{
		"**short form**", "Isolation: a namespace.",
		"| 1 | `0123abc` | 2001-09-09 01:46 UTC | 1m0s | 1 2 3; 4 5 6 | compilers | 20 | 1m0s | 5s | 7 | one system after the other | 2 × test |",
		"| 0 loops | 8 | our\\|s | 2001-09-09 `0123abc` | 6 | 50 [48, 52], 55 | 100 [95, 105], 110 | 0 | 0 in 0s | 12.5 | 1234 | 45.2 |",
		"| 4 loops | 8 | peer (**broke off**) | 2001-09-09 `0123abc` | 2 | 1750 [–], 2500 | > limit [–], > limit | 1 | 2 in 1m30s | – | – | – |",
		"| 0 loops | 8 | peer | 2001-09-09 `0123abc` | 5 | 3500 [–], > limit | 7000 [–], > limit | 2 | 0 in 0s |",
		"| 0 loops | 27 | peer | 2001-09-09 `0123abc` | 6 | 500 [500, > limit], > limit | 1000 [1000, > limit], > limit | 1 | 0 in 0s |",
		"| 0 loops | 64 | peer | 2001-09-09 `0123abc` | 0 | – | – | 0 | 0 in 0s |", "\npeer               no kill\n",
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
		`{"cells":[{"system":"x"}],"systems":[]}`:             `cells[0].system "x": want the name of one of the systems`,
		`{"cells":[{"system":"x"}],"systems":[{"name":"x"}]}`: `cells[0].piece 0: want 0 to -1`,
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %q", text, err, want)
		}
	}
}

// whole is a run of the whole form with one system and one cell of each given size.
func whole(commit string, members ...int) Run {
	r := Run{Pieces: []Piece{piece(commit, 1)}, Systems: []System{{Name: "peer", Version: "version of " + commit, Settings: "defaults"}}}
	for _, m := range members {
		r.Add(Cell{System: "peer", Members: m, Kills: kills(1000 * m)})
	}
	return r
}

func TestLaterPieceKeepsCellsThatItDoesNotMeasure(t *testing.T) {
	r, err := whole("aaa1111").Continue(whole("0001111", 8, 27))
	if err != nil {
		t.Fatal(err)
	}
	r.Add(Cell{System: "peer", Members: 27, Failure: "no leader"})
	r.Add(Cell{System: "peer", Members: 64, Load: Load{Loops: 4}, Kills: kills(64)})
	page := r.Page()
	for _, want := range []string{
		"| 1 | `0001111` |", "| 2 | `aaa1111` |", "| 0 loops | 8 | peer | 2001-09-09 `0001111` | 1 |",
		"| 0 loops | 27 | peer (**broke off**) | 2001-09-09 `aaa1111` | 0 |", "| 4 loops | 64 | peer | 2001-09-09 `aaa1111` | 1 |",
		"| peer | version of 0001111, version of aaa1111 | defaults |", "9 of the plan's 12 cells have not been measured yet:",
		"- 64 members, 0 loops: all systems\n", "- 64 members, 20 % loss: all systems\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	for _, bad := range []string{"27000", "- 64 members, 4 loops: all", "- 8 members, 0 loops"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q:\n%s", bad, page)
		}
	}
	if r.Has("peer", Condition{Members: 64}) || !r.Has("peer", Condition{Members: 27}) {
		t.Error("the cell of 64 members without load is there, or that of 27 is not")
	}

	// A piece whose cells were all measured again is no longer on the page.
	r.Add(Cell{System: "peer", Members: 8, Kills: kills(8)})
	if page := r.Page(); strings.Contains(page, "0001111") {
		t.Errorf("the page names a piece without cells:\n%s", page)
	}
}

func TestPieceWithOtherSystemsKeepsTheFirst(t *testing.T) {
	now := Run{Pieces: []Piece{piece("aaa1111", 1)}, Systems: []System{{Name: "other", Version: "v9"}}}
	r, err := now.Continue(whole("0001111", 8))
	if err != nil {
		t.Fatal(err)
	}
	r.Add(Cell{System: "other", Members: 8, Kills: kills(10)})
	b, err := r.Record()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| 0 loops | 8 | other |", "| 0 loops | 8 | peer |", "- 8 members, 4 loops: all systems",
		"22 of the plan's 24"} {
		if page := again.Page(); !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}

func TestRunDoesNotContinueWhatCannotStandBeside(t *testing.T) {
	short, changed := whole("0001111"), whole("0001111", 8)
	short.Short = true
	changed.Systems[0].Settings = "tuned"
	for want, earlier := range map[string]Run{
		"one of the runs is of the short form":            short,
		"peer has other settings, observers or processes": changed,
	} {
		if _, err := whole("aaa1111").Continue(earlier); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
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
	golden.Page(t, pageFile, []byte(r.Page()), *render, "go test ./bench/compare -run Document -render")
	if golden.FirstDifference(r.Page()+"\nWritten by hand.\n", r.Page()) == "" {
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
