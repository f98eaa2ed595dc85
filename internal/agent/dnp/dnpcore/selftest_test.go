package dnpcore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
)

// pair is two DNP halves whose links lead to one another, with live hosts that echo test messages.
type pair struct {
	t      *testing.T
	now    time.Time
	halves [2]*Machine
	wakes  [2]time.Time
	flying []flying
	wakeUp int // ticks of the first
	// spoil changes the frames of a half; nil frames are lost.
	spoil func(half int, f torus.Frame) []torus.Frame
	// slow is the time that a frame takes in addition to a millisecond.
	slow     func(f torus.Frame) time.Duration
	noMail   bool // the hosts' mailboxes echo nothing
	mailFull bool // the hosts' mailboxes refuse held messages
	mailed   int  // held messages that they took
	flips    bool // the registers of the first alter what it writes
	messages int  // message frames of the first
	tests    int  // test frames of the first
	text     [2]string
	notes    []Note                        // of the first
	found    []*lofamov1.DiagnosisFindings // sent by the first
	attempts int                           // their attempt numbers
	probes   int                           // test frames of the first that expect an answer
}

type flying struct {
	at time.Time
	to int
	ev Event
}

var testing2s = halfcore.SelfTestConfig{Interval: 2 * time.Second, IdleAfter: 10 * time.Second, First: 42}

func newPair(t *testing.T, first, second halfcore.SelfTestConfig) *pair {
	t.Helper()
	p := &pair{t: t, now: start}
	periods, err := config.Preset(config.PresetDefault)
	if err != nil {
		t.Fatal(err)
	}
	dims := grid.Dims{X: 2, Y: 1, Z: 1}
	for i, cfg := range []halfcore.SelfTestConfig{first, second} {
		c := grid.Coord{X: i}
		p.halves[i], err = New(Config{Topo: halfcore.NewTopology(fault.DefaultNodeID(c), c, dims, nil), Periods: periods, MaxHops: 3,
			SelfTest: cfg},
			p.now, fault.Epoch(7+i))
		if err != nil {
			t.Fatal(err)
		}
		p.step(i, Tick{})
	}
	for i := range p.halves {
		for n, d := range dims.Links() {
			id := uint32(1 + n)
			if i == 1 {
				id = uint32(2 - n) // the other end of X+ is X-
			}
			p.step(i, Session{Dir: d, ID: id})
		}
	}
	p.run(time.Second)
	return p
}

func (p *pair) step(i int, ev Event) {
	out := p.halves[i].Step(p.now, ev)
	p.wakes[i] = out.Wake
	for _, o := range slices.Clone(out.Frames) {
		p.send(i, o)
	}
	for _, n := range out.Notes {
		if n.Kind == NoteCore {
			p.text[i] = n.Text
		}
		if i == 0 {
			p.notes = append(p.notes, n)
		}
	}
	for _, s := range out.Seal {
		if f := s.Order.GetDiagnosisFindings(); i == 0 && f != nil {
			p.found, p.attempts = append(p.found, f), s.Attempt
		}
	}
	for _, m := range out.TestMail {
		if !m.Echo && !p.noMail {
			p.flying = append(p.flying, flying{p.now.Add(time.Millisecond), i, TestMail{Echo: true, Data: m.Data}})
		}
	}
	for _, probe := range out.Probes {
		data := slices.Clone(probe.Data)
		if probe.Module.Kind == selftest.Register && i == 0 && p.flips {
			data[len(data)-1] ^= 1
		}
		p.flying = append(p.flying, flying{p.now.Add(time.Millisecond), i, Test{selftest.Returned{Module: probe.Module, Data: data}}})
	}
	for _, h := range slices.Clone(out.Hand) {
		if p.mailFull {
			p.step(i, NotTaken{h.Slot})
			continue
		}
		p.mailed++
	}
	if out.TakeHost {
		p.step(i, Host{Taken: true, Sample: watchdog.Sample{Valid: true}, Word: watchdog.HostWord{Valid: true}})
	}
}

