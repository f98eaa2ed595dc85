package udpguard

import (
	"testing"
	"time"
)

func TestPaceRestsBeyondBurst(t *testing.T) {
	const burst = 5
	p, slept := NewPace(1, burst, time.Minute), time.Duration(0)
	p.Sleep = func(d time.Duration) { slept += d }
	rests := 0
	for range burst + 3 {
		if p.Take() {
			rests++
		}
	}
	if rests < 2 || rests > 3 || slept != time.Duration(rests)*time.Minute { // 2: the test took a second
		t.Errorf("%d rests of %s together, want 3 of a minute each", rests, slept)
	}
	if (*Pace)(nil).Take() {
		t.Error("a missing pace rested")
	}
}
