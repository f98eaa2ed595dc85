package freeport

import (
	"net"
	"net/netip"
	"os/exec"
	"sync"
	"testing"
)

// Addr returns no address twice, even without a listener there, and none with a listener.
func TestAddressIsNeverGivenTwice(t *testing.T) {
	seen := map[netip.AddrPort]bool{}
	a := Addr(t)
	taken := netip.AddrPortFrom(a.Addr(), a.Port()+1)
	l, err := net.Listen("tcp4", taken.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	seen[a], seen[taken] = true, true
	for range 500 {
		a := Addr(t)
		if seen[a] {
			t.Fatalf("%s twice, or taken", a)
		}
		seen[a] = true
		u, err := net.ListenPacket("udp4", a.String())
		if err != nil {
			t.Fatal(err)
		}
		if err := u.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Addr returns an address that can be used at once, also while other goroutines start processes: a process that is forked but has not yet
// executed its program has copies of all sockets that were open.
func TestAddressIsFreeWhileProcessesStart(t *testing.T) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(done)
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := exec.Command("/bin/true").Run(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 1000 {
		a := Addr(t)
		u, err := net.ListenPacket("udp4", a.String())
		if err != nil {
			t.Fatal(err)
		}
		if err := u.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
