package response_test

import (
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestLeaderWithAnotherClock: a response has ended, and another replica leads, whose clock differs. Cooldown and rate limit then end
// later by the difference, but at most one whole time after the takeover, or earlier by the difference.
func TestLeaderWithAnotherClock(t *testing.T) {
	const limit = 30 * time.Minute
	for _, tc := range []struct {
		name     string
		cooldown bool          // else the rate limit holds the next response back
		off      time.Duration // of the next leader's clock
		want     time.Duration // from the takeover to the next response
	}{
		{"cooldown, same clock", true, 0, limit},
		{"cooldown, behind", true, -20 * time.Minute, limit},
		{"cooldown, days behind", true, -48 * time.Hour, limit},
		{"cooldown, ahead", true, 20 * time.Minute, 10 * time.Minute},
		{"cooldown, days ahead", true, 48 * time.Hour, 0},
		{"rate, same clock", false, 0, limit},
		{"rate, days behind", false, -48 * time.Hour, limit},
		{"rate, ahead", false, 20 * time.Minute, 10 * time.Minute},
	} {
		cfg, next := quick(), fault.NodeID("n0-0-0")
		if cfg.Cooldown = limit; !tc.cooldown {
			cfg.Rate, cfg.RateWindow, next = 1, limit, "n1-1-1"
		}
		cordon := strings.Replace(cordonAndTell, "  steps:", "  undo: {onRecovery: true, after: 0s}\n  steps:", 1)
		l := newLab(t, cfg, grid.Dims{X: 4, Y: 4, Z: 4}, parsed(t, []byte(cordon))[:1]...)
		l.lead()
		for _, s := range []fault.State{fault.Failed, fault.Normal} {
			l.set(l.own("n0-0-0", fault.ComponentMemory, s))
			l.land(response.Succeeded, "")
		}
		l.now = l.now.Add(tc.off)
		l.lead()
		takeover := l.now
		l.set(l.own(next, fault.ComponentMemory, fault.Failed))
		if len(l.flying) == 0 && tc.want > 0 {
			l.until(takeover.Add(tc.want - time.Second))
			if len(l.flying) > 0 {
				t.Errorf("%s: the next response has begun %s after the takeover: want %s", tc.name, tc.want-time.Second, tc.want)
			}
			l.until(takeover.Add(tc.want + time.Second))
		}
		if len(l.flying) != 1 {
			t.Errorf("%s: %d effects %s after the takeover: want 1", tc.name, len(l.flying), tc.want)
		}
	}
}
