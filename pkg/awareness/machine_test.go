package awareness

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"pgregory.net/rapid"
)

// summary is the map without the parts that depend on the order of arrival.
func summary(m *Machine) string {
	return summaryWithout(m, func(*Machine, *node, fault.Component) bool { return false })
}

// summaryWithout is summary without the states of hidden components, and of their nodes.
func summaryWithout(m *Machine, hidden func(*Machine, *node, fault.Component) bool) string {
	var b strings.Builder
	for _, n := range m.Nodes() {
		node, parts := fmt.Sprintf("%s %s %t", n.State, n.Cause, n.SingleWitness), ""
		for _, c := range n.Components {
			if hidden(m, m.nodes[m.ranks[n.ID]], c.Component) {
				node, parts = "hidden", parts+fmt.Sprintf(" %s=hidden", c.Component)
				continue
			}
			parts += fmt.Sprintf(" %s=%s/%s", c.Component, c.State, c.Cause)
		}
		fmt.Fprintf(&b, "%s %s%s %t %t\n", n.ID, node, parts, n.Inferred, n.Unreachable)
	}
	for _, g := range m.Groups() {
		fmt.Fprintf(&b, "%s %s %s %d %s\n", g.ID, g.State, g.Cause, g.Of, join(g.Members))
	}
	return b.String()
}

// contested reports whether one end of a link reports it FAILED while the other end reports that it works. The other end's report
// contradicts the first only if it has stood for LinkSettle (see oneSided). If a half withdraws a statement and makes it again, and the
// withdrawal arrives last, the machine never sees the interruption. The link's state then depends on the order until the next report.
func contested(m *Machine, n *node, c fault.Component) bool {
	d, ok := c.LinkDirection()
	if !ok || n.peers[d.Index()] == nil {
		return false
	}
	near, _ := m.ownWord(n, c, m.now)
	far, _ := m.ownWord(n.peers[d.Index()], fault.Link(d.Opposite()), m.now)
	return near.works() && far != nil && far.state == fault.Failed || far.works() && near != nil && near.state == fault.Failed
}

// drawDelivery draws a report that a half could send.
func drawDelivery(t *rapid.T, m *Machine, seqs map[fault.Origin]*fault.ReportID, name string) fault.Delivery {
	n := m.nodes[rapid.IntRange(0, len(m.nodes)-1).Draw(t, name+"node")]
	o := n.origin(rapid.SampledFrom(halves[:]).Draw(t, name+"half"))
	id := seqs[o]
	if id == nil {
		id = &fault.ReportID{Origin: o, Epoch: 1}
		seqs[o] = id
	}
	id.Seq++
	if rapid.IntRange(0, 15).Draw(t, name+"boot") == 0 {
		id.Epoch, id.Seq = id.Epoch+1, 1
	}
	d := fault.Delivery{Path: fault.PathDirect, Report: fault.Report{ID: *id, Digest: rapid.Bool().Draw(t, name+"digest")}}
	for i := range rapid.IntRange(0, 5).Draw(t, name+"observations") {
		d.Report.Observations = append(d.Report.Observations, drawObservation(t, n, fmt.Sprint(name, i)))
	}
	return d
}

