package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// LeaseTTL is the time to live of an election lease, in seconds. It is long enough for a replica that gets little processor time. No other
// replica waits for it: the replicas end the term of a leader that is gone or silent. The lease matters only if none of them can tell.
const LeaseTTL = 8

var errLost = errors.New("the election lease was lost")

// retryAfter is the pause after a failed campaign or watch.
const retryAfter = 200 * time.Millisecond

// Campaigner takes part in the election for one replica.
type Campaigner struct {
	Client *clientv3.Client
	ID     string       // the replica's ID: the election's value
	TTL    int          // time to live of the lease, in seconds; 0 means LeaseTTL
	Logger *slog.Logger // names the replica
}

// Run campaigns until the context ends, and calls work each time it is elected. The context of work ends when the
// lease is lost or ctx ends. Leadership ends when work returns. Run resigns before it returns, so that another
// replica need not wait for the lease to end.
func (c Campaigner) Run(ctx context.Context, work func(context.Context, Fence) error) {
	waits, stood := false, false
	for ctx.Err() == nil {
		reached, err := c.term(ctx, !stood, work)
		stood = stood || reached != nothing
		if err != nil && ctx.Err() == nil {
			c.logEnd(reached, waits, err)
		}
		waits = reached == nothing
		select {
		case <-ctx.Done():
		case <-time.After(retryAfter):
		}
	}
}

// reached is how far a term came.
type reached uint8

const (
	nothing    reached = iota // not even a lease
	candidacy                 // a lease
	leadership                // elected
)

// logEnd logs why a term ended. Of the attempts without a lease it logs only the first one as a warning: without a quorum
// they fail for as long as that lasts.
func (c Campaigner) logEnd(r reached, waits bool, err error) {
	switch {
	case r == leadership:
		c.Logger.Warn("leadership ended", "err", err)
	case r == candidacy:
		c.Logger.Warn("candidacy ended", "err", err)
	case waits:
		c.Logger.Debug("still no candidate", "err", err)
	default:
		c.Logger.Warn("no candidate until the store grants a lease", "err", err)
	}
}

// resignTime bounds an orderly resignation.
const resignTime = time.Second

// term takes a lease, campaigns and leads. first is true until this process has been a candidate.
func (c Campaigner) term(ctx context.Context, first bool, work func(context.Context, Fence) error) (r reached, err error) {
	// The lease must outlive ctx until the replica has resigned.
	sctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	abort := context.AfterFunc(ctx, func() { time.AfterFunc(resignTime, stop) })
	defer abort()
	ttl := cmp.Or(c.TTL, LeaseTTL)
	session, err := concurrency.NewSession(within(sctx, c.Client), concurrency.WithTTL(ttl), concurrency.WithContext(sctx))
	if err != nil {
		return nothing, fmt.Errorf("election lease of %s: %w", c.ID, err)
	}
	defer func() {
		// Revoking the lease resigns as well.
		if rerr := c.drop(context.WithoutCancel(ctx), session); rerr != nil && err == nil {
			err = fmt.Errorf("resign %s: %w", c.ID, rerr)
		}
	}()
	if first {
		c.endEarlier(ctx)
	}
	lctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lost := context.AfterFunc(session.Ctx(), func() { cancel(errLost) })
	defer lost()
	election := concurrency.NewElection(session, ElectionPrefix)
	// Without WithRequireLeader, a member that is cut off from its quorum would hide that it is this replica's turn. After ErrNoLeader the
	// candidate tries again with the same lease and key, for as long as the lease lasts. A new lease and a new key would add commits while
	// etcd is overloaded.
	campaign := func(bool) error { return election.Campaign(clientv3.WithRequireLeader(lctx), c.ID) }
	if err := led(lctx, retryAfter, campaign); err != nil {
		return candidacy, fmt.Errorf("campaign of %s: %w", c.ID, cmp.Or(context.Cause(lctx), err))
	}
	if err := context.Cause(lctx); err != nil {
		return candidacy, err
	}
	fence := Fence{Key: election.Key(), Rev: election.Rev()}
	c.Logger.Info("leading", "term", fence.Rev, "lease", time.Duration(ttl)*time.Second)
	if err := work(lctx, fence); err != nil {
		return leadership, errors.Join(err, context.Cause(lctx))
	}
	return leadership, context.Cause(lctx)
}

// drop revokes the lease, and so resigns. The work of the term must have ended.
func (c Campaigner) drop(ctx context.Context, session *concurrency.Session) error {
	ctx, cancel := context.WithTimeout(ctx, resignTime)
	defer cancel()
	session.Orphan()
	_, err := c.Client.Revoke(ctx, session.Lease())
	return err
}

