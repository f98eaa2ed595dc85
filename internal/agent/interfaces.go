package agent

import (
	"context"
	"net/netip"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/netwatch"

	"github.com/lofamo/lofamo/internal/agent/hostcore"
)

// watchInterfaces passes on what the kernel says of the service interfaces, until ctx ends. Where it
// cannot be asked, time-outs find out what it would have said.
func (h *hostHalf) watchInterfaces(ctx context.Context) {
	watched := make([]netwatch.Interface, 0, len(h.nets))
	for _, a := range h.cfg.Service.Interfaces() {
		watched = append(watched, netwatch.Interface{Name: a.Interface, Addr: netip.MustParseAddrPort(a.Listen).Addr()}) // validated
	}
	was := make([]bool, len(watched)) // known to be down
	err := netwatch.Run(ctx, watched, func(c netwatch.Change) {
		h.onInterface(c, was[c.Index])
		was[c.Index] = !c.Up
	})
	if err != nil {
		h.log.Warn("service interfaces are not watched: time-outs alone will find failures", "err", err)
	}
}

// onInterface takes a change of a service interface. One that comes back may be another device of the
// same name, or have got its address anew: the socket is bound again before anything is sent by it.
func (h *hostHalf) onInterface(c netwatch.Change, wasDown bool) {
	k := uint8(c.Index)
	rails := []fault.Path{fault.PathDirect}
	if k == 0 && h.cfg.Service.GossipListen != "" {
		rails = append(rails, fault.PathGossip)
	}
	if !c.Up {
		h.log.Warn("service interface down", "interface", h.names[k], "why", c.Why)
		for _, p := range rails {
			h.step(hostcore.Hint{Event: servicenet.RailDown{Path: p, Interface: k, Why: c.Why}})
		}
		return
	}
	if !wasDown {
		return // as it was taken to be
	}
	if err := h.nets[k].Rebind(); err != nil {
		h.log.Warn("service interface is back, but its socket is not bound anew", "interface", h.names[k], "err", err)
	}
	h.log.Info("service interface up", "interface", h.names[k])
	for _, p := range rails {
		h.step(hostcore.Hint{Event: servicenet.RailUp{Path: p, Interface: k}})
	}
}
