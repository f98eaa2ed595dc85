package actions

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// policy simulates a cpufreq policy of the kernel. The lowest request counts, rounded to what the hardware has.
type policy struct {
	Frequency
	request uint64 // by scaling_max_freq, of the last writer
	cooling uint64 // the kernel's own, visible in a cooling device; 0: none
	hidden  uint64 // of a driver that shows nothing; 0: none
	step    uint64 // the hardware has the highest and multiples of this; 0: all
}

func (p *policy) read() Frequency {
	f := p.Frequency
	f.Limit = p.request
	if p.cooling != 0 {
		f.Limit, f.Throttled = min(f.Limit, p.cooling), fmt.Sprint(p.cooling)
	}
	if p.hidden != 0 {
		f.Limit = min(f.Limit, p.hidden)
	}
	if p.step != 0 && f.Limit < f.Max {
		f.Limit -= f.Limit % p.step
	}
	f.Limit = max(f.Limit, f.Min)
	return f
}

// sysfs holds the simulated policies.
type sysfs map[string]*policy

func (s sysfs) list() (out []Frequency) {
	for _, name := range []string{"policy0", "policy4"} {
		if f := s[name]; f != nil {
			out = append(out, f.read())
		}
	}
	return out
}

func machine() sysfs {
	return sysfs{
		"policy0": {Frequency: Frequency{Policy: "policy0", Min: 800_000, Max: 4_000_000}, request: 4_000_000},
		"policy4": {Frequency: Frequency{Policy: "policy4", Min: 400_000, Max: 2_000_000}, request: 1_500_000},
	}
}

// run does the work of a runner: store, write, store. It stops after the given number of steps, like a killed process,
// and reports whether the limit was refused.
func run(s sysfs, l *Ledger, owner string, percent, steps int) (refused bool) {
	step := func() bool { steps--; return steps >= 0 }
	write := func(writes []Write) bool {
		for _, w := range writes {
			if !step() {
				return false
			}
			s[w.Policy].request = w.KHz
		}
		return true
	}
	l.Seen(s.list())
	if doubts := l.Doubt(s.list()); len(doubts) > 0 {
		var ours []Write
		for _, d := range doubts {
			ours = append(ours, d.Write)
		}
		if !write(ours) {
			return false
		}
		theirs := Raised(doubts, s.list())
		if !write(theirs) || !step() {
			return false
		}
		l.Settle(theirs, owner)
	}
	undo := percent == 0
	var writes []Write
	var left []Limit
	if undo {
		left, writes, _, _ = Unlimit(l.Limits, s.list(), nil, owner)
		if !step() {
			return false
		}
		l.Limits = Until(l.Limits, left, writes)
	} else {
		after, w, err := Limits(l.Limits, s.list(), l.Unlimited, owner, percent)
		if err != nil {
			return true
		}
		if !step() {
			return false
		}
		l.Limits, writes = after, w
	}
	before := map[string]uint64{}
	for _, w := range writes {
		before[w.Policy] = s[w.Policy].read().Limit
	}
	if !write(writes) || !step() {
		return false
	}
	for _, w := range writes {
		khz := s[w.Policy].read().Limit
		l.Written(w.Policy, khz, khz == w.KHz || khz != before[w.Policy])
	}
	if undo {
		l.PutBack(left, writes)
	}
	return false
}

const all = 1 << 20

func (s sysfs) want(t *testing.T, p0, p4 uint64) {
	t.Helper()
	if s["policy0"].request != p0 || s["policy4"].request != p4 {
		t.Errorf("%s, %s: requested %d and %d: want %d and %d", s["policy0"].read(), s["policy4"].read(), s["policy0"].request,
			s["policy4"].request, p0, p4)
	}
}

func TestLowestFrequencyLimitApplies(t *testing.T) {
	s, l := machine(), &Ledger{}
	run(s, l, "a/0", 50, all)
	s.want(t, 2_000_000, 1_000_000)
	run(s, l, "a/0", 50, all) // repeated: no change
	s.want(t, 2_000_000, 1_000_000)
	run(s, l, "b/0", 80, all) // another step wants a weaker limit
	s.want(t, 2_000_000, 1_000_000)
	run(s, l, "a/0", 0, all)
	s.want(t, 3_200_000, 1_500_000) // policy4 was as low before
	run(s, l, "b/0", 0, all)
	s.want(t, 4_000_000, 1_500_000)
	run(s, l, "c/0", 10, all) // no lower than the hardware
	s.want(t, 800_000, 400_000)
	run(s, l, "c/0", 0, all)
	s.want(t, 4_000_000, 1_500_000)
	if len(l.Limits) != 0 {
		t.Errorf("left: %+v", l.Limits)
	}
}

