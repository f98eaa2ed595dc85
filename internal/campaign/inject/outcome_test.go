package inject

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/cluster"
)

// detector is the mechanism that noticed a fault. The zero value means none.
type detector string

const (
	byGuard    detector = "guard/CRC"
	byWatchdog detector = "watchdog"
	bySelfTest detector = "self-test"
	byExit     detector = "exit"
	byPeer     detector = "peer"
	byFile     detector = "owner's look"
)

// sample is one fault and its outcome.
type sample struct {
	what     string           // for display: place and method
	node     cluster.NodeInfo // the node, for a real process
	applied  bool             // it changed something; a bit stuck at its own value does not
	touched  bool             // the damaged item was in use
	harmed   bool             // it is effective by nature, even if no observer was fast enough to notice
	quiet    bool             // it had no effect, though we may have found it
	ours     detector
	prober   bool          // the prober noticed a false statement or an absence
	detect   time.Duration // from the injection to our detection
	recover  time.Duration // from the injection to the full recovery
	healed   bool          // it fully recovered
	lost     int           // reports
	doubled  int
	category category // of Table 1
}

// category is a row of the paper's Table 1.
type category string

const (
	catCrash     category = "Half crashed (paper: host computer crash)"
	catHang      category = "Hung, found by a watchdog"
	catSend      category = "Send/receive failures"
	catMailbox   category = "Mailbox and register path (paper: DMA failures)"
	catControl   category = "Corrupted control information"
	catMessage   category = "Corrupted message"
	catLatency   category = "Unusual latency"
	catNoImpact  category = "No impact"
	catUndefined category = ""
)

// categories in the paper's order, with its counts: send_chunk, registers, entire code segment.
var categories = []struct {
	name  category
	paper [3]string
}{
	{catCrash, [3]string{"7 (0.7 %)", "46 (24.0 %)", "8 (0.56 %)"}},
	{catHang, [3]string{"128 (12.1 %)", "10 (5.2 %)", "24 (1.68 %)"}},
	{catSend, [3]string{"151 (14.3 %)", "0", "21 (1.47 %)"}},
	{catMailbox, [3]string{"21 (2.0 %)", "26 (13.5 %)", "12 (0.84 %)"}},
	{catControl, [3]string{"0", "3 (1.6 %)", "1 (0.07 %)"}},
	{catMessage, [3]string{"5 (0.5 %)", "45 (23.4 %)", "8 (0.56 %)"}},
	{catLatency, [3]string{"107 (10.1 %)", "0", "14 (0.98 %)"}},
	{catNoImpact, [3]string{"637 (60.3 %)", "62 (32.3 %)", "1342 (93.85 %)"}},
}

// outcome is the result of a sample.
type outcome string

const (
	noImpact   outcome = "no impact" // no observer noticed, and the damaged item was not in use
	masked     outcome = "masked"    // the item was in use, and its copy or guard gave the right value
	detected   outcome = "detected"  // we noticed
	undetected outcome = "missed"    // the prober noticed and we did not
)

func (s sample) outcome() outcome {
	switch {
	case s.ours != "":
		return detected
	case s.prober, s.harmed:
		return undetected
	case s.touched:
		return masked
	default:
		return noImpact
	}
}

// class is the tally of a class of faults.
type class struct {
	name       string
	outcomes   map[outcome]int
	by         map[detector]int
	cats       map[category]int
	n          int
	effective  int // the prober noticed, or would have: the base of the coverage
	covered    int // the part of these that we detected
	proberOf   int // the part of the effective ones that the prober noticed itself
	unhealed   []string
	missed     []string
	lost       int
	doubled    int
	detects    []time.Duration
	recovers   []time.Duration
	took       time.Duration
	seed       uint64
	strict     int // the part of the prober's that we detected
	notes      []string
	chances    bool // detection depends on the load of the machine
	foundQuiet int  // found without an effect: not in the base of the coverage
	apart      bool // reported separately: missed samples do not fail the test
}

func newClass(name string, seed uint64) *class {
	return &class{name: name, seed: seed, outcomes: map[outcome]int{}, by: map[detector]int{}, cats: map[category]int{}}
}

