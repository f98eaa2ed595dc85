package orders

import (
	"context"
	"log/slog"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// peerNodes are nodes that answer each order for peers, and a store that keeps their statuses. x is in the place of n1.
type peerNodes struct {
	t       *testing.T
	topo    *topology.Topology
	k       *peers
	kind    kind
	stored  peerRecords
	answers map[fault.NodeID]func() // nil: no answer
	asked   int
	lives   map[fault.NodeID]uint64 // of the last orders
}

func newPeerNodes(t *testing.T) *peerNodes {
	t.Helper()
	nodes, records := peerWorld()
	n := &peerNodes{t: t, topo: topology.New(peerDims, replaced(nodes), nil, 7), stored: records, answers: make(map[fault.NodeID]func()),
		lives: make(map[fault.NodeID]uint64)}
	n.begin()
	return n
}

func (n *peerNodes) Write(_ context.Context, w store.Write) (uint64, error) {
	for _, kv := range w.Puts {
		if r := n.k.records[fault.NodeID(kv.Key[len(store.PeersKey("")):])]; r != nil {
			n.stored[fault.NodeID(r.GetNode())] = r
		}
	}
	return 8, nil
}

func (n *peerNodes) Peers(context.Context) (map[fault.NodeID]*lofamov1.PeerStatus, error) {
	return maps.Clone(n.stored), nil
}

func (n *peerNodes) Order(id fault.NodeID, _ string, body func(string) *lofamov1.Message, _ []fault.NodeID) {
	n.asked++
	n.lives[id] = body("").GetPeerOrder().GetLife()
	if answer := n.answers[id]; answer != nil {
		answer()
	}
}

func (*peerNodes) Direct(fault.NodeID) bool { return true }

// begin begins a term.
func (n *peerNodes) begin() {
	n.t.Helper()
	k, kind := newPeers(&Config{Names: view.NamesOf(n.topo), Store: n, Sender: n, Logger: slog.New(slog.DiscardHandler)})
	n.k, n.kind = k, kind
	if err := kind.begin(n.t.Context(), 1); err != nil {
		n.t.Fatal(err)
	}
	n.run(time.Second)
}

// say makes both parts of a status of n0 arrive: in a boot epoch, with the ends of a host.
func (n *peerNodes) say(epoch uint64, host int) {
	for _, st := range []*lofamov1.PeerStatus{
		{Node: "n0", Epoch: epoch, Coord: "0,0,0"},
		{Node: "n0", Epoch: epoch, Coord: "0,0,0", Configuration: true, Ends: ends(host), Configured: n.stored["n0"].GetConfigured()},
	} {
		n.kind.heard(time.Now(), &lofamov1.Message{Body: &lofamov1.Message_PeerStatus{PeerStatus: st}})
	}
}

// run lets time pass.
func (n *peerNodes) run(d time.Duration) {
	n.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(checkEvery) {
		if _, err := n.kind.work(n.t.Context()); err != nil {
			n.t.Fatal(err)
		}
	}
}

// reached checks the host at which x is ordered to reach n0.
func (n *peerNodes) reached(what string, host int) {
	n.t.Helper()
	if got := n.k.plan.Words["x"].Peers[grid.XMinus.Index()].Address; got != end(host, grid.XPlus) {
		n.t.Errorf("%s: x is ordered to reach n0 at %s: want %s", what, got, end(host, grid.XPlus))
	}
}

// TestLatePeerStatusChangesNothing: n0 restarts with other addresses. Then copies of its earlier statuses arrive, also at the next leader.
func TestLatePeerStatusChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newPeerNodes(t)
		n.answers["n0"] = func() { n.say(5, 50) }
		n.say(4, 0)
		n.run(time.Second)
		n.reached("at first", 0)
		n.say(5, 50)
		n.run(time.Second)
		n.reached("in a new boot epoch", 50)
		for range 30 {
			n.say(4, 0)
			n.reached("after a copy", 50)
			n.run(time.Second)
			n.reached("after a copy", 50)
		}
		n.begin()
		n.say(4, 0)
		n.run(time.Second)
		n.reached("after a copy in the next term", 50)
		n.kind.heard(time.Now(), &lofamov1.Message{Body: &lofamov1.Message_PeerStatus{PeerStatus: &lofamov1.PeerStatus{
			Node: "n0", Spare: true, Life: 77,
		}}})
		n.say(4, 0)
		n.run(time.Second)
		n.reached("after copies of a time as a waiting spare, and of an earlier epoch", 50)
	})
}

// TestRecordOfEarlierVersionGetsEpoch: a leader of an earlier version has stored n0's status without its epoch. The next leader hears the
// same status and stores its epoch. In the term after that, a copy of an earlier status changes nothing.
func TestRecordOfEarlierVersionGetsEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newPeerNodes(t)
		n.say(5, 50)
		n.run(time.Second)
		n.stored["n0"] = proto.CloneOf(n.stored["n0"])
		n.stored["n0"].Epoch = 0
		n.begin()
		n.say(5, 50)
		n.run(time.Second)
		n.begin()
		n.say(4, 0)
		n.run(time.Second)
		n.reached("after a copy", 50)
	})
}

// TestLateStatusOfSilentNodeIsForgotten: n0 answers no question. One late copy changes nothing, and the leader stops asking.
func TestLateStatusOfSilentNodeIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newPeerNodes(t)
		n.say(5, 50)
		n.run(time.Minute)
		n.say(4, 0)
		n.asked = 0
		n.run(time.Minute)
		n.reached("after a copy", 50)
		if n.asked < backAsks || len(n.k.epochs.doubts) != 0 {
			t.Errorf("%d orders, doubts %v: want %d questions, and then no doubt", n.asked, n.k.epochs.doubts, backAsks)
		}
		n.say(4, 0)
		n.run(time.Second)
		n.reached("after another copy", 50)
	})
}

// TestNodeThatLostItsEpochIsHeard: n0 has lost its state directory, and has drawn a lower boot epoch. Its new addresses count after some
// seconds, and orders name its new life.
func TestNodeThatLostItsEpochIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newPeerNodes(t)
		n.say(40_000, 0)
		n.run(time.Minute)
		n.answers["n0"] = func() { n.say(200, 60) }
		n.say(200, 60)
		n.run(30 * time.Second)
		n.reached("after the loss", 60)
		delete(n.answers, "n0")
		n.begin()
		n.reached("in the next term", 60)
		n.say(200, 60)
		n.run(time.Second)
		if e := n.k.records["n0"].GetEpoch(); e != 200 {
			t.Errorf("newest epoch %d: want 200", e)
		}
	})
}

// TestOrdersNameEpochAfterItsLoss: n0 needs an order, and goes back to a lower boot epoch within a term.
func TestOrdersNameEpochAfterItsLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newPeerNodes(t)
		n.say(40_000, 0)
		n.say(40_000, 0)
		n.answers["n0"] = func() { n.say(200, 0) }
		n.run(time.Minute)
		if n.lives["n0"] != 200 {
			t.Errorf("the last order names life %d: want 200", n.lives["n0"])
		}
	})
}

// TestHalfMovedBackFromBrokenEpochIsHeard: supervisors move a half back whose boot epoch had a flipped bit.
func TestHalfMovedBackFromBrokenEpochIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newPeerNodes(t)
		n.say(1<<40|4, 0)
		n.say(5, 50)
		n.run(time.Second)
		n.reached("after the move", 50)
	})
}
