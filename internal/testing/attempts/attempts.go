// Package attempts is for tests of speed: a busy machine may spoil a measurement, so one of several must hold.
package attempts

import "testing"

// One calls holds until it returns true, at most n times. If it never does, the test fails with the complaint.
func One(t *testing.T, n int, complaint string, holds func() bool) {
	t.Helper()
	for range n {
		if holds() {
			return
		}
	}
	t.Errorf("in none of %d attempts: %s", n, complaint)
}
