package direct

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lofamo/lofamo/pkg/servicenet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type datagram struct {
	from netip.AddrPort
	b    string
}

// start runs a socket on a free port until the test ends.
func start(t *testing.T) (*Socket, <-chan datagram) {
	t.Helper()
	s, err := Listen("127.0.0.1:0", Options{})
	if err != nil {
		t.Fatal(err)
	}
	ch := make(chan datagram, 16)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, func(from netip.AddrPort, b []byte) { ch <- datagram{from, string(b)} }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, ch
}

func receive(t *testing.T, ch <-chan datagram) datagram {
	t.Helper()
	select {
	case d := <-ch:
		return d
	case <-time.After(5 * time.Second):
		t.Fatal("nothing received in 5 s")
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
	if _, err := a.conn.WriteToUDPAddrPort(make([]byte, servicenet.MaxDatagram+1), b.LocalAddr()); err != nil {
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
	for end := time.Now().Add(5 * time.Second); a.Stats().Blocked < 2; {
		if time.Now().After(end) {
			t.Fatalf("stats %+v", a.Stats())
		}
		time.Sleep(time.Millisecond)
	}
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

func TestRefusedPeerDoesNotStopTheRail(t *testing.T) {
	a, _ := start(t)
	b, ch := start(t)
	gone, err := Listen("127.0.0.1:0", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := a.Send(gone.LocalAddr(), []byte("anybody?")); err != nil {
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

func TestListenRefusals(t *testing.T) {
	a, _ := start(t)
	_, err := Listen(a.LocalAddr().String(), Options{})
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), a.LocalAddr().String()) || !strings.Contains(err.Error(), "taken") {
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
