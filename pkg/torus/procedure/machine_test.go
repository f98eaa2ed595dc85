package procedure

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

const ms = time.Millisecond

var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func timing() Timing {
	return Timing{
		Delay: 100 * ms, Hop: 10 * ms, DrainTimeout: 2 * time.Second, Drop: 100 * ms, Diagnose: 500 * ms, Rest: 10 * time.Second, Budget: 2, Window: time.Hour,
	}
}

// torusOf is a torus of nodes with messages that walk towards their destinations, one hop a step, and broadcasts that flood.
type torusOf struct {
	t     *testing.T
	rand  *rand.Rand
	dims  grid.Dims
	now   time.Time
	nodes map[grid.Coord]*node
	order []grid.Coord
	dead  map[[2]grid.Coord]bool // links, both ways
	air   []broadcast
	lose  float64 // share of the deliveries of broadcasts that never come
	slow  time.Duration
	log   []string

	hops  map[grid.Coord]map[grid.Coord]int // of reach, as long as nothing changes
	known int                               // links and nodes that were dead then
}

type node struct {
	m       *Machine
	wake    time.Time
	packets []grid.Coord // destinations
	keeps   bool         // what it holds stays: it never drains
	gone    bool
	results []*Result
	masked  []time.Time
	tests   int
	left    time.Time // when it left Normal
}

type broadcast struct {
	at   time.Time
	to   grid.Coord
	from grid.Coord
	msg  Message
}

func newTorus(t *testing.T, dims grid.Dims, seed uint64) *torusOf {
	w := &torusOf{t: t, rand: rand.New(rand.NewPCG(seed, 3)), dims: dims, now: begin, nodes: map[grid.Coord]*node{}, dead: map[[2]grid.Coord]bool{}}
	for i := range dims.Nodes() {
		w.order = append(w.order, dims.At(i))
	}
	for _, c := range w.order {
		w.boot(c)
	}
	return w
}

// boot starts a node that knows of no wave.
func (w *torusOf) boot(c grid.Coord) {
	n := &node{m: New(c, timing())}
	if old := w.nodes[c]; old != nil {
		n.packets, n.results = old.packets, old.results // hop slots and results survive
	}
	w.nodes[c] = n
	w.step(c, Members{w.order})
	w.step(c, Holds{len(n.packets)})
}

func (w *torusOf) link(a, b grid.Coord) [2]grid.Coord {
	if w.dims.Rank(a) > w.dims.Rank(b) {
		a, b = b, a
	}
	return [2]grid.Coord{a, b}
}

// reach are the hops to all nodes that can be reached.
func (w *torusOf) reach(from grid.Coord) map[grid.Coord]int {
	gone := len(w.dead)
	for _, n := range w.nodes {
		if n.gone {
			gone++
		}
	}
	if gone != w.known || w.hops == nil || len(w.nodes) < len(w.order) {
		w.hops, w.known = map[grid.Coord]map[grid.Coord]int{}, gone
	}
	if out := w.hops[from]; out != nil {
		return out
	}
	out := map[grid.Coord]int{from: 0}
	w.hops[from] = out
	for queue := []grid.Coord{from}; len(queue) > 0; queue = queue[1:] {
		for _, n := range w.dims.Neighbours(queue[0]) {
			if _, seen := out[n]; !seen && !w.dead[w.link(queue[0], n)] && (w.nodes[n] == nil || !w.nodes[n].gone) {
				out[n] = out[queue[0]] + 1
				queue = append(queue, n)
			}
		}
	}
	return out
}

func (w *torusOf) step(c grid.Coord, ev Event) {
	n := w.nodes[c]
	if n.gone {
		return
	}
	was := n.m.State()
	out := n.m.Step(w.now, ev)
	n.wake = out.Wake
	if out.Changed {
		w.log = append(w.log, fmt.Sprintf("%4d %s %s", w.now.Sub(begin)/ms, c, n.m.State()))
		if was == Normal && n.m.State() != Normal {
			n.left = w.now
		}
	}
	if out.Diagnose {
		n.tests++
	}
	if out.MayMask {
		n.masked = append(n.masked, w.now)
		w.checkMask(c)
	}
	if out.Ended != nil {
		n.results = append(n.results, out.Ended)
		if took := w.now.Sub(n.left); took > timing().Longest() {
			w.t.Errorf("%s was out of Normal for %s: want at most %s", c, took, timing().Longest())
		}
	}
	reach := w.reach(c)
	for _, msg := range out.Broadcast {
		for _, to := range w.order {
			if hops, ok := reach[to]; ok && to != c && w.rand.Float64() >= w.lose {
				at := w.now.Add(time.Duration(hops)*2*ms + time.Duration(w.rand.IntN(5))*ms)
				if w.slow > 0 {
					at = at.Add(time.Duration(w.rand.Int64N(int64(w.slow))))
				}
				w.air = append(w.air, broadcast{at, to, c, msg})
			}
		}
	}
}

