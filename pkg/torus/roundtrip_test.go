package torus

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// The round-trip time is from a heartbeat to its acknowledgement, including the wait for the neighbour's own heartbeat. Lost
// frames make it longer, not shorter, and a heartbeat that is never acknowledged does not end it.
func TestRoundTripOfLink(t *testing.T) {
	const transit, phase = time.Millisecond, 10 * time.Millisecond
	start := time.Unix(1000, 0)
	far := testConfig()
	far.Dir, far.Src, far.Dst = grid.XMinus, far.Dst, far.Src
	ends := [2]*Link{NewLink(testConfig(), start), NewLink(far, start.Add(phase))}
	for _, l := range ends {
		l.Step(start.Add(phase), SessionStarted{ID: 7})
	}
	if d := ends[0].Stats().RoundTrip; d != 0 {
		t.Errorf("before anything was acknowledged: %s", d)
	}
	way := map[time.Time]map[int]Frame{} // by arrival, to an end
	lose := 0
	run := func(from, to time.Duration) {
		for now := start.Add(from); now.Before(start.Add(to)); now = now.Add(time.Millisecond) {
			for i, l := range ends {
				if f, ok := way[now][i]; ok {
					l.Step(now, FrameReceived{Frame: f})
				}
				if l.Step(now, Tick{}).SendHeartbeat {
					f := l.NextFrame(Status{Epoch: 1})
					if lose > 0 && i == 0 {
						lose--
						continue
					}
					at := now.Add(transit)
					if way[at] == nil {
						way[at] = map[int]Frame{}
					}
					way[at][1-i] = f
				}
			}
		}
	}
	run(phase, 10*time.Second)
	if d := ends[0].Stats().RoundTrip.Round(time.Microsecond); d != phase+transit {
		t.Errorf("%s, want %s: the neighbour's heartbeats come %s after ours and take %s", d, phase+transit, phase, transit)
	}
	lose = 1
	run(10*time.Second, 10*time.Second+40*time.Millisecond)
	if d, want := ends[0].Stats().RoundTrip.Round(time.Microsecond), phase+transit+testConfig().Period/8; d != want {
		t.Errorf("%s after a lost heartbeat, want %s", d, want)
	}
}
