package integration

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/daemon"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// spareOf is the configuration of a spare, with ends of its own.
func (n *testNet) spareOf(id fault.NodeID) config.Agent {
	n.t.Helper()
	ca, err := pki.LoadCA(n.path("ca.pem"), n.path("ca.key"))
	if err != nil {
		n.t.Fatal(err)
	}
	cfg := n.config(at1, ca, agenttest.LinkPorts(n.t, n.dims))
	dir := n.path(string(id))
	cfg.Node, cfg.Coord, cfg.Spare, cfg.StateDir = id, "", true, filepath.Join(dir, "state")
	cfg.TLS.HostCert, cfg.TLS.HostKey, cfg.TLS.DNPCert, cfg.TLS.DNPKey = dir+"/host.pem", dir+"/host.key", dir+"/dnp.pem", dir+"/dnp.key"
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		n.t.Fatal(err)
	}
	for h, file := range map[fault.Half][2]string{fault.HalfHost: {cfg.TLS.HostCert, cfg.TLS.HostKey},
		fault.HalfDNP: {cfg.TLS.DNPCert, cfg.TLS.DNPKey}} {
		if err := ca.IssueTo(file[0], file[1], pki.NodeIdentity(testCluster, id, h), nil, nil); err != nil {
			n.t.Fatal(err)
		}
	}
	for name, l := range cfg.Links {
		cfg.Links[name] = config.LinkAddr{Local: l.Local}
	}
	if err := cfg.Validate(); err != nil {
		n.t.Fatal(err)
	}
	return cfg
}

// tell sends an order about peers, and waits until the node reports that it holds the order.
func (n *testNet) tell(cfg config.Agent, o *lofamov1.PeerOrder) *lofamov1.PeerStatus {
	n.t.Helper()
	o.Node = string(cfg.Node)
	return n.awaitPeersAsking(cfg, o.GetNumber(), func() {
		n.super.send(netip.MustParseAddrPort(cfg.Service.Listen), cfg.Node, fault.PathDirect,
			&lofamov1.Message{Body: &lofamov1.Message_PeerOrder{PeerOrder: o}})
	})
}

func (n *testNet) awaitPeers(cfg config.Agent, number uint64) *lofamov1.PeerStatus {
	n.t.Helper()
	return n.awaitPeersAsking(cfg, number, func() {})
}

// awaitPeersAsking calls ask every second until the node reports peers of that number.
func (n *testNet) awaitPeersAsking(cfg config.Agent, number uint64, ask func()) (st *lofamov1.PeerStatus) {
	n.t.Helper()
	n.super.awaitAsking("the peers of "+string(cfg.Node), func() bool {
		st = n.super.peers[string(cfg.Node)]
		return st != nil && st.GetNumber() == number && len(st.GetEnds()) > 0
	}, ask)
	return st
}

// toward is a peer order's entry: the end of a node in a direction.
func toward(d grid.Direction, cfg config.Agent) *lofamov1.Peer {
	return &lofamov1.Peer{Direction: uint32(d), Node: string(cfg.Node), Address: cfg.Links[d.Opposite().String()].Local}
}

