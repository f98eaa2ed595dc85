package store_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// slowLease renews leases only once per period, like a replica with little processor time.
type slowLease struct {
	clientv3.Lease
	period time.Duration
}

func (s slowLease) KeepAlive(ctx context.Context, id clientv3.LeaseID) (<-chan *clientv3.LeaseKeepAliveResponse, error) {
	answers := make(chan *clientv3.LeaseKeepAliveResponse)
	go func() {
		defer close(answers)
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(s.period):
			}
			answer, err := s.KeepAliveOnce(ctx, id)
			if err != nil {
				return
			}
			select {
			case answers <- answer:
			case <-ctx.Done():
				return
			}
		}
	}()
	return answers, nil
}

// stubborn wraps a store. Its transactions fail with the error that fail returns.
type stubborn struct {
	clientv3.KV
	fail atomic.Pointer[func() error] // nil, or a function that returns nil: transactions pass
	txns atomic.Int64
}

func (s *stubborn) Txn(ctx context.Context) clientv3.Txn { return &stubbornTxn{s.KV.Txn(ctx), s} }

type stubbornTxn struct {
	clientv3.Txn
	s *stubborn
}

func (x *stubbornTxn) If(cs ...clientv3.Cmp) clientv3.Txn   { x.Txn = x.Txn.If(cs...); return x }
func (x *stubbornTxn) Then(ops ...clientv3.Op) clientv3.Txn { x.Txn = x.Txn.Then(ops...); return x }
func (x *stubbornTxn) Else(ops ...clientv3.Op) clientv3.Txn { x.Txn = x.Txn.Else(ops...); return x }

func (x *stubbornTxn) Commit() (*clientv3.TxnResponse, error) {
	x.s.txns.Add(1)
	if f := x.s.fail.Load(); f != nil {
		if err := (*f)(); err != nil {
			return nil, err
		}
	}
	return x.Txn.Commit()
}

// granted returns the granted time to live of the election key's lease, in seconds, or 0 if the key is gone.
func granted(t *testing.T, client *clientv3.Client, f store.Fence) int64 {
	t.Helper()
	resp, err := client.Get(t.Context(), f.Key)
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) == 0 {
		return 0
	}
	ttl, err := client.TimeToLive(t.Context(), clientv3.LeaseID(resp.Kvs[0].Lease))
	if err != nil {
		t.Fatal(err)
	}
	return ttl.GrantedTTL
}

// compete runs a campaigner until the test ends. began gets the fence of each term, ended the cause of its end.
func compete(t *testing.T, run func(context.Context, func(context.Context, store.Fence) error)) (began chan store.Fence, ended chan error) {
	t.Helper()
	began, ended = make(chan store.Fence, 100), make(chan error, 100)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		run(ctx, func(ctx context.Context, f store.Fence) error {
			began <- f
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return nil
		})
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return began, ended
}

// Lease durations in seconds, and the wait before a Campaigner shortens its lease. They are so long that even a busy machine keeps its
// leases, and elects a leader within the wait.
const (
	long, short = 60, 30
	longWait    = 2 * time.Second
)

// TestSlowReplicaGetsLongerLease: a replica that is too slow for its lease loses it, and then leads with a longer one.
func TestSlowReplicaGetsLongerLease(t *testing.T) {
	t.Parallel()
	client := supervisortest.NewEtcd(t, 1).Members[0].Client()
	slow := clientv3.NewCtxClient(t.Context())
	slow.KV, slow.Watcher, slow.Lease = client.KV, client.Watcher, slowLease{client.Lease, 2500 * time.Millisecond}
	began, ended := compete(t, store.Campaigner{Client: slow, ID: "a", Logger: slog.New(slog.DiscardHandler)}.Run)
	for longest := int64(0); longest < 4; {
		longest = granted(t, client, await(t, "a term with a longer lease", began))
	}
	if len(ended) == 0 {
		t.Error("no lease was lost: the replica is not slow")
	}
}

