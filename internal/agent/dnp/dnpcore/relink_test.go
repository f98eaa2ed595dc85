package dnpcore

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/procedure"
	"github.com/lofamo/lofamo/pkg/torus/routing"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/peers"
)

// peer returns the node at the other end of a link. In a torus that changes it is nil until both ends lead there.
func (w *mesh) peer(n *meshNode, d grid.Direction) *meshNode {
	if w.peersOf == nil {
		to, _ := w.dims.Neighbour(n.at, d)
		return w.nodes[w.dims.Index(to)]
	}
	to, linked := n.m.LinkTo(d)
	for _, p := range w.nodes {
		if back, ok := p.m.LinkTo(d.Opposite()); linked && ok && !p.dead && p.at == to && back == n.at {
			return p
		}
	}
	return nil
}

// farewell carries the frames that a half sends to former peers.
func (w *mesh) farewell(n *meshNode, before *halfcore.Topology, frames []Outgoing) {
	for _, f := range frames {
		to, _ := before.Dims.Neighbour(n.at, f.Dir)
		for _, p := range w.nodes {
			if back, ok := p.m.LinkTo(f.Dir.Opposite()); ok && p.at == to && back == n.at {
				p.air = append(p.air, Frame{Dir: f.Dir.Opposite(), Frame: f.Frame})
			}
		}
	}
}

// shake makes sessions on links of which both ends lead to one another and one has no session.
func (w *mesh) shake() {
	for _, n := range w.nodes {
		for _, d := range grid.Directions() {
			if l := n.m.links[d.Index()]; l == nil || l.session || n.dead {
				continue
			}
			if p := w.peer(n, d); p != nil {
				id := uint32(w.now.Sub(start)/time.Millisecond)<<3 | uint32(d)
				w.step(n, Session{Dir: d, ID: id})
				w.step(p, Session{Dir: d.Opposite(), ID: id})
			}
		}
	}
}

// endAt is the address of a node's own end.
func endAt(at grid.Coord, d grid.Direction) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(at.X), byte(at.Y), byte(at.Z)}), 7000+uint16(d))
}

// newChangingMesh is newMesh with halves that follow orders about the torus.
func newChangingMesh(t *testing.T, dims string, seed uint64) *mesh {
	from := mustDims(t, dims)
	configured := func(n *meshNode) *halfcore.PeersConfig {
		k := &halfcore.PeersConfig{Dims: from}
		for i, d := range grid.Directions() {
			k.Ends[i].Address = endAt(n.at, d)
			if to, ok := from.Neighbour(n.at, d); ok {
				k.Configured[i] = peers.Peer{Node: fault.DefaultNodeID(to), Address: endAt(to, d.Opposite())}
			}
		}
		return k
	}
	w := newMesh(t, dims, seed, func(c *Config) {
		c.Procedure.OnEvidence = true
		c.SelfTest = halfcore.SelfTestConfig{Interval: 500 * time.Millisecond, IdleAfter: 10 * time.Second}
	})
	w.peersOf = configured
	for _, n := range w.nodes {
		w.begin(n, Hops{})
	}
	w.run(time.Second)
	return w
}