func (p *pair) send(i int, o Outgoing) {
	frames := []torus.Frame{o.Frame}
	if p.spoil != nil {
		frames = p.spoil(i, o.Frame)
	}
	for _, f := range frames {
		f.Payload = slices.Clone(f.Payload)
		at := p.now.Add(time.Millisecond)
		if p.slow != nil {
			at = at.Add(p.slow(f))
		}
		if i == 0 && f.Type == torus.TypeTest {
			p.tests++
			if f.Payload[0] != testEcho {
				p.probes++
			}
		}
		if i == 0 && f.Type != torus.TypeTest && f.Type != torus.TypeEureka && len(f.Payload) > 0 { // pings are not messages
			p.messages++
		}
		p.flying = append(p.flying, flying{at, 1 - i, &Frame{Dir: o.Dir.Opposite(), Frame: f}})
	}
}

func (p *pair) run(d time.Duration) {
	for end := p.now.Add(d); p.now.Before(end); {
		p.now = p.now.Add(time.Millisecond)
		for i := 0; i < len(p.flying); {
			if f := p.flying[i]; !f.at.After(p.now) {
				p.flying = slices.Delete(p.flying, i, i+1)
				p.step(f.to, f.ev)
				continue
			}
			i++
		}
		for i := range p.halves {
			if !p.wakes[i].After(p.now) {
				if i == 0 {
					p.wakeUp++
				}
				p.step(i, Tick{})
			}
		}
		if p.now.Sub(start)%(500*time.Millisecond) == 0 {
			p.step(0, Readings{})
			p.step(1, Readings{})
		}
	}
}

// busy makes the first half's host send down to the second node for the given time.
func (p *pair) busy(d time.Duration) {
	for end := p.now.Add(d); p.now.Before(end); p.run(100 * time.Millisecond) {
		text := p.now.String()
		p.step(0, FromHost{Message: halfcore.Relay{Kind: halfcore.RelayDown, Dst: grid.Coord{X: 1}, Envelope: []byte(text)}})
	}
}

func (p *pair) result(i int, name string) selftest.Result {
	p.t.Helper()
	for _, r := range p.halves[i].SelfTest().Results(p.now) {
		if r.Name == name {
			return r
		}
	}
	p.t.Fatalf("half %d has no module %q", i, name)
	return selftest.Result{}
}

func (p *pair) core(i int) watchdog.Health { return p.halves[i].word.Core }

// Heartbeats do not count as use of a link. A message does: a test precedes it, and tests continue until the link has
// been idle for a while. Neither tests nor the neighbour's tests count as use.
func TestModulesAreTestedWhileUsed(t *testing.T) {
	p := newPair(t, testing2s, testing2s)
	p.run(time.Minute)
	if p.tests != 0 || p.messages != 0 {
		t.Fatalf("idle: %d test frames, %d message frames", p.tests, p.messages)
	}
	var order []torus.FrameType
	p.spoil = func(half int, f torus.Frame) []torus.Frame {
		if half == 0 && len(f.Payload) > 0 && f.Type != torus.TypeEureka {
			order = append(order, f.Type)
		}
		return []torus.Frame{f}
	}
	p.step(0, FromHost{Message: halfcore.Relay{Kind: halfcore.RelayDown, Dst: grid.Coord{X: 1}, Envelope: []byte("first")}})
	if len(order) != 4 || order[0] != torus.TypeTest || order[2] != torus.TypeTest || order[3] == torus.TypeTest {
		t.Errorf("the first message and its test go as %v", order)
	}
	p.busy(30 * time.Second)
	for _, name := range []string{"link X+", "relay", "mailbox", "register path"} {
		if r := p.result(0, name); r.State != selftest.Passed || r.Tests < 12 || r.Lost+r.Altered+r.Doubled+r.Late != 0 {
			t.Errorf("%+v", r)
		}
	}
	if r := p.result(0, "bulk"); r.Tests != 0 {
		t.Errorf("nothing large was sent: %+v", r)
	}
	p.run(13 * time.Second)
	p.tests, p.messages = 0, 0
	p.run(time.Minute)
	if p.tests != 0 || p.messages != 0 {
		t.Errorf("idle again: %d test frames, %d message frames", p.tests, p.messages)
	}
}