// endEarlier deletes the election keys of this replica's earlier processes. These have ended, but their leases may live for seconds. If
// that fails, the leases end by themselves.
func (c Campaigner) endEarlier(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, resignTime)
	defer cancel()
	resp, err := c.Client.Get(ctx, ElectionPrefix+"/", clientv3.WithPrefix())
	if err != nil {
		c.Logger.Debug("election keys of an earlier process not read", "err", err)
		return
	}
	for _, kv := range resp.Kvs {
		earlier := of(kv)
		if earlier.id != c.ID {
			continue
		}
		switch ended, err := endTerm(ctx, c.Client, earlier.fence); {
		case err != nil:
			c.Logger.Debug("candidacy of an earlier process not ended", "err", err)
		case ended:
			c.Logger.Info("ended the candidacy of an earlier process of this replica", "term", earlier.fence.Rev)
		}
	}
}

// within returns a client with the same connection and another context. A campaign that is cancelled deletes its key with
// the context of its client. Without a quorum that would take until etcd gives up.
func within(ctx context.Context, client *clientv3.Client) *clientv3.Client {
	bounded := clientv3.NewCtxClient(ctx)
	bounded.KV, bounded.Lease, bounded.Watcher = client.KV, client.Lease, client.Watcher
	return bounded
}

// Observer follows the election through its replica's etcd.
type Observer struct {
	mu      sync.Mutex
	leader  candidate     // the oldest; zero: none
	changed chan struct{} // closed and replaced with each new term, and when there is none
}

// NewObserver returns an observer without a leader; Run updates it.
func NewObserver() *Observer { return &Observer{changed: make(chan struct{})} }

// Leader returns the leader's ID, or "" if there is none, and a channel that is closed when the term changes.
func (o *Observer) Leader() (id string, changed <-chan struct{}) {
	id, _, changed = o.Term()
	return id, changed
}

// Term returns the leader's ID and the fence of its term, or "" if there is no leader, and a channel that is closed when the term changes.
func (o *Observer) Term() (id string, fence Fence, changed <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.leader.id, o.leader.fence, o.changed
}

func (o *Observer) set(c candidate) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c == o.leader {
		return
	}
	o.leader = c
	close(o.changed)
	o.changed = make(chan struct{})
}

// Run watches the election until the context ends.
func (o *Observer) Run(ctx context.Context, c *clientv3.Client) {
	for ctx.Err() == nil {
		o.follow(ctx, c)
		select {
		case <-ctx.Done():
		case <-time.After(retryAfter):
		}
	}
}

// candidate is one key of the election: the oldest leads.
type candidate struct {
	id    string
	fence Fence
}

// of returns the candidate of an election key.
func of(kv *mvccpb.KeyValue) candidate {
	return candidate{string(kv.Value), Fence{Key: string(kv.Key), Rev: kv.CreateRevision}}
}

// follow returns when the watch ends.
func (o *Observer) follow(ctx context.Context, c *clientv3.Client) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	prefix := ElectionPrefix + "/"
	resp, err := c.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithSerializable())
	if err != nil {
		return
	}
	candidates := make(map[string]candidate)
	for _, kv := range resp.Kvs {
		candidates[string(kv.Key)] = of(kv)
	}
	o.set(oldest(candidates))
	watching := clientv3.WithRequireLeader(ctx) // unlike the read, which serves a replica without a quorum
	for wr := range c.Watch(watching, prefix, clientv3.WithPrefix(), clientv3.WithRev(resp.Header.Revision+1)) {
		if wr.Err() != nil {
			return
		}
		for _, ev := range wr.Events {
			if ev.Type == mvccpb.Event_DELETE {
				delete(candidates, string(ev.Kv.Key))
			} else {
				candidates[string(ev.Kv.Key)] = of(ev.Kv)
			}
		}
		o.set(oldest(candidates))
	}
}

func oldest(candidates map[string]candidate) (best candidate) {
	for _, c := range candidates {
		if best.fence.Rev == 0 || c.fence.Rev < best.fence.Rev {
			best = c
		}
	}
	return best
}

// EndTerm deletes the election key of a term, so that the next candidate leads. The caller must know that the leader is gone. A leader that
// still runs loses only the lead: the store refuses its commits, and it campaigns again. ended is false if the term had already ended.
func (s *Etcd) EndTerm(ctx context.Context, f Fence) (ended bool, err error) {
	return endTerm(ctx, s.c, f)
}

func endTerm(ctx context.Context, c *clientv3.Client, f Fence) (ended bool, err error) {
	resp, err := c.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(f.Key), "=", f.Rev)).Then(clientv3.OpDelete(f.Key)).Commit()
	if err != nil {
		return false, fmt.Errorf("end term %d: %w", f.Rev, err)
	}
	return resp.Succeeded, nil
}
