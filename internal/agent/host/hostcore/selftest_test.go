package hostcore

import (
	"slices"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
)

// tested is a host half that tests itself. Its modules return their input unless a test spoils them.
type tested struct {
	t      *testing.T
	now    time.Time
	m      *Machine
	regs   Registers
	wake   time.Time
	ticks  int
	spoilt selftest.Kind
	mails  int      // probes into the mailbox
	says   []string // of the own host and DNP core
	news   []string // the same, without digests
}

// newTested starts one; before are events before its first tick.
func newTested(t *testing.T, cfg halfcore.SelfTestConfig, before ...Event) *tested {
	t.Helper()
	p, err := config.Preset(config.PresetDefault)
	if err != nil {
		t.Fatal(err)
	}
	w := &tested{t: t, now: start}
	w.m, err = New(Config{
		Topo: halfcore.NewTopology("n0-0-0", grid.Coord{}, grid.Dims{X: 2, Y: 1, Z: 1}, nil), Periods: p, MaxHops: 9,
		Rails: []fault.Path{fault.PathDirect, fault.PathGossip, fault.PathTorus}, Interfaces: []string{"service"}, SelfTest: cfg,
	}, w.now, 7)
	if err != nil {
		t.Fatal(err)
	}
	w.step(Supervisors{Targets: []string{"sup-0"}})
	for _, ev := range before {
		w.step(ev)
	}
	w.step(Readings{[]Reading{{Component: fault.ComponentMemory, State: fault.Normal}}})
	w.step(Tick{})
	return w
}

func (w *tested) step(ev Event) {
	out := w.m.Step(w.now, ev)
	w.wake = out.Wake
	w.mails += len(out.TestMail)
	for i := range out.Send {
		s := &out.Send[i]
		for _, r := range s.Reports {
			for _, o := range r.Observations {
				if o.Component == fault.ComponentHost && o.Node == "n0-0-0" {
					w.says = append(w.says, strings.TrimSpace(o.State.String()+" "+o.Detail))
				}
				if o.Component == fault.ComponentDNPCore {
					w.says = append(w.says, strings.TrimSpace("core "+o.State.String()+" "+o.Detail))
					if !r.Digest {
						w.news = append(w.news, w.says[len(w.says)-1])
					}
				}
			}
			w.step(Received{Path: fault.PathDirect, Opened: servicenet.Opened{
				Role: servicenet.RoleSupervisor, Name: "sup-0", Msg: &lofamov1.Message{Acks: servicenet.NewAcks(lofamov1.Ack_COMMITTED, r.ID)},
			}})
		}
	}
	for _, p := range out.Probes {
		b := p.Data
		if p.Module.Kind == w.spoilt {
			b[len(b)-1] ^= 1
		}
		w.step(Test{selftest.Returned{Module: p.Module, Data: b, Took: time.Millisecond}})
	}
	for _, m := range out.TestMail {
		if !m.Echo {
			w.step(TestMail{Echo: true, Data: m.Data})
		}
	}
	if out.TakeDNP {
		r := w.regs
		r.Taken, r.Sample, r.DNP.Valid = true, watchdog.Sample{Valid: true}, true
		w.step(r)
	}
}

func (w *tested) run(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(time.Millisecond)
		if !w.wake.After(w.now) {
			w.ticks++
			w.step(Tick{})
		}
	}
}

func (w *tested) said(what string) bool {
	for _, s := range w.says {
		if strings.Contains(s, what) {
			return true
		}
	}
	return false
}

func (w *tested) result(name string) selftest.Result {
	w.t.Helper()
	for _, r := range w.m.SelfTest().Results(w.now) {
		if r.Name == name {
			return r
		}
	}
	w.t.Fatalf("no module %q", name)
	return selftest.Result{}
}

var testing2s = halfcore.SelfTestConfig{Interval: 2 * time.Second, IdleAfter: 10 * time.Second, First: 42}

// The half reports its failed modules, and stops once it has passed.
func TestFailedModuleMakesHostSick(t *testing.T) {
	w := newTested(t, testing2s)
	w.run(10 * time.Second)
	for _, name := range []string{"register path", "report path", "direct rail service"} {
		if r := w.result(name); r.State != selftest.Passed || r.Tests < 4 {
			t.Errorf("%+v", r)
		}
	}
	if w.said("SICK") { // without any fault
		t.Errorf("it says %q", w.says)
	}
	w.spoilt = selftest.Direct
	w.run(3 * time.Second)
	if !w.said("SICK self-test: direct rail service altered: 3 of 3 probes") {
		t.Errorf("it says %q", w.says)
	}
	w.spoilt, w.says = 0, nil
	w.run(5 * time.Second)
	if !w.said("NORMAL") || w.m.ledger.State("n0-0-0", fault.ComponentHost) != fault.Normal {
		t.Errorf("and then %q", w.says)
	}
}

// However quickly a restarted half has passed, its first digest reports the restart and its reason. The next one
// reports that the half is normal.
func TestFirstDigestReportsRestart(t *testing.T) {
	for _, every := range []time.Duration{0, 2 * time.Second} {
		cfg := testing2s
		cfg.Interval, cfg.Prove = every, true
		w := newTested(t, cfg, restartedBy("killed by signal 9"))
		w.run(2 * time.Second)
		if len(w.says) < 2 || w.says[0] != "SICK restarted (killed by signal 9)" || w.says[len(w.says)-1] != "NORMAL" && !w.said("NORMAL") {
			t.Errorf("interval %s: it says %q", every, w.says)
		}
	}
}

// restartedBy returns the daemon's health event for a host half that it restarts.
func restartedBy(cause string) Health {
	return Health{fault.HalfHost, &lofamov1.HalfHealth{Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RUNNING, Restarts: 1,
		AgeNs: 1, Cause: cause}}}
}

