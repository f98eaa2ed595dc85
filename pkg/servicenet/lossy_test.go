package servicenet

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// lossyLine is a half with one digest every half second, and the faults of its service network from settled on. The
// torus is in order.
type lossyLine struct {
	name        string
	supervisors int     // so many
	interfaces  int     // of the half
	loss        float64 // each way, on the direct rail
	dup         float64
	corrupt     float64
	down        int           // of the supervisors
	delay       int           // at most, in ms, each way; 0: 5
	slow        time.Duration // to answer, but everything is answered
	only        bool          // the first supervisor is slow
	stall       time.Duration // at most: none answers for so long, twice in ten seconds
	reports     time.Duration // between two
}

const (
	settled    = 10 * time.Second
	lossyBound = 40 * time.Second
)

// lossyRun records the half's verdicts on its service network, counted from settled.
type lossyRun struct {
	sick    time.Duration // when it first was SICK; -1: never
	cleared int           // times it was NORMAL after SICK
	total   time.Duration // total time in SICK
}

// play runs until the time has passed, or with first until it is SICK.
func (l lossyLine) play(t *testing.T, seed uint64, d time.Duration, first bool) lossyRun {
	t.Helper()
	w := newWorld(t, seed)
	w.delay, w.commit, w.clean = cmp.Or(l.delay, 5), 20, true
	w.set = func(c *OutboxConfig, s *Supervisors) {
		c.Rails = []fault.Path{fault.PathDirect, fault.PathTorus}
		c.Interfaces = c.Interfaces[:l.interfaces]
		s.Targets = s.Targets[:l.supervisors]
	}
	n := int((settled + d) / max(l.reports, time.Second/100))
	w.wanted, w.committed, w.created = make([]bool, n), make([]uint8, n), make([]time.Duration, n)
	r := lossyRun{sick: -1}
	var state fault.State
	var since time.Duration
	w.changed = func(s fault.State) {
		if state == fault.Sick {
			r.total += w.now - since
			if s == fault.Normal {
				r.cleared++
			}
		}
		if s == fault.Sick && r.sick < 0 {
			r.sick = w.now - settled
		}
		state, since = s, w.now
	}
	w.start()
	for w.now < settled {
		w.next()
	}
	if r.sick >= 0 {
		w.failf("SICK while nothing is wrong")
	}
	l.spoil(w)
	for w.now < settled+d && (!first || r.sick < 0) {
		w.next()
	}
	if state == fault.Sick {
		r.total += w.now - since
	}
	return r
}

func (l lossyLine) spoil(w *world) {
	w.loss, w.dup, w.corrupt = l.loss, l.dup, l.corrupt
	for i := range l.down {
		w.down[i], w.leader = true, l.down
	}
	var until time.Duration
	every := func(most time.Duration, f func()) {
		var again func()
		again = func() {
			f()
			w.after(time.Duration(w.rng.Int64N(int64(most))), again)
		}
		again()
	}
	if l.stall > 0 {
		every(10*time.Second, func() { until = w.now + time.Duration(w.rng.Int64N(int64(l.stall))) })
	}
	if l.reports > 0 {
		every(2*l.reports, func() {
			if w.added < len(w.wanted) {
				w.add()
			}
		})
	}
	w.slow = func(supervisor int) time.Duration {
		if l.only && supervisor > 0 {
			return 0
		}
		return l.slow + max(0, until-w.now)
	}
}

// TestLossyNetworkIsSick: where three packets of ten are lost each way, half of the datagrams stay unanswered, in
// spite of successful retries. The state becomes SICK within lossyBound, and stays so.
func TestLossyNetworkIsSick(t *testing.T) {
	for _, l := range []lossyLine{
		{name: "three supervisors", supervisors: 3, interfaces: 1},
		{name: "two interfaces", supervisors: 3, interfaces: 2},
		{name: "one path", supervisors: 1, interfaces: 1},
		{name: "one supervisor is down", supervisors: 3, interfaces: 1, down: 1},
		{name: "doubled and damaged as well", supervisors: 3, interfaces: 1, dup: 0.1, corrupt: 0.01},
		{name: "busy", supervisors: 3, interfaces: 1, reports: 50 * time.Millisecond},
		{name: "busy with one path", supervisors: 1, interfaces: 1, reports: 50 * time.Millisecond},
	} {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			l.loss = 0.3
			seeds := 100
			if l.reports > 0 {
				seeds = 30 // they take longer
			}
			if testing.Short() {
				seeds = 10
			}
			var took []time.Duration
			for seed := range uint64(seeds) {
				r := l.play(t, seed, lossyBound, true)
				if r.sick < 0 {
					t.Errorf("seed %d: not SICK within %v", seed, lossyBound)
					continue
				}
				took = append(took, r.sick)
			}
			slices.Sort(took)
			at := func(k int) time.Duration { return took[len(took)*k/100].Round(100 * time.Millisecond) }
			t.Logf("SICK after %v in the median, 9 of 10 after %v, %d of %d after %v", at(50), at(90), len(took), seeds, took[len(took)-1])
			for seed := range uint64(seeds / 10) {
				if r := l.play(t, seed, 5*time.Minute, false); r.cleared > 0 {
					t.Errorf("seed %d: it was called NORMAL %d times while it loses packets", seed, r.cleared)
				}
			}
		})
	}
}

