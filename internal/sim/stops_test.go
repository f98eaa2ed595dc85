package sim

import (
	"fmt"
	"testing"
)

// TestStops plays stories of announced stops beside other faults: the same ones every time.
func TestStops(t *testing.T) {
	n := 60
	if testing.Short() {
		n = 4
	}
	if *seeds > 0 {
		n = *seeds
	}
	for seed := uint64(1); seed <= uint64(n); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			p := NewStopPlan(seed)
			if err := p.Run(); err != nil {
				short, err := p.Shrink(err)
				t.Errorf("%s\nseed %d", short.Story(err), seed)
			}
		})
	}
}
