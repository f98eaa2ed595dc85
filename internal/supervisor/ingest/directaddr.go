package ingest

import (
	"net/netip"

	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/pkg/fault"
)

// DirectAddr returns the direct address of a node's host half, and the port to send from. The latest proven
// address comes before the configured one. ok is false if only the torus reaches the half.
func (s *Sender) DirectAddr(id fault.NodeID) (to netip.AddrPort, from Port, ok bool) {
	at, ok, err := s.place(fault.Origin{Node: id, Half: fault.HalfHost}, engine.To{})
	if err != nil || !ok {
		return netip.AddrPort{}, Port{}, false
	}
	return at.Addr, s.cfg.Ports[at.Socket], true
}