func mustDims(t *testing.T, text string) grid.Dims {
	t.Helper()
	d, err := grid.ParseDims(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// orderFor returns a node's order for a torus: the peers of all links that the configured torus has not like that.
func (w *mesh) orderFor(at grid.Coord, dims grid.Dims, number uint64) *lofamov1.PeerOrder {
	o := &lofamov1.PeerOrder{Number: number}
	o.Torus, _ = dims.AppendBinary(nil)
	var configured grid.Dims
	if n := w.find(at); n != nil && !n.m.peers.cfg.Spare {
		configured = n.m.peers.cfg.Dims
	}
	for _, d := range dims.LinksOf(at) {
		to, _ := dims.Neighbour(at, d)
		if was, ok := configured.Neighbour(at, d); configured == (grid.Dims{}) || !ok || was != to {
			o.Peers = append(o.Peers, &lofamov1.Peer{Direction: uint32(d), Node: string(fault.DefaultNodeID(to)),
				Address: endAt(to, d.Opposite()).String()})
		}
	}
	return o
}

func (w *mesh) find(at grid.Coord) *meshNode {
	for _, n := range w.nodes {
		if n.at == at {
			return n
		}
	}
	return nil
}

// join starts a node at a place of a torus that has it.
func (w *mesh) join(at grid.Coord, dims grid.Dims, number uint64) {
	o := w.orderFor(at, dims, number)
	o.Coord = at.String()
	state, err := peers.FromOrder(o)
	if err != nil {
		w.t.Fatal(err)
	}
	n := &meshNode{at: at, host: watchdog.HostWord{Valid: true}, opened: map[string]int{}, back: map[string]int{},
		stores: map[watchdog.Addr]uint32{}}
	before, known := w.dims, w.peersOf
	w.dims, w.peersOf = dims, func(n *meshNode) *halfcore.PeersConfig {
		k := &halfcore.PeersConfig{Spare: true, State: state}
		for i, d := range grid.Directions() {
			k.Ends[i].Address = endAt(n.at, d)
		}
		return k
	}
	w.begin(n, Hops{})
	w.dims, w.peersOf = before, known
	w.nodes = append(w.nodes, n)
}

// watched runs for a while, and checks at each step that no half calls a link or itself faulty.
func (w *mesh) watched(d time.Duration) {
	w.t.Helper()
	for range d / (10 * time.Millisecond) {
		w.run(10 * time.Millisecond)
		for _, n := range w.nodes {
			for _, l := range n.m.links {
				if l != nil && !n.dead && l.detail.State() == torus.LinkBroken {
					w.t.Fatalf("after %s %s calls its link %s to %s %v", w.now.Sub(start), n.at, l.dir, l.dst, l.detail)
				}
			}
			sick := n.m.exceptions.at(watchdog.AddrRouter0).value | n.m.exceptions.at(watchdog.AddrRouter1).value |
				n.m.exceptions.at(watchdog.AddrEngine).value&^watchdog.EngineSensor // the mesh has none
			if sick != 0 {
				w.t.Fatalf("after %s the core of %s is %s: %s", w.now.Sub(start), n.at, n.m.word.Core, &n.m.exceptions)
			}
		}
	}
}

// settled checks that all nodes hold a torus, and that all its links work, and no others exist.
func (w *mesh) settled(dims grid.Dims) {
	w.t.Helper()
	for _, n := range w.nodes {
		if n.dead {
			continue
		}
		if n.m.Torus() != dims || n.m.cfg.MaxHops != routing.HopBound(dims) || n.m.barriers.machine == nil {
			w.t.Errorf("%s holds the torus %s: want %s", n.at, n.m.Torus(), dims)
		}
		for i, d := range grid.Directions() {
			to, linked := dims.Neighbour(n.at, d)
			l := n.m.links[i]
			switch {
			case (l != nil) != linked:
				w.t.Errorf("%s: link %s: have it %t: want %t", n.at, d, l != nil, linked)
			case linked && (l.dst != to || l.detail.State() != torus.LinkNormal):
				w.t.Errorf("%s: link %s to %s: %v: want one to %s", n.at, d, l.dst, l.detail, to)
			case !linked && n.m.word.Links[i] != watchdog.HealthNormal:
				w.t.Errorf("%s: link %s is gone, and %s", n.at, d, n.m.word.Links[i])
			}
		}
	}
}

// chat sends messages between random nodes, and returns a check that each arrived once.
func (w *mesh) chat(count int) (check func()) {
	type sent struct {
		from, to *meshNode
		text     string
	}
	var all []sent
	for i := range count {
		from, to := w.nodes[w.rnd.IntN(len(w.nodes))], w.nodes[w.rnd.IntN(len(w.nodes))]
		if from == to || from.dead || to.dead {
			continue
		}
		s := sent{from, to, fmt.Sprintf("%s at %s: %d", from.at, w.now.Sub(start), i)}
		all = append(all, s)
		from.down(w, to.at, s.text)
		w.watched(10 * time.Millisecond)
	}
	return func() {
		w.t.Helper()
		for _, s := range all {
			if got := s.to.opened[s.text]; got != 1 {
				w.t.Errorf("%q to %s came %d times", s.text, s.to.at, got)
			}
		}
	}
}

// meet makes all nodes arrive at a barrier of jobs, which must become complete at each.
func (w *mesh) meet(name string) {
	w.t.Helper()
	done, members := map[*meshNode]bool{}, 0
	for _, n := range w.nodes {
		if !n.dead {
			members++
		}
	}
	b := express.Barrier{Topic: express.TopicJob, Name: name, Generation: 1}
	for again := range 20 {
		rank := 0
		for _, n := range w.nodes {
			if n.dead {
				continue
			}
			out := n.m.Step(w.now, ArriveAt{express.Arrive{Barrier: b, Members: members, Ranks: []int{rank}}})
			for _, s := range out.Barriers {
				done[n] = done[n] || s.Complete
			}
			for _, f := range out.Frames {
				n.queue[f.Dir.Index()] = append(n.queue[f.Dir.Index()], f.Frame)
			}
			rank++
		}
		if w.watched(100 * time.Millisecond); len(done) == members && again > 0 && !containsFalse(done) {
			return
		}
	}
	w.t.Errorf("barrier %s is complete at %v of %d nodes", name, done, members)
}

func containsFalse(of map[*meshNode]bool) bool {
	for _, ok := range of {
		if !ok {
			return true
		}
	}
	return false
}

// drains checks that a fault management procedure empties the torus with all its nodes.
func (w *mesh) drains() {
	w.t.Helper()
	for _, n := range w.nodes {
		n.m.procedure.stats = ProcedureStats{}
	}
	for range 100 {
		for _, n := range w.nodes {
			if !n.dead && n.m.procedure.stats.Clear == 0 && !n.m.inhibited() {
				n.m.evidence("a test")
			}
		}
		w.watched(500 * time.Millisecond)
		clear := 0
		for _, n := range w.nodes {
			if n.dead || n.m.procedure.stats.Clear > 0 {
				clear++
			}
		}
		if clear == len(w.nodes) {
			return
		}
	}
	for _, n := range w.nodes {
		w.t.Errorf("%s: %+v", n.at, n.m.ProcedureStats())
	}
}

// A node joins a running torus at an empty place or beyond its sizes, and leaves again, while orders reach the other nodes
// one after the other. Messages keep arriving, no link is called broken, and all work together afterwards.
func TestNodeJoinsAndLeavesRunningTorus(t *testing.T) {
	for _, tc := range []struct {
		dims string
		at   grid.Coord
	}{
		{"2x2x2 without 1,1,1", grid.Coord{X: 1, Y: 1, Z: 1}},
		{"3x2x1 without 2,1,0", grid.Coord{X: 2, Y: 1}},
		{"2x2x1", grid.Coord{X: 2}},
		{"3x1x1", grid.Coord{X: 3}},
		{"2x2x1", grid.Coord{Z: 1}},
	} {
		t.Run(fmt.Sprintf("%s with %s", tc.dims, tc.at), func(t *testing.T) {
			w := newChangingMesh(t, tc.dims, 5)
			from := w.dims
			to, err := from.Filled(tc.at)
			if err != nil {
				t.Fatal(err)
			}
			w.settled(from)
			w.chat(20)()
			change := func(dims grid.Dims, number uint64, check func()) {
				for _, i := range w.rnd.Perm(len(w.nodes)) {
					n := w.nodes[i]
					if n.dead || !dims.Contains(n.at) || n.m.Peers().Number >= number {
						continue
					}
					o := w.orderFor(n.at, dims, number)
					if n.m.peers.cfg.Spare {
						o.Coord = n.at.String()
					}
					if out := n.told(w, o); !out.SavePeers {
						t.Fatalf("%s refuses %v: %v", n.at, o, out.Notes)
					} else {
						w.farewell(n, halfcore.NewTopology(n.m.self, n.at, map[bool]grid.Dims{true: from, false: to}[dims == to], nil), out.Farewell)
					}
					w.watched(time.Duration(w.rnd.IntN(1500)) * time.Millisecond)
				}
				w.watched(3 * time.Second)
				check()
				w.settled(dims)
			}
			w.join(tc.at, to, 7)
			joined := w.nodes[len(w.nodes)-1]
			change(to, 7, func() {})
			check := w.chat(40)
			w.watched(time.Second)
			check()
			w.meet("after the join")
			w.drains()
			w.noRuleBroken()

			for _, l := range joined.m.links { // its daemon announces the stop
				if l != nil {
					joined.m.sayFarewell(l)
				}
			}
			w.farewell(joined, joined.m.cfg.Topo, joined.m.out.Farewell)
			w.run(10 * time.Millisecond)
			joined.dead = true
			change(from, 9, func() {})
			check = w.chat(20)
			w.watched(time.Second)
			check()
			w.meet("after the leave")
			w.drains()
			w.noRuleBroken()
		})
	}
}

// A neighbour may hold a larger torus a moment earlier: a message to one of its new places is dropped, and breaks no rule.
func TestPlaceOfGrownTorusBreaksNoRule(t *testing.T) {
	w := newChangingMesh(t, "3x1x1", 5)
	m := w.nodes[0].m
	l := m.links[grid.XPlus.Index()]
	for i, at := range []grid.Coord{{X: 3}, {Y: maxGrowth}, {X: 3 + maxGrowth}} {
		lawful := m.lawful(w.now, l, &halfcore.Relay{Kind: halfcore.RelayDown, Made: 1, Limit: 3, Dst: at})
		if want := uint64(i / 2); lawful || l.protocol[halfcore.RuleOutside] != want {
			t.Errorf("a message to %s: lawful %t, rule broken %d times: want %d", at, lawful, l.protocol[halfcore.RuleOutside], want)
		}
	}
}

// The host half learns of a changed torus later than the DNP half: its message to a place that is empty since is dropped, and the
// mailbox is not called faulty. One to a place outside of the torus shows that the mailbox is.
func TestMessageToPlaceThatNodeLeftIsNoFaultOfMailbox(t *testing.T) {
	for at, faulty := range map[grid.Coord]bool{{X: 2, Y: 1}: false, {Z: 1}: true} {
		w := newChangingMesh(t, "3x2x1 without 2,1,0", 5)
		n := w.nodes[0]
		w.step(n, FromHost{Message: halfcore.Relay{Kind: halfcore.RelayDown, Limit: 3, Dst: at, Envelope: []byte("x")}})
		if bad := n.m.exceptions.at(watchdog.AddrRDMA).value&watchdog.RDMAMailboxBad != 0; bad != faulty {
			t.Errorf("a message to %s: mailbox called faulty %t", at, bad)
		}
	}
}

// A torus that grows beyond the members of a barrier in the middle of a procedure has no procedures. Messages that waited for the
// end go on, and an order that was being verified is refused.
func TestTorusTooLargeForProcedureReleasesMessages(t *testing.T) {
	w := newMesh(t, "3x3x3", 8, nil)
	w.run(500 * time.Millisecond)
	w.orderProcedure(w.node("0,0,0"), 1, nil)
	w.run(20 * time.Millisecond)
	n := w.node("1,1,1")
	w.step(n, FromHost{Message: halfcore.Relay{Kind: halfcore.RelayDown, Dst: w.node("0,0,0").at, MayWait: true, Envelope: []byte("x")}})
	if !n.m.inhibited() || n.m.ProcedureStats().Waiting != 1 {
		t.Fatalf("before: %+v", n.m.ProcedureStats())
	}
	envelope := []byte("order")
	n.m.procedure.pending = []broadcastOrder{{origin: w.node("0,0,0").at, Begin: procedure.Begin{Wave: 2, Run: 2, Envelope: envelope}}}

	before := n.m.cfg.Topo
	around := halfcore.NewTopology(n.m.self, n.at, grid.Dims{X: 21, Y: 20, Z: 20}, nil)
	n.m.leaveTorus(w.now, around)
	n.m.cfg.Topo = around
	n.m.enterTorus(before.Dims)
	n.m.tickProcedure(w.now)
	if len(n.m.procedure.drain.waiting) != 0 {
		t.Errorf("%d messages wait for ever", len(n.m.procedure.drain.waiting))
	}
	n.m.onProcedureOrder(w.now, servicenet.Opened{Raw: envelope, Msg: &lofamov1.Message{Body: &lofamov1.Message_ProcedureOrder{
		ProcedureOrder: &lofamov1.ProcedureOrder{Node: string(w.node("0,0,0").m.self), Number: &lofamov1.OrderNumber{Term: 1 << 30, Count: 2}},
	}}})
}

// Three events in one moment: an order moves a link that carries no broadcasts, the same order brings new links, and another link with a
// message in flight is found silent. The message takes another of the links that are there so far, after a test of that one and of the
// relay, or waits.
func TestLinkFallsSilentWhileOrderChangesOthers(t *testing.T) {
	for before, after := range map[string]string{
		"3x1x1": "4x2x1 without 1,1,0..3,1,0",
		"3x3x1": "4x3x2 without 3,1,0 3,2,0 1,0,1..3,2,1",
	} {
		w := newChangingMesh(t, before, 9)
		n := w.nodes[0]
		w.spoil = func(from *meshNode, f *torus.Frame) {
			if from == w.nodes[2] && f.Direction == grid.XPlus && f.Type == torus.TypeEureka {
				f.Payload[0] = 99 // of a later version
			}
		}
		w.run(20 * time.Second) // until the links are idle too
		if !n.m.links[grid.XMinus.Index()].detail.ExpressDeaf {
			t.Fatal("the link to be moved carries broadcasts")
		}
		l := n.m.links[grid.XPlus.Index()]
		n.down(w, w.nodes[1].at, "first")
		w.run(430 * time.Millisecond) // the relay's next test is due at the silence
		w.cut(n, grid.XPlus)
		n.down(w, w.nodes[1].at, "hello")
		silent := func() time.Time { return l.machine.Stats().LastHeard.Add(l.machine.Config().SilentAfter()) }
		for w.now.Add(time.Millisecond).Before(silent()) {
			w.run(time.Millisecond)
		}
		w.now = silent()
		n.told(w, w.orderFor(n.at, mustDims(t, after), 1))
		if l.detail.State() != torus.LinkBroken || n.m.HopStats().Held != 1 {
			t.Errorf("%s: link %v, %d messages held: want a broken one, and one", before, l.detail, n.m.HopStats().Held)
		}
	}
}

// The first node of a cluster starts without links. It tests the passing on of messages once others have joined.
func TestFirstNodeTestsRelayOnceOthersJoin(t *testing.T) {
	w := newChangingMesh(t, "1x1x1", 3)
	n, to := w.nodes[0], mustDims(t, "2x1x1")
	w.join(grid.Coord{X: 1}, to, 7)
	n.told(w, w.orderFor(n.at, to, 7))
	w.run(3 * time.Second)
	n.down(w, grid.Coord{X: 1}, "hello")
	w.run(2 * time.Second)
	relay := selftest.Module{Kind: selftest.Relay}
	for _, r := range n.m.SelfTest().Results(w.now) {
		if r.Module == relay && r.State == selftest.Passed {
			return
		}
	}
	t.Errorf("no test of the relay has passed: %+v", n.m.SelfTest().Results(w.now))
}

// A spare takes the place of a node's only neighbour. Until the links to the spare have had time to come up, a report without a route is
// nobody's fault.
func TestMissingRouteToReplacedNeighbourIsNoFault(t *testing.T) {
	w := newChangingMesh(t, "2x1x1", 3)
	n := w.nodes[0]
	w.run(DefaultLinkGrace)
	w.nodes[1].dead = true
	n.told(w, &lofamov1.PeerOrder{Number: 5, Peers: to(grid.XPlus, grid.XMinus)})
	sent := func() bool {
		w.step(n, Sealed{Envelope: []byte("report"), Seal: Seal{Reports: []fault.Report{{}}, Attempt: 2}})
		w.run(20 * time.Millisecond)
		return n.m.exceptions.at(watchdog.AddrRouter0).value&watchdog.RouterNoRoute != 0
	}
	if sent() {
		t.Errorf("at once: the core is %s: %s", n.m.word.Core, &n.m.exceptions)
	}
	w.run(relinkGrace + hopLife)
	if !sent() {
		t.Error("after the grace no exception is raised")
	}
}
