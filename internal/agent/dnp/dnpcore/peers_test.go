package dnpcore

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/peers"
)

// spareAt is the address of the spare's ends in these tests.
const spareAt = "10.0.0.9:7001"

// told gives a half an order, and returns the output.
func (n *meshNode) told(w *mesh, o *lofamov1.PeerOrder) Output {
	o.Node = string(n.m.self)
	return n.m.Step(w.now, Opened{servicenet.Opened{
		Role: servicenet.RoleSupervisor, Name: "sup-0", Msg: &lofamov1.Message{Body: &lofamov1.Message_PeerOrder{PeerOrder: o}},
	}})
}

func to(dirs ...grid.Direction) (out []*lofamov1.Peer) {
	for _, d := range dirs {
		out = append(out, &lofamov1.Peer{Direction: uint32(d), Node: "spare-0", Address: spareAt})
	}
	return out
}

// status returns the PeerStatus about the half's order in an output, configuration the one about its configuration;
// nil: none.
func status(out *Output) (held *lofamov1.PeerStatus) {
	held, _ = statuses(out)
	return held
}

func statuses(out *Output) (held, configuration *lofamov1.PeerStatus) {
	for _, s := range out.Seal {
		switch {
		case s.Order.GetPeerStatus().GetConfiguration():
			configuration = s.Order.GetPeerStatus()
		case s.Order.GetPeerStatus() != nil:
			held = s.Order.GetPeerStatus()
		}
	}
	return held, configuration
}

func peered(c *Config) { c.Peers = &halfcore.PeersConfig{} }

// A peer order that the disk refuses is in force, and the half stores it again. It acknowledges the order once it is on disk: after a
// restart before that, only the leader still has the order.
func TestPeerOrderRefusedByDiskIsNotAcknowledged(t *testing.T) {
	w := newMesh(t, "4x1x1", 1, peered)
	n := w.node("0,0,0")
	order := func() *lofamov1.PeerOrder { return &lofamov1.PeerOrder{Number: 7, Peers: to(grid.XPlus)} }
	if out := n.told(w, order()); !out.SavePeers {
		t.Fatal("not stored")
	}
	for range 3 {
		out := n.m.Step(w.now, PeersKept{State: n.m.Peers(), Err: syscall.ENOSPC})
		if st := status(&out); st != nil || out.SavePeers || n.m.PeerAt(grid.XPlus).Node != "spare-0" {
			t.Errorf("refused by the disk: says %v, stored again at once %t, X+ leads to %q", st, out.SavePeers, n.m.PeerAt(grid.XPlus).Node)
		}
		out = n.told(w, order())
		if st := status(&out); st != nil || out.SavePeers {
			t.Errorf("the leader repeats the order: says %v, stored again at once %t", st, out.SavePeers)
		}
		w.now = w.now.Add(10 * time.Second)
		out = n.m.Step(w.now, Tick{})
		if st := status(&out); st != nil || !out.SavePeers {
			t.Errorf("10s later: says %v, stored again %t", st, out.SavePeers)
		}
	}
	out := n.m.Step(w.now, PeersKept{State: n.m.Peers()})
	if st := status(&out); st.GetNumber() != 7 {
		t.Errorf("on disk, and says %v", st)
	}
	w.now = w.now.Add(10 * time.Second)
	if out := n.m.Step(w.now, Tick{}); out.SavePeers {
		t.Error("on disk, and stored again")
	}
}

