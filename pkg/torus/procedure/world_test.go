package procedure

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

const ms = time.Millisecond

var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func limits() Limits {
	return Limits{Drop: 100 * ms, Diagnose: 500 * ms, Rest: 10 * time.Second, Budget: 2, Window: time.Hour, Delay: time.Second,
		Drain: 5 * time.Second}
}

func plan() Plan { return Plan{Delay: 100 * ms, Hop: 10 * ms, DrainTimeout: 2 * time.Second} }

func longest() time.Duration { p, l := plan(), limits(); return p.Longest(&l) }

// torusOf is a torus of at most 64 nodes with messages that walk towards their destinations, one hop a step,
// broadcasts that flood, and sets that neighbours merge.
type torusOf struct {
	t     *testing.T
	rand  *rand.Rand
	dims  grid.Dims
	now   time.Time
	nodes []*node
	dead  map[[2]int]bool // links, one way
	air   []broadcast
	sets  []*set
	lose  float64 // share of the deliveries of broadcasts, and of merges, that never come
	slow  time.Duration
	log   []string
	run   uint64 // last one used
	plan  Plan

	held     int       // messages in all
	empty    time.Time // the last moment at which there was none
	sent     int
	arrived  int
	said     int // broadcasts
	arrivals int // of nodes at sets
	hops     map[int]map[int]int
}

type node struct {
	m       *Machine
	rank    int
	wake    time.Time
	packets []int // destinations
	keeps   bool  // it keeps its messages: it never drains
	gone    bool
	ended   []ended
	masked  []time.Time
	tests   int
	left    time.Time // when it left Normal
	may     time.Duration
	waits   map[setName]bool // it is in the set, and does not know that it is complete
}

type ended struct {
	*Result
	silent, stuck []int // as this node knows
}

type setName struct {
	Key
	set   Set
	round uint32
}

type set struct {
	of      setName
	has     []uint64 // each node's known set
	truth   uint64   // the members that arrived
	absent  uint64
	began   time.Time
	settled bool // all sets are merged everywhere
}

type broadcast struct {
	at       time.Time
	to, from int
	msg      Message
}

func newTorus(t *testing.T, dims string, seed uint64) *torusOf {
	d, err := grid.ParseDims(dims)
	if err != nil {
		t.Fatal(err)
	}
	w := &torusOf{t: t, rand: rand.New(rand.NewPCG(seed, 3)), dims: d, now: begin, dead: map[[2]int]bool{}, plan: plan()}
	w.nodes = make([]*node, d.Nodes())
	for rank := range w.nodes {
		w.boot(rank)
	}
	return w
}

// boot starts a node that knows of no procedure. Its messages are in the copy.
func (w *torusOf) boot(rank int) {
	n := &node{m: New(rank, limits()), rank: rank, waits: map[setName]bool{}}
	if old := w.nodes[rank]; old != nil {
		n.packets, n.ended, n.keeps = old.packets, old.ended, old.keeps
	}
	w.nodes[rank], w.hops = n, nil
	for _, s := range w.sets {
		s.has[rank], s.settled = 0, false
	}
	w.step(rank, Holds{len(n.packets)})
}

// kill removes a node, or a link, in one direction.
func (w *torusOf) kill(rank int) {
	w.nodes[rank].gone, w.hops = true, nil
	w.unsettle()
}

func (w *torusOf) cut(from, to int) {
	w.dead[[2]int{from, to}], w.hops = true, nil
	w.unsettle()
}

func (w *torusOf) unsettle() {
	for _, s := range w.sets {
		s.settled = false
	}
}

func (w *torusOf) neighbours(rank int) (out []int) {
	for _, c := range w.dims.Neighbours(w.dims.At(rank)) {
		out = append(out, w.dims.Rank(c))
	}
	return out
}

// passes reports whether frames pass from one node to its neighbour.
func (w *torusOf) passes(from, to int) bool {
	return !w.dead[[2]int{from, to}] && (w.nodes[from] == nil || !w.nodes[from].gone) && (w.nodes[to] == nil || !w.nodes[to].gone)
}

// reach are the hops of a broadcast to all nodes that it comes to.
func (w *torusOf) reach(from int) map[int]int {
	if w.hops == nil {
		w.hops = map[int]map[int]int{}
	}
	if out := w.hops[from]; out != nil {
		return out
	}
	out := map[int]int{from: 0}
	w.hops[from] = out
	for queue := []int{from}; len(queue) > 0; queue = queue[1:] {
		for _, to := range w.neighbours(queue[0]) {
			if _, seen := out[to]; !seen && w.passes(queue[0], to) {
				out[to] = out[queue[0]] + 1
				queue = append(queue, to)
			}
		}
	}
	return out
}

