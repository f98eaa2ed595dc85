package udpguard

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// listen opens a socket on an address, closed with the test.
func listen(t *testing.T, network, addr string) *net.UDPConn {
	t.Helper()
	at := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr))
	c, err := net.ListenUDP(network, at)
	if err != nil {
		requirements.Missing(t, "a socket of %s on %s: %v", network, addr, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func addrOf(c *net.UDPConn) netip.AddrPort {
	a := c.LocalAddr().(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

func raw(t *testing.T, c *net.UDPConn) interface {
	Control(func(uintptr)) error
	Read(func(uintptr) bool) error
	Write(func(uintptr) bool) error
} {
	t.Helper()
	r, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// received returns the set of received numbers. It waits until the wanted number, which was sent last, is among them and no
// other follows for a moment: a busy kernel may deliver after the send has returned.
func received(t *testing.T, c *net.UDPConn, want uint32) map[uint32]bool {
	t.Helper()
	out, buf := map[uint32]bool{}, make([]byte, 64)
	for limit := time.Now().Add(time.Minute); ; {
		end := time.Now().Add(20 * time.Millisecond)
		if !out[want] {
			end = limit
		}
		if err := c.SetReadDeadline(end); err != nil {
			t.Fatal(err)
		}
		n, _, err := c.ReadFromUDPAddrPort(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return out
		}
		if err != nil || n < 4 {
			t.Fatalf("%d bytes, %v", n, err)
		}
		out[binary.BigEndian.Uint32(buf)] = true
	}
}

func send(t *testing.T, from *net.UDPConn, to netip.AddrPort, n uint32) {
	t.Helper()
	if _, err := from.WriteToUDPAddrPort(binary.BigEndian.AppendUint32(nil, n), to); err != nil {
		t.Fatal(err)
	}
}

func TestSetPeerAdmitsPeerAlone(t *testing.T) {
	for _, tc := range []struct{ name, network, to, peer, sameAddress, sender string }{
		{"IPv4", "udp4", "127.0.0.1:0", "127.0.0.2:0", "127.0.0.2:0", "127.0.0.1:0"},
		{"IPv6", "udp6", "[::1]:0", "[::1]:0", "[::1]:0", "[::1]:0"},
		{"IPv4 at a socket of both families", "udp", "[::]:0", "127.0.0.2:0", "127.0.0.2:0", "127.0.0.1:0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			to, peer := listen(t, tc.network, tc.to), listen(t, "udp", tc.peer)
			next, stranger := listen(t, "udp", tc.sameAddress), listen(t, "udp", tc.sender)
			at := netip.AddrPortFrom(addrOf(peer).Addr(), addrOf(to).Port())
			if at.Addr().Is4() {
				at = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
			}
			if err := SetPeer(raw(t, to), addrOf(peer)); err != nil {
				t.Fatal(err)
			}
			send(t, stranger, at, 1)
			send(t, next, at, 2) // of the peer's address, and another port
			send(t, peer, at, 3)
			if got := received(t, to, 3); len(got) != 1 || !got[3] {
				t.Errorf("received %v, want 3 alone", got)
			}
			if err := SetPeer(raw(t, to), addrOf(next)); err != nil {
				t.Fatal(err)
			}
			send(t, peer, at, 4)
			send(t, next, at, 5)
			if got := received(t, to, 5); len(got) != 1 || !got[5] {
				t.Errorf("with another peer received %v, want 5 alone", got)
			}
		})
	}
	if err := SetPeer(nil, netip.AddrPort{}); err == nil {
		t.Error("a peer without an address was taken")
	}
}

// TestProgramAdmitsEveryKnownSource has the kernel look at programs of all sizes and of both families.
func TestProgramAdmitsEveryKnownSource(t *testing.T) {
	to, from, stranger := listen(t, "udp4", "127.0.0.1:0"), listen(t, "udp4", "127.0.0.3:0"), listen(t, "udp4", "127.0.0.4:0")
	var others []netip.AddrPort
	for i := range 511 {
		a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 4), byte(i % 7)})
		if i%3 == 0 {
			a = netip.AddrFrom16([16]byte{0xfd, 15: byte(i % 11)})
		}
		others = append(others, netip.AddrPortFrom(a, uint16(1000+i)))
	}
	for _, n := range []int{0, 1, 2, 100, len(others)} {
		for _, ports := range []bool{true, false} {
			if err := attach(raw(t, to), program(append(others[:n:n], addrOf(from)), rules{ports: ports}, allStrangers)); err != nil {
				t.Fatalf("%d others, ports %v: %v", n, ports, err)
			}
			send(t, stranger, addrOf(to), 1)
			send(t, from, addrOf(to), 2)
			if got := received(t, to, 2); len(got) != 1 || !got[2] {
				t.Errorf("%d others, ports %v: received %v, want 2 alone", n, ports, got)
			}
		}
	}
}

// TestFloodOfStrangersLeavesKnownSourcesAlone sends far more than a receive buffer holds from a stranger, and between
// that a little from a known source: all of the latter arrives. Afterwards strangers are admitted again.
func TestFloodOfStrangersLeavesKnownSourcesAlone(t *testing.T) {
	to, friend, stranger := listen(t, "udp4", "127.0.0.1:0"), listen(t, "udp4", "127.0.0.1:0"), listen(t, "udp4", "127.0.0.1:0")
	if err := to.SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	g := New(100)
	defer g.Close()
	g.Guard(raw(t, to))
	g.Know([]netip.AddrPort{addrOf(friend)})
	buf := make([]byte, 64)
	friends, strangers := 0, 0
	take := func() { // all that there is
		for {
			if err := to.SetReadDeadline(time.Now().Add(50 * time.Microsecond)); err != nil {
				t.Fatal(err)
			}
			_, from, err := to.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			switch {
			case !g.Admit(time.Now(), from):
			case from == addrOf(friend):
				friends++
			default:
				strangers++
			}
		}
	}
	begin := time.Now()
	for !g.Flooded() { // the first burst may cost something; the reader reacts to it
		for range 50 {
			send(t, stranger, addrOf(to), 0)
		}
		take()
	}
	t.Logf("the kernel filters %s after the first datagram of the flood", time.Since(begin))
	for g.Stats().Shift < 9 {
		for range 50 {
			send(t, stranger, addrOf(to), 0)
		}
		take()
	}
	const rounds, each = 100, 500
	friends, strangers, begin = 0, 0, time.Now()
	for n := range rounds {
		for range each {
			send(t, stranger, addrOf(to), 0)
		}
		send(t, friend, addrOf(to), uint32(n))
		for range each {
			send(t, stranger, addrOf(to), 0)
		}
		take()
	}
	for limit := time.Now().Add(10 * time.Second); friends < rounds && time.Now().Before(limit); { // a busy kernel delivers late
		take()
	}
	took := time.Since(begin)
	t.Logf("%d strangers' datagrams in %s: %d admitted; of %d known ones %d", 2*rounds*each, took, strangers, rounds, friends)
	if friends != rounds {
		t.Errorf("%d of %d datagrams of a known source came", friends, rounds)
	}
	if most := 25 + int(took.Seconds()*100) + 1; strangers > most {
		t.Errorf("%d strangers' datagrams were admitted, want at most %d", strangers, most)
	}
	if err := g.Stats().Err; err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(2 * time.Minute); g.Flooded(); {
		if time.Now().After(deadline) {
			t.Fatal("strangers are still refused 2 minutes after the flood")
		}
		take()
	}
	send(t, stranger, addrOf(to), 0)
	if got := received(t, to, 0); len(got) != 1 {
		t.Errorf("after the flood %d of 1 datagram of a stranger came", len(got))
	}
}

func TestGuardOfManySourcesFallsBack(t *testing.T) {
	to := listen(t, "udp4", "127.0.0.1:0")
	g := New(1)
	defer g.Close()
	g.Guard(raw(t, to))
	known := func(addresses, ports int) (out []netip.AddrPort) {
		for i := range addresses {
			for p := range ports {
				out = append(out, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), uint16(1+p)))
			}
		}
		return out
	}
	for g.Stats().Shift == 0 {
		g.Admit(time.Now(), netip.MustParseAddrPort("192.0.2.1:1"))
	}
	for _, list := range [][]netip.AddrPort{known(1, 512), known(256, 8), known(1000, 2)} {
		g.Know(list)
		if err := g.Stats().Err; err != nil {
			t.Errorf("%d known sources: %v", len(list), err)
		}
		if !g.Admit(time.Now(), list[len(list)-1]) {
			t.Errorf("the last of %d known sources was refused", len(list))
		}
	}
}

