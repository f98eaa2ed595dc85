package hostcore

import (
	"fmt"
	"slices"
	"strings"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// Test is an event of the self-test: the result of a probe of Output.Probes or Output.TestMail.
type Test struct{ Event selftest.Event }

// TestMail is a test message from the DNP half, by mailbox: its own probe, to be returned, or one of ours that it
// returns.
type TestMail struct {
	Echo bool
	Data []byte
}

// Used reports use of a module that the machine cannot see.
type Used struct{ Kind selftest.Kind }

func (Used) hostEvent()     {}
func (Test) hostEvent()     {}
func (TestMail) hostEvent() {}

// selfTest is the machine's state of its self-test.
type selfTest struct {
	machine *selftest.Machine
	asked   bool   // the DNP half has sent a test message: it knows them
	unsaid  bool   // no digest has reported this half's restart yet
	said    string // the self-test state reported before the first digest
}

// newSelfTest makes the tests of the modules that the half has.
func newSelfTest(cfg Config, now time.Time) selfTest {
	s := selfTest{unsaid: cfg.SelfTest.Prove}
	mods := []selftest.ModuleConfig{
		halfcore.LocalModule(selftest.Register), halfcore.LocalModule(selftest.Reports), halfcore.LocalModule(selftest.Bulk),
		halfcore.MailboxModule(),
	}
	for k, name := range cfg.Interfaces {
		mods = append(mods, halfcore.DirectModule(uint8(k), name))
	}
	for _, p := range cfg.Rails {
		if p == fault.PathGossip {
			mods = append(mods, halfcore.GossipModule())
		}
	}
	s.machine = halfcore.NewSelfTest(cfg.SelfTest, mods, cfg.Periods.TWrite, now)
	return s
}

// use notes that a module is used, and tests it first if it has been idle.
func (m *Machine) use(now time.Time, k selftest.Kind, index uint8) {
	if m.selfTest.machine.Use(now, selftest.Module{Kind: k, Index: index}) {
		m.test(now, selftest.Begin{})
	}
}

// useOutput notes which modules the output's messages pass through. The shell gives the probes to them before that.
func (m *Machine) useOutput(now time.Time) {
	for i := range m.out.Send {
		s := &m.out.Send[i]
		if s.Reports != nil {
			m.use(now, selftest.Reports, 0)
		}
		switch s.Path {
		case fault.PathDirect:
			m.use(now, selftest.Direct, s.Interface)
		case fault.PathGossip:
			m.use(now, selftest.Gossip, 0)
		default:
			m.use(now, selftest.Mailbox, 0)
		}
	}
	if len(m.out.Relay) > 0 || m.out.Ring {
		m.use(now, selftest.Mailbox, 0)
	}
	for _, r := range m.out.Relay {
		if r.Kind == halfcore.RelayBack {
			m.use(now, selftest.Bulk, 0)
		}
	}
}

// test steps the self-test, and gives its probes to their modules.
func (m *Machine) test(now time.Time, ev selftest.Event) {
	out := m.selfTest.machine.Step(now, ev)
	for _, p := range out.Probes {
		switch {
		case p.Module.Kind != selftest.Mailbox:
			m.out.Probes = append(m.out.Probes, p)
		case m.verdict != watchdog.Alive || !m.selfTest.asked: // a DNP half of before would find it unreadable
			m.test(now, selftest.Void{Module: p.Module, ID: p.ID})
		default:
			m.out.TestMail = append(m.out.TestMail, TestMail{Data: p.Data})
		}
	}
	for _, r := range out.Changed {
		m.tested(now, r)
	}
	if out.Save {
		m.out.SaveTests = true
	}
}

// onTestMail sends the DNP half's probe back, or takes one of ours.
func (m *Machine) onTestMail(now time.Time, ev TestMail) {
	if ev.Echo {
		m.test(now, selftest.Returned{Module: selftest.Module{Kind: selftest.Mailbox}, Data: ev.Data})
		return
	}
	m.selfTest.asked = true
	m.out.TestMail = append(m.out.TestMail, TestMail{Echo: true, Data: ev.Data})
}

// tested draws the conclusions: a half with a failed module is sick, and so is one that was restarted, until it
// has passed.
func (m *Machine) tested(now time.Time, r selftest.Result) {
	switch r.State {
	case selftest.Failed:
		m.note(NoteSelfTest, "self-test: %s %s", r.Name, r.Why)
	case selftest.Passed:
		m.note(NoteSelfTested, "self-test: %s passed", r.Name)
	default:
	}
	m.stateSelf(now)
}

// stateSelf states this half.
func (m *Machine) stateSelf(now time.Time) {
	words, why := halfcore.FailingModules(m.selfTest.machine)
	if m.selfTest.unsaid || m.selfTest.machine.Proving() {
		r := m.restarted(now)
		words, why = slices.Insert(words, 0, r), slices.Insert(why, 0, r)
	}
	state := fault.Normal
	if len(words) > 0 {
		state = fault.Sick
	}
	m.because(now, fault.ComponentHost, state, words, why)
}

// sayRestarted reports, before the first digest, that this half was restarted and why; digests have no room for the
// reason. The report goes out with the first tick, ahead of any other sign of life. Such signs are the answer to a
// challenge, and the DNP half's reading of the watchdog word. They lift a supervisor's verdict, so without this
// report supervisors would for a moment see a half as NORMAL that has yet to prove itself.
func (m *Machine) sayRestarted(now time.Time) {
	if !m.begun || !m.selfTest.unsaid {
		return
	}
	words := m.restarted(now)
	if words == m.selfTest.said {
		return
	}
	m.selfTest.said = words
	m.stateSelf(now)
	for _, o := range m.ledger.Digest(now) {
		if o.Component == fault.ComponentHost && o.Node == m.self {
			m.add(now, fault.Report{Observations: []fault.Observation{o}})
		}
	}
}

// saidRestarted notes that a digest has gone out: a restart is always reported, however short it was.
func (m *Machine) saidRestarted(now time.Time) {
	if m.selfTest.unsaid {
		m.selfTest.unsaid = false
		m.stateSelf(now)
	}
}

// because states an observation about this node, and reports it again when why changes. why holds the words without
// measured values.
func (m *Machine) because(now time.Time, c fault.Component, s fault.State, words, why []string) {
	o := fault.Observation{Node: m.self, Component: c, State: s, Kind: fault.KindSelf, Detail: strings.Join(words, "; ")}
	m.ledger.Because(now, o, strings.Join(why, "; "))
}

// dnpWhy returns why the DNP core is sick: its exceptions, and the causes of its self-test failures. The DNP half
// sends the causes by mailbox, perhaps after the registers were read. why changes then, and the half reports again.
func (m *Machine) dnpWhy(now time.Time) (words, why []string) {
	r := &m.registers
	if r.Engine&watchdog.EngineRestarted != 0 {
		words = append(words, becauseOf(m.health.As(now).DNP))
		why = append(why, words...)
	}
	if r.Router0&watchdog.RouterSelfTest|r.RDMA&watchdog.RDMASelfTest|r.Engine&watchdog.EngineSelfTest != 0 {
		for _, t := range m.health.As(now).DNP.GetTests() {
			if t.GetState() == lofamov1.TestState_FAILING {
				words = append(words, "self-test: "+moduleName(t.GetNumber())+" "+t.GetWhy())
				kind, _, _ := strings.Cut(t.GetWhy(), ":")
				why = append(why, moduleName(t.GetNumber())+" "+kind)
			}
		}
	}
	words = append(words, fmt.Sprintf("exceptions: router %#x %#x, RDMA %#x, engine %#x", r.Router0, r.Router1, r.RDMA, r.Engine))
	return words, why
}

// moduleName names a module by its number in lofamov1.SelfTest.
func moduleName(number uint32) string {
	for _, d := range grid.Directions() {
		if halfcore.ModuleNumber(selftest.Module{Kind: selftest.Link, Index: uint8(d.Index())}) == number {
			return "link " + d.String()
		}
	}
	for k := selftest.Relay; k.Valid(); k++ {
		if halfcore.ModuleNumber(selftest.Module{Kind: k}) == number {
			return k.String()
		}
	}
	return fmt.Sprintf("module %d", number)
}

func becauseOf(h *lofamov1.HalfHealth) string {
	if c := h.GetRecovery().GetCause(); c != "" {
		return "restarted (" + c + ")"
	}
	return "restarted"
}

// restarted returns why this half was restarted, as far as known.
func (m *Machine) restarted(now time.Time) string {
	return becauseOf(m.health.As(now).Host)
}

// SelfTest returns the self-test's machine for inspection: only Step gives it events.
func (m *Machine) SelfTest() *selftest.Machine { return m.selfTest.machine }
