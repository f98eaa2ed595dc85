package store

import (
	"slices"
	"testing"
)

// TestRevisionLeapMarksRestore: a leap of the revision since the last commit marks a restore from a snapshot. Ordinary growth does not,
// and neither does a store without a commit. The newest gaps are remembered.
func TestRevisionLeapMarksRestore(t *testing.T) {
	old := Gap{100, 1_000_000_100}
	for _, tc := range []struct {
		name         string
		known        []Gap
		written, now uint64
		want         []Gap
	}{
		{"no commit", nil, 0, 5_000_000_000, nil},
		{"growth", nil, 100, 100_100, nil},
		{"put back", nil, 100, 1_000_000_105, []Gap{{100, 1_000_000_105}}},
		{"put back, and known", []Gap{old}, 1_000_000_200, 1_000_000_210, []Gap{old}},
		{"put back again", []Gap{old}, 1_000_000_200, 2_000_000_200, []Gap{old, {1_000_000_200, 2_000_000_200}}},
	} {
		if got := (head{Gaps: tc.known}).gaps(tc.written, tc.now); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
	var h head
	for i := range uint64(20) {
		h.Gaps = h.gaps(1+i*leap*2, (i+1)*leap*2)
	}
	if len(h.Gaps) != maxGaps || h.Gaps[maxGaps-1].To != 20*leap*2 {
		t.Errorf("remembered: %v", h.Gaps)
	}
	for revision, lost := range map[uint64]bool{99: false, 100: false, 101: true, 1_000_000_099: true, 1_000_000_100: false} {
		if old.Lost(revision) != lost {
			t.Errorf("revision %d lost: %t", revision, !lost)
		}
	}
}
