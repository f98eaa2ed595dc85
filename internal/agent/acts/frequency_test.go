package acts

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// sysfs is what the kernel has.
type sysfs map[string]*Frequency

func (s sysfs) list() (out []Frequency) {
	for _, name := range []string{"policy0", "policy4"} {
		if f := s[name]; f != nil {
			out = append(out, *f)
		}
	}
	return out
}

func machine() sysfs {
	return sysfs{
		"policy0": {Policy: "policy0", Min: 800_000, Max: 4_000_000, Limit: 4_000_000},
		"policy4": {Policy: "policy4", Min: 400_000, Max: 2_000_000, Limit: 1_500_000},
	}
}

// run makes what a doer makes: keep, write, keep; and ends after so many steps, as one that is killed.
func run(s sysfs, l *Ledger, owner string, percent, steps int) {
	step := func() bool { steps--; return steps >= 0 }
	undo := percent == 0
	var writes []Write
	var left []Limit
	if undo {
		left, writes, _ = Unlimit(l.Limits, s.list(), owner)
		if !step() {
			return
		}
		l.Limits = Until(l.Limits, left, writes)
	} else {
		after, w := Limits(l.Limits, s.list(), owner, percent)
		if !step() {
			return
		}
		l.Limits, writes = after, w
	}
	for _, w := range writes {
		if !step() {
			return
		}
		s[w.Policy].Limit = w.KHz
	}
	if !step() {
		return
	}
	if undo {
		l.Limits = left
	}
	for _, w := range writes {
		l.Written(w.Policy, s[w.Policy].Limit)
	}
}

const all = 1 << 20

func (s sysfs) want(t *testing.T, p0, p4 uint64) {
	t.Helper()
	if s["policy0"].Limit != p0 || s["policy4"].Limit != p4 {
		t.Errorf("%s, %s: want %d and %d", s["policy0"], s["policy4"], p0, p4)
	}
}

func TestLimits(t *testing.T) {
	s, l := machine(), &Ledger{}
	run(s, l, "a/0", 50, all)
	s.want(t, 2_000_000, 1_000_000)
	run(s, l, "a/0", 50, all) // again: the same
	s.want(t, 2_000_000, 1_000_000)
	run(s, l, "b/0", 80, all) // another one wants less of a limit
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

// What somebody else has set since is his.
func TestLimitsOfOthers(t *testing.T) {
	s, l := machine(), &Ledger{}
	run(s, l, "a/0", 50, all)
	s["policy0"].Limit = 1_200_000
	run(s, l, "a/0", 0, all)
	s.want(t, 1_200_000, 1_500_000)
	run(s, l, "b/0", 50, all) // lower already
	s.want(t, 1_200_000, 1_000_000)
	s["policy0"].Limit = 3_000_000
	run(s, l, "c/0", 50, all) // from what he has set
	s.want(t, 2_000_000, 1_000_000)
	run(s, l, "c/0", 0, all)
	run(s, l, "b/0", 0, all)
	s.want(t, 3_000_000, 1_500_000)
}

// The kernel may make another value of what is written: that is still ours.
func TestRounded(t *testing.T) {
	s, l := machine(), &Ledger{}
	after, writes := Limits(l.Limits, s.list(), "a/0", 50)
	l.Limits = after
	for _, w := range writes {
		s[w.Policy].Limit = w.KHz - w.KHz%300_000
		l.Written(w.Policy, s[w.Policy].Limit)
	}
	s.want(t, 1_800_000, 900_000)
	if _, again := Limits(l.Limits, s.list(), "a/0", 50); len(again) != 0 {
		t.Errorf("written again: %v", again)
	}
	run(s, l, "a/0", 0, all)
	s.want(t, 4_000_000, 1_500_000)
}

// Whoever limits may end between any two of its steps, any number of times: when all that was limited has been put back, all is as it was, and nothing is kept.
func TestLimitsAreAlwaysPutBack(t *testing.T) {
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 1))
		s, l := machine(), &Ledger{}
		var log strings.Builder
		wanted := map[string]int{}
		for range 8 {
			owner := fmt.Sprintf("%c/0", 'a'+rune(r.IntN(3)))
			percent := wanted[owner]
			if percent == 0 {
				percent = []int{30, 50, 80}[r.IntN(3)]
			}
			if r.IntN(3) == 0 {
				percent = 0
			} else {
				wanted[owner] = percent
			}
			for range r.IntN(3) {
				n := r.IntN(5)
				fmt.Fprintf(&log, " %s %d%% for %d steps,", owner, percent, n)
				run(s, l, owner, percent, n)
			}
			fmt.Fprintf(&log, " %s %d%%,", owner, percent)
			run(s, l, owner, percent, all)
			if percent == 0 {
				delete(wanted, owner)
			}
			for o, p := range wanted {
				if most := s["policy0"].Max / 100 * uint64(p); s["policy0"].Limit > most {
					t.Fatalf("seed %d:%s: %s, and %s wants %d", seed, &log, s["policy0"], o, most)
				}
			}
		}
		for _, owner := range []string{"a/0", "b/0", "c/0"} {
			run(s, l, owner, 0, all)
		}
		if s["policy0"].Limit != 4_000_000 || s["policy4"].Limit != 1_500_000 || len(l.Limits) != 0 {
			t.Fatalf("seed %d:%s: %s, %s, kept %+v", seed, &log, s["policy0"], s["policy4"], l.Limits)
		}
	}
}
