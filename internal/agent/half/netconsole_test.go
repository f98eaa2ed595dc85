package half

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/udpguard"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// TestNetconsoleReceivesPanicOverUDP sends a panic between two real sockets, after garbage from a stranger.
func TestNetconsoleReceivesPanicOverUDP(t *testing.T) {
	listen := func(ip string) *net.UDPConn {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(ip+":0")))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	server, kernel, stranger := listen("127.0.0.1"), listen("127.0.0.2"), listen("127.0.0.3")
	core := halfcore.NewNetconsole(nil, 1)
	found, left, ended := make(chan []*lofamov1.LastWords, 1), make(chan halfcore.NetconsoleCounts, 10), make(chan error, 1)
	senders := NewNetconsoleSenders()
	senders.Set(map[netip.Addr]fault.NodeID{netip.MustParseAddr("127.0.0.2"): "n1-0-0"})
	go func() {
		ended <- readNetconsole(server, core, senders, nil, func(w []*lofamov1.LastWords) { found <- w },
			func(c halfcore.NetconsoleCounts) { left <- c })
	}()
	send := func(from *net.UDPConn, text string) {
		if _, err := from.WriteTo([]byte(text), server.LocalAddr()); err != nil {
			t.Fatal(err)
		}
	}
	const panicked = "Kernel panic - not syncing: Fatal exception"
	for range 20 { // few enough for the socket's buffer if the reader is not scheduled for a while
		send(stranger, strings.Repeat("\x00", 5000))
	}
	send(kernel, "[ 1.0] "+panicked+"\n[ 1.1] Call Trace:\n")
	select {
	case w := <-found:
		if len(w) != 1 || w[0].GetNode() != "n1-0-0" || w[0].GetFrom() != "127.0.0.2" || w[0].GetLine() != panicked ||
			len(w[0].GetContext()) != 1 {
			t.Errorf("%v", w)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("no last words")
	}
	senders.Set(map[netip.Addr]fault.NodeID{netip.MustParseAddr("127.0.0.4"): "spare-0"})
	send(listen("127.0.0.4"), "[ 1.0] "+panicked+"\n")
	select {
	case w := <-found:
		if len(w) != 1 || w[0].GetNode() != "spare-0" {
			t.Errorf("after a change of the neighbours: %v", w)
		}
	case <-time.After(10 * time.Second):
		t.Error("no last words of a new neighbour")
	}
	_ = server.Close()
	<-ended
	if len(left) != 1 {
		t.Errorf("%d warnings about strangers: want 1", len(left))
	}
}

// TestNetconsoleFloodMakesReaderRest floods the receiver from a known address, and from a stranger's. The reader rests, the kernel drops
// the stranger's datagrams, and the panic of another machine arrives.
func TestNetconsoleFloodMakesReaderRest(t *testing.T) {
	socket := func(ip string) *net.UDPConn {
		c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(ip+":0")))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	server, kernel, known, stranger := socket("127.0.0.1"), socket("127.0.0.2"), socket("127.0.0.3"), socket("127.0.0.4")
	senders, rests := NewNetconsoleSenders(), atomic.Int64{}
	senders.Set(map[netip.Addr]fault.NodeID{netip.MustParseAddr("127.0.0.2"): "n1-0-0", netip.MustParseAddr("127.0.0.3"): "n2-0-0"})
	pace := udpguard.NewPace(netconsoleRate, netconsoleBurst, udpguard.FloodRest)
	pace.Sleep = func(d time.Duration) {
		rests.Add(1)
		time.Sleep(d)
	}
	found, ended := make(chan []*lofamov1.LastWords, 10), make(chan error, 1)
	go func() {
		ended <- readNetconsole(server, halfcore.NewNetconsole(nil, 1), senders, pace, func(w []*lofamov1.LastWords) { found <- w },
			func(halfcore.NetconsoleCounts) {})
	}()
	flood := func(from *net.UDPConn) {
		for range 100 {
			_, _ = from.WriteTo([]byte(strings.Repeat("a\n", 500)), server.LocalAddr())
		}
	}
	agenttest.Await(t, "the kernel drops the stranger's datagrams", func() bool {
		flood(stranger)
		return senders.guard.Flooded()
	})
	agenttest.Await(t, "the reader rests", func() bool {
		flood(known)
		return rests.Load() > 0
	})
	agenttest.Await(t, "the panic is received", func() bool { // some datagrams found no room in the socket's buffer
		flood(stranger)
		_, _ = kernel.WriteTo([]byte("Kernel panic - not syncing: Fatal exception\n"), server.LocalAddr())
		return len(found) > 0
	})
	if w := <-found; len(w) != 1 || w[0].GetNode() != "n1-0-0" {
		t.Errorf("%v", w)
	}
	_ = server.Close()
	<-ended
}

// TestNetconsoleListensOnceItsAddressIsFree: the address may come after the half, or an earlier process may still have it.
func TestNetconsoleListensOnceItsAddressIsFree(t *testing.T) {
	first, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	c := Common{Half: fault.HalfHost, Log: slog.New(slog.DiscardHandler), Senders: NewNetconsoleSenders()}
	c.Config.Netconsole.Listen = first.LocalAddr().String()
	c.Senders.Set(map[netip.Addr]fault.NodeID{netip.MustParseAddr("127.0.0.1"): "n1-0-0"})
	ctx, cancel := context.WithCancel(t.Context())
	found, ended := make(chan []*lofamov1.LastWords, 100), make(chan struct{})
	go func() {
		defer close(ended)
		c.ReceiveNetconsole(ctx, func(w []*lofamov1.LastWords) { found <- w })
	}()
	defer func() {
		cancel()
		<-ended
	}()
	time.Sleep(50 * time.Millisecond) // it tries
	kernel, err := net.DialUDP("udp", nil, first.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = kernel.Close() }()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	agenttest.Await(t, "the panic is received", func() bool {
		_, _ = kernel.Write([]byte("Kernel panic - not syncing: Fatal exception\n")) // refused until it listens
		return len(found) > 0
	})
}

// TestDNPHalfRefusesListenerWithoutEffect: a configuration with the keys of both halves may be that of either. Only the DNP half refuses
// the listener that would not receive its host's lines.
func TestDNPHalfRefusesListenerWithoutEffect(t *testing.T) {
	cfg := config.Agent{Window: config.WindowConfig{Listen: "192.0.2.2:7960", Peer: "192.0.2.1:7960"},
		TLS:        config.AgentTLS{HostCert: "host.pem", HostKey: "host.key", DNPCert: "dnp.pem", DNPKey: "dnp.key"},
		Netconsole: config.NetconsoleConfig{Listen: "10.7.0.1:6666"}}
	if err := CheckHalf(cfg, fault.HalfHost); err != nil {
		t.Errorf("host half: %v", err)
	}
	const want = "netconsole.listen: given 10.7.0.1:6666: want the IP of window.listen (192.0.2.2)"
	if err := CheckHalf(cfg, fault.HalfDNP); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("DNP half: %v: want %q", err, want)
	}
	cfg.Netconsole.Listen = "192.0.2.2:6666"
	if err := CheckHalf(cfg, fault.HalfDNP); err != nil {
		t.Errorf("DNP half with a good listener: %v", err)
	}
}
