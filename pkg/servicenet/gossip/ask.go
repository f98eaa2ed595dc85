package gossip

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
)

// Ask asks up to n live members, chosen at random, for a sign of life: Config.OnHeard follows each answer. Nodes are asked before
// supervisors. Ask does not wait, and does nothing while earlier questions are still open.
func (n *Net) Ask(members int) {
	select {
	case n.asks <- members:
	default:
	}
}

// answerAsks carries the questions out.
func (n *Net) answerAsks(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case members := <-n.asks:
			n.ping(ctx, members)
		}
	}
}

// ping asks members and waits for the answers, for the time-out of a probe at most.
func (n *Net) ping(ctx context.Context, members int) {
	var open sync.WaitGroup
	defer open.Wait()
	for _, m := range n.pick(members) {
		open.Go(func() {
			if _, err := n.list.Ping(m.Name, net.UDPAddrFromAddrPort(m.Addr)); err == nil && ctx.Err() == nil {
				n.heard()
			}
		})
	}
}

// pick returns up to count live members other than this one, nodes first.
func (n *Net) pick(count int) (picked []Member) {
	all := n.Members()
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
