package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/lofamo/lofamo/pkg/fault"
)

var start = time.Unix(1_700_000_000, 0)

func config() Config { return Config{Every: 15 * time.Minute, Timeout: 10 * time.Second, AtOnce: 4} }

func ids(n int) []fault.NodeID {
	var out []fault.NodeID
	for i := range n {
		out = append(out, fault.NodeID(fmt.Sprintf("n%03d", i)))
	}
	return out
}

// world runs a machine against controllers that answer in a given time, or never.
type world struct {
	t     *testing.T
	m     *Machine
	now   time.Time
	takes map[fault.NodeID]time.Duration // to answer; never if negative; default at once
	says  func(fault.NodeID) Answer
	ends  map[fault.NodeID]time.Time // of looks under way
	full  map[fault.NodeID]bool
	looks map[fault.NodeID][]time.Time
	fulls map[fault.NodeID]int
}

func newWorld(t *testing.T, cfg Config, nodes []fault.NodeID) *world {
	t.Helper()
	m, err := New(cfg, start, nodes)
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, m: m, now: start, takes: map[fault.NodeID]time.Duration{}, ends: map[fault.NodeID]time.Time{},
		full:  map[fault.NodeID]bool{},
		looks: map[fault.NodeID][]time.Time{}, fulls: map[fault.NodeID]int{}, says: func(fault.NodeID) Answer { return Answer{Finding: On} }}
}

// until runs the machine to a time. It fails if a controller has two looks at once, or if the machine neither sleeps nor acts.
func (w *world) until(end time.Time) {
	w.t.Helper()
	for steps := 0; ; steps++ {
		if steps > 200_000 {
			w.t.Fatal("the machine does not sleep")
		}
		for id, at := range w.ends {
			if !at.After(w.now) {
				delete(w.ends, id)
				a := w.says(id)
				a.Full = w.full[id]
				w.m.Ended(w.now, id, a)
			}
		}
		asks, wake := w.m.Tick(w.now)
		for _, a := range asks {
			if _, twice := w.ends[a.Node]; twice {
				w.t.Fatalf("%s: two looks at once", a.Node)
			}
			w.looks[a.Node], w.full[a.Node] = append(w.looks[a.Node], w.now), a.Full
			if a.Full {
				w.fulls[a.Node]++
			}
			d := w.takes[a.Node]
			if d < 0 {
				d = 1000 * time.Hour
			}
			w.ends[a.Node] = w.now.Add(d)
		}
		if len(asks) == 0 && !wake.After(w.now) {
			w.t.Fatalf("asks nothing, and wakes at once")
		}
		next := wake
		for _, at := range w.ends {
			next = earlier(next, at)
		}
		if next.After(end) {
			w.now = end
			return
		}
		w.now = next
	}
}

func (w *world) reading(id fault.NodeID) Reading { return w.m.places[id].reading }

func TestScheduleIsSlowForHealthyNodesAndQuickForSuspects(t *testing.T) {
	t.Parallel()
	w := newWorld(t, config(), ids(30))
	w.until(start.Add(time.Hour))
	for _, id := range ids(30) {
		if n := len(w.looks[id]); n < 3 || n > 5 || w.fulls[id] != n {
			t.Errorf("%s: %d looks, %d full, in an hour: want 4, all full", id, n, w.fulls[id])
		}
	}
	if n := slices.IndexFunc(ids(30), func(id fault.NodeID) bool { return w.looks[id][0].Sub(start) > 14*time.Minute }); n < 0 {
		t.Error("the first round is not spread over Every")
	}
	before := len(w.looks["n007"])
	for range 60 { // the leader names its suspects every 5 s
		w.m.Suspects(w.now, []fault.NodeID{"n007", "stranger"})
		w.until(w.now.Add(5 * time.Second))
	}
	if n := len(w.looks["n007"]) - before; n < 29 || n > 31 {
		t.Errorf("%d looks at a suspect in 5 minutes: want one every 10 s", n)
	}
	if n := w.fulls["n007"] - before; n < 4 || n > 6 {
		t.Errorf("%d full looks at a suspect in 5 minutes: want one a minute", n)
	}
	before = len(w.looks["n007"])
	w.until(w.now.Add(10 * time.Minute))
	if n := len(w.looks["n007"]) - before; n > 7 {
		t.Errorf("%d looks in the 10 minutes after a suspect's last naming: want it to end within a minute", n)
	}
}

// TestFlappingNodeGetsNoMoreLooks: a node that becomes a suspect again and again has at most one look in 10 s.
func TestFlappingNodeGetsNoMoreLooks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, config(), ids(1))
	for range 600 {
		w.m.Suspects(w.now, ids(1))
		w.m.places["n000"].suspect = time.Time{} // as if it had expired
		w.until(w.now.Add(time.Second))
	}
	if n := len(w.looks["n000"]); n > 61 {
		t.Errorf("%d looks in 10 minutes: want at most 61", n)
	}
}

