package inject

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/timeplot"
)

// The drawn part of a stream.
const (
	drawnBefore   = 200 * time.Millisecond
	drawnInterval = 50 * time.Millisecond
)

// stream writes the courses of streams through flips in their sending path: the paper's Figure 3.
func (r *streamRecord) stream(b *bytes.Buffer) {
	fmt.Fprintf(b, "## A stream through a flip in its sending path (Figure 3)\n\nThe paper's Figure 3 shows (a) the latency of messages and "+
		"(b) the bandwidth after a bit flip in one of the two sending paths of a network\nprocessor. The bandwidth fell greatly, and "+
		"messages were sent again and came late. The processor reported no error, so applications\nwent on as if nothing had "+
		"happened.\n\nHere the host half of one node makes a report for each change of a temperature, one every %s, and sends it to a "+
		"supervisor. The\ncampaign flips one bit of the %d bytes of machine code that hand a datagram of the direct rail to the kernel, "+
		"and watches for %s. If the\nhalf is still the same process then, the campaign restarts it. A seed chooses the bits. "+
		"`make campaign-stream` repeats it.\n\n"+
		"Commit %s, seed %d, begun %s, took %s, on %s;\nload averages before and after: %s; %s.",
		r.Every, r.Bytes, streamAfter, r.Commit, r.Seed, r.Begun.Format("2006-01-02 15:04 MST"), r.Took, r.Machine, r.Load, r.LoadAfter)
	if r.Nice > 0 {
		fmt.Fprintf(b, " The processes of the cluster ran at nice %d beside\nthat load, which delays single reports in all courses.", r.Nice)
	}
	b.WriteString("\n\n")
	if r.Failed {
		b.WriteString("**The run broke a promise: see lost and doubled below.**\n\n")
	}
	fmt.Fprintf(b, "Reports of the whole run: %d kept, %d replaced by others, %d lost, %d doubled.\n\nThe table has the first flip with each "+
		"effect. The latency of a report is the time from the half's log line *reports kept* to the leader's\nline *report taken*, when the "+
		"leader answers RECEIVED. *Before* is the second before the flip, *after* the two seconds after it. Times\ncount from the flip.\n\n",
		r.Reports.Kept, r.Reports.Replaced, r.Reports.Lost, r.Reports.Doubled)
	r.effects(b)
	var latency, count int // the full bars, the same in all courses
	for _, x := range r.Flips {
		latency, count = max(latency, slices.Max(x.latencies())), max(count, slices.Max(x.counts()))
	}
	for _, x := range r.inOrder() {
		x.draw(b, latency, count)
	}
}

// inOrder returns the flips in the order of their effects.
func (r *streamRecord) inOrder() []streamFlip {
	return slices.SortedFunc(slices.Values(r.Flips), func(a, b streamFlip) int {
		return slices.Index(effects, a.Effect) - slices.Index(effects, b.Effect)
	})
}

