// Package dnpcore is the DNP Fault Manager (seed 001 §III-B, §III-E, §IV-B) as a pure machine. It keeps the DNP's
// watchdog word alive, watches the host's, runs the six links, reports the state of its host to the neighbours and the
// state of theirs to the host, and carries messages through the torus for nodes that have no other route (§III-D).
//
// It is pure: it reads no register, signs nothing and opens no socket. It puts its effects into its Output, and the
// shell (internal/agent) or the simulator carries them out.
//
// # What raises the exception registers (Table VI)
//
// A bit stays set for Config.Hold after its condition last held. The DNP core is sick while any bit of router 0, RDMA
// or engine is set that counts as its own fault (watchdog.CoreHealth); channel bits explain the links' own fields.
//
//	router 0  hops exceeded      a message had made all the torus hops allowed to it
//	          no route           no link that works leads on, links having had time to come up; or a message
//	                             has made all its hops and has not arrived
//	          protocol           a neighbour did what no loss, delay or restart makes: see Rule
//	          malformed          this half could not encode a message
//	          cache full         not raised: the memory of messages forgets the oldest instead
//	          self-test          relayed messages to this node itself do not come as they went
//	router 1  queue full         more messages came by that link than Config.RelayRate allows
//	RDMA      mailbox full       the host half has not emptied its mailbox for two seconds (shell)
//	          mailbox unreadable a mailbox message failed its checksum or its decoder (shell)
//	          self-test          the mailbox loses or damages messages
//	engine    register file      the register page could not be read or written
//	          host word corrupt  the host word did not agree with its guard
//	          late               this half did not run for LateException: stopped, or starved;
//	                             alone it makes the core not sick
//	          sensor silent      the sensors stopped answering
//	          error survived     not raised yet
//	          self-test          a link, the registers, the report path or the bulk path is wrong
//	          restarted          not all that was in use has passed its self-test yet
//	channel   CRC (the interface's own count included), MAC, malformed, gaps, replays: counters
//	          that moved within the last sensor period; handshake, silence: as the link is now;
//	          send: the kernel refused (shell)
package dnpcore

import (
	"cmp"
	"fmt"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/routing"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
)

// LateException is how long this half must have been stalled before its engine counts as late. It is long because a
// busy machine is not a sick DNP.
const LateException = time.Second

// DefaultLinkGrace is enough for a cold start of a whole cluster on a busy machine.
const DefaultLinkGrace = 5 * time.Second

// Config configures a machine.
type Config struct {
	Topo    *halfcore.Topology
	Periods config.Periods
	// Window: a window joins this half to the kernel of the other half.
	Window  bool
	MaxHops uint8 // register 0x08: maximum torus hops of a message
	// Certificate is the size of the half's certificate in bytes; 0: a usual one.
	Certificate int
	// LinkGrace is how long after the start a link may stay silent; 0: DefaultLinkGrace.
	LinkGrace time.Duration
	// Hold is how long an exception bit stays set; 0: ten digest periods.
	Hold time.Duration
	// RelayRate bounds the messages relayed per second for each link; 0: 500. The burst is as large.
	RelayRate int
	// Kept holds undelivered reports of earlier incarnations.
	Kept []servicenet.Kept
	// Resume is the state to resume from; its zero value means a cold start.
	Resume Resume
	// BulkRate bounds the back messages relayed per second for each link; 0: 250. They do not count against RelayRate,
	// so that reports never wait for them. BulkBurst is the burst size; 0: 64.
	BulkRate, BulkBurst int
	SelfTest            halfcore.SelfTestConfig // the zero value: off
	Budget              float64                 // processor time that the half may use, in percent of one core; 0: no limit
	// Hops is the state of forwarded messages that an earlier incarnation kept.
	Hops Hops
	// NoHops simulates a half of an earlier version, for tests: it neither acknowledges messages nor waits for
	// acknowledgements.
	NoHops bool
	// Express is the state of broadcasts that an earlier incarnation kept.
	Express express.Resume
	// NoExpress simulates a half of an earlier version, for tests: it knows no broadcasts.
	NoExpress bool
	// Mask is the channel mask that an earlier incarnation kept; nil: chanmask.Fresh. MaskLost says that a mask was
	// kept but cannot be read.
	Mask     *chanmask.State
	MaskLost bool
	// Masked lists the channels that the configuration masks.
	Masked []grid.Direction
	// Peers is the half's knowledge of the peers of its links; nil: it accepts no peer orders, like halves of earlier
	// versions.
	Peers *halfcore.PeersConfig
	// Orders are the known kinds of orders that have no messages of their own. StoredOrders is the state of these that
	// an earlier incarnation stored (Output.KeepOrders), OrdersLost the error with which the disk refused to read it.
	Orders       order.Registry[order.PlainNode]
	StoredOrders []byte
	OrdersLost   error
	// MaxFrame bounds a torus frame, in bytes; 0: torus.DefaultMaxFrame.
	MaxFrame int
	// NoFlow makes a half ignore flow control, for tests.
	NoFlow bool
	// Routing chooses the route of messages that have a destination; 0: routing.Chaos.
	Routing routing.Algorithm
	// Procedure sets this half's part in the fault management procedure besides supervisors' orders.
	Procedure ProcedureConfig
	// Seed seeds the random choice among equally good routes, and the names of the streams of new links; 0: derived from boot epoch and
	// coordinate. It must differ between incarnations of one boot epoch, and need not be secret.
	Seed uint64
}