// TestHangingControllersDoNotDelayOthers: 20 of 24 suspects' controllers never end a look, not even at its timeout. The others keep
// their pace, and each hanging controller has one look in all.
func TestHangingControllersDoNotDelayOthers(t *testing.T) {
	t.Parallel()
	nodes := ids(24)
	w := newWorld(t, config(), nodes)
	for _, id := range nodes[:20] {
		w.takes[id] = -1
	}
	for range 240 {
		w.m.Suspects(w.now, nodes)
		w.until(w.now.Add(5 * time.Second))
	}
	for _, id := range nodes[:20] {
		r := w.reading(id)
		if len(w.looks[id]) != 1 || r.Finding != Silent || !strings.Contains(r.Detail, "timeout") {
			t.Errorf("%s: %d looks, %+v: want one that ended as silent", id, len(w.looks[id]), r)
		}
	}
	for _, id := range nodes[20:] {
		if n := len(w.looks[id]); n < 100 {
			t.Errorf("%s: %d looks in 20 minutes: want about 120", id, n)
		}
	}
}

// TestSilentControllersBackOff: looks without a plain answer are 20 s apart, then 40 s, 80 s and 2 minutes, below the age at which
// conditions expire. A plain answer ends that.
func TestSilentControllersBackOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t, config(), ids(1))
	answer := Answer{Finding: Silent, Detail: "no route to host"}
	w.says = func(fault.NodeID) Answer { return answer }
	for range 12 * 12 {
		w.m.Suspects(w.now, ids(1))
		w.until(w.now.Add(5 * time.Second))
	}
	var gaps []time.Duration
	at := w.looks["n000"]
	for i := range at[1:] {
		gaps = append(gaps, at[i+1].Sub(at[i]))
	}
	if want := []time.Duration{20 * time.Second, 40 * time.Second, 80 * time.Second, 2 * time.Minute, 2 * time.Minute}; len(gaps) < 5 ||
		!slices.Equal(gaps[:5], want) {
		t.Errorf("pauses %v: want %v", gaps, want)
	}
	since := w.reading("n000").Since
	if since != at[0] || w.reading("n000").Last != 0 {
		t.Errorf("%+v: want silent since %s, and no plain finding", w.reading("n000"), at[0])
	}
	answer = Answer{Finding: Off}
	n := len(at)
	for range 12 * 4 {
		w.m.Suspects(w.now, ids(1))
		w.until(w.now.Add(5 * time.Second))
	}
	if got := len(w.looks["n000"]) - n; got < 10 {
		t.Errorf("%d looks in the 4 minutes after the controller came back: want one every 10 s", got)
	}
	answer = Answer{Finding: Silent}
	w.m.Suspects(w.now, ids(1))
	w.until(w.now.Add(15 * time.Second))
	if r := w.reading("n000"); r.Finding != Silent || r.Last != Off || r.LastAt.IsZero() {
		t.Errorf("%+v: want silent, and off before", r)
	}
}

// TestLateAnswerIsIgnored: the answer of a look that the machine has given up changes nothing, and the next look comes.
func TestLateAnswerIsIgnored(t *testing.T) {
	t.Parallel()
	w := newWorld(t, config(), ids(1))
	w.takes["n000"] = 25 * time.Second
	w.says = func(fault.NodeID) Answer { return Answer{Finding: Off} }
	for range 10 {
		w.m.Suspects(w.now, ids(1))
		w.until(w.now.Add(5 * time.Second))
	}
	if r := w.reading("n000"); r.Finding != Silent || r.Last != 0 {
		t.Errorf("%+v: want silent", r)
	}
	if len(w.looks["n000"]) != 2 {
		t.Errorf("looks at %v: want a second one after the first has ended", w.looks["n000"])
	}
	w.m.Ended(w.now, "stranger", Answer{Finding: Off})
	if len(w.m.places) != 1 {
		t.Error("an answer of a stranger counts")
	}
}

