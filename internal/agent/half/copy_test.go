package half

import (
	"log/slog"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
)

// TestSensorsStatesOutliveColdProcesses: a process that begins cold, and ends before it has read its sensors, loses no state of them. The
// end of a window stays where it is.
func TestSensorsStatesOutliveColdProcesses(t *testing.T) {
	cfg := config.Agent{Node: "n0", StateDir: t.TempDir()}
	open := func(use func(c *Common)) {
		c := &Common{Config: cfg, Half: fault.HalfHost, Topo: &halfcore.Topology{}, Log: slog.New(slog.DiscardHandler)}
		var cs Closers
		c.OpenCopy(&cs)
		use(c)
		cs.Close()
	}
	was := sensor.Reading{Source: "memory", Component: fault.ComponentMemory, State: fault.Sick, Window: time.Hour,
		Until: time.Now().Add(time.Minute)}
	open(func(c *Common) { c.Copy.keepReadings(c.Log, []sensor.Reading{was}) })
	for range 3 {
		open(func(c *Common) {
			if got := c.Copy.Wrong(); len(got) != 1 || got[0].State != fault.Sick || got[0].Until.Sub(was.Until).Abs() > time.Second {
				t.Errorf("%+v: want %+v", got, was)
			}
		})
	}
}
