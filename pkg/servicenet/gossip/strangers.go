package gossip

import (
	"context"
	"net/netip"
	"time"

	"github.com/lofamo/lofamo/pkg/udpguard"
)

// knowEvery is the least time between two changes of the known addresses: many members join at once.
const knowEvery = 100 * time.Millisecond

// keepKnown has the guard know the members' addresses until ctx ends.
func (n *Net) keepKnown(ctx context.Context) {
	g := n.transport.guard
	for g != nil {
		n.know(g)
		select {
		case <-ctx.Done():
			return
		case <-time.After(knowEvery):
		}
		select {
		case <-ctx.Done():
			return
		case <-n.joined:
		}
	}
}

// know names the addresses whose packets are no stranger's.
func (n *Net) know(g *udpguard.Guard) {
	known := []netip.AddrPort{n.addr}
	for _, m := range n.Members() {
		known = append(known, m.Addr)
	}
	for _, j := range n.cfg.Join {
		if a, err := netip.ParseAddrPort(j); err == nil {
			known = append(known, a)
		}
	}
	g.Know(known)
}

// strangers counts the packets of strangers that were dropped unread.
func (t *transport) strangers() uint64 {
	if t.guard == nil {
		return 0
	}
	return t.guard.Stats().Refused
}
