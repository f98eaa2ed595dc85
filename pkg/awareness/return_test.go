package awareness

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestOneReportMayFreeBothHalves: both halves die, then the DNP restarts and reports its host alive. That statement
// counts as soon as the DNP itself is believed again, which the same report achieves: it need not be repeated.
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
	w.run(w.cfg.DigestPeriod / 4) // well before the next digest
	if got := state(fault.ComponentHost); got != fault.Normal {
		t.Errorf("host is %s", got)
	}
	if got := state(fault.ComponentDNP); got != fault.Normal {
		t.Errorf("dnp is %s", got)
	}
}

// TestReturningNodeIsChallengedBeforeVerdict: a node accuses its only neighbour, and both fall silent. When the node returns, its old
// accusation is no immediate verdict: the neighbour is challenged again, and the node's next statement counts.
func TestReturningNodeIsChallengedBeforeVerdict(t *testing.T) {
	for _, c := range []struct {
		name     string
		withdraw bool
		want     fault.State
	}{
		{"it stands by its word", false, fault.Failed},
		{"its next digest says nothing of it", true, fault.Unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := testConfig(grid.Dims{X: 2, Y: 1, Z: 1})
			cfg.DigestMisses = 20 // statements remain valid after the silence
			w, err := newWorld(cfg)
			if err != nil {
				t.Fatal(err)
			}
			host := w.actor(w.id(0), fault.HalfHost)
			host.epoch, host.says = 1, map[subject]statement{}
			w.report(host, false)
			w.run(time.Second)
			w.silenceBy(host, w.dims.At(1), false, 0)
			w.run(4 * time.Second)
			if got := w.state(w.id(1), fault.ComponentNode); got != fault.Unknown {
				t.Fatalf("it is %s by the word of one who is mute", got)
			}

			asked := false
			w.log = func(_ time.Time, out Output) {
				for _, ch := range out.Challenges {
					asked = asked || ch.Node == w.id(1)
				}
			}
			w.report(host, false)
			w.run(time.Millisecond)
			if got := w.state(w.id(1), fault.ComponentNode); got != fault.Unknown || !asked {
				t.Fatalf("it is %s at once, asked anew: %t", got, asked)
			}
			if c.withdraw {
				clear(host.says)
			}
			host.alive, host.nextDigest = true, w.now // its digest follows, and it answers
			w.run(2 * cfg.ChallengeSingle)
			if got := w.state(w.id(1), fault.ComponentNode); got != c.want {
				t.Fatalf("it is %s, want %s", got, c.want)
			}
		})
	}
}
