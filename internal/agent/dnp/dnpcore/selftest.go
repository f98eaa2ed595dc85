package dnpcore

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// Test is an event of the self-test: the result of a probe of Output.Probes or Output.TestMail.
type Test struct{ Event selftest.Event }

// TestMail is a mailbox test message of the host half: its own probe, which this half returns, or this half's probe
// coming back.
type TestMail struct {
	Echo bool
	Data []byte
}

func (Test) dnpEvent()     {}
func (TestMail) dnpEvent() {}

// The first byte of a test frame's payload.
const (
	testAsks byte = 1 // a probe to send back
	testEcho byte = 2 // the receiver's own probe, sent back
	testPass byte = 3 // a diagnosis probe to forward; only to neighbours with torus.FlagDiagnosis
	testMap  byte = 4 // a mapping probe, or its answer; halves of an earlier version ignore it
)

// echoRate bounds the test frames that are returned per second for each link.
const echoRate = 100

// Unanswered messages up count as use of links for vainFor, and again after vainAgain: while no supervisor answers,
// tests would cost more than the messages.
const (
	vainFor   = 5 * time.Second
	vainAgain = time.Minute
)

// A test message makes two hops in the torus: to a neighbour and back.
const testHops = 2

// selfTest holds the machine's self-test state.
type selfTest struct {
	machine   *selftest.Machine
	echoes    [grid.NumDirections]bucket
	epochs    [grid.NumDirections]fault.Epoch // of the neighbours, at their last echoes
	excused   [grid.NumDirections]bool
	changed   bool      // since the last publish
	registers bool      // the test finds that the own registers alter what this half writes
	by        int       // index of the neighbour that took the last relay probe
	vain      time.Time // of the first message up since the last one down or back, or since vainAgain; zero: none
}

// linkModule names a link's module.
func linkModule(d grid.Direction) selftest.Module {
	return selftest.Module{Kind: selftest.Link, Index: uint8(d.Index())}
}

// newSelfTest creates the tests of the half's modules.
func newSelfTest(cfg Config, now time.Time) selfTest {
	var s selfTest
	for _, d := range grid.Directions() { // a torus that changes may have them all
		s.echoes[d.Index()] = newBucket(echoRate, echoRate, now)
	}
	mods := []selftest.ModuleConfig{
		halfcore.LocalModule(selftest.Register), halfcore.LocalModule(selftest.Reports), halfcore.LocalModule(selftest.Bulk),
		halfcore.MailboxModule(),
	}
	for _, d := range cfg.Topo.Links {
		mods = append(mods, halfcore.LinkModule(d))
	}
	if len(cfg.Topo.Links) > 0 && cfg.MaxHops >= testHops {
		mods = append(mods, halfcore.RelayModule())
	}
	s.machine = halfcore.NewSelfTest(cfg.SelfTest, mods, cfg.Periods.TWrite, now)
	return s
}

// use notes that a module is in use, and tests it first if it has been idle.
func (m *Machine) use(now time.Time, id selftest.Module) {
	if m.selfTest.machine.Use(now, id) {
		m.test(now, selftest.Begin{})
	}
}

// useLink notes that a message uses a link. Heartbeats, tests and their echoes do not count as use, nor do messages up
// that have gone unanswered for vainFor.
func (m *Machine) useLink(now time.Time, l *link, k halfcore.RelayKind) {
	if k == halfcore.RelayTest || k == halfcore.RelayUp && m.inVain(now) {
		return
	}
	if k != halfcore.RelayUp {
		m.selfTest.vain = time.Time{}
	}
	m.use(now, linkModule(l.dir))
	m.use(now, selftest.Module{Kind: selftest.Relay})
}

// inVain reports whether messages up have gone unanswered for vainFor. Messages down and back count as answers.
func (m *Machine) inVain(now time.Time) bool {
	s := &m.selfTest
	if s.vain.IsZero() || now.Sub(s.vain) >= vainAgain {
		s.vain = now
	}
	return now.Sub(s.vain) >= vainFor
}

// useOutput notes which modules the shell's work of this step will use, and sends their probes first.
func (m *Machine) useOutput(now time.Time) {
	if len(m.out.ToHost) > 0 || len(m.out.Hand) > 0 || m.out.Ring {
		m.use(now, selftest.Module{Kind: selftest.Mailbox})
	}
	for i := range m.out.Seal {
		if m.out.Seal[i].Reports != nil {
			m.use(now, selftest.Module{Kind: selftest.Reports})
		}
	}
}

// beginProof reports that this half was restarted, until it has passed its tests.
func (m *Machine) beginProof(now time.Time) {
	if m.cfg.SelfTest.Prove {
		m.exceptions.raise(now.Add(m.restartedFor()), watchdog.AddrEngine, watchdog.EngineRestarted)
	}
	m.exceptions.level(watchdog.AddrEngine, watchdog.EngineRestarted, m.selfTest.machine.Proving())
}

