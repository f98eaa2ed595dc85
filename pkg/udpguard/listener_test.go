package udpguard

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// connects reports whether a listener takes a connection from an address. A dropped SYN is repeated after a second.
func connects(t *testing.T, from string, to net.Addr) (net.Conn, bool) {
	t.Helper()
	at := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from))
	c, err := (&net.Dialer{Timeout: 500 * time.Millisecond, LocalAddr: at}).Dial("tcp", to.String())
	if err != nil {
		return nil, false
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, true
}

// TestListenerFiltersSYNs: strangers are those at the known address, and the kernel drops the SYNs of all others. A connection that was
// accepted goes on when its source is a stranger's later.
func TestListenerFiltersSYNs(t *testing.T) {
	requirements.ListenerFilter(t)
	v4, v6 := freeport.Addr(t), netip.AddrPortFrom(netip.IPv6Loopback(), freeport.Addr(t).Port())
	for _, tc := range []struct{ network, listen, peer, samePeer, other string }{
		{"tcp4", "127.0.0.1:0", v4.String(), v4.Addr().String() + ":0", "127.0.0.3:0"},
		{"tcp6", "[::1]:0", v6.String(), "[::1]:0", ""},
	} {
		t.Run(tc.network, func(t *testing.T) {
			var lc net.ListenConfig
			lc.SetMultipathTCP(false)
			l, err := lc.Listen(t.Context(), tc.network, tc.listen)
			if err != nil {
				requirements.Missing(t, "a listener of %s on %s: %v", tc.network, tc.listen, err)
			}
			defer func() { _ = l.Close() }()
			raw, err := l.(*net.TCPListener).SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			g := New(1, Listener, SameAddress)
			defer g.Close()
			g.Know([]netip.AddrPort{netip.MustParseAddrPort(tc.peer)})
			g.Guard(raw)
			first, ok := connects(t, tc.samePeer, l.Addr())
			if !ok {
				t.Fatal("a connection from another port of the peer was dropped without a flood")
			}
			accepted, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = accepted.Close() }()
			if tc.other != "" {
				if _, ok := connects(t, tc.other, l.Addr()); ok {
					t.Error("a connection from another address was taken")
				}
			}
			stranger := netip.MustParseAddrPort(tc.samePeer)
			for now := time.Now(); g.Stats().Shift < maxShift; now = now.Add(tightenEvery) {
				g.Admit(now, stranger)
			}
			if err := g.Stats().Err; err != nil {
				t.Fatal(err)
			}
			if _, ok := connects(t, tc.samePeer, l.Addr()); ok { // one in a million fails here
				t.Error("a stranger's connection was taken in a flood")
			}
			if _, ok := connects(t, tc.peer, l.Addr()); !ok {
				t.Error("the peer's connection was dropped in a flood")
			}
			if _, err := first.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if err := accepted.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, err := accepted.Read(make([]byte, 1)); err != nil {
				t.Errorf("an accepted connection is cut: %v", err)
			}
			if g.Know(nil); tc.other != "" {
				if _, ok := connects(t, tc.samePeer, l.Addr()); ok {
					t.Error("a connection was taken without a known source")
				}
			}
		})
	}
}

// TestAnyPortKnowsAddresses admits a known address by any port, and no other in a flood.
func TestAnyPortKnowsAddresses(t *testing.T) {
	to, known, stranger := listen(t, "udp4", "127.0.0.1:0"), listen(t, "udp4", "127.0.0.3:0"), listen(t, "udp4", "127.0.0.4:0")
	g := New(1, AnyPort)
	defer g.Close()
	g.Know([]netip.AddrPort{netip.AddrPortFrom(addrOf(known).Addr(), 1)})
	g.Guard(raw(t, to))
	for now := time.Now(); g.Stats().Shift < maxShift; now = now.Add(tightenEvery) {
		g.Admit(now, addrOf(stranger))
	}
	if !g.Known(addrOf(known)) {
		t.Error("another port of a known address is a stranger")
	}
	send(t, stranger, addrOf(to), 1)
	send(t, known, addrOf(to), 2)
	if got := received(t, to, 2); len(got) != 1 {
		t.Errorf("received %v, want 2 alone", got)
	}
}
