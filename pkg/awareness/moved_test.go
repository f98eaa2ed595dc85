package awareness

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// checkWiring checks that a machine's indexes agree with one another and with its configuration.
func checkWiring(t *rapid.T, m *Machine) {
	count := 0
	for rank, n := range m.nodes {
		at := m.cfg.Dims.At(rank)
		if id := m.cfg.IDs[at]; (n == nil) != (id == "") || n != nil && (n.id != id || n.coord != at || n.rank != rank || m.ranks[id] != rank) {
			t.Fatalf("place %s of %q has %+v", at, id, n)
		}
		if n == nil {
			continue
		}
		if m.own[count] != n {
			t.Fatalf("node %d of the map is %s: want %s", count, m.own[count].id, n.id)
		}
		count++
		var want []*node
		for _, d := range grid.Directions() {
			to, ok := m.cfg.Dims.Neighbour(at, d)
			var p *node
			if ok {
				p = m.nodes[m.cfg.Dims.Rank(to)]
			}
			if n.ends.has(d) != ok || n.peers[d.Index()] != p {
				t.Fatalf("%s: link %s leads to %v: want %v", n.id, d, n.peers[d.Index()], p)
			}
			if p != nil && !slices.Contains(want, p) {
				want = append(want, p)
			}
		}
		if len(want) != len(n.neighbours) {
			t.Fatalf("%s has %d neighbours: want %d", n.id, len(n.neighbours), len(want))
		}
		for i, nb := range n.neighbours {
			if nb.node != want[i] || nb.node.neighbours[nb.index].node != n {
				t.Fatalf("%s: neighbour %d is %s, whose neighbour %d is not the node", n.id, i, nb.node.id, nb.index)
			}
			for _, d := range nb.links() {
				if nb.node.peers[d.Index()] != n {
					t.Fatalf("%s: link %s of %s does not end here", n.id, d, nb.node.id)
				}
			}
		}
		checkSlots(t, n)
	}
	if count != len(m.own) || count != len(m.ranks) || count != len(m.cfg.IDs) {
		t.Fatalf("%d nodes, %d in the map, %d ids: want %d", count, len(m.own), len(m.ranks), len(m.cfg.IDs))
	}
	for n, r := range m.rewired {
		if n.rank < 0 || m.nodes[n.rank] != n {
			t.Fatalf("%s has left, and its links %+v still wait", n.id, r)
		}
	}
	for i, n := range m.wakes {
		if n.rank < 0 || int(n.place) != i {
			t.Fatalf("%s at %d of the heap: %+v", n.id, i, n)
		}
	}
}

// checkSlots checks that a node's halves state something of each subject once, and only of neighbours that it has.
func checkSlots(t *rapid.T, n *node) {
	for i := range n.voices {
		v := &n.voices[i]
		seen := v.digest.plain
		add := func(set uint64) {
			if seen&set != 0 {
				t.Fatalf("%s: two statements on %b", n.id, seen&set)
			}
			seen |= set
		}
		for k := range v.more {
			add(v.more[k].plain)
		}
		for k := range v.others {
			add(v.others[k].slot.bit())
		}
		for s := range slot(maxSlots) {
			if about, _ := s.about(); seen&s.bit() != 0 && about >= len(n.neighbours) {
				t.Fatalf("%s: a statement about neighbour %d of %d", n.id, about, len(n.neighbours))
			}
		}
	}
}

// drawMove draws a torus with other empty places, or another size, in which every remaining node keeps its place.
func drawMove(t *rapid.T, dims grid.Dims) grid.Dims {
	for range 20 {
		box := dims.Box()
		at := grid.Coord{X: rapid.IntRange(0, box.X).Draw(t, "x"), Y: rapid.IntRange(0, box.Y-1).Draw(t, "y"),
			Z: rapid.IntRange(0, box.Z-1).Draw(t, "z")}
		var next grid.Dims
		var err error
		switch {
		case dims.Contains(at) && dims.Nodes() >= 4:
			next, err = dims.Without(at)
		case !dims.Contains(at) && at.X < max(5, box.X):
			next, err = dims.Filled(at)
		default:
			continue
		}
		if err == nil && next.Validate() == nil && next.CheckConnected() == nil {
			return next
		}
	}
	return dims
}

