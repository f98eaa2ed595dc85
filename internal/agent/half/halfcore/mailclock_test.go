package halfcore

import (
	"math"
	"testing"
	"time"
)

// TestMailClock: two kernels' clocks differ by their uptimes and drift apart. Delay returns each message's delay, whichever kernel
// booted first.
func TestMailClock(t *testing.T) {
	const ms = time.Millisecond
	for name, apart := range map[string]time.Duration{
		"same clock": 0, "sender booted later": 30 * 24 * time.Hour, "sender booted earlier": -30 * 24 * time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			var c MailClock
			now := 40 * 24 * time.Hour
			for i, tc := range []struct {
				after, transit, want time.Duration
			}{
				{0, 3 * ms, 0},
				{ms, ms, 0},
				{ms, 5 * time.Second, 5*time.Second - ms},
				{ms, 2 * ms, ms},
				{10 * time.Minute, 61 * ms, 0},                           // within the drift of 10 minutes, 120 ms
				{ms, 61*ms + 300*ms, 300 * ms},                           // the drift counts only once
				{time.Hour, 100 * time.Second, 100*time.Second - 781*ms}, // 61 ms, and the drift of an hour: 720 ms
			} {
				now += tc.after
				sent := now - apart - tc.transit
				got := c.Delay(int64(sent), int64(now))
				if (got - tc.want).Abs() > ms {
					t.Errorf("message %d, in transit for %s: delay %s, want %s", i, tc.transit, got, tc.want)
				}
			}
		})
	}
}

// TestMailClockWithHostileStamps: no stamp yields a negative delay.
func TestMailClockWithHostileStamps(t *testing.T) {
	stamps := []int64{0, -1, 1, math.MaxInt64, math.MinInt64, 5, math.MaxInt64 - 1}
	for _, first := range stamps {
		for _, second := range stamps {
			var c MailClock
			for i, sent := range []int64{first, second, first} {
				if got := c.Delay(sent, int64(i+1)*1000); got < 0 {
					t.Errorf("stamps %d, %d: delay %s", first, second, got)
				}
			}
		}
	}
}