func drawObservation(t *rapid.T, n *node, name string) fault.Observation {
	state := rapid.SampledFrom([]fault.State{fault.Unknown, fault.Normal, fault.Normal, fault.Sick, fault.Failed, fault.Failed})
	o := fault.Observation{Node: n.id, State: state.Draw(t, name+"state"),
		Age: time.Duration(rapid.IntRange(0, 100).Draw(t, name+"age")) * time.Millisecond}
	switch rapid.IntRange(0, 3).Draw(t, name+"what") {
	case 0:
		o.Component = rapid.SampledFrom(described[:]).Draw(t, name+"described")
		o.Node, o.Kind = n.neighbours[rapid.IntRange(0, len(n.neighbours)-1).Draw(t, name+"about")].node.id, fault.KindDescriptor
	case 1:
		o.Component = rapid.SampledFrom([]fault.Component{fault.ComponentHost, fault.ComponentDNP}).Draw(t, name+"half")
		o.Kind = rapid.SampledFrom([]fault.Kind{fault.KindSelf, fault.KindWatchdog, fault.KindWatchdog}).Draw(t, name+"kind")
	case 2:
		o.Component = fault.Link(rapid.SampledFrom(n.cfgLinks()).Draw(t, name+"link"))
		o.Kind = rapid.SampledFrom([]fault.Kind{fault.KindSilence, fault.KindSilence, fault.KindHandshake, fault.KindErrorRatio}).Draw(t,
			name+"kind")
	default:
		o.Component = rapid.SampledFrom(fault.Components()).Draw(t, name+"component")
		o.Kind = rapid.SampledFrom([]fault.Kind{fault.KindSelf, fault.KindVotes, fault.KindGossip}).Draw(t, name+"kind")
	}
	return o
}

// TestOrderAndDuplicatesDoNotMatter checks that the map does not depend on the order of the reports of one moment, nor
// on duplicates, even late ones. Contested links may depend on it.
func TestOrderAndDuplicatesDoNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := racks(rapid.SampledFrom([]grid.Dims{{X: 2, Y: 1, Z: 1}, {X: 2, Y: 2, Z: 1}, {X: 2, Y: 2, Z: 2},
			{X: 4, Y: 2, Z: 1}}).Draw(t, "dims"))
		m, _ := New(cfg, epoch0, nil)
		seqs := map[fault.Origin]*fault.ReportID{}
		moments := make([][]fault.Delivery, rapid.IntRange(1, 4).Draw(t, "moments"))
		for i := range moments {
			for j := range rapid.IntRange(1, 12).Draw(t, fmt.Sprint("reports", i)) {
				moments[i] = append(moments[i], drawDelivery(t, m, seqs, fmt.Sprint(i, "-", j)))
			}
		}
		seed := rapid.Uint64().Draw(t, "seed")
		want := playMoments(t, cfg, moments, nil)
		if got := playMoments(t, cfg, moments, rand.New(rand.NewPCG(seed, 1))); got != want {
			t.Fatalf("in order:\n%s\nshuffled and doubled:\n%s", want, got)
		}
	})
}

// racks is a configuration in which statements remain valid until everything has settled.
func racks(dims grid.Dims) Config {
	cfg := testConfig(dims)
	label(&cfg, "rack", func(c grid.Coord) int { return c.Y })
	cfg.DigestMisses = 20
	return cfg
}