// A value that another party has set since belongs to that party.
func TestFrequencySetByOthersIsKept(t *testing.T) {
	s, l := machine(), &Ledger{}
	run(s, l, "a/0", 50, all)
	s["policy0"].request = 1_200_000
	run(s, l, "a/0", 0, all)
	s.want(t, 1_200_000, 1_500_000)
	run(s, l, "b/0", 50, all) // already lower
	s.want(t, 1_200_000, 1_000_000)
	s["policy0"].request = 3_000_000
	run(s, l, "c/0", 50, all) // from the other party's value
	s.want(t, 2_000_000, 1_000_000)
	run(s, l, "c/0", 0, all)
	run(s, l, "b/0", 0, all)
	s.want(t, 3_000_000, 1_500_000)
}

// The hardware may not have the exact requested frequency. The rounded value is still ours, even if its writer ended
// before reading it.
func TestRoundedFrequencyIsStillOurs(t *testing.T) {
	for steps := range 8 {
		s, l := machine(), &Ledger{}
		for _, p := range s {
			p.step = 300_000
		}
		run(s, l, "a/0", 50, steps)
		run(s, l, "a/0", 50, all)
		s.want(t, 2_000_000, 1_000_000)
		if f := s.list(); f[0].Limit != 1_800_000 || f[1].Limit != 900_000 {
			t.Fatalf("%v", f)
		}
		if _, again, err := Limits(l.Limits, s.list(), nil, "a/0", 50); len(again) != 0 || err != nil {
			t.Errorf("written again: %v, %v", again, err)
		}
		if d := l.Doubt(s.list()); len(d) != 0 {
			t.Errorf("in doubt: %v", d)
		}
		run(s, l, "a/0", 0, all)
		s.want(t, 4_000_000, 1_500_000)
	}
}

// The kernel throttles below our limit: the limit is still ours, and the undo restores the earlier request, not the
// throttled value.
func TestThrottledBelowOurs(t *testing.T) {
	for _, hidden := range []bool{false, true} {
		s, l := machine(), &Ledger{}
		run(s, l, "a/0", 50, all)
		if hidden {
			s["policy0"].hidden = 1_200_000
		} else {
			s["policy0"].cooling = 1_200_000
		}
		run(s, l, "b/0", 80, all)
		run(s, l, "c/0", 40, all)
		s.want(t, 1_600_000, 800_000)
		run(s, l, "c/0", 0, all)
		s.want(t, 2_000_000, 1_000_000)
		run(s, l, "a/0", 0, all)
		s.want(t, 3_200_000, 1_500_000)
		run(s, l, "b/0", 0, all)
		s.want(t, 4_000_000, 1_500_000)
		if len(l.Limits) != 0 {
			t.Errorf("left: %+v", l.Limits)
		}
	}
}

// A value read while the kernel throttles is not a request: the value seen before counts. Without one the limit is
// refused, and nothing changes.
func TestThrottledValueIsNoRequest(t *testing.T) {
	s, l := machine(), &Ledger{}
	l.Seen(s.list())
	s["policy0"].cooling = 1_200_000
	run(s, l, "a/0", 50, all) // the kernel throttles for now; the limit remains after it has cooled down
	s.want(t, 2_000_000, 1_000_000)
	s["policy0"].cooling = 0
	run(s, l, "a/0", 0, all)
	s.want(t, 4_000_000, 1_500_000)

	l = &Ledger{}
	s["policy0"].cooling = 1_200_000
	if _, _, err := Limits(l.Limits, s.list(), l.Unlimited, "a/0", 50); !errors.Is(err, ErrThrottled) ||
		!strings.Contains(err.Error(), "policy0 at 1200000 of 4000000 kHz") {
		t.Errorf("%v", err)
	}
	if !run(s, l, "a/0", 50, all) || len(l.Limits) != 0 {
		t.Errorf("%+v", l.Limits)
	}
	s.want(t, 4_000_000, 1_500_000)
	s["policy0"].cooling = 4_000_000 // a cooling device in use without an effect: the value read was requested
	if run(s, l, "a/0", 50, all) {
		t.Error("refused")
	}
	s.want(t, 2_000_000, 1_000_000)
}

// Another party sets less than our limit, and the process that detects this is killed at any step: the value stays the
// other party's.
func TestLowerLimitOfAnotherPartySurvivesKills(t *testing.T) {
	for steps := range 20 {
		for _, cooling := range []uint64{0, 1_500_000} {
			s, l := machine(), &Ledger{}
			run(s, l, "a/0", 50, all)
			s["policy0"].request = 1_200_000
			if steps > 5 || cooling == 0 { // values read while the kernel throttles are not stored
				s["policy0"].cooling = cooling
			}
			run(s, l, "a/0", 0, steps)
			run(s, l, "a/0", 0, all)
			s.want(t, 1_200_000, 1_500_000)
			if len(l.Limits) != 0 {
				t.Errorf("killed after %d steps: left: %+v", steps, l.Limits)
			}
		}
	}
}