// TestGuardReplacesProgramOfManyAddresses attaches twice for each list, as a guard does whenever its share of
// strangers changes. A kernel that has no room for a program beside its predecessor, or none at all, must not go on
// with the predecessor: its known sources are stale.
func TestGuardReplacesProgramOfManyAddresses(t *testing.T) {
	to, from, stranger := listen(t, "udp4", "127.0.0.1:0"), listen(t, "udp4", "127.0.0.3:0"), listen(t, "udp4", "127.0.0.4:0")
	for _, tc := range []struct {
		name    string
		v4, v6  int
		filters bool
	}{
		{"400 addresses of IPv4", 400, 0, true},
		{"512 addresses of IPv4", 512, 0, true},
		{"200 addresses of IPv6", 0, 200, true},
		{"300 addresses of IPv6", 0, 300, true},
		{"512 addresses of IPv6", 0, 512, false},
		{"512 addresses of both families", 256, 256, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var known []netip.AddrPort
			for i := range tc.v4 {
				known = append(known, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}), 7000))
			}
			for i := range tc.v6 {
				known = append(known, netip.AddrPortFrom(netip.AddrFrom16([16]byte{0xfd, 14: byte(i >> 8), 15: byte(i)}), 7000))
			}
			g := New(1)
			defer g.Close()
			var failures []error
			g.OnFailure(func(err error) { failures = append(failures, err) })
			g.Guard(raw(t, to))
			g.Know(known)
			for g.Stats().Shift < maxShift { // seven programs of the same sources
				g.Admit(time.Now(), addrOf(stranger))
			}
			g.Know(append(known, addrOf(from))) // learned during the flood
			send(t, from, addrOf(to), 1)
			if got := received(t, to, 1); !got[1] {
				t.Errorf("a source learned during the flood is dropped: %v", g.Stats().Err)
			}
			// Where optmem_max is 128 KiB, the default of recent kernels, these programs fit.
			if err := g.Stats().Err; optmem(t) >= 128<<10 && (err == nil) != tc.filters {
				t.Errorf("the guard filters: %v, want %v (%v)", err == nil, tc.filters, err)
			}
			if err := g.Stats().Err; (err != nil) != (len(failures) > 0) || len(failures) > 1 {
				t.Errorf("%d failures were reported, and the last attempt's error is %v", len(failures), err)
			}
		})
	}
}

// optmem returns how much memory the options of one socket may take, in bytes.
func optmem(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/sys/net/core/optmem_max")
	if err != nil {
		return 0 // in a network namespace of an earlier kernel
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestSourceIsIPv4AddressOrIPv6Subnet(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.7": "192.0.2.7/32", "::ffff:192.0.2.7": "192.0.2.7/32", "2001:db8:1:2:3::4": "2001:db8:1:2::/64", "fe80::1%lo": "fe80::/64",
	} {
		if got := SourceOf(netip.MustParseAddr(addr)); got.String() != want {
			t.Errorf("source of %s: %s, want %s", addr, got, want)
		}
	}
	if got := SourceOf(netip.Addr{}); got.IsValid() {
		t.Errorf("source of no address: %s, want none", got)
	}
}
