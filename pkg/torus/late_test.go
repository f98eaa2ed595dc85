package torus

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// starvedEnd drives one end of a link whose process runs for runs and is then kept from running for away, again and
// again. The peer says nothing more from the start of the test. It returns the time until the end calls the link broken,
// or 0 if it does not within limit.
func starvedEnd(t *testing.T, runs, away, limit time.Duration) time.Duration {
	t.Helper()
	return starvedEndOf(t, testConfig(), runs, away, limit)
}

// starvedEndOf is starvedEnd with a configuration.
func starvedEndOf(t *testing.T, cfg LinkConfig, runs, away, limit time.Duration) time.Duration {
	t.Helper()
	start := time.Unix(1_000_000, 0)
	l := NewLink(cfg, start)
	l.Step(start, SessionStarted{ID: 1})
	f := Frame{Type: TypeHeartbeat, Direction: l.cfg.Dir.Opposite(), Src: l.cfg.Dst, Dst: l.cfg.Src, Session: 1, Seq: 1, Epoch: 1}
	out := l.Step(start, FrameReceived{Frame: f})
	if !out.Accepted || out.State != LinkNormal {
		t.Fatalf("first frame: accepted %t, state %s", out.Accepted, out.State)
	}
	for now := start; now.Sub(start) < limit; {
		at := fault.Later(out.Wake, now)
		if away > 0 { // a time that falls into an absence is the end of that absence
			turn := runs + away
			if within := at.Sub(start) % turn; within >= runs {
				at = at.Add(turn - within)
			}
		}
		now = at
		if out = l.Step(now, Tick{}); out.State == LinkBroken {
			return now.Sub(start)
		}
	}
	return 0
}

func TestEndInTimeFindsSilenceAtItsBound(t *testing.T) {
	if took, want := starvedEnd(t, time.Second, 0, time.Minute), testConfig().SilentAfter(); took != want {
		t.Errorf("silent after %v, want %v", took, want)
	}
}

// TestStarvedEndDoesNotBlamePeer: an end that is kept from running for 80 ms, runs for 40 ms, and so on, never was in
// time for as long as makes a link silent.
func TestStarvedEndDoesNotBlamePeer(t *testing.T) {
	if took := starvedEnd(t, 40*time.Millisecond, 80*time.Millisecond, 2*time.Second); took != 0 {
		t.Errorf("blamed the peer after %v", took)
	}
}

// TestAlwaysLateEndNoticesDeath: the doubt ends after MaxReturns.
func TestAlwaysLateEndNoticesDeath(t *testing.T) {
	took := starvedEnd(t, time.Millisecond, 80*time.Millisecond, time.Minute)
	if took == 0 || took > (MaxReturns+3)*81*time.Millisecond {
		t.Errorf("noticed the death after %v, want it within %v", took, (MaxReturns+3)*81*time.Millisecond)
	}
}

// TestOneAbsenceCountsOnce: packets that anyone may have sent lie in the queue ahead of the peer's frames. They neither
// use up the doubt of an end that was away once, nor end it.
func TestOneAbsenceCountsOnce(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	l := NewLink(testConfig(), start)
	l.Step(start, SessionStarted{ID: 1})
	f := Frame{Type: TypeHeartbeat, Direction: l.cfg.Dir.Opposite(), Src: l.cfg.Dst, Dst: l.cfg.Src, Session: 1, Seq: 1, Epoch: 1}
	l.Step(start, FrameReceived{Frame: f})
	now := start.Add(100 * time.Millisecond)
	for i := range MaxReturns + 8 {
		out := l.Step(now, FrameBad{Kind: BadMAC})
		if out.State != LinkNormal || out.Late != (i == 0) {
			t.Fatalf("packet %d after one absence: %s, late %t", i+1, out.State, out.Late)
		}
		now = now.Add(10 * time.Microsecond)
	}
	f.Seq++
	if out := l.Step(now, FrameReceived{Frame: f}); !out.Accepted || out.State != LinkNormal {
		t.Fatalf("the peer's frame behind the packets: accepted %t, state %s", out.Accepted, out.State)
	}
	if late := l.Stats().OwnLate; late != 1 {
		t.Errorf("late %d times, want 1", late)
	}
}

// TestLastReturnLeavesTimeToRead: an end that was away for the last time that it doubts itself still reads what waits.
func TestLastReturnLeavesTimeToRead(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	l := NewLink(testConfig(), now)
	l.Step(now, SessionStarted{ID: 1})
	f := Frame{Type: TypeHeartbeat, Direction: l.cfg.Dir.Opposite(), Src: l.cfg.Dst, Dst: l.cfg.Src, Session: 1, Seq: 1, Epoch: 1}
	l.Step(now, FrameReceived{Frame: f})
	for i := range MaxReturns + 1 {
		now = now.Add(100 * time.Millisecond)
		if out := l.Step(now, Tick{}); out.State != LinkNormal {
			t.Fatalf("return %d: %s", i+1, out.State)
		}
	}
	f.Seq++
	if out := l.Step(now, FrameReceived{Frame: f}); !out.Accepted || out.State != LinkNormal {
		t.Fatalf("the peer's frame after the last return: accepted %t, state %s", out.Accepted, out.State)
	}
}

// TestDoubtIsBounded: with any rhythm of absences, at the periods of each preset, an end notices a death within the bounds
// in the comment of MaxReturns.
func TestDoubtIsBounded(t *testing.T) {
	for _, tc := range []struct {
		preset        string
		period        time.Duration
		misses        int
		running, most time.Duration // the bound without the absences, and with absences as long as silence
	}{
		{"default", 25 * time.Millisecond, 2, 2000 * time.Millisecond, 4550 * time.Millisecond},
		{"fast", 8 * time.Millisecond, 2, 640 * time.Millisecond, 1456 * time.Millisecond},
		{"relaxed", 250 * time.Millisecond, 3, 21000 * time.Millisecond, 55000 * time.Millisecond},
	} {
		cfg := testConfig()
		cfg.Period, cfg.Misses = tc.period, tc.misses
		silent := cfg.SilentAfter()
		for runs := tc.period / 8; runs <= silent; runs += tc.period / 8 {
			for _, away := range []time.Duration{tc.period * 9 / 4, silent, 4 * silent} {
				took := starvedEndOf(t, cfg, runs, away, time.Hour)
				absences := int64((took + away) / (runs + away))
				if running := took - time.Duration(absences)*away; took == 0 || running > tc.running || absences > MaxReturns+2 {
					t.Errorf("%s, runs for %v, away for %v: noticed the death after %v, %d absences and %v without them; want at most %d and %v",
						tc.preset, runs, away, took, absences, running, MaxReturns+2, tc.running)
				}
				if away <= silent && took > tc.most {
					t.Errorf("%s, runs for %v, away for %v: noticed the death after %v, want it within %v", tc.preset, runs, away, took, tc.most)
				}
			}
		}
	}
}

// TestGraceLeavesDoubt: absences while the peer owes no frame yet do not use up the doubt.
func TestGraceLeavesDoubt(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	cfg := testConfig()
	cfg.Grace = 10 * time.Second
	l := NewLink(cfg, start)
	l.Step(start, SessionStarted{ID: 1})
	for now := start; now.Sub(start) < cfg.Grace+200*time.Millisecond; {
		now = now.Add(100 * time.Millisecond)
		for range 3 {
			if out := l.Step(now, Tick{}); out.State != LinkUnknown {
				t.Fatalf("%v after the start: %s", now.Sub(start), out.State)
			}
			now = now.Add(20 * time.Millisecond)
		}
	}
}
