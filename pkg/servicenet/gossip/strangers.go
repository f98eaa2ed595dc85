package gossip

import (
	"context"
	"net/netip"
	"time"

	"github.com/lofamo/lofamo/pkg/udpguard"
)

// knowEvery is the minimum interval between changes of the known addresses, because many members may join at once.
const knowEvery = 100 * time.Millisecond

// keepKnown updates the guards with the members' addresses until ctx ends.
func (n *Net) keepKnown(ctx context.Context) {
	guards := n.transport.guards()
	for len(guards) > 0 {
		n.know(guards)
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

// know passes the addresses of all non-strangers to the guards.
func (n *Net) know(guards []*udpguard.Guard) {
	known := []netip.AddrPort{n.addr}
	for _, m := range n.Members() {
		known = append(known, m.Addr)
	}
	for _, j := range n.cfg.Join {
		if a, err := netip.ParseAddrPort(j); err == nil {
			known = append(known, a)
		}
	}
	for _, g := range guards {
		g.Know(known)
	}
}

// guards returns the guards of packets and streams that there are.
func (t *transport) guards() (out []*udpguard.Guard) {
	for _, g := range []*udpguard.Guard{t.known, t.doors} {
		if g != nil {
			out = append(out, g)
		}
	}
	return out
}

// strangers returns the number of strangers' packets that were dropped unread.
func (t *transport) strangers() uint64 {
	if t.known == nil {
		return 0
	}
	return t.known.Stats().Refused
}
