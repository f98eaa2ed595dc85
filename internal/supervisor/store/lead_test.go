package store_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// candidate is a campaigner whose terms a test can see.
type candidate struct {
	began chan store.Fence
	ended chan error // the cause of the end of the term's context
	leave chan error // result of work, unless the context ends it
	stop  func()     // ends the campaign and waits for it
}

// patient is a lease, in seconds, that a test process keeps even if it gets no processor for a while: for tests in which the lead must not
// move by itself.
const patient = 10

// campaign runs a campaigner with a lease of ttl seconds until the test ends.
func campaign(t *testing.T, client *clientv3.Client, id string, ttl int) *candidate {
	t.Helper()
	c := &candidate{began: make(chan store.Fence, 8), ended: make(chan error, 8), leave: make(chan error)}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		logger := slog.New(slog.DiscardHandler)
		store.Campaigner{Client: client, ID: id, TTL: ttl, Logger: logger}.Run(ctx, func(ctx context.Context, f store.Fence) error {
			c.began <- f
			select {
			case <-ctx.Done():
				c.ended <- context.Cause(ctx)
				return ctx.Err()
			case err := <-c.leave:
				return err
			}
		})
	})
	c.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(c.stop)
	return c
}

func await[T any](t *testing.T, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(supervisortest.Wait):
		t.Fatalf("waited %s for %s", supervisortest.Wait, what)
		panic("unreachable")
	}
}

// leads reports whether a fence stands in the store.
func leads(t *testing.T, client *clientv3.Client, f store.Fence) bool {
	t.Helper()
	_, err := store.NewEtcd(client, store.Options{}).Confirm(t.Context(), f)
	if err != nil && !errors.Is(err, store.ErrNotLeader) {
		t.Fatal(err)
	}
	return err == nil
}

// twoStand waits until two candidates stand.
func twoStand(t *testing.T, client *clientv3.Client) {
	t.Helper()
	supervisortest.Eventually(t, "the second candidate to stand", func() bool {
		resp, err := client.Get(t.Context(), store.ElectionPrefix+"/", clientv3.WithPrefix())
		return err == nil && len(resp.Kvs) == 2
	})
}

