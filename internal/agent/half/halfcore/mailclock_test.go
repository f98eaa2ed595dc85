package halfcore

import (
	"math"
	"testing"
	"time"
)

// TestMailClock: two kernels' clocks differ by their uptimes. Delay returns each message's delay, whichever kernel booted first.
func TestMailClock(t *testing.T) {
	const ms = time.Millisecond
	for name, apart := range map[string]time.Duration{
		"same clock": 0, "sender booted later": 30 * 24 * time.Hour, "sender booted earlier": -30 * 24 * time.Hour,
		"sender booted just now": 40*24*time.Hour - 5*ms,
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
				{time.Hour, time.Minute, time.Minute - ms}, // this half was stopped for an hour, and now reads its socket
				{ms, 30 * time.Second, 30*time.Second - ms},
				{16 * time.Second, 3 * ms, 0},
			} {
				now += tc.after
				if got := c.Delay(int64(now-apart-tc.transit), int64(now)); got != tc.want {
					t.Errorf("message %d, in transit for %s: delay %s, want %s", i, tc.transit, got, tc.want)
				}
			}
		})
	}
}

// TestMailClockFollowsTheClocks: clocks that drift apart, or that stand still in a suspended machine, give wrong delays for two spans
// at most.
func TestMailClockFollowsTheClocks(t *testing.T) {
	const every, ms = 5 * time.Second, time.Millisecond
	for name, tc := range map[string]struct {
		drift time.Duration // of the sender's clock, in every
		jump  time.Duration // of the sender's clock, after a minute
		worst time.Duration // error at the end
	}{
		"1000 ppm slower":                     {drift: -5 * ms, worst: 35 * ms},
		"1000 ppm faster":                     {drift: 5 * ms, worst: 0},
		"the sender's machine was suspended":  {jump: -time.Hour, worst: 0},
		"the receiving machine was suspended": {jump: time.Hour, worst: 0},
	} {
		t.Run(name, func(t *testing.T) {
			var c MailClock
			sent, now, got := time.Hour, 2*time.Hour, time.Duration(0)
			for i := range 1000 {
				sent, now = sent+every+tc.drift, now+every
				if i == 12 {
					sent += tc.jump
				}
				got = c.Delay(int64(sent), int64(now))
			}
			if got > tc.worst {
				t.Errorf("a message without delay has delay %s: want at most %s", got, tc.worst)
			}
		})
	}
}

// TestMailClockWithHostileStamps: no stamp yields a negative delay.
func TestMailClockWithHostileStamps(t *testing.T) {
	stamps := []int64{0, -1, 1, math.MaxInt64, math.MinInt64, 5, int64(maxUptime / 2), -int64(maxUptime / 2), 1 << 61, -1 << 61}
	for _, first := range stamps {
		for _, second := range stamps {
			var c MailClock
			for _, now := range []int64{1000, 2000, int64(maxUptime / 2)} {
				for _, sent := range []int64{first, second, first} {
					if got := c.Delay(sent, now); got < 0 {
						t.Errorf("stamps %d, %d: delay %s", first, second, got)
					}
				}
			}
		}
	}
}