func (c Config) withDefaults() Config {
	if c.LinkGrace == 0 {
		c.LinkGrace = cmp.Or(c.Periods.LinkGrace, DefaultLinkGrace)
	}
	if p := c.Peers; p != nil && p.Spare && p.State.Placed { // it joins or moves: the other ends follow their orders meanwhile
		c.LinkGrace = max(c.LinkGrace, relinkGrace)
	}
	c.Hold = cmp.Or(c.Hold, 10*c.Periods.DigestPeriod)
	c.RelayRate = cmp.Or(c.RelayRate, 500)
	c.BulkRate = cmp.Or(c.BulkRate, 250)
	c.BulkBurst = cmp.Or(c.BulkBurst, 64)
	c.MaxFrame = cmp.Or(c.MaxFrame, torus.DefaultMaxFrame)
	c.Routing = cmp.Or(c.Routing, routing.Chaos)
	return c
}

// Machine is one DNP half. One goroutine owns it.
//
//	host half:  Waiting ──valid──► Alive ◄──valid── Stale
//	                └──grace over──────┴──K+1 misses──►┘
//
// While the host is Stale, this half reports in its place: it is speaking.
type Machine struct {
	cfg    Config
	self   fault.NodeID
	start  time.Time
	ledger *halfcore.Ledger
	sender *servicenet.Sender
	writer *watchdog.Writer
	reader *watchdog.Reader
	seen   *halfcore.RelaysSeen

	links [grid.NumDirections]*link // nil where the torus has no link

	verdict    watchdog.Verdict
	ended      string            // how the host half's process ended; empty: not known to have ended
	host       watchdog.HostWord // last good content
	word       watchdog.DNPWord
	descriptor watchdog.DescriptorWord
	exceptions exceptions
	sensors    [3]sensorRegisters
	hopsSet    bool // the host half has set the maximum number of hops

	window     halfcore.Window // at the last read
	told       torus.Status    // what the neighbours know about the host half: Host and HostDead
	deadHosts  deadHosts
	readerWake time.Time
	writerWake time.Time
	digestAt   time.Time // while speaking
	aliveAt    time.Time // when to report that the host half is alive; zero: not
	withdrawAt time.Time // zero: nothing to withdraw
	lookAt     time.Time // when to look at the links' counters
	lastTick   time.Time

	speaking   bool
	begun      bool // the first tick is done and the registers are filled in
	corrupt    bool
	unreadable bool
	unreads    int // consecutive failures to read the registers

	lateness halfcore.Lateness
	budget   halfcore.Budget
	due      time.Time // result of the last step

	health      halfcore.HealthLog
	wordsSerial uint32 // of the newest last words of the host's kernel; 0: none
	selfTest    selfTest
	diagnosis   diagnosisState
	mapping     mappingState
	hops        hops
	express     expressHalf
	barriers    barriers
	data        dataHalf
	mask        masks
	procedure   procedureState
	peers       peerWord
	relinked    time.Time // when an order last changed the torus, or the peers of links; zero: never
	orders      order.Registry[orderKind]
	plain       *order.Node // handles the kinds of orders that have no messages of their own
	bulkDropped uint64      // back messages that were not forwarded
	random      *routing.Random
	routed      RouteStats
	reorder     routing.Reorder
	lossNotes   noteLimit // about incomplete messages
	flow        routing.Flow
	flowStats   FlowStats
	inject      bucket // limits chunks of this node while another node is overloaded

	configuration configurations
	master        mastership

	out    Output // output of the current step
	frames []Outgoing
	redial []grid.Direction
}

