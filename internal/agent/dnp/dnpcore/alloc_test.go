package dnpcore

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// A heartbeat without news must not cost an allocation: a node gets hundreds a second.
func TestHeartbeatDoesNotAllocate(t *testing.T) {
	w := newWorld(t, "2x2x2", "0,0,0")
	p := w.peer(grid.XPlus)
	ev := &Frame{Dir: p.dir}
	if n := testing.AllocsPerRun(1000, func() {
		w.now = w.now.Add(10 * time.Microsecond)
		ev.Frame = p.machine.NextFrame(p.status)
		w.m.Step(w.now, ev)
	}); n != 0 {
		t.Errorf("%v allocations a heartbeat", n)
	}
}

// A tick of a healthy half must not allocate either, except for the frames that it sends.
func TestTickDoesNotAllocate(t *testing.T) {
	w := newWorld(t, "2x2x2", "0,0,0")
	out := w.m.Step(w.now, Tick{})
	if n := testing.AllocsPerRun(100, func() {
		w.now = w.now.Add(100 * time.Microsecond) // within the write period: nothing is due
		out = w.m.Step(w.now, Tick{})
	}); n != 0 {
		t.Errorf("%v allocations a tick; output %+v", n, out)
	}
}
