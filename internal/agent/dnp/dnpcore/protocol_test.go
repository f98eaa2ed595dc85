package dnpcore

import (
	"fmt"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// Impossible behaviour of a neighbour is counted and sets its bit in router 0, but makes no core sick here. Legal
// behaviour counts nothing.
func TestProtocolFaultsAreCounted(t *testing.T) {
	up := func(made, limit uint8, hops ...grid.Coord) halfcore.Relay {
		m := halfcore.Relay{Kind: halfcore.RelayUp, Made: made, Limit: limit, Envelope: []byte("x")}
		for _, c := range hops {
			m = m.AddHop(halfcore.RelayHop{Coord: c, Half: 2})
		}
		return m
	}
	self, x := grid.Coord{}, grid.Coord{X: 1}
	stream := func(w *world) uint32 { return w.m.links[grid.XPlus.Index()].hop.Snapshot().Stream }
	numbered := func(w *world, p *peer, stream uint32) {
		b, err := up(1, 3).Append(torus.HopHeader{Stream: stream, Number: 1, Base: 1}.Append(nil))
		w.must(err)
		w.frame(p, torus.TypeHop, b)
	}
	for name, test := range map[string]struct {
		rule halfcore.Rule
		n    uint64
		do   func(w *world, p *peer)
	}{
		"acknowledges what was never sent": {halfcore.RuleAck, 1, func(w *world, p *peer) {
			w.frame(p, torus.TypeHop, torus.HopHeader{AckStream: stream(w), Ack: 1}.Append(nil))
		}},
		"has taken what was never sent": {halfcore.RuleAck, 1, func(w *world, p *peer) {
			w.frame(p, torus.TypeHop, torus.HopHeader{AckStream: stream(w), Taken: 1 << 63}.Append(nil))
		}},
		"acknowledges nothing, and another stream's": {halfcore.RuleAck, 0, func(w *world, p *peer) {
			w.frame(p, torus.TypeHop, torus.HopHeader{AckStream: stream(w)}.Append(nil))
			w.frame(p, torus.TypeHop, torus.HopHeader{AckStream: stream(w) + 1, Ack: 9}.Append(nil))
		}},
		"acknowledges a frame never sent": {halfcore.RuleOrder, 1, func(w *world, p *peer) {
			f := torus.Frame{Type: torus.TypeHeartbeat}
			p.machine.Fill(&f)
			f.Ack = 1 << 40
			w.receive(p, f)
			w.run(2 * w.cfg.Periods.SensorPeriod)
		}},
		"counts anew without a restart": {halfcore.RuleStream, 1, func(w *world, p *peer) {
			numbered(w, p, 50)
			numbered(w, p, 51)
			numbered(w, p, 50) // late
		}},
		"counts anew after a restart": {halfcore.RuleStream, 0, func(w *world, p *peer) {
			numbered(w, p, 50)
			p.status.Epoch++
			w.receive(p, p.machine.NextFrame(p.status))
			numbered(w, p, 51)
		}},
		"counts anew in another session": {halfcore.RuleStream, 0, func(w *world, p *peer) {
			numbered(w, p, 50)
			w.step(Session{Dir: grid.XPlus, ID: 77})
			numbered(w, p, 51)
		}},
		"no hop made":   {halfcore.RuleHops, 1, func(w *world, p *peer) { w.message(p, up(0, 3)) }},
		"too many hops": {halfcore.RuleHops, 1, func(w *world, p *peer) { w.message(p, up(4, 3)) }},
		"all its hops":  {halfcore.RuleHops, 0, func(w *world, p *peer) { w.message(p, up(3, 3)) }},
		"down outside": {halfcore.RuleOutside, 1, func(w *world, p *peer) {
			w.message(p, halfcore.Relay{Kind: halfcore.RelayDown, Made: 1, Limit: 3, Dst: grid.Coord{X: 9}, Envelope: []byte("x")})
		}},
		"back outside": {halfcore.RuleOutside, 1, func(w *world, p *peer) {
			w.message(p, halfcore.Relay{Kind: halfcore.RelayBack, Made: 1, Limit: 3, Dst: grid.Coord{Z: 1}, Envelope: []byte("x")})
		}},
		"a flood back":        {halfcore.RuleBack, 1, func(w *world, p *peer) { w.message(p, up(3, 9, grid.Coord{Y: 1}, self, x)) }},
		"a flood round about": {halfcore.RuleBack, 0, func(w *world, p *peer) { w.message(p, up(4, 9, self, grid.Coord{Y: 1}, x)) }},
		"a malformed message": {halfcore.RuleMalformed, 1, func(w *world, p *peer) { w.frame(p, torus.TypeMessage, []byte("short")) }},
		"a malformed back message": {halfcore.RuleMalformed, 1, func(w *world, p *peer) {
			w.frame(p, torus.TypeMessage, []byte{1, byte(halfcore.RelayBack), 1, 3, 0, 0, 0, 0, 0, 0, 9, 'x'})
		}},
		"a malformed hop header": {halfcore.RuleMalformed, 1, func(w *world, p *peer) { w.frame(p, torus.TypeHop, []byte("short")) }},
		"a malformed numbered message": {halfcore.RuleMalformed, 1, func(w *world, p *peer) {
			w.frame(p, torus.TypeHop, append(torus.HopHeader{Stream: 50, Number: 1, Base: 1}.Append(nil), "short"...))
		}},
		"a message of a later version": {halfcore.RuleMalformed, 0, func(w *world, p *peer) {
			w.frame(p, torus.TypeMessage, append([]byte{2}, make([]byte, 40)...))
		}},
		"a message of a later kind": {halfcore.RuleMalformed, 0, func(w *world, p *peer) {
			w.frame(p, torus.TypeMessage, append([]byte{1, 99}, make([]byte, 40)...))
		}},
		"no more than granted": {halfcore.RuleRate, 0, func(w *world, p *peer) { flood(w, p, 5) }},
		"more than granted":    {halfcore.RuleRate, 2, func(w *world, p *peer) { flood(w, p, 7) }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "3x3x1", "0,0,0")
			test.do(w, w.peer(grid.XPlus))
			for d, rules := range w.m.ProtocolStats() {
				for r, n := range rules {
					want := uint64(0)
					if d == grid.XPlus.Index() && halfcore.Rule(r) == test.rule {
						want = test.n
					}
					if n != want {
						t.Errorf("direction %d: rule %s broken %d times, want %d", d, halfcore.Rule(r), n, want)
					}
				}
			}
			want := uint32(0)
			if test.n > 0 {
				want = ruleBits[test.rule]
			}
			if got := w.m.exceptions.at(watchdog.AddrRouter0).value & watchdog.RouterProtocol; got != want {
				t.Errorf("router 0 has %#x, want %#x", got, want)
			}
			if w.m.word.Core != watchdog.HealthNormal {
				t.Errorf("core %s: %s", w.m.word.Core, &w.m.exceptions)
			}
		})
	}
}

func flood(w *world, p *peer, n int) {
	for i := range n {
		w.message(p, halfcore.Relay{Kind: halfcore.RelayUp, Made: 1, Limit: 3, Envelope: fmt.Append(nil, i)})
	}
}

func TestEveryRuleHasOneName(t *testing.T) {
	seen := map[string]bool{}
	for r := range halfcore.Rule(halfcore.Rules) {
		if s := r.String(); s == "" || seen[s] || strings.Contains(s, "Rule") {
			t.Errorf("rule %d is %q", r, s)
		}
		seen[r.String()] = true
	}
	if halfcore.Rule(halfcore.Rules).String() != fmt.Sprintf("Rule(%d)", halfcore.Rules) {
		t.Error(halfcore.Rule(halfcore.Rules).String())
	}
}
