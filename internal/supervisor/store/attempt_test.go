package store

import (
	"testing"
	"time"
)

// TestAttemptTimeGrowsToItsBound: a store that takes five seconds for each write eventually answers in time.
func TestAttemptTimeGrowsToItsBound(t *testing.T) {
	for n, want := range map[int]time.Duration{1: 2 * time.Second, 2: 4 * time.Second, 3: 8 * time.Second, 4: 16 * time.Second,
		100: 16 * time.Second} {
		if got := attemptLimit(n); got != want {
			t.Errorf("attempt %d: %s: want %s", n, got, want)
		}
	}
}