// TestLossyNetworkOnBorder: one of ten each way is one of five unanswered. It is SICK now and then, for a small
// part of the time.
func TestLossyNetworkOnBorder(t *testing.T) {
	const seeds, long = 40, 10 * time.Minute
	for _, l := range []lossyLine{
		{name: "three supervisors", supervisors: 3, interfaces: 1},
		{name: "one path", supervisors: 1, interfaces: 1},
	} {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			l.loss = 0.1
			cleared, sick := 0, time.Duration(0)
			for seed := range uint64(seeds) {
				r := l.play(t, seed, long, false)
				cleared += r.cleared
				sick += r.total
			}
			share, perHour := 100*sick.Hours()/(seeds*long.Hours()), float64(cleared)/(seeds*long.Hours())
			t.Logf("SICK for %.1f %% of the time, and NORMAL again %.1f times an hour", share, perHour)
			if share == 0 || share > 20 || perHour > 30 {
				t.Errorf("SICK for %.1f %% of the time, NORMAL again %.1f times an hour: want 0 to 20 %%, and 30 at most", share, perHour)
			}
		})
	}
}

// TestNetworkIsNotLossy: a network that loses little, or is slow, or has a supervisor that is down, is not SICK.
func TestNetworkIsNotLossy(t *testing.T) {
	const seeds, brief, short, long = 10, 20 * time.Second, 2 * time.Minute, 20 * time.Minute
	for _, l := range []struct {
		lossyLine
		each time.Duration
	}{
		{lossyLine{name: "2 %, three supervisors", supervisors: 3, interfaces: 1, loss: 0.02}, long},
		{lossyLine{name: "2 %, two interfaces", supervisors: 3, interfaces: 2, loss: 0.02}, short},
		{lossyLine{name: "2 %, one path", supervisors: 1, interfaces: 1, loss: 0.02}, long},
		{lossyLine{name: "2 %, one supervisor is down", supervisors: 3, interfaces: 1, loss: 0.02, down: 1}, long},
		{lossyLine{name: "2 %, busy", supervisors: 3, interfaces: 1, loss: 0.02, reports: 50 * time.Millisecond}, short},
		{lossyLine{name: "one supervisor is down", supervisors: 3, interfaces: 1, down: 1}, short},
		{lossyLine{name: "two supervisors are down", supervisors: 3, interfaces: 1, down: 2}, short},
		{lossyLine{name: "slow, three supervisors", supervisors: 3, interfaces: 1, slow: 480 * time.Millisecond}, short},
		{lossyLine{name: "slow, one path", supervisors: 1, interfaces: 1, slow: 480 * time.Millisecond}, short},
		{lossyLine{name: "slow and busy, one path", supervisors: 1, interfaces: 1, slow: 200 * time.Millisecond,
			reports: 50 * time.Millisecond}, brief},
		{lossyLine{name: "one supervisor is slow", supervisors: 3, interfaces: 1, slow: 800 * time.Millisecond, only: true}, short},
		{lossyLine{name: "now fast now slow, three supervisors", supervisors: 3, interfaces: 1, delay: 250}, short},
		{lossyLine{name: "now fast now slow, one path", supervisors: 1, interfaces: 1, delay: 250}, short},
		{lossyLine{name: "stalls, three supervisors", supervisors: 3, interfaces: 1, stall: 400 * time.Millisecond}, short},
		{lossyLine{name: "stalls, one path", supervisors: 1, interfaces: 1, stall: 400 * time.Millisecond}, short},
	} {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(seeds) {
				if r := l.play(t, seed, l.each, true); r.sick >= 0 {
					t.Errorf("seed %d: SICK after %v", seed, r.sick)
				}
			}
		})
	}
}
