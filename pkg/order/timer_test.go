package order

import (
	"slices"
	"testing"
	"time"
)

// TestWaitBetweenSendsGrowsToItsBound: the wait doubles up to its limit, after the policy's number of steady sends, and
// never overflows.
func TestWaitBetweenSendsGrowsToItsBound(t *testing.T) {
	for name, tc := range map[string]struct {
		retry Retry
		want  []time.Duration // after the first sends
	}{
		"doubling": {Retry{First: time.Second, Most: 5 * time.Second}, []time.Duration{1, 2, 4, 5, 5}},
		"constant": {Retry{First: 3 * time.Second}, []time.Duration{3, 3, 3, 3}},
		"steady":   {Retry{First: 2 * time.Second, Most: 30 * time.Second, Steady: 3}, []time.Duration{2, 2, 2, 4, 8, 16, 30, 30}},
	} {
		var got []time.Duration
		for i := range tc.want {
			got = append(got, tc.retry.After(i+1)/time.Second)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
		if d := tc.retry.After(1 << 40); d <= 0 || d > 30*time.Second {
			t.Errorf("%s: after very many sends: %v", name, d)
		}
	}
}

// TestTimerCountsSends: a timer is due at once, then after each wait; a restart resets it to the first send.
func TestTimerCountsSends(t *testing.T) {
	r := Retry{First: time.Second, Most: 8 * time.Second}
	var timer Timer
	due := func(at time.Duration, want bool) {
		t.Helper()
		if timer.Due(begin.Add(at), r) != want {
			t.Errorf("due at %v: %t, want %t (try %d)", at, !want, want, timer.Try)
		}
	}
	due(0, true)
	due(999*time.Millisecond, false)
	due(time.Second, true)
	due(2*time.Second, false)
	due(3*time.Second, true)
	if timer.Try != 3 || !timer.At.Equal(begin.Add(7*time.Second)) {
		t.Errorf("%+v", timer)
	}
	timer.Restart(begin.Add(4 * time.Second))
	due(3500*time.Millisecond, false)
	due(4*time.Second, true)
	due(5*time.Second, true)
}
