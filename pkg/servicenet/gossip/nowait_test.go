package gossip

import (
	"errors"
	"io"
	"log"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/servicenet"
)

// A card that accepts nothing any more, or members that do not answer ARP, fill the send buffer. The host half calls Loop under its mutex:
// if Loop waited for room, the DNP half would find the host half dead. A TCP socket whose peer does not read stands for the full buffer.
func TestLoopDoesNotWaitForRoom(t *testing.T) {
	quiet := Timing{ProbeInterval: time.Hour, GossipInterval: time.Hour, PushPullInterval: time.Hour}
	m := startKeys(t, "m", [][]byte{key(1)}, quiet)
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	c, err := net.Dial("tcp4", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	fill(t, c.(*net.TCPConn), m.transport.udp)
	sent := make(chan error, 1)
	go func() { sent <- m.Loop([]byte("probe")) }()
	select {
	case err := <-sent:
		if !errors.Is(err, servicenet.ErrBusy) {
			t.Errorf("got %v: want %v", err, servicenet.ErrBusy)
		}
	case <-time.After(bound):
		t.Error("Loop waits for room")
	}
}

// fill fills the send buffer of full, and makes udp's descriptor one of the same socket.
func fill(t *testing.T, full *net.TCPConn, udp *net.UDPConn) {
	t.Helper()
	from, err := full.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	to, err := udp.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var wrote, changed, duplicated error
	err = from.Control(func(fd uintptr) {
		for b := make([]byte, 1<<16); wrote == nil; {
			_, wrote = unix.Write(int(fd), b)
		}
		changed = to.Control(func(other uintptr) { duplicated = unix.Dup3(int(fd), int(other), unix.O_CLOEXEC) })
	})
	if err := errors.Join(err, changed, duplicated); err != nil || !errors.Is(wrote, unix.EAGAIN) {
		t.Fatal(err, wrote)
	}
}

// A socket on all addresses may be of IPv6, and reaches members of both families.
func TestPacketsReachBothFamilies(t *testing.T) {
	g, err := newGuard(key(1), nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	for bind, to := range map[string][]string{
		"127.0.0.1:0": {"127.0.0.1:0"}, "0.0.0.0:0": {"127.0.0.1:0"}, "[::]:0": {"127.0.0.1:0", "[::1]:0"}, "[::1]:0": {"[::1]:0"},
	} {
		tr, err := newTransport(t.Context(), netip.MustParseAddrPort(bind), log.New(io.Discard, "", 0), g, Config{})
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) {
			continue // this machine has no IPv6
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range to {
			far, err := net.ListenPacket("udp", at)
			if err != nil {
				t.Fatal(err)
			}
			if err := far.SetReadDeadline(time.Now().Add(bound)); err != nil {
				t.Fatal(err)
			}
			if _, err := tr.WriteTo([]byte("packet"), far.LocalAddr().String()); err != nil {
				t.Errorf("from %s to %s: %v", bind, at, err)
			} else if n, _, err := far.ReadFrom(make([]byte, 100)); n != len("packet")+sealSize || err != nil {
				t.Errorf("from %s to %s: %d bytes, %v", bind, at, n, err)
			}
			_ = far.Close()
		}
		if err := tr.Shutdown(); err != nil {
			t.Error(err)
		}
	}
}