// effects writes the table of effects.
func (r *streamRecord) effects(b *bytes.Buffer) {
	total := 0
	for _, n := range r.Effects {
		total += n
	}
	b.WriteString("| effect | flips | first: number, place | found first by | found | serving again | latency before: median, slowest | " +
		"latency after: median, slowest | made a second: before, after | RECEIVED a second: before, after | longest time without RECEIVED |\n" +
		"|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, x := range r.inOrder() {
		before, after, received := x.split()
		var made []time.Duration
		for _, p := range x.Reports {
			made = append(made, p.made)
		}
		found := "–"
		if x.Found != "" {
			found = x.Found
		}
		fmt.Fprintf(b, "| %s | %s | %d, `%s` | %s | %s | %s | %s | %s | %s | %s | %s |\n", x.Effect, percent(r.Effects[x.Effect], total),
			x.Number, x.Place, found, ms(x.Detect), ms(x.Serving), medianAndSlowest(before), medianAndSlowest(after), rates(made),
			rates(received),
			ms(timeplot.LongestSilence(received, 0, streamAfter)))
	}
	fmt.Fprintf(b, "\n*In time* means within the %s; then the campaign restarts the half. In the courses, each line is an interval "+
		"of %s. The first\nbar is (a): the highest latency of the reports made in it, in ms; a dash means that the half made none. The "+
		"second bar is (b): the\nreports RECEIVED in it. A half makes no report while it does not run: the "+
		"next report has the newest\nstate. Where a half made fewer reports after the flip than before, (b) falls with them; the cause was not "+
		"measured.", streamAfter, drawnInterval)
	if slices.ContainsFunc(r.Flips, func(x streamFlip) bool { return strings.HasPrefix(x.Found, "service-network ") }) {
		b.WriteString(" Where the map\nnames the service network, the direct rail gave no answer. " +
			"The outbox tried it for about 60 ms and then " +
			"sent each report again by gossip\nor through the torus. As in the paper, messages then come late for as long as the half " +
			"goes on. Unlike " +
			"in the paper, the map names a\nfault.")
	}
	b.WriteString("\n\n")
}

// rates returns the events a second before and after the flip.
func rates(at []time.Duration) string {
	before, after := 0, 0
	for _, t := range at {
		switch {
		case t >= -streamBefore && t < 0:
			before++
		case t >= 0 && t < streamAfter:
			after++
		}
	}
	return fmt.Sprintf("%.0f, %.0f", float64(before)/streamBefore.Seconds(), float64(after)/streamAfter.Seconds())
}

func medianAndSlowest(d []time.Duration) string {
	return ms(quantile(d, .5)) + ", " + ms(quantile(d, 1))
}

// draw writes the course of a stream, with full bars for a latency in milliseconds and a number of reports.
func (x streamFlip) draw(b *bytes.Buffer, latency, count int) {
	fmt.Fprintf(b, "Flip %d, effect: %s.\n\n```\n%s```\n\n", x.Number, x.Effect,
		timeplot.Plot(drawnInterval, drawnBefore, x.marks(), timeplot.Column{Values: x.latencies(), Bar: 40, Full: latency},
			timeplot.Column{Values: x.counts(), Bar: 20, Full: count}))
}

// counts returns the number of reports RECEIVED in each interval.
func (x streamFlip) counts() []int {
	var received []time.Duration
	for _, p := range x.Reports {
		received = append(received, p.received+drawnBefore)
	}
	return timeplot.Intervals(received, drawnInterval, drawnBefore+streamAfter-1)
}

// latencies returns the slowest RECEIVED of the reports made in each interval, in milliseconds and rounded up; None
// where the half made none.
func (x streamFlip) latencies() []int {
	out := slices.Repeat([]int{timeplot.None}, intervalOf(streamAfter))
	for _, p := range x.Reports {
		if i := intervalOf(p.made); i >= 0 && i < len(out) {
			took := p.received - p.made
			out[i] = max(out[i], int((took+time.Millisecond-1)/time.Millisecond))
		}
	}
	return out
}

// intervalOf returns the number of the drawn interval of a time; negative: it is before all of them.
func intervalOf(at time.Duration) int {
	if at += drawnBefore; at < 0 {
		return -1
	}
	return int(at / drawnInterval)
}

// marks returns the events of a course, by the interval.
func (x streamFlip) marks() map[int]string {
	out := map[int]string{}
	for _, e := range []struct {
		name string
		at   time.Duration
	}{{"flip", 0}, {"found", x.Detect}, {"serving again", x.Serving}} {
		if e.name != "flip" && e.at == 0 {
			continue
		}
		if i := intervalOf(e.at); out[i] == "" {
			out[i] = e.name
		} else {
			out[i] += ", " + e.name
		}
	}
	return out
}

// passing returns reports that were RECEIVED took after they were made.
func passing(took time.Duration, made ...time.Duration) (out []passage) {
	for _, at := range made {
		out = append(out, passage{at, at + took, at + took + time.Millisecond})
	}
	return out
}