// On an order a link switches to another peer, cold. The other links are not touched. The half acknowledges once the
// order is on disk.
func TestLinkChangesToOrderedPeer(t *testing.T) {
	w := newMesh(t, "4x1x1", 1, peered)
	n := w.node("0,0,0")
	out := n.told(w, &lofamov1.PeerOrder{Number: 7, Peers: to(grid.XPlus)})
	if !out.SavePeers || !slices.Equal(out.Repeer, []grid.Direction{grid.XPlus}) || status(&out) != nil {
		t.Errorf("save %t, goes over at %v, says %v before it is kept", out.SavePeers, out.Repeer, status(&out))
	}
	around := n.m.cfg.Topo
	if want := []Extension{{grid.XPlus, around.PeerMark(grid.XPlus)}}; !slices.Equal(out.Peers, want) || around.Neighbours[0].ID != "spare-0" {
		t.Errorf("writes the marks %v about %v: want %v", out.Peers, around.NeighbourIDs(), want)
	}
	if p := n.m.PeerAt(grid.XPlus); p != (peers.Peer{Node: "spare-0", Address: netip.MustParseAddrPort(spareAt)}) {
		t.Errorf("peer %+v", p)
	}
	over, other := n.m.links[grid.XPlus.Index()], n.m.links[grid.XMinus.Index()]
	if over.session || over.detail.Rx != torus.LinkUnknown || over.peer != (torus.PeerStatus{}) ||
		other.detail.State() != torus.LinkNormal || !other.session {
		t.Errorf("X+ %v session %t, X- %v", over.detail, over.session, other.detail)
	}
	if s := n.m.LinkSnapshot(grid.XPlus); s.TxSession != 0 || s.Started {
		t.Errorf("goes on from %+v", s)
	}
	out = n.m.Step(w.now, PeersKept{State: n.m.Peers()})
	if st := status(&out); st.GetNumber() != 7 || st.GetCoord() != "0,0,0" || st.GetPeers()[0].GetAddress() != spareAt {
		t.Errorf("kept, and says %v", st)
	}

	for _, o := range []*lofamov1.PeerOrder{
		{Number: 6, Peers: to(grid.XMinus)}, {Number: 7}, {Number: 7, Peers: to(grid.XPlus)}, // older, another of its number, the same
		{Number: 8, Peers: to(grid.YPlus)}, {Number: 8, Coord: "1,0,0"}, // no such link; its place is in its configuration
	} {
		out := n.told(w, o)
		if out.SavePeers || len(out.Repeer) > 0 || n.m.Peers().Number != 7 {
			t.Errorf("%v was taken", o)
		}
		if st := status(&out); o.GetNumber() < 8 && st.GetNumber() != 7 {
			t.Errorf("%v is answered by %v", o, st)
		}
	}
	if out := n.told(w, &lofamov1.PeerOrder{Number: 9, Peers: to(grid.XPlus)}); !out.SavePeers || len(out.Repeer) > 0 {
		t.Errorf("the same word with a newer number: save %t, goes over at %v", out.SavePeers, out.Repeer)
	}

	// The new peer is another half, which is starting.
	w.begin(w.node("1,0,0"), Hops{})
	for _, end := range []struct {
		at  string
		dir grid.Direction
	}{{"0,0,0", grid.XPlus}, {"1,0,0", grid.XMinus}, {"1,0,0", grid.XPlus}, {"2,0,0", grid.XMinus}} {
		w.step(w.node(end.at), Session{Dir: end.dir, ID: 99})
	}
	w.run(time.Second)
	if over.detail.State() != torus.LinkNormal {
		t.Errorf("with the spare: %v", over.detail)
	}
	w.noRuleBroken()
}

// A running neighbour gets another node at the other end of a link: two nodes exchange their places. The torus stays, but the
// ends follow at different times. So this half says farewell, and the new link may be silent for longer than the grace of
// a start. That of a spare that replaces a silent neighbour may not.
func TestExchangedNeighbourGetsFarewellAndGrace(t *testing.T) {
	for _, runs := range []bool{true, false} {
		w := newMesh(t, "4x1x1", 1, peered)
		n := w.node("0,0,0")
		l := n.m.links[grid.XPlus.Index()]
		l.session = runs
		out := n.told(w, &lofamov1.PeerOrder{Number: 7, Peers: to(grid.XPlus)})
		for _, f := range out.Farewell {
			if f.Dir != grid.XPlus {
				t.Errorf("a farewell to %s", f.Dir)
			}
		}
		if len(out.Farewell) > 0 != runs {
			t.Errorf("neighbour runs %t: %d farewells", runs, len(out.Farewell))
		}
		w.begin(w.node("1,0,0"), Hops{})
		w.node("1,0,0").dead = true
		w.run(relinkGrace / 2)
		if failed := l.detail.State() == torus.LinkBroken; failed == runs {
			t.Errorf("neighbour ran %t: the new link is %v after half of the grace", runs, l.detail)
		}
	}
}

