package recovery

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/watchdog"
)

// played plays looks at a half that writes nothing, and returns how long the half could have run in the end.
func played(looks int, every, ran, waited time.Duration) time.Duration {
	h := hang{period: 50 * time.Millisecond}
	now := time.Time{}.Add(time.Hour)
	h.begin(now, 1)
	p := Process{Ran: time.Second, Waited: time.Second}
	for range looks {
		now = now.Add(every)
		p.Ran, p.Waited = p.Ran+ran, p.Waited+waited
		h.look(now, Look{Stores: 1, Readable: true, Process: p})
	}
	return h.chance
}

// The half of these looks never waits at the moment of a look. The kernel's sum tells whether it waited between them.
func TestTimeOfWaitingBetweenLooksDoesNotCount(t *testing.T) {
	const ms = time.Millisecond
	for name, tt := range map[string]struct {
		looks              int
		every, ran, waited time.Duration
		want               time.Duration
	}{
		"it never waits":             {9, 50 * ms, 0, 0, 450 * ms},
		"it waits for a little":      {9, 50 * ms, 0, 10 * ms, 50*ms + 8*40*ms},
		"it waits for most":          {9, 50 * ms, 2 * ms, 45 * ms, 50*ms + 8*50*ms/4},
		"threads wait side by side":  {9, 50 * ms, 2 * ms, 120 * ms, 50*ms + 8*50*ms/4},
		"it waits, and runs as long": {9, 50 * ms, 25 * ms, 25 * ms, 450 * ms},
		"looks that are late":        {watchdog.MaxDoubts, 300 * ms, 0, 0, 0},
		"looks that are always late": {watchdog.MaxDoubts + 3, 300 * ms, 0, 0, 3 * 50 * ms},
	} {
		if got := played(tt.looks, tt.every, tt.ran, tt.waited); got != tt.want {
			t.Errorf("%s: %s: want %s", name, got, tt.want)
		}
	}
}
