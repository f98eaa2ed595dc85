package direct

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/netnstest"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

type told struct {
	to  netip.AddrPort
	err error
}

// startTelling runs a socket that reports errors.
func startTelling(t *testing.T, addr, ifc string) (*Socket, <-chan datagram, <-chan told) {
	t.Helper()
	errs := make(chan told, 4096)
	s, err := Listen(addr, Options{Interface: ifc, OnError: func(to netip.AddrPort, err error) { errs <- told{to, err} }})
	if err != nil {
		t.Fatal(err)
	}
	return s, run(t, s), errs
}

// next waits for the next error or refusal.
func next[T any](t *testing.T, ch <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-ch:
	case <-time.After(bound):
		t.Fatalf("no %T in %s", got, bound)
	}
	return got
}

// closedPort returns an address that no socket uses.
func closedPort(t *testing.T, ip netip.Addr) netip.AddrPort {
	t.Helper()
	addr, err := freeport.FindAt(ip)
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

func TestClosedPortIsReported(t *testing.T) {
	b, atB := start(t)
	for _, addr := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::1]:0"} {
		t.Run(addr, func(t *testing.T) {
			ip, local := freeport.IP(), b.LocalAddr()
			if addr == "[::1]:0" {
				six, err := net.ListenPacket("udp", addr)
				if err != nil {
					t.Skipf("SKIPPED %s: no IPv6 here: %v", t.Name(), err)
				}
				_ = six.Close()
				ip = netip.IPv6Loopback()
			}
			a, _, errs := startTelling(t, addr, "")
			one, two := closedPort(t, ip), closedPort(t, ip)
			for _, to := range []netip.AddrPort{one, two} {
				if err := a.Send(to, []byte("anybody?")); err != nil {
					t.Error(err)
				}
				if e := next(t, errs); e.to != to || !errors.Is(e.err, syscall.ECONNREFUSED) || !PathError(e.err) {
					t.Errorf("told of %s: %v; want %s refused", e.to, e.err, to)
				}
			}
			if ip.Is6() {
				return
			}
			// A refusal is no fault of the next datagram, to any address.
			for i := range 100 {
				if err := a.Send(one, []byte("anybody?")); err != nil {
					t.Error(err)
				}
				want := fmt.Sprint(addr, i)
				if err := a.Send(local, []byte(want)); err != nil {
					t.Error(err)
				}
				if d := receive(t, atB); d.b != want {
					t.Fatalf("got %q, want %q", d.b, want)
				}
			}
		})
	}
}

// TestErrorsAreRateLimited: a storm is counted, partly reported, and delays no datagram.
func TestErrorsAreRateLimited(t *testing.T) {
	a, atA, errs := startTelling(t, "127.0.0.1:0", "")
	b, _ := start(t)
	gone := freeport.Addr(t)
	const storm = 5000
	for i := range storm {
		if err := a.Send(gone, []byte("anybody?")); err != nil {
			t.Fatal(err)
		}
		if i%500 == 0 {
			if err := b.Send(a.LocalAddr(), []byte("through the storm")); err != nil {
				t.Fatal(err)
			}
			receive(t, atA)
		}
	}
	next(t, errs)
	s := a.Stats()
	if s.Untold == 0 || s.PathErrors < s.Untold || int(s.PathErrors-s.Untold) > storm/2 {
		t.Errorf("%+v: want most not told", s)
	}
	// Another destination has its word.
	other := freeport.Addr(t)
	if err := a.Send(other, []byte("anybody?")); err != nil {
		t.Fatal(err)
	}
	for next(t, errs).to != other {
	}
}

func TestBlockedSocketReportsNoErrors(t *testing.T) {
	a, atA, errs := startTelling(t, "127.0.0.1:0", "")
	a.Block(true)
	if err := a.cur.Load().send(freeport.Addr(t), 0, []byte("past the block")); err != nil {
		t.Fatal(err)
	}
	b, _ := start(t)
	if err := b.Send(a.LocalAddr(), []byte("dropped")); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the datagram to be dropped", func() bool { return a.Stats().Blocked == 1 })
	if len(errs) != 0 || len(atA) != 0 {
		t.Error("told of an error while cut off")
	}
}

func TestPathErrorsAreRecognised(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{io.EOF, false},
		{servicenet.ErrTooLong, false},
		{servicenet.ErrClosed, false},
		{syscall.EAGAIN, false},
		{syscall.ENOBUFS, false},
		{syscall.EMSGSIZE, false},
		{syscall.ECONNREFUSED, true},
		{fmt.Errorf("send to x: %w", syscall.ENETUNREACH), true},
		{fmt.Errorf("send to x: %w", syscall.EHOSTUNREACH), true},
		{syscall.ENETDOWN, true},
		{syscall.ENODEV, true},
		{syscall.EADDRNOTAVAIL, true},
		{syscall.EINVAL, true},
		{syscall.EPERM, true},
	} {
		if got := PathError(tc.err); got != tc.want {
			t.Errorf("%v: %t", tc.err, got)
		}
	}
}