// idsOf names nodes by their places; again counts how often a place got another node.
func idsOf(dims grid.Dims, again map[grid.Coord]int) map[grid.Coord]fault.NodeID {
	ids := make(map[grid.Coord]fault.NodeID, dims.Nodes())
	for at := range dims.All() {
		ids[at] = fault.DefaultNodeID(at)
		if k := again[at]; k > 0 {
			ids[at] += fault.NodeID(fmt.Sprintf("-%d", k))
		}
	}
	return ids
}

// TestMovesKeepTheMachineConsistent checks that after any sequence of moves, evidence and time the machine's indexes
// agree, no statement about a former neighbour or a former link is left, and that the machine survives.
func TestMovesKeepTheMachineConsistent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dims := grid.Dims{X: rapid.IntRange(1, 4).Draw(t, "X"), Y: rapid.IntRange(2, 3).Draw(t, "Y"), Z: rapid.IntRange(1, 2).Draw(t, "Z")}
		cfg := testConfig(dims)
		label(&cfg, "rack", func(c grid.Coord) int { return c.Y })
		m, err := New(cfg, epoch0, nil)
		if err != nil {
			t.Fatal(err)
		}
		now, seqs, again := epoch0, map[fault.Origin]fault.Seq{}, map[grid.Coord]int{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "ms")) * time.Millisecond)
			var out Output
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				next := drawMove(t, m.cfg.Dims)
				for at := range m.cfg.Dims.All() {
					if !next.Contains(at) && rapid.Bool().Draw(t, "another") {
						again[at]++
					}
				}
				out = m.Step(now, Moved{Dims: next, IDs: idsOf(next, again)})
			case 1:
				out = m.Step(now, Tick{})
			default:
				n := m.own[rapid.IntRange(0, len(m.own)-1).Draw(t, "node")]
				o := fault.Origin{Node: n.id, Half: halves[rapid.IntRange(0, 1).Draw(t, "half")]}
				seqs[o]++
				r := fault.Report{ID: fault.ReportID{Origin: o, Epoch: 1, Seq: seqs[o]}, Digest: rapid.Bool().Draw(t, "digest")}
				for c := fault.ComponentHost; c.Valid(); c++ {
					switch rapid.IntRange(0, 3).Draw(t, "state") {
					case 0:
						r.Observations = append(r.Observations, fault.Observation{Node: n.id, Component: c, State: fault.Normal, Kind: fault.KindSelf})
					case 1:
						r.Observations = append(r.Observations, fault.Observation{Node: n.id, Component: c, State: fault.Failed, Kind: fault.KindSilence})
					}
				}
				for _, nb := range n.neighbours {
					for _, c := range described {
						if rapid.Bool().Draw(t, "described") {
							r.Observations = append(r.Observations, fault.Observation{Node: nb.node.id, Component: c,
								State: fault.State(rapid.IntRange(int(fault.Unknown), int(fault.Failed)).Draw(t, "of")), Kind: fault.KindDescriptor})
						}
					}
				}
				out = m.Step(now, Evidence{fault.Delivery{Report: r, Path: fault.PathDirect}})
			}
			for _, c := range out.Changes {
				if _, ok := m.ranks[c.Node]; !ok {
					t.Fatalf("a change of %s, which has no place", c.Node)
				}
			}
			checkWiring(t, m)
			if !out.Wake.IsZero() && !out.Wake.After(now) {
				t.Fatalf("wake %s is not after %s", out.Wake, now)
			}
		}
	})
}

