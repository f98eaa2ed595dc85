package direct

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/netnstest"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// A lookup of an interface lists all interfaces, and may wait for the kernel while a card is reset. Not every datagram may cost that.
func TestSendToZoneDoesNotListInterfaces(t *testing.T) {
	s, err := Listen("[::1]:0", Options{})
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Skipf("SKIPPED %s: no IPv6 here: %v", t.Name(), err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	plain := s.LocalAddr()
	send := func(to netip.AddrPort) float64 {
		return testing.AllocsPerRun(100, func() {
			if err := s.Send(to, []byte("report")); err != nil {
				t.Fatal(err)
			}
		})
	}
	zoned := netip.AddrPortFrom(plain.Addr().WithZone("lo"), plain.Port())
	if want, got := send(plain), send(zoned); got > want {
		t.Errorf("a datagram to %s takes %.1f allocations, want %.1f", zoned, got, want)
	}
}

// A kernel that does not answer a lookup delays only the first user of a name. A new number is found after a minute, or after a datagram
// could not be sent.
func TestZoneIsLookedUpInBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer, err := uint32(1), error(nil)
		hangs, lookups := make(chan struct{}, 1), 0
		hangs <- struct{}{}
		z := &zones{lookup: func(string) (uint32, error) {
			lookups++
			<-hangs
			return answer, err
		}}
		is := func(want uint32, ok bool) {
			t.Helper()
			synctest.Wait()
			if n, err := z.number("eth0"); n != want || (err == nil) != ok {
				t.Errorf("number %d, %v: want %d", n, err, want)
			}
		}
		is(1, true)
		answer = 2
		time.Sleep(zoneAge + time.Second)
		is(1, true) // begins a lookup, which hangs
		is(1, true)
		hangs <- struct{}{}
		is(2, true)
		answer, err = 0, errors.New("no such interface")
		z.doubt("eth0", unix.EAGAIN) // says nothing about the interface
		time.Sleep(zonePause)
		is(2, true)
		z.doubt("eth0", unix.ENODEV)
		z.doubt("eth0", unix.ENODEV)
		hangs <- struct{}{}
		is(2, true) // begins a lookup
		is(0, false)
		is(0, false) // no other one at once
		if lookups != 3 {
			t.Errorf("%d lookups, want 3", lookups)
		}
		time.Sleep(zonePause)
		answer, err = 3, nil
		hangs <- struct{}{}
		is(0, false)
		is(3, true)
	})
}

// The first lookup of one name delays no datagram to another one, and further datagrams to the same name fail meanwhile.
func TestFirstLookupDelaysNoOtherZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := make(chan struct{})
		z := &zones{lookup: func(name string) (uint32, error) {
			if name == "eth1" {
				<-hangs
			}
			return 7, nil
		}}
		if n, err := z.number("eth0"); n != 7 || err != nil {
			t.Fatalf("number %d, %v", n, err)
		}
		go func() { _, _ = z.number("eth1") }()
		synctest.Wait()
		if n, err := z.number("eth0"); n != 7 || err != nil {
			t.Errorf("number %d, %v", n, err)
		}
		if _, err := z.number("eth1"); !errors.Is(err, servicenet.ErrBusy) {
			t.Errorf("%v, want %v", err, servicenet.ErrBusy)
		}
		close(hangs)
		synctest.Wait()
		if n, err := z.number("eth1"); n != 7 || err != nil {
			t.Errorf("number %d, %v", n, err)
		}
		for i := range 2 * maxZones {
			_, _ = z.number(fmt.Sprintf("eth%d", i))
		}
		if len(z.known) != maxZones {
			t.Errorf("%d zones, want %d", len(z.known), maxZones)
		}
	})
}

// TestSenderZoneIsLookedUpAgain: a failed lookup says nothing about the next datagram. Answers to a zone without its name cannot be sent.
func TestSenderZoneIsLookedUpAgain(t *testing.T) {
	if !netnstest.Inside(t) {
		return
	}
	var r receiver
	if got := r.zone(77); got != "77" {
		t.Errorf("interface 77 does not exist, and is called %q", got)
	}
	netnstest.IP(t, "link add svc0 index 77 type veth peer name svc1")
	if got := r.zone(77); got != "svc0" {
		t.Errorf("interface 77 is svc0, and is called %q", got)
	}
}
