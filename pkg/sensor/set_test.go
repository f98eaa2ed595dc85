package sensor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// fake is a source with configured read times.
type fake struct {
	component fault.Component
	interval  time.Duration
	read      func(ctx context.Context, n int) (Reading, error)
	n         int
}

func (f *fake) Name() string               { return "fake:" + f.component.String() }
func (f *fake) Component() fault.Component { return f.component }
func (f *fake) Interval() time.Duration    { return f.interval }
func (f *fake) Read(ctx context.Context) (Reading, error) {
	f.n++
	return f.read(ctx, f.n)
}

func is(s fault.State) func(context.Context, int) (Reading, error) {
	return func(context.Context, int) (Reading, error) { return Reading{State: s, Detail: "as told"}, nil }
}

// emission is one call of emit, with its time.
type emission struct {
	at       time.Duration
	readings []Reading
}

// run runs a set for a time in a synctest bubble.
func run(t *testing.T, period, total time.Duration, sources ...Source) (got []emission, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), total)
	defer cancel()
	start := time.Now()
	err = NewSet(sources).Run(ctx, time.Tick(period), period, func(r []Reading) {
		got = append(got, emission{time.Since(start), r})
	})
	return got, err
}

func TestSetPollsAtIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quick := &fake{component: fault.ComponentMemory, read: is(fault.Normal)}
		rare := &fake{component: fault.ComponentPeripheral0, interval: 5 * time.Second, read: is(fault.Sick)}
		got, err := run(t, time.Second, 10500*time.Millisecond, quick, rare)
		if err != nil {
			t.Fatal(err)
		}
		// At 0 s and at each of ten ticks, once.
		if len(got) != 11 || quick.n != 11 || rare.n != 3 {
			t.Errorf("%d emissions, %d and %d readings: want 11, 11 and 3", len(got), quick.n, rare.n)
		}
		last := got[len(got)-1].readings
		if last[0].State != fault.Normal || last[0].Source != "fake:memory" || last[1].State != fault.Sick ||
			last[1].Component != fault.ComponentPeripheral0 {
			t.Errorf("%+v", last)
		}
	})
}

// TestSetHungSource: one source hangs for ever; the other is not delayed, and the hung one becomes unknown after three
// of its periods.
func TestSetHungSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		hung := &fake{component: fault.ComponentPeripheral0, read: func(_ context.Context, n int) (Reading, error) {
			if n > 1 {
				<-release
			}
			return Reading{State: fault.Normal, Detail: "fine"}, nil
		}}
		quick := &fake{component: fault.ComponentMemory, read: is(fault.Normal)}
		got, err := run(t, time.Second, 6500*time.Millisecond, hung, quick)
		if err == nil || !strings.Contains(err.Error(), "stop sensor fake:peripheral/0: still reading after 1s") {
			t.Errorf("stop: %v", err)
		}
		close(release)
		if quick.n != 7 {
			t.Errorf("the quick source was read %d times, want 7", quick.n)
		}
		for _, e := range got {
			want := fault.Normal
			if e.at > 3*time.Second { // the only reading is of 0 s
				want = fault.Unknown
			}
			if r := e.readings[0]; r.State != want {
				t.Errorf("at %v the hung source is %s %q, want %s", e.at, r.State, r.Detail, want)
			}
		}
		if last := got[len(got)-1]; last.at < 6*time.Second ||
			!strings.Contains(last.readings[0].Detail, "not answered since 6s; before: NORMAL fine") {
			t.Errorf("last: %+v", last)
		}
	})
}

// TestRarerReadingsStayKnown: a set that reads four times less often for a while calls no source Unknown meanwhile, nor
// when it returns to its period. A source that hangs meanwhile is Unknown after three of the longer periods.
func TestRarerReadingsStayKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &fake{component: fault.ComponentPeripheral0, read: func(context.Context, int) (Reading, error) {
			time.Sleep(300 * time.Millisecond)
			return Reading{State: fault.Normal}, nil
		}}
		changing := &fake{component: fault.ComponentMemory, read: func(_ context.Context, n int) (Reading, error) {
			return Reading{State: []fault.State{fault.Normal, fault.Sick}[n%2]}, nil
		}}
		set := NewSet([]Source{slow, changing})
		time.AfterFunc(3500*time.Millisecond, func() { set.Rarer(4) })
		time.AfterFunc(23500*time.Millisecond, func() { set.Rarer(1) })
		ctx, cancel := context.WithTimeout(t.Context(), 30500*time.Millisecond)
		defer cancel()
		var unknown int
		if err := set.Run(ctx, time.Tick(time.Second), time.Second, func(r []Reading) {
			if r[0].State == fault.Unknown && r[0].Detail != "not read yet" || r[1].State == fault.Unknown {
				unknown++
			}
		}); err != nil {
			t.Fatal(err)
		}
		// At 0 to 4 s, every fourth second up to 24 s, and from then on every second.
		if unknown > 0 || slow.n != 16 || changing.n != 16 {
			t.Errorf("%d unknown, %d and %d readings: want 0, 16 and 16", unknown, slow.n, changing.n)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		hung := &fake{component: fault.ComponentMemory, read: func(_ context.Context, n int) (Reading, error) {
			if n > 1 {
				<-release
			}
			return Reading{State: fault.Normal}, nil
		}}
		set := NewSet([]Source{hung})
		set.Rarer(4)
		ctx, cancel := context.WithTimeout(t.Context(), 20500*time.Millisecond)
		defer cancel()
		var since time.Duration
		begun := time.Now()
		_ = set.Run(ctx, time.Tick(time.Second), time.Second, func(r []Reading) {
			if since == 0 && r[0].State == fault.Unknown {
				since = time.Since(begun)
			}
		})
		close(release)
		if since <= 12*time.Second || since > 17*time.Second {
			t.Errorf("a hung source is Unknown after %v: want more than 12 and at most 17 s", since)
		}
	})
}

