// Package hostcore is the Host Fault Manager (seed 001 §III-B, §III-E) as a pure machine. It keeps the host's
// watchdog word alive, watches the DNP's, turns registers and sensor readings into observations, and reports them to
// the supervisors through an outbox. It answers challenges and is the neighbours' way to the service network when
// theirs is gone (§III-D).
//
// It is pure: it reads no register, signs nothing and opens no socket. It requests these effects in its Output, and
// the shell (internal/agent) or the simulator performs them. It decides nothing about other nodes: that is the
// supervisors' business.
package hostcore

import (
	"fmt"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
)

// Config sets a machine.
type Config struct {
	Topo    *halfcore.Topology
	Periods config.Periods
	// Window: a window joins this half to the kernel of the other half.
	Window  bool
	MaxHops uint8 // limit for this half's messages on the torus
	// MaxFrame bounds a torus frame, in bytes; 0: torus.DefaultMaxFrame.
	MaxFrame int
	Rails    []fault.Path // that the half has; PathTorus among them
	// Certificate is the size of the half's certificate in bytes; 0: a usual one.
	Certificate int

	Interfaces []string            // names of the service interfaces by their numbers; at least one with PathDirect
	Sensed     uint8               // number of the interface that the service network's sensor looks at
	Checksums  []lofamov1.Checksum // offered to supervisors, the preferred first; none: the outbox' default
	Kept       []servicenet.Kept   // undelivered reports of earlier lives
	// Resume holds the numbers of the earlier incarnation; the zero value: a cold start, or a new boot epoch.
	Resume Numbers
	// GossipSilence is the time for which gossip counts as working after the last message, once gossip alone speaks
	// for the service network. Values below the outbox's NetworkDeadAfter count as NetworkDeadAfter. After a start, the half
	// waits as long for the first message. 0: the half has no gossip to wait for.
	GossipSilence time.Duration
	SelfTest      halfcore.SelfTestConfig // the zero value: off
	Budget        float64                 // processor time that the half may use, in percent of one core; 0: no limit
}

// Machine is one host half. One goroutine owns it.
//
//	DNP half:  Waiting ──valid──► Alive ◄──valid── Stale
//	               └──grace over──────┴──K+1 misses──►┘
//
// The watchdog.Reader decides between these; becomeAlive and becomeStale draw the conclusions. Ended leads to Stale at
// once.
type Machine struct {
	cfg    Config
	self   fault.NodeID
	start  time.Time
	ledger *halfcore.Ledger
	sender *servicenet.Sender
	writer *watchdog.Writer
	reader *watchdog.Reader

	word       watchdog.HostWord
	verdict    watchdog.Verdict
	ended      string          // how the DNP half's process ended; empty: not known to have ended
	registers  Registers       // last good content
	window     halfcore.Window // at the last read
	readerWake time.Time
	writerWake time.Time
	digestAt   time.Time

	sensors    map[fault.Component]Reading // service network interface, memory, peripherals
	moves      deadbands
	view       *FaultView // the nodes that concern this one
	answered   time.Time  // when a supervisor last answered
	confirmed  time.Time  // when a supervisor last had a quorum, as far as known; zero: never
	stale      bool       // the supervisors that answer have none
	begun      bool       // the first tick is done
	announced  bool       // the first digest is out
	corrupt    bool       // the last taken word was, so that it is noted once
	unreadable bool

	lateness halfcore.Lateness
	budget   halfcore.Budget
	due      time.Time // result of the last step

	targets []string
	asked   asked
	leader  string
	heard   map[string]contact             // supervisors' last answers on the direct rail
	down    [servicenet.MaxInterfaces]bool // service interfaces that are known not to work
	// sensedDown says that the last reading of a service interface took its rails down. A pause of the sensors does not change it.
	sensedDown bool

	network  fault.State // the sender's word that was last looked at
	silent   bool        // as last checked: no rail brings answers
	early    bool        // as last checked: still waiting for the first gossip message
	silentAt time.Time   // time of the last silence; zero: never
	gossip   gossipSigns
	selfTest selfTest
	health   halfcore.HealthLog
	notices  notices
	out      Output // of the step under way
}

