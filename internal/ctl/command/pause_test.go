package command

import (
	"testing"
	"time"
)

func TestConflictPauseGrowsToItsBound(t *testing.T) {
	for i, ms := range []int64{100, 200, 400, 800, 1600, 3200, 5000, 5000} {
		most := time.Duration(ms) * time.Millisecond
		for range 100 {
			if d := ConflictPause(i + 1); d < most/2 || d > most {
				t.Fatalf("after %d conflicts: %v, want %v to %v", i+1, d, most/2, most)
			}
		}
	}
	if d := ConflictPause(1 << 20); d < mostConflictPause/2 || d > mostConflictPause {
		t.Errorf("after many conflicts: %v", d)
	}
}
