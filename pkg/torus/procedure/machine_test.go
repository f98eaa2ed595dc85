package procedure

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// The straight way of Figure 7: with traffic, the torus drains, tests, may change its masks, and goes on.
func TestProcedureDrainsTestsAndGoesOn(t *testing.T) {
	w := newTorus(t, "3x3x2", 1)
	w.pass(100*ms, 0.2)
	w.start(0, true)
	w.pass(longest(), 0.2)
	w.allNormal()
	for _, n := range w.nodes {
		c := w.dims.At(n.rank)
		if len(n.ended) != 1 || !n.ended[0].Clear || !n.ended[0].Diagnose || n.ended[0].TimedOut || n.tests != 1 || len(n.masked) != 1 ||
			len(n.ended[0].silent) > 0 {
			t.Errorf("%s: %+v, %d tests, masks at %v", c, n.ended, n.tests, n.masked)
		}
		if s := w.states(n.rank); !strings.HasPrefix(s, "ErrorDetectPropagate SystemDrain") ||
			!strings.HasSuffix(s, "SystemDrain Diagnostics Normal") || strings.Contains(s, "DropPackets") {
			t.Errorf("%s: %s", c, s)
		}
		var steps []State
		for _, s := range n.ended[0].Steps {
			steps = append(steps, s.State)
		}
		if !slices.Contains(steps, Decision) || steps[0] != ErrorDetectPropagate || steps[len(steps)-1] != Diagnostics {
			t.Errorf("%s: steps %v", c, steps)
		}
	}
	w.pass(100*ms, 0.2)
	if w.held == 0 {
		t.Error("nobody takes anything new")
	}
}

// If no node requests diagnostics only the drain takes place, and no mask changes.
func TestDrainWithoutDiagnosticsChangesNoMask(t *testing.T) {
	w := newTorus(t, "2x2x2", 2)
	w.start(1, false)
	w.pass(longest(), 0.1)
	w.allNormal()
	for _, n := range w.nodes {
		if n.tests+len(n.masked) > 0 || len(n.ended) != 1 || !n.ended[0].Clear || n.ended[0].Diagnose {
			t.Errorf("%s: %+v", w.dims.At(n.rank), n.ended)
		}
	}
}

// The cost of a procedure does not grow with the torus, except for the sets, of which each node is in three, and the
// broadcasts of nodes that a message passed after they had claimed to be empty.
func TestBroadcastsOfProcedure(t *testing.T) {
	for _, dims := range []string{"2x2x2", "4x4x4"} {
		w := newTorus(t, dims, 2)
		w.pass(100*ms, 0.1)
		w.start(1, true)
		w.pass(longest(), 0)
		w.allNormal()
		rounds := int(w.nodes[1].ended[0].Rounds)
		if most := 6 + 2*rounds + len(w.nodes)/4; w.said > most || w.arrivals > (1+2*rounds)*len(w.nodes) {
			t.Errorf("%s: %d broadcasts, %d arrivals in %d rounds: want at most %d broadcasts", dims, w.said, w.arrivals, rounds, most)
		}
		t.Logf("%s: %d broadcasts, %d arrivals, %d rounds", dims, w.said, w.arrivals, rounds)
	}
}