// contact is the last answer of a supervisor on the direct rail.
type contact struct {
	at    time.Time
	iface uint8
}

// New returns a machine that starts now with the given boot epoch.
func New(cfg Config, now time.Time, epoch fault.Epoch) (*Machine, error) {
	p := cfg.Periods
	if err := watchdog.CheckPeriods(p.TWrite, p.TRead); err != nil {
		return nil, err
	}
	box := halfcore.OutboxConfig(p, cfg.Rails...)
	box.Interfaces, box.Certificate = cfg.Interfaces, cfg.Certificate
	if len(cfg.Checksums) > 0 {
		box.Checksums = cfg.Checksums
	}
	sender, err := servicenet.NewSender(fault.Origin{Node: cfg.Topo.Node, Half: fault.HalfHost}, epoch, box)
	if err != nil {
		return nil, fmt.Errorf("host half of %s: %w", cfg.Topo.Node, err)
	}
	m := &Machine{
		cfg: cfg, self: cfg.Topo.Node, start: now, ledger: halfcore.NewLedger(), sender: sender,
		view:       NewFaultView(cfg.Topo.Node, cfg.Topo.NeighbourIDs()),
		writer:     watchdog.NewWriter(watchdog.WriterConfig{TWrite: p.TWrite}),
		reader:     watchdog.NewReader(watchdog.ReaderConfig{TRead: p.TRead, Misses: p.ReadMisses}, now),
		verdict:    watchdog.Waiting,
		readerWake: now, writerWake: now,
		digestAt: now.Add(AnnounceAfter(p)), lateness: halfcore.NewLateness(p, now),
		budget:  halfcore.NewBudget(cfg.Budget, p.SensorPeriod, now),
		sensors: map[fault.Component]Reading{}, network: fault.Unknown, heard: map[string]contact{},
		gossip: gossipSigns{fresh: box.NetworkDeadAfter, silence: max(cfg.GossipSilence, box.NetworkDeadAfter),
			joinBy: now.Add(cfg.GossipSilence)},
	}
	m.selfTest = newSelfTest(cfg, now)
	m.stateInitially(now)
	if cfg.Resume.Epoch == epoch {
		m.sender.Resume(cfg.Resume.OutboxSnapshot)
		m.view.Resume(cfg.Resume.List)
	}
	m.sender.Restore(now, cfg.Kept)
	return m, nil
}

// readingsAtOnce is the number of readings for which a healthy node's digest has room.
const readingsAtOnce = 2

// AnnounceAfter returns the longest time from a half's start to its first digest. Until then it does not report
// changes one by one, because everything is new at a start.
func AnnounceAfter(p config.Periods) time.Duration { return 2*p.TRead + p.SensorPeriod/2 }

// stateInitially states every component of the node, so that digests are complete.
func (m *Machine) stateInitially(now time.Time) {
	m.stateSelf(now)
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
	m.measureLateness(now)
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
	case Watch:
		m.view.Watch(ev.Nodes)
	case GossipHeard:
		m.gossip.heard = now
	case Test:
		m.test(now, ev.Event)
	case Used:
		m.use(now, ev.Kind, 0)
	case TestMail:
		m.onTestMail(now, ev)
	case Health:
		m.onHealth(now, ev)
		m.stateSelf(now)
	case Ended:
		m.onEnded(now, ev)
	case Spent:
		m.onSpent(now, ev)
	case Hint:
		m.onHint(now, ev.Event)
	case Acted:
		m.onActed(ev)
	case Restart:
		m.announce(now, fault.Report{Restart: ev.Notice})
	case Stop:
		m.announce(now, fault.Report{Stop: ev.Notice})
	case Neighbours:
		m.onNeighbours(now, ev.Topo)
	}
	m.followNetwork(now)
	m.report(now)
	m.followNetwork(now) // goes with the next report
	m.deliver(now)
	m.useOutput(now)
	m.out.Wake = m.wake()
	m.due = m.out.Wake
	return m.out
}

