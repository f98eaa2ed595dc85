package halfcore

import (
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
)

// latenessRun drives a Lateness with steps at the given distance, of which each runs late by what late returns for its
// number.
func latenessRun(l *Lateness, now time.Time, steps int, every time.Duration, late func(int) time.Duration) (time.Time, int) {
	changes := 0
	for i := range steps {
		due := now.Add(every)
		now = due.Add(late(i))
		if _, changed := l.Ran(now, due); changed {
			changes++
		}
	}
	return now, changes
}

func punctual(int) time.Duration { return 0 }

func testLateness(t *testing.T) (*Lateness, time.Time) {
	t.Helper()
	p, err := config.Preset(config.PresetDefault)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_000_000, 0)
	l := NewLateness(p, now)
	return &l, now
}

func TestHalfInTimeIsNotStarved(t *testing.T) {
	l, now := testLateness(t)
	_, changes := latenessRun(l, now, 10_000, 25*time.Millisecond, func(i int) time.Duration { return time.Duration(i%20) * time.Millisecond })
	if changes != 0 || l.Starved() || l.Status() != nil {
		t.Errorf("%d changes, starved %t, status %v", changes, l.Starved(), l.Status())
	}
}

func TestHalfStoppedForSecondIsStarvedForWindow(t *testing.T) {
	l, now := testLateness(t)
	now, _ = latenessRun(l, now, 10, 25*time.Millisecond, punctual)
	now, changes := latenessRun(l, now, 1, 25*time.Millisecond, func(int) time.Duration { return time.Second })
	s := l.Status()
	if changes != 1 || !s.GetStarved() || s.GetLongestMs() != 1000 || s.GetSharePermille() != 200 {
		t.Fatalf("%d changes, %v: want starved, 1000 ms, 200 of 1000", changes, s)
	}
	if words := l.String(); !strings.Contains(words, "late by up to 1000 ms, for 20 % of the last 5s") {
		t.Errorf("words %q", words)
	}
	_, changes = latenessRun(l, now, 500, 25*time.Millisecond, punctual)
	if s := l.Status(); changes != 1 || s == nil || s.GetStarved() || s.GetLongestMs() != 0 {
		t.Errorf("%d changes, %v: want one, and a status in time", changes, s)
	}
}

// TestManySmallDelaysAreStarvation: no delay is long, but together they are more than a tenth of the time.
func TestManySmallDelaysAreStarvation(t *testing.T) {
	l, now := testLateness(t)
	now, changes := latenessRun(l, now, 1000, 100*time.Millisecond, func(int) time.Duration { return 40 * time.Millisecond })
	if s := l.Status(); changes != 1 || !s.GetStarved() || s.GetLongestMs() != 40 {
		t.Errorf("%d changes, %v: want starved once, 40 ms", changes, s)
	}
	if _, changes := latenessRun(l, now, 2000, 25*time.Millisecond, punctual); changes != 1 || l.Starved() {
		t.Errorf("%d changes, starved %t: want in time again", changes, l.Starved())
	}
}

// TestStepsBesidesTimerDoNotDoubleLateness: packets arrive before the timer's turn comes; each step counts only the
// time since the last one.
func TestStepsBesidesTimerDoNotDoubleLateness(t *testing.T) {
	l, now := testLateness(t)
	due := now.Add(25 * time.Millisecond)
	total := time.Duration(0)
	for _, ms := range []int{200, 201, 202, 260} {
		away, _ := l.Ran(now.Add(time.Duration(ms)*time.Millisecond), due)
		total += away
	}
	if want := 175*time.Millisecond + 58*time.Millisecond; total != want {
		t.Errorf("%v away in all, want %v", total, want)
	}
}