// A node that never drains, or never answers, makes the drain time out, and is named. No mask changes, and all nodes
// go on. The drain does not wait for an absent node.
func TestDrainTimesOut(t *testing.T) {
	for _, tc := range []struct {
		name          string
		plant         func(w *torusOf)
		absent        []int
		silent, stuck []int
		clear         bool
	}{
		{name: "never drains", plant: func(w *torusOf) {
			n := w.nodes[4]
			n.keeps, n.packets = true, []int{0}
			w.held, w.sent = 1, 1
			w.step(4, Holds{1})
		}, stuck: []int{4}},
		{name: "never answers", plant: func(w *torusOf) { w.kill(4) }, silent: []int{4}},
		{name: "is absent", plant: func(w *torusOf) { w.kill(4) }, absent: []int{4}, clear: true},
	} {
		w := newTorus(t, "3x3x1", 3)
		tc.plant(w)
		p := plan()
		p.Absent = tc.absent
		w.step(0, Start{Run: 1, Plan: p, Diagnose: true})
		w.pass(longest(), 0)
		w.allNormal()
		for _, n := range w.nodes {
			if n.gone {
				continue
			}
			if r := n.ended; len(r) != 1 || r[0].Clear != tc.clear || !slices.Equal(r[0].silent, tc.silent) ||
				!slices.Equal(r[0].stuck, tc.stuck) || (len(n.masked) > 0) != tc.clear || n.tests != 1 {
				t.Errorf("%s, %s: %+v", tc.name, w.dims.At(n.rank), r)
			}
		}
		if s := w.states(0); !tc.clear && !strings.Contains(s, "NetworkClear DropPackets Diagnostics") {
			t.Errorf("%s: %s", tc.name, s)
		}
	}
}

// Two nodes that start at once start the same procedure; a node restarted in the middle joins; a node that has
// forgotten all procedures can still start one.
func TestStartersAndRestarts(t *testing.T) {
	w := newTorus(t, "3x2x1", 4)
	w.start(2, true)
	w.start(0, false)
	w.pass(20*ms, 0)
	w.boot(1)
	w.pass(longest(), 0)
	w.allNormal()
	for _, n := range w.nodes {
		if len(n.ended) != 1 || n.m.Key() != (Key{1, 0, 2}) || n.rank != 1 && (!n.ended[0].Clear || n.tests != 1) {
			t.Errorf("%s: %+v, %+v", w.dims.At(n.rank), n.ended, n.m.Key())
		}
	}
	w.pass(limits().Rest, 0)
	w.boot(1)
	w.start(1, false)
	w.pass(longest(), 0)
	for _, n := range w.nodes {
		if len(n.ended) != 2 || n.m.Key().Starter != 1 || !n.ended[1].Clear {
			t.Errorf("%s: %+v, %+v", w.dims.At(n.rank), n.ended, n.m.Key())
		}
	}
}

// A supervisor's order replaces a node's own procedure, is not counted, and does not give way to a node's own one
// with any wave.
func TestOrderGoesFirst(t *testing.T) {
	w := newTorus(t, "3x3x1", 5)
	order := func(rank int, count uint64) string {
		w.run++
		return w.step(rank, Start{Run: w.run, Order: Order{Term: 9, Count: count}, Plan: plan()})
	}
	w.start(8, false)
	w.pass(50*ms, 0)
	if why := order(4, 1); why != "" {
		t.Error(why)
	}
	w.pass(20*ms, 0)
	w.step(7, Heard{From: 8, Message: Message{Key: Key{500, 8, 77}, State: SystemDrain, Round: 1, Plan: plan()}})
	w.pass(longest(), 0)
	for count := uint64(2); count < 6; count++ {
		if why := order(int(count), count); why != "" {
			t.Error(why)
		}
		w.pass(longest(), 0)
	}
	w.allNormal()
	for _, n := range w.nodes {
		if len(n.ended) != 5 {
			t.Fatalf("%s: %+v", w.dims.At(n.rank), n.ended)
		}
		for i, e := range n.ended {
			if e.Order != (Order{9, uint64(i + 1)}) || !e.Clear {
				t.Errorf("%s: %+v", w.dims.At(n.rank), e.Result)
			}
		}
	}
	if why := w.start(0, false); why == "" {
		t.Error("no rest after an order")
	}
}