// New returns a machine that starts now with the given boot epoch. The first Tick is due at once.
func New(cfg Config, now time.Time, epoch fault.Epoch) (*Machine, error) {
	cfg = cfg.withDefaults()
	if cfg.Seed == 0 {
		cfg.Seed = uint64(epoch)<<32 ^ uint64(cfg.Topo.Dims.Rank(cfg.Topo.Coord))
	}
	p := cfg.Periods
	if err := watchdog.CheckPeriods(p.TWrite, p.TRead); err != nil {
		return nil, err
	}
	box := halfcore.OutboxConfig(p, fault.PathTorus)
	box.Certificate = cfg.Certificate
	sender, err := servicenet.NewSender(fault.Origin{Node: cfg.Topo.Node, Half: fault.HalfDNP}, epoch, box)
	if err != nil {
		return nil, fmt.Errorf("DNP half of %s: %w", cfg.Topo.Node, err)
	}
	m := &Machine{
		cfg: cfg, self: cfg.Topo.Node, start: now, ledger: halfcore.NewLedger(), sender: sender,
		writer:     watchdog.NewWriter(watchdog.WriterConfig{TWrite: p.TWrite}),
		reader:     watchdog.NewReader(watchdog.ReaderConfig{TRead: p.TRead, Misses: p.ReadMisses}, now),
		seen:       halfcore.NewRelaysSeen(1024, seenFor),
		verdict:    watchdog.Waiting,
		readerWake: now, writerWake: now, lookAt: now, lastTick: now, lateness: halfcore.NewLateness(p, now),
		budget:     halfcore.NewBudget(cfg.Budget, p.SensorPeriod, now),
		exceptions: newExceptions(), sensors: newSensorRegisters(), mask: newMasks(cfg, now), peers: newPeerWord(cfg, now),
		random: routing.NewRandom(cfg.Seed), inject: newBucket(max(1, cfg.BulkRate/trickle), 1, now),
	}
	for _, d := range cfg.Topo.Links {
		if m.links[d.Index()], err = newLink(cfg, d, now); err != nil {
			return nil, err
		}
	}
	m.express = newExpress(cfg, now, epoch)
	m.barriers = newBarriers(cfg)
	m.procedure = newProcedure(cfg)
	m.newPlain(cfg)
	m.data = newData(cfg)
	m.resumeLinks(now)
	m.resumeHops(now, cfg.Hops)
	m.resumeSensors(now)
	m.state(now, fault.ComponentHost, fault.Unknown, fault.KindWatchdog, "not seen yet")
	m.state(now, fault.ComponentDNP, fault.Normal, fault.KindSelf, "")
	m.state(now, fault.ComponentDNPCore, fault.Normal, fault.KindSelf, "")
	if cfg.Resume.Outbox.Epoch == epoch {
		m.sender.Resume(cfg.Resume.Outbox)
	}
	m.selfTest, m.mapping = newSelfTest(cfg, now), newMapping(now)
	m.beginProof(now)
	m.sender.Restore(now, cfg.Kept)
	m.sender.Step(now, servicenet.Supervisors{})
	for _, d := range cfg.Topo.Links {
		l := m.links[d.Index()]
		l.machine.SetStatus(m.status(l)) // held messages may go out before the first heartbeat
	}
	return m, nil
}

// seenFor is how long a half remembers a relayed message. A flood ends long before, and a supervisor may repeat a
// challenge in the same bytes.
const seenFor = 250 * time.Millisecond

