package dnpcore

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// sensorRegisters are the registers of one sensor (Table VI; power and voltage have addresses of
// our own), as last written.
type sensorRegisters struct {
	component    fault.Component
	encode       func(float64) byte
	valueAt      watchdog.Addr
	thresholdsAt watchdog.Addr
	value        byte        // 0: no reading
	state        fault.State // of the last reading, by this half's own bounds
	detail       string      // of the last reading
	thresholds   uint32
	own, set     watchdog.Thresholds // this half's bounds, and those that the host half sets over them
}

func newSensorRegisters() [3]sensorRegisters {
	return [3]sensorRegisters{
		{component: fault.ComponentTemperature, encode: watchdog.EncodeCelsius, valueAt: watchdog.AddrTemperature,
			thresholdsAt: watchdog.AddrTemperatureThresholds},
		{component: fault.ComponentPower, encode: watchdog.EncodeWatts, valueAt: watchdog.AddrPower, thresholdsAt: watchdog.AddrPowerThresholds},
		{component: fault.ComponentVoltage, encode: watchdog.EncodeVolts, valueAt: watchdog.AddrVoltage,
			thresholdsAt: watchdog.AddrVoltageThresholds},
	}
}

// sensorField returns the sensor's field of Table III.
func (m *Machine) sensorField(c fault.Component) *watchdog.Health {
	switch c {
	case fault.ComponentTemperature:
		return &m.word.Temperature
	case fault.ComponentPower:
		return &m.word.Power
	default:
		return &m.word.Voltage
	}
}

// onReadings handles the answers of sensors.
func (m *Machine) onReadings(now time.Time, rs []Reading) {
	m.budget.SensorsAnswered(now)
	m.storeReadings(now, rs)
}

// storeReadings writes readings into their fields and registers.
func (m *Machine) storeReadings(now time.Time, rs []Reading) {
	for _, r := range rs {
		for i := range m.sensors {
			if m.sensors[i].component == r.Component {
				m.onReading(now, &m.sensors[i], r)
			}
		}
	}
}

func (m *Machine) onReading(now time.Time, s *sensorRegisters, r Reading) {
	value := byte(0) // no reading
	if r.State.Valid() && r.State != fault.Unknown {
		value = s.encode(r.Value)
	} else {
		r.State = fault.Unknown
	}
	if r.Thresholds != nil {
		s.own = *r.Thresholds
		m.storeThresholds(s)
	}
	if value != s.value {
		// Only the value register shows whether the reading is known.
		m.out.Ring = m.out.Ring || value == 0 || s.value == 0
		s.value = value
		m.store(s.valueAt, uint32(value))
	}
	s.state, s.detail = r.State, r.Detail
	kind := fault.KindSelf
	if r.Absent && r.State == fault.Unknown {
		kind = fault.KindAbsent
	}
	m.stateSensor(now, s, s.judged(r.State), kind)
}

// stateSensor puts a sensor's state into its field and reports it.
func (m *Machine) stateSensor(now time.Time, s *sensorRegisters, state fault.State, kind fault.Kind) {
	if field, h := m.sensorField(s.component), halfcore.HealthOf(state); h != *field {
		*field = h
		m.out.Ring = true
	}
	m.state(now, s.component, state, kind, s.detail)
}

// checkSensors marks sensors that have stopped answering as unknown.
func (m *Machine) checkSensors(now time.Time) {
	silence, late := m.budget.SensorsLate(now)
	if !late {
		return
	}
	m.note(NoteSensorStale, "no sensor answered for %s", silence.Round(time.Millisecond))
	m.raise(now, watchdog.AddrEngine, watchdog.EngineSensor)
	m.storeReadings(now, []Reading{
		{Component: fault.ComponentTemperature}, {Component: fault.ComponentPower}, {Component: fault.ComponentVoltage},
	})
}
