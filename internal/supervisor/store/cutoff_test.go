package store_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// outsideCluster starts an etcd of three members, as an operator may run it.
func outsideCluster(t *testing.T) (members []*embed.Etcd) {
	t.Helper()
	var configs []*embed.Config
	var initial []string
	at := func() []url.URL { return []url.URL{{Scheme: "http", Host: freeport.Addr(t).String()}} }
	for i := range 3 {
		cfg := embed.NewConfig()
		cfg.Name, cfg.Dir, cfg.LogLevel = fmt.Sprintf("m%d", i), t.TempDir(), "fatal"
		cfg.ListenClientUrls, cfg.ListenPeerUrls = at(), at()
		cfg.AdvertiseClientUrls, cfg.AdvertisePeerUrls = cfg.ListenClientUrls, cfg.ListenPeerUrls
		configs, initial = append(configs, cfg), append(initial, cfg.Name+"="+cfg.ListenPeerUrls[0].String())
	}
	for _, cfg := range configs {
		cfg.InitialCluster = strings.Join(initial, ",")
		e, err := embed.StartEtcd(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		members = append(members, e)
	}
	for _, e := range members {
		select {
		case <-e.Server.ReadyNotify():
		case <-time.After(time.Minute):
			t.Fatal("etcd is not ready in time")
		}
	}
	return members
}

// endpointOf returns the address of a member for clients.
func endpointOf(e *embed.Etcd) string { return e.Config().ListenClientUrls[0].String() }

// connect returns a client of one member.
func connect(t *testing.T, to *embed.Etcd) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpointOf(to)}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestWatchesLeaveMemberThatIsCutOffFromItsQuorum: the member keeps its connections to clients, and its watches are silent. They go on at
// other members.
func TestWatchesLeaveMemberThatIsCutOffFromItsQuorum(t *testing.T) {
	members := outsideCluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*supervisortest.Wait)
	defer cancel()
	near, far := connect(t, members[0]), connect(t, members[1])
	s := store.NewEtcd(near, store.Options{Bookmarks: 100 * time.Millisecond})
	revisions := s.Follow(ctx, 1, func(string) bool { return true })
	lists, followed := make(chan int, 100), make(chan error, 1)
	go func() {
		followed <- s.FollowSupervisors(ctx, func(list []*lofamov1.Supervisor) { lists <- len(list) })
	}()
	leaders := store.NewObserver()
	observed := make(chan struct{})
	go func() { defer close(observed); leaders.Run(ctx, near) }()
	defer func() { cancel(); <-followed; <-observed }()
	put := func(c *clientv3.Client, key, value string) {
		t.Helper()
		write(ctx, t, func() error { _, err := c.Put(ctx, key, value); return err })
	}
	put(near, store.ElectionPrefix+"/1", "before")
	if u := <-revisions; u.Err != nil {
		t.Fatal(u.Err)
	}
	if n := <-lists; n != 0 {
		t.Fatalf("%d supervisors: want none yet", n)
	}
	awaitLeader(ctx, t, leaders, "before")
	near.SetEndpoints(endpointOf(members[0]), endpointOf(members[1]), endpointOf(members[2]))
	for _, other := range members[1:] {
		cut(members[0], other)
	}
	write(ctx, t, func() error { _, err := far.Delete(ctx, store.ElectionPrefix+"/1"); return err })
	put(far, store.ElectionPrefix+"/2", "after")
	write(ctx, t, func() error {
		return store.NewEtcd(far, store.Options{}).PutSupervisor(ctx, &lofamov1.Supervisor{Id: "s1"})
	})
	for n := 0; n == 0; { // a resumed watch begins with the present list
		select {
		case n = <-lists:
		case <-ctx.Done():
			t.Fatal("the list of supervisors stays empty: want the new one")
		}
	}
	awaitLeader(ctx, t, leaders, "after")
	for found := false; !found; {
		u, open := <-revisions
		if !open || u.Err != nil {
			t.Fatalf("the watch ended: %v", u.Err)
		}
		for _, d := range u.GetDocuments() {
			found = found || strings.HasSuffix(d.GetKey(), "/s1")
		}
	}
}

// TestCandidateKeepsItsPlaceWithoutQuorum: a candidate whose etcd member has no leader for a time leads afterwards with the key that it
// has had from the beginning.
func TestCandidateKeepsItsPlaceWithoutQuorum(t *testing.T) {
	members := outsideCluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*supervisortest.Wait)
	defer cancel()
	c := connect(t, members[0])
	const first = store.ElectionPrefix + "/0"
	if _, err := c.Put(ctx, first, "another"); err != nil {
		t.Fatal(err)
	}
	fences, ended := make(chan store.Fence, 1), make(chan struct{})
	go func() {
		defer close(ended)
		store.Campaigner{Client: c, ID: "s1", TTL: 60, Logger: slog.New(slog.DiscardHandler)}.Run(ctx,
			func(ctx context.Context, f store.Fence) error { fences <- f; <-ctx.Done(); return nil })
	}()
	defer func() { cancel(); <-ended }()
	place := ""
	for w := range c.Watch(ctx, store.ElectionPrefix+"/", clientv3.WithPrefix(), clientv3.WithRev(1), clientv3.WithFilterDelete()) {
		for _, ev := range w.Events {
			if string(ev.Kv.Value) == "s1" {
				place = string(ev.Kv.Key)
			}
		}
		if place != "" {
			break
		}
	}
	// This watch ends when the member has had no leader for a while, as the candidate's does.
	led := c.Watch(clientv3.WithRequireLeader(ctx), first, clientv3.WithCreatedNotify())
	<-led
	each(members, cut)
	for w := range led {
		if err := w.Err(); err != nil && !errors.Is(err, rpctypes.ErrNoLeader) {
			t.Fatal(err)
		}
	}
	each(members, mend)
	write(ctx, t, func() error { _, err := c.Delete(ctx, first); return err })
	select {
	case f := <-fences:
		if f.Key != place {
			t.Errorf("the candidate leads with %s, want %s, its key before the loss of the quorum", f.Key, place)
		}
	case <-ctx.Done():
		t.Fatal("the candidate never leads")
	}
}

// write calls do until it succeeds. A write fails while the members have no leader: the cut one may have led.
func write(ctx context.Context, t *testing.T, do func() error) {
	t.Helper()
	for err := do(); err != nil; err = do() {
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// each calls do for all pairs of members.
func each(members []*embed.Etcd, do func(a, b *embed.Etcd)) {
	for i, a := range members {
		for _, b := range members[:i] {
			do(a, b)
		}
	}
}

// mend ends cut.
func mend(a, b *embed.Etcd) {
	a.Server.MendPeer(b.Server.MemberID())
	b.Server.MendPeer(a.Server.MemberID())
}

// cut drops all messages between two members.
func cut(a, b *embed.Etcd) {
	a.Server.CutPeer(b.Server.MemberID())
	b.Server.CutPeer(a.Server.MemberID())
}

// awaitLeader waits until the observer names a leader.
func awaitLeader(ctx context.Context, t *testing.T, o *store.Observer, want string) {
	t.Helper()
	for {
		id, changed := o.Leader()
		if id == want {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("the leader is %q: want %q", id, want)
		}
	}
}
