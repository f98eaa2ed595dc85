package host

import (
	"context"
	"net/netip"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
)

// watchInterfaces passes on the kernel's link events for the service interfaces, until ctx ends. Where the kernel
// offers none, time-outs detect the same changes.
func (h *hostHalf) watchInterfaces(ctx context.Context) {
	watched := make([]watchedInterface, 0, len(h.nets))
	for _, a := range h.Config.Service.Interfaces() {
		watched = append(watched, watchedInterface{Name: a.Interface, Addr: netip.MustParseAddrPort(a.Listen).Addr()}) // validated
	}
	was := make([]bool, len(watched)) // known to be down
	err := watchInterfaces(ctx, watched, func(c interfaceChange) {
		h.onInterface(c, was[c.Index])
		was[c.Index] = !c.Up
	}, h.Log)
	if err != nil {
		h.Log.Warn("service interfaces are not watched: time-outs alone will find failures", "err", err)
	}
}

// onInterface handles a change of a service interface. An interface that comes back may be another device of the same
// name, or may have a new address. Its socket is therefore bound again before anything is sent on it.
func (h *hostHalf) onInterface(c interfaceChange, wasDown bool) {
	k := uint8(c.Index)
	rails := []fault.Path{fault.PathDirect}
	if k == 0 && h.Config.Service.GossipListen != "" {
		rails = append(rails, fault.PathGossip)
	}
	if !c.Up {
		h.Log.Warn("service interface down", "interface", h.names[k], "why", c.Why)
		for _, p := range rails {
			h.step(hostcore.Hint{Event: servicenet.RailDown{Path: p, Interface: k, Why: c.Why}})
		}
		return
	}
	if !wasDown && h.nets[k].Absent() == nil {
		return // no change
	}
	if err := h.bind(k); err != nil {
		h.Log.Warn("service interface exists, but its socket is not bound: retrying", "interface", h.names[k], "err", err)
		h.bindLater(k)
	}
	h.Log.Info("service interface up", "interface", h.names[k])
	for _, p := range rails {
		h.step(hostcore.Hint{Event: servicenet.RailUp{Path: p, Interface: k}})
	}
}

// bindLater requests retries until one service interface's socket is bound.
func (h *hostHalf) bindLater(k uint8) {
	select {
	case h.unbound <- k:
	default: // asked for often already
	}
}

// bind binds a service interface's socket, and opens the gossip if the gossip waited for this socket.
func (h *hostHalf) bind(k uint8) error {
	h.bindMu.Lock()
	defer h.bindMu.Unlock()
	err := h.nets[k].Rebind()
	if err != nil || k != 0 || h.gossipLate == nil {
		return err
	}
	if err = h.gossipLate(); err == nil {
		h.gossipLate = nil
	}
	return err
}

// bindUntilBound retries failed binds once a second until ctx ends. An address may come after its interface, and
// without interface events nothing else reports that it came.
func (h *hostHalf) bindUntilBound(ctx context.Context) {
	waiting := map[uint8]*half.Condition{}
	for {
		var again <-chan time.Time
		if len(waiting) > 0 {
			again = time.After(half.CheckEvery)
		}
		select {
		case <-ctx.Done():
			return
		case k := <-h.unbound:
			waiting[k] = &half.Condition{On: true} // already logged
		case <-again:
			for k, c := range waiting {
				err := h.bind(k)
				c.Set(h.Log, "service interface "+h.names[k], err)
				if err == nil {
					delete(waiting, k)
				}
			}
		}
	}
}
