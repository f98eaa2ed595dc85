package dnpcore

import (
	"fmt"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// The seed's authors name code that their self-test could not reach without a real loss: the resending path (000 §3.2).
// These tests provoke loss, duplicates and overload on the links while the self-test runs, and count how often the code
// for each of them ran. None of them is a fault of a half.

// hopMessage returns the message in a frame that its receiver has to acknowledge; empty: it has none.
func hopMessage(f torus.Frame) string {
	if f.Type != torus.TypeHop || len(f.Payload) <= torus.HopHeaderSize {
		return ""
	}
	return string(f.Payload[torus.HopHeaderSize:])
}

// tested counts the tests of the modules that share the links with messages.
func (p *pair) tested() (n uint64) {
	for i := range p.halves {
		for _, name := range []string{"link X+", "relay"} {
			n += p.result(i, name).Tests
		}
	}
	return n
}

// blamesNone fails the test if a half blames a part of itself or holds a message, and unless the tests went on.
func (p *pair) blamesNone(what string, tests uint64) {
	p.t.Helper()
	for i := range p.halves {
		for _, r := range p.halves[i].SelfTest().Results(p.now) {
			if r.State == selftest.Failed {
				p.t.Errorf("%s: half %d blames itself: %+v", what, i, r)
			}
		}
		if p.core(i) != watchdog.HealthNormal {
			p.t.Errorf("%s: half %d: the core is %s: %s", what, i, p.core(i), p.text[i])
		}
		if s := p.halves[i].HopStats(); s.Held != 0 || s.Expired != 0 {
			p.t.Errorf("%s: half %d: messages are held or given up: %+v", what, i, s)
		}
	}
	if n := p.tested() - tests; n < 20 {
		p.t.Errorf("%s: only %d tests", what, n)
	}
}

// linkStats adds up a counter of all links.
func (p *pair) linkStats(of func(torus.LinkStats) uint64) (n uint64) {
	for i := range p.halves {
		for _, l := range p.halves[i].links {
			if l != nil {
				n += of(l.machine.Stats())
			}
		}
	}
	return n
}

// sickLinks counts the links that a half calls other than NORMAL.
func (p *pair) sickLinks() (n int) {
	for i := range p.halves {
		for _, d := range p.halves[i].cfg.Topo.Links {
			if s := p.halves[i].ledger.State(p.halves[i].self, fault.Link(d)); s == fault.Sick || s == fault.Failed {
				n++
			}
		}
	}
	return n
}

// TestLossTakesResendPath loses the first sending of messages, and other frames besides. Little loss reaches the
// self-test, which repeats its tests sooner. Much loss makes the links sick, which the self-test then leaves alone.
func TestLossTakesResendPath(t *testing.T) {
	for _, tc := range []struct {
		name            string
		messages, tests int // one of so many first sendings of messages, and of test frames, is lost; 0: none
		frames          int // and of other frames
		sick            bool
		least           uint64 // messages sent again
	}{{"little", 20, 12, 0, false, 15}, {"much", 1, 0, 20, true, 250}} {
		p := newPair(t, testing2s, testing2s)
		p.busy(10 * time.Second)
		sent, lost, n := map[string]bool{}, uint64(0), map[string]int{}
		one := func(what string, of int) bool {
			n[what]++
			return of > 0 && n[what]%of == 0
		}
		p.spoil = func(half int, f torus.Frame) []torus.Frame {
			m := hopMessage(f)
			switch {
			case m != "" && !sent[m]:
				if sent[m] = true; one("message", tc.messages) {
					lost++
					return nil
				}
			case f.Type == torus.TypeTest && one("test", tc.tests), one("frame", tc.frames):
				return nil
			}
			return []torus.Frame{f}
		}
		tests := p.tested()
		p.busy(60 * time.Second)
		sick := p.sickLinks()
		if tc.sick {
			tests -= 20 // they pause
		}
		p.spoil = nil
		p.run(2 * time.Second)
		again, gaps := p.halves[0].HopStats().Again, p.linkStats(func(s torus.LinkStats) uint64 { return s.Lost })
		if lost < tc.least || again < lost || gaps < lost {
			t.Errorf("%s loss: %d first sendings lost, %d sent again, %d frames counted as lost: want %d or more of each", tc.name, lost, again,
				gaps, tc.least)
		}
		var probes uint64
		for i := range p.halves {
			probes += p.result(i, "link X+").Lost + p.result(i, "link X-").Lost + p.result(i, "relay").Lost
		}
		if probes == 0 && !tc.sick || (sick > 0) != tc.sick {
			t.Errorf("%s loss: %d probes lost, %d links sick", tc.name, probes, sick)
		}
		p.blamesNone(tc.name+" loss", tests)
		t.Logf("%s loss: %d first sendings lost, %d sent again, %d frames counted as lost, %d probes lost, %d links sick", tc.name, lost,
			again, gaps, probes, sick)
	}
}

// TestDuplicatesTakeTheirPath doubles frames, and loses some acknowledgements, so that whole messages come twice as well.
func TestDuplicatesTakeTheirPath(t *testing.T) {
	p := newPair(t, testing2s, testing2s)
	p.busy(10 * time.Second)
	n := 0
	p.spoil = func(half int, f torus.Frame) []torus.Frame {
		if f.Type == torus.TypeHop && hopMessage(f) == "" {
			if n++; n%20 == 0 {
				return nil
			}
		}
		return []torus.Frame{f, f}
	}
	tests := p.tested()
	p.busy(60 * time.Second)
	p.spoil = nil
	p.run(2 * time.Second)
	seen, copies := p.halves[1].HopStats().Seen, p.linkStats(func(s torus.LinkStats) uint64 { return s.Duplicates })
	if seen < 10 || copies < 1000 {
		t.Errorf("%d messages and %d frames came twice: want 10 and 1000", seen, copies)
	}
	p.blamesNone("duplicates", tests)
	t.Logf("%d messages and %d frames came twice", seen, copies)
}

// TestOverloadTakesItsPath sends up more messages than the neighbour has room for, whose host takes none for a while.
func TestOverloadTakesItsPath(t *testing.T) {
	p := newPair(t, testing2s, testing2s)
	p.busy(10 * time.Second)
	tests, messages := p.tested(), 0
	for burst := range 10 {
		p.mailFull = true
		for i := range NumHeld {
			p.step(0, FromHost{Message: halfcore.Relay{Kind: halfcore.RelayUp, Envelope: fmt.Appendf(nil, "%d of burst %d", i, burst)}})
			messages++
		}
		p.run(500 * time.Millisecond)
		p.mailFull = false
		p.busy(3 * time.Second)
	}
	p.run(2 * time.Second)
	refused := p.halves[0].HopStats().Refused + p.halves[1].HopStats().Refused
	if refused == 0 {
		t.Error("no message was refused for want of room")
	}
	p.blamesNone("overload", tests)
	t.Logf("%d messages in bursts, %d times one was refused, hosts took %d", messages, refused, p.mailed)
}
