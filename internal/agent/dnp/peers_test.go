package dnp

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/udplink"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/peers"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// A link that the node gets while it runs is opened under the half's mutex: a disk that hangs would hang the half. A FIFO without a writer
// stands for a file on such a disk.
func TestLinkIsOpenedWithoutTheDisk(t *testing.T) {
	const dir = grid.XPlus
	cfg := agenttest.NodeConfig(t)
	d, _ := halfWithSession(t, cfg, dir)
	if err := d.links[dir.Index()].Close(); err != nil {
		t.Fatal(err)
	}
	d.links[dir.Index()], d.runLink = nil, func(*udplink.Link) {}
	if err := os.Remove(cfg.TLS.CA); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(cfg.TLS.CA, 0o600); err != nil {
		t.Fatal(err)
	}
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.openLink(dir)
	}()
	select {
	case <-opened:
	case <-time.After(time.Minute): // only a failure lasts so long
		t.Fatal("the half waits for a file under its mutex")
	}
	if l := d.links[dir.Index()]; l == nil {
		t.Error(d.unopened[dir.Index()])
	} else if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// A link that cannot communicate with its new peer, because the zone of the address is not known here, does not stay with the former one.
func TestLinkLeavesFormerPeerForUnknownZone(t *testing.T) {
	const dir = grid.XPlus
	cfg := agenttest.NodeConfig(t)
	for name, l := range cfg.Links {
		local, peer := netip.MustParseAddrPort(l.Local), netip.MustParseAddrPort(l.Peer)
		l.Local = netip.AddrPortFrom(netip.IPv6Loopback(), local.Port()).String()
		l.Peer = netip.AddrPortFrom(netip.IPv6Loopback(), peer.Port()).String()
		cfg.Links[name] = l
	}
	d, _ := halfWithSession(t, cfg, dir)
	d.words = make(newest[peers.State], 1)
	former := d.links[dir.Index()].PeerAddr()
	d.step(dnpcore.Opened{Opened: servicenet.Opened{Role: servicenet.RoleSupervisor, Name: "sup-0", Msg: &lofamov1.Message{
		Body: &lofamov1.Message_PeerOrder{PeerOrder: &lofamov1.PeerOrder{Node: string(cfg.Node), Number: 1, Life: uint64(d.core.Epoch()),
			Peers: []*lofamov1.Peer{{Direction: uint32(dir), Node: "spare-0", Address: "[fe80::1%no-such-zone]:7001"}}}},
	}}})
	if p := d.core.PeerAt(dir); p.Node != "spare-0" {
		t.Fatalf("the order is not in force: the peer is %s", p.Node)
	}
	if at := d.links[dir.Index()].PeerAddr(); at == former {
		t.Errorf("the link still speaks with %s, the address of the former peer", at)
	}
}
