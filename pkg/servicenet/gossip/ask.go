package gossip

import (
	"context"
	"math/rand/v2"
	"net"
)

// Ask requests pings of up to the given number of live members, chosen at random, nodes in preference to supervisors. Each answer within
// Timing.ProbeTimeout counts as a packet from another member (see Config.OnHeard). Ask does not block. It drops the request if another one
// still waits to be sent.
func (n *Net) Ask(members int) {
	select {
	case n.asks <- members:
	default: // dropped: the waiting request will ping members soon enough
	}
}

// runAsks sends the pings that Ask requests. It does not wait for their answers.
func (n *Net) runAsks(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case members := <-n.asks:
			for _, m := range n.pick(members) {
				go n.ping(ctx, m) // Close does not wait for the answer
			}
		}
	}
}

// ping pings one member and waits for its answer, at most for the time-out of a probe.
func (n *Net) ping(ctx context.Context, m Member) {
	if _, err := n.list.Ping(m.Name, net.UDPAddrFromAddrPort(m.Addr)); err == nil && ctx.Err() == nil {
		n.heard()
	}
}

// pick returns up to count live members other than this one, nodes first.
func (n *Net) pick(count int) (picked []Member) {
	all := n.liveMembers()
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, nodes := range [...]bool{true, false} {
		for _, m := range all {
			if (m.Meta.Role == RoleNode) == nodes && m.Name != n.cfg.Name && len(picked) < count {
				picked = append(picked, m)
			}
		}
	}
	return picked
}
