package ingest

import (
	"net/netip"

	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/pkg/fault"
)

// DirectAddr returns where a node's host half is reached straight, by what it last proved or else by the
// configuration, and from which port. False: only the torus reaches it.
func (s *Sender) DirectAddr(id fault.NodeID) (to netip.AddrPort, from Port, ok bool) {
	at, ok, err := s.place(fault.Origin{Node: id, Half: fault.HalfHost}, engine.To{})
	if err != nil || !ok {
		return netip.AddrPort{}, Port{}, false
	}
	return at.Addr, s.cfg.Ports[at.Socket], true
}