// add counts a sample. Faults that changed nothing do not count.
func (c *class) add(s sample) {
	if !s.applied {
		return
	}
	c.n++
	o := s.outcome()
	c.outcomes[o]++
	if s.ours != "" {
		c.by[s.ours]++
		c.detects = append(c.detects, s.detect)
	}
	if s.quiet && s.ours != "" {
		c.foundQuiet++
	}
	if !s.quiet && (s.prober || s.harmed || s.ours != "") {
		c.effective++
		if s.ours != "" {
			c.covered++
		}
		if s.prober {
			c.proberOf++
			if s.ours != "" {
				c.strict++
			}
		}
		if s.healed {
			c.recovers = append(c.recovers, s.recover)
		}
	}
	if o == undetected {
		c.missed = append(c.missed, s.what)
	}
	if !s.healed {
		c.unhealed = append(c.unhealed, s.what)
	}
	if s.category == catUndefined || !s.prober && !s.harmed {
		s.category = catNoImpact // from the users' point of view
	}
	c.cats[s.category]++
	c.lost += s.lost
	c.doubled += s.doubled
}

// interval returns the 95 % Wilson interval of a share k of n. It is correct for shares near 1, where the usual
// interval is 100 to 100 %.
func interval(k, n int) (lo, hi float64) {
	if n == 0 {
		return 0, 1
	}
	const z = 1.959964
	p, f := float64(k)/float64(n), float64(n)
	centre := (p + z*z/(2*f)) / (1 + z*z/f)
	half := z / (1 + z*z/f) * math.Sqrt(p*(1-p)/f+z*z/(4*f*f))
	return max(0, centre-half), min(1, centre+half)
}

func TestConfidenceIntervalOfShare(t *testing.T) {
	for _, tc := range []struct {
		k, n   int
		lo, hi float64
	}{
		{0, 0, 0, 1}, {0, 10, 0, 0.2775}, {10, 10, 0.7225, 1}, {5, 10, 0.2366, 0.7634}, {3000, 3000, 0.99872, 1}, {281, 286, 0.95974, 0.99251},
	} {
		lo, hi := interval(tc.k, tc.n)
		if math.Abs(lo-tc.lo) > 5e-5 || math.Abs(hi-tc.hi) > 5e-5 {
			t.Errorf("%d of %d: %.5f to %.5f, want %.5f to %.5f", tc.k, tc.n, lo, hi, tc.lo, tc.hi)
		}
	}
}

// share formats k of n with its interval.
func share(k, n int) string {
	if n == 0 {
		return "–"
	}
	lo, hi := interval(k, n)
	return fmt.Sprintf("%.2f %% (%d of %d; %.2f to %.2f)", 100*float64(k)/float64(n), k, n, 100*lo, 100*hi)
}

// quantile returns a quantile of durations; 0 if there are none.
func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	d = slices.Sorted(slices.Values(d))
	return d[min(len(d)-1, int(math.Ceil(q*float64(len(d))))-min(1, int(math.Ceil(q*float64(len(d))))))]
}

func TestQuantilesOfDurations(t *testing.T) {
	var d []time.Duration
	if quantile(d, 0.5) != 0 {
		t.Error("of none")
	}
	for i := range 100 {
		d = append(d, time.Duration(100-i))
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 50, 0.99: 99, 1: 100} {
		if got := quantile(d, q); got != want {
			t.Errorf("%v: %d, want %d", q, got, want)
		}
	}
}

func TestOutcomesAreCountedByKind(t *testing.T) {
	c := newClass("x", 1)
	for _, s := range []sample{
		{what: "a", applied: true, healed: true},
		{what: "b", applied: true, touched: true, healed: true},
		{what: "c", applied: true, ours: byGuard, prober: true, healed: true, detect: 3, category: catControl},
		{what: "d", applied: true, prober: true, healed: true},
		{what: "e", applied: true, ours: byExit, lost: 2},
		{what: "nothing"},
	} {
		c.add(s)
	}
	if c.n != 5 || c.effective != 3 || c.covered != 2 || c.proberOf != 2 || c.lost != 2 {
		t.Errorf("%+v", c)
	}
	if !slices.Equal(c.missed, []string{"d"}) || !slices.Equal(c.unhealed, []string{"e"}) {
		t.Errorf("missed %v, unhealed %v", c.missed, c.unhealed)
	}
	for o, n := range map[outcome]int{noImpact: 1, masked: 1, detected: 2, undetected: 1} {
		if c.outcomes[o] != n {
			t.Errorf("%s: %d, want %d", o, c.outcomes[o], n)
		}
	}
	if c.cats[catNoImpact] != 4 || c.cats[catControl] != 1 {
		t.Errorf("%v", c.cats)
	}
}

// byWhom formats detectors, the most frequent first.
func byWhom(by map[detector]int) string {
	var parts []string
	for _, d := range slices.SortedFunc(maps.Keys(by),
		func(a, b detector) int { return cmp.Or(by[b]-by[a], strings.Compare(string(a), string(b))) }) {
		parts = append(parts, fmt.Sprintf("%s %d", d, by[d]))
	}
	if len(parts) == 0 {
		return "–"
	}
	return strings.Join(parts, ", ")
}
