package hostcore

import (
	"math"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// measured lists the DNP half's sensors, in the order of Registers.Sensed, and the unit of a code.
var measured = [3]struct {
	component fault.Component
	quantity  fault.Quantity
	decode    func(byte) float64
}{
	{fault.ComponentTemperature, fault.QuantityTemperature, func(b byte) float64 { return float64(watchdog.DecodeCelsius(b)) }},
	{fault.ComponentPower, fault.QuantityPower, watchdog.DecodeWatts},
	{fault.ComponentVoltage, fault.QuantityVoltage, watchdog.DecodeVolts},
}

// measure follows the values that the DNP half keeps on the page: its sensors, and the loss on its links.
func (m *Machine) measure(now time.Time) {
	for i, v := range [3]uint32{m.registers.Temperature, m.registers.Power, m.registers.Voltage} {
		s := m.registers.Sensed[i]
		t, err := watchdog.DecodeThresholds(s.Thresholds)
		if v == 0 || err != nil || s.Thresholds == 0 {
			continue
		}
		bound := func(code byte) float64 {
			if code == 0 {
				return math.NaN()
			}
			return measured[i].decode(code)
		}
		m.moves.Measure(now, measured[i].component, measured[i].quantity, float64(s.Thousandths)/1000,
			Limits{Low: bound(t.WarnLow), High: bound(t.WarnHigh)})
	}
	for _, d := range m.cfg.Topo.Links {
		if det := m.registers.Details[d.Index()]; m.informed(d) {
			m.moves.Measure(now, fault.Link(d), fault.QuantityCRCRatio, float64(det.Loss)/torus.LossUnits, Above(m.cfg.Periods.LinkSickRatio))
		}
	}
}