// A half that starts at an ordered place waits longer for the other ends, also if the order names no torus, as in an exchange.
func TestHalfAtOrderedPlaceHasGrace(t *testing.T) {
	c := Config{Peers: &halfcore.PeersConfig{Spare: true, State: peers.State{Number: 1, Placed: true}}}.withDefaults()
	if c.LinkGrace != relinkGrace {
		t.Errorf("grace %s: want %s", c.LinkGrace, relinkGrace)
	}
}

// A half without an order accepts one that names its boot epoch, or names none, as those of supervisors of an earlier
// version. A copy of an order to an earlier incarnation switches no link. The half answers it all the same, so that the
// next order names the epoch. A half with an order decides by the number.
func TestPeerOrderOfEarlierLifeIsRefused(t *testing.T) {
	w := newMesh(t, "4x1x1", 1, peered)
	n := w.node("0,0,0")
	own := uint64(n.m.Epoch())
	for _, tc := range []struct {
		what  string
		order *lofamov1.PeerOrder
		taken bool
	}{
		{"of an earlier life", &lofamov1.PeerOrder{Number: 90, Life: own + 1}, false},
		{"of no life that was heard of", &lofamov1.PeerOrder{Number: 91, LifeUnknown: true}, false},
		{"of this life", &lofamov1.PeerOrder{Number: 3, Life: own}, true},
		{"of another one, to who holds a word", &lofamov1.PeerOrder{Number: 4, Life: own + 1}, true},
		{"of none that was heard of, likewise", &lofamov1.PeerOrder{Number: 5, LifeUnknown: true}, true},
	} {
		tc.order.Peers = to(grid.XPlus)
		before := n.m.Peers().Number
		out := n.told(w, tc.order)
		if taken := n.m.Peers().Number == tc.order.GetNumber(); taken != tc.taken || out.SavePeers != tc.taken {
			t.Errorf("an order %s: taken %t, kept %t: want %t", tc.what, taken, out.SavePeers, tc.taken)
		}
		if tc.taken {
			out = n.m.Step(w.now, PeersKept{State: n.m.Peers()})
		} else if len(out.Repeer) > 0 || n.m.Peers().Number != before {
			t.Errorf("an order %s: goes over at %v, holds %v", tc.what, out.Repeer, n.m.Peers())
		}
		if status(&out) == nil {
			t.Errorf("an order %s is not answered", tc.what)
		}
	}
	fresh := newMesh(t, "4x1x1", 2, peered)
	if n := fresh.node("0,0,0"); !n.told(fresh, &lofamov1.PeerOrder{Number: 2, Peers: to(grid.XPlus)}).SavePeers {
		t.Error("an order of a supervisor of an earlier version was not taken")
	}
}

// Messages that wait at a link for a replaced node take another route, once. Messages for the place itself wait for its
// next node.
func TestMessageLeavesQueueOfReplacedPeer(t *testing.T) {
	w := newMesh(t, "4x1x1", 2, peered)
	n, far := w.node("0,0,0"), w.node("2,0,0")
	n.cut[grid.XPlus.Index()] = true // frames there are lost, but nothing shows it yet
	for i := range 20 {
		n.down(w, far.at, fmt.Sprint("m", i))
	}
	w.run(5 * time.Millisecond)
	l := n.m.links[grid.XPlus.Index()]
	if l.hop.InFlight() == 0 {
		t.Fatal("nothing waits: the test tests nothing")
	}
	n.told(w, &lofamov1.PeerOrder{Number: 3, Peers: to(grid.XPlus)})
	if l.hop.InFlight() != 0 {
		t.Errorf("%d messages wait for nobody", l.hop.InFlight())
	}
	w.run(hopRetry + 50*time.Millisecond)
	for i := range 20 {
		if got := far.opened[fmt.Sprint("m", i)]; got != 1 {
			t.Errorf("message %d came %d times", i, got)
		}
	}
}

