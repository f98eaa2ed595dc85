package main

import (
	"errors"
	"testing"
)

// TestViolationExitsWithOne: a trial that never reaches NORMAL has a violation and fails too.
func TestViolationExitsWithOne(t *testing.T) {
	failure := errors.New("round 3: not NORMAL")
	for _, tc := range []struct {
		violated bool
		err      error
		want     int
	}{{false, nil, 0}, {true, nil, 1}, {true, failure, 1}, {false, failure, 2}} {
		if got := exitCode(tc.violated, tc.err); got != tc.want {
			t.Errorf("violation %t, error %v: %d, want %d", tc.violated, tc.err, got, tc.want)
		}
	}
}
