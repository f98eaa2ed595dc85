package hostcore

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestRestartedHalfStatesDeadHostOfItsFirstRead: a half that starts beside a raised neighbour-host bit has the dead host in its first
// digest, unless the fault map alone raised the bit.
func TestRestartedHalfStatesDeadHostOfItsFirstRead(t *testing.T) {
	for word, want := range map[string]fault.State{"dead": fault.Failed, "dead-in-map": 0, "ok": fault.Normal} {
		w := newWorld(t, "3x1x1", "0,0,0", nil)
		w.neighbour(grid.XPlus, []string{word})
		w.run(AnnounceAfter(w.m.cfg.Periods))
		if s := w.m.ledger.State("n1-0-0", fault.ComponentHost); !w.m.announced || s != want {
			t.Errorf("neighbour %s: announced %t, its host is %s: want true, %s (0: no statement)", word, w.m.announced, s, want)
		}
	}
	w := newWorld(t, "2x1x1", "0,0,0", nil)
	n := w.m.cfg.Topo.Neighbours[0]
	if len(n.Dirs) != 2 {
		t.Fatalf("%v: want a neighbour at both ends of the dimension", n)
	}
	w.neighbour(grid.XPlus, []string{"dead"})
	w.neighbour(grid.XMinus, []string{"dead-in-map"})
	w.run(100 * time.Millisecond)
	if s := w.m.ledger.State(n.ID, fault.ComponentHost); s != fault.Failed {
		t.Errorf("own word on one of two links: the host is %s: want FAILED", s)
	}
}