// TestUnansweredMessagesUpAreTestedSeldom floods a message each second that no supervisor answers, then one that is
// answered.
func TestUnansweredMessagesUpAreTestedSeldom(t *testing.T) {
	p := newPair(t, testing2s, testing2s)
	flood := func(d time.Duration, answered bool) uint64 {
		before := p.result(0, "link X+").Tests
		for end := p.now.Add(d); p.now.Before(end); p.run(time.Second) {
			p.step(0, FromHost{Message: halfcore.Relay{Kind: halfcore.RelayUp, Envelope: []byte("up" + p.now.String())}})
			if answered {
				p.step(1, FromHost{Message: halfcore.Relay{Kind: halfcore.RelayDown, Dst: grid.Coord{}, Envelope: []byte("down" + p.now.String())}})
			}
		}
		return p.result(0, "link X+").Tests - before
	}
	if first := flood(10*time.Second, false); first < 4 {
		t.Errorf("%d tests in the first 10 s: want one each 2 s", first)
	}
	if n := flood(50*time.Second, false); n > 5 {
		t.Errorf("%d tests in the next 50 s: want none after 15 s without an answer", n)
	}
	if n := flood(time.Minute, false); n < 4 || n > 10 {
		t.Errorf("%d tests in the second minute: want those of 15 s", n)
	}
	if n := flood(time.Minute, true); n < 28 {
		t.Errorf("%d tests in a minute of answered messages: want one each 2 s", n)
	}
}

// The self-test adds no wake-ups to a half.
func TestIdleHalfWakesNoMoreOften(t *testing.T) {
	with, without := newPair(t, testing2s, testing2s), newPair(t, halfcore.SelfTestConfig{}, halfcore.SelfTestConfig{})
	with.run(time.Minute)
	without.run(time.Minute)
	if with.wakeUp != without.wakeUp || with.wakeUp == 0 {
		t.Errorf("%d wake-ups with self-tests, %d without", with.wakeUp, without.wakeUp)
	}
	m := with.halves[0]
	if n := testing.AllocsPerRun(100, func() {
		with.now = with.now.Add(100 * time.Microsecond)
		m.Step(with.now, Tick{})
	}); n != 0 {
		t.Errorf("%v allocations a tick", n)
	}
}

// isRelayProbe reports whether a frame carries a probe of a relay test, in a message that has made its first hop.
func isRelayProbe(f torus.Frame) bool {
	at := strings.Index(string(f.Payload), string([]byte{1, byte(halfcore.RelayTest)}))
	return f.Type != torus.TypeTest && at >= 0 && at < 32
}

// Faults of relayed messages alone are blamed on the relay, and named. A half with a single neighbour does not know which
// of the two is at fault: its core stays normal.
func TestRelayFaultsAreNamed(t *testing.T) {
	for _, tc := range []struct {
		want  selftest.Fault
		spoil func(f torus.Frame) []torus.Frame
		slow  time.Duration
	}{
		{selftest.Lost, func(f torus.Frame) []torus.Frame { // lost where the link does not count it
			f.Type, f.Payload = torus.TypeHeartbeat, nil
			return []torus.Frame{f}
		}, 0},
		{selftest.Altered, func(f torus.Frame) []torus.Frame {
			f.Payload = slices.Clone(f.Payload)
			f.Payload[len(f.Payload)-1] ^= 1
			return []torus.Frame{f}
		}, 0},
		{selftest.Late, nil, 300 * time.Millisecond},
	} {
		p := newPair(t, testing2s, testing2s)
		p.busy(20 * time.Second)
		p.spoil = func(half int, f torus.Frame) []torus.Frame {
			if half == 1 && isRelayProbe(f) && tc.spoil != nil {
				return tc.spoil(f)
			}
			return []torus.Frame{f}
		}
		p.slow = func(f torus.Frame) time.Duration {
			if isRelayProbe(f) {
				return tc.slow
			}
			return 0
		}
		p.busy(20 * time.Second)
		if r := p.result(0, "relay"); r.State != selftest.Failed || r.Fault != tc.want {
			t.Errorf("%s: %+v", tc.want, r)
		}
		if p.core(0) != watchdog.HealthNormal {
			t.Errorf("%s: the core is %s: %s", tc.want, p.core(0), p.text[0])
		}
		p.spoil, p.slow = nil, nil
		p.busy(20 * time.Second)
		if r := p.result(0, "relay"); r.State != selftest.Passed || p.core(0) != watchdog.HealthNormal {
			t.Errorf("%s, and good again: %+v, core %s", tc.want, r, p.core(0))
		}
	}
}