// observing returns an observer that follows the election until the test ends.
func observing(t *testing.T, client *clientv3.Client) *store.Observer {
	t.Helper()
	observer := store.NewObserver()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { observer.Run(ctx, client) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return observer
}

// TestOneCandidateLeadsAtATime: one candidate leads at a time. When it resigns, the other follows at once, with its own fence, and
// every observer sees it.
func TestOneCandidateLeadsAtATime(t *testing.T) {
	client := supervisortest.NewEtcd(t, 1).Members[0].Client()
	observer := observing(t, client)
	follows := func(want string) {
		t.Helper()
		for timeout := time.After(supervisortest.Wait); ; {
			id, changed := observer.Leader()
			if id == want {
				return
			}
			select {
			case <-changed:
			case <-timeout:
				t.Fatalf("the observer sees %q, want %q", id, want)
			}
		}
	}
	a := campaign(t, client, "a", patient)
	first := await(t, "a to lead", a.began)
	follows("a")
	b := campaign(t, client, "b", patient)
	twoStand(t, client)
	if len(b.began) > 0 || !leads(t, client, first) {
		t.Fatal("two lead")
	}
	a.stop()
	if err := await(t, "a's term to end", a.ended); !errors.Is(err, context.Canceled) {
		t.Errorf("a's term ended by %v", err)
	}
	second := await(t, "b to lead", b.began)
	follows("b")
	if second == first || leads(t, client, first) || !leads(t, client, second) {
		t.Errorf("fences %+v and %+v", first, second)
	}
	b.stop()
	follows("")
}

// TestEndedTermLetsTheNextCandidateLead: EndTerm ends the term of its fence, although the leader's lease lives, and no other term.
func TestEndedTermLetsTheNextCandidateLead(t *testing.T) {
	client := supervisortest.NewEtcd(t, 1).Members[0].Client()
	observer := observing(t, client)
	observed := func(id string, want store.Fence) {
		t.Helper()
		supervisortest.Eventually(t, "the observer to see the term of "+id, func() bool {
			leader, f, _ := observer.Term()
			return leader == id && f == want
		})
	}
	a := campaign(t, client, "a", patient)
	first := await(t, "a to lead", a.began)
	observed("a", first)
	b := campaign(t, client, "b", patient)
	twoStand(t, client)
	s := store.NewEtcd(client, store.Options{})
	end := func(what string, f store.Fence, want bool) {
		t.Helper()
		if ended, err := s.EndTerm(t.Context(), f); err != nil || ended != want {
			t.Fatalf("EndTerm of %s: %v, %v; want %v", what, ended, err, want)
		}
	}
	end("an earlier term", store.Fence{Key: first.Key, Rev: first.Rev - 1}, false)
	if !leads(t, client, first) {
		t.Fatal("the current term has ended too")
	}
	end("the current term", first, true)
	if leads(t, client, first) {
		t.Fatal("the current term still leads")
	}
	second := await(t, "b to lead", b.began)
	observed("b", second)
	end("an ended term", first, false)
	if !leads(t, client, second) {
		t.Error("the next term has ended too")
	}
}

// quorumless is a client that can lose its quorum: after that, a write waits until the context of its call ends.
type quorumless struct {
	clientv3.KV
	clientv3.Lease

	lost *atomic.Bool
}

func (q quorumless) Txn(ctx context.Context) clientv3.Txn {
	if q.lost.Load() {
		return waitingTxn{ctx}
	}
	return q.KV.Txn(ctx)
}

func (q quorumless) Revoke(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseRevokeResponse, error) {
	if q.lost.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return q.Lease.Revoke(ctx, id)
}

// waitingTxn is a transaction that waits until its context ends.
type waitingTxn struct{ ctx context.Context } //nolint:containedctx // as in clientv3

func (w waitingTxn) If(...clientv3.Cmp) clientv3.Txn  { return w }
func (w waitingTxn) Then(...clientv3.Op) clientv3.Txn { return w }
func (w waitingTxn) Else(...clientv3.Op) clientv3.Txn { return w }

func (w waitingTxn) Commit() (*clientv3.TxnResponse, error) {
	<-w.ctx.Done()
	return nil, w.ctx.Err()
}

// TestCandidateEndsWithoutQuorum: a candidate that waits behind another one ends with its context, although etcd has no quorum
// and cannot delete its key. Without a quorum etcd answers a deletion after some 6 s, and here never: the candidate must not wait for it.
func TestCandidateEndsWithoutQuorum(t *testing.T) {
	client := supervisortest.NewEtcd(t, 1).Members[0].Client()
	a := campaign(t, client, "a", patient)
	await(t, "a to lead", a.began)
	cut := clientv3.NewCtxClient(t.Context())
	q := quorumless{client.KV, client.Lease, new(atomic.Bool)}
	cut.KV, cut.Lease, cut.Watcher = q, q, client.Watcher
	b := campaign(t, cut, "b", patient)
	twoStand(t, client)
	q.lost.Store(true)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.stop()
	}()
	await(t, "the candidate to end", ended)
}

// TestRestartedReplicaEndsItsEarlierTerm: the lease of a process that was killed lives for ten minutes more. When the replica starts again,
// it ends that candidacy, so the next candidate leads. It ends no candidacy of another replica.
func TestRestartedReplicaEndsItsEarlierTerm(t *testing.T) {
	const long = 600
	client := supervisortest.NewEtcd(t, 1).Members[0].Client()
	q := quorumless{client.KV, client.Lease, new(atomic.Bool)}
	dying := clientv3.NewCtxClient(t.Context())
	dying.KV, dying.Lease, dying.Watcher = q, q, client.Watcher
	a := campaign(t, dying, "a", long)
	first := await(t, "a to lead", a.began)
	b := campaign(t, client, "b", long)
	twoStand(t, client)
	q.lost.Store(true) // it cannot resign, as if it were killed
	a.stop()
	if !leads(t, client, first) || len(b.began) > 0 {
		t.Fatal("the term of the killed process has ended")
	}
	again := campaign(t, client, "a", long)
	second := await(t, "b to lead", b.began)
	if leads(t, client, first) || !leads(t, client, second) {
		t.Errorf("the earlier term stands: %v; b's term stands: %v", leads(t, client, first), leads(t, client, second))
	}
	b.leave <- errors.New("refused")
	await(t, "a to lead again", again.began)
}

