package dnp

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"strings"
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
	"github.com/lofamo/lofamo/internal/testing/netnstest"
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
	d := halfWithIPv6Links(t, dir)
	former := d.links[dir.Index()].PeerAddr()
	d.step(peerOrder(d, dir, "[fe80::1%no-such-zone]:7001"))
	if p := d.core.PeerAt(dir); p.Node != "spare-0" {
		t.Fatalf("the order is not in force: the peer is %s", p.Node)
	}
	if at := d.links[dir.Index()].PeerAddr(); at == former {
		t.Errorf("the link still speaks with %s, the address of the former peer", at)
	}
}

// Such a link goes over to its new peer once the zone's interface exists, without another order. Until then it logs the reason once.
func TestLinkReachesNewPeerOnceZoneExists(t *testing.T) {
	if !netnstest.Inside(t) {
		return
	}
	const dir, address = grid.XPlus, "[fe80::1%late0]:7001"
	d, failures := halfWithIPv6Links(t, dir), 0
	d.Log = slog.New(onLine(func(line string) {
		if strings.Contains(line, "cannot communicate with its peer") {
			failures++
		}
	}))
	d.step(peerOrder(d, dir, address))
	d.aSecond()
	d.aSecond()
	if failures != 1 {
		t.Errorf("the failure is logged %d times, want once", failures)
	}
	netnstest.IP(t, "link add late0 type veth peer name far0")
	d.aSecond()
	if at := d.links[dir.Index()].PeerAddr(); at != netip.MustParseAddrPort(address) {
		t.Errorf("the link speaks with %s, want %s", at, address)
	}
}

// A half starts although its machine lacks the address of a link, and opens the link once the address exists.
func TestHalfStartsWithoutLinkOfMissingAddress(t *testing.T) {
	if !netnstest.Inside(t) {
		return
	}
	const dir, address = grid.XPlus, "192.0.2.1"
	cfg := agenttest.NodeConfig(t)
	l := cfg.Links[dir.String()]
	l.Local = address + ":7001"
	cfg.Links[dir.String()] = l
	d, _ := halfWithSession(t, cfg, dir)
	d.runLink = func(*udplink.Link) {}
	if d.links[dir.Opposite().Index()] == nil {
		t.Error("the other link is not open")
	}
	d.Log = slog.New(onLine(func(line string) { t.Errorf("logged again: %s", line) }))
	d.aSecond()
	if d.links[dir.Index()] != nil {
		t.Fatal("the link is open without its address")
	}
	netnstest.IP(t, "address add "+address+"/32 dev lo")
	d.aSecond()
	opened := d.links[dir.Index()]
	if opened == nil {
		t.Fatal(d.unopened[dir.Index()])
	}
	if err := opened.Close(); err != nil {
		t.Error(err)
	}
}

// aSecond does a half's work of each second at its links.
func (d *dnpHalf) aSecond() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.openMissing()
}

// halfWithIPv6Links returns a half with a session at one link. All its links have IPv6 addresses.
func halfWithIPv6Links(t *testing.T, dir grid.Direction) *dnpHalf {
	t.Helper()
	cfg := agenttest.NodeConfig(t)
	for name, l := range cfg.Links {
		local, peer := netip.MustParseAddrPort(l.Local), netip.MustParseAddrPort(l.Peer)
		l.Local = netip.AddrPortFrom(netip.IPv6Loopback(), local.Port()).String()
		l.Peer = netip.AddrPortFrom(netip.IPv6Loopback(), peer.Port()).String()
		cfg.Links[name] = l
	}
	d, _ := halfWithSession(t, cfg, dir)
	d.words = make(newest[peers.State], 1)
	return d
}

// onLine is a log handler that calls itself with each line.
type onLine func(line string)

func (onLine) Enabled(context.Context, slog.Level) bool        { return true }
func (f onLine) WithAttrs([]slog.Attr) slog.Handler            { return f }
func (f onLine) WithGroup(string) slog.Handler                 { return f }
func (f onLine) Handle(_ context.Context, r slog.Record) error { f(r.Message); return nil }

// A half that is killed just after its farewell to a former peer must not use the numbers of these frames again: the copy has no session
// with that peer any more.
func TestFarewellNumbersAreNotUsedAgain(t *testing.T) {
	const dir = grid.XPlus
	cfg := agenttest.NodeConfig(t)
	d, _ := halfWithSession(t, cfg, dir)
	d.words = make(newest[peers.State], 1)
	before, _, _ := d.Copy.File.Link(dir)
	packets, seen := d.links[dir.Index()].Stats().TxPackets, false
	d.Log = slog.New(onLine(func(line string) {
		if line != "link changes to another peer" {
			return
		}
		seen = true
		sent := d.links[dir.Index()].Stats().TxPackets - packets
		if at, session, _ := d.Copy.File.Link(dir); sent == 0 || session.ID != 0 && at.TxSeq < before.TxSeq+sent {
			t.Errorf("%d frames are sent, and the copy has session %d at number %d after %d", sent, session.ID, at.TxSeq, before.TxSeq)
		}
	}))
	d.step(peerOrder(d, dir, "127.0.0.1:7001"))
	if !seen {
		t.Error("the link has not changed to another peer")
	}
}

// peerOrder returns an order by which a link leads to a spare.
func peerOrder(d *dnpHalf, dir grid.Direction, address string) dnpcore.Event {
	return dnpcore.Opened{Opened: servicenet.Opened{Role: servicenet.RoleSupervisor, Name: "sup-0", Msg: &lofamov1.Message{
		Body: &lofamov1.Message_PeerOrder{PeerOrder: &lofamov1.PeerOrder{Node: string(d.Config.Node), Number: 1, Life: uint64(d.core.Epoch()),
			Peers: []*lofamov1.Peer{{Direction: uint32(dir), Node: "spare-0", Address: address}}}},
	}}}
}
