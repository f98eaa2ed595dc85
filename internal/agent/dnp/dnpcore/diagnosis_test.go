package dnpcore

import (
	"slices"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/diagnosis"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// order gives a half an order, and returns its notes.
func (p *pair) order(half int, term, count uint64, known uint32) []Note {
	p.t.Helper()
	return p.ordered(half, &lofamov1.DiagnosisOrder{
		Number: &lofamov1.OrderNumber{Term: term, Count: count}, Node: string(p.halves[half].self), Links: 63, Rounds: 1, ReplyTo: "127.0.0.1:9",
		Known: known,
	})
}

func (p *pair) ordered(half int, o *lofamov1.DiagnosisOrder) []Note {
	msg := &lofamov1.Message{Body: &lofamov1.Message_DiagnosisOrder{DiagnosisOrder: o}}
	p.notes = nil
	p.step(half, Opened{servicenet.Opened{Role: servicenet.RoleSupervisor, Name: "s1", Msg: msg}})
	return p.notes
}

// directions returns the links with findings, in order.
func directions(found []*lofamov1.DiagnosisFindings) (out []grid.Direction) {
	for _, f := range found {
		out = append(out, grid.Direction(f.GetLink().GetDirection()))
	}
	slices.Sort(out)
	return out
}

func TestDiagnosisOfHealthyLinks(t *testing.T) {
	p := newPair(t, halfcore.SelfTestConfig{}, halfcore.SelfTestConfig{})
	p.order(0, 5, 1, 0)
	began, most := p.now, 0
	for len(p.found) < 2 && p.now.Sub(began) < 2*time.Second {
		was := len(p.found)
		p.run(time.Millisecond)
		most = max(most, len(p.found)-was)
	}
	if most > 1 {
		t.Error("the findings of two links are said at once: those of six, of some halves, fill a mailbox")
	}
	if took := p.now.Sub(began); took > 300*time.Millisecond {
		t.Errorf("it took %s", took)
	}
	if got := directions(p.found); !slices.Equal(got, []grid.Direction{grid.XPlus, grid.XMinus}) {
		t.Fatalf("findings of %v", got)
	}
	for _, f := range p.found {
		l := f.GetLink()
		if f.GetNumber().GetTerm() != 5 || f.GetNumber().GetCount() != 1 || f.GetHalf() != lofamov1.Half_HALF_DNP || f.GetLinks() != 3 ||
			f.GetNode() != "n0-0-0" {
			t.Errorf("%v", f)
		}
		if l.GetDnp().GetAnswered() != 36 || l.GetHost().GetAnswered() != 6 || l.GetThrough().GetAnswered() != 12 ||
			f.GetOwnHost().GetAnswered() != 6 {
			t.Errorf("%v", f)
		}
		if l.GetDnp().GetAltered()+l.GetMissed()+l.GetDamaged()+l.GetDnp().GetLate() != 0 || l.GetHeard() < 54 {
			t.Errorf("%v", l)
		}
	}
	wakes := p.wakeUp
	p.run(time.Second)
	if p.halves[0].diagnosis.machine != nil || !p.halves[0].diagnosis.wake.IsZero() {
		t.Error("it goes on")
	}
	if more := p.wakeUp - wakes; more > 300 {
		t.Errorf("%d wake-ups in the second after it", more)
	}
}

func TestDiagnosisOfBadLinks(t *testing.T) {
	p := newPair(t, halfcore.SelfTestConfig{}, halfcore.SelfTestConfig{})
	n := 0
	p.spoil = func(half int, f torus.Frame) []torus.Frame {
		n++
		switch {
		case f.Type != torus.TypeTest:
		case half == 0 && f.Direction == grid.XPlus && n%3 == 0:
			return nil
		case half == 1 && f.Direction == grid.XPlus && len(f.Payload) > 20: // echoes to X-
			f.Payload = slices.Clone(f.Payload)
			f.Payload[len(f.Payload)-1] ^= 1
		}
		return []torus.Frame{f}
	}
	p.noMail = true
	p.order(0, 5, 1, 0)
	p.run(2 * time.Second)
	if len(p.found) != 2 {
		t.Fatalf("%d findings", len(p.found))
	}
	for _, f := range p.found {
		l := f.GetLink()
		if f.GetOwnHost().GetSent() != 6 || f.GetOwnHost().GetAnswered() != 0 || l.GetHost().GetAnswered() != 0 {
			t.Errorf("no host half sends anything back: %v", f)
		}
		if d := l.GetDnp(); grid.Direction(l.GetDirection()) == grid.XPlus &&
			(d.GetAnswered() == 36 || d.GetAnswered() == 0 || d.GetAltered() != 0) ||
			grid.Direction(l.GetDirection()) == grid.XMinus && (d.GetAnswered() != 36 || d.GetAltered() != 36) {
			t.Errorf("%v", l)
		}
	}
}

// TestDiagnosisDoesNotCountEarlierFrames: frames in flight when a link was cut arrive after the diagnosis began. They
// must not count as a sign that the link works.
func TestDiagnosisDoesNotCountEarlierFrames(t *testing.T) {
	p := newPair(t, halfcore.SelfTestConfig{}, halfcore.SelfTestConfig{})
	p.slow = func(torus.Frame) time.Duration { return 30 * time.Millisecond }
	p.run(time.Second)
	p.spoil = func(half int, f torus.Frame) []torus.Frame {
		if half == 1 {
			return nil
		}
		return []torus.Frame{f}
	}
	p.order(0, 5, 1, 0)
	p.run(3 * time.Second)
	if len(p.found) != 2 {
		t.Fatalf("%d findings", len(p.found))
	}
	for _, f := range p.found {
		if l := f.GetLink(); l.GetHeard() != 0 || l.GetDnp().GetSent() == 0 || l.GetDnp().GetAnswered() != 0 {
			t.Errorf("nothing came since the cut: %v", l)
		}
	}
}

// A half executes an order once, repeats its findings for a repeated order, ignores former leaders, and does at most
// one run a second.
func TestDiagnosisOrderIsExecutedOnce(t *testing.T) {
	p := newPair(t, halfcore.SelfTestConfig{}, halfcore.SelfTestConfig{})
	p.order(0, 5, 7, 0)
	p.run(100 * time.Millisecond)
	p.order(0, 5, 7, 0) // while it runs
	p.run(400 * time.Millisecond)
	if len(p.found) != 2 || p.attempts != 1 {
		t.Fatalf("%d findings at attempt %d", len(p.found), p.attempts)
	}
	p.found = nil
	p.order(0, 5, 7, 1)
	if got := directions(p.found); !slices.Equal(got, []grid.Direction{grid.XMinus}) || p.attempts != 2 {
		t.Errorf("asked again for all but X+: %v at attempt %d", got, p.attempts)
	}
	for name, notes := range map[string][]Note{
		"an older count": p.order(0, 5, 6, 0), "an older term": p.order(0, 4, 9, 0),
		"another's": p.ordered(0, &lofamov1.DiagnosisOrder{Number: &lofamov1.OrderNumber{Term: 9, Count: 1}, Node: "n1-0-0", Links: 1,
			Rounds: 1}),
	} {
		if len(notes) != 1 || notes[0].Kind != NoteRefused {
			t.Errorf("%s: %v", name, notes)
		}
	}
	p.found, p.probes = nil, 0
	p.order(0, 6, 1, 0)
	p.run(300 * time.Millisecond)
	if p.probes > 0 {
		t.Error("a run that begins within a second of the last")
	}
	p.run(700 * time.Millisecond)
	if len(p.found) != 2 || p.found[0].GetNumber().GetTerm() != 6 {
		t.Errorf("%v", p.found)
	}
	p.found = nil
	p.run(time.Second)
	for again := range 2 { // the first may have been lost
		p.found = nil
		p.ordered(0, &lofamov1.DiagnosisOrder{Number: &lofamov1.OrderNumber{Term: 6, Count: 2}, Node: "n0-0-0", Links: 1 << 5, Rounds: 1})
		if len(p.found) != 1 || p.found[0].GetError() == "" || p.attempts != again+1 {
			t.Errorf("of a link that is not there: %v at attempt %d", p.found, p.attempts)
		}
	}
}

// A new store begins with lower terms: orders of the former store must not block its orders.
func TestDiagnosisOrderOfNewStoreIsAccepted(t *testing.T) {
	p := newPair(t, halfcore.SelfTestConfig{}, halfcore.SelfTestConfig{})
	p.order(0, 5000, 1, 0)
	p.run(order.RunsLast - time.Second)
	if notes := p.order(0, 7, 1, 0); len(notes) != 1 || notes[0].Kind != NoteRefused {
		t.Errorf("within the life of another order: %v", notes)
	}
	p.run(time.Second)
	p.found = nil
	p.order(0, 7, 1, 0)
	p.run(500 * time.Millisecond)
	if len(p.found) != 2 || p.found[0].GetNumber().GetTerm() != 7 {
		t.Errorf("%v", p.found)
	}
	// A copy of an earlier order belongs to neither store, however high its number and whenever it arrives.
	p.order(0, 8, 1, 0)
	for range 2 {
		p.run(order.RunsLast + time.Second)
		for _, term := range []uint64{5000, 7} {
			if notes := p.order(0, term, 1, 0); len(notes) != 1 || notes[0].Kind != NoteRefused {
				t.Errorf("a copy of the order of term %d: %v", term, notes)
			}
		}
	}
}

// A neighbour of an earlier version echoes probes, and forwards none.
func TestDiagnosisRunsBesideEarlierVersion(t *testing.T) {
	p := newPair(t, halfcore.SelfTestConfig{}, halfcore.SelfTestConfig{})
	for _, l := range p.halves[0].links {
		if l != nil {
			l.peer.Diagnosis = false
		}
	}
	p.halves[1].cfg.NoHops = true
	p.order(0, 5, 1, 0)
	p.run(400 * time.Millisecond)
	for _, f := range p.found {
		if l := f.GetLink(); l.GetDnp().GetAnswered() != 36 || l.GetHost() != nil || l.GetThrough() != nil {
			t.Errorf("%v", l)
		}
	}
	if len(p.found) != 2 {
		t.Errorf("%d findings", len(p.found))
	}
}

// A half forwards and echoes no more for a neighbour than the neighbour's budget. The neighbour sends probes to
// forward, and echoes of such.
func TestDiagnosisPassesOnWithinBounds(t *testing.T) {
	p := newPair(t, halfcore.SelfTestConfig{}, halfcore.SelfTestConfig{})
	probe := append([]byte("LFDP"), make([]byte, 28)...)
	probe[4], probe[5] = byte(diagnosis.Through), byte(grid.XPlus)
	echo := append([]byte{testEcho}, diagnosis.Wrap(nil, diagnosis.Through, grid.XPlus, probe)...)
	for name, payload := range map[string][]byte{"to pass on": append([]byte{testPass}, probe...), "echoes": echo} {
		p.tests = 0
		for range 1000 {
			p.step(0, &Frame{Dir: grid.XMinus, Frame: torus.Frame{Type: torus.TypeTest, Payload: payload}})
		}
		if p.tests > 0 {
			t.Errorf("%s: frames that are none of the link's are taken", name) // they have no number
		}
		l := p.halves[0].links[grid.XMinus.Index()]
		out := 0
		for range 1000 {
			p.halves[0].frames = p.halves[0].frames[:0]
			p.halves[0].onTestFrame(p.now, l, payload)
			out += len(p.halves[0].frames)
		}
		if out == 0 || out > echoRate {
			t.Errorf("%s: %d of 1000 go on: want some, and at most %d", name, out, echoRate)
		}
		p.run(2 * time.Second)
	}
}

// TestDiagnosisCountsFramesOfReplacedPeerAlone: the counters of a link begin again when another node takes its peer's place.
func TestDiagnosisCountsFramesOfReplacedPeerAlone(t *testing.T) {
	w := newMesh(t, "4x1x1", 1, peered)
	w.run(time.Second)
	n := w.node("0,0,0")
	w.step(n, Opened{servicenet.Opened{Role: servicenet.RoleSupervisor, Name: "s1", Msg: &lofamov1.Message{
		Body: &lofamov1.Message_DiagnosisOrder{DiagnosisOrder: &lofamov1.DiagnosisOrder{
			Number: &lofamov1.OrderNumber{Term: 5, Count: 1}, Node: string(n.m.self), Links: 63, Rounds: 4,
		}},
	}}})
	w.run(settleFor + 10*time.Millisecond)
	if x := &n.m.diagnosis; x.machine == nil || !x.settled {
		t.Fatalf("the diagnosis runs: %t, settled: %t", x.machine != nil, x.settled)
	}
	n.told(w, &lofamov1.PeerOrder{Number: 7, Peers: to(grid.XPlus)})
	w.cut(n, grid.XPlus)
	w.run(4 * time.Second)
	heard := map[grid.Direction]uint32{}
	for _, f := range n.m.diagnosis.found {
		heard[f.Dir] = f.Heard
	}
	if heard[grid.XPlus] != 0 || heard[grid.XMinus] == 0 {
		t.Errorf("frames of the silent new peer and of the other one: %v", heard)
	}
}