// playMoments feeds the moments, which are further apart than any wait, shuffled and duplicated if there is a source of
// randomness. It returns the map some time after each moment.
func playMoments(t rapid.TB, cfg Config, moments [][]fault.Delivery, r *rand.Rand) string {
	w, err := newWorld(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	var old []fault.Delivery
	for _, ds := range moments {
		ds = slices.Clone(ds)
		if r != nil {
			ds = append(ds, ds[:r.IntN(len(ds)+1)]...)
			if len(old) > 0 {
				ds = append(ds, old[r.IntN(len(old))])
			}
			r.Shuffle(len(ds), func(i, j int) { ds[i], ds[j] = ds[j], ds[i] })
		}
		old = append(old, ds...)
		for _, d := range ds {
			w.step(Evidence{d})
		}
		w.run(4 * time.Second)
		out.WriteString(summaryWithout(w.m, contested))
	}
	w.run(15 * time.Second)
	w.log = func(at time.Time, o Output) {
		if len(o.Challenges) > 0 {
			t.Fatalf("%s: nothing has come for 15s, and it still asks %+v", at.Sub(epoch0), o.Challenges)
		}
	}
	w.run(5 * time.Second)
	return out.String() + summaryWithout(w.m, contested)
}

// TestChangesAccountForEveryDifference drives the machine with arbitrary events. After every step it checks that no due
// look was missed, and that the changes account for every difference in the map.
func TestChangesAccountForEveryDifference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := testConfig(rapid.SampledFrom([]grid.Dims{{X: 2, Y: 1, Z: 1}, {X: 3, Y: 2, Z: 1}, {X: 2, Y: 2, Z: 2},
			{X: 3, Y: 3, Z: 3}}).Draw(t, "dims"))
		cfg.HoldOff = time.Duration(rapid.SampledFrom([]int{0, 0, 2}).Draw(t, "holdoff")) * time.Second
		m, _ := New(cfg, epoch0, nil)
		now, wake := epoch0, time.Time{}
		states := make([][fault.NumComponents]fault.State, len(m.nodes))
		seqs := map[fault.Origin]*fault.ReportID{}
		var open []Challenge
		for i := range 60 {
			name := fmt.Sprint(i)
			ev, at := drawEvent(t, m, seqs, open, name), now.Add(time.Duration(rapid.IntRange(0, 300).Draw(t, name+"wait"))*time.Millisecond)
			if !wake.IsZero() && at.After(wake) && rapid.IntRange(0, 9).Draw(t, name+"late") > 0 {
				ev, at = Tick{}, wake
			}
			now = at
			out := m.Step(now, ev)
			open, wake = append(open, out.Challenges...), out.Wake
			checkOutput(t, m, states, out, now)
			checkExplained(t, m, rapid.IntRange(0, len(m.nodes)-1).Draw(t, name+"explain"))
			for _, n := range m.nodes {
				m.touch(n)
			}
			m.out = Output{}
			m.run(now)
			if len(m.out.Changes)+len(m.out.Challenges) > 0 {
				t.Fatalf("step %d, %T: looking at every node again gives %+v", i, ev, m.out)
			}
		}
	})
}

// checkExplained checks that every component of the node has an explanation, and that explaining changes nothing.
func checkExplained(t *rapid.T, m *Machine, rank int) {
	n := m.nodes[rank]
	for c := fault.ComponentNode; c.Valid(); c++ {
		e, ok := m.Explain(n.id, c)
		if ok != n.has(c) {
			t.Fatalf("%s of %s: explained %t", c, n.id, ok)
		}
		if ok && (e.State != n.components[c].state || e.Rule == "" || !strings.Contains(e.Summary, ": ") || len(e.Because) == 0 ||
			len(e.Until) == 0) {
			t.Fatalf("%s of %s: %+v", c, n.id, e)
		}
	}
}

func drawEvent(t *rapid.T, m *Machine, seqs map[fault.Origin]*fault.ReportID, open []Challenge, name string) Event {
	switch k := rapid.IntRange(0, 9).Draw(t, name+"event"); {
	case k == 0:
		return Tick{}
	case k == 1:
		return GossipOpinion{Node: m.nodes[rapid.IntRange(0, len(m.nodes)-1).Draw(t, name+"node")].id, Alive: rapid.Bool().Draw(t, name+"alive")}
	case k <= 3 && len(open) > 0:
		c := open[rapid.IntRange(0, len(open)-1).Draw(t, name+"challenge")]
		return Answered{Nonce: c.Nonce, Origin: fault.Origin{Node: c.Node, Half: rapid.SampledFrom(halves[:]).Draw(t, name+"half")},
			Epoch: 1, Path: fault.PathDirect}
	}
	return Evidence{drawDelivery(t, m, seqs, name)}
}

