package agent

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor"
	"github.com/lofamo/lofamo/pkg/sensor/hwmon"
	"github.com/lofamo/lofamo/pkg/sensor/source/sourcetest"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/agenttest"
	"github.com/lofamo/lofamo/internal/config"
)

// The threshold registers show the limits that apply: the chip's own, or the configured ones in
// their place.
func TestThresholdRegisters(t *testing.T) {
	sysfs := t.TempDir()
	for line := range strings.SplitSeq(strings.TrimSpace(`
name k10temp
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
	f := n.awaitFile(filepath.Join(n.cfgs[at0].StateDir, RegisterFile))
	defer func() { _ = f.Close() }()
	for addr, want := range map[watchdog.Addr]watchdog.Thresholds{
		watchdog.AddrTemperatureThresholds: {WarnHigh: 128 + 75, AlarmHigh: 128 + 90},
		watchdog.AddrVoltageThresholds:     {WarnLow: 11 * 16, WarnHigh: 13 * 16},
		watchdog.AddrPowerThresholds:       {AlarmHigh: 150},
	} {
		agenttest.Await(n.t, addr.String(), func() bool { v, err := f.Load(addr); return err == nil && v == want.Encode() })
	}
}

// A warning bound beyond the alarm bound would be refused by whoever decodes the register.
func TestThresholdsInOrder(t *testing.T) {
	nan := math.NaN()
	for _, tc := range []struct {
		bounds hwmon.Bounds
		want   watchdog.Thresholds
	}{
		{hwmon.NoBounds(), watchdog.Thresholds{}},
		{hwmon.Bounds{AlarmLow: 0, WarnLow: -10, WarnHigh: 80, AlarmHigh: 70}, watchdog.Thresholds{AlarmLow: 128, WarnLow: 128, WarnHigh: 198, AlarmHigh: 198}},
		{hwmon.Bounds{AlarmLow: nan, WarnLow: -10, WarnHigh: 80, AlarmHigh: nan}, watchdog.Thresholds{WarnLow: 118, WarnHigh: 208}},
	} {
		src := hwmon.New(hwmon.Config{Sysfs: t.TempDir(), Quantity: hwmon.Temperature, Bounds: tc.bounds})
		got := thresholds(src)
		if got == nil || *got != tc.want {
			t.Errorf("%v: %+v, want %+v", tc.bounds, got, tc.want)
			continue
		}
		if _, err := watchdog.DecodeThresholds(got.Encode()); err != nil {
			t.Error(err)
		}
	}
	host, err := sensor.HostSources(sensor.DefaultConfig(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if thresholds(host[0]) != nil {
		t.Error("memory has thresholds")
	}
}
