package supervisor

import "testing"

// TestWritesAreHeldForMajorityOnly: replicas hold writes if each commit would bring the majority nearer to its end, and not for one disk.
func TestWritesAreHeldForMajorityOnly(t *testing.T) {
	for _, tc := range []struct {
		n, short, roomy int
		want            bool
	}{
		{1, 0, 1, false}, {1, 1, 0, true},
		{3, 0, 3, false}, {3, 0, 1, false}, // without a quorum nothing is written anyway
		{3, 1, 2, false}, {3, 2, 1, true}, {3, 3, 0, true},
		{3, 1, 1, true}, // the third is down
		{5, 2, 3, false}, {5, 3, 2, true},
	} {
		if got := holds(tc.n, tc.short, tc.roomy); got != tc.want {
			t.Errorf("%d replicas, %d short, %d with room: %t", tc.n, tc.short, tc.roomy, got)
		}
	}
}

// TestRestartOfReplicaHoldsNoWrites: while a replica restarts, its last answer counts. One that stays silent does not count.
func TestRestartOfReplicaHoldsNoWrites(t *testing.T) {
	for _, tc := range []struct {
		silent int
		want   bool
	}{{0, false}, {silentRounds, false}, {silentRounds + 1, true}} {
		short, roomy := count([]room{{short: true}, {}, {silent: tc.silent}})
		if got := holds(3, short, roomy); got != tc.want {
			t.Errorf("one replica is short, another silent for %d rounds: held %t", tc.silent, got)
		}
	}
}
