package integration

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source/sourcetest"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// The threshold registers show the limits that apply: the chip's own, or the configured ones in
// their place.
func TestThresholdRegistersShowAppliedLimits(t *testing.T) {
	sysfs := t.TempDir()
	for line := range strings.SplitSeq(strings.TrimSpace(`
name pmbus
temp1_input 60000
temp1_max 70000
temp1_crit 90000
in0_input 12000
in0_min 11000
in0_max 13000
power1_input 100000000
`), "\n") {
		file, value, _ := strings.Cut(line, " ")
		sourcetest.Write(t, sysfs, "class/hwmon/hwmon0/"+file, value)
	}
	warn, alarm := 75.0, 300.0
	n := newTestNet(t, grid.Dims{X: 2, Y: 1, Z: 1}, func(c *config.Agent) {
		c.Sensors.Sysfs = sysfs
		c.Sensors.Temperature.WarnHigh, c.Sensors.Power.AlarmHigh = &warn, &alarm
	})
	n.start(at0, fault.HalfDNP)
	f := n.awaitFile(filepath.Join(n.cfgs[at0].StateDir, half.RegisterFile))
	defer func() { _ = f.Close() }()
	for addr, want := range map[watchdog.Addr]watchdog.Thresholds{
		watchdog.AddrTemperatureThresholds: {WarnHigh: 128 + 75, AlarmHigh: 128 + 90},
		watchdog.AddrVoltageThresholds:     {WarnLow: 11 * 16, WarnHigh: 13 * 16},
		watchdog.AddrPowerThresholds:       {AlarmHigh: 150},
	} {
		agenttest.Await(n.t, addr.String(), func() bool { v, err := f.Load(addr); return err == nil && v == want.Encode() })
	}
}