// One neighbour that spoils what it returns makes no core sick, but the self-test names the module. A half whose own
// probes are bad by both neighbours is sick, and names it too.
func TestOneNeighbourMakesNoCoreSick(t *testing.T) {
	alter := func(f *torus.Frame) {
		f.Payload = slices.Clone(f.Payload)
		f.Payload[len(f.Payload)-1] ^= 1
	}
	drop := func(f *torus.Frame) { f.Type, f.Payload = torus.TypeHeartbeat, nil }
	echo := func(f *torus.Frame) bool { return f.Type == torus.TypeTest && f.Payload[0] == testEcho }
	probe := func(f *torus.Frame) bool { return f.Type == torus.TypeTest && f.Payload[0] == testAsks }
	relayed := func(f *torus.Frame) bool { return isRelayProbe(*f) }
	for _, tc := range []struct {
		name   string
		by     string // the node that spoils
		which  func(f *torus.Frame) bool
		spoil  func(f *torus.Frame)
		module string
		want   selftest.Fault
		core   watchdog.Health
	}{
		{"a neighbour alters echoes", "1,0,0", echo, alter, "link X+", selftest.Altered, watchdog.HealthNormal},
		{"a neighbour drops echoes", "1,0,0", echo, drop, "link X+", selftest.Lost, watchdog.HealthNormal},
		{"a neighbour alters relayed messages", "1,0,0", relayed, alter, "relay", selftest.Altered, watchdog.HealthNormal},
		{"own probes altered", "0,0,0", probe, alter, "link X+", selftest.Altered, watchdog.HealthSick},
		{"own probes lost", "0,0,0", probe, drop, "link X-", selftest.Lost, watchdog.HealthSick},
		{"own relayed messages altered", "0,0,0", relayed, alter, "relay", selftest.Altered, watchdog.HealthSick},
		{"own relayed messages lost", "0,0,0", relayed, drop, "relay", selftest.Lost, watchdog.HealthSick},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newMesh(t, "3x1x1", 1, func(c *Config) { c.SelfTest = testing2s })
			n := w.node("0,0,0")
			named := false
			sick := false
			busy := func(d time.Duration) {
				for end := w.now.Add(d); w.now.Before(end); w.run(100 * time.Millisecond) {
					w.step(n, Readings{})
					for x := range 2 {
						w.step(n, FromHost{Message: halfcore.Relay{Kind: halfcore.RelayDown, Dst: grid.Coord{X: 1 + x},
							Envelope: fmt.Appendf(nil, "%d by %d", w.now.UnixNano(), x)}})
					}
					for _, r := range n.m.SelfTest().Results(w.now) {
						named = named || r.Name == tc.module && r.State == selftest.Failed && r.Fault == tc.want
					}
					sick = sick || n.m.word.Core == watchdog.HealthSick
				}
			}
			busy(10 * time.Second)
			if named || sick {
				t.Fatalf("before the fault: named %t, sick %t", named, sick)
			}
			w.spoil = func(from *meshNode, f *torus.Frame) {
				if from == w.node(tc.by) && len(f.Payload) > 0 && tc.which(f) {
					tc.spoil(f)
				}
			}
			busy(40 * time.Second)
			if !named || sick != (tc.core == watchdog.HealthSick) {
				t.Errorf("named %t, sick %t: %+v", named, sick, n.m.SelfTest().Results(w.now))
			}
			w.spoil = nil
			busy(20 * time.Second)
			if n.m.word.Core != watchdog.HealthNormal {
				t.Errorf("and good again: core %s: %s", n.m.word.Core, coreDetail(n.m))
			}
		})
	}
}