// A node that always starts a procedure is listened to as often as its budget allows, with a rest after each.
func TestStarterIsHeldToItsBudget(t *testing.T) {
	w := newTorus(t, "2x2x1", 6)
	const bad, good = 1, 2
	out := 0
	for i := range 600 { // a minute
		w.start(bad, true)
		if i%50 == 0 { // and it lies about the wave
			for to := range w.nodes {
				w.step(to, Heard{From: bad, Message: Message{Key: Key{uint64(1000 + i), bad, uint64(i)}, State: ErrorDetectPropagate, Plan: plan()}})
			}
		}
		w.pass(100*ms, 0.01)
		if w.nodes[good].m.State() != Normal {
			out++
		}
	}
	if most := int(3 * longest() / (100 * ms)); out == 0 || out > most {
		t.Errorf("a good node was out of Normal for %d tenths of a second of 600: want some, and at most %d", out, most)
	}
	w.pass(limits().Rest, 0)
	w.start(good, false)
	w.pass(longest(), 0)
	if last := w.nodes[0].ended; len(last) == 0 || last[len(last)-1].Starter != good {
		t.Errorf("after that nobody else is listened to: %+v", last)
	}
	if why := w.start(good, false); why == "" {
		t.Error("one procedure after the other is started")
	}
}

// A starter that uses a new name each time is bounded by the rest: there are never two procedures without a rest
// between them.
func TestRenamedStarterIsBoundedByRest(t *testing.T) {
	w := newTorus(t, "2x2x1", 7)
	out := 0
	for i := range 1200 {
		w.step(0, Heard{From: 3, Message: Message{Key: Key{uint64(i + 1), i, uint64(i)}, State: SystemDrain, Round: 1, Plan: plan()}})
		w.pass(50*ms, 0)
		if w.nodes[0].m.State() != Normal {
			out++
		}
	}
	if most := int(1200*longest()/(longest()+limits().Rest)) + int(longest()/(50*ms)); out > most || len(w.nodes[0].m.began) > 100 {
		t.Errorf("out of Normal for %d of 1200 looks: want at most %d; %d names are kept", out, most, len(w.nodes[0].m.began))
	}
}

// A starter that renames the order each time keeps no node out of Normal for longer than the first name would.
func TestRenamedOrderProlongsNothing(t *testing.T) {
	m, order := New(0, limits()), Order{Term: 9, Count: 1}
	at := begin
	for i := range uint64(100) {
		m.Step(at, Heard{From: 3, Ordered: true, Message: Message{Key: Key{i + 1, 3, i}, State: ErrorDetectPropagate, Order: order,
			Plan: plan()}})
		if out := at.Sub(begin) >= longest(); out == m.Inhibited() {
			t.Fatalf("after %s: %s", at.Sub(begin), m.State())
		}
		at = at.Add(longest() / 20)
	}
	m.Step(at, Heard{From: 3, Ordered: true, Message: Message{Key: Key{500, 3, 500}, State: ErrorDetectPropagate, Order: Order{9, 2},
		Plan: plan()}})
	if !m.Inhibited() || m.Order().Count != 2 {
		t.Errorf("the next order: %s by %+v", m.State(), m.Order())
	}
}

// TestRequestInDecisionIsRefused has a node request diagnostics at the end of Decision, when the others are about to
// return to Normal. No node tests its links.
func TestRequestInDecisionIsRefused(t *testing.T) {
	for _, starter := range []int{0, 3} {
		w := newTorus(t, "4x1x1", 11)
		w.start(starter, false)
		for w.nodes[3].m.State() != Decision {
			w.pass(2*ms, 0)
		}
		w.pass(2*plan().Delay-6*ms, 0)
		if why := w.start(3, true); why == "" {
			t.Fatal("a procedure begins within another")
		}
		w.pass(longest(), 0)
		for _, n := range w.nodes {
			if n.tests+len(n.masked) > 0 || len(n.ended) != 1 || n.ended[0].Diagnose {
				t.Errorf("node 3 asked too late, and %s tested its links %d times: %+v", w.dims.At(n.rank), n.tests, n.ended)
			}
		}
	}
}