// TestMoveKeepsStatementsOfNeighbours checks that a statement about a neighbour follows the neighbour, whatever index it
// has afterwards, and that one about a former neighbour or link goes.
func TestMoveKeepsStatementsOfNeighbours(t *testing.T) {
	dims, err := grid.Dims{X: 4, Y: 3, Z: 3}.Without(grid.Coord{X: 1, Y: 0, Z: 0})
	if err != nil {
		t.Fatal(err)
	}
	w, err := newWorld(testConfig(dims))
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	a := w.actor("n0-0-0", fault.HalfHost)
	for i, n := range dims.Neighbours(w.coord("n0-0-0")) {
		w.say(a, subject{w.cfg.IDs[n], fault.ComponentMemory}, fault.Sick, fault.KindDescriptor, time.Duration(i)*time.Millisecond)
	}
	w.say(a, subject{a.origin.Node, fault.Link(grid.XPlus)}, fault.Failed, fault.KindSilence, 0)
	w.run(100 * time.Millisecond)
	n := w.m.nodes[w.m.ranks["n0-0-0"]]
	v := n.voice(fault.HalfHost)
	full, err := dims.Filled(grid.Coord{X: 1, Y: 0, Z: 0})
	if err != nil {
		t.Fatal(err)
	}
	w.m.Step(w.now, Moved{Dims: full, IDs: testConfig(full).IDs})
	if r := v.other(ownSlot(fault.Link(grid.XPlus))); r != nil {
		t.Errorf("the statement about the former link stands: %+v", r)
	}
	memory, _ := describedIndex(fault.ComponentMemory)
	for i, nb := range n.neighbours {
		r := v.other(aboutSlot(i, memory))
		if isNew := nb.node.id == "n1-0-0"; isNew != (r == nil) {
			t.Errorf("of %s the node states %+v", nb.node.id, r)
		}
	}
	if s := n.voice(fault.HalfHost); !s.unknown(stamp{s.epoch, s.newest.seq + 1}) {
		t.Error("a digest with dropped statements can be restated")
	}
}

// BenchmarkMoved measures a join and a leave in tori of different sizes.
func BenchmarkMoved(b *testing.B) {
	for _, dims := range benchSizes {
		hole, err := dims.Without(grid.Coord{X: 1, Y: 1, Z: 1})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprint(dims.Nodes()), func(b *testing.B) {
			x := newBench(dims)
			label(&x.cfg, "rack", func(c grid.Coord) int { return c.X })
			events := [2]Moved{}
			for i, d := range [...]grid.Dims{hole, dims} {
				cfg := testConfig(d)
				events[i] = Moved{Dims: d, IDs: cfg.IDs, Labels: x.cfg.Labels, DomainLabels: x.cfg.DomainLabels}
			}
			b.ResetTimer()
			for i := range b.N {
				x.now = x.now.Add(time.Millisecond)
				x.m.Step(x.now, events[i%2])
			}
		})
	}
}