// tickTests does the due work of the self-test. It needs no wake-up of its own.
func (m *Machine) tickTests(now time.Time) {
	for _, l := range m.links {
		if l != nil {
			m.excuse(now, l)
		}
	}
	m.test(now, selftest.Tick{})
}

// excuse keeps the self-test from blaming this half for a link that either end reports as unwell, and from expecting an
// echo of a restarted neighbour, or of one that has not been heard since this half resumed: both may have been stopped.
func (m *Machine) excuse(now time.Time, l *link) {
	i := l.dir.Index()
	bad := !l.session || l.detail.State() != torus.LinkNormal || l.machine.Unheard()
	if w, err := watchdog.DecodeDNPWord(l.peer.DNP); err == nil && w.Links[l.dir.Opposite().Index()] != watchdog.HealthNormal {
		bad = true
	}
	if bad != m.selfTest.excused[i] {
		m.selfTest.excused[i] = bad
		m.test(now, selftest.Excused{Module: linkModule(l.dir)})
		m.test(now, selftest.Excused{Module: selftest.Module{Kind: selftest.Relay}})
	}
	if e := l.peer.Epoch; e != m.selfTest.epochs[i] && e != 0 {
		if m.selfTest.epochs[i] != 0 {
			m.test(now, selftest.Renewed{Module: linkModule(l.dir)})
		}
		m.selfTest.epochs[i] = e
	}
}

// test steps the self-test, and sends its probes to their modules.
func (m *Machine) test(now time.Time, ev selftest.Event) {
	out := m.selfTest.machine.Step(now, ev)
	var by *link // for the whole of a relay test
	for _, p := range out.Probes {
		switch p.Module.Kind {
		case selftest.Link:
			m.testLink(now, p)
		case selftest.Relay:
			if by == nil {
				by = m.nextRelay(now)
			}
			m.testRelay(now, by, p)
		case selftest.Mailbox:
			if m.verdict != watchdog.Alive {
				m.test(now, selftest.Void{Module: p.Module, ID: p.ID})
				continue
			}
			m.out.TestMail = append(m.out.TestMail, TestMail{Data: p.Data})
		default:
			m.out.Probes = append(m.out.Probes, p)
		}
	}
	for _, r := range out.Changed {
		m.tested(r)
	}
	if out.Save {
		m.out.SaveTests = true
	}
}

// testLink sends a probe to the neighbour, whose DNP half returns it.
func (m *Machine) testLink(now time.Time, p selftest.Probe) {
	l := m.links[p.Module.Index]
	if l == nil || m.selfTest.excused[p.Module.Index] || !l.usable() {
		m.test(now, selftest.Void{Module: p.Module, ID: p.ID})
		return
	}
	m.sendTest(l, testAsks, p.Data)
}

func (m *Machine) sendTest(l *link, what byte, data []byte) {
	f := torus.Frame{Type: torus.TypeTest, Payload: append([]byte{what}, data...)}
	l.machine.Fill(&f)
	m.frames = append(m.frames, Outgoing{l.dir, f})
}

// nextRelay returns the link to the neighbour that carries the next test of the relay, a different one each time. The
// neighbour has answered a test of its link. It returns nil if there is none.
func (m *Machine) nextRelay(now time.Time) *link {
	dirs := m.cfg.Topo.Links
	if m.inhibited() || m.cfg.MaxHops < testHops {
		dirs = nil // it pauses
	}
	var next *link
	var able uint8
	for n := range dirs {
		l := m.links[dirs[(m.selfTest.by+1+n)%len(dirs)].Index()]
		if l == nil { // an order changes the torus
			continue
		}
		if i := l.dir.Index(); m.functional(l) && !m.selfTest.excused[i] && m.selfTest.machine.Answered(linkModule(l.dir)) {
			next = cmp.Or(next, l)
			able |= 1 << m.neighbour(l)
		}
	}
	if next != nil {
		m.selfTest.by = slices.Index(dirs, next.dir)
		m.test(now, selftest.Carried{Module: selftest.Module{Kind: selftest.Relay}, Partner: m.neighbour(next), Able: able})
	}
	return next
}

// neighbour numbers the neighbour at a link: two links of a small torus may lead to the same one.
func (m *Machine) neighbour(l *link) uint8 {
	return uint8(slices.IndexFunc(m.links[:], func(x *link) bool { return x != nil && x.dst == l.dst }))
}

// testRelay sends a message to this node through the neighbour at a link; nil: there is none.
func (m *Machine) testRelay(now time.Time, by *link, p selftest.Probe) {
	if by == nil {
		m.test(now, selftest.Void{Module: p.Module, ID: p.ID})
		return
	}
	m.forward(now, by, halfcore.Relay{Kind: halfcore.RelayTest, Made: 1, Limit: testHops, Dst: m.cfg.Topo.Coord, Envelope: p.Data})
}

