package half

import (
	"testing"
	"testing/synctest"
	"time"
)

// A machine that always wants to be woken in the past is woken again and again, but the half does
// not spin.
func TestAlarmNeverSpins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := NewAlarm()
		begun := time.Now()
		a.Wake = begun.Add(-time.Hour)
		a.Set(begun)
		for range 10 {
			<-a.Timer.C
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
		a := NewAlarm()
		begun := time.Now()
		due := begun.Add(10 * time.Millisecond)
		a.Wake = due
		a.Set(begun)
		for time.Since(begun) < 20*time.Millisecond {
			time.Sleep(100 * time.Microsecond) // of the bubble's own time: no waiting
			a.Set(time.Now())                  // a packet: the machine still wants its tick
		}
		if at := <-a.Timer.C; !at.Equal(due) {
			t.Errorf("rang %s after it was due", at.Sub(due))
		}
		a.Rang()
		now := time.Now()
		a.Wake = now.Add(10 * time.Millisecond)
		a.Set(now)
		a.Wake = now.Add(5 * time.Millisecond) // new work that is due sooner
		a.Set(now)
		if at := <-a.Timer.C; !at.Equal(now.Add(5 * time.Millisecond)) {
			t.Errorf("rang after %s, want 5ms", at.Sub(now))
		}
	})
}