// A spare waits for its place and takes it. Its neighbours switch to it while they run: links are NORMAL at all ends,
// without a changed configuration. They remember the new peer after a restart.
func TestSpareTakesOrderedPlace(t *testing.T) {
	n := newTestNet(t, grid.Dims{X: 3, Y: 1, Z: 1}, unhurried)
	at2 := grid.Coord{X: 2}
	n.startAll()
	n.awaitHealthy()
	for _, at := range []grid.Coord{at0, at2} { // reported without a request
		if st := n.awaitPeers(n.cfgs[at], 0); len(st.GetEnds()) != 2 || len(st.GetConfigured()) != 2 || st.GetCoord() != at.String() ||
			st.GetSpare() {
			t.Errorf("%v", st)
		}
	}

	cfg := n.spareOf("spare-0")
	if err := func() error { _, err := half.Prepare(cfg, fault.HalfDNP, slog.New(slog.DiscardHandler)); return err }(); err == nil {
		t.Error("a half of a spare without a place starts")
	}
	placed := make(chan error, 1)
	go func() {
		placed <- daemon.AwaitPlace(t.Context(), daemon.RunConfig{Agent: cfg}, slog.New(slog.NewTextHandler(agenttest.Writer{T: t}, nil)))
	}()
	waits := n.awaitPeers(cfg, 0)
	life := waits.GetLife()
	if life == 0 || !waits.GetSpare() || waits.GetCoord() != "" || len(waits.GetEnds()) != 2 || len(waits.GetConfigured()) != 0 {
		t.Errorf("%v", waits)
	}
	half := &lofamov1.PeerOrder{Number: 10, Coord: "1,0,0", Peers: []*lofamov1.Peer{toward(grid.XPlus, n.cfgs[at2])}}
	n.super.send(netip.MustParseAddrPort(cfg.Service.Listen), cfg.Node, fault.PathDirect,
		&lofamov1.Message{Body: &lofamov1.Message_PeerOrder{PeerOrder: withNode(half, cfg)}})

	n.halt(at1, fault.HalfDNP)
	n.halt(at1, fault.HalfHost)
	n.super.awaitState(host0, "n0-0-0", fault.Link(grid.XPlus), fault.Failed, fault.KindSilence)
	n.super.forget()
	n.tell(n.cfgs[at0], &lofamov1.PeerOrder{Number: 11, Peers: []*lofamov1.Peer{toward(grid.XPlus, cfg)}})
	n.tell(n.cfgs[at2], &lofamov1.PeerOrder{Number: 11, Peers: []*lofamov1.Peer{toward(grid.XMinus, cfg)}})
	place := &lofamov1.PeerOrder{Number: 12, Coord: "1,0,0", Life: life + 1,
		Peers: []*lofamov1.Peer{toward(grid.XPlus, n.cfgs[at2]), toward(grid.XMinus, n.cfgs[at0])}}
	n.super.send(netip.MustParseAddrPort(cfg.Service.Listen), cfg.Node, fault.PathDirect,
		&lofamov1.Message{Body: &lofamov1.Message_PeerOrder{PeerOrder: withNode(place, cfg)}})
	place.Number, place.Life = 11, life // if the previous order, for another life, counted, this one would not
	st := n.tell(cfg, place)
	if st.GetCoord() != "1,0,0" {
		t.Errorf("the spare says %v", st)
	}
	if err := <-placed; err != nil {
		t.Fatal(err)
	}

	n.cfgs[at1] = cfg // as in its file
	n.start(at1, fault.HalfHost)
	n.start(at1, fault.HalfDNP)
	spare := fault.Origin{Node: cfg.Node, Half: fault.HalfHost}
	host2 := fault.Origin{Node: "n2-0-0", Half: fault.HalfHost}
	for by, dirs := range map[fault.Origin][]grid.Direction{host0: {grid.XPlus}, host2: {grid.XMinus}, spare: {grid.XPlus, grid.XMinus}} {
		for _, dir := range dirs {
			n.super.awaitState(by, by.Node, fault.Link(dir), fault.Normal, fault.KindSelf)
		}
	}
	// The neighbour's host half reports on the replacement.
	n.super.awaitState(host0, cfg.Node, fault.ComponentHost, fault.Normal, fault.KindDescriptor)
	n.super.mu.Lock()
	for _, s := range n.super.heard {
		if dir, ok := s.obs.Component.LinkDirection(); ok && s.obs.State == fault.Failed &&
			(s.by == host0 && dir != grid.XPlus || s.by == host2 && dir != grid.XMinus) {
			t.Errorf("another link is called FAILED: %s", s)
		}
	}
	n.super.mu.Unlock()

	n.halt(at0, fault.HalfDNP)
	n.super.forget()
	n.super.set(func(f *fakeSupervisor) { f.peers = map[string]*lofamov1.PeerStatus{} })
	n.start(at0, fault.HalfDNP)
	if st := n.awaitPeers(n.cfgs[at0], 11); len(st.GetPeers()) != 1 || st.GetPeers()[0].GetNode() != "spare-0" {
		t.Errorf("after a restart: %v", st)
	}
	n.super.awaitState(host0, "n0-0-0", fault.ComponentDNP, fault.Normal, fault.KindWatchdog)
	kept, err := storage.PeerOrders().Load(cfg.StateDir)
	if want := (grid.Coord{X: 1}); err != nil || !kept.Placed || kept.Coord != want || kept.Number != 11 {
		t.Errorf("the spare keeps %v, %v", kept, err)
	}
}

func withNode(o *lofamov1.PeerOrder, cfg config.Agent) *lofamov1.PeerOrder {
	o.Node = string(cfg.Node)
	return o
}