// A node that requests diagnostics, and then changes to another procedure, requests them of all nodes there too.
func TestRequestGoesToTheOtherProcedure(t *testing.T) {
	w := newTorus(t, "4x1x1", 11)
	w.start(0, false)
	w.start(3, true) // neither has heard of the other; the lower starter goes first
	w.pass(longest(), 0)
	for _, n := range w.nodes {
		if last := n.ended[len(n.ended)-1]; last.Starter != 0 || !last.Diagnose || len(n.masked) != 1 {
			t.Errorf("%s: want the diagnostics that node 3 asked for: %+v", w.dims.At(n.rank), last.Result)
		}
	}
	w = newTorus(t, "4x1x1", 11) // an order replaces the procedure in which the node asked
	w.start(0, false)
	w.pass(20*ms, 0)
	w.start(3, true)
	w.run++
	w.step(3, Start{Run: w.run, Order: Order{5, 1}, Plan: w.plan})
	w.pass(longest(), 0)
	for _, n := range w.nodes {
		if last := n.ended[len(n.ended)-1]; last.Starter != 3 || !last.Diagnose {
			t.Errorf("%s: want the diagnostics that node 3 asked for: %+v", w.dims.At(n.rank), last.Result)
		}
	}
}

// Random tori with traffic, links that die in every state, one way or both, nodes that go and come back, broadcasts
// that are lost or late. All nodes come back to Normal in bounded time (step checks), the network counts as clear
// only if it was at some moment (checkClear), masks change only in an empty network (checkMask), and no message is
// lost (allNormal).
func TestProcedureAlwaysReturnsToNormal(t *testing.T) {
	masks, all, timedOut := 0, 0, 0
	in := [numStates]int{} // links and nodes that died in each state
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 9))
		w := newTorus(t, []string{"2x2x1", "3x2x1", "4x3x1", "3x3x2", "2x2x2", "4x1x1"}[r.IntN(6)], seed)
		if seed%3 == 1 {
			w.lose = 0.1 + 0.3*r.Float64()
		}
		if seed%3 == 2 {
			w.slow = 300 * ms
		}
		if seed%2 == 0 {
			w.plan.DrainTimeout = 300 * ms
		}
		w.pass(50*ms, 0.1)
		w.start(r.IntN(len(w.nodes)), seed%4 > 0)
		for range 8 {
			a := r.IntN(len(w.nodes))
			w.pass(time.Duration(r.IntN(20))*ms, 0.1)
			for until, in := w.now.Add(time.Duration(r.IntN(500))*ms), State(1+r.IntN(7)); w.nodes[a].m.State() != in && w.now.Before(until); {
				w.pass(2*ms, 0.1)
			}
			near := w.neighbours(a)
			b := near[r.IntN(len(near))]
			switch r.IntN(6) {
			case 0:
				in[w.nodes[a].m.State()]++
				w.cut(a, b)
				w.cut(b, a)
			case 1:
				in[w.nodes[a].m.State()]++
				w.cut(a, b)
			case 2:
				if seed%3 != 0 {
					w.boot(a)
				}
			case 3:
				w.start(a, true)
			case 4:
				if seed%5 == 0 {
					w.kill(a)
				}
			default:
			}
		}
		w.pass(2*longest(), 0.1)
		w.allNormal()
		for _, n := range w.nodes {
			masks += len(n.masked)
			for _, res := range n.ended {
				all++
				if !res.Clear {
					timedOut++
				}
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d: %s\n%s", seed, w.dims, strings.Join(w.log, "\n"))
		}
	}
	if masks == 0 || timedOut == 0 || timedOut == all || slices.Contains(in[Normal:], 0) {
		t.Errorf("%d masks changed, %d of %d procedures timed out, links died in the states %v: the test shows nothing", masks, timedOut, all, in)
	}
	t.Logf("%d masks changed, %d of %d procedures timed out, links died in the states %v", masks, timedOut, all, in)
}

