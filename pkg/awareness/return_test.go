package awareness

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestOneReportMayFreeBothHalves: after the death of both halves the DNP starts anew, and its first word
// says that its host lives. That word counts as soon as the DNP itself is believed again, which the
// same report brings about: nobody has to say it twice.
func TestOneReportMayFreeBothHalves(t *testing.T) {
	w, err := newWorld(testConfig(grid.Dims{X: 2, Y: 2, Z: 2}))
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range w.order {
		w.boot(a)
	}
	w.run(time.Second)
	id := w.id(0)
	host, dnp := w.actor(id, fault.HalfHost), w.actor(id, fault.HalfDNP)
	state := func(c fault.Component) fault.State {
		n, _ := w.m.Node(id)
		for _, s := range n.Components {
			if s.Component == c {
				return s.State
			}
		}
		return n.State
	}

	host.alive = false
	w.say(dnp, subject{id, fault.ComponentHost}, fault.Failed, fault.KindWatchdog, 100*time.Millisecond)
	w.run(time.Second)
	dnp.alive = false
	w.silence(id, false, 80*time.Millisecond)
	w.run(time.Second)
	if state(fault.ComponentNode) != fault.Failed {
		t.Fatalf("the node is %s", state(fault.ComponentNode))
	}

	w.silence(id, true, 0)
	w.run(10 * time.Millisecond)
	dnp.alive, dnp.epoch, dnp.seq = true, dnp.epoch+1, 0
	clear(dnp.says)
	dnp.says[subject{id, fault.ComponentDNP}] = statement{state: fault.Normal, kind: fault.KindSelf, began: w.now}
	dnp.says[subject{id, fault.ComponentHost}] = statement{state: fault.Normal, kind: fault.KindWatchdog, began: w.now}
	w.digest(dnp)
	w.run(w.cfg.DigestPeriod / 4) // well before anything is said again
	if got := state(fault.ComponentHost); got != fault.Normal {
		t.Errorf("host is %s", got)
	}
	if got := state(fault.ComponentDNP); got != fault.Normal {
		t.Errorf("dnp is %s", got)
	}
}