// TestMoveEndsIncidentsOfTheGone checks that an incident of a node that has left ends.
func TestMoveEndsIncidentsOfTheGone(t *testing.T) {
	w, err := newWorld(testConfig(grid.Dims{X: 3, Y: 3, Z: 1}))
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewIncidents(IncidentsOf("c", w.cfg), w.now, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var changes []Change
	w.log = func(_ time.Time, out Output) { changes = append(changes, out.Changes...) }
	update := func() IncidentOutput {
		u := IncidentUpdate{Nodes: w.m.Nodes(), Changes: changes, Groups: w.m.Groups(), Status: w.m.Node}
		changes = nil
		return l.Update(w.now, u)
	}
	w.start()
	w.say(w.actor("n1-1-0", fault.HalfHost), subject{"n1-1-0", fault.ComponentMemory}, fault.Failed, fault.KindSelf, 0)
	w.run(time.Second)
	if out := update(); len(out.Changed) != 1 || out.Changed[0].State != IncidentOpen {
		t.Fatalf("the fault has %+v", out.Changed)
	}
	dims, err := w.dims.Without(grid.Coord{X: 1, Y: 1})
	if err != nil {
		t.Fatal(err)
	}
	w.move(dims)
	l.Move(Moved{Dims: dims, IDs: w.cfg.IDs})
	if out := update(); len(out.Changed) != 1 || out.Changed[0].State == IncidentOpen {
		t.Errorf("after its node has left it is %+v", out.Changed)
	}
}

// TestMoveAtTheBorderOfARegion: a node at the border leaves, and its neighbour's link leads to a node of another region, which
// this machine never hears. The link waits until its own end says that it works, and its silence accuses nobody.
func TestMoveAtTheBorderOfARegion(t *testing.T) {
	w := regionWorld(t, 0)
	dims, err := w.dims.Without(grid.Coord{X: 3, Y: 1})
	if err != nil {
		t.Fatal(err)
	}
	ids := halfTorus(0).IDs
	delete(ids, grid.Coord{X: 3, Y: 1})
	w.before, w.dims, w.cfg.Dims, w.cfg.IDs = w.dims, dims, dims, ids
	w.step(Moved{Dims: dims, IDs: ids})
	const end = fault.NodeID("n2-1-0")
	link := fault.Link(grid.XPlus)
	n := w.m.nodes[w.m.ranks[end]]
	if p := n.peers[grid.XPlus.Index()]; p == nil || p.id != "n4-1-0" || !p.foreign {
		t.Fatalf("the link leads to %+v", p)
	}
	is := func(what string, want fault.State) {
		t.Helper()
		if got := w.state(end, link); got != want {
			t.Errorf("%s: the link is %s, rule %s: want %s", what, got, n.components[link].rule, want)
		}
	}
	w.run(time.Second)
	is("it speaks of the former link", fault.Unknown)
	w.say(w.actor(end, fault.HalfHost), subject{end, link}, fault.Failed, fault.KindSilence, 0)
	w.run(time.Second)
	is("it hears nothing yet", fault.Unknown)
	w.say(w.actor(end, fault.HalfHost), subject{end, link}, fault.Normal, fault.KindSelf, 0)
	w.run(time.Second)
	is("it works", fault.Normal)
	for _, n := range w.m.Nodes() {
		if n.State != fault.Normal {
			t.Errorf("%s is %s", n.ID, n.State)
		}
	}
}

// A leader ends after it has stored a change of places and before it has stored the map. Its successor, whose clock may be an
// hour ahead, waits for the links that lead elsewhere as well: their silence is no fault.
func TestLinksWaitWhenTheMapIsOlderThanTheTopology(t *testing.T) {
	for _, stored := range []bool{false, true} {
		t.Run(fmt.Sprintf("map stored %t", stored), func(t *testing.T) {
			w, dims := beforeLeave(t)
			saved := w.m.Nodes()
			if w.move(dims); stored {
				saved = w.m.Nodes()
			}
			saved = slices.DeleteFunc(saved, func(n NodeStatus) bool { return n.ID == "n1-1-1" })
			for i := range saved {
				for k := range saved[i].Components {
					c := &saved[i].Components[k]
					c.Since = c.Since.Add(-time.Hour)
				}
			}
			m, err := New(w.cfg, w.now, saved)
			if err != nil {
				t.Fatal(err)
			}
			w.m, w.queue = m, nil
			w.step(Tick{})
			ends := []subject{{"n0-1-1", fault.Link(grid.XPlus)}, {"n2-1-1", fault.Link(grid.XMinus)}}
			for _, end := range ends {
				w.say(w.actor(end.node, fault.HalfHost), end, fault.Failed, fault.KindSilence, 0)
			}
			w.run(DefaultRelinkBound - time.Second)
			for _, end := range ends {
				if got := w.state(end.node, end.comp); got != fault.Unknown {
					t.Errorf("%s %s is %s: want UNKNOWN", end.node, end.comp, got)
				}
			}
			w.run(3 * time.Second)
			for _, end := range ends {
				if got := w.state(end.node, end.comp); got != fault.Failed {
					t.Errorf("after its time %s %s is %s: want FAILED", end.node, end.comp, got)
				}
			}
		})
	}
}

// beforeLeave returns a world of 4x4x4 that has settled, and its torus without the node at 1,1,1.
func beforeLeave(t *testing.T) (*world, grid.Dims) {
	t.Helper()
	w, err := newWorld(testConfig(grid.Dims{X: 4, Y: 4, Z: 4}))
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	w.run(3 * time.Second)
	dims, err := w.dims.Without(grid.Coord{X: 1, Y: 1, Z: 1})
	if err != nil {
		t.Fatal(err)
	}
	return w, dims
}

// A link leads to a peer, then to another one, and then to the first one again. The map was stored before the second change. The
// next leader does not take statements about the first of these links for statements about the present one. It knows from the
// stored revision that the topology has changed since, and otherwise restores what the map has.
func TestLinkToFormerPeerIsNotJudgedByEarlierWords(t *testing.T) {
	for _, tc := range []struct {
		name        string
		stored, now uint64
		want        fault.State
	}{
		{"changed twice since", 7, 9, fault.Unknown}, {"not changed since", 7, 7, fault.Failed},
		{"stored by an earlier version", 0, 9, fault.Failed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w, dims := beforeLeave(t)
			w.cfg.Revision = tc.stored
			w.move(dims)
			one, other := subject{"n0-1-1", fault.Link(grid.XPlus)}, subject{"n2-1-1", fault.Link(grid.XMinus)}
			say := func(end subject, s fault.State, k fault.Kind) { w.say(w.actor(end.node, fault.HalfHost), end, s, k, 0) }
			say(one, fault.Unknown, fault.KindSelf) // it has followed
			w.run(50 * time.Millisecond)
			saved := w.m.Nodes()
			w.cfg.Revision = tc.now
			m, err := New(w.cfg, w.now, saved)
			if err != nil {
				t.Fatal(err)
			}
			w.m, w.queue = m, nil
			w.step(Tick{})
			for _, end := range []subject{one, other} {
				say(end, fault.Normal, fault.KindSelf) // of the first link
			}
			w.run(time.Second)
			say(other, fault.Unknown, fault.KindSelf)
			say(one, fault.Failed, fault.KindSilence) // the order about the peer in between has reached one end alone
			w.run(2 * time.Second)
			if got := w.state(one.node, one.comp); got != tc.want {
				t.Errorf("%s %s is %s: want %s", one.node, one.comp, got, tc.want)
			}
		})
	}
}