func (w *torusOf) start(rank int, diagnose bool) string {
	w.run++
	return w.step(rank, Start{Run: w.run, Plan: w.plan, Diagnose: diagnose})
}

// step steps a node, and returns the refused event.
func (w *torusOf) step(rank int, ev Event) string {
	n := w.nodes[rank]
	if n.gone {
		return ""
	}
	was, wasClear := n.m.State(), n.m.Clear()
	out := n.m.Step(w.now, ev)
	n.wake = out.Wake
	if out.Changed {
		w.log = append(w.log, fmt.Sprintf("%5d %s %s", w.now.Sub(begin)/ms, w.dims.At(rank), n.m.State()))
		if was == Normal && n.m.State() != Normal {
			p, l := n.m.Plan(), limits()
			n.left, n.may = w.now, p.Longest(&l)
		}
	}
	if _, counted := ev.(Complete); counted && n.m.Clear() && !wasClear {
		w.checkClear(n)
	}
	if out.Diagnose {
		n.tests++
	}
	if out.MayMask {
		n.masked = append(n.masked, w.now)
		w.checkMask(rank)
	}
	if out.Ended != nil {
		e := ended{Result: out.Ended}
		if e.Dropped() {
			e.silent, e.stuck = w.missing(rank, e.Key, Present), w.in(rank, e.Key, Stuck)
		}
		n.ended = append(n.ended, e)
		if took := w.now.Sub(n.left); took > n.may {
			w.t.Errorf("%s was out of Normal for %s: want at most %s", w.dims.At(rank), took, n.may)
		}
	}
	w.broadcast(rank, out.Broadcast)
	for _, a := range out.Arrive {
		w.arrive(n, a)
	}
	return out.Refused
}

func (w *torusOf) broadcast(rank int, all []Message) {
	for _, msg := range all {
		w.said++
		for to, hops := range w.ordered(rank) {
			if hops <= 0 || w.rand.Float64() < w.lose {
				continue
			}
			at := w.now.Add(time.Duration(hops)*2*ms + time.Duration(w.rand.IntN(5))*ms)
			if w.slow > 0 {
				at = at.Add(time.Duration(w.rand.Int64N(int64(w.slow))))
			}
			w.air = append(w.air, broadcast{at, to, rank, msg})
		}
	}
}

// ordered are the hops by rank; -1: it is not reached.
func (w *torusOf) ordered(from int) []int {
	out := make([]int, len(w.nodes))
	reach := w.reach(from)
	for to := range out {
		if hops, ok := reach[to]; ok {
			out[to] = hops
		} else {
			out[to] = -1
		}
	}
	return out
}

func (w *torusOf) arrive(n *node, a Arrival) {
	w.arrivals++
	name := setName{a.Key, a.Set, a.Round}
	i := slices.IndexFunc(w.sets, func(s *set) bool { return s.of == name })
	if i < 0 {
		i = len(w.sets)
		w.sets = append(w.sets, &set{of: name, has: make([]uint64, len(w.nodes)), began: w.now})
	}
	s := w.sets[i]
	for _, r := range a.Absent {
		s.absent |= 1 << r
	}
	s.has[n.rank] |= 1<<n.rank | s.absent
	s.truth |= 1 << n.rank
	s.settled = false
	n.waits[name] = true
}

// merge makes all neighbours merge their sets, and informs waiters that one is complete.
func (w *torusOf) merge() {
	all := uint64(1)<<len(w.nodes) - 1
	for i := 0; i < len(w.sets); i++ { // there may come to be more
		s := w.sets[i]
		if s.settled {
			continue
		}
		s.settled = true
		next := slices.Clone(s.has)
		for from := range w.nodes {
			for _, to := range w.neighbours(from) {
				if s.has[from]&^s.has[to] == 0 || !w.passes(from, to) {
					continue
				}
				s.settled = false
				if w.rand.Float64() >= w.lose && (w.slow == 0 || w.rand.Int64N(int64(w.slow)) < int64(4*ms)) {
					next[to] |= s.has[from]
				}
			}
		}
		s.has = next
		for _, n := range w.nodes {
			if s.has[n.rank] == all && n.waits[s.of] && !n.gone {
				delete(n.waits, s.of)
				w.step(n.rank, Complete{s.of.Key, s.of.set, s.of.round})
			}
		}
	}
}

func (w *torusOf) in(rank int, k Key, of Set) (out []int) {
	for _, s := range w.sets {
		if s.of.Key == k && s.of.set == of {
			for m := s.has[rank]; m != 0; m &= m - 1 {
				out = append(out, bits.TrailingZeros64(m))
			}
		}
	}
	return out
}

func (w *torusOf) missing(rank int, k Key, of Set) (out []int) {
	in := w.in(rank, k, of)
	for r := range w.nodes {
		if !slices.Contains(in, r) {
			out = append(out, r)
		}
	}
	return out
}

