package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// LeaseTTL is the shortest time to live of an election lease, in seconds. If a leader dies, the replicas have no leader for its lease, plus
// raft's election and its grace for leases. 1 s is the shortest that an etcd with an election timeout of 500 ms grants.
const LeaseTTL = 1

// maxLeaseTTL is the longest time to live of an election lease, in seconds.
const maxLeaseTTL = 8

// easeAfter is the shortest time between two halvings of a long lease, and maxEase the longest.
const (
	easeAfter = 2 * time.Minute
	maxEase   = time.Hour
)

var errLost = errors.New("the election lease was lost")

// errEased ends a candidacy so that the next one has a shorter lease.
var errEased = errors.New("a shorter lease is due")

// terms is how long a replica's leases live. A replica that notices the loss of its lease is alive, so it is too slow or cut off. It might
// lose an equally short lease again, and the start of each term adds load.
type terms struct {
	shortest  int           // time to live, seconds
	ttl       int           // of the present or next lease, seconds
	easeFirst time.Duration // the first ease
	ease      time.Duration // after this time without a loss the lease becomes shorter
	eased     bool          // the lease became shorter after the last loss, and less than ease ago
}

// lost makes the next lease longer. If the lost one had become shorter too early, the next waits longer for that.
func (t *terms) lost() {
	if t.eased {
		t.ease, t.eased = min(2*t.ease, max(maxEase, t.easeFirst)), false
	}
	t.ttl = min(2*t.ttl, max(maxLeaseTTL, t.shortest))
}

// kept returns the time to live that the lease may have after an ease without a loss.
func (t *terms) kept() int {
	if t.ttl == t.shortest {
		t.ease, t.eased = t.easeFirst, false
	}
	return max(t.ttl/2, t.shortest)
}

// shortened records that the lease has become shorter.
func (t *terms) shortened(ttl int) { t.ttl, t.eased = ttl, true }

// isLoss reports whether a term ended because its lease did.
func isLoss(err error) bool {
	return errors.Is(err, errLost) || errors.Is(err, ErrNotLeader) || errors.Is(err, rpctypes.ErrLeaseNotFound)
}

// lease holds the election lease of one term. keep may replace it.
type lease struct {
	*terms
	client  *clientv3.Client
	id      string // of the replica
	session *concurrency.Session
	doubt   *concurrency.Session // nil, or another session to whose lease the election's key may be attached
}

// take gets the lease from the store, and keeps it alive until ctx ends.
func (l *lease) take(ctx context.Context) (err error) {
	l.session, err = concurrency.NewSession(within(ctx, l.client), concurrency.WithTTL(l.ttl), concurrency.WithContext(ctx))
	return err
}

// drop revokes the lease, and so resigns. No work of the term may run any more.
func (l *lease) drop(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, resignTime)
	defer cancel()
	for _, s := range []*concurrency.Session{l.session, l.doubt} {
		if s != nil {
			s.Orphan()
			_, rerr := l.client.Revoke(ctx, s.Lease())
			err = errors.Join(err, rerr)
		}
	}
	return err
}

// keep watches over the lease. It returns errLost when the lease is lost, and nil when ctx ends. After each ease it shortens a long lease:
// before the election by errEased, and then in place. sctx is the context in which leases are kept alive.
func (l *lease) keep(ctx, sctx context.Context, elected <-chan Fence) error {
	var fence Fence
	ease := time.NewTimer(l.ease)
	defer ease.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.session.Done():
			return errLost
		case fence = <-elected:
		case <-ease.C:
			switch shorter := l.kept(); {
			case shorter == l.ttl:
			case fence == Fence{}:
				l.shortened(shorter)
				return errEased
			default:
				if err := l.shorten(ctx, sctx, fence, shorter); err != nil {
					return err
				}
			}
			ease.Reset(l.ease)
		}
	}
}

// shorten moves the election's key to a lease with a shorter time to live. The fence stays valid. If the store refuses, or grants no lease
// in time, the current lease stays. It returns errLost if one of the two leases ended meanwhile, or if the key is gone.
func (l *lease) shorten(ctx, sctx context.Context, fence Fence, ttl int) error {
	bounded, cancel := l.bound(ctx)
	defer cancel()
	grant, err := l.client.Grant(bounded, int64(ttl))
	if err != nil {
		return nil // the current lease stays
	}
	next, err := concurrency.NewSession(within(sctx, l.client), concurrency.WithLease(grant.ID), concurrency.WithContext(sctx))
	if err != nil {
		return nil // the current lease stays, and the new one ends by itself
	}
	// Without an answer to a renewal the client would believe in the new lease for longer than the store.
	if _, err := l.client.KeepAliveOnce(bounded, grant.ID); err != nil {
		next.Orphan()
		return nil // the same
	}
	for l.doubt = next; ; {
		switch moved, err := l.attach(ctx, fence, grant.ID); {
		case moved:
			former := l.session
			l.session, l.doubt = next, nil
			l.shortened(ttl)
			former.Orphan() // nothing is attached to its lease, which ends by itself
			return nil
		case err == nil:
			return errLost // the key is gone
		case refused(err):
			l.doubt = nil
			next.Orphan()
			return nil // the current lease stays
		}
		// The outcome is unknown, and the transaction may be repeated.
		select {
		case <-ctx.Done():
			return nil
		case <-l.session.Done():
			return errLost
		case <-next.Done():
			return errLost
		case <-time.After(retryAfter):
		}
	}
}

// attach attaches the election's key to another lease. Neither an error nor moved: the key is gone.
func (l *lease) attach(ctx context.Context, fence Fence, to clientv3.LeaseID) (moved bool, err error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	resp, err := l.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(fence.Key), "=", fence.Rev)).
		Then(clientv3.OpPut(fence.Key, l.id, clientv3.WithLease(to))).Commit()
	if err != nil {
		return false, fmt.Errorf("attach %s to another lease: %w", fence.Key, err)
	}
	return resp.Succeeded, nil
}

// bound returns a context for a call of a second at most: it ends with ctx and with the lease too.
func (l *lease) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	bounded, cancel := context.WithTimeout(l.session.Ctx(), time.Second)
	stop := context.AfterFunc(ctx, cancel)
	return bounded, func() {
		stop()
		cancel()
	}
}

// refused reports whether a transaction certainly changed nothing.
func refused(err error) bool {
	return errors.Is(err, rpctypes.ErrLeaseNotFound) || errors.Is(err, rpctypes.ErrNoSpace)
}
