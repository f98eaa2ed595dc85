package dnp

import (
	"math"
	"testing"

	"github.com/lofamo/lofamo/pkg/sensor"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// The decoder of the register would refuse a warning bound beyond the alarm bound.
func TestThresholdsInOrder(t *testing.T) {
	nan := math.NaN()
	for _, tc := range []struct {
		bounds sensor.Bounds
		want   watchdog.Thresholds
	}{
		{sensor.NoBounds(), watchdog.Thresholds{}},
		{sensor.Bounds{AlarmLow: 0, WarnLow: -10, WarnHigh: 80, AlarmHigh: 70},
			watchdog.Thresholds{AlarmLow: 128, WarnLow: 128, WarnHigh: 198, AlarmHigh: 198}},
		{sensor.Bounds{AlarmLow: nan, WarnLow: -10, WarnHigh: 80, AlarmHigh: nan}, watchdog.Thresholds{WarnLow: 118, WarnHigh: 208}},
	} {
		src := sensor.NewHwmon(sensor.HwmonConfig{Sysfs: t.TempDir(), Quantity: sensor.Temperature, Bounds: tc.bounds})
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
