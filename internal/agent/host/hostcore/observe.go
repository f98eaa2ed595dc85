package hostcore

import (
	"fmt"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// onRegisters passes a taken word to the reader, and turns the register contents into observations.
func (m *Machine) onRegisters(now time.Time, ev Registers) {
	if ev.Unreadable && !m.unreadable {
		m.note(NoteUnreadable, "the register page cannot be read")
	}
	m.unreadable = ev.Unreadable
	m.window = ev.Window
	if ev.Taken {
		m.judge(now, ev.Sample)
		m.observeBus(now)
		if m.verdict == watchdog.Stale && m.window.State != 0 {
			m.stateStale(now, 0) // its kernel may answer only after the verdict, or fall silent
		}
	}
	if m.verdict != watchdog.Alive || ev.Unreadable || ev.Sample.Corrupt {
		return
	}
	// The raw words are kept with Valid as the owner wrote it, even if a reader took the word meanwhile.
	m.registers = ev
	m.observeDNP(now)
	for _, d := range m.cfg.Topo.Links {
		m.observeLink(now, d)
	}
	m.measure(now)
	for _, n := range m.cfg.Topo.Neighbours {
		m.observeNeighbour(now, n)
	}
}

// judge gives the sample of a read to the watchdog reader (seed 001 §III-E).
func (m *Machine) judge(now time.Time, s watchdog.Sample) {
	if s.Corrupt && !m.corrupt {
		m.note(NoteCorrupt, "the DNP watchdog word was torn or flipped: register invalid")
	}
	m.corrupt = s.Corrupt
	out := m.reader.Step(now, func() watchdog.Sample { return s })
	m.readerWake = out.Wake
	if out.Verdict == m.verdict {
		return
	}
	switch out.Verdict {
	case watchdog.Alive:
		m.becomeAlive(now)
	case watchdog.Stale:
		m.becomeStale(now, out.Age)
	default: // nothing leads back to Waiting
	}
}

func (m *Machine) becomeAlive(now time.Time) {
	m.verdict, m.ended = watchdog.Alive, ""
	m.note(NoteDNP, "the DNP half is alive")
	m.state(now, fault.ComponentDNP, fault.Normal, fault.KindWatchdog, "", 0)
	m.setRail(now, fault.PathTorus, 0, true, "")
}

// onEnded draws the conclusion from the end of the DNP half's process, without waiting for missed reads. The watchdog
// remains the judge of a half that hangs.
func (m *Machine) onEnded(now time.Time, ev Ended) {
	if m.verdict == watchdog.Stale {
		return
	}
	out := m.reader.Ended(now)
	m.ended = "its process " + ev.How
	m.note(NoteDNP, "the DNP half is dead: %s", m.ended)
	m.becomeStale(now, min(max(0, ev.Age), out.Age))
}

// observeBus states the bus to the DNP half's kernel, in the report that accuses that half.
func (m *Machine) observeBus(now time.Time) {
	if o, known := m.window.Bus(m.self, m.verdict); known {
		m.ledger.Set(now, o)
	}
}

// becomeStale is the paper's DNP core melt-down, seen by the host (Table II). All states that only the DNP half can
// know become unknown.
func (m *Machine) becomeStale(now time.Time, age time.Duration) {
	m.verdict = watchdog.Stale
	if m.ended == "" {
		m.note(NoteDNP, "the DNP half does not validate its word: last valid %s ago", age.Round(time.Millisecond))
	}
	m.stateStale(now, age)
	m.forgetDNP(now)
	m.setRail(now, fault.PathTorus, 0, false, "the DNP half is dead")
	m.test(now, selftest.Excused{Module: selftest.Module{Kind: selftest.Mailbox}})
}

// stateStale states that the DNP half is dead.
func (m *Machine) stateStale(now time.Time, age time.Duration) {
	halfcore.DeadHalf{Node: m.self, Component: fault.ComponentDNP, Health: m.health.As(now).DNP, Ended: m.ended, Age: age,
		Otherwise: fmt.Sprintf("watchdog word not valid for %d reads", m.cfg.Periods.ReadMisses+1)}.State(now, m.ledger, m.window)
}

// onHealth stores the health of a half.
func (m *Machine) onHealth(now time.Time, ev Health) {
	m.health.Set(now, ev.Half, ev.Health)
	if ev.Half == fault.HalfDNP && m.verdict == watchdog.Stale {
		m.stateStale(now, 0)
	}
}

// forgetDNP sets all states that come from the DNP half to unknown.
func (m *Machine) forgetDNP(now time.Time) {
	for _, c := range []fault.Component{fault.ComponentDNPCore, fault.ComponentTemperature, fault.ComponentPower, fault.ComponentVoltage} {
		m.state(now, c, fault.Unknown, fault.KindSelf, "", 0)
	}
	for _, d := range m.cfg.Topo.Links {
		m.state(now, fault.Link(d), fault.Unknown, fault.KindSelf, "", 0)
	}
	for _, n := range m.cfg.Topo.Neighbours {
		m.forgetNeighbour(now, n)
	}
}

func (m *Machine) observeDNP(now time.Time) {
	r := &m.registers
	var words, why []string
	if r.DNP.Core != watchdog.HealthNormal {
		words, why = m.dnpWhy(now)
	}
	m.because(now, fault.ComponentDNPCore, halfcore.StateOf(r.DNP.Core), words, why)
	m.observeSensor(now, fault.ComponentTemperature, r.DNP.Temperature, r.Temperature, r.Sensed[0])
	m.observeSensor(now, fault.ComponentPower, r.DNP.Power, r.Power, r.Sensed[1])
	m.observeSensor(now, fault.ComponentVoltage, r.DNP.Voltage, r.Voltage, r.Sensed[2])
}

// observeSensor reads a sensor field. The field has no value for a missing sensor. A value register of 0 stands for
// that, and then normal is not believed.
func (m *Machine) observeSensor(now time.Time, c fault.Component, h watchdog.Health, value uint32, beside Sensed) {
	s, kind := halfcore.StateOf(h), fault.KindSelf
	if s == fault.Normal && value == 0 {
		if s = fault.Unknown; beside.Thousandths == watchdog.AbsentSensor {
			kind = fault.KindAbsent
		}
	}
	detail := ""
	if s == fault.Sick || s == fault.Failed {
		detail = sensorText(c, byte(value))
	}
	m.state(now, c, s, kind, detail, 0)
}

func sensorText(c fault.Component, code byte) string {
	switch {
	case code == 0:
		return ""
	case c == fault.ComponentTemperature:
		return fmt.Sprintf("%d °C", watchdog.DecodeCelsius(code))
	case c == fault.ComponentPower:
		return fmt.Sprintf("%g W", watchdog.DecodeWatts(code))
	}
	return fmt.Sprintf("%.2f V", watchdog.DecodeVolts(code))
}

// observeLink reads a link field together with its detail. The detail holds the facts for which the field has no
// bits: whether the link was ever up, and which side of it is broken.
func (m *Machine) observeLink(now time.Time, d grid.Direction) {
	h, det := m.registers.DNP.Links[d.Index()], m.registers.Details[d.Index()]
	state, kind, detail := halfcore.StateOf(h), fault.KindSelf, ""
	switch state {
	case fault.Normal:
		if det.Rx == torus.LinkUnknown || det.Tx == torus.LinkUnknown {
			state = fault.Unknown
		}
	case fault.Sick:
		if det.Restarting { // its neighbour reported it
			kind, detail = fault.KindDescriptor, "restarting"
			break
		}
		kind, detail = fault.KindErrorRatio, sides(det, torus.LinkSick)
		if det.ExpressDeaf && det.Rx == torus.LinkNormal {
			detail = torus.DeafDetail
		}
	case fault.Failed:
		switch {
		case det.Silent:
			m.observeSilence(now, d, det)
			return
		case det.Handshake:
			kind, detail = fault.KindHandshake, "the neighbour does not hear this node"
		default:
			detail = sides(det, torus.LinkBroken)
		}
	default: // a field has no value for unknown
	}
	m.state(now, fault.Link(d), state, kind, detail, 0)
}

// observeSilence reports a silent link.
func (m *Machine) observeSilence(now time.Time, d grid.Direction, det torus.Detail) {
	detail, refused := "nothing heard", det.Refused(m.cfg.Periods.Link())
	if refused {
		detail = "nothing heard, and the neighbour's kernel refuses frames"
	}
	m.failed(now, fault.Link(d), fault.KindSilence, detail, det.HeardAge, refused)
}

// sides returns which side of a link has a state.
func sides(d torus.Detail, s torus.LinkState) string {
	switch {
	case d.Rx == s && d.Tx == s:
		return "receiving and sending side"
	case d.Rx == s:
		return "receiving side"
	case d.Tx == s:
		return "sending side"
	}
	return ""
}

// informed reports whether the link receives anything. Over a silent link the DNP half has cleared the neighbour's
// bits because it knows nothing, not because the neighbour is well.
func (m *Machine) informed(d grid.Direction) bool {
	det := m.registers.Details[d.Index()]
	if det.Silent || det.Rx == torus.LinkUnknown || det.Rx == torus.LinkBroken {
		return false
	}
	return m.registers.DNP.Links[d.Index()] != watchdog.HealthBroken || det.Handshake
}

// isAbout reports whether the DNP half's words about a link describe this neighbour. During a change of places, one half may still have the
// earlier neighbour on that link. A DNP half of an earlier version does not state the neighbour.
func (m *Machine) isAbout(d grid.Direction, n halfcore.Neighbour) bool {
	peer := m.registers.Peers[d.Index()]
	return peer == 0 || peer == n.Mark
}

// observeNeighbour reads the DNP half's knowledge of a neighbour's host (Tables III and V): a neighbour bit with an
// empty nibble is a host breakdown; a nibble that is not empty names the cause.
func (m *Machine) observeNeighbour(now time.Time, n halfcore.Neighbour) {
	var known, dead, own bool // own: not by the fault map alone
	var broken watchdog.NeighbourFaults
	var last uint32
	for _, d := range n.Dirs {
		if !m.informed(d) || !m.isAbout(d, n) {
			continue
		}
		known = true
		if !m.registers.DNP.NeighbourHostFailed[d.Index()] {
			continue
		}
		f := m.registers.Descriptor.Neighbours[d.Index()]
		if !f.Any() {
			dead = true
			last = m.registers.Causes[d.Index()]
			own = own || last&watchdog.BitOfMap == 0
		}
		broken.ServiceNetwork = broken.ServiceNetwork || f.ServiceNetwork
		broken.Memory = broken.Memory || f.Memory
		broken.Peripheral0 = broken.Peripheral0 || f.Peripheral0
		broken.Peripheral1 = broken.Peripheral1 || f.Peripheral1
	}
	if !known {
		m.forgetNeighbour(now, n)
		return
	}
	host := fault.Observation{Node: n.ID, Component: fault.ComponentHost, State: fault.Normal, Kind: fault.KindDescriptor}
	if dead {
		host.State, host.Detail = fault.Failed, lastCause(last)
		// The neighbour's DNP half reports this after its own misses, so the last sign is at least this old.
		host.Age = time.Duration(m.cfg.Periods.ReadMisses+1) * m.cfg.Periods.TRead
	}
	if !dead || own || m.ledger.State(n.ID, fault.ComponentHost) == fault.Failed {
		m.ledger.Set(now, host)
	}
	m.observeRemote(now, n.ID, fault.ComponentServiceNetwork, broken.ServiceNetwork, dead)
	m.observeRemote(now, n.ID, fault.ComponentMemory, broken.Memory, dead)
	m.observeRemote(now, n.ID, fault.ComponentPeripheral0, broken.Peripheral0, dead)
	m.observeRemote(now, n.ID, fault.ComponentPeripheral1, broken.Peripheral1, dead)
}

// observeRemote states one field of a neighbour's nibble. It reports no field that was never broken. Other fields
// keep their state when the neighbour's host dies, because nothing new is known then.
func (m *Machine) observeRemote(now time.Time, id fault.NodeID, c fault.Component, broken, hostDead bool) {
	switch {
	case broken:
		m.ledger.Set(now, fault.Observation{Node: id, Component: c, State: fault.Failed, Kind: fault.KindDescriptor})
	case m.ledger.State(id, c) != 0 && !hostDead:
		m.ledger.Set(now, fault.Observation{Node: id, Component: c, State: fault.Normal, Kind: fault.KindDescriptor})
	}
}

func (m *Machine) forgetNeighbour(now time.Time, n halfcore.Neighbour) {
	for _, c := range []fault.Component{
		fault.ComponentHost, fault.ComponentServiceNetwork, fault.ComponentMemory, fault.ComponentPeripheral0, fault.ComponentPeripheral1,
	} {
		if m.ledger.State(n.ID, c) != 0 {
			m.ledger.Set(now, fault.Observation{Node: n.ID, Component: c, State: fault.Unknown, Kind: fault.KindDescriptor})
		}
	}
}

// lastCause reads the host word that a neighbour had when it died.
func lastCause(raw uint32) string {
	w, err := watchdog.DecodeHostWord(raw)
	if err != nil || raw == 0 {
		return "no cause known"
	}
	out := ""
	for _, f := range []struct {
		name string
		h    watchdog.Health
	}{{"service network", w.ServiceNetwork}, {"memory", w.Memory}, {"peripheral 0", w.Peripheral0}, {"peripheral 1", w.Peripheral1}} {
		if f.h == watchdog.HealthNormal {
			continue
		}
		if out != "" {
			out += ", "
		}
		out += fmt.Sprintf("%s %s", f.name, f.h)
	}
	if out == "" {
		return "no cause known"
	}
	return "last known cause: " + out
}

// onReadings handles the readings of this host's sensors (Table II, host fault).
func (m *Machine) onReadings(now time.Time, rs []Reading) {
	m.budget.SensorsAnswered(now)
	for _, r := range rs {
		if r.Quantity != 0 && r.State != fault.Unknown {
			m.moves.Measure(now, r.Component, r.Quantity, r.Value, Above(r.Threshold))
		}
		if !r.State.Valid() {
			r.State = fault.Unknown
		}
		switch r.Component {
		case fault.ComponentServiceNetwork:
			m.sensors[r.Component] = r
			// Carrier lost: change the rails before any time-out expires.
			if down := r.State == fault.Failed; down != m.sensedDown {
				m.sensedDown = down
				m.setRail(now, fault.PathDirect, m.cfg.Sensed, !down, r.Detail)
				if m.cfg.Sensed == 0 { // where the gossip is
					m.setRail(now, fault.PathGossip, 0, !down, r.Detail)
				}
			}
		case fault.ComponentMemory, fault.ComponentPeripheral0, fault.ComponentPeripheral1:
			m.sensors[r.Component] = r
			kind := fault.KindSelf
			if r.Absent && r.State == fault.Unknown {
				kind = fault.KindAbsent
			}
			m.state(now, r.Component, r.State, kind, r.Detail, 0)
		default: // not the host half's
		}
	}
	m.updateServiceNetwork(now)
}

// checkSensors sets the states of sensors that stopped answering to unknown.
func (m *Machine) checkSensors(now time.Time) {
	silence, late := m.budget.SensorsLate(now)
	if !late {
		return
	}
	m.note(NoteSensorStale, "no sensor answered for %s", silence.Round(time.Millisecond))
	for _, c := range []fault.Component{fault.ComponentMemory, fault.ComponentPeripheral0, fault.ComponentPeripheral1} {
		delete(m.sensors, c)
		m.state(now, c, fault.Unknown, fault.KindSelf, "sensors do not answer", 0)
	}
	delete(m.sensors, fault.ComponentServiceNetwork)
	m.updateServiceNetwork(now)
}

// updateHostWord puts the host's own states into its word. If they differ, it has the word written and the DNP half
// woken at once (Table IV).
func (m *Machine) updateHostWord() {
	field := func(c fault.Component) watchdog.Health {
		return halfcore.HealthOf(m.ledger.State(m.self, c))
	}
	w := watchdog.HostWord{
		Valid:          true,
		ServiceNetwork: field(fault.ComponentServiceNetwork),
		Memory:         field(fault.ComponentMemory),
		Peripheral0:    field(fault.ComponentPeripheral0),
		Peripheral1:    field(fault.ComponentPeripheral1),
	}
	if w == m.word {
		return
	}
	m.word = w
	m.out.WriteHost, m.out.Host, m.out.Ring = true, w, true
}

// setRail reports a rail that came up or went down to the outbox.
func (m *Machine) setRail(now time.Time, p fault.Path, iface uint8, up bool, why string) {
	if !slices.Contains(m.cfg.Rails, p) {
		return
	}
	if up {
		m.onHint(now, servicenet.RailUp{Path: p, Interface: iface})
		return
	}
	m.onHint(now, servicenet.RailDown{Path: p, Interface: iface, Why: why})
}
