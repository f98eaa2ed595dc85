package udpguard

import (
	"testing"
	"time"
)

func TestRestsGrowAndBeginAgain(t *testing.T) {
	r := Rest{First: time.Second, Most: 4 * time.Second}
	now := time.Unix(1_800_000_000, 0)
	for i, tc := range []struct{ calm, want time.Duration }{
		{0, time.Second}, {0, 2 * time.Second}, {time.Second, 4 * time.Second}, {4 * time.Second, 4 * time.Second},
		{4*time.Second + 1, time.Second}, {0, 2 * time.Second},
	} {
		now = now.Add(tc.calm)
		got := r.Next(now)
		if got != tc.want {
			t.Errorf("flood %d: %s, want %s", i+1, got, tc.want)
		}
		now = now.Add(got)
	}
}