func TestExtendedErrRefusals(t *testing.T) {
	cmsg := func(level, typ int32, data []byte) []byte {
		b := make([]byte, unix.CmsgSpace(len(data)))
		h := unix.Cmsghdr{Len: uint64(unix.CmsgLen(len(data))), Level: level, Type: typ}
		binary.NativeEndian.PutUint64(b, h.Len)
		binary.NativeEndian.PutUint32(b[8:], uint32(h.Level))
		binary.NativeEndian.PutUint32(b[12:], uint32(h.Type))
		copy(b[unix.CmsgLen(0):], data)
		return b
	}
	good := []byte{111, 0, 0, 0, unix.SO_EE_ORIGIN_ICMP, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	zero := append([]byte{111, 0, 0, 0, unix.SO_EE_ORIGIN_TXSTATUS}, good[5:]...)
	for name, tc := range map[string]struct {
		oob  []byte
		want syscall.Errno
	}{
		"an ICMP error":  {cmsg(unix.SOL_IP, unix.IP_RECVERR, good), syscall.ECONNREFUSED},
		"empty":          {nil, 0},
		"cut":            {cmsg(unix.SOL_IP, unix.IP_RECVERR, good)[:20], 0},
		"short":          {cmsg(unix.SOL_IP, unix.IP_RECVERR, good[:8]), 0},
		"of another":     {cmsg(unix.SOL_SOCKET, unix.IP_RECVERR, good), 0},
		"a sending time": {cmsg(unix.SOL_IP, unix.IP_RECVERR, zero), 0},
	} {
		if got := extendedErr(tc.oob); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The paths of a real network: a veth pair, whose far end answers nothing unless it has a neighbour.
func veth(t *testing.T) {
	t.Helper()
	for _, l := range []string{
		"link add svc0 type veth peer name far0", "link set svc0 up", "link set far0 up",
		"addr add 10.77.0.1/24 dev svc0", "route add default via 10.77.0.254 dev svc0",
	} {
		netnstest.IP(t, l)
	}
}

func TestUnreachableNetworkIsReported(t *testing.T) {
	if !netnstest.Inside(t) {
		return
	}
	veth(t)
	netnstest.IP(t, "route add unreachable 10.78.1.0/24")
	netnstest.IP(t, "route add prohibit 10.78.2.0/24")
	netnstest.IP(t, "route add blackhole 10.78.3.0/24")
	netnstest.IP(t, "route add throw 10.78.4.0/24")
	a, _, errs := startTelling(t, "10.77.0.1:0", "")
	for addr, want := range map[string]syscall.Errno{
		"10.78.1.1:7000": unix.EHOSTUNREACH, "10.78.2.1:7000": unix.EACCES,
		"10.78.3.1:7000": unix.EINVAL, "10.78.4.1:7000": unix.ENETUNREACH,
	} {
		if err := a.Send(netip.MustParseAddrPort(addr), []byte("report")); !errors.Is(err, want) || !PathError(err) {
			t.Errorf("send to %s: %v; want %v, against the path", addr, err, want)
		}
	}
	// No host answers ARP at .9, so the kernel gives up the datagram by an ICMP message to ourselves.
	netnstest.Sysctl(t, "net/ipv4/neigh/svc0/mcast_solicit", 1)
	netnstest.Sysctl(t, "net/ipv4/neigh/svc0/retrans_time_ms", 50)
	lost := netip.MustParseAddrPort("10.77.0.9:7000")
	if err := a.Send(lost, []byte("report")); err != nil {
		t.Fatal(err)
	}
	if e := next(t, errs); e.to != lost || !errors.Is(e.err, unix.EHOSTUNREACH) || !PathError(e.err) {
		t.Errorf("told of %s: %v", e.to, e.err)
	}
}

// TestFullAndUnreachable: the send buffer is full of datagrams for a silent neighbour when the kernel gives another
// one up. The poller refuses to wait at such a socket (a pending error, no room to send); the reader goes on all the
// same.
func TestFullAndUnreachable(t *testing.T) {
	if !netnstest.Inside(t) {
		return
	}
	veth(t)
	for _, l := range []string{"link add slow0 type veth peer name far1", "link set slow0 up", "link set far1 up",
		"addr add 10.79.0.1/24 dev slow0"} {
		netnstest.IP(t, l)
	}
	for ifc, ms := range map[string]int{"svc0": 200, "slow0": 60_000} {
		netnstest.Sysctl(t, "net/ipv4/neigh/"+ifc+"/mcast_solicit", 1)
		netnstest.Sysctl(t, "net/ipv4/neigh/"+ifc+"/retrans_time_ms", ms)
	}
	a, atA, errs := startTelling(t, "0.0.0.0:0", "")
	b, _ := start(t)
	control(t, sysConn(t, a.cur.Load().conn), func(fd int) {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1); err != nil {
			t.Fatal(err)
		}
	})
	lost := netip.MustParseAddrPort("10.77.0.9:7000")
	if err := a.Send(lost, []byte("report")); err != nil {
		t.Fatal(err)
	}
	full := false
	for i := 0; !full && i < 200; i++ {
		full = errors.Is(a.Send(netip.MustParseAddrPort("10.79.0.9:7000"), make([]byte, 1000)), servicenet.ErrBusy)
	}
	if !full {
		t.Fatal("200 datagrams did not fill the send buffer")
	}
	if e := next(t, errs); e.to != lost || !errors.Is(e.err, unix.EHOSTUNREACH) {
		t.Errorf("told of %s: %v", e.to, e.err)
	}
	for i := range 20 {
		want := fmt.Sprint(i)
		if err := b.Send(netip.AddrPortFrom(b.LocalAddr().Addr(), a.LocalAddr().Port()), []byte(want)); err != nil {
			t.Fatal(err)
		}
		if d := receive(t, atA); d.b != want {
			t.Fatalf("got %q, want %q", d.b, want)
		}
	}
}

func FuzzExtendedErr(f *testing.F) {
	f.Add(make([]byte, 32))
	f.Add([]byte{32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 0, 111, 0, 0, 0, unix.SO_EE_ORIGIN_ICMP, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if errno := extendedErr(b); errno != 0 && len(b) < unix.CmsgLen(extendedErrSize) {
			t.Errorf("%d bytes are read as %v", len(b), errno)
		}
	})
}
