// Package hostcore is the Host Fault Manager (seed 001 §III-B, §III-E) as a pure machine. It keeps
// the host's watchdog word alive, watches the DNP's, turns registers and sensor readings into
// observations, and reports them to the supervisors through an outbox; it answers challenges and
// is the neighbours' way to the service network when theirs is gone (§III-D).
//
// It is pure: it reads no register, signs nothing and opens no socket. What it wants done stands in
// its Output, and the shell (internal/agent) or the simulator does it. It decides nothing about
// other nodes: that is the supervisors' business.
package hostcore

import (
	"fmt"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/ledger"
	"github.com/lofamo/lofamo/internal/agent/topo"
	"github.com/lofamo/lofamo/internal/config"
)

// Config sets a machine.
type Config struct {
	Topo    *topo.Map
	Periods config.Periods
	MaxHops uint8        // allowed to what this half sends by the torus
	Rails   []fault.Path // that the half has; PathTorus among them
}

// Machine is one host half. One goroutine owns it.
//
//	DNP half:  Waiting ──valid──► Alive ◄──valid── Stale
//	               └──grace over──────┴──K+1 misses──►┘
//
// The watchdog.Reader decides between these; becomeAlive and becomeStale draw the conclusions.
type Machine struct {
	cfg    Config
	self   fault.NodeID
	start  time.Time
	ledger *ledger.Ledger
	outbox *servicenet.Outbox
	writer *watchdog.Writer
	reader *watchdog.Reader

	word       watchdog.HostWord
	verdict    watchdog.Verdict
	registers  Registers // last good content
	readerWake time.Time
	writerWake time.Time
	outboxWake time.Time
	digestAt   time.Time
	sensedAt   time.Time

	sensors    map[fault.Component]Reading // service network interface, memory, peripherals
	sensorsOld bool
	network    fault.State // what the outbox says
	announced  bool        // the first digest is out
	corrupt    bool        // the last taken word was, so that it is noted once
	unreadable bool
	late       bool

	targets []string
	leader  string
	heard   map[string]time.Time // supervisors' last RECEIVED on the direct rail

	out Output // of the step under way
}

// New returns a machine that starts now with the given boot epoch.
func New(cfg Config, now time.Time, epoch fault.Epoch) (*Machine, error) {
	p := cfg.Periods
	if err := watchdog.CheckPeriods(p.TWrite, p.TRead); err != nil {
		return nil, err
	}
	box := OutboxConfig(p, cfg.Rails...)
	outbox, err := servicenet.NewOutbox(fault.Origin{Node: cfg.Topo.Node, Half: fault.HalfHost}, epoch, box)
	if err != nil {
		return nil, fmt.Errorf("host half of %s: %w", cfg.Topo.Node, err)
	}
	m := &Machine{
		cfg: cfg, self: cfg.Topo.Node, start: now, ledger: ledger.New(), outbox: outbox,
		writer:     watchdog.NewWriter(watchdog.WriterConfig{TWrite: p.TWrite}),
		reader:     watchdog.NewReader(watchdog.ReaderConfig{TRead: p.TRead, Misses: p.ReadMisses}, now),
		verdict:    watchdog.Waiting,
		readerWake: now, writerWake: now,
		sensedAt: now, digestAt: now.Add(AnnounceAfter(p)),
		sensors: map[fault.Component]Reading{}, network: fault.Unknown, heard: map[string]time.Time{},
	}
	m.stateInitially(now)
	return m, nil
}

// AnnounceAfter is when a half that starts sends its first digest at the latest. Until then
// changes are not reported one by one: everything is new at a start.
func AnnounceAfter(p config.Periods) time.Duration { return 2*p.TRead + p.SensorPeriod/2 }

// OutboxConfig returns the settings of an outbox that follow from the periods. The direct rail may
// leave everything unanswered for more than two digest periods before the service network is
// called failed, so that one lost datagram is not enough.
func OutboxConfig(p config.Periods, rails ...fault.Path) servicenet.OutboxConfig {
	c := servicenet.DefaultOutboxConfig(rails...)
	c.AckTimeout = p.AckTimeout
	c.MaxAckTimeout = max(c.MaxAckTimeout, 2*p.AckTimeout)
	c.MaxBackoff = max(c.MaxBackoff, c.MaxAckTimeout)
	c.NetworkDeadAfter = p.DigestPeriod * 12 / 5
	return c
}

// stateInitially states every component of the node, so that nothing is missing from a digest.
func (m *Machine) stateInitially(now time.Time) {
	m.state(now, fault.ComponentHost, fault.Normal, fault.KindSelf, "", 0)
	m.state(now, fault.ComponentDNP, fault.Unknown, fault.KindWatchdog, "not seen yet", 0)
	for _, c := range []fault.Component{
		fault.ComponentServiceNetwork, fault.ComponentMemory, fault.ComponentPeripheral0, fault.ComponentPeripheral1,
	} {
		m.state(now, c, fault.Unknown, fault.KindSelf, "", 0)
	}
	m.forgetDNP(now)
}

