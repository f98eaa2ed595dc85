package gossip

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
)

// maintain joins, and joins again: memberlist forgets members that were out of reach for long, and
// two parts of a healed network find each other only through their configured members.
func (n *Net) maintain(ctx context.Context) {
	interval := n.cfg.Timing.RejoinInterval
	if interval <= 0 {
		interval = rejoinInterval
	}
	const first = 100 * time.Millisecond // the others may be starting as well
	wait := min(first, interval)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.metaChanged:
			const noWait = time.Nanosecond // Leave waits for this announcement to end; 0 would mean no limit
			_ = n.announce(noWait)         // the error says only that the announcement is still queued
		case <-timer.C:
			n.join(ctx)
			timer.Reset(wait)
			wait = min(2*wait, interval)
		}
	}
}

// joinPatience is the first wait for an exchange, after which join starts the next one as well. A paused process accepts a stream but
// never answers. The wait doubles each time it expires, because all members answer slowly when many join at once.
const joinPatience = 200 * time.Millisecond

// join exchanges states with the configured members that are not live. It starts the next exchange when one ends or when the wait
// expires, which is joinPatience at first. Each exchange costs both ends a stream and the states of all members, and the first one
// usually shows that the others live. join returns when all exchanges have ended.
func (n *Net) join(ctx context.Context) {
	var exchanges sync.WaitGroup
	defer exchanges.Wait()
	patience := joinPatience
	for _, i := range rand.Perm(len(n.cfg.Join)) { // members that start together do not all ask the same one
		j := n.cfg.Join[i]
		if ctx.Err() != nil || !n.missing(j) {
			continue
		}
		done := make(chan struct{})
		exchanges.Go(func() {
			defer close(done)
			if _, err := n.list.Join([]string{j}); err != nil && ctx.Err() == nil {
				n.cfg.Logger.Debug("gossip: join", "member", j, "error", err)
			}
		})
		select {
		case <-done:
		case <-time.After(patience):
			patience *= 2
		case <-ctx.Done():
		}
	}
}

// missing reports whether the member at an address is not live.
func (n *Net) missing(address string) bool {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return false
	}
	n.membersMu.Lock()
	defer n.membersMu.Unlock()
	for _, m := range n.members {
		if m.Addr == a {
			return false
		}
	}
	return true
}