const msec = time.Millisecond

// bars is a line of a drawn course.
func bars(at int, latency string, long, count, wide int, mark string) string {
	l := fmt.Sprintf("\n%+6d ms %4s %-40s %4d %s", at, latency, strings.Repeat("#", long), count, strings.Repeat("#", wide))
	if mark != "" {
		l += strings.Repeat(" ", 20-wide) + mark
	}
	return l + "\n"
}

func TestStreamDocumentDrawsLatencyThroughputAndMarks(t *testing.T) {
	r := streamRecord{Nice: 19, Bytes: 100, Every: 25 * msec, Effects: map[effect]int{streamNone: 3, streamCrash: 1}, Flips: []streamFlip{
		{Effect: streamNone, Place: "a.go:1, bit 1 of 0x1", Number: 1, Reports: passing(2*msec, -10*msec, 10*msec)},
		{Effect: streamCrash, Place: "b.go:2, bit 2 of 0x2", Number: 4, Found: "exit", Detect: 20 * msec, Serving: 130 * msec,
			Reports: append(passing(2*msec, -60*msec, -30*msec), passing(120*msec, 10*msec)...)},
	}}
	r.Begun, r.Failed = time.Unix(0, 0).UTC(), true
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var kept streamRecord
	if err := json.Unmarshal(b, &kept); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	kept.stream(&text)
	for _, want := range []string{"nice 19", "**The run broke a promise", "one every 25ms",
		"| the half ended, and its daemon restarted it | 1 (25.0 %) | 4, `b.go:2, bit 2 of 0x2` | exit | 20 ms | 130 ms | " +
			"2.0 ms, 2.0 ms | 120 ms, 120 ms | 2, 0 | 2, 0 | 1870 ms |\n| none | 3 (75.0 %) | 1, ",
		bars(-100, "2", 1, 1, 20, ""), bars(-50, "2", 1, 1, 20, ""), bars(0, "120", 40, 0, 0, " ← flip, found"),
		bars(50, "–", 0, 0, 0, ""), bars(100, "–", 0, 1, 20, " ← serving again"), bars(1950, "–", 0, 0, 0, "")} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the document lacks %q:\n%s", want, text.String())
		}
	}
	if strings.Contains(text.String(), "sent each report again") {
		t.Errorf("no flip silenced the direct rail, but the document explains that:\n%s", text.String())
	}
	kept.Flips[0].Found = "service-network SICK, by TORUS (answers are missing)"
	text.Reset()
	if kept.stream(&text); !strings.Contains(text.String(), "sent each report again") {
		t.Errorf("the document does not explain the late reports:\n%s", text.String())
	}
	if crash, none := strings.Index(text.String(), "Flip 4"), strings.Index(text.String(), "Flip 1,"); crash < 0 || none < crash {
		t.Errorf("the courses are not in the order of effects:\n%s", text.String())
	}
}

func TestEffectOfFlipOnStream(t *testing.T) {
	for _, tc := range []struct {
		ours            detector
		restarted, late bool
		want            effect
	}{
		{byExit, true, true, streamCrash}, {byWatchdog, true, false, streamHang}, {bySelfTest, true, true, streamTested},
		{bySelfTest, false, true, streamNamed}, {byPeer, false, false, streamNamed}, {"", false, true, streamLate},
		{"", false, false, streamNone},
	} {
		got := effectOf(tc.ours, tc.restarted, tc.late)
		if got != tc.want {
			t.Errorf("%q, restarted %t, late %t: %s, want %s", tc.ours, tc.restarted, tc.late, got, tc.want)
		}
		if !slices.Contains(effects, got) {
			t.Errorf("the document has no place for %s", got)
		}
	}
}