// The kernel cools down exactly while the origin of a limit is being checked: its throttled value is not put back for
// anyone.
func TestCoolsDownMeanwhile(t *testing.T) {
	s, l := machine(), &Ledger{}
	run(s, l, "a/0", 50, all)
	s["policy0"].cooling = 1_200_000
	doubts := l.Doubt(s.list())
	if len(doubts) != 1 || doubts[0].Lower != 1_200_000 {
		t.Fatalf("%+v", doubts)
	}
	s["policy0"].cooling = 0
	if theirs := Raised(doubts, s.list()); len(theirs) != 0 {
		t.Errorf("%v", theirs)
	}
	run(s, l, "a/0", 0, all) // also when the checking process is killed
	s.want(t, 4_000_000, 1_500_000)
}

// The undo of one of several limits ends between storing and writing; the next attempt writes it.
func TestInterruptedUndoOfOne(t *testing.T) {
	for steps := range 6 {
		s, l := machine(), &Ledger{}
		run(s, l, "a/0", 50, all)
		run(s, l, "b/0", 80, all)
		run(s, l, "a/0", 0, steps)
		run(s, l, "a/0", 0, all)
		s.want(t, 3_200_000, 1_500_000)
		run(s, l, "b/0", 0, all)
		s.want(t, 4_000_000, 1_500_000)
	}
}

// A process that limits may end between any two of its steps, any number of times, while the kernel throttles and cools
// down. While steps want limits, exactly the lowest is requested. When all limits have been put back, every policy is
// as before, and the ledger keeps nothing.
func TestKilledRunnerAlwaysRestoresFrequencies(t *testing.T) {
	refused := 0
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 1))
		s, l := machine(), &Ledger{}
		if seed%2 == 0 {
			s["policy0"].step, s["policy4"].step = 100_000, 300_000
		}
		if seed%4 != 0 {
			l.Seen(s.list())
		}
		var log strings.Builder
		weather := func() {
			if seed%3 == 0 {
				return
			}
			p := s[[]string{"policy0", "policy4"}[r.IntN(2)]]
			if slices.ContainsFunc(l.Limits, func(l Limit) bool { return l.Policy == p.Policy && l.Lower != 0 }) {
				return // a hidden throttle that ends unobserved counts as another party's request
			}
			p.cooling, p.hidden = 0, 0
			switch khz := p.Min + r.Uint64N(p.Max-p.Min); r.IntN(4) {
			case 0:
				p.cooling = khz
			case 1:
				p.hidden = khz
			default:
			}
			fmt.Fprintf(&log, " %s cooling %d hidden %d,", p.Policy, p.cooling, p.hidden)
		}
		run := func(owner string, percent, steps int) bool {
			for _, p := range s { // before a limit, a hidden throttle counts as another party's request
				if !slices.ContainsFunc(l.Limits, func(l Limit) bool { return l.Policy == p.Policy }) {
					p.hidden = 0
				}
			}
			return run(s, l, owner, percent, steps)
		}
		weather()
		wanted := map[string]int{}
		for range 8 {
			owner := fmt.Sprintf("%c/0", 'a'+rune(r.IntN(3)))
			percent := wanted[owner]
			if percent == 0 {
				percent = []int{30, 50, 80}[r.IntN(3)]
			}
			if r.IntN(3) == 0 {
				percent = 0
			}
			for range r.IntN(3) {
				n := r.IntN(9)
				fmt.Fprintf(&log, " %s %d%% for %d steps,", owner, percent, n)
				run(owner, percent, n)
				weather()
			}
			fmt.Fprintf(&log, " %s %d%%,", owner, percent)
			if run(owner, percent, all) {
				refused++
				run(owner, 0, all) // like the engine: it puts back what may have been done
				percent = 0
			}
			if delete(wanted, owner); percent != 0 {
				wanted[owner] = percent
			}
			want0, want4 := uint64(4_000_000), uint64(1_500_000)
			for _, p := range wanted {
				want0, want4 = min(want0, 40_000*uint64(p)), min(want4, 20_000*uint64(p))
			}
			if s["policy0"].request != want0 || s["policy4"].request != want4 {
				t.Fatalf("seed %d:%s: requested %d, %d: want %d, %d: %+v", seed, &log, s["policy0"].request, s["policy4"].request, want0, want4,
					l.Limits)
			}
		}
		for _, owner := range []string{"a/0", "b/0", "c/0"} {
			run(owner, 0, all)
		}
		if s["policy0"].request != 4_000_000 || s["policy4"].request != 1_500_000 || len(l.Limits) != 0 {
			t.Fatalf("seed %d:%s: %d, %d, kept %+v", seed, &log, s["policy0"].request, s["policy4"].request, l.Limits)
		}
	}
	if refused == 0 {
		t.Error("none was refused: the kernel never throttled before a limit")
	}
}
