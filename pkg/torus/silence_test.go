package torus

import "testing"

func TestToleratedMisses(t *testing.T) {
	for _, tc := range []struct {
		misses int
		loss   float64
		want   int
	}{
		{2, 0, 2}, {2, 0.01, 2}, {2, 0.03, 3}, {2, 0.1, 4}, {2, 0.3, 8}, {2, 0.5, 14}, {2, 0.9, 16}, {2, 1, 16},
		{5, 0.01, 5}, {20, 0.01, 20}, {20, 1, 20},
	} {
		if got := ToleratedMisses(tc.misses, tc.loss); got != tc.want {
			t.Errorf("%d misses at a loss of %v: tolerates %d, want %d", tc.misses, tc.loss, got, tc.want)
		}
	}
	// A link that has lost more never tolerates less.
	last := 0
	for loss := 0.0; loss <= 1; loss += 0.001 {
		got := ToleratedMisses(2, loss)
		if got < last {
			t.Fatalf("at a loss of %v %d misses, %d at a smaller one", loss, got, last)
		}
		last = got
	}
}