// Step handles one event.
func (m *Machine) Step(now time.Time, ev Event) Output {
	m.out = Output{}
	switch ev := ev.(type) {
	case Tick:
		m.tick(now)
	case Registers:
		m.onRegisters(now, ev)
	case Readings:
		m.onReadings(now, ev.Readings)
	case Received:
		m.onReceived(now, ev)
	case Arrived:
		m.onArrived(now, ev)
	case Supervisors:
		m.onSupervisors(now, ev)
	}
	m.report(now)
	m.out.Wake = m.wake()
	return m.out
}

// tick does what is due: everything periodic rides on the write period.
func (m *Machine) tick(now time.Time) {
	due, wake := m.writer.Step(now)
	m.writerWake = wake
	if due {
		m.out.WriteHost, m.out.Host = true, m.word
	}
	if !now.Before(m.readerWake) {
		m.out.TakeDNP = true
	}
	m.checkSensors(now)
	if !m.outboxWake.IsZero() && !now.Before(m.outboxWake) {
		m.send(now, m.outbox.Step(now, servicenet.Tick{}))
	}
}

// wake returns when Step must be called again. Sensors and digests have no wake of their own: they
// ride on the write period, a wake-up being what an idle half costs.
func (m *Machine) wake() time.Time {
	w := earliest(m.writerWake, m.readerWake)
	if !m.outboxWake.IsZero() {
		w = earliest(w, m.outboxWake)
	}
	return w
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// report sends what changed in this step, or the digest when it is due.
func (m *Machine) report(now time.Time) {
	m.updateHostWord()
	if !m.announced {
		known := m.verdict != watchdog.Waiting && len(m.sensors) > 0
		if !known && now.Before(m.digestAt) {
			return
		}
		m.announced, m.digestAt = true, now
		m.ledger.Changes(now) // everything is new: the digest says it all
	}
	if changes := m.ledger.Changes(now); changes != nil {
		m.add(now, fault.Report{Observations: changes})
	}
	if !now.Before(m.digestAt) {
		m.digestAt = now.Add(m.cfg.Periods.DigestPeriod)
		m.add(now, fault.Report{Digest: true, Observations: m.ledger.Digest(now)})
	}
}

func (m *Machine) add(now time.Time, r fault.Report) {
	r.Uptime = now.Sub(m.start)
	r.Registers = fault.Registers{
		DNPWatchdog: m.registers.DNPRaw, HostWatchdog: m.word.Encode(), RemoteFaultDescriptor: m.registers.DescriptorRaw,
	}
	_, out := m.outbox.Add(now, r)
	m.send(now, out)
}

// send takes over what the outbox wants.
func (m *Machine) send(now time.Time, o servicenet.Output) {
	m.outboxWake = o.Wake
	for i := range o.Send {
		s := &o.Send[i]
		m.out.Send = append(m.out.Send, Send{Path: s.Path, Interface: s.Interface, Target: s.Target, Reports: s.Reports})
	}
	if o.NewEpoch != 0 {
		m.out.NewEpoch = o.NewEpoch
		m.note(NoteEpoch, "the supervisors know a higher boot epoch: going on from %d", o.NewEpoch)
	}
	if o.Dropped > 0 {
		m.note(NoteShortened, "the log of reports is full: %d were coalesced into newer ones", o.Dropped)
	}
	if o.ServiceNetwork.Valid() && o.ServiceNetwork != m.network {
		m.network = o.ServiceNetwork
		m.updateServiceNetwork(now)
	}
}

// state states something about this node.
func (m *Machine) state(now time.Time, c fault.Component, s fault.State, k fault.Kind, detail string, age time.Duration) {
	m.ledger.Set(now, fault.Observation{Node: m.self, Component: c, State: s, Kind: k, Detail: detail, Age: age})
}

func (m *Machine) note(k NoteKind, format string, args ...any) {
	m.out.Notes = append(m.out.Notes, Note{k, fmt.Sprintf(format, args...)})
}

// Verdict returns what the machine holds of the other half.
func (m *Machine) Verdict() watchdog.Verdict { return m.verdict }

// Epoch returns the boot epoch in use.
func (m *Machine) Epoch() fault.Epoch { return m.outbox.Epoch() }

// OutboxStats returns the counters of the sender's log.
func (m *Machine) OutboxStats() servicenet.OutboxStats { return m.outbox.Stats() }

// ComponentState is what this half states of one component of its node.
type ComponentState struct {
	Component fault.Component
	State     fault.State
}

// States returns what this half states of its node's components, in their order.
func (m *Machine) States() []ComponentState {
	var out []ComponentState
	for _, c := range fault.Components() {
		if s := m.ledger.State(m.self, c); s != 0 {
			out = append(out, ComponentState{c, s})
		}
	}
	return out
}
