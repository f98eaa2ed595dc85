package response

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// TestBeginningsOfFaultsAreForgotten: the world keeps a bounded number of beginnings of a component's faults, and none for longer than the
// window.
func TestBeginningsOfFaultsAreForgotten(t *testing.T) {
	const window = 24 * time.Hour
	e := &Engine{cfg: Config{RecurrenceWindow: window}, world: newWorld()}
	dnp, host := Target{Node: "n0", Component: fault.ComponentDNP}, Target{Node: "n0", Component: fault.ComponentHost}
	start := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	e.now = start
	e.world.remember(host, e.now, window)
	for range 3 * maxBegun {
		e.now = e.now.Add(time.Minute)
		e.world.remember(dnp, e.now, window)
		e.world.remember(dnp, e.now, window) // the same fault again
	}
	if n, room := e.world.recurrence(dnp, e.now, window), cap(e.world.begun[dnp]); n != maxBegun || room > maxBegun {
		t.Errorf("%d beginnings in room for %d: want %d", n, room, maxBegun)
	}
	e.now = start.Add(window)
	e.prune()
	if len(e.world.begun) != 2 {
		t.Errorf("beginnings of %d components at the end of the window: want 2", len(e.world.begun))
	}
	e.now = e.now.Add(pruneEvery)
	e.prune()
	if _, still := e.world.begun[dnp]; !still || len(e.world.begun) != 1 {
		t.Errorf("beginnings of %d components after the window of one: want the other's", len(e.world.begun))
	}
	if n := e.world.recurrence(host, e.now, window); n != 1 {
		t.Errorf("recurrence %d of a component without a remembered fault: want 1, the present one", n)
	}
}