// A neighbour that spoils what it returns does not keep a restarted half from being proven.
func TestOneNeighbourHoldsUpNoProof(t *testing.T) {
	w := newMesh(t, "3x1x1", 1, func(c *Config) { c.SelfTest = testing2s })
	n := w.node("0,0,0")
	busy := func(d time.Duration) {
		for end := w.now.Add(d); w.now.Before(end); w.run(100 * time.Millisecond) {
			w.step(n, Readings{})
			w.step(n, FromHost{Message: halfcore.Relay{Kind: halfcore.RelayDown, Dst: grid.Coord{X: 1}, Envelope: []byte(w.now.String())}})
		}
	}
	busy(10 * time.Second)
	w.spoil = func(from *meshNode, f *torus.Frame) {
		if from == w.node("1,0,0") && f.Type == torus.TypeTest && f.Payload[0] == testEcho {
			f.Payload = slices.Clone(f.Payload)
			f.Payload[len(f.Payload)-1] ^= 1
		}
	}
	w.cfg.SelfTest.Kept, w.cfg.SelfTest.Prove = n.m.SelfTest().Snapshot(nil), true
	w.begin(n, Hops{})
	w.sessions()
	if !n.m.SelfTest().Proving() {
		t.Fatal("a restarted half has nothing to prove")
	}
	busy(selftest.ProvingPatience + 3*time.Second)
	if n.m.SelfTest().Proving() || n.m.word.Core != watchdog.HealthNormal {
		t.Errorf("proving %t, core %s: %s", n.m.SelfTest().Proving(), n.m.word.Core, coreDetail(n.m))
	}
}

// A frame may arrive twice, and the link drops the copy. A probe that arrives in two frames is the fault of the
// neighbour or of this half.
func TestLinkFaultsAreNamed(t *testing.T) {
	for want, payloads := range map[selftest.Fault]func([]byte) [][]byte{
		selftest.Altered: func(b []byte) [][]byte { b[9] ^= 4; return [][]byte{b} },
		selftest.Lost:    func([]byte) [][]byte { return [][]byte{nil} },
		selftest.Doubled: func(b []byte) [][]byte { return [][]byte{b, b} },
	} {
		p := newPair(t, testing2s, testing2s)
		p.busy(10 * time.Second)
		second := p.halves[1]
		p.spoil = func(half int, f torus.Frame) (out []torus.Frame) {
			if half == 0 || f.Type != torus.TypeTest || f.Payload[0] != testEcho {
				return []torus.Frame{f}
			}
			for i, b := range payloads(slices.Clone(f.Payload)) {
				g := f
				g.Payload = b
				if i > 0 {
					second.links[f.Direction.Index()].machine.Fill(&g)
				}
				out = append(out, g)
			}
			return out
		}
		p.busy(20 * time.Second)
		if r := p.result(0, "link X+"); r.State != selftest.Failed || r.Fault != want {
			t.Errorf("%s: %+v", want, r)
		}
	}
}

// A link that loses frames is sick itself, and no module of this half is at fault; the same holds for a cut link.
func TestBadLinksAreNoFaultOfOurs(t *testing.T) {
	for _, every := range []int{1, 2, 5, 30} {
		p := newPair(t, testing2s, testing2s)
		p.busy(10 * time.Second)
		n := 0
		p.spoil = func(half int, f torus.Frame) []torus.Frame {
			if n++; n%every == 0 {
				return nil
			}
			return []torus.Frame{f}
		}
		for range 60 {
			p.busy(time.Second)
			for i := range p.halves {
				for _, r := range p.halves[i].SelfTest().Results(p.now) {
					if r.State == selftest.Failed {
						t.Fatalf("one frame of %d lost: half %d: %+v", every, i, r)
					}
				}
			}
		}
	}
}

