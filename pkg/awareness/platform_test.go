package awareness

import (
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestDeadHostHalfOnSharedKernelIsNoDeadHost: if both halves run under one kernel, a live DNP half proves that the
// kernel lives, so the verdict names the agent's half. An agent that states no platform, or a DNP half on its own
// processor, leaves the verdict unchanged.
func TestDeadHostHalfOnSharedKernelIsNoDeadHost(t *testing.T) {
	const note = "the agent's host half died, not the host"
	for _, tc := range []struct {
		platform fault.Platform
		want     bool
	}{{fault.PlatformSharedKernel, true}, {fault.PlatformDPU, false}, {0, false}} {
		t.Run("platform "+tc.platform.String(), func(t *testing.T) {
			w, err := newWorld(testConfig(grid.Dims{X: 2, Y: 2, Z: 2}))
			if err != nil {
				t.Fatal(err)
			}
			w.platform = tc.platform
			for _, a := range w.order {
				w.boot(a)
			}
			w.run(time.Second)
			var reasons []string
			w.log = func(_ time.Time, out Output) {
				for _, c := range out.Changes {
					if c.To == fault.Failed && c.Component == fault.ComponentHost || c.To == fault.Sick && c.Component == fault.ComponentNode {
						reasons = append(reasons, c.Reason)
						if c.Platform != tc.platform {
							t.Errorf("the change of %s has platform %q: want %q", c.Component, c.Platform, tc.platform)
						}
					}
				}
			}
			id := w.id(0)
			w.actor(id, fault.HalfHost).alive = false
			w.say(w.actor(id, fault.HalfDNP), subject{id, fault.ComponentHost}, fault.Failed, fault.KindWatchdog, 100*time.Millisecond)
			w.run(time.Second)
			if len(reasons) != 2 {
				t.Fatalf("changes of host and node: %q: want one of each", reasons)
			}
			for _, r := range reasons {
				if strings.Contains(r, note) != tc.want {
					t.Errorf("reason %q: want %q in it: %v", r, note, tc.want)
				}
			}
			if st, _ := w.m.Node(id); st.Platform != tc.platform {
				t.Errorf("the map has platform %q: want %q", st.Platform, tc.platform)
			}
			if st, _ := w.m.Node(id); tc.platform != 0 {
				m, err := New(w.cfg, w.now, []NodeStatus{st})
				if err != nil {
					t.Fatal(err)
				}
				if again, _ := m.Node(id); again.Platform != tc.platform {
					t.Errorf("a new leader has platform %q: want %q", again.Platform, tc.platform)
				}
			}
		})
	}
}
