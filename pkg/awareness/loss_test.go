package awareness

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestHungDNPAndBadInterface: the DNP half hangs, so that all neighbours hear nothing on all links and the torus path
// carries nothing, and the only interface of the host loses 30 % of the datagrams each way. The host lives: the node
// may be SICK, its DNP FAILED, but neither node nor host. With only two challenges in the wait, one node in four became
// dead within three seconds.
func TestHungDNPAndBadInterface(t *testing.T) {
	seeds := uint64(600)
	if testing.Short() {
		seeds = 60
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 30))
		w := startedWorld(t, grid.Dims{X: 3, Y: 3, Z: 3})
		host, dnp := w.actor("n1-1-1", fault.HalfHost), w.actor("n1-1-1", fault.HalfDNP)
		host.drops = func() bool { return r.Float64() < 0.3 }
		dnp.alive = false
		w.log = func(at time.Time, out Output) {
			for _, c := range out.Changes {
				if c.Node == "n1-1-1" && c.To == fault.Failed && c.Component <= fault.ComponentHost {
					t.Errorf("seed %d: %s FAILED at %s: %s", seed, c.Component, at.Sub(epoch0), c.Reason)
				}
			}
		}
		w.run(time.Duration(r.IntN(500)) * time.Millisecond)
		w.silence("n1-1-1", false, 80*time.Millisecond)
		w.run(time.Duration(r.IntN(60)) * time.Millisecond)
		w.say(host, subject{"n1-1-1", fault.ComponentDNP}, fault.Failed, fault.KindWatchdog, 100*time.Millisecond)
		w.run(3 * time.Second)
	}
}