// Step handles one event.
func (m *Machine) Step(now time.Time, ev Event) Output {
	m.beginStep(now)
	switch ev := ev.(type) {
	case Tick:
		m.tick(now)
	case Refresh:
		m.fillPage()
	case *Frame:
		m.onFrame(now, ev)
	case *Waited:
		for i := range ev.Frames {
			m.onFrame(now, &ev.Frames[i])
		}
	case Host:
		m.onHost(now, ev)
	case Readings:
		m.onReadings(now, ev.Readings)
	case Bad, Session, Refused:
		m.onLink(now, ev)
	case FromHost, Set, DeadHosts:
		m.onMail(now, ev)
	case Opened:
		m.onOpened(now, ev.Opened)
	case Sealed:
		m.onSealed(now, ev)
	case Acted:
		m.onActed(ev)
	case RaiseEureka:
		m.onRaiseEureka(now, ev)
	case ArriveAt:
		m.onArriveAt(now, ev)
	case LeaveBarrier:
		m.onLeaveBarrier(now, ev)
	case Back:
		m.use(now, selftest.Module{Kind: selftest.Bulk})
		m.beginBack(now, ev.Message, 0)
	case Exception:
		m.exceptions.raise(now.Add(m.cfg.Hold), ev.Register, ev.Bits)
	case DataOpened:
		m.onDataOpened(now, ev)
	case OwnMask:
		m.setHeld(now, ev.Mask)
	case MaskKept, PeersKept, OrdersKept, OrderApplied:
		m.onCarriedOut(now, ev)
	case NotTaken:
		m.onNotTaken(now, ev.Slot)
	case Hint:
		m.sender.Step(now, ev.Event)
	case Test:
		m.test(now, ev.Event)
	case TestMail:
		m.onTestMail(now, ev)
	case Health:
		m.onHealth(now, ev)
	case Ended:
		m.onEnded(now, ev)
	case Spent:
		m.onSpent(now, ev)
	}
	m.followDrain(now)
	m.publish(now)
	m.report(now)
	m.deliver(now)
	m.useOutput(now)
	m.commit()
	m.out.Frames, m.out.Redial = m.frames, m.redial
	m.out.Wake = m.wake()
	m.due = m.out.Wake
	return m.out
}

// beginStep empties the output and measures the lateness of the step.
func (m *Machine) beginStep(now time.Time) {
	m.out = Output{}
	m.frames, m.redial, m.hops.keep = m.frames[:0], m.redial[:0], m.hops.keep[:0]
	if m.express.machine != nil {
		m.express.machine.HandedOver()
	}
	m.measureLateness(now)
}

// measureLateness records whether this half ran in time. Sensors owe no answer for the time in which it did not run.
func (m *Machine) measureLateness(now time.Time) {
	away, changed := m.lateness.Ran(now, m.due)
	m.budget.SensorsOweNothingFor(away)
	if changed {
		m.note(NoteLate, "%s", &m.lateness)
	}
}

// Lateness returns the measure of how late this half runs.
func (m *Machine) Lateness() *halfcore.Lateness { return &m.lateness }

// tick does all due work: everything periodic happens on the write period.
func (m *Machine) tick(now time.Time) {
	if now.Sub(m.lastTick) > LateException {
		m.raise(now, watchdog.AddrEngine, watchdog.EngineLate)
	}
	m.lastTick = now
	if !m.begun {
		m.begun = true
		m.fillPage()
		m.plainOutput(m.plain.Start(now))
	}
	m.tickExpress(now)
	m.tickBarriers(now)
	m.tickProcedure(now)
	m.tickData(now)
	m.tickMaster(now)
	m.tickHeld(now)
	m.tickFlow(now)
	m.missing(now, m.reorder.Tick(now))
	write, wake := m.writer.Step(now)
	m.writerWake = wake
	if write {
		m.out.WriteDNP = true
	}
	if !now.Before(m.readerWake) {
		m.out.TakeHost = true
	}
	for _, l := range m.links {
		if l != nil {
			m.tickLink(now, l)
		}
	}
	if !now.Before(m.lookAt) {
		m.lookAt = now.Add(m.cfg.Periods.SensorPeriod)
		m.watchChannels(now)
	}
	m.checkSensors(now)
	m.tickTests(now)
	m.tickDiagnosis(now)
	m.tickMapping(now)
	m.tickConfiguration(now)
	m.tickMask(now)
	m.tickPeers(now)
	m.tickDeadHosts(now)
	m.plainOutput(m.plain.Tick(now))
	m.sender.Tick(now)
}

// fillPage writes all registers into a page that may be empty or hold values of an earlier incarnation.
func (m *Machine) fillPage() {
	m.store(watchdog.AddrMaxHops, uint32(m.cfg.MaxHops))
	m.store(watchdog.AddrChannelMask, uint32(m.mask.force))
	for i := range m.sensors {
		s := &m.sensors[i]
		m.store(s.thresholdsAt, s.thresholds)
		m.store(s.valueAt, uint32(s.value))
	}
	for _, r := range m.exceptions.registers {
		m.store(r.addr, r.value)
	}
	m.out.WriteDescriptor, m.out.WriteDNP = true, true
	for _, d := range grid.Directions() {
		if l := m.links[d.Index()]; l != nil {
			m.out.Details = append(m.out.Details, l.extension())
			m.out.Causes = append(m.out.Causes, Extension{l.dir, l.cause})
			m.storePeer(l.dir)
		} else { // the earlier incarnation may have had a link there
			m.out.Details = append(m.out.Details, Extension{d, torus.Detail{Rx: torus.LinkUnknown, Tx: torus.LinkUnknown}.Encode()})
		}
	}
}

