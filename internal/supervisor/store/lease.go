package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// LeaseTTL is the shortest time to live of an election lease, in seconds. After a leader has fallen silent, no replica leads until its
// lease ends. Raft's election and its grace period for leases add to that. 1 s is the shortest that an etcd with an election timeout of
// 500 ms grants.
const LeaseTTL = 1

// maxLeaseTTL is the longest time to live of an election lease, in seconds.
const maxLeaseTTL = 8

// shortenAfter is the first wait without a loss before a long lease is shortened, and maxShortenAfter the longest.
const (
	shortenAfter    = 2 * time.Minute
	maxShortenAfter = time.Hour
)

var errLost = errors.New("the election lease was lost")

// errShorter ends a candidacy so that the next one has a shorter lease.
var errShorter = errors.New("a shorter lease is due")

// leaseLength decides how long a replica's next lease lives. A replica that notices the loss of its lease is alive, so it is too slow or
// cut off. It might lose an equally short lease again, and the start of each term adds load.
type leaseLength struct {
	shortest int           // time to live, seconds
	ttl      int           // of the present or next lease, seconds
	first    time.Duration // first wait before a lease is shortened
	wait     time.Duration // current wait
	lately   bool          // the lease was shortened, and less than a wait has passed since
}

// lost doubles the next lease. If the lost lease had been shortened lately, it also doubles the wait before the next shortening.
func (t *leaseLength) lost() {
	if t.lately {
		t.wait, t.lately = min(2*t.wait, max(maxShortenAfter, t.first)), false
	}
	t.ttl = min(2*t.ttl, max(maxLeaseTTL, t.shortest))
}

// kept returns the time to live for the lease after a wait without a loss. If the lease is already the shortest, it resets the wait.
func (t *leaseLength) kept() int {
	t.lately = false
	if t.ttl == t.shortest {
		t.wait = t.first
	}
	return max(t.ttl/2, t.shortest)
}

// shortened records that the lease has become shorter.
func (t *leaseLength) shortened(ttl int) { t.ttl, t.lately = ttl, true }

// isLoss reports whether a term ended because its lease or key was lost.
func isLoss(err error) bool {
	return errors.Is(err, errLost) || errors.Is(err, ErrNotLeader) || errors.Is(err, ErrOvertaken) || errors.Is(err, rpctypes.ErrLeaseNotFound)
}

// lease holds the election lease of one term. keep may replace it.
type lease struct {
	*leaseLength
	logger  *slog.Logger
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

// drop revokes the lease, and so resigns. The work of the term must have ended.
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

// keep watches over the lease. It returns errLost when the lease is lost, and nil when ctx ends. It shortens a long lease after each wait:
// for a leader in place, for a candidate by returning errShorter. sctx is the context in which leases are kept alive.
func (l *lease) keep(ctx, sctx context.Context, elected <-chan Fence) error {
	var fence Fence
	wait := time.NewTimer(l.wait)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.session.Done():
			return errLost
		case fence = <-elected:
		case <-wait.C:
			select {
			case fence = <-elected:
			default:
			}
			switch shorter := l.kept(); {
			case shorter == l.ttl:
			case fence == Fence{}:
				l.shortened(shorter)
				return errShorter
			default:
				if err := l.shorten(ctx, sctx, fence, shorter); err != nil {
					return err
				}
			}
			wait.Reset(l.wait)
		}
	}
}

// shorten moves the election's key to a lease with a shorter time to live. The fence stays valid. If the store refuses, or grants no lease
// in time, the current lease stays. It returns errLost if either lease ends, or the key disappears, during the move.
func (l *lease) shorten(ctx, sctx context.Context, fence Fence, ttl int) error {
	next := l.another(ctx, sctx, ttl)
	if next == nil {
		return nil // the current lease stays
	}
	for unknown := false; ; unknown = true {
		l.doubt = next
		switch moved, err := l.attach(ctx, fence, next.Lease()); {
		case moved:
			former := l.session
			l.session, l.doubt = next, nil
			l.shortened(ttl)
			former.Orphan() // nothing is attached to its lease, which ends by itself
			l.logger.Info("election lease shortened", "lease", time.Duration(ttl)*time.Second)
			return nil
		case err == nil:
			return errLost // the key is gone
		case errors.Is(err, rpctypes.ErrLeaseNotFound), errors.Is(err, rpctypes.ErrNoSpace) && !unknown:
			// The store has refused the transaction. After an unknown outcome, a full store says nothing about the first attempt.
			l.doubt = nil
			next.Orphan()
			l.logger.Debug("the current election lease stays", "err", err)
			return nil
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

// another returns a session with another lease, once the store has renewed that lease; nil: not in time. Before the first renewal the
// client would believe in the lease for longer than the store.
func (l *lease) another(ctx, sctx context.Context, ttl int) *concurrency.Session {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	grant, err := l.client.Grant(ctx, int64(ttl))
	if err != nil {
		return nil
	}
	next, err := concurrency.NewSession(within(sctx, l.client), concurrency.WithLease(grant.ID), concurrency.WithContext(sctx))
	if err != nil {
		return nil
	}
	renewed, err := l.client.KeepAlive(ctx, grant.ID)
	if err == nil {
		select {
		case answer := <-renewed:
			if answer != nil {
				return next
			}
		case <-ctx.Done():
		}
	}
	next.Orphan()
	return nil
}

// attach attaches the election's key to another lease. If moved is false and err is nil, the key is gone.
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

// bound returns a context for one call. It ends after a second, with ctx, or with the lease.
func (l *lease) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	bounded, cancel := context.WithTimeout(l.session.Ctx(), time.Second)
	stop := context.AfterFunc(ctx, cancel)
	return bounded, func() {
		stop()
		cancel()
	}
}
