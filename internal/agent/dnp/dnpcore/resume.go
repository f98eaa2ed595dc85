package dnpcore

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/ledger"
)

// Resume is where a half goes on: what its copy held.
type Resume struct {
	Outbox servicenet.OutboxSnapshot
	// Links are those that have a session; Has says which.
	Links [grid.NumDirections]torus.LinkSnapshot
	Has   [grid.NumDirections]bool
	// Sensors are temperature, power and voltage as the registers have them: until they answer, what they said last holds.
	Sensors [3]Sensed
}

// Sensed is what the registers say of a sensor.
type Sensed struct {
	Value      byte   // 0: no reading
	Thresholds uint32 // the register
	Health     watchdog.Health
}

// resumeSensors lets the sensors' registers and fields be what they were, so that nobody takes a restart for sensors that
// are gone.
func (m *Machine) resumeSensors(now time.Time) {
	for i, was := range m.cfg.Resume.Sensors {
		if was.Value == 0 {
			continue
		}
		s := &m.sensors[i]
		s.value, s.thresholds = was.Value, was.Thresholds
		*m.sensorField(s.component) = was.Health
		m.state(now, s.component, ledger.StateOf(was.Health), fault.KindSelf, "", 0)
	}
}

// resumeLinks lets the links go on. What the registers say of them, and of the neighbours' hosts, is what it was.
func (m *Machine) resumeLinks(now time.Time) {
	for i, l := range m.links {
		if l == nil || !m.cfg.Resume.Has[i] {
			continue
		}
		s := m.cfg.Resume.Links[i]
		l.machine = torus.ResumeLink(l.machine.Config(), now, s)
		l.session, l.detail, l.peer = true, l.machine.Detail(), s.Peer
		m.word.Links[i] = linkHealth(l.detail.State())
		m.exceptions.level(watchdog.AddrChannel(l.dir), watchdog.ChannelSilence, l.detail.Silent)
		m.exceptions.level(watchdog.AddrChannel(l.dir), watchdog.ChannelHandshake, l.detail.Handshake)
		m.stateLink(now, l)
		m.neighbourChanged(l)
	}
}

// Numbers returns where the numbers of the reports stand: to be stored before anything of the step is sent.
func (m *Machine) Numbers() servicenet.OutboxSnapshot { return m.sender.Snapshot() }

// LinkSnapshot returns where a link stands: to be stored before the frames of the step are sent. It is zero where there is none.
func (m *Machine) LinkSnapshot(d grid.Direction) torus.LinkSnapshot {
	if l := m.links[d.Index()]; l != nil {
		return l.machine.Snapshot()
	}
	return torus.LinkSnapshot{}
}
