package direct

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// A lookup of an interface lists all interfaces, and may wait for the kernel while a card is reset. Not every datagram may cost that.
func TestSendToZoneLooksNoInterfaceUp(t *testing.T) {
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

// A kernel that does not answer a lookup delays nobody but the first user of a name. A new number is found after a minute, or after a
// datagram could not be sent.
func TestZoneIsLookedUpInBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer, err := uint32(1), error(nil)
		hangs := make(chan struct{}, 1)
		hangs <- struct{}{}
		z := &zones{lookup: func(string) (uint32, error) {
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
		z.doubt("eth0")
		z.doubt("eth0")
		hangs <- struct{}{}
		is(0, false)
		is(0, false)
		answer, err = 3, nil
		hangs <- struct{}{}
		is(3, true)
	})
}