// checkMask: where a mask changes nobody that can be reached holds a message, or takes a new one.
func (w *torusOf) checkMask(c grid.Coord) {
	if w.lose > 0 || w.slow > 0 {
		return // then broadcasts take longer than the Network Delay that the timing was told
	}
	for at := range w.reach(c) {
		n := w.nodes[at]
		if len(n.packets) > 0 || !n.m.Inhibited() {
			w.t.Errorf("%s changes its mask at %s, and %s holds %d messages, inhibited %t", c, w.now.Sub(begin), at, len(n.packets), n.m.Inhibited())
		}
	}
}

// run lets time pass, two milliseconds at a time. traffic is the share of nodes that send something new each step.
func (w *torusOf) run(d time.Duration, traffic float64) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(2 * ms)
		for i := 0; i < len(w.air); {
			b := w.air[i]
			if b.at.After(w.now) {
				i++
				continue
			}
			w.air = slices.Delete(w.air, i, i+1)
			w.step(b.to, Heard{b.from, b.msg})
		}
		for _, c := range w.order {
			if n := w.nodes[c]; !n.wake.IsZero() && !n.wake.After(w.now) {
				w.step(c, Tick{})
			}
		}
		w.move(traffic)
	}
}

// move moves messages a hop, by what links live, and takes new ones where that is not inhibited.
func (w *torusOf) move(traffic float64) {
	for _, c := range w.order {
		n := w.nodes[c]
		if n.gone || n.keeps {
			continue
		}
		before := len(n.packets)
		if before > 0 {
			to := n.packets[0]
			if next, ok := w.towards(c, to); ok {
				n.packets = n.packets[1:]
				if next != to {
					w.nodes[next].packets = append(w.nodes[next].packets, to)
					w.step(next, Holds{len(w.nodes[next].packets)})
				}
			}
		}
		if !n.m.Inhibited() && w.rand.Float64() < traffic {
			n.packets = append(n.packets, w.order[w.rand.IntN(len(w.order))])
		}
		if len(n.packets) != before {
			w.step(c, Holds{len(n.packets)})
		}
	}
}

// towards is the next node on a shortest way; false: there is none now.
func (w *torusOf) towards(from, to grid.Coord) (grid.Coord, bool) {
	if from == to {
		return to, true
	}
	hops := w.reach(to)
	for _, n := range w.dims.Neighbours(from) {
		if h, ok := hops[n]; ok && !w.dead[w.link(from, n)] && h < hops[from] {
			return n, true
		}
	}
	return from, false
}

func (w *torusOf) at(x, y, z int) *node { return w.nodes[grid.Coord{X: x, Y: y, Z: z}] }

// states are the states that a node was in, in order.
func (w *torusOf) states(c grid.Coord) string {
	var out []string
	for _, l := range w.log {
		if f := strings.Fields(l); f[1] == c.String() {
			out = append(out, f[2])
		}
	}
	return strings.Join(out, " ")
}

func (w *torusOf) allNormal() {
	w.t.Helper()
	for _, c := range w.order {
		if n := w.nodes[c]; !n.gone && n.m.State() != Normal {
			w.t.Errorf("%s is in %s", c, n.m.State())
		}
	}
}

// Figure 7, its straight way: with traffic, the torus drains, tests, may change its masks, and goes on.
func TestWholeProcedure(t *testing.T) {
	w := newTorus(t, grid.Dims{X: 3, Y: 3, Z: 2}, 1)
	w.run(100*ms, 0.2)
	w.step(grid.Coord{}, Start{Diagnose: true})
	w.run(timing().Longest(), 0.2)
	w.allNormal()
	for _, c := range w.order {
		n := w.nodes[c]
		if len(n.results) != 1 || !n.results[0].Clear || !n.results[0].Diagnose || n.tests != 1 || len(n.masked) != 1 || len(n.results[0].Silent) > 0 {
			t.Errorf("%s: %+v, %d tests, masks at %v", c, *n.results[0], n.tests, n.masked)
		}
		if s := w.states(c); !strings.HasPrefix(s, "ErrorDetectPropagate SystemDrain") || !strings.HasSuffix(s, "Decision Diagnostics Normal") || strings.Contains(s, "DropPackets") {
			t.Errorf("%s: %s", c, s)
		}
	}
	w.run(100*ms, 0.2)
	for _, c := range w.order {
		if len(w.nodes[c].packets) > 0 {
			return
		}
	}
	t.Error("nobody takes anything new")
}

