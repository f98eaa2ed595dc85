package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// LeaseTTL is the time to live of an election lease, in seconds: how long the replicas have no leader when one dies, in addition
// to raft's own election and its grace for leases. 1 s is the shortest that an etcd with an election timeout of 500
// ms grants.
const LeaseTTL = 1

// maxLeaseTTL is the longest time to live, in seconds, of a replica that loses its leases.
const maxLeaseTTL = 16

// easeAfter is how long a replica must lead before it halves the time to live of its lease.
const easeAfter = 2 * time.Minute

// longer returns the time to live of the lease after a lost one. A replica that loses its lease lives, so it is too slow, or cut off. With
// the same time it might lose the next lease too, and each beginning of a term costs it more time.
func longer(ttl, first int) int { return min(2*ttl, max(first, maxLeaseTTL)) }

var errLost = errors.New("the election lease was lost")

// lease is the election lease of one term.
type lease struct {
	campaigner Campaigner
	ttl        int // seconds
	session    *concurrency.Session
}

// take gets the lease from the store, and keeps it alive until ctx ends.
func (l *lease) take(ctx context.Context) (err error) {
	l.session, err = concurrency.NewSession(within(ctx, l.campaigner.Client), concurrency.WithTTL(l.ttl), concurrency.WithContext(ctx))
	return err
}

// drop revokes the lease, and so resigns.
func (l *lease) drop(ctx context.Context) error {
	return l.revoke(ctx, l.session)
}

func (l *lease) revoke(ctx context.Context, s *concurrency.Session) error {
	ctx, cancel := context.WithTimeout(ctx, resignTime)
	defer cancel()
	s.Orphan()
	_, err := l.campaigner.Client.Revoke(ctx, s.Lease())
	return err
}

// keep returns errLost when the lease is lost, and nil when ctx ends. From the election on it halves the time to live of a long lease from
// time to time. sctx is the context in which leases are kept alive.
func (l *lease) keep(ctx, sctx context.Context, elected <-chan Fence) error {
	var fence Fence
	var ease <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.session.Done():
			return errLost
		case fence = <-elected:
		case <-ease:
			if err := l.shorten(sctx, fence); err != nil {
				return fmt.Errorf("%w: %w", errLost, err)
			}
		}
		if ease = nil; l.ttl > l.campaigner.TTL {
			ease = time.After(l.campaigner.Ease)
		}
	}
}

// shorten moves the election's key to a lease with half the time to live. The fence stands meanwhile. An error means that the key may be
// attached to either lease, or gone. If the store grants no lease in time, the present one stays.
func (l *lease) shorten(ctx context.Context, fence Fence) error {
	client, ttl := l.campaigner.Client, max(l.ttl/2, l.campaigner.TTL)
	bounded, cancel := context.WithTimeout(ctx, time.Duration(l.ttl)*time.Second/4)
	defer cancel()
	grant, err := client.Grant(bounded, int64(ttl))
	if err != nil {
		return nil // the present lease stays
	}
	next, err := concurrency.NewSession(within(ctx, client), concurrency.WithLease(grant.ID), concurrency.WithContext(ctx))
	if err != nil {
		return nil // the present lease stays, and the new one ends by itself
	}
	resp, err := client.Txn(bounded).If(clientv3.Compare(clientv3.CreateRevision(fence.Key), "=", fence.Rev)).
		Then(clientv3.OpPut(fence.Key, l.campaigner.ID, clientv3.WithLease(grant.ID))).Commit()
	if err == nil && !resp.Succeeded {
		err = fmt.Errorf("the key %s is gone", fence.Key)
	}
	former := l.session
	l.session = next
	if rerr := l.revoke(ctx, former); rerr != nil {
		l.campaigner.Logger.Debug("a former election lease ends by itself", "err", rerr)
	}
	if err != nil {
		return fmt.Errorf("shorten the election lease to %d s: %w", ttl, err)
	}
	l.ttl = ttl
	return nil
}