// A spare's half takes its place again when ordered so, and reports when the place is another's. Its unrequested
// statuses go by the host half alone.
func TestSpareReportsLostPlace(t *testing.T) {
	at := netip.MustParseAddrPort("10.0.0.3:7001")
	w := newMesh(t, "4x1x1", 3, func(c *Config) {
		k := halfcore.PeersConfig{Spare: true, State: peers.State{Number: 5, Placed: true, Coord: grid.Coord{}}}
		k.Ends[grid.XPlus.Index()].Address = at
		c.Peers = &k
	})
	n := w.node("0,0,0")
	out := n.told(w, &lofamov1.PeerOrder{Number: 4})
	held, configuration := statuses(&out)
	if held.GetCoord() != "0,0,0" || !held.GetSpare() || held.GetNumber() != 5 || len(configuration.GetEnds()) != 1 ||
		configuration.GetEnds()[0].GetAddress() != at.String() {
		t.Errorf("%v, %v", held, configuration)
	}
	if out := n.told(w, &lofamov1.PeerOrder{Number: 6, Coord: "7,0,0"}); out.SavePeers {
		t.Error("a place outside the torus was taken")
	}
	if out := n.told(w, &lofamov1.PeerOrder{Number: 7, Peers: to(grid.XPlus)}); !out.SavePeers || len(out.Repeer) > 0 {
		t.Errorf("its place was taken: save %t, links that go over %v", out.SavePeers, out.Repeer)
	}
}

// An order takes a spare's place away, and the next one gives the same place back before the daemon has ended the half. Its links continue:
// the neighbours may already have new sessions with this half. The half requests sessions too, because a neighbour may have begun its link
// again.
func TestSpareThatGetsItsPlaceBackKeepsSessions(t *testing.T) {
	w := newMesh(t, "4x1x1", 3, nil)
	n := w.node("0,0,0")
	peer := func(d grid.Direction, id string) *lofamov1.Peer {
		return &lofamov1.Peer{Direction: uint32(d), Node: id, Address: spareAt}
	}
	place := &lofamov1.PeerOrder{Number: 5, Coord: "0,0,0", Peers: []*lofamov1.Peer{peer(grid.XPlus, "1,0,0"), peer(grid.XMinus, "3,0,0")}}
	held, err := peers.FromOrder(place)
	if err != nil {
		t.Fatal(err)
	}
	k := halfcore.PeersConfig{Spare: true, State: held}
	for _, d := range []grid.Direction{grid.XPlus, grid.XMinus} {
		k.Ends[d.Index()].Address = netip.MustParseAddrPort("10.0.0.3:7001")
	}
	n.m.peers = newPeerWord(Config{Peers: &k}, w.now)

	if out := n.told(w, &lofamov1.PeerOrder{Number: 6}); !out.SavePeers || n.m.PeerAt(grid.XPlus).Node != "1,0,0" {
		t.Errorf("without a place: save %t, link X+ is with %q", out.SavePeers, n.m.PeerAt(grid.XPlus).Node)
	}
	place.Number = 7
	out := n.told(w, place)
	if !out.SavePeers || len(out.Repeer)+len(out.Farewell) > 0 {
		t.Errorf("with its place again: save %t, links that begin again %v, farewells %d", out.SavePeers, out.Repeer, len(out.Farewell))
	}
	if want := []grid.Direction{grid.XPlus, grid.XMinus}; !slices.Equal(out.Redial, want) {
		t.Errorf("requests sessions at %v: want %v", out.Redial, want)
	}
	for _, d := range []grid.Direction{grid.XPlus, grid.XMinus} {
		if l := n.m.links[d.Index()]; !l.session || l.detail.State() != torus.LinkNormal {
			t.Errorf("link %s: session %t, %v", d, l.session, l.detail)
		}
	}

	n.told(w, &lofamov1.PeerOrder{Number: 8})
	place.Number, place.Peers[0].Node = 9, "spare-0"
	if out := n.told(w, place); !slices.Equal(out.Repeer, []grid.Direction{grid.XPlus}) || n.m.PeerAt(grid.XPlus).Node != "spare-0" {
		t.Errorf("with another peer at X+: links that begin again %v, link X+ is with %q", out.Repeer, n.m.PeerAt(grid.XPlus).Node)
	}
}