// checkOutput checks that the output is sorted, names no component twice, that every From is the last To, and that the
// node's state follows from its components'.
func checkOutput(t *rapid.T, m *Machine, states [][fault.NumComponents]fault.State, out Output, now time.Time) {
	last := -1
	for _, c := range out.Changes {
		rank := m.ranks[c.Node]
		at := rank*fault.NumComponents + int(c.Component)
		if at <= last {
			t.Fatalf("change of %s %s is out of order", c.Node, c.Component)
		}
		last = at
		s := &states[rank][c.Component]
		if *s == 0 {
			*s = fault.Unknown
		}
		if c.From != *s || !c.To.Valid() || c.Cause == 0 || c.Reason == "" || c.Kind == 0 || c.Latency < -1 {
			t.Fatalf("bad change %+v: was %s", c, *s)
		}
		if c.To == fault.Failed && now.Before(m.graceEnds()) {
			t.Fatalf("FAILED within grace: %+v", c)
		}
		*s = c.To
	}
	if !reflect.DeepEqual(m.calm, suspicion{}) {
		t.Fatalf("something is held against all nodes: %+v", m.calm)
	}
	for _, n := range m.nodes {
		node, host, dnp := n.components[fault.ComponentNode].state, n.components[fault.ComponentHost].state,
			n.components[fault.ComponentDNP].state
		if node == fault.Normal && (host != fault.Normal || dnp != fault.Normal) || node == fault.Failed &&
			(host != fault.Failed || dnp != fault.Failed) {
			t.Fatalf("%s is %s with host %s and dnp %s", n.id, node, host, dnp)
		}
	}
	if !out.Wake.IsZero() && !out.Wake.After(now) {
		t.Fatalf("wake %s at %s", out.Wake, now)
	}
}

// TestWakeIsExact checks that the verdict falls at Output.Wake and not before.
func TestWakeIsExact(t *testing.T) {
	w := startedWorld(t, grid.Dims{X: 2, Y: 2, Z: 2})
	for _, h := range halves {
		w.actor("n0-0-0", h).alive = false
	}
	w.now = w.now.Add(80 * time.Millisecond)
	w.silence("n0-0-0", false, 80*time.Millisecond)
	for len(w.queue) > 0 {
		ev := w.queue[0].ev
		w.queue = w.queue[1:]
		w.step(ev)
	}
	first := w.now
	for w.wake.Before(first.Add(w.cfg.ChallengeNode)) {
		w.now = w.wake
		w.step(Tick{})
	}
	if !w.wake.Equal(first.Add(w.cfg.ChallengeNode)) {
		t.Fatalf("wake %s after the first challenge, want %s", w.wake.Sub(first), w.cfg.ChallengeNode)
	}
	w.now = w.wake.Add(-1)
	w.step(Tick{})
	if got := w.state("n0-0-0", fault.ComponentNode); got != fault.Normal {
		t.Fatalf("%s before the wait is over", got)
	}
	w.now = w.now.Add(1)
	w.step(Tick{})
	if got := w.state("n0-0-0", fault.ComponentNode); got != fault.Failed {
		t.Fatalf("%s when the wait is over", got)
	}
}

func startedWorld(t *testing.T, dims grid.Dims) *world {
	t.Helper()
	w, err := newWorld(testConfig(dims))
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	return w
}

// TestStalledHalfWithoutLinksMayAnswer: the links of a node have been silent for long. Then its DNP half stalls for a moment. The half has
// time to answer for that stall: the time since the links fell silent does not count.
func TestStalledHalfWithoutLinksMayAnswer(t *testing.T) {
	for _, links := range []time.Duration{10 * time.Second, 90 * time.Millisecond} { // how long they have been silent
		w := startedWorld(t, grid.Dims{X: 3, Y: 3, Z: 3})
		const id = "n1-1-1"
		host, dnp := w.actor(id, fault.HalfHost), w.actor(id, fault.HalfDNP)
		dnp.mute = true // only the torus carries challenges to the whole node to the DNP half
		w.silence(id, false, 80*time.Millisecond)
		w.run(links)
		if s := w.state(id, fault.ComponentDNP); s != fault.Normal {
			t.Fatalf("links silent for %s: the half is %s", links, s)
		}
		dnp.mute = false
		w.say(host, subject{id, fault.ComponentDNP}, fault.Failed, fault.KindWatchdog, 150*time.Millisecond)
		for range 1000 {
			w.run(time.Millisecond)
			if s := w.state(id, fault.ComponentDNP); s == fault.Failed {
				t.Fatalf("links silent for %s: the half is FAILED although it answers", links)
			}
		}
	}
}

