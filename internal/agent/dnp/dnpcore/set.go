package dnpcore

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// Set holds values that the host half sets in registers of this half (seed 001 Table VI): the maximum number of hops, and the
// thresholds of temperature, power and voltage. They overrule this half's own configuration until its process ends;
// then the host half sets them again. The shell has authenticated the host half.
type Set struct{ Values []Store }

func (Set) dnpEvent() {}

// onMail handles what the host half sends.
func (m *Machine) onMail(now time.Time, ev Event) {
	switch ev := ev.(type) {
	case FromHost:
		m.onFromHost(now, ev)
	case Set:
		m.onSet(now, ev)
	case DeadHosts:
		m.onDeadHosts(now, ev)
	}
}

// onSet brings values into force. It refuses those that their register cannot hold, and registers that the host half
// cannot set. A refusal is no exception of this half: the host half's configuration is wrong.
func (m *Machine) onSet(now time.Time, ev Set) {
	for _, v := range ev.Values {
		if err := m.set(now, v); err != nil {
			m.note(NoteRefused, "the host half sets register %s to 0x%x: %v", v.Addr, v.Value, err)
		}
	}
}

func (m *Machine) set(now time.Time, v Store) error {
	if v.Addr == watchdog.AddrMaxHops {
		if v.Value < 1 || v.Value > math.MaxUint8 {
			return fmt.Errorf("maximum of %d hops: want 1 to 255", v.Value)
		}
		m.cfg.MaxHops, m.hopsSet = uint8(v.Value), true
		m.store(v.Addr, v.Value)
		return nil
	}
	for i := range m.sensors {
		s := &m.sensors[i]
		if s.thresholdsAt != v.Addr {
			continue
		}
		want, err := watchdog.DecodeThresholds(v.Value)
		if err != nil {
			return err
		}
		if err := want.Over(s.own).Validate(); err != nil {
			return fmt.Errorf("with the bounds that it leaves to this half: %w", err)
		}
		s.set = want
		m.storeThresholds(s)
		m.judgeSensor(now, s)
		return nil
	}
	return fmt.Errorf("want %s, or the thresholds at %s, %s or %s", watchdog.AddrMaxHops, watchdog.AddrTemperatureThresholds,
		watchdog.AddrPowerThresholds, watchdog.AddrVoltageThresholds)
}

// bounds returns the bounds in force.
func (s *sensorRegisters) bounds() watchdog.Thresholds { return s.set.Over(s.own) }

// storeThresholds writes the bounds in force, if they have changed. If the host half's bounds and this half's new ones
// contradict each other, the host half's alone are in force.
func (m *Machine) storeThresholds(s *sensorRegisters) {
	if s.bounds().Validate() != nil {
		s.own = watchdog.Thresholds{}
	}
	if v := s.bounds().Encode(); v != s.thresholds {
		s.thresholds = v
		m.store(s.thresholdsAt, v)
	}
}

// judgeSensor judges the last reading again.
func (m *Machine) judgeSensor(now time.Time, s *sensorRegisters) {
	if s.value == 0 { // no reading
		return
	}
	m.stateSensor(now, s, s.judged(cmp.Or(s.state, fault.Normal)), fault.KindSelf)
}

// judged returns the state of the last reading. The reading comes with a state by this half's own bounds, which are
// finer than the registers; other bounds in force are the registers'.
func (s *sensorRegisters) judged(own fault.State) fault.State {
	if s.bounds() == s.own || s.value == 0 {
		return own
	}
	return halfcore.StateOf(s.bounds().Classify(s.value))
}