// TestSetReadsAtTheCallersTicks: with ticks of the caller the sources are read at the start and once at each tick, however
// long the next tick takes, and at level Rarer once in so many ticks.
func TestSetReadsAtTheCallersTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fake{component: fault.ComponentMemory, read: is(fault.Normal)}
		set, ticks := NewSet([]Source{src}), make(chan time.Time)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- set.Run(ctx, ticks, time.Second, func([]Reading) {}) }()
		reads := func(want int, when string) {
			t.Helper()
			synctest.Wait()
			if src.n != want {
				t.Errorf("%d readings %s: want %d", src.n, when, want)
			}
		}
		reads(1, "at the start")
		time.Sleep(10 * time.Second)
		reads(1, "without a tick")
		tick := func(n int) {
			for range n {
				time.Sleep(time.Second)
				ticks <- time.Now()
			}
		}
		tick(3)
		reads(4, "after three ticks")
		set.Rarer(4)
		tick(9) // the first of them sets the factor
		reads(7, "after nine more, of which every fourth counts")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestSetNeverAnswers checks that a source without any answer is unknown.
func TestSetNeverAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait := func(ctx context.Context, _ int) (Reading, error) {
			<-ctx.Done()
			return Reading{}, ctx.Err()
		}
		got, err := run(t, time.Second, 1500*time.Millisecond, &fake{component: fault.ComponentMemory, read: wait})
		if err != nil || len(got) != 1 || got[0].readings[0].State != fault.Unknown || got[0].readings[0].Detail != "not read yet" {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// TestSetChangeAtOnce checks that a change of state does not wait for a slower source read at the same time.
func TestSetChangeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changing := &fake{component: fault.ComponentMemory, read: func(_ context.Context, n int) (Reading, error) {
			if n >= 3 {
				return Reading{State: fault.Failed, Detail: "gone"}, nil
			}
			return Reading{State: fault.Normal}, nil
		}}
		slow := &fake{component: fault.ComponentPeripheral0, read: func(context.Context, int) (Reading, error) {
			time.Sleep(300 * time.Millisecond)
			return Reading{State: fault.Normal}, nil
		}}
		got, _ := run(t, time.Second, 2900*time.Millisecond, changing, slow)
		var at []time.Duration
		for _, e := range got {
			at = append(at, e.at)
		}
		if len(got) != 4 || at[0] != 300*time.Millisecond || at[1] != 1300*time.Millisecond || at[2] != 2*time.Second ||
			at[3] != 2300*time.Millisecond {
			t.Errorf("emissions at %v: want 300ms, 1.3s, 2s (the change), 2.3s", at)
		}
	})
}

// TestUnavailableSourceIsReadEachPeriod: an unavailable source is read again each period, not after its interval. Any other error waits
// for the interval.
func TestUnavailableSourceIsReadEachPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rare := &fake{component: fault.ComponentPeripheral0, interval: 24 * time.Hour, read: func(_ context.Context, n int) (Reading, error) {
			switch n {
			case 1:
				return Reading{}, fmt.Errorf("check: %w", ErrUnavailable)
			case 2: // ends long after the next period
				time.Sleep(5500 * time.Millisecond)
				return Reading{}, fmt.Errorf("check: %w", ErrUnavailable)
			}
			return Reading{State: fault.Normal}, nil
		}}
		wrong := &fake{component: fault.ComponentPeripheral1, interval: 24 * time.Hour, read: func(context.Context, int) (Reading, error) {
			return Reading{}, errors.New("no such file")
		}}
		got, err := run(t, time.Second, 20500*time.Millisecond, rare, wrong)
		if err != nil || rare.n != 3 || wrong.n != 1 {
			t.Fatalf("%d and %d readings, %v: want 3 and 1", rare.n, wrong.n, err)
		}
		for _, e := range got {
			want := fault.Unknown
			if e.at >= 7*time.Second { // asked at 0 s and, until 6.5 s, at 1 s
				want = fault.Normal
			}
			if r := e.readings[0]; r.State != want {
				t.Errorf("at %v %s %q, want %s", e.at, r.State, r.Detail, want)
			}
		}
	})
}

// TestFailedReadingIsNeverNormal checks that an error never leaves a reading normal.
func TestFailedReadingIsNeverNormal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := &fake{component: fault.ComponentMemory, read: func(context.Context, int) (Reading, error) {
			return Reading{State: fault.Normal}, errors.New("half read")
		}}
		got, _ := run(t, time.Second, 500*time.Millisecond, bad)
		if len(got) != 1 || got[0].readings[0].State != fault.Unknown || got[0].readings[0].Detail != "half read" {
			t.Errorf("%+v", got)
		}
	})
}