// A leader ends after it has stored a change of places and before it has stored the map, which still has a link that is gone.
// Its successor ends the link's state by an event, in its first step, so that events and map agree when the link comes back.
func TestLinkThatIsGoneEndsWhenTheMapIsOlderThanTheTopology(t *testing.T) {
	for _, was := range []fault.State{fault.Normal, fault.Sick, fault.Failed} {
		t.Run(was.String(), func(t *testing.T) {
			w, err := newWorld(testConfig(grid.Dims{X: 3, Y: 2, Z: 1}))
			if err != nil {
				t.Fatal(err)
			}
			w.start()
			w.run(3 * time.Second)
			end, link := fault.NodeID("n0-0-0"), fault.Link(grid.YPlus)
			saved, before := w.m.Nodes(), w.dims
			saved = slices.DeleteFunc(saved, func(n NodeStatus) bool { return n.ID == "n0-1-0" })
			for i := range saved {
				for k := range saved[i].Components {
					if c := &saved[i].Components[k]; saved[i].ID == end && c.Component == link {
						c.State = was
					}
				}
			}
			dims, err := before.Without(grid.Coord{Y: 1})
			if err != nil {
				t.Fatal(err)
			}
			cfg := testConfig(dims)
			m, err := New(cfg, w.now, saved)
			if err != nil {
				t.Fatal(err)
			}
			changes := m.Step(w.now, Moved{Dims: before, IDs: testConfig(before).IDs}).Changes
			state := was
			for _, c := range changes {
				if c.Node != end || c.Component != link {
					continue
				}
				if c.From != state {
					t.Errorf("an event is from %s after %s", c.From, state)
				}
				state = c.To
			}
			if got := m.nodes[m.ranks[end]].components[link].state; got != fault.Unknown || got != state {
				t.Errorf("the events %+v lead to %s, and the map has %s: want UNKNOWN", changes, state, got)
			}
		})
	}
}