// Without anybody who wants diagnostics the drain alone is made, and no mask changes.
func TestDrainAlone(t *testing.T) {
	w := newTorus(t, grid.Dims{X: 2, Y: 2, Z: 2}, 2)
	w.step(grid.Coord{X: 1}, Start{})
	w.run(timing().Longest(), 0.1)
	w.allNormal()
	for _, c := range w.order {
		if n := w.nodes[c]; n.tests+len(n.masked) > 0 || len(n.results) != 1 || !n.results[0].Clear || n.results[0].Diagnose {
			t.Errorf("%s: %+v", c, n.results)
		}
	}
}

// One that never drains, or never answers: the drain times out and names it, no mask changes, and everybody goes on.
func TestDrainTimesOut(t *testing.T) {
	for _, tc := range []struct {
		name            string
		plant           func(w *torusOf)
		silent, holding []grid.Coord
	}{
		{"never drains", func(w *torusOf) { n := w.at(1, 1, 0); n.keeps, n.packets = true, []grid.Coord{{}} }, nil, []grid.Coord{{X: 1, Y: 1}}},
		{"never answers", func(w *torusOf) { w.at(1, 1, 0).gone = true }, []grid.Coord{{X: 1, Y: 1}}, nil},
	} {
		w := newTorus(t, grid.Dims{X: 3, Y: 3, Z: 1}, 3)
		tc.plant(w)
		w.step(grid.Coord{X: 1, Y: 1}, Holds{len(w.at(1, 1, 0).packets)})
		w.step(grid.Coord{}, Start{Diagnose: true})
		w.run(timing().Longest(), 0)
		w.allNormal()
		for _, c := range w.order {
			n := w.nodes[c]
			if n.gone {
				continue
			}
			if r := n.results; len(r) != 1 || r[0].Clear || !slices.Equal(r[0].Silent, tc.silent) || !slices.Equal(r[0].Holding, tc.holding) || len(n.masked) > 0 || n.tests != 1 {
				t.Errorf("%s, %s: %+v", tc.name, c, r)
			}
		}
		if s := w.states(grid.Coord{}); !strings.Contains(s, "SystemDrain NetworkClear SystemDrain") || !strings.Contains(s, "NetworkClear DropPackets Decision") {
			t.Errorf("%s: %s", tc.name, s)
		}
	}
}

// Two who start at once start the same; who was restarted in the middle joins; who has forgotten all waves starts the next.
func TestStartersAndRestarts(t *testing.T) {
	w := newTorus(t, grid.Dims{X: 3, Y: 2, Z: 1}, 4)
	w.step(grid.Coord{}, Start{})
	w.step(grid.Coord{X: 2}, Start{Diagnose: true})
	w.run(150*ms, 0)
	w.boot(grid.Coord{X: 1})
	w.run(timing().Longest(), 0)
	w.allNormal()
	for _, c := range w.order {
		if n := w.nodes[c]; len(n.results) != 1 || n.m.Wave() != 1 || n.tests != 1 {
			t.Errorf("%s: %+v, wave %d", c, n.results, n.m.Wave())
		}
	}
	w.run(timing().Rest, 0)
	w.boot(grid.Coord{X: 1})
	w.step(grid.Coord{X: 1}, Start{})
	w.run(timing().Longest(), 0)
	for _, c := range w.order {
		if n := w.nodes[c]; len(n.results) != 2 || n.m.Wave() != 2 {
			t.Errorf("%s: %+v, wave %d", c, n.results, n.m.Wave())
		}
	}
}

