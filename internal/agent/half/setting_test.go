package half

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"github.com/lofamo/lofamo/pkg/watchdog"
)

func TestSettingsAreWhatTheConfigurationNames(t *testing.T) {
	c := &Common{}
	if got := c.Settings(); len(got) != 0 {
		t.Errorf("of an empty configuration: %v", got)
	}
	warn, alarm := 80.0, 95.0
	c.Config.MaxHops, c.Config.Sensors.Temperature.WarnHigh, c.Config.Sensors.Voltage.AlarmLow = 40, &warn, &alarm
	alarm = 10
	want := []Setting{{watchdog.AddrMaxHops, 40}, {watchdog.AddrTemperatureThresholds, 208 << 16}, {watchdog.AddrVoltageThresholds, 160}}
	if got := c.Settings(); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	got, err := ReadSettings(AppendSettings(nil, want))
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("read back: %v, %v", got, err)
	}
}

func TestSettingsOfWrongLengthAreRefused(t *testing.T) {
	for _, n := range []int{0, 1, 7, 9, 8 * (maxReadSettings + 1)} {
		if got, err := ReadSettings(make([]byte, n)); err == nil {
			t.Errorf("%d bytes: %v", n, got)
		}
	}
	if got, err := ReadSettings(bytes.Repeat([]byte{math.MaxUint8}, 8)); err == nil {
		t.Errorf("address above 0xffff: %v", got)
	}
}

func TestSettingIsInRegisterIfItsBoundsAre(t *testing.T) {
	s := Setting{watchdog.AddrTemperatureThresholds, 0x00d00000}
	for v, want := range map[uint32]bool{0x00d00000: true, 0xdfd00001: true, 0xdfd10000: false, 0: false} {
		if s.In(v) != want {
			t.Errorf("%08x: %t", v, !want)
		}
	}
	if hops := (Setting{watchdog.AddrMaxHops, 9}); hops.In(0x109) || !hops.In(9) {
		t.Error("hops are compared whole")
	}
}