// storePeer stores the mark of a link's peer: the node that the other words about the link describe.
func (m *Machine) storePeer(d grid.Direction) {
	m.out.Peers = append(m.out.Peers, Extension{d, m.cfg.Topo.PeerMark(d)})
}

func (m *Machine) store(a watchdog.Addr, v uint32) {
	m.out.Stores = append(m.out.Stores, Store{a, v})
}

// publish updates the word. If it changed, publish has it written and the host woken at once.
func (m *Machine) publish(now time.Time) {
	m.out.Stores = append(m.out.Stores, m.exceptions.settle(now)...)
	if core := m.exceptions.core(); core != m.word.Core || m.selfTest.changed {
		detail, why := "", ""
		if core != watchdog.HealthNormal {
			detail, why = m.coreDetail()
		}
		if core != m.word.Core {
			m.note(NoteCore, "DNP core %s %s", core, detail)
		}
		m.out.Ring = m.out.Ring || core != m.word.Core
		m.word.Core = core
		m.ledger.Because(now, fault.Observation{
			Node: m.self, Component: fault.ComponentDNPCore, State: halfcore.StateOf(core), Kind: fault.KindSelf, Detail: detail,
		}, why)
	}
	m.selfTest.changed = false
	m.out.WriteDNP = m.out.WriteDNP || m.out.Ring
	if m.out.WriteDNP {
		m.word.Valid = true
		m.out.DNP = m.word
	}
	if m.out.WriteDescriptor {
		m.out.Descriptor = m.descriptor
	}
}

// wake returns when Step must be called again.
func (m *Machine) wake() time.Time {
	w := fault.Earlier(m.writerWake, m.readerWake)
	for _, l := range m.links {
		if l != nil {
			w = fault.Earlier(w, l.wake)
		}
	}
	for _, at := range [...]time.Time{m.sender.Wake(), m.diagnosis.wake, m.procedure.wake, m.mapping.wake, m.mapping.sayAt} {
		if !at.IsZero() {
			w = fault.Earlier(w, at)
		}
	}
	if m.diagnosis.say != 0 {
		w = fault.Earlier(w, m.diagnosis.sayAt)
	}
	return w
}

// state records the state of a component of this node.
func (m *Machine) state(now time.Time, c fault.Component, s fault.State, k fault.Kind, detail string) {
	m.ledger.Set(now, fault.Observation{Node: m.self, Component: c, State: s, Kind: k, Detail: detail})
}

// failed states that the host half is dead, or that a link has failed. ended: a kernel reported the end of the process.
func (m *Machine) failed(now time.Time, c fault.Component, k fault.Kind, detail string, age time.Duration, ended bool) {
	m.ledger.Set(now, fault.Observation{Node: m.self, Component: c, State: fault.Failed, Kind: k, Detail: detail, Age: age, Ended: ended})
}

func (m *Machine) note(k NoteKind, format string, args ...any) {
	m.out.Notes = append(m.out.Notes, Note{k, fmt.Sprintf(format, args...)})
}

func (m *Machine) raise(now time.Time, a watchdog.Addr, bits uint32) {
	m.exceptions.raise(now.Add(m.cfg.Hold), a, bits)
}

// WatchdogStats returns the counters of the watching side, and how often this half wrote its own word late.
func (m *Machine) WatchdogStats() (watchdog.ReaderStats, uint64) {
	return m.reader.Stats(), m.writer.Missed()
}

// Verdict returns this half's verdict on the host half.
func (m *Machine) Verdict() watchdog.Verdict { return m.verdict }

// Epoch returns the current boot epoch.
func (m *Machine) Epoch() fault.Epoch { return m.sender.Epoch() }

// Health returns the health of this node's halves, as far as this half knows it.
func (m *Machine) Health(now time.Time) servicenet.Health { return m.health.As(now) }

// OutboxStats returns the counters of the sender's log.
func (m *Machine) OutboxStats() servicenet.OutboxStats { return m.sender.Stats() }
