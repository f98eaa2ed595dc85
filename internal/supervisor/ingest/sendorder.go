package ingest

import (
	"net/netip"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
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

// Direct reports whether a node's host half has a direct address.
func (s *Sender) Direct(id fault.NodeID) bool {
	_, _, ok := s.DirectAddr(id)
	return ok
}

// Order sends a node an order of some kind, always signed: directly if that is possible, and through each of via. body
// returns the order for an answer to that address.
func (s *Sender) Order(node fault.NodeID, what string, body func(replyTo string) *lofamov1.Message, via []fault.NodeID) {
	what += " order"
	host := func(id fault.NodeID) (Place, bool) {
		at, ok, err := s.place(fault.Origin{Node: id, Half: fault.HalfHost}, engine.To{})
		return at, ok && err == nil
	}
	straight := s.places(node)
	if at, ok := host(node); ok && len(via) == 0 {
		straight = []Place{at}
	}
	for _, at := range straight { // a repeated order: a machine of that name may have another address now
		if b, err := servicenet.Seal(body(s.cfg.Ports[at.Socket].ReplyTo), s.cfg.Signer); err != nil {
			s.fail(what, node, err)
		} else {
			s.send(what, node, at, b)
		}
	}
	if len(via) == 0 {
		return
	}
	b, err := servicenet.Seal(body(s.cfg.Ports[0].ReplyTo), s.cfg.Signer)
	if err == nil {
		b, err = servicenet.SealDowncall(node, b, s.cfg.Signer)
	}
	if err != nil {
		s.fail(what, node, err)
		return
	}
	for _, id := range via {
		if at, ok := host(id); ok {
			s.send(what, id, at, b)
		}
	}
}