// A neighbour of an earlier version echoes nothing, and must not get messages that it would find malformed.
func TestEarlierVersionNeighbourGetsNoProbes(t *testing.T) {
	p := newPair(t, testing2s, halfcore.SelfTestConfig{})
	p.spoil = func(half int, f torus.Frame) []torus.Frame {
		if half == 1 && f.Type == torus.TypeTest {
			return nil
		}
		return []torus.Frame{f}
	}
	p.busy(time.Minute)
	for _, name := range []string{"link X+", "relay"} {
		if r := p.result(0, name); r.State != selftest.Untested {
			t.Errorf("%+v", r)
		}
	}
	if p.core(0) != watchdog.HealthNormal || p.core(1) != watchdog.HealthNormal {
		t.Errorf("cores %s and %s: %v", p.core(0), p.core(1), p.text)
	}
	if p.tests > 2*3*8 {
		t.Errorf("%d test frames in a minute to one who never answers", p.tests)
	}
}

// A neighbour whose own tests are switched off, but which continues in the same epoch, still returns probes: they do
// not count as lost.
func TestNeighbourThatStopsTestingIsNoFault(t *testing.T) {
	p := newPair(t, testing2s, testing2s)
	p.busy(10 * time.Second)
	off := p.halves[1].cfg
	off.SelfTest = halfcore.SelfTestConfig{}
	p.halves[1].cfg, p.halves[1].selfTest = off, newSelfTest(off, p.now)
	p.busy(time.Minute)
	for _, name := range []string{"link X+", "relay"} {
		if r := p.result(0, name); r.State != selftest.Passed || r.Lost > 0 {
			t.Errorf("%+v", r)
		}
	}
	if p.core(0) != watchdog.HealthNormal {
		t.Errorf("core %s: %s", p.core(0), p.text[0])
	}
}

func coreDetail(m *Machine) string {
	detail, _ := m.coreDetail()
	return detail
}

// A restarted half is sick until all modules in use have passed, and long enough for others to see it.
func TestRestartedHalfProvesItself(t *testing.T) {
	p := newPair(t, testing2s, testing2s)
	p.busy(10 * time.Second)
	again := testing2s
	again.Kept, again.Prove = p.halves[0].SelfTest().Snapshot(nil), true
	q := newPair(t, again, testing2s)
	if q.core(0) != watchdog.HealthNormal || q.result(0, "link X+").Tests == 0 || q.result(0, "report path").Tests == 0 {
		t.Errorf("after a second: %+v", q.halves[0].SelfTest().Results(q.now))
	}
	if !strings.Contains(q.text[0], "normal") {
		t.Errorf("the core says %q", q.text[0])
	}
	m, err := New(q.halves[0].cfg, q.now, 9)
	if err != nil {
		t.Fatal(err)
	}
	if out := m.Step(q.now, Tick{}); out.DNP.Core != watchdog.HealthSick || !out.Ring || !strings.Contains(coreDetail(m), "restarted") {
		t.Errorf("at the start: core %s, %s", out.DNP.Core, coreDetail(m))
	}
	// Its mailbox no longer works.
	r := newPair(t, again, testing2s)
	r.noMail = true
	r.halves[0], err = New(r.halves[0].cfg, r.now, 9)
	if err != nil {
		t.Fatal(err)
	}
	r.step(0, Tick{})
	r.run(3 * time.Second)
	if r.core(0) != watchdog.HealthSick || !strings.Contains(coreDetail(r.halves[0]), "self-test: mailbox lost") {
		t.Errorf("with a mailbox that loses everything: core %s, %s", r.core(0), coreDetail(r.halves[0]))
	}
}