// leaseless is a store that grants no lease until it has been asked often enough.
type leaseless struct {
	clientv3.Lease
	refused atomic.Int64
	most    int64
}

func (l *leaseless) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	if l.refused.Add(1) <= l.most {
		return nil, errors.New("no quorum")
	}
	return l.Lease.Grant(ctx, ttl)
}

// TestCampaignWithoutStoreIsLoggedOnce: an outage of the store ends no leadership of a replica that did not lead, and is
// one line of its log.
func TestCampaignWithoutStoreIsLoggedOnce(t *testing.T) {
	client := supervisortest.NewEtcd(t, 1).Members[0].Client()
	bounded := clientv3.NewCtxClient(t.Context())
	bounded.KV, bounded.Watcher, bounded.Lease = client.KV, client.Watcher, &leaseless{Lease: client.Lease, most: 4}
	var out bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	leads := make(chan struct{})
	wg.Go(func() {
		logger := slog.New(slog.NewTextHandler(&out, nil))
		store.Campaigner{Client: bounded, ID: "a", TTL: patient, Logger: logger}.Run(ctx, func(ctx context.Context, _ store.Fence) error {
			close(leads)
			<-ctx.Done()
			return nil
		})
	})
	await(t, "a leader after four refused leases", leads)
	cancel()
	wg.Wait()
	log := out.String()
	if strings.Count(log, "level=WARN") != 1 || !strings.Contains(log, "no candidate") || !strings.Contains(log, "no quorum") ||
		strings.Contains(log, "ended") {
		t.Errorf("want one warning of a missing lease, and none of an end:\n%s", log)
	}
}

// TestTermEndsWithItsLease: a term ends with its lease, and its writes are refused. Then the candidate campaigns again.
func TestTermEndsWithItsLease(t *testing.T) {
	client := supervisortest.NewEtcd(t, 1).Members[0].Client()
	a := campaign(t, client, "a", patient)
	f := await(t, "a to lead", a.began)
	resp, err := client.Get(t.Context(), f.Key)
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("the election key: %v, %v", resp, err)
	}
	if _, err := client.Revoke(t.Context(), clientv3.LeaseID(resp.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
	if leads(t, client, f) {
		t.Error("the fence stands without its lease")
	}
	if err := await(t, "the term to end", a.ended); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("the term ended by %v, want the loss of the lease", err)
	}
	if next := await(t, "a to lead again", a.began); next == f {
		t.Error("two terms with one fence")
	}
}

// TestWorkEndsTerm: a leader that cannot work, for instance because the store refuses a commit, makes room.
func TestWorkEndsTerm(t *testing.T) {
	client := supervisortest.NewEtcd(t, 1).Members[0].Client()
	a := campaign(t, client, "a", patient)
	f := await(t, "a to lead", a.began)
	a.leave <- errors.New("refused")
	if next := await(t, "another term", a.began); next == f {
		t.Error("the term goes on")
	}
	if leads(t, client, f) {
		t.Error("the fence outlives its term")
	}
}

// TestTermEndsWithoutQuorum: without a quorum the lease is not renewed, and the term ends by itself. With a quorum there is a
// leader again.
func TestTermEndsWithoutQuorum(t *testing.T) {
	etcd := supervisortest.NewEtcd(t, 3)
	a := campaign(t, etcd.Members[0].Client(), "a", store.LeaseTTL)
	f := await(t, "a to lead", a.began)
	etcd.Stop(t, 1)
	etcd.Stop(t, 2)
	if err := await(t, "the term to end", a.ended); err == nil {
		t.Error("the term ended without a cause")
	}
	etcd.Start(t, 1)
	next := await(t, "a to lead again", a.began)
	if next == f {
		t.Error("two terms with one fence")
	}
	supervisortest.Eventually(t, "the old fence to fall", func() bool {
		_, err := store.NewEtcd(etcd.Members[0].Client(), store.Options{}).Confirm(t.Context(), f)
		return errors.Is(err, store.ErrNotLeader) // etcd may change its leader again
	})
}