// measureLateness records whether this half ran in time. Sensors owe no answer for the time in which it did not run.
func (m *Machine) measureLateness(now time.Time) {
	away, changed := m.lateness.Ran(now, m.due)
	m.budget.SensorsOweNothingFor(away)
	m.gossip.owesNothingFor(away)
	if changed {
		m.note(NoteLate, "%s", &m.lateness)
	}
}

// Lateness returns the measure of how late this half runs.
func (m *Machine) Lateness() *halfcore.Lateness { return &m.lateness }

// tick does all work that is due: everything periodic rides on the write period.
func (m *Machine) tick(now time.Time) {
	due, wake := m.writer.Step(now)
	m.writerWake = wake
	if due {
		m.out.WriteHost, m.out.Host = true, m.word
	}
	if !now.Before(m.readerWake) {
		m.out.TakeDNP = true
	}
	m.begun = true
	m.checkSensors(now)
	m.test(now, selftest.Tick{})
	m.sender.Tick(now)
	m.askGossip(now)
}

// wake returns when Step must be called again. Sensors and digests have no wake of their own: they ride on the write
// period, because wake-ups are the cost of an idle half.
func (m *Machine) wake() time.Time {
	w := fault.Earlier(m.writerWake, m.readerWake)
	if at := m.sender.Wake(); !at.IsZero() {
		w = fault.Earlier(w, at)
	}
	return w
}

// report sends the changes of this step, or the digest when it is due.
func (m *Machine) report(now time.Time) {
	m.updateHostWord()
	if !m.announced {
		m.sayRestarted(now)
		known := m.verdict != watchdog.Waiting && len(m.sensors) > 0
		if !known && now.Before(m.digestAt) {
			return
		}
		m.announced, m.digestAt = true, now
		m.ledger.Changes(now) // everything is new: the digest covers it
	}
	if changes := m.ledger.Changes(now); changes != nil {
		m.add(now, fault.Report{Observations: changes})
		if halfcore.NeedDigest(changes, m.cfg.Periods) {
			m.digestAt = fault.Earlier(m.digestAt, now)
		}
	}
	if !now.Before(m.digestAt) && !m.waits(now) {
		m.digestAt = now.Add(m.budget.Level().Digests(m.cfg.Periods))
		m.add(now, fault.Report{Digest: true, Observations: m.ledger.Digest(now), Readings: m.moves.Due(now, readingsAtOnce)})
		m.saidRestarted(now)
	}
}

// waits reports whether a due digest is held back, because only the draining torus could carry it. Without a digest
// no answer is missing, so no rail is called dead over a drain of a few periods. In a longer drain digests go on,
// because the service network may be back.
func (m *Machine) waits(now time.Time) bool {
	return m.registers.Draining && m.verdict == watchdog.Alive && m.sender.Network() == fault.Failed &&
		now.Sub(m.digestAt) < 4*m.cfg.Periods.DigestPeriod
}

func (m *Machine) add(now time.Time, r fault.Report) fault.ReportID {
	r.Uptime = now.Sub(m.start)
	if !r.Digest || r.Uptime < 4*m.cfg.Periods.DigestPeriod { // constant during one life, and later digests by the torus need every byte
		r.Platform = m.platform()
	}
	r.Registers = fault.Registers{
		DNPWatchdog: m.registers.DNPRaw, HostWatchdog: m.word.Encode(), RemoteFaultDescriptor: m.registers.DescriptorRaw,
	}
	return m.sender.Add(now, r)
}

// platform returns the platform of the two halves: halves without a window map one register file.
func (m *Machine) platform() fault.Platform {
	if !m.cfg.Window {
		return fault.PlatformSharedKernel
	}
	return m.window.Platform
}

