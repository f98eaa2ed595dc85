package sim

import "testing"

// TestStops plays stories of announced stops beside other faults: the same ones every time.
func TestStops(t *testing.T) {
	eachStory(t, *seeds, 60, func(t *testing.T, seed uint64) {
		t.Helper()
		p := NewStopPlan(seed)
		if err := p.Run(); err != nil {
			short, err := p.Shrink(err)
			t.Errorf("%s\nseed %d", short.Story(err), seed)
		}
	})
}
