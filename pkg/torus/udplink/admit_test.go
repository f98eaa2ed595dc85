package udplink

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/attempts"
	"github.com/lofamo/lofamo/internal/testing/requirements"
	"github.com/lofamo/lofamo/pkg/torus"
)

// from dials from an address, by any port.
func from(addr netip.Addr) *net.Dialer {
	return &net.Dialer{Timeout: bound, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0))}
}

// storm opens 200 connections in a second from the address of a link's peer until the test ends, and calls use with
// each.
func storm(t *testing.T, peer netip.Addr, to netip.AddrPort, use func(net.Conn)) {
	t.Helper()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	t.Cleanup(func() {
		close(stop)
		wg.Wait()
	})
	tick := time.NewTicker(5 * time.Millisecond)
	wg.Go(func() {
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			conn, err := from(peer).Dial("tcp", to.String())
			if err != nil {
				continue
			}
			wg.Go(func() {
				defer func() { _ = conn.Close() }()
				use(conn)
				_ = conn.SetReadDeadline(time.Now().Add(time.Second))
				_, _ = conn.Read(make([]byte, 1)) // held until the link closes it, or a second has passed
			})
		}
	})
}

// TestColdLinkComesUpAmongConnections starts a link while a local user at the peer's address makes 200 connections in
// a second, which stay silent or begin a handshake each. On a busy machine one of some starts must be in time.
func TestColdLinkComesUpAmongConnections(t *testing.T) {
	for _, tc := range []struct {
		name string
		use  func(net.Conn)
	}{
		{"silent", func(net.Conn) {}},
		{"with the beginning of a ClientHello", func(c net.Conn) { _, _ = c.Write([]byte{recordHandshake, 3, 1, 2, 0, clientHello, 0}) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			const most = 2 * time.Second
			attempts.One(t, 10, "a cold link is up within "+most.String(), func() bool {
				var took time.Duration
				t.Run("start", func(t *testing.T) { took = upAmong(t, tc.use) })
				return took <= most
			})
		})
	}
}

// upAmong returns how long a cold link takes to come up among connections.
func upAmong(t *testing.T, use func(net.Conn)) time.Duration {
	t.Helper()
	a, b := pairOf(t)
	b.start()
	storm(t, a.cfg.Local.Addr(), b.link.LocalAddr(), use)
	b.until("busy with connections", func(torus.LinkOutput, torus.LinkStats) bool {
		s := b.link.Stats()
		return s.Others > 40 && s.Refused > 20
	})
	begin := time.Now()
	a.start()
	a.untilNormal()
	b.untilNormal()
	took := time.Since(begin)
	t.Logf("up after %s; %+v", took, b.link.Stats())
	return took
}

// TestFloodOfConnectionsIsDropped floods the acceptor with connections from another address, which the kernel drops, and from other
// ports at the peer's address: the acceptor takes a few connections, and the peer's handshake succeeds.
func TestFloodOfConnectionsIsDropped(t *testing.T) {
	requirements.ListenerFilter(t)
	a, b := pairOf(t)
	b.start()
	flood := func(addr netip.Addr, tries int) int64 {
		var left, taken atomic.Int64
		left.Store(int64(tries))
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				d := from(addr)
				d.Timeout = 50 * time.Millisecond
				for left.Add(-1) >= 0 {
					if conn, err := d.Dial("tcp", b.link.LocalAddr().String()); err == nil {
						taken.Add(1)
						_ = conn.Close()
					}
				}
			})
		}
		wg.Wait()
		return taken.Load()
	}
	if n := flood(netip.MustParseAddr("127.0.0.3"), 64); n > 0 || b.link.Stats().Refused > 0 {
		t.Errorf("%d of 64 connections from another address were taken: want none", n)
	}
	const tries, most = 4000, 1000
	if n := flood(a.cfg.Local.Addr(), tries); n > most {
		t.Errorf("%d of %d connections from other ports at the peer's address were taken: want at most %d", n, tries, most)
	} else {
		t.Logf("%d of %d were taken; %+v", n, tries, b.link.Stats())
	}
	begin := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		flood(a.cfg.Local.Addr(), tries)
	}()
	a.start()
	a.untilNormal()
	b.untilNormal()
	t.Logf("up after %s of another flood", time.Since(begin))
	<-done
}

// TestDialerHoldsItsPort: no other process can connect from the link's port and pass for the peer.
func TestDialerHoldsItsPort(t *testing.T) {
	a, _ := pairOf(t)
	l, err := Listen(a.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if l.reserved < 0 {
		t.Fatal("the port is not held")
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	sa, err := Sockaddr(l.LocalAddr())
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, sa); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("another socket was bound to the link's port: %v", err)
	}
}

// TestLinkWithoutItsPortStillComesUp: if another process has taken the port, the dialer uses another one.
func TestLinkWithoutItsPortStillComesUp(t *testing.T) {
	a, b := pairOf(t)
	taken, err := net.Listen("tcp4", a.cfg.Local.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	b.start()
	a.start()
	a.untilNormal()
	b.untilNormal()
}

// TestEveryHandshakeComesFromSamePort makes a link open sessions one after the other: earlier connections do not stand in
// the way. On a busy machine a dialer may not begin its handshake in time, so the test passes if one of several links has no
// failed handshake.
func TestEveryHandshakeComesFromSamePort(t *testing.T) {
	attempts.One(t, 5, "a link makes six sessions without a failed handshake", func() bool { return handshakesFromSamePort(t) })
}

// handshakesFromSamePort reports whether no handshake of a link failed.
func handshakesFromSamePort(t *testing.T) bool {
	t.Helper()
	a, b := pairOf(t)
	a.cfg.Rekey = 250 * time.Millisecond
	b.start()
	a.start()
	defer func() { a.stop(); b.stop() }()
	a.untilNormal()
	b.until("told of all", func(torus.LinkOutput, torus.LinkStats) bool { return b.link.Stats().Handshakes >= 6 })
	if s := b.link.Stats(); s.Others > 0 {
		t.Errorf("%d handshakes came from another port than the link's", s.Others)
	}
	failures := a.link.Stats().HandshakeFailures
	if failures > 0 {
		t.Logf("%d handshakes failed", failures)
	}
	return failures == 0
}
