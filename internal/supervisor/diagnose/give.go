package diagnose

import (
	"slices"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// gateways returns the relays for a place that is not reached directly: its neighbours, and their neighbours.
func (r *run) gateways(at grid.Coord) []fault.NodeID {
	dims := r.m.cfg.Names.Dims()
	var out []fault.NodeID
	add := func(c grid.Coord) {
		if id, ok := r.at[c]; ok && c != at && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	near := dims.Neighbours(at)
	for _, c := range near {
		add(c)
	}
	for _, c := range near {
		for _, far := range dims.Neighbours(c) {
			add(far)
		}
	}
	return out
}

// give sends an order to a node. It sends it directly if it can. From the third try on, or if there is no direct
// address, it also sends it through the torus by two of the gateways, different ones each time. what returns the
// order with the given reply address.
func (m *Manager) give(id fault.NodeID, try int, gateways []fault.NodeID, what func(replyTo string) *lofamov1.Message) {
	_, straight := m.cfg.DirectAddr(id)
	if straight {
		m.send(id, "", what)
	}
	if len(gateways) > 0 && (try >= 3 || !straight) {
		for j := range 2 {
			m.send(id, gateways[(2*(try-1)+j)%len(gateways)], what)
		}
	}
}

// send signs and sends an order: straight, or by another node through the torus.
func (m *Manager) send(id, via fault.NodeID, what func(replyTo string) *lofamov1.Message) {
	to, replyTo := id, ""
	if via != "" {
		to, replyTo = via, m.cfg.ReplyTo
	}
	at, ok := m.cfg.DirectAddr(to)
	if !ok {
		return
	}
	if via == "" {
		replyTo = at.ReplyTo
	}
	b, err := servicenet.Seal(what(replyTo), m.cfg.Signer)
	if err == nil && via != "" {
		b, err = servicenet.SealDowncall(id, b, m.cfg.Signer)
	}
	if err == nil {
		err = at.Socket.Send(at.Addr, b)
	}
	if err != nil { // the order is repeated later
		m.cfg.Logger.Debug("send", "what", "order", "node", to, "err", err)
	}
}