// That it was restarted is the first that leaves a half: before the answer to a challenge, by which a supervisor lifts its verdict,
// however early that comes. The first digest waits for the sensors.
func TestRestartReportPrecedesChallengeAnswer(t *testing.T) {
	cfg := testing2s
	cfg.Prove = true
	w := newTested(t, cfg, restartedBy("hung"))
	if len(w.says) != 1 || w.says[0] != "SICK restarted (hung)" {
		t.Fatalf("with its first tick it says %q", w.says)
	}
	out := w.m.Step(w.now, Received{Path: fault.PathDirect, Opened: servicenet.Opened{
		Role: servicenet.RoleSupervisor, Name: "sup-0", Msg: &lofamov1.Message{Body: &lofamov1.Message_Challenge{Challenge: &lofamov1.Challenge{
			Nonce: []byte("0123456789abcdef"), Node: "n0-0-0", Half: lofamov1.Half_HALF_HOST, ReplyTo: "127.0.0.1:7000",
		}}},
	}})
	if !slices.ContainsFunc(out.Send, func(s Send) bool { return s.Answer != nil }) {
		t.Error("no answer")
	}
	w.run(2 * time.Second)
	if !w.said("NORMAL") || w.m.ledger.State("n0-0-0", fault.ComponentHost) != fault.Normal {
		t.Errorf("it says %q", w.says)
	}
}

// A DNP half of before would find a test message unreadable: it gets none until it has sent one.
func TestMailboxIsTestedWhenOtherHalfKnows(t *testing.T) {
	w := newTested(t, testing2s)
	use := func() {
		for range 100 {
			w.run(100 * time.Millisecond)
			w.step(Used{selftest.Mailbox})
		}
	}
	use()
	if w.mails != 0 || w.result("mailbox").State != selftest.Untested {
		t.Errorf("%d test messages, %+v", w.mails, w.result("mailbox"))
	}
	w.step(TestMail{Data: []byte("a probe of the DNP half")})
	if w.mails != 1 {
		t.Errorf("%d messages back, want 1", w.mails)
	}
	use()
	if r := w.result("mailbox"); r.State != selftest.Passed || r.Tests < 4 {
		t.Errorf("%+v", r)
	}
}

// The DNP half's registers show only that its self-test failed; the half sends the details by mailbox.
func TestSickDNPCoreNamesModule(t *testing.T) {
	w := newTested(t, testing2s)
	w.run(time.Second)
	w.step(Health{fault.HalfDNP, &lofamov1.HalfHealth{Tests: []*lofamov1.SelfTest{
		{Number: 10, State: lofamov1.TestState_FAILING, Why: "altered: 3 of 3 probes"}, {Number: 1, State: lofamov1.TestState_PASSED},
	}}})
	w.regs.DNP.Core, w.regs.RDMA = watchdog.HealthSick, watchdog.RDMASelfTest
	w.run(time.Second)
	if !w.said("core SICK self-test: mailbox altered: 3 of 3 probes; exceptions: router 0x0 0x0, RDMA 0x4, engine 0x0") {
		t.Errorf("it says %q", w.says)
	}
	w.step(Health{fault.HalfDNP, &lofamov1.HalfHealth{Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RUNNING, Restarts: 1,
		AgeNs: 1, Cause: "hung for 150 ms"}}})
	w.regs.DNP.Core, w.regs.RDMA = watchdog.HealthNormal, 0
	w.run(time.Second)
	w.regs.DNP.Core, w.regs.Engine = watchdog.HealthSick, watchdog.EngineRestarted
	w.run(time.Second)
	if !w.said("core SICK restarted (hung for 150 ms); exceptions") {
		t.Errorf("it says %q", w.says)
	}
}

// The host half reports the findings of the DNP half's self-test when they arrive, even if the core was sick before:
// because the registers were read before the mail, or for another reason. A new measured value alone causes no
// report.
func TestLateSelfTestReasonIsReported(t *testing.T) {
	w := newTested(t, testing2s)
	w.run(time.Second)
	w.regs.DNP.Core, w.regs.RDMA, w.regs.Engine = watchdog.HealthSick, watchdog.RDMASelfTest, watchdog.EngineLate
	w.run(time.Second)
	for _, why := range []string{"altered: 3 of 3 probes", "altered: 2 of 3 probes", "lost: 6 of the last 9 probes"} {
		w.step(Health{fault.HalfDNP,
			&lofamov1.HalfHealth{Tests: []*lofamov1.SelfTest{{Number: 10, State: lofamov1.TestState_FAILING, Why: why}}}})
		w.run(time.Second)
	}
	w.regs.DNP.Core, w.regs.RDMA, w.regs.Engine = watchdog.HealthNormal, 0, 0
	w.run(time.Second)
	const exceptions = "exceptions: router 0x0 0x0, RDMA 0x4, engine 0x4"
	want := []string{
		"core SICK " + exceptions, "core SICK self-test: mailbox altered: 3 of 3 probes; " + exceptions,
		"core SICK self-test: mailbox lost: 6 of the last 9 probes; " + exceptions, "core NORMAL",
	}
	if got := w.news[len(w.news)-min(len(w.news), len(want)):]; !slices.Equal(got, want) {
		t.Errorf("news %q: want in the end %q", w.news, want)
	}
}

// A half that tests itself wakes up when it would wake up anyway.
func TestIdleHalfWakesNoMoreOften(t *testing.T) {
	with, without := newTested(t, testing2s), newTested(t, halfcore.SelfTestConfig{})
	with.run(time.Minute)
	without.run(time.Minute)
	if with.ticks != without.ticks || with.ticks == 0 {
		t.Errorf("%d wake-ups with self-tests, %d without", with.ticks, without.ticks)
	}
}