// A spare joins a running torus beyond its sizes, and leaves again. The other nodes follow their orders while they run, one
// after the other: no link of theirs is called FAILED, and all links of the new torus work.
func TestNodeJoinsAndLeavesWhileAgentsRun(t *testing.T) {
	n := newTestNet(t, grid.Dims{X: 3, Y: 1, Z: 1}, unhurried)
	at2, at3 := grid.Coord{X: 2}, grid.Coord{X: 3}
	n.startAll()
	n.awaitHealthy()
	cfg := n.spareOf("joined")
	cfg.Dims, cfg.Preset, cfg.Periods = "", n.cfgs[at0].Preset, n.cfgs[at0].Periods // it is as unhurried as the others
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	grown, err := n.dims.Filled(at3)
	if err != nil {
		t.Fatal(err)
	}
	order := func(number uint64, place string, to ...*lofamov1.Peer) *lofamov1.PeerOrder {
		b, _ := grown.AppendBinary(nil)
		return &lofamov1.PeerOrder{Number: number, Coord: place, Torus: b, Peers: to}
	}
	placed := make(chan error, 1)
	go func() {
		placed <- daemon.AwaitPlace(t.Context(), daemon.RunConfig{Agent: cfg}, slog.New(slog.NewTextHandler(agenttest.Writer{T: t}, nil)))
	}()
	life := n.awaitPeers(cfg, 0).GetLife()
	place := order(11, at3.String(), toward(grid.XPlus, n.cfgs[at0]), toward(grid.XMinus, n.cfgs[at2]))
	place.Life = life
	n.super.forget()
	if st := n.tell(n.cfgs[at0], order(11, "", toward(grid.XMinus, cfg))); st.GetTorus() != grown.Short() {
		t.Errorf("the first neighbour says %v: want torus %s", st, grown.Short())
	}
	if st := n.tell(cfg, place); st.GetCoord() != at3.String() || st.GetTorus() != grown.Short() {
		t.Errorf("the spare says %v", st)
	}
	if err := <-placed; err != nil {
		t.Fatal(err)
	}
	n.cfgs[at3] = cfg
	n.start(at3, fault.HalfHost)
	n.start(at3, fault.HalfDNP)
	n.tell(n.cfgs[at2], order(11, "", toward(grid.XPlus, cfg)))
	n.tell(n.cfgs[at1], order(11, ""))
	host2 := fault.Origin{Node: "n2-0-0", Half: fault.HalfHost}
	joined := fault.Origin{Node: cfg.Node, Half: fault.HalfHost}
	for by, dirs := range map[fault.Origin][]grid.Direction{host0: {grid.XMinus}, host2: {grid.XPlus}, joined: {grid.XPlus, grid.XMinus}} {
		for _, dir := range dirs {
			n.super.awaitState(by, by.Node, fault.Link(dir), fault.Normal, fault.KindSelf)
		}
	}
	n.super.awaitState(host0, cfg.Node, fault.ComponentHost, fault.Normal, fault.KindDescriptor)
	n.super.awaitState(host2, cfg.Node, fault.ComponentHost, fault.Normal, fault.KindDescriptor)

	n.super.mu.Lock()
	n.noLinkFailed()
	n.super.heard = nil
	n.super.mu.Unlock()
	for _, at := range []grid.Coord{at2, at0, at1} { // back to their configurations
		if st := n.tell(n.cfgs[at], &lofamov1.PeerOrder{Number: 13}); st.GetTorus() != "" {
			t.Errorf("%s says %v", at, st)
		}
	}
	n.halt(at3, fault.HalfDNP)
	n.halt(at3, fault.HalfHost)
	n.super.awaitState(host0, "n0-0-0", fault.Link(grid.XMinus), fault.Normal, fault.KindSelf)
	n.super.awaitState(host2, "n2-0-0", fault.Link(grid.XPlus), fault.Normal, fault.KindSelf)
	n.super.awaitState(host0, "n2-0-0", fault.ComponentHost, fault.Normal, fault.KindDescriptor)
	n.super.mu.Lock()
	n.noLinkFailed()
	n.super.mu.Unlock()
}

// noLinkFailed checks that no half of the nodes from the beginning has called a link FAILED. The caller holds the mutex.
func (n *testNet) noLinkFailed() {
	n.t.Helper()
	for _, s := range n.super.heard {
		if _, ok := s.obs.Component.LinkDirection(); ok && s.obs.State == fault.Failed && s.by.Node != "joined" {
			n.t.Errorf("a link is called FAILED: %s", s)
		}
	}
}
