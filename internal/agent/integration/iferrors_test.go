package integration

import (
	"strconv"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source/sourcetest"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// The error counts of a link's interface reach the link's channel register, and do not make the link sick while it
// misses nothing.
func TestInterfaceErrorsReachChannelRegister(t *testing.T) {
	sysfs := t.TempDir()
	const counter = "class/net/lo/statistics/rx_crc_errors"
	sourcetest.Write(t, sysfs, counter, "17")
	n := newTestNet(t, grid.Dims{X: 2, Y: 1, Z: 1}, func(c *config.Agent) {
		c.Sensors.Sysfs = sysfs
		for d, l := range c.Links {
			l.Interface = "lo"
			c.Links[d] = l
		}
	})
	n.startAll()
	n.awaitHealthy()
	f := n.awaitFile(n.cfgs[at0].StateDir + "/" + half.RegisterFile)
	defer func() { _ = f.Close() }()
	// The first reading is the base: raise the counter until a later one has seen it grow.
	count := 17
	for _, d := range n.dims.Links() {
		agenttest.Await(n.t, "channel "+d.String()+" has a CRC error", func() bool {
			count++
			sourcetest.Write(t, sysfs, counter, strconv.Itoa(count))
			v, err := f.Load(watchdog.AddrChannel(d))
			return err == nil && v&watchdog.ChannelCRC != 0
		})
	}
	n.super.forget()
	for _, d := range n.dims.Links() {
		n.super.awaitState(host0, "n0-0-0", fault.Link(d), fault.Normal, fault.KindSelf)
	}
}