// deliver copies the outbox's effects and messages of this step to the output.
func (m *Machine) deliver(now time.Time) {
	o := m.sender.Take()
	m.out.SenderEffects = o.SenderEffects
	m.out.Announced = m.notices.settle(o.SenderEffects)
	for i := range o.Send {
		s := &o.Send[i]
		m.out.Send = append(m.out.Send, Send{
			Path: s.Path, Interface: s.Interface, Target: s.Target, Session: s.Session, Checksum: s.Checksum,
			Reports: s.Reports, Status: m.withViewRevision(s.Path, s.Status),
			MayWait: !slices.ContainsFunc(s.Reports, func(r fault.Report) bool { return !r.Digest }),
		})
		if digests(s.Reports) {
			last := &m.out.Send[len(m.out.Send)-1]
			last.Health = servicenet.FitHealth(s, last.Status, m.health.As(now))
		}
	}
	for _, p := range o.Paths {
		m.out.Send = append(m.out.Send, Send{
			Path: fault.PathDirect, Interface: p.Path.Interface, Target: p.Path.Supervisor, Request: p.Request, Ack: p.Ack,
		})
	}
}

// digests reports whether the reports include a digest.
func digests(rs []fault.Report) bool {
	return slices.ContainsFunc(rs, func(r fault.Report) bool { return r.Digest })
}

// state records an observation about this node.
func (m *Machine) state(now time.Time, c fault.Component, s fault.State, k fault.Kind, detail string, age time.Duration) {
	m.ledger.Set(now, fault.Observation{Node: m.self, Component: c, State: s, Kind: k, Detail: detail, Age: age})
}

// failed states that the DNP half is dead, or that a link is silent. ended: a kernel reported the end of the process.
func (m *Machine) failed(now time.Time, c fault.Component, k fault.Kind, detail string, age time.Duration, ended bool) {
	m.ledger.Set(now, fault.Observation{Node: m.self, Component: c, State: fault.Failed, Kind: k, Detail: detail, Age: age, Ended: ended})
}

func (m *Machine) note(k NoteKind, format string, args ...any) {
	m.out.Notes = append(m.out.Notes, Note{k, fmt.Sprintf(format, args...)})
}

// WatchdogStats returns the counters of the watching side, and how often this half came too late to write its own word.
func (m *Machine) WatchdogStats() (watchdog.ReaderStats, uint64) {
	return m.reader.Stats(), m.writer.Missed()
}

// Verdict returns the machine's verdict on the other half.
func (m *Machine) Verdict() watchdog.Verdict { return m.verdict }

// Numbers holds the numbers that a resumed half must not use twice.
type Numbers struct {
	servicenet.OutboxSnapshot
	List uint32 // of the nodes of the jobs here
}

// Numbers returns the current numbers. Store them before sending any message of the step.
func (m *Machine) Numbers() Numbers { return Numbers{m.sender.Snapshot(), m.view.Serial()} }

// Epoch returns the boot epoch in use.
func (m *Machine) Epoch() fault.Epoch { return m.sender.Epoch() }

// OutboxStats returns the counters of the sender's log.
func (m *Machine) OutboxStats() servicenet.OutboxStats { return m.sender.Stats() }

// Delivery returns the delivery status of this half's reports.
func (m *Machine) Delivery(now time.Time) *lofamov1.DeliveryStatus { return m.sender.Status(now) }

// Health returns the health of this node's halves, as far as this half knows it.
func (m *Machine) Health(now time.Time) servicenet.Health { return m.health.As(now) }

// Migrations returns how often the primary path has changed, by reason.
func (m *Machine) Migrations() map[servicenet.MigrationReason]uint64 { return m.sender.Migrations() }

// ComponentState is this half's statement about one component of its node.
type ComponentState struct {
	Component fault.Component
	State     fault.State
}

// States returns this half's statements about its node's components, in their order. It omits components that the node does not have.
func (m *Machine) States() []ComponentState {
	var out []ComponentState
	for _, c := range fault.Components() {
		if s := m.ledger.State(m.self, c); s != 0 && !m.ledger.Absent(m.self, c) {
			out = append(out, ComponentState{c, s})
		}
	}
	return out
}
