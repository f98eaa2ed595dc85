package store_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
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

// campaign runs a campaigner until the test ends.
func campaign(t *testing.T, client *clientv3.Client, id string) *candidate {
	t.Helper()
	c := &candidate{began: make(chan store.Fence, 8), ended: make(chan error, 8), leave: make(chan error)}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		store.Campaigner{Client: client, ID: id, Logger: slog.New(slog.DiscardHandler)}.Run(ctx, func(ctx context.Context, f store.Fence) error {
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

// TestOneCandidateLeadsAtATime: one candidate leads at a time. When it resigns, the other follows at once, with its own fence, and
// every observer sees it.
func TestOneCandidateLeadsAtATime(t *testing.T) {
	client := supervisortest.NewEtcd(t, 1).Members[0].Client()
	observer, octx := store.NewObserver(), t.Context()
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(octx)
	wg.Go(func() { observer.Run(ctx, client) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
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
	a := campaign(t, client, "a")
	first := await(t, "a to lead", a.began)
	follows("a")
	b := campaign(t, client, "b")
	supervisortest.Eventually(t, "b to stand as a candidate", func() bool {
		resp, err := client.Get(t.Context(), store.ElectionPrefix+"/", clientv3.WithPrefix())
		return err == nil && len(resp.Kvs) == 2
	})
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

// TestCandidateEndsWithoutQuorum: a candidate that waits behind another one ends soon after its context, although etcd has no
// quorum and cannot delete its key. etcd itself answers a deletion only after some 6 s: the candidate must not wait for that.
func TestCandidateEndsWithoutQuorum(t *testing.T) {
	e := supervisortest.NewEtcd(t, 3)
	client := e.Members[1].Client()
	a := campaign(t, client, "a")
	await(t, "a to lead", a.began)
	b := campaign(t, client, "b")
	supervisortest.Eventually(t, "b to stand as a candidate", func() bool {
		resp, err := client.Get(t.Context(), store.ElectionPrefix+"/", clientv3.WithPrefix())
		return err == nil && len(resp.Kvs) == 2
	})
	e.Stop(t, 0)
	e.Stop(t, 2)
	begun, ended := time.Now(), make(chan time.Duration, 1)
	go func() {
		b.stop()
		ended <- time.Since(begun)
	}()
	if _, err := client.Delete(context.Background(), "key"); err == nil {
		t.Error("there is a quorum")
	}
	answered := time.Since(begun)
	if took := <-ended; took > answered*2/3 { // relative: this machine may be busy
		t.Errorf("the candidate ended after %s, and etcd without a quorum answered a deletion after %s: want it not to wait", took, answered)
	}
}

// TestTermEndsWithItsLease: a term ends with its lease, and its writes are refused. Then the candidate campaigns again.
func TestTermEndsWithItsLease(t *testing.T) {
	client := supervisortest.NewEtcd(t, 1).Members[0].Client()
	a := campaign(t, client, "a")
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
	a := campaign(t, client, "a")
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
	a := campaign(t, etcd.Members[0].Client(), "a")
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
	supervisortest.Eventually(t, "the old fence to fall", func() bool { return !leads(t, etcd.Members[0].Client(), f) })
}