func TestReportsAreLateByTheirMedian(t *testing.T) {
	for _, tc := range []struct {
		name          string
		before, after time.Duration
		slow          int // of five reports after the flip; the others take before
		want          bool
	}{
		{"one delay", msec, time.Second, 1, false},
		{"most", msec, 21 * msec, 3, true},
		{"most, and within the least", msec, 20 * msec, 3, false},
		{"most, on a slow machine", 10 * msec, 30 * msec, 3, false},
		{"most, beyond a slow machine", 10 * msec, 31 * msec, 3, true},
	} {
		x := streamFlip{Reports: passing(tc.before, -time.Second, -500*msec)}
		for i := range 5 {
			took := tc.before
			if i < tc.slow {
				took = tc.after
			}
			x.Reports = append(x.Reports, passing(took, time.Duration(i)*msec)...)
		}
		if got := x.late(); got != tc.want {
			t.Errorf("%s: late is %t", tc.name, got)
		}
	}
}

func TestSteadyStreamHasNeitherGapsNorDelays(t *testing.T) {
	var made []time.Duration
	for i := range 40 {
		made = append(made, -time.Duration(i)*25*msec)
	}
	for _, tc := range []struct {
		name    string
		reports []passage
		want    bool
	}{
		{"whole", passing(msec, made...), true},
		{"with a gap", passing(msec, made[:29]...), false},
		{"with a delay", append(passing(msec, made[1:]...), passing(21*msec, 0)...), false},
		{"empty", nil, false},
	} {
		if got := isSteady(tc.reports, 25*msec, steadyWithin); got != tc.want {
			t.Errorf("%s: steady is %t", tc.name, got)
		}
	}
}

func TestTracksFollowReportsThroughBothLogs(t *testing.T) {
	flip := time.Unix(100, 0).UTC()
	line := func(after time.Duration, rest string) string {
		return fmt.Sprintf(`{"time":%q,%s}`+"\n", flip.Add(after).Format(time.RFC3339Nano), rest)
	}
	own, supervisor := t.TempDir()+"/host.log", t.TempDir()+"/supervisor.log"
	const early = `"msg":"reports kept","reports":["n#0"]`
	skipped := line(-500*msec, early)
	if err := os.WriteFile(own, []byte(skipped+line(-1100*msec, `"msg":"reports kept","reports":["n#1"]`)+
		line(-10*msec, `"msg":"reports kept","reports":["n#2","n#3"]`)+"panic: no JSON\n"+
		line(20*msec, `"msg":"reports kept","reports":["n#4","n#5"]`)+line(30*msec, `"msg":"reports replaced","reports":["n#4"]`)+
		line(2100*msec, `"msg":"reports kept","reports":["n#6"]`)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(supervisor, []byte(line(-5*msec, `"msg":"report taken","report":"n#2"`)+
		line(40*msec, `"msg":"report taken","report":"n#3"`)+
		line(50*msec, `"msg":"report taken","report":"n#3"`)+line(60*msec, `"msg":"reports committed","reports":["n#2","n#3"]`)+
		line(70*msec, `"msg":"report taken","report":"n#5"`)), 0o600); err != nil {
		t.Fatal(err)
	}
	tr, err := readTracks(own, int64(len(skipped)), supervisor, 0)
	if err != nil {
		t.Fatal(err)
	}
	reports, replaced, open := tr.around(flip)
	want := []passage{{-10 * msec, -5 * msec, 60 * msec}, {-10 * msec, 40 * msec, 60 * msec}}
	slices.SortFunc(reports, func(a, b passage) int { return int(a.received - b.received) })
	if !slices.Equal(reports, want) || replaced != 1 || open != 1 {
		t.Errorf("reports %v, want %v; %d replaced and %d open, want one each", reports, want, replaced, open)
	}
}

func TestDamagedPassageIsRefused(t *testing.T) {
	var p passage
	if err := p.UnmarshalText([]byte("1 2")); err == nil {
		t.Error("a passage without its last time was accepted")
	}
}
