package direct

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/netnstest"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

func TestRebindKeepsPort(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::]:0"} {
		s, err := Listen(addr, Options{})
		if errors.Is(err, unix.EAFNOSUPPORT) {
			continue // this machine has no IPv6
		}
		if err != nil {
			t.Fatal(err)
		}
		at := run(t, s)
		b, atB := start(t)
		local := s.LocalAddr()
		for i := range 5 {
			if err := s.Rebind(); err != nil {
				t.Fatal(err)
			}
			if got := unmap(s.cur.Load().conn.LocalAddr().(*net.UDPAddr).AddrPort()); got != local || s.LocalAddr() != local {
				t.Fatalf("on %s, and says %s; want %s", got, s.LocalAddr(), local)
			}
			if err := s.Send(b.LocalAddr(), []byte("there")); err != nil {
				t.Fatal(err)
			}
			d := receive(t, atB)
			if d.from.Port() != local.Port() {
				t.Fatalf("came from %s, want port %d", d.from, local.Port())
			}
			if err := b.Send(d.from, fmt.Append(nil, i)); err != nil {
				t.Fatal(err)
			}
			if d := receive(t, at); d.b != fmt.Sprint(i) {
				t.Errorf("got %q", d.b)
			}
			// The port is not to be shared, before or after.
			if _, err := Listen(local.String(), Options{}); !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("a second socket on %s: %v", local, err)
			}
		}
		if n := s.Stats().Rebinds; n != 5 {
			t.Errorf("%d rebinds counted", n)
		}
	}
}

func TestRebindWhileSending(t *testing.T) {
	a, _ := start(t)
	b := freeport.Addr(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				if err := a.Send(b, []byte("report")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 50 {
		if err := a.Rebind(); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	if s := a.Stats(); s.Sent != 4000 || s.Rebinds != 50 {
		t.Errorf("%+v", s)
	}
}

func TestRebindAfterClose(t *testing.T) {
	s, err := Listen("127.0.0.1:0", Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Rebind(); !errors.Is(err, servicenet.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// TestInterfaceComesBack: a socket bound to an interface is bound to its index. When the interface is created again
// under its name, the old socket reaches no peer until Rebind.
func TestInterfaceComesBack(t *testing.T) {
	if !netnstest.Inside(t) {
		return
	}
	veth(t)
	a, atA, _ := startTelling(t, "10.77.0.1:0", "svc0")
	b, atB := start2(t, "10.77.0.1:0")
	exchange(t, a, b, atA, atB)

	netnstest.IP(t, "link del svc0")
	if err := a.Send(b.LocalAddr(), []byte("report")); !PathError(err) {
		t.Errorf("send without the interface: %v", err)
	}
	if err := a.Rebind(); err == nil || !PathError(err) {
		t.Errorf("rebind without the interface: %v", err)
	}
	veth(t)
	if err := a.Send(b.LocalAddr(), []byte("report")); !PathError(err) {
		t.Errorf("send on the old index: %v", err)
	}
	if err := a.Rebind(); err != nil {
		t.Fatal(err)
	}
	exchange(t, a, b, atA, atB)
}

// TestAddressComesBack: the kernel refuses to send from an address that is no longer here.
func TestAddressComesBack(t *testing.T) {
	if !netnstest.Inside(t) {
		return
	}
	veth(t)
	netnstest.IP(t, "addr add 10.77.0.2/24 dev svc0")
	a, atA, _ := startTelling(t, "10.77.0.2:0", "")
	b, atB := start2(t, "10.77.0.1:0")
	exchange(t, a, b, atA, atB)
	netnstest.IP(t, "addr del 10.77.0.2/24 dev svc0")
	if err := a.Send(b.LocalAddr(), []byte("report")); !PathError(err) {
		t.Errorf("send without the address: %v", err)
	}
	if err := a.Rebind(); !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("rebind without the address: %v", err)
	}
	netnstest.IP(t, "addr add 10.77.0.2/24 dev svc0")
	exchange(t, a, b, atA, atB) // the old socket is as good as before
	if err := a.Rebind(); err != nil {
		t.Fatal(err)
	}
	exchange(t, a, b, atA, atB)
}

func exchange(t *testing.T, a, b *Socket, atA, atB <-chan datagram) {
	t.Helper()
	if err := a.Send(b.LocalAddr(), []byte("there")); err != nil {
		t.Fatal(err)
	}
	d := receive(t, atB)
	if err := b.Send(d.from, []byte("back")); err != nil {
		t.Fatal(err)
	}
	if d := receive(t, atA); d.b != "back" {
		t.Errorf("got %q", d.b)
	}
}
