package dnpcore

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// TestDeadHostIsInRegistersOfSixNeighbours kills the host of a node in a torus of 27, while its DNP half lives. The registers of all six
// neighbours have the neighbour-host bit of their direction towards it, with an empty nibble in the remote fault descriptor, and no
// other register of the torus has such a bit. When the host is back, no bit is left. Over a silent window the fault map decides.
func TestDeadHostIsInRegistersOfSixNeighbours(t *testing.T) {
	alive := halfcore.Window{State: watchdog.WindowAlive}
	for _, test := range []struct {
		name         string
		before, dead halfcore.Window
		byMap        bool
	}{
		{"one kernel", halfcore.Window{}, halfcore.Window{}, false},
		{"its kernel lives", alive, halfcore.Window{State: watchdog.WindowRefused}, false},
		{"its kernel is silent", alive, halfcore.Window{State: watchdog.WindowSilent}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newMesh(t, "3x3x3", 1, func(c *Config) { c.Window = test.before.State != 0 })
			victim := w.node("1,1,1")
			for _, n := range w.nodes {
				n.window = test.before
			}
			w.run(200 * time.Millisecond)
			w.neighbourBits(victim, false, false)
			victim.noHost, victim.window = true, test.dead
			w.run(time.Second)
			if test.byMap {
				w.neighbourBits(victim, false, false)
				w.mapSays(victim, true)
				w.run(200 * time.Millisecond)
			}
			w.neighbourBits(victim, true, test.byMap)
			victim.noHost, victim.window = false, test.before
			w.run(time.Second)
			w.neighbourBits(victim, false, false)
			w.noRuleBroken()
		})
	}
}

// mapSays gives the DNP halves of a node's neighbours the fault map's view of its host, as their host halves do.
func (w *mesh) mapSays(victim *meshNode, dead bool) {
	for _, d := range w.dims.LinksOf(victim.at) {
		var ev DeadHosts
		ev.Dead[d.Opposite().Index()] = dead
		w.step(w.peer(victim, d), ev)
	}
}

// neighbourBits checks the neighbour-host bits of the whole torus: those towards the victim are raised or not, and byMap if the fault map
// alone raised them.
func (w *mesh) neighbourBits(victim *meshNode, raised, byMap bool) {
	w.t.Helper()
	neighbours := map[*meshNode]bool{}
	for _, n := range w.nodes {
		for _, d := range w.dims.LinksOf(n.at) {
			i, want := d.Index(), raised && w.peer(n, d) == victim
			if got := n.page.DNP.NeighbourHostFailed[i]; got != want {
				w.t.Errorf("%s: neighbour-host bit %s is %t: want %t", n.at, d, got, want)
			}
			if f := n.page.Descriptor.Neighbours[i]; f.Any() {
				w.t.Errorf("%s: descriptor of %s has the causes %+v: want none", n.at, d, f)
			}
			if want {
				neighbours[n] = true
				if cause := n.cause(d); cause&watchdog.BitOfMap != 0 != byMap {
					w.t.Errorf("%s: last cause of %s is %#x: want the mark of the fault map: %t", n.at, d, cause, byMap)
				}
			}
		}
	}
	if raised && len(neighbours) != grid.NumDirections {
		w.t.Errorf("%d neighbours have the bit: want %d", len(neighbours), grid.NumDirections)
	}
}

// cause returns the register with the last known cause of a neighbour's host.
func (n *meshNode) cause(d grid.Direction) (v uint32) {
	for _, c := range n.page.Causes {
		if c.Dir == d {
			v = c.Value
		}
	}
	return v
}
