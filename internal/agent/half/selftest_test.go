package half

import (
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// TestRecoverySaysWhichStartItEnds: a recovery that has served belongs to an earlier start.
func TestRecoverySaysWhichStartItEnds(t *testing.T) {
	for _, tc := range []struct {
		name string
		is   *lofamov1.RecoveryStatus
		want bool
	}{
		{"no daemon", nil, false},
		{"no recovery", &lofamov1.RecoveryStatus{}, false},
		{"a recovery that goes on", &lofamov1.RecoveryStatus{AgeNs: 1, GoneUs: 1}, true},
		{"a recovery that served", &lofamov1.RecoveryStatus{AgeNs: 1e9, GoneUs: 1, ServingUs: 40_000}, false},
	} {
		if got := recovers(tc.is); got != tc.want {
			t.Errorf("%s: %t, want %t", tc.name, got, tc.want)
		}
	}
}