// onTestFrame handles a test frame. It returns a neighbour's probe even if this half does not test anything, because
// the neighbour would count a loss; or it takes a probe of this half.
func (m *Machine) onTestFrame(now time.Time, l *link, payload []byte) {
	switch {
	case len(payload) <= 1:
	case payload[0] == testAsks && m.selfTest.echoes[l.dir.Index()].take(now):
		m.sendTest(l, testEcho, payload[1:])
	case payload[0] == testPass:
		m.onPass(now, l, payload[1:])
	case payload[0] == testMap:
		m.onMapFrame(now, l, payload[1:])
	case payload[0] == testEcho && m.onDiagnosisEcho(now, l, payload[1:]):
	case payload[0] == testEcho:
		m.test(now, selftest.Returned{Module: linkModule(l.dir), Data: payload[1:]})
	}
}

// onTestMessage handles a relay probe: one of this half that came back, or one that returns to a neighbour.
func (m *Machine) onTestMessage(now time.Time, from *link, msg halfcore.Relay) {
	switch {
	case msg.Dst == m.cfg.Topo.Coord:
		m.test(now, selftest.Returned{Module: selftest.Module{Kind: selftest.Relay}, Data: msg.Envelope})
	case msg.Dst == from.dst && m.mayHop(now, none, msg):
		msg.Made++
		m.forward(now, from, msg)
	}
}

// onTestMail returns the host half's probe, or takes a probe of this half.
func (m *Machine) onTestMail(now time.Time, ev TestMail) {
	if ev.Echo {
		if m.onDiagnosisMail(ev.Data) || m.onMapMail(ev.Data) {
			return
		}
		m.test(now, selftest.Returned{Module: selftest.Module{Kind: selftest.Mailbox}, Data: ev.Data})
		return
	}
	m.out.TestMail = append(m.out.TestMail, TestMail{Echo: true, Data: ev.Data})
}

// tested applies a result: a failed module sets an exception bit in its register while it fails, which makes the core
// sick (seed 001 §IV-B). So does a restart of this half, until it has passed. Tests of links and of the relay fail also
// if a neighbour alters, drops or delays its answers: they set their bit only if tests through two
// neighbours fail.
func (m *Machine) tested(r selftest.Result) {
	switch r.State {
	case selftest.Failed:
		m.note(NoteSelfTest, "self-test: %s %s", r.Name, r.Why)
	case selftest.Passed:
		m.note(NoteSelfTested, "self-test: %s passed", r.Name)
	default:
	}
	m.selfTest.changed, m.out.Tested = true, true
	var engine, router, rdma bool
	var byLinks uint8 // a bit for each neighbour
	m.selfTest.registers = false
	for _, f := range m.selfTest.machine.Failed() {
		switch f.Module.Kind {
		case selftest.Link:
			if l := m.links[f.Module.Index]; l != nil {
				byLinks |= 1 << m.neighbour(l)
			}
		case selftest.Relay:
			router = bits.OnesCount8(f.Blamed) > 1
		case selftest.Mailbox:
			rdma = true
		case selftest.Register:
			engine = true
			m.selfTest.registers = f.Fault == selftest.Altered // late or lost ones may be those of a busy machine
		default:
			engine = true
		}
	}
	engine = engine || bits.OnesCount8(byLinks) > 1
	m.judgeRegisters()
	m.exceptions.level(watchdog.AddrEngine, watchdog.EngineSelfTest, engine)
	m.exceptions.level(watchdog.AddrRouter0, watchdog.RouterSelfTest, router)
	m.exceptions.level(watchdog.AddrRDMA, watchdog.RDMASelfTest, rdma)
	m.exceptions.level(watchdog.AddrEngine, watchdog.EngineRestarted, m.selfTest.machine.Proving())
}

// restartedFor returns the least time for which a restarted half reports its restart: the host half must see it.
func (m *Machine) restartedFor() time.Duration {
	return max(4*m.cfg.Periods.TRead, 200*time.Millisecond)
}

// coreDetail returns why the core is sick, with and without the measured values.
func (m *Machine) coreDetail() (detail, why string) {
	words, reasons := halfcore.FailingModules(m.selfTest.machine)
	if m.exceptions.at(watchdog.AddrEngine).value&watchdog.EngineRestarted != 0 {
		words, reasons = slices.Insert(words, 0, "restarted"), slices.Insert(reasons, 0, "restarted")
	}
	return strings.Join(append(words, m.exceptions.String()), "; "), strings.Join(reasons, "; ")
}

// SelfTest returns the machine of the self-test, for reading only: only Step gives it events.
func (m *Machine) SelfTest() *selftest.Machine { return m.selfTest.machine }
