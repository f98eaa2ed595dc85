package direct

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/fixedseed"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/leaks"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

func TestMain(m *testing.M) { os.Exit(leaks.Main(func() int { return fixedseed.Main(m) })) }

type datagram struct {
	from netip.AddrPort
	b    string
}

// start runs a socket on a free port until the test ends.
func start(t *testing.T) (*Socket, <-chan datagram) {
	t.Helper()
	return start2(t, "127.0.0.1:0")
}

func start2(t *testing.T, addr string) (*Socket, <-chan datagram) {
	t.Helper()
	s, err := Listen(addr, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s, run(t, s)
}

// run runs a socket until the test ends.
func run(t *testing.T, s *Socket) <-chan datagram {
	t.Helper()
	ch := make(chan datagram, 16)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- s.Run(ctx, func(from netip.AddrPort, b []byte) {
			select {
			case ch <- datagram{from, string(b)}:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return ch
}

// bound is the longest wait for an expected event: only a failure reaches it.
const bound = time.Minute

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(bound); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("waited %s for %s", bound, what)
		}
		time.Sleep(time.Millisecond)
	}
}

func receive(t *testing.T, ch <-chan datagram) datagram {
	t.Helper()
	select {
	case d := <-ch:
		return d
	case <-time.After(bound):
		t.Fatalf("nothing received in %s", bound)
		return datagram{}
	}
}

func TestSendAndReceive(t *testing.T) {
	a, fromB := start(t)
	b, fromA := start(t)
	if err := a.Send(b.LocalAddr(), []byte("report")); err != nil {
		t.Fatal(err)
	}
	d := receive(t, fromA)
	if d.b != "report" || d.from != a.LocalAddr() {
		t.Fatalf("got %+v", d)
	}
	if err := b.Send(d.from, []byte("ack")); err != nil {
		t.Fatal(err)
	}
	if d := receive(t, fromB); d.b != "ack" {
		t.Fatalf("got %+v", d)
	}
	if s := b.Stats(); s.Received != 1 || s.Sent != 1 {
		t.Errorf("stats %+v", s)
	}
}

func TestOversizedIsDroppedAndCounted(t *testing.T) {
	a, _ := start(t)
	b, ch := start(t)
	if err := a.Send(b.LocalAddr(), make([]byte, servicenet.MaxDatagram+1)); err == nil || !strings.Contains(err.Error(), "1401") {
		t.Errorf("sent too much: %v", err)
	}
	// Past our own check, as a stranger would.
	if _, err := a.cur.Load().conn.WriteToUDPAddrPort(make([]byte, servicenet.MaxDatagram+1), b.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	full := bytes.Repeat([]byte("x"), servicenet.MaxDatagram)
	if err := a.Send(b.LocalAddr(), full); err != nil {
		t.Fatal(err)
	}
	if d := receive(t, ch); d.b != string(full) {
		t.Errorf("got %d bytes", len(d.b))
	}
	if s := b.Stats(); s.Oversized != 1 || s.Received != 1 {
		t.Errorf("stats %+v", s)
	}
}

func TestBlockDropsBothWays(t *testing.T) {
	a, fromB := start(t)
	b, fromA := start(t)
	a.Block(true)
	if err := a.Send(b.LocalAddr(), []byte("lost")); err != nil {
		t.Fatal(err)
	}
	if err := b.Send(a.LocalAddr(), []byte("lost")); err != nil {
		t.Fatal(err)
	}
	// The second is dropped when it is read.
	waitFor(t, "the second to be dropped", func() bool { return a.Stats().Blocked == 2 })
	a.Block(false)
	if err := a.Send(b.LocalAddr(), []byte("there")); err != nil {
		t.Fatal(err)
	}
	if err := b.Send(a.LocalAddr(), []byte("back")); err != nil {
		t.Fatal(err)
	}
	if d := receive(t, fromA); d.b != "there" {
		t.Errorf("got %q", d.b)
	}
	if d := receive(t, fromB); d.b != "back" {
		t.Errorf("got %q", d.b)
	}
}

func TestRefusedPeerDoesNotStopRail(t *testing.T) {
	a, _ := start(t)
	b, ch := start(t)
	gone := freeport.Addr(t)
	for range 10 {
		if err := a.Send(gone, []byte("anybody?")); err != nil {
			t.Errorf("send to a closed port: %v", err)
		}
	}
	if err := a.Send(b.LocalAddr(), []byte("still here")); err != nil {
		t.Fatal(err)
	}
	if d := receive(t, ch); d.b != "still here" {
		t.Errorf("got %q", d.b)
	}
}

// TestSendDoesNotWait: a card that accepts nothing any more, or neighbours that do not answer ARP, fill the send
// buffer. A host half that waited for room would be found dead by its DNP. A TCP socket whose peer does not read
// stands for the full buffer.
func TestSendDoesNotWait(t *testing.T) {
	s, _ := start(t)
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
	full := sysConn(t, c.(*net.TCPConn))
	control(t, full, func(fd int) {
		for b := make([]byte, 1<<16); err == nil; {
			_, err = unix.Write(fd, b)
		}
		if !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
		control(t, sysConn(t, s.cur.Load().conn), func(to int) {
			if err := unix.Dup3(fd, to, unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
		})
	})
	sent := make(chan error, 1)
	go func() { sent <- s.Send(netip.MustParseAddrPort("127.0.0.1:9"), []byte("report")) }()
	select {
	case err := <-sent:
		if !errors.Is(err, unix.EAGAIN) || s.Stats().SendErrors != 1 {
			t.Errorf("%v, %+v", err, s.Stats())
		}
	case <-time.After(bound):
		t.Error("Send waits for room")
	}
}

func sysConn(t *testing.T, c syscall.Conn) syscall.RawConn {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func control(t *testing.T, c syscall.RawConn, f func(fd int)) {
	t.Helper()
	if err := c.Control(func(fd uintptr) { f(int(fd)) }); err != nil {
		t.Fatal(err)
	}
}

// TestSocketReachesItsAddressFamilies: a socket on all addresses reaches IPv4, and one of IPv4 refuses IPv6.
func TestSocketReachesItsAddressFamilies(t *testing.T) {
	four, ch := start(t)
	for _, addr := range []string{"0.0.0.0:0", "[::]:0"} {
		s, err := Listen(addr, Options{})
		if errors.Is(err, unix.EAFNOSUPPORT) {
			continue // this machine has no IPv6
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range []netip.AddrPort{four.LocalAddr(),
			netip.AddrPortFrom(netip.AddrFrom16(four.LocalAddr().Addr().As16()), four.LocalAddr().Port())} {
			if err := s.Send(to, []byte(addr)); err != nil {
				t.Errorf("from %s: %v", addr, err)
				continue
			}
			if d := receive(t, ch); d.b != addr {
				t.Errorf("got %q", d.b)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, to := range []netip.AddrPort{netip.MustParseAddrPort("[::1]:9"), {}} {
		if err := four.Send(to, []byte("report")); err == nil || !strings.Contains(err.Error(), "want one of the family of 127.0.0.1") {
			t.Errorf("to %s: %v", to, err)
		}
	}
}

func TestListenRefusesUnusableAddresses(t *testing.T) {
	a, _ := start(t)
	_, err := Listen(a.LocalAddr().String(), Options{})
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), a.LocalAddr().String()) ||
		!strings.Contains(err.Error(), "another process uses") {
		t.Errorf("taken port: %v", err)
	}
	for _, bad := range []string{"", "7000", "localhost:7000", "127.0.0.1:70000"} {
		if _, err := Listen(bad, Options{}); err == nil || !strings.Contains(err.Error(), "want ip:port") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := Listen("127.0.0.1:0", Options{Interface: "nosuch0"}); err == nil || !strings.Contains(err.Error(), `"nosuch0"`) {
		t.Errorf("unknown interface: %v", err)
	}
}

func TestCloseStopsRun(t *testing.T) {
	s, err := Listen("127.0.0.1:0", Options{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(context.Background(), func(netip.AddrPort, []byte) {}) }()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if err := s.Send(s.LocalAddr(), nil); err == nil {
		t.Error("sent on a closed socket")
	}
}

// TestFloodMakesReaderRest: beyond MaxRate the reader rests before each datagram, and still delivers those that
// the kernel could hold.
func TestFloodMakesReaderRest(t *testing.T) {
	s, err := Listen("127.0.0.1:0", Options{MaxRate: 4}) // and a burst of one
	if err != nil {
		t.Fatal(err)
	}
	from, _ := start(t)
	const flood = 200
	for range flood {
		if err := from.Send(s.LocalAddr(), []byte("flood")); err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	got, rests := 0, 0
	r := newReader(s, func(netip.AddrPort, []byte) {
		if got++; got == flood {
			_ = s.Close()
		}
	})
	r.pace.Sleep = func(time.Duration) { rests++ }
	stop := time.AfterFunc(20*time.Second, func() { _ = s.Close() })
	defer stop.Stop()
	if err := r.serve(ctx, s.cur.Load()); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	// 20 s would be 80 datagrams without a rest.
	if got != flood || rests < flood-100 {
		t.Errorf("%d of %d datagrams came, with %d rests: want all, and a rest before nearly each", got, flood, rests)
	}
}
