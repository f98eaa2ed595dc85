package half

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A machine that always wants to be woken in the past is woken again and again, but the half does
// not spin.
func TestAlarmNeverSpins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		timer := time.NewTimer(time.Hour)
		a := &Alarm{arm: func(d time.Duration) { timer.Reset(d) }}
		begun := time.Now()
		a.Wake = begun.Add(-time.Hour)
		a.Set(begun)
		for range 10 {
			<-timer.C
			a.Rang()
			a.Set(time.Now()) // the wake is still the same
		}
		if took := time.Since(begun); took != 10*minRest {
			t.Errorf("10 rings in %s, want %s", took, 10*minRest)
		}
	})
}

// Packets that arrive after a tick fell due, but before the half handles it, do not delay the tick.
func TestAlarmIsNotPutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		timer := time.NewTimer(time.Hour)
		a := &Alarm{arm: func(d time.Duration) { timer.Reset(d) }}
		begun := time.Now()
		due := begun.Add(10 * time.Millisecond)
		a.Wake = due
		a.Set(begun)
		for time.Since(begun) < 20*time.Millisecond {
			time.Sleep(100 * time.Microsecond) // of the bubble's own time: no waiting
			a.Set(time.Now())                  // a packet: the machine still wants its tick
		}
		if at := <-timer.C; !at.Equal(due) {
			t.Errorf("rang %s after it was due", at.Sub(due))
		}
		a.Rang()
		now := time.Now()
		a.Wake = now.Add(10 * time.Millisecond)
		a.Set(now)
		a.Wake = now.Add(5 * time.Millisecond) // new work that is due sooner
		a.Set(now)
		if at := <-timer.C; !at.Equal(now.Add(5 * time.Millisecond)) {
			t.Errorf("rang after %s, want 5ms", at.Sub(now))
		}
	})
}

// TestAlarmRingsWithTickers: with two tickers, the alarm rings at each of their times and at the machine's wake-up
// time, and at no other.
func TestAlarmRingsWithTickers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		timer := time.NewTimer(time.Hour)
		a := &Alarm{arm: func(d time.Duration) { timer.Reset(d) }}
		begun := time.Now()
		a.AlsoRing(begun.Add(7*time.Millisecond), 20*time.Millisecond)
		a.AlsoRing(begun.Add(-time.Millisecond), 25*time.Millisecond)
		a.Wake = begun.Add(30 * time.Millisecond)
		a.Set(begun)
		var rings []int64
		for range 6 {
			now := <-timer.C
			rings = append(rings, now.Sub(begun).Milliseconds())
			a.Rang()
			if !now.Before(a.Wake) {
				a.Wake = a.Wake.Add(30 * time.Millisecond)
			}
			a.Set(now)
		}
		if want := []int64{7, 24, 27, 30, 47, 49}; !slices.Equal(rings, want) {
			t.Errorf("rang after %v ms: want %v", rings, want)
		}
	})
}

// TestRingBeforeWakeDoesNotDelayTick: a ring for something else right before a tick leaves the tick on time.
func TestRingBeforeWakeDoesNotDelayTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		timer := time.NewTimer(time.Hour)
		a := &Alarm{arm: func(d time.Duration) { timer.Reset(d) }}
		begun := time.Now()
		a.Wake = begun.Add(10 * time.Millisecond)
		a.AlsoRing(a.Wake.Add(-100*time.Microsecond), time.Hour)
		a.Set(begun)
		if early := a.Wake.Sub(<-timer.C); early != 100*time.Microsecond {
			t.Fatalf("first ring %s before the tick: want 100µs", early)
		}
		a.Rang()
		a.Set(time.Now())
		if at := <-timer.C; !at.Equal(a.Wake) {
			t.Errorf("tick %s late", at.Sub(a.Wake))
		}
	})
}

// The kernel's timer never rings early, rings again after each Set, and follows a Set for an earlier time.
func TestKernelTimerRings(t *testing.T) {
	a, err := NewAlarm()
	if err != nil {
		t.Fatal(err)
	}
	defer closeAlarm(t, a)
	for range 5 {
		now := time.Now()
		a.Wake = now.Add(time.Hour)
		a.Set(now)
		a.Wake = now.Add(3 * time.Millisecond)
		a.Set(now)
		if err := a.Wait(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(now); took < 3*time.Millisecond || took > time.Minute {
			t.Errorf("rang after %s, want 3ms", took)
		}
		a.Rang()
	}
}

// Close ends a Wait, and every later one.
func TestAlarmCloseEndsWait(t *testing.T) {
	a, err := NewAlarm()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- a.Wait() }()
	closeAlarm(t, a)
	if <-ended == nil || a.Wait() == nil {
		t.Error("a closed alarm rang")
	}
}

// Setting the alarm and waiting for it allocate nothing.
func TestAlarmDoesNotAllocate(t *testing.T) {
	a, err := NewAlarm()
	if err != nil {
		t.Fatal(err)
	}
	defer closeAlarm(t, a)
	if n := testing.AllocsPerRun(20, func() {
		a.Wake = time.Time{}
		a.Set(time.Now())
		if err := a.Wait(); err != nil {
			t.Fatal(err)
		}
		a.Rang()
	}); n != 0 {
		t.Errorf("%v allocations a ring", n)
	}
}

func closeAlarm(t *testing.T, a *Alarm) {
	t.Helper()
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}