// TestLateMachineDoubtsItself: a supervisor that slept through the answers blames no node at once. It waits again, and
// the answers in its queue count.
func TestLateMachineDoubtsItself(t *testing.T) {
	w := startedWorld(t, grid.Dims{X: 2, Y: 2, Z: 2})
	host := w.actor("n0-0-0", fault.HalfHost)
	var asked []Challenge
	w.log = func(_ time.Time, out Output) { asked = append(asked, out.Challenges...) }
	host.mute, w.actor("n0-0-0", fault.HalfDNP).mute = true, true
	w.silence("n0-0-0", false, 80*time.Millisecond)
	w.run(10 * time.Millisecond)
	w.now = w.now.Add(10 * time.Second) // stopped
	w.step(Tick{})
	for r := range w.dims.Nodes() {
		if got := w.state(w.id(r), fault.ComponentNode); got != fault.Normal {
			t.Errorf("on waking %s is %s", w.id(r), got)
		}
	}
	for _, a := range w.order {
		if a.origin.Half == fault.HalfHost {
			w.digest(a)
		}
	}
	w.step(Answered{Nonce: asked[0].Nonce, Origin: host.origin, Epoch: 1, Path: fault.PathDirect})
	w.run(100 * time.Millisecond)
	if got := w.state("n0-0-0", fault.ComponentNode); got == fault.Failed {
		t.Error("its answer lay in the queue, and it is FAILED")
	}
	if got := w.state("n1-1-1", fault.ComponentNode); got != fault.Normal {
		t.Errorf("bystander is %s", got)
	}
}

// TestAnswerBehindALateTick: a supervisor that was starved for a moment processes its Tick before an answer that
// arrived in time.
func TestAnswerBehindALateTick(t *testing.T) {
	for _, late := range []time.Duration{11 * time.Millisecond, 50 * time.Millisecond, 120 * time.Millisecond, time.Second} {
		w := startedWorld(t, grid.Dims{X: 2, Y: 2, Z: 2})
		host := w.actor("n0-0-0", fault.HalfHost)
		var asked []Challenge
		w.log = func(_ time.Time, out Output) { asked = append(asked, out.Challenges...) }
		host.mute = true
		w.say(w.actor("n0-0-0", fault.HalfDNP), subject{"n0-0-0", fault.ComponentHost}, fault.Failed, fault.KindWatchdog, 0)
		for len(asked) == 0 {
			w.run(time.Millisecond)
		}
		w.now = w.now.Add(w.cfg.ChallengeHalf + late)
		w.step(Tick{})
		w.now = w.now.Add(time.Millisecond)
		w.step(Answered{Nonce: asked[0].Nonce, Origin: host.origin, Epoch: 1, Path: fault.PathDirect})
		if got := w.state("n0-0-0", fault.ComponentHost); got == fault.Failed {
			t.Errorf("%v late: FAILED, and its answer lay in the queue", late)
		}
	}
}

// TestAlwaysLateMachineJudges checks that self-doubt ends; otherwise a busy supervisor would never find a node dead.
func TestAlwaysLateMachineJudges(t *testing.T) {
	w := startedWorld(t, grid.Dims{X: 2, Y: 2, Z: 2})
	w.actor("n0-0-0", fault.HalfHost).alive, w.actor("n0-0-0", fault.HalfHost).mute = false, true
	w.say(w.actor("n0-0-0", fault.HalfDNP), subject{"n0-0-0", fault.ComponentHost}, fault.Failed, fault.KindWatchdog, 0)
	w.run(5 * time.Millisecond)
	for range 2 * (maxDelays + 2) {
		w.now = w.wake.Add(w.m.slack() + 1)
		w.step(Tick{})
		if w.state("n0-0-0", fault.ComponentHost) == fault.Failed {
			return
		}
	}
	t.Error("no verdict")
}

