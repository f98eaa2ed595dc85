package dnpcore

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// Resume is the state from which a half resumes: the content of its copy.
type Resume struct {
	Outbox servicenet.OutboxSnapshot
	// Links are the links with a session; Has says which.
	Links [grid.NumDirections]torus.LinkSnapshot
	Has   [grid.NumDirections]bool
	// Sensors are temperature, power and voltage as in the registers: the last readings hold until new ones arrive.
	Sensors [3]Sensed
}

// Sensed is a sensor's content of the registers.
type Sensed struct {
	Value      byte   // 0: no reading
	Thresholds uint32 // the register
	Health     watchdog.Health
}

// resumeSensors keeps the sensors' registers and fields as they were, so that a restart does not look like a loss of
// the sensors.
func (m *Machine) resumeSensors(now time.Time) {
	for i, was := range m.cfg.Resume.Sensors {
		if was.Value == 0 {
			continue
		}
		s := &m.sensors[i]
		s.value, s.thresholds, s.state = was.Value, was.Thresholds, halfcore.StateOf(was.Health)
		*m.sensorField(s.component) = was.Health
		m.state(now, s.component, halfcore.StateOf(was.Health), fault.KindSelf, "")
	}
}

// resumeLinks resumes the links. The registers of the links and of the neighbours' hosts keep their values.
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

// Numbers returns the report numbers. They must be stored before any message of the step is sent.
func (m *Machine) Numbers() servicenet.OutboxSnapshot { return m.sender.Snapshot() }

// LinkSnapshot returns the state of a link, or zero where there is none. It must be stored before the frames of the
// step are sent.
func (m *Machine) LinkSnapshot(d grid.Direction) torus.LinkSnapshot {
	if l := m.links[d.Index()]; l != nil {
		return l.machine.Snapshot()
	}
	return torus.LinkSnapshot{}
}
