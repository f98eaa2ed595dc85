package dnpcore

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/ledger"
)

// sensorRegisters are the registers of one sensor (Table VI; power and voltage have addresses of
// our own), as last written.
type sensorRegisters struct {
	component    fault.Component
	encode       func(float64) byte
	valueAt      watchdog.Addr
	thresholdsAt watchdog.Addr
	value        byte // 0: no reading
	thresholds   uint32
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

// onReadings writes the sensors' readings into their fields and registers.
func (m *Machine) onReadings(now time.Time, rs []Reading) {
	m.sensedAt, m.sensorsOld = now, false
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
	if r.Thresholds != nil && r.Thresholds.Encode() != s.thresholds {
		s.thresholds = r.Thresholds.Encode()
		m.store(s.thresholdsAt, s.thresholds)
	}
	if value != s.value {
		// Only the value register shows whether the reading is known.
		m.out.Ring = m.out.Ring || value == 0 || s.value == 0
		s.value = value
		m.store(s.valueAt, uint32(value))
	}
	if field, h := m.sensorField(s.component), ledger.HealthOf(r.State); h != *field {
		*field = h
		m.out.Ring = true
	}
	m.state(now, s.component, r.State, fault.KindSelf, "", 0)
}

// Sensors count as stale after sensorMisses periods without an answer, but not before sensorGrace.
const (
	sensorMisses = 4
	sensorGrace  = 5 * time.Second
)

// checkSensors marks sensors that have stopped answering as unknown.
func (m *Machine) checkSensors(now time.Time) {
	if m.sensorsOld || now.Sub(m.sensedAt) < max(sensorMisses*m.cfg.Periods.SensorPeriod, sensorGrace) {
		return
	}
	m.note(NoteSensorStale, "no sensor answered for %s", now.Sub(m.sensedAt).Round(time.Millisecond))
	m.raise(now, watchdog.AddrEngine, watchdog.EngineSensor)
	m.onReadings(now, []Reading{
		{Component: fault.ComponentTemperature}, {Component: fault.ComponentPower}, {Component: fault.ComponentVoltage},
	})
	m.sensorsOld = true
}