// TestAbsurdEpochInAnswer: a half answers with an epoch of the far future. The next leader still accepts its reports.
func TestAbsurdEpochInAnswer(t *testing.T) {
	w := startedWorld(t, grid.Dims{X: 2, Y: 1, Z: 1})
	host := w.actor("n0-0-0", fault.HalfHost)
	out := w.m.Step(w.now, GossipOpinion{Node: "n0-0-0"})
	if len(out.Challenges) != 1 {
		t.Fatalf("%+v", out)
	}
	w.m.Step(w.now, Answered{Nonce: out.Challenges[0].Nonce, Origin: host.origin, Epoch: 1 << 63, Path: fault.PathDirect})
	next, err := New(w.cfg, w.now, w.m.Nodes())
	if err != nil {
		t.Fatal(err)
	}
	w.m = next
	w.boot(host)
	w.run(time.Second)
	w.say(host, subject{"n0-0-0", fault.ComponentMemory}, fault.Sick, fault.KindSelf, 0)
	w.run(time.Millisecond)
	if got := w.state("n0-0-0", fault.ComponentMemory); got != fault.Sick {
		t.Errorf("it says that its memory is SICK, and the map %s", got)
	}
}

// TestStatementWithoutRightIsIgnored checks that statements from halves without the right to make them are ignored.
func TestStatementWithoutRightIsIgnored(t *testing.T) {
	w := startedWorld(t, grid.Dims{X: 3, Y: 3, Z: 3})
	before := summary(w.m)
	obs := func(origin fault.Origin, o fault.Observation) Evidence {
		return Evidence{fault.Delivery{Path: fault.PathDirect, Report: fault.Report{
			ID: fault.ReportID{Origin: origin, Epoch: 9, Seq: 9}, Observations: []fault.Observation{o}}}}
	}
	host := fault.Origin{Node: "n0-0-0", Half: fault.HalfHost}
	for name, ev := range map[string]Event{
		"unknown origin": obs(fault.Origin{Node: "x", Half: fault.HalfHost},
			fault.Observation{Node: "n0-0-0", Component: fault.ComponentMemory, State: fault.Failed, Kind: fault.KindSelf}),
		"no half": obs(fault.Origin{Node: "n0-0-0"},
			fault.Observation{Node: "n0-0-0", Component: fault.ComponentMemory, State: fault.Failed, Kind: fault.KindSelf}),
		"a node far away": obs(host, fault.Observation{Node: "n1-1-1", Component: fault.ComponentHost, State: fault.Failed,
			Kind: fault.KindDescriptor}),
		"a neighbour's temperature": obs(host, fault.Observation{Node: "n1-0-0", Component: fault.ComponentTemperature,
			State: fault.Failed, Kind: fault.KindDescriptor}),
		"self of a neighbour": obs(host, fault.Observation{Node: "n1-0-0", Component: fault.ComponentMemory, State: fault.Failed,
			Kind: fault.KindSelf}),
		"the supervisor's own kind": obs(host, fault.Observation{Node: "n0-0-0", Component: fault.ComponentMemory, State: fault.Failed,
			Kind: fault.KindVotes}),
		"the node as such": obs(host, fault.Observation{Node: "n0-0-0", Component: fault.ComponentNode, State: fault.Failed,
			Kind: fault.KindSelf}),
		"an invalid state": obs(host, fault.Observation{Node: "n0-0-0", Component: fault.ComponentMemory, State: 9,
			Kind: fault.KindSelf}),
		"an answer to nothing":        Answered{Nonce: [16]byte{1}, Origin: host, Epoch: 10, Path: fault.PathDirect},
		"an opinion of nobody":        GossipOpinion{Node: "x"},
		"an answer by nobody's half":  Answered{Origin: fault.Origin{Node: "n0-0-0"}},
		"an answer by unknown origin": Answered{Origin: fault.Origin{Node: "x", Half: fault.HalfDNP}},
	} {
		out := w.m.Step(w.now, ev)
		if len(out.Changes) > 0 || summary(w.m) != before {
			t.Errorf("%s: %+v", name, out.Changes)
		}
	}
}

