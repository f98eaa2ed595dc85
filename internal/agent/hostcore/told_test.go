package hostcore

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
)

// TestNoQuorumSinceTheStart: a half that has heard of no quorum since it started does not make up since when.
func TestNoQuorumSinceTheStart(t *testing.T) {
	p, err := config.Preset(config.PresetDefault)
	if err != nil {
		t.Fatal(err)
	}
	m := &Machine{cfg: Config{Periods: p}}
	for _, c := range []struct {
		after       time.Duration
		without     int64
		stale, aged bool
		confirmed   time.Duration // after the start; 0: never
	}{
		{time.Minute, -1, true, true, 0},
		{2 * time.Minute, 30_000, true, false, 90 * time.Second},
		{3 * time.Minute, 120_000, true, false, 90 * time.Second}, // another replica knows less
		{4 * time.Minute, -1, true, false, 90 * time.Second},
		{5 * time.Minute, 0, false, true, 5 * time.Minute},
		{5*time.Minute + time.Second, -1, false, false, 5 * time.Minute},
	} {
		m.out = Output{}
		m.noteQuorum(start.Add(c.after), c.without)
		want := time.Time{}
		if c.confirmed > 0 {
			want = start.Add(c.confirmed)
		}
		if m.stale != c.stale || m.out.Aged != c.aged || !m.confirmed.Equal(want) {
			t.Errorf("after %s, %d ms without: stale %v (changed %v), confirmed %s: want %v (%v), %s", c.after, c.without, m.stale, m.out.Aged, m.confirmed, c.stale, c.aged, want)
		}
	}
}
