package freeport

import (
	"net"
	"net/netip"
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