// A node that always starts a procedure is listened to as often as its budget allows, with a rest after each.
func TestBadStarter(t *testing.T) {
	w := newTorus(t, grid.Dims{X: 2, Y: 2, Z: 1}, 5)
	bad, good := grid.Coord{X: 1}, grid.Coord{Y: 1}
	out := 0
	for i := range 600 { // a minute
		w.step(bad, Start{Diagnose: true})
		if i%50 == 0 { // and it lies about the wave
			for _, c := range w.order {
				w.step(c, Heard{bad, Message{Wave: uint64(1000 + i), State: ErrorDetectPropagate, Starter: bad}})
			}
		}
		w.run(100*ms, 0.01)
		if w.nodes[good].m.State() != Normal {
			out++
		}
	}
	if most := int(3 * timing().Longest() / (100 * ms)); out == 0 || out > most {
		t.Errorf("a good node was out of Normal for %d tenths of a second of 600: want some, and at most %d", out, most)
	}
	w.run(timing().Rest, 0)
	w.step(good, Start{})
	w.run(timing().Longest(), 0)
	if last := w.nodes[grid.Coord{}].results; len(last) == 0 || last[len(last)-1].Starter != good {
		t.Errorf("after that nobody else is listened to: %+v", last)
	}
	w.step(good, Start{})
	if got := w.nodes[good].m.Step(w.now, Start{}); got.Refused == "" {
		t.Error("one procedure after the other is started")
	}
}

// Random tori with traffic, links that die in every state, nodes that go and come back, broadcasts that are lost or late: all come back
// to Normal in bounded time (step checks), and no mask changes but in an empty network (checkMask).
func TestWhateverHappens(t *testing.T) {
	masks, ended, timedOut := 0, 0, 0
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 9))
		w := newTorus(t, grid.Dims{X: 2 + r.IntN(3), Y: 1 + r.IntN(3), Z: 1 + r.IntN(2)}, seed)
		if seed%3 == 1 {
			w.lose = 0.1
		}
		if seed%3 == 2 {
			w.slow = 300 * ms
		}
		w.run(50*ms, 0.1)
		w.step(w.order[r.IntN(len(w.order))], Start{Diagnose: seed%4 > 0})
		for range 8 {
			w.run(time.Duration(r.IntN(400))*ms, 0.1)
			switch a := w.order[r.IntN(len(w.order))]; r.IntN(4) {
			case 0:
				near := w.dims.Neighbours(a)
				w.dead[w.link(a, near[r.IntN(len(near))])] = true
			case 1:
				if seed%3 != 0 {
					w.boot(a)
				}
			case 2:
				w.step(a, Start{Diagnose: true})
			default:
			}
		}
		w.run(2*timing().Longest(), 0.1)
		w.allNormal()
		for _, c := range w.order {
			n := w.nodes[c]
			masks += len(n.masked)
			for _, res := range n.results {
				ended++
				if !res.Clear {
					timedOut++
				}
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d: %s\n%s", seed, w.dims, strings.Join(w.log, "\n"))
		}
	}
	if masks == 0 || timedOut == 0 || timedOut == ended {
		t.Errorf("%d masks changed, %d of %d procedures timed out: the test shows nothing", masks, timedOut, ended)
	}
}

func TestRefusals(t *testing.T) {
	m := New(grid.Coord{}, timing())
	for _, bad := range []Heard{
		{grid.Coord{X: 1}, Message{Wave: 0, State: SystemDrain}}, {grid.Coord{X: 1}, Message{Wave: 1, State: 9}},
		{grid.Coord{}, Message{Wave: 1, State: SystemDrain}}, {grid.Coord{X: 1}, Message{Wave: aheadMost + 1, State: SystemDrain}},
	} {
		if out := m.Step(begin, bad); m.State() != Normal || len(out.Broadcast) > 0 {
			t.Errorf("%+v is heard", bad)
		}
	}
	for want, change := range map[string]func(*Timing){
		"delay": func(c *Timing) { c.Delay = 0 }, "hop": func(c *Timing) { c.Hop = -1 }, "drainTimeout": func(c *Timing) { c.DrainTimeout = 2 * time.Hour },
		"drop": func(c *Timing) { c.Drop = 0 }, "diagnose": func(c *Timing) { c.Diagnose = 0 }, "rest": func(c *Timing) { c.Rest = 0 },
		"window": func(c *Timing) { c.Window = 0 }, "budget": func(c *Timing) { c.Budget = 0 },
	} {
		c := timing()
		change(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), want+": given") {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A node that has not been told who the others are never calls the network clear, nor has others do it.
func TestNobodyKnownIsNotClear(t *testing.T) {
	m := New(grid.Coord{}, timing())
	now := begin
	var ended *Result
	m.Step(now, Start{})
	for range 10000 {
		out := m.Step(now, Tick{})
		for _, msg := range out.Broadcast {
			if msg.Clear {
				t.Fatalf("%+v", msg)
			}
		}
		if ended = out.Ended; ended != nil {
			break
		}
		now = out.Wake
	}
	if ended == nil || ended.Clear {
		t.Errorf("%+v", ended)
	}
}
