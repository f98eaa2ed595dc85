package dnpcore

import (
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// A half that resumes reports the sensors' values from the registers until they answer: they were not gone.
func TestResumedHalfKeepsSensorValues(t *testing.T) {
	cfg := newWorld(t, "2x1x1", "0,0,0").cfg
	cfg.Resume.Sensors = [3]Sensed{{Value: 60, Thresholds: 7, Health: watchdog.HealthSick}, {Value: 9}, {}}
	m, err := New(cfg, start, 7)
	if err != nil {
		t.Fatal(err)
	}
	out := m.Step(start, Tick{})
	stored := map[watchdog.Addr]uint32{}
	for _, s := range out.Stores {
		stored[s.Addr] = s.Value
	}
	if stored[watchdog.AddrTemperature] != 60 || stored[watchdog.AddrTemperatureThresholds] != 7 || stored[watchdog.AddrPower] != 9 ||
		stored[watchdog.AddrVoltage] != 0 {
		t.Errorf("registers %v", stored)
	}
	if !out.WriteDNP || out.DNP.Temperature != watchdog.HealthSick || out.DNP.Power != watchdog.HealthNormal {
		t.Errorf("word %+v", out.DNP)
	}
	if s := m.ledger.State(m.self, fault.ComponentTemperature); s != fault.Sick {
		t.Errorf("the temperature is %s", s)
	}
	if out = m.Step(start, Readings{[]Reading{{Component: fault.ComponentTemperature, State: fault.Normal,
		Value: 40}}}); out.DNP.Temperature != watchdog.HealthNormal {
		t.Errorf("it answers, and the word says %s", out.DNP.Temperature)
	}
}