// competeStubborn is compete for a Campaigner that shortens its lease. In a term, each of its transactions calls fail first.
func competeStubborn(t *testing.T, client *clientv3.Client, fail func() error) (kv *stubborn, began chan store.Fence, ended chan error) {
	t.Helper()
	kv = &stubborn{KV: client.KV}
	own := clientv3.NewCtxClient(t.Context())
	own.KV, own.Watcher, own.Lease = kv, client.Watcher, client.Lease
	c := store.Campaigner{Client: own, ID: "a", TTL: short, ShortenAfter: longWait, Logger: slog.New(slog.DiscardHandler)}
	began, ended = compete(t, func(ctx context.Context, work func(context.Context, store.Fence) error) {
		kv.fail.Store(nil)
		c.RunFrom(ctx, long, func(ctx context.Context, f store.Fence) error {
			kv.fail.Store(&fail)
			return work(ctx, f)
		})
	})
	return kv, began, ended
}

// TestLongLeaseBecomesShorter: a lease becomes shorter within the term. A transaction whose outcome is unknown is repeated. If
// the store refuses the transaction, the lease stays as it is, and the term goes on.
func TestLongLeaseBecomesShorter(t *testing.T) {
	t.Parallel()
	first := func(errs ...error) func() error {
		var n atomic.Int64
		return func() error {
			if i := int(n.Add(1)) - 1; i < len(errs) {
				return errs[i]
			}
			return nil
		}
	}
	unknown := context.DeadlineExceeded
	for _, tc := range []struct {
		name string
		fail func() error
		want int64
	}{
		{"at once", first(), short},
		{"after two unknown outcomes", first(unknown, unknown), short},
		{"after an unknown outcome, the store is full for a while", first(unknown, rpctypes.ErrNoSpace, rpctypes.ErrNoSpace), short},
		{"the store knows no such lease", func() error { return rpctypes.ErrLeaseNotFound }, long},
		{"the store is full", func() error { return rpctypes.ErrNoSpace }, long},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			client := supervisortest.NewEtcd(t, 1).Members[0].Client()
			kv, began, ended := competeStubborn(t, client, tc.fail)
			f := await(t, "a to lead", began)
			tries := kv.txns.Load()
			supervisortest.Eventually(t, "three attempts, or success", func() bool {
				return kv.txns.Load() >= tries+3 || tc.want == short && granted(t, client, f) == short
			})
			supervisortest.Eventually(t, "the lease", func() bool { return granted(t, client, f) == tc.want })
			if len(ended) > 0 || !leads(t, client, f) {
				t.Error("the term ended")
			}
		})
	}
}

// TestTermEndsWithItsKey: a leader that cannot shorten its lease because the key is gone ends its term.
func TestTermEndsWithItsKey(t *testing.T) {
	t.Parallel()
	client := supervisortest.NewEtcd(t, 1).Members[0].Client()
	deleted := make(chan struct{})
	late := func() error { // on a busy machine the leader could shorten its lease before the key is gone
		select {
		case <-deleted:
		case <-t.Context().Done():
		}
		return nil
	}
	_, began, ended := competeStubborn(t, client, late)
	f := await(t, "a to lead", began)
	if _, err := client.Delete(t.Context(), f.Key); err != nil {
		t.Fatal(err)
	}
	close(deleted)
	if err := await(t, "the term to end", ended); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("the term ended by %v, want the loss of the lease", err)
	}
}

// TestCandidateShortensItsLease: a candidate that waits with a long lease comes back with a shorter one, and waits again.
func TestCandidateShortensItsLease(t *testing.T) {
	t.Parallel()
	client := supervisortest.NewEtcd(t, 1).Members[0].Client()
	a := campaign(t, client, "a", patient)
	first := await(t, "a to lead", a.began)
	c := store.Campaigner{Client: client, ID: "b", TTL: short, ShortenAfter: longWait, Logger: slog.New(slog.DiscardHandler)}
	began, _ := compete(t, func(ctx context.Context, work func(context.Context, store.Fence) error) { c.RunFrom(ctx, long, work) })
	supervisortest.Eventually(t, "a candidate with a short lease", func() bool {
		resp, err := client.Get(t.Context(), store.ElectionPrefix+"/", clientv3.WithPrefix())
		if err != nil {
			return false
		}
		for _, kv := range resp.Kvs {
			if string(kv.Key) != first.Key && granted(t, client, store.Fence{Key: string(kv.Key)}) == short {
				return true
			}
		}
		return false
	})
	if len(began) > 0 || !leads(t, client, first) {
		t.Error("the candidate leads")
	}
	a.stop()
	await(t, "b to lead", began)
}