// TestTwoLinksTwoStories: of two statements about one neighbour in the same report the worse counts, and restating it
// does not reset its age.
func TestTwoLinksTwoStories(t *testing.T) {
	w := startedWorld(t, grid.Dims{X: 2, Y: 1, Z: 1})
	n := w.m.nodes[0]
	report := func(seq fault.Seq, states ...fault.State) {
		d := fault.Delivery{Path: fault.PathDirect, Report: fault.Report{ID: fault.ReportID{Origin: fault.Origin{Node: w.id(1),
			Half: fault.HalfHost}, Epoch: 2, Seq: seq}}}
		for _, s := range states {
			d.Report.Observations = append(d.Report.Observations,
				fault.Observation{Node: n.id, Component: fault.ComponentMemory, State: s, Kind: fault.KindDescriptor})
		}
		w.m.Step(w.now, Evidence{d})
	}
	report(1, fault.Normal, fault.Failed)
	since := w.now
	w.now = w.now.Add(time.Second)
	report(2, fault.Failed, fault.Normal)
	r, _ := w.m.descriptor(n, 0, fault.ComponentMemory, w.now)
	if r == nil || r.state != fault.Failed || !r.since.Equal(since) {
		t.Errorf("%+v", r)
	}
}

// cfgLinks returns the directions in which the node has links.
func (n *node) cfgLinks() []grid.Direction {
	var out []grid.Direction
	for _, d := range grid.Directions() {
		if n.peers[d.Index()] != nil {
			out = append(out, d)
		}
	}
	return out
}

// TestCopyOfAnswerIsNoBoot: a neighbour keeps a half's answer from after a restart, which no report has shown, and sends it again and
// again once the node is dead. The copies neither delay the verdict nor lift it.
func TestCopyOfAnswerIsNoBoot(t *testing.T) {
	w, err := newWorld(testConfig(grid.Dims{X: 3, Y: 3, Z: 3}))
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	at := grid.Coord{X: 1, Y: 1, Z: 1}
	id := w.cfg.IDs[at]
	dnp := w.actor(id, fault.HalfDNP)
	w.report(dnp, true, subject{id, fault.ComponentDNP}) // its epoch is known
	w.run(100 * time.Millisecond)
	var asked []Challenge
	w.log = func(_ time.Time, out Output) {
		for _, c := range out.Challenges {
			if c.Node == id && c.Half != fault.HalfHost {
				asked = append(asked, c)
			}
		}
	}
	for _, h := range halves {
		w.actor(id, h).mute = true
	}
	w.step(GossipOpinion{Node: id})
	if len(asked) == 0 {
		t.Fatal("no challenge to the DNP half")
	}
	answer := Answered{Origin: dnp.origin, Nonce: asked[0].Nonce, Epoch: dnp.epoch + 1}
	w.step(answer)
	w.run(time.Second)
	expel(w, id, at) // dead
	failed := false
	for range 100 {
		w.run(50 * time.Millisecond)
		w.step(answer)
		n, _ := w.m.Node(id)
		if failed && n.State != fault.Failed {
			t.Fatalf("a copy of an answer lifts the verdict: %s (%s)", n.State, n.Rule)
		}
		failed = n.State == fault.Failed
	}
	if !failed {
		t.Error("copies of an answer keep the dead node from being called FAILED")
	}
}