// A node that has moved begins a new life. What its halves said at the former place does not count, even if it arrives later; a
// half that goes on in its life counts after twice the time of relinked links.
func TestMovedNodeIsHeardFromItsNewPlaceOnly(t *testing.T) {
	before, err := grid.Dims{X: 4, Y: 1, Z: 1}.Without(grid.Coord{X: 3})
	if err != nil {
		t.Fatal(err)
	}
	after, err := grid.Dims{X: 4, Y: 1, Z: 1}.Without(grid.Coord{X: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		epoch fault.Epoch
		wait  time.Duration
		heard bool
	}{{1, time.Second, false}, {2, time.Second, true}, {1, DefaultRelinkBound + time.Second, false}, {1, 2 * DefaultRelinkBound, true}} {
		m, err := New(testConfig(before), epoch0, nil)
		if err != nil {
			t.Fatal(err)
		}
		seq := fault.Seq(0)
		say := func(now time.Time, epoch fault.Epoch) {
			seq++
			m.Step(now, Evidence{fault.Delivery{Path: fault.PathDirect, Report: fault.Report{Digest: true,
				ID:           fault.ReportID{Origin: fault.Origin{Node: "n1-0-0", Half: fault.HalfHost}, Epoch: epoch, Seq: seq},
				Observations: []fault.Observation{{Node: "n1-0-0", Component: fault.ComponentHost, State: fault.Normal, Kind: fault.KindSelf}}}}})
		}
		say(epoch0.Add(time.Second), 1)
		ids := testConfig(before).IDs
		delete(ids, grid.Coord{X: 1})
		ids[grid.Coord{X: 3}] = "n1-0-0"
		at := epoch0.Add(2 * time.Second)
		m.Step(at, Moved{Dims: after, IDs: ids})
		n := m.nodes[m.ranks["n1-0-0"]]
		say(at.Add(tc.wait), tc.epoch)
		if heard := !n.heard(0).IsZero(); heard != tc.heard || n.coord != (grid.Coord{X: 3}) {
			t.Errorf("a report of epoch %d, %s after the move: heard %t at %s", tc.epoch, tc.wait, heard, n.coord)
		}
	}
}

// A node has moved, and then one of its links gets another peer. The next leader does not take the node's statement about the peer in
// between, which still runs, for a statement about the present link.
func TestNextLeaderWaitsForLinkOfMovedNode(t *testing.T) {
	line := func(empty ...int) grid.Dims {
		dims := grid.Dims{X: 5, Y: 1, Z: 1}
		for _, x := range empty {
			var err error
			if dims, err = dims.Without(grid.Coord{X: x}); err != nil {
				t.Fatal(err)
			}
		}
		return dims
	}
	m, err := New(testConfig(line(4)), epoch0, nil)
	if err != nil {
		t.Fatal(err)
	}
	const moved = fault.NodeID("n1-0-0")
	now, link := epoch0, fault.Link(grid.XMinus)
	seq := fault.Seq(0)
	say := func(node fault.NodeID, epoch fault.Epoch, c fault.Component, s fault.State, k fault.Kind) {
		now, seq = now.Add(100*time.Millisecond), seq+1
		m.Step(now, Evidence{fault.Delivery{Path: fault.PathDirect, Report: fault.Report{Digest: true,
			ID:           fault.ReportID{Origin: fault.Origin{Node: node, Half: fault.HalfHost}, Epoch: epoch, Seq: seq},
			Observations: []fault.Observation{{Node: node, Component: c, State: s, Kind: k}}}}})
	}
	say("n2-0-0", 1, fault.ComponentHost, fault.Normal, fault.KindSelf)
	say(moved, 1, link, fault.Normal, fault.KindSelf)
	ids := testConfig(line(4)).IDs
	delete(ids, grid.Coord{X: 1})
	ids[grid.Coord{X: 4}] = moved
	m.Step(now, Moved{Dims: line(1), IDs: ids})
	say(moved, 2, link, fault.Normal, fault.KindSelf) // the new life, about the link to the node at 3,0,0
	if got := m.nodes[m.ranks[moved]].components[link].state; got != fault.Normal {
		t.Fatalf("the link of the moved node is %s: want NORMAL", got)
	}
	delete(ids, grid.Coord{X: 3})
	m.Step(now, Moved{Dims: line(1, 3), IDs: ids})
	cfg := testConfig(line(1, 3))
	cfg.IDs = ids
	if m, err = New(cfg, now, m.Nodes()); err != nil {
		t.Fatal(err)
	}
	say(moved, 2, link, fault.Normal, fault.KindSelf)
	say(moved, 2, link, fault.Failed, fault.KindSilence) // the node at 3,0,0 has stopped
	now = now.Add(time.Second)
	m.Step(now, Tick{})
	if p := m.nodes[m.ranks[moved]].components[link]; p.state != fault.Unknown || p.rule != ruleRelinked {
		t.Errorf("the link to another peer is %s by rule %d: want UNKNOWN by rule %d", p.state, p.rule, ruleRelinked)
	}
}

// The wait of a link ends without a change of its state. The machine says so, because the next leader waits for links of which the store
// has the rule "relinked".
func TestEndOfWaitIsReported(t *testing.T) {
	w, dims := beforeLeave(t)
	w.move(dims)
	ends := []fault.NodeID{"n0-1-1", "n2-1-1"}
	var settled []fault.NodeID
	for at := w.now; at.Before(w.now.Add(DefaultRelinkBound + time.Second)); at = at.Add(time.Second) {
		settled = append(settled, w.m.Step(at, Tick{}).Settled...)
	}
	for _, id := range ends {
		if !slices.Contains(settled, id) {
			t.Errorf("the nodes %v have links that no longer wait: want %s among them", settled, id)
		}
	}
}

// TestJoinerMayHaveLeftUnderEarlierLeader: a leader that has just begun may not have seen a node leave. If a leader has ever heard the
// node, its halves may be those of its earlier life, so its reports do not settle its links.
func TestJoinerMayHaveLeftUnderEarlierLeader(t *testing.T) {
	at := grid.Coord{X: 1, Y: 1, Z: 1}
	for _, tc := range []struct {
		name    string
		known   bool
		after   time.Duration
		blurred bool
	}{
		{"an earlier leader heard the node", true, 3 * time.Second, true},
		{"a new node", false, 3 * time.Second, false},
		{"the leader would have seen it leave", true, DefaultRelinkBound + time.Second, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			whole := testConfig(grid.Dims{X: 4, Y: 4, Z: 4})
			id := whole.IDs[at]
			before, err := whole.Dims.Without(at)
			if err != nil {
				t.Fatal(err)
			}
			cfg := testConfig(before)
			cfg.Known = func(node fault.NodeID) bool { return tc.known && node == id }
			w, err := newWorld(cfg)
			if err != nil {
				t.Fatal(err)
			}
			w.start()
			w.run(tc.after)
			w.step(Moved{Dims: whole.Dims, IDs: whole.IDs})
			if got := w.m.rewired[w.m.nodes[w.m.ranks[id]]].blurred != 0; got != tc.blurred {
				t.Errorf("its ends are blurred: %t, want %t", got, tc.blurred)
			}
		})
	}
}
