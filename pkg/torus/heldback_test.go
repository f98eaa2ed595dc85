package torus

import (
	"testing"
	"time"
)

// thirtyFrames returns a normal link that has received the frames up to 30, and its peer's next frame.
func thirtyFrames(t *testing.T) (l *Link, now time.Time, next uint64) {
	t.Helper()
	now = time.Unix(1000, 0)
	l = NewLink(testConfig(), now)
	l.Step(now, Tick{})
	for next = 1; next <= 30; next++ {
		now = now.Add(time.Millisecond)
		l.Step(now, FrameReceived{Frame: heartbeat(next)})
	}
	return l, now, next
}

// TestOvertakingHeartbeatMakesNoGap: frames are unread in the first socket while a later heartbeat comes through the
// second one. They come right after it, and none is lost, missing or refused: also if they are more than the replay
// window.
func TestOvertakingHeartbeatMakesNoGap(t *testing.T) {
	for _, unread := range []uint64{4, 20, 3 * replayWindow} {
		l, now, next := thirtyFrames(t)
		if out := l.Step(now, FrameReceived{Frame: heartbeat(next + unread), More: true}); !out.Accepted {
			t.Errorf("%d unread frames: the heartbeat that overtook them is refused", unread)
		}
		for n := next; n < next+unread; n++ {
			out := l.Step(now, FrameReceived{Frame: heartbeat(n)})
			if !out.Accepted || out.State != LinkNormal {
				t.Fatalf("%d unread frames: frame %d is accepted: %t, the link %s", unread, n-next+1, out.Accepted, out.State)
			}
		}
		out := l.Step(now, FrameReceived{Frame: heartbeat(next + unread + 1)})
		if s := l.Stats(); out.State != LinkNormal || s.Lost > 0 || s.Replays > 0 || s.Late > reorderSlack || s.Received != 30+unread+2 {
			t.Errorf("%d unread frames: the link is %s, %+v", unread, out.State, s)
		}
	}
}

// TestLossBeforeWaitingHeartbeatCounts: numbers that do not come within a period after a heartbeat that waited are missing.
func TestLossBeforeWaitingHeartbeatCounts(t *testing.T) {
	l, now, next := thirtyFrames(t)
	const lost = 20
	l.Step(now, FrameReceived{Frame: heartbeat(next + lost), More: true})
	if out := l.Step(now, Tick{}); out.State != LinkNormal {
		t.Errorf("the link is %s at once", out.State)
	}
	now = now.Add(l.Config().Period)
	for n := next + lost + 1; n <= next+lost+reorderSlack+1; n++ {
		l.Step(now, FrameReceived{Frame: heartbeat(n), More: true})
	}
	if out := l.Step(now, Tick{}); out.State != LinkSick || l.Stats().Lost != lost {
		t.Errorf("a period later the link is %s, %d lost: want SICK, %d", out.State, l.Stats().Lost, lost)
	}
}

// TestHeldBackHeartbeatCountsOnce: a second copy of a heartbeat is no sign of life.
func TestHeldBackHeartbeatCountsOnce(t *testing.T) {
	l, now, next := thirtyFrames(t)
	ahead := FrameReceived{Frame: heartbeat(next + 10), More: true}
	l.Step(now, ahead)
	for _, after := range []time.Duration{0, time.Millisecond, l.Config().Period} {
		if out := l.Step(now.Add(after), ahead); out.Accepted {
			t.Errorf("%s later the same heartbeat is accepted again", after)
		}
		l.Step(now.Add(after), Tick{})
	}
}

// TestManyOvertakingHeartbeats: more of them than are held back are accepted like other frames.
func TestManyOvertakingHeartbeats(t *testing.T) {
	l, now, next := thirtyFrames(t)
	for i := range uint64(3 * mostHeldBack) {
		if out := l.Step(now, FrameReceived{Frame: heartbeat(next + 10*(i+1)), More: true}); !out.Accepted {
			t.Errorf("overtaking heartbeat %d is refused", i+1)
		}
	}
	if got := len(l.heldBack.numbers); got > mostHeldBack {
		t.Errorf("%d numbers are held back: want %d at most", got, mostHeldBack)
	}
}