// checkClear: if a node counts the network as clear, there was a moment at which no node held a message, and every
// node had answered. That holds for any loss and any delay.
func (w *torusOf) checkClear(n *node) {
	key, all := n.m.Key(), uint64(1)<<len(w.nodes)-1
	for _, s := range w.sets {
		if s.of == (setName{key, Confirm, n.m.Round()}) && s.truth|s.absent != all {
			w.t.Errorf("%s: %s calls the network clear, and only %b have confirmed", w.now.Sub(begin), w.dims.At(n.rank), s.truth)
		}
		if s.of == (setName{key, Empty, n.m.Round()}) && w.empty.Before(s.began) {
			w.t.Errorf("%s: %s calls the network clear, and there was something in it since round %d began", w.now.Sub(begin),
				w.dims.At(n.rank), n.m.Round())
		}
	}
}

// checkMask: where a mask changes, no reachable node holds a message or accepts a new one.
func (w *torusOf) checkMask(rank int) {
	if w.lose > 0 || w.slow > 0 {
		return // then broadcasts take longer than the plan's Network Delay
	}
	for at := range w.reach(rank) {
		n := w.nodes[at]
		if len(n.packets) > 0 || !n.m.Inhibited() {
			w.t.Errorf("%s changes its mask at %s, and %s holds %d messages, inhibited %t", w.dims.At(rank), w.now.Sub(begin), w.dims.At(at),
				len(n.packets), n.m.Inhibited())
		}
	}
}

// pass lets time pass, two milliseconds at a time. traffic is the share of nodes that send something new each step.
func (w *torusOf) pass(d time.Duration, traffic float64) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(2 * ms)
		for i := 0; i < len(w.air); {
			b := w.air[i]
			if b.at.After(w.now) {
				i++
				continue
			}
			w.air = slices.Delete(w.air, i, i+1)
			w.step(b.to, Heard{From: b.from, Message: b.msg, Ordered: b.msg.Order != Order{}})
		}
		w.merge()
		for _, n := range w.nodes {
			if !n.wake.IsZero() && !n.wake.After(w.now) {
				w.step(n.rank, Tick{})
			}
		}
		w.move(traffic)
	}
}

// move moves messages a hop, by links that carry both ways, and accepts new ones where they are not inhibited. A
// moving message is always held at one end.
func (w *torusOf) move(traffic float64) {
	for _, n := range w.nodes {
		if n.gone || n.keeps {
			continue
		}
		if len(n.packets) > 0 {
			w.forward(n)
		}
		if !n.m.Inhibited() && w.rand.Float64() < traffic {
			n.packets = append(n.packets, w.rand.IntN(len(w.nodes)))
			w.held++
			w.sent++
			w.step(n.rank, Holds{len(n.packets)})
		}
		if w.held == 0 {
			w.empty = w.now
		}
	}
}

func (w *torusOf) forward(n *node) {
	to := n.packets[0]
	next, ok := w.towards(n.rank, to)
	if !ok {
		n.packets = append(n.packets[1:], to) // the others first
		return
	}
	if next == to {
		w.held--
		w.arrived++
	} else {
		w.nodes[next].packets = append(w.nodes[next].packets, to)
		w.step(next, Holds{len(w.nodes[next].packets)})
	}
	n.packets = n.packets[1:]
	if w.held == 0 {
		w.empty = w.now
	}
	w.step(n.rank, Holds{len(n.packets)})
}

// towards returns the next node on a shortest way; false: there is none now.
func (w *torusOf) towards(from, to int) (int, bool) {
	if from == to {
		return to, true
	}
	hops := w.reach(to)
	for _, n := range w.neighbours(from) {
		if h, ok := hops[n]; ok && w.passes(from, n) && w.passes(n, from) && h < hops[from] && !w.nodes[n].keeps {
			return n, true
		}
	}
	return from, false
}

// states returns the states that a node was in, in order.
func (w *torusOf) states(rank int) string {
	var out []string
	for _, l := range w.log {
		if f := strings.Fields(l); f[1] == w.dims.At(rank).String() {
			out = append(out, f[2])
		}
	}
	return strings.Join(out, " ")
}

func (w *torusOf) allNormal() {
	w.t.Helper()
	for _, n := range w.nodes {
		if !n.gone && n.m.State() != Normal {
			w.t.Errorf("%s is in %s", w.dims.At(n.rank), n.m.State())
		}
	}
	held := 0
	for _, n := range w.nodes {
		held += len(n.packets)
	}
	if held != w.held || w.sent != w.arrived+held {
		w.t.Errorf("%d messages were sent, %d arrived, %d are held", w.sent, w.arrived, held)
	}
}
