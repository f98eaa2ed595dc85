package gossip

import (
	"context"
	"net/netip"
	"time"

	"github.com/lofamo/lofamo/pkg/udpguard"
)

// knowEvery is the minimum interval between changes of the known addresses, because many members may join at once.
const knowEvery = 100 * time.Millisecond

// keepKnown updates the guard with the members' addresses until ctx ends.
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

// know passes the addresses of all non-strangers to the guard.
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

// strangers returns the number of strangers' packets that were dropped unread.
func (t *transport) strangers() uint64 {
	if t.guard == nil {
		return 0
	}
	return t.guard.Stats().Refused
}
