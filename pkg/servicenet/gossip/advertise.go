package gossip

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// advertised returns the address that others should use for a member that listens on bind. That is bind itself or, if
// bind is all addresses of the machine, the source address towards the first reachable member of join; without any,
// the first address of an interface. It sends no packet. memberlist would run `ip route` to find one, and a half
// starts no processes.
func advertised(bind netip.Addr, join []string) (netip.Addr, error) {
	if !bind.IsUnspecified() {
		return bind, nil
	}
	network := "udp"
	if bind.Is4() {
		network = "udp4"
	}
	for _, j := range join {
		c, err := net.Dial(network, j)
		if err != nil {
			continue // no way there, for now
		}
		own := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
		_ = c.Close()
		return own, nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("find the own address: %w", err)
	}
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && p.Addr().IsGlobalUnicast() && (p.Addr().Is4() || !bind.Is4()) {
			return p.Addr(), nil
		}
	}
	return netip.Addr{}, errors.New("find the own address: no interface has one that others could reach: name one to listen on")
}
