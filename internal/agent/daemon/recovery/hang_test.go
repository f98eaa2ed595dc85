package recovery

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
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

// A hang is found although looks come late, always or sometimes: a late look makes the judge doubt only so often.
func TestHangIsFoundByLateLooks(t *testing.T) {
	for name, tt := range map[string]struct {
		every int // one look of so many is late
		does  string
		bound int // looks
	}{
		"always, while it runs":      {1, "blocks", 20},
		"one of five, while it runs": {5, "blocks", 60},
		"always, at its start":       {1, "", 130},
		"one of five, at its start":  {5, "", 170},
	} {
		w := &world{
			cfg: Config{Half: fault.HalfHost, TRead: 50 * time.Millisecond, Misses: 1, StartWithin: 5 * time.Second, Budget: 5,
				Window: time.Minute},
			does: "writes", takes: 30 * time.Millisecond, readable: true,
		}
		if tt.does == "" {
			w.takes = time.Hour
		}
		_ = w.daemon("start", "")
		if tt.does != "" {
			w.run(time.Second)
			w.does = tt.does
		}
		w.log = nil
		looks := 0
		for ; w.m.rec.Causes[halfcore.Hung-1] == 0 && looks < 1000; looks++ {
			w.run(w.wake)
			if looks%tt.every == 0 {
				w.notRun = w.wake + 150*time.Millisecond
			}
			w.run(max(w.wake, w.notRun) + step)
		}
		if looks > tt.bound {
			t.Errorf("%s: not found within %d looks: %d", name, tt.bound, looks)
		}
	}
}