// A starter that raises the wave, at a stroke or step by step, neither locks out a node that begins cold and counts
// from 1 again, nor uses up the numbers.
func TestRaisedWaveLocksNobodyOut(t *testing.T) {
	for _, by := range []uint64{aheadMost, aheadMost + 1, 1 << 63, 1<<64 - 1} {
		w := newTorus(t, "2x2x1", 8)
		for rank := range 3 { // all but one, which is switched off
			w.step(rank, Heard{From: 3, Message: Message{Key: Key{by, 3, 77}, State: ErrorDetectPropagate, Plan: plan()}})
		}
		w.pass(longest()+limits().Rest, 0)
		w.boot(3)
		for i, starter := range []int{0, 3, 1} { // a warm one is joined by the cold one, and the other way round
			if why := w.start(starter, true); why != "" {
				t.Fatalf("wave %d, started at %d: %s", by, starter, why)
			}
			w.pass(longest(), 0)
			for _, n := range w.nodes {
				if m := n.m; len(n.ended) < i+1 || m.Key().Starter != starter || m.State() != Normal || !n.ended[len(n.ended)-1].Clear {
					t.Errorf("wave %d, started at %d: %s: %+v, %+v", by, starter, w.dims.At(n.rank), m.Key(), n.ended)
				}
			}
			w.pass(limits().Rest, 0)
		}
	}
	m := New(0, limits())
	for i := range uint64(10) { // as far as its budgets let it
		m.Step(begin, Heard{From: 3, Message: Message{Key: Key{(i + 1) << 60, 3, i}, State: ErrorDetectPropagate, Plan: plan()}})
	}
	if m.wave > aheadMost {
		t.Errorf("it counts on from %d", m.wave)
	}
}

func TestRefusals(t *testing.T) {
	m := New(0, limits())
	good := Message{Key: Key{1, 1, 1}, State: SystemDrain, Round: 1, Plan: plan()}
	for name, edit := range map[string]func(*Heard){
		"wave 0": func(h *Heard) { h.Wave = 0 }, "state": func(h *Heard) { h.State = 9 }, "own": func(h *Heard) { h.From = 0 },
		"over": func(h *Heard) { h.State = Normal }, "no plan": func(h *Heard) { h.Plan = Plan{} },
		"long delay":                  func(h *Heard) { h.Plan.Delay = 2 * time.Second },
		"long drain":                  func(h *Heard) { h.Plan.DrainTimeout = 6 * time.Second },
		"order that was not verified": func(h *Heard) { h.Plan.DrainTimeout, h.Order = 6*time.Second, Order{1, 1} },
	} {
		h := Heard{From: 1, Message: good}
		edit(&h)
		if out := m.Step(begin, h); m.State() != Normal || len(out.Broadcast)+len(out.Arrive) > 0 {
			t.Errorf("%s: it is heard", name)
		}
	}
	if why := m.Step(begin, Start{Plan: Plan{Delay: time.Second}}).Refused; !strings.HasPrefix(why, "hop: given 0s") {
		t.Errorf("refused for %q", why)
	}
	if why := m.Step(begin, Start{Plan: Plan{Delay: 2 * time.Second, Hop: time.Second, DrainTimeout: time.Second}}).Refused; why == "" {
		t.Error("a node may ask for more than it allows")
	}
}

func TestValidate(t *testing.T) {
	for want, edit := range map[string]func(*Limits){
		"drop": func(c *Limits) { c.Drop = 0 }, "diagnose": func(c *Limits) { c.Diagnose = 0 },
		"rest":   func(c *Limits) { c.Rest = 2 * time.Hour },
		"window": func(c *Limits) { c.Window = 0 }, "budget": func(c *Limits) { c.Budget = 0 }, "delay": func(c *Limits) { c.Delay = -1 },
		"drain": func(c *Limits) { c.Drain = 0 },
	} {
		c := limits()
		edit(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), want+": given") {
			t.Errorf("%v, want %s", err, want)
		}
	}
	for want, edit := range map[string]func(*Plan){
		"delay": func(p *Plan) { p.Delay = 11 * time.Second }, "hop": func(p *Plan) { p.Hop = p.Delay + 1 },
		"drain time-out": func(p *Plan) { p.DrainTimeout = 9 * ms },
		"absent":         func(p *Plan) { p.Absent = []int{3, 3} },
	} {
		p := plan()
		edit(&p)
		if err := p.Validate(); err == nil || !strings.HasPrefix(err.Error(), want+": ") {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
