package gossip

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// advertised returns the address that others are told of a member that listens on bind: its own, or, where that
// is all addresses of the machine, the one from which the first reachable of join would be sent to; without any, the first of an
// interface. Nothing is sent. memberlist would run `ip route` to find one, and a half starts no processes.
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