// TestControllerThatFlipsIsNotCredible: power that changes 6 times within 10 minutes is an error until it stops.
func TestControllerThatFlipsIsNotCredible(t *testing.T) {
	t.Parallel()
	w := newWorld(t, config(), ids(1))
	var seen []Finding
	last := On
	flips := true
	w.says = func(fault.NodeID) Answer {
		if flips {
			last = Off + On - last
		}
		return Answer{Finding: last, Health: Critical}
	}
	run := func(d time.Duration) {
		for end := w.now.Add(d); w.now.Before(end); {
			w.m.Suspects(w.now, ids(1))
			w.until(w.now.Add(5 * time.Second))
			if r := w.reading("n000"); len(seen) == 0 || seen[len(seen)-1] != r.Finding {
				seen = append(seen, r.Finding)
			}
		}
	}
	run(5 * time.Minute)
	if want := []Finding{Off, On, Off, On, Off, On, Wrong}; !slices.Equal(seen, want) {
		t.Errorf("findings %v: want %v", seen, want)
	}
	if r := w.reading("n000"); r.Health != 0 || !strings.Contains(r.Detail, "not credible") {
		t.Errorf("%+v: want no health, and the reason", r)
	}
	flips = false
	run(11 * time.Minute)
	if r := w.reading("n000"); r.Finding != last {
		t.Errorf("%+v: want to believe a controller that has stopped", r)
	}
}

// TestAnswersAreBounded: texts without end, control characters, invalid findings and thousands of lines.
func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, config(), ids(1))
	giant := "\x1b[31m" + strings.Repeat("é\u202e\n\xff", 1<<20)
	var many []string
	for i := range 5000 {
		many = append(many, fmt.Sprintf("%d %s", i, giant[:min(len(giant), 2000)]))
	}
	w.says = func(fault.NodeID) Answer {
		return Answer{Finding: On, Health: 77, Detail: giant, Log: slices.Clone(many), Sensors: slices.Clone(many)}
	}
	w.until(start.Add(time.Hour))
	r := w.reading("n000")
	if len(r.Log) != MaxLines || len(r.Sensors) != MaxLines || r.Health != 0 || !strings.HasPrefix(r.Log[7], "4999 ") {
		t.Errorf("%d lines, %d sensors, %s: want 8 each, the newest last", len(r.Log), len(r.Sensors), r.Health)
	}
	for _, s := range slices.Concat(r.Log, r.Sensors, []string{r.Detail}) {
		if len(s) > MaxText || !utf8.ValidString(s) || strings.ContainsAny(s, "\x1b\n\u202e") {
			t.Errorf("%d bytes: %q", len(s), s)
		}
	}
	w.says = func(fault.NodeID) Answer { return Answer{Finding: 200} }
	w.until(start.Add(2 * time.Hour))
	if r := w.reading("n000"); r.Finding != Wrong || len(r.Log) != MaxLines {
		t.Errorf("%+v: want an error, and the log of before", r)
	}
}

func TestLogGrowsAcrossLooks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, config(), ids(1))
	n := 0
	w.says = func(fault.NodeID) Answer { n++; return Answer{Finding: On, Log: []string{fmt.Sprint("entry ", n)}} }
	w.until(start.Add(3 * time.Hour))
	if log := w.reading("n000").Log; len(log) != MaxLines || log[7] != fmt.Sprint("entry ", n) || log[0] != fmt.Sprint("entry ", n-7) {
		t.Errorf("%v: want the last 8 of %d", log, n)
	}
}

// TestAfterReturnsEachReadingOnce: a caller that passes the last version on misses none, and gets none twice.
func TestAfterReturnsEachReadingOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, config(), ids(50))
	w.until(start.Add(16 * time.Minute))
	got := map[fault.NodeID]int{}
	var after uint64
	for range 20 {
		page := w.m.After(after, 7)
		for _, r := range page {
			got[r.Node]++
			if r.Version <= after {
				t.Errorf("version %d after %d", r.Version, after)
			}
			after = r.Version
		}
	}
	for _, id := range ids(50) {
		if got[id] != 1 {
			t.Errorf("%s: %d times", id, got[id])
		}
	}
	if n := w.m.Counts()[On]; n != 50 {
		t.Errorf("%d of 50 are on", n)
	}
}

func TestConfigNamesBadFields(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Every: time.Second, Timeout: time.Hour, AtOnce: 1}, start, nil)
	for _, want := range []string{"every: given 1s: want 1m to 24h", "timeout: given 1h0m0s: want 1s to 1m", "atOnce: given 1: want 2 to 64"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %s", err, want)
		}
	}
}

func FuzzClean(f *testing.F) {
	f.Add("a\x00b\x1b[0m é")
	f.Add(strings.Repeat("x", 159) + "€")
	f.Add(strings.Repeat("x", MaxText-1) + " x") // the cut leaves a space at the end
	f.Fuzz(func(t *testing.T, s string) {
		c := Clean(s)
		if len(c) > MaxText || !utf8.ValidString(c) || strings.ContainsAny(c, "\x00\n\r\x1b") || Clean(c) != c {
			t.Errorf("%q becomes %q", s, c)
		}
	})
}
