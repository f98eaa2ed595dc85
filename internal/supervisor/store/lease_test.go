package store_test

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// slowLease keeps leases alive once every period, as a replica that gets little processor time.
type slowLease struct {
	clientv3.Lease
	period atomic.Int64
}

func (s *slowLease) KeepAlive(ctx context.Context, id clientv3.LeaseID) (<-chan *clientv3.LeaseKeepAliveResponse, error) {
	answers := make(chan *clientv3.LeaseKeepAliveResponse)
	go func() {
		defer close(answers)
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Duration(s.period.Load())):
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

// TestLeaseFollowsSpeedOfReplica: a replica that is too slow for its lease loses it, and leads with a longer one. Once it is
// fast again, the lease becomes as short as before, within the same term.
func TestLeaseFollowsSpeedOfReplica(t *testing.T) {
	t.Parallel()
	client := supervisortest.NewEtcd(t, 1).Members[0].Client()
	slow := clientv3.NewCtxClient(t.Context())
	leases := &slowLease{Lease: client.Lease}
	leases.period.Store(int64(2500 * time.Millisecond))
	slow.KV, slow.Watcher, slow.Lease = client.KV, client.Watcher, leases

	// granted returns the time to live of the lease of the election's key, in seconds; 0: the key is gone.
	granted := func(f store.Fence) int64 {
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
	began, ended := make(chan store.Fence, 100), make(chan error, 100)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		c := store.Campaigner{Client: slow, ID: "a", Ease: 3 * time.Second, Logger: slog.New(slog.DiscardHandler)}
		c.Run(ctx, func(ctx context.Context, f store.Fence) error {
			began <- f
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return nil
		})
	})
	defer wg.Wait()
	defer cancel()

	var f store.Fence
	for longest := int64(0); longest < 4; longest = granted(f) {
		f = await(t, "a term with a longer lease", began)
	}
	if len(ended) == 0 {
		t.Error("no lease was lost: the replica is not slow")
	}
	for len(ended) > 0 {
		<-ended
	}
	leases.period.Store(int64(200 * time.Millisecond))
	supervisortest.Eventually(t, "a lease of 1 s again", func() bool { return granted(f) == store.LeaseTTL })
	if len(ended) > 0 || !leads(t, client, f) {
		t.Error("the term ended when its lease became shorter")
	}
}
