package dnp

import (
	"math"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
)

func (d *dnpHalf) onReadings(rs []sensor.Reading) {
	ev := dnpcore.Readings{Readings: make([]dnpcore.Reading, 0, len(rs))}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	d.readDue(now)
	for i, r := range rs { // in the order of the sources
		if dir, ok := r.Component.LinkDirection(); ok {
			d.onInterfaceErrors(now, dir, r)
			continue
		}
		ev.Readings = append(ev.Readings, dnpcore.Reading{
			Component: r.Component, State: r.State, Absent: r.Absent, Value: r.Value, Detail: r.Detail, Thresholds: thresholds(d.sources[i]),
		})
		beside := int32(0) // finer than the register
		switch {
		case r.State != fault.Unknown:
			beside = int32(math.Round(min(max(r.Value*1000, math.MinInt32+1), math.MaxInt32)))
		case r.Absent:
			beside = watchdog.AbsentSensor
		}
		_ = d.page.File.SetSensor(r.Component, beside)
	}
	d.apply(now, d.core.Step(now, ev))
}

// onInterfaceErrors passes new errors of a link's interface to the link's machine. The reading is a sum, so a repeated
// reading does no harm.
func (d *dnpHalf) onInterfaceErrors(now time.Time, dir grid.Direction, r sensor.Reading) {
	told, total := &d.ifErrors[dir.Index()], uint64(r.Value)
	if r.State == fault.Unknown || total <= *told {
		return
	}
	bad := dnpcore.Bad{Dir: dir, Kind: torus.BadInterface, Count: total - *told}
	*told = total
	d.settle(now, d.core.Step(now, bad))
}

// thresholds returns a source's bounds as register codes; nil when it has none.
func thresholds(s sensor.Source) *watchdog.Thresholds {
	bounded, ok := s.(interface{ Bounds() sensor.Bounds })
	if !ok {
		return nil
	}
	b := bounded.Bounds()
	// A warning beyond the alarm never comes: it is the alarm. Comparisons with NaN, no bound, are false.
	if b.WarnLow < b.AlarmLow {
		b.WarnLow = b.AlarmLow
	}
	if b.WarnHigh > b.AlarmHigh {
		b.WarnHigh = b.AlarmHigh
	}
	encode := watchdog.EncodeVolts
	switch s.Component() {
	case fault.ComponentTemperature:
		encode = watchdog.EncodeCelsius
	case fault.ComponentPower:
		encode = watchdog.EncodeWatts
	default:
	}
	return &watchdog.Thresholds{
		AlarmLow: encode(b.AlarmLow), WarnLow: encode(b.WarnLow), WarnHigh: encode(b.WarnHigh), AlarmHigh: encode(b.AlarmHigh),
	}
}
