package routing

import (
	"errors"
	"testing"
	"time"
)

// A peak causes no notice. Lasting overload does, repeatedly while it lasts. The gap between the two thresholds is
// wide.
func TestOnlyLastingOverloadGivesNotice(t *testing.T) {
	var f Flow
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	for _, step := range []struct {
		ms, used int
		tell     bool
		level    Level
	}{
		{0, 50, false, Free},
		{40, 50, false, Free},
		{45, 20, false, Free}, // a peak
		{60, 48, false, Free},
		{100, 50, false, Free},
		{110, 50, true, Stop},
		{120, 58, false, Stop},
		{600, 47, false, Stop}, // neither full nor empty: as before
		{610, 30, true, Stop},
		{1110, 24, true, Stop},
		{1200, 20, false, Slow}, // empty enough, and the last word still counts
		{1620, 20, false, Slow},
		{2109, 20, false, Slow},
		{2110, 20, false, Free},
		{2120, 43, false, Free}, // below the level that restarts it
	} {
		if tell := f.Look(at(step.ms), step.used, 58); tell != step.tell {
			t.Errorf("%d ms, %d held: tells %t", step.ms, step.used, tell)
		}
		if l := f.Level(at(step.ms)); l != step.level {
			t.Errorf("%d ms, %d held: %s, want %s", step.ms, step.used, l, step.level)
		}
	}
}

// Another node's notice counts for as long as it says and no longer than allowed; it does not shorten later notices.
func TestNoticeLastsNoLongerThanAllowed(t *testing.T) {
	var f Flow
	if f.Level(start) != Free {
		t.Error("not free at first")
	}
	f.Heard(start, time.Hour)
	f.Heard(start, time.Millisecond)
	if a, b := f.Level(start.Add(maxFlowLife-1)), f.Level(start.Add(maxFlowLife)); a != Slow || b != Free {
		t.Errorf("%s and %s", a, b)
	}
	if f.Overloaded() {
		t.Error("overloaded by hearsay")
	}
}

// Nodes do not repeat a notice that all have received.
func TestFlowSaidByOne(t *testing.T) {
	var f Flow
	told := 0
	for ms := range 3000 {
		now := start.Add(time.Duration(ms) * time.Millisecond)
		if ms < 2000 && ms%400 == 0 {
			f.Heard(now, FlowLife)
		}
		if f.Look(now, 58, 58) {
			if told++; ms < 2000 {
				t.Errorf("said after %d ms, while another says it", ms)
			}
		}
		if ms > 0 && f.Level(now) != Stop {
			t.Fatalf("%s after %d ms", f.Level(now), ms)
		}
	}
	if told == 0 {
		t.Error("said by nobody in the end")
	}
}

func TestFlowBody(t *testing.T) {
	for _, d := range []time.Duration{time.Millisecond, FlowLife, maxFlowLife} {
		if got, err := DecodeFlow(AppendFlow(nil, d)); got != d || err != nil {
			t.Errorf("%s becomes %s, %v", d, got, err)
		}
	}
	for _, b := range [][]byte{nil, {1}, {2, 0, 1}, {1, 0, 0}, {1, 0xff, 0xff}, {1, 0, 1, 0}} {
		if d, err := DecodeFlow(b); !errors.Is(err, ErrFlow) {
			t.Errorf("%x is %s", b, d)
		}
	}
}

func FuzzDecodeFlow(f *testing.F) {
	f.Add(AppendFlow(nil, FlowLife))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := DecodeFlow(b)
		if err == nil && string(AppendFlow(nil, d)) != string(b) {
			t.Fatalf("%x is %s", b, d)
		}
	})
}
