package embedded_test

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lofamo/lofamo/internal/supervisor/embedded"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/storetest"
)

// term makes the caller the leader and commits the given number of events.
func term(t *testing.T, c *clientv3.Client, events int) (store.Fence, *store.Etcd) {
	t.Helper()
	if _, err := c.Delete(t.Context(), store.ElectionPrefix+"/x"); err != nil {
		t.Fatal(err)
	}
	resp, err := c.Put(t.Context(), store.ElectionPrefix+"/x", "test")
	if err != nil {
		t.Fatal(err)
	}
	fence := store.Fence{Key: store.ElectionPrefix + "/x", Rev: resp.Header.Revision}
	s := store.NewEtcd(c, store.Options{})
	snap, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Writer(fence, store.Meta{Cluster: "test"}, snap)
	if err != nil {
		t.Fatal(err)
	}
	for i := range events {
		if _, err := w.Commit(t.Context(), storetest.Events(i)); err != nil {
			t.Fatal(err)
		}
	}
	return fence, s
}

func identity(t *testing.T, s *store.Etcd, fence store.Fence) store.Identity {
	t.Helper()
	id, err := s.Identity(t.Context(), fence)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestStoreIdentityChangesOnRestore: a store is the same from term to term, and another one when it was put back to a snapshot: its own are
// then the events since.
func TestStoreIdentityChangesOnRestore(t *testing.T) {
	keys := keys(t)
	m := start(t, config(t, keys))
	fence, s := term(t, m.Client(), 3)
	was := identity(t, s, fence)
	if was.ID == "" || was.First != 1 || was.Next != 4 {
		t.Errorf("%+v: want event 1 to be its first, 4 its next", was)
	}
	next, s := term(t, m.Client(), 2)
	if is := identity(t, s, next); is.ID != was.ID || is.First != 1 || is.Next != 6 || is.Revision <= was.Revision {
		t.Errorf("%+v after %+v, in another term", is, was)
	}
	file := filepath.Join(t.TempDir(), "snapshot")
	save(t, m.Client(), file)
	term(t, m.Client(), 4)

	for _, tc := range []struct {
		name   string
		events int // before the first request
	}{{"asked at once", 0}, {"asked later", 2}} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := config(t, keys)
			cfg.Token = "restored"
			if _, err := embedded.Restore(embedded.RestoreConfig{
				Snapshot: file, DataDir: cfg.DataDir, Name: cfg.Name, PeerURL: cfg.PeerURL, InitialCluster: cfg.InitialCluster,
				Token: cfg.Token, At: time.Now(), Logger: slog.New(slog.DiscardHandler),
			}); err != nil {
				t.Fatal(err)
			}
			m := start(t, cfg)
			fence, s := term(t, m.Client(), tc.events)
			is := identity(t, s, fence)
			if is.ID == was.ID || is.From != was.ID || is.First != 6 || is.Next != 6+uint64(tc.events) {
				t.Errorf("put back: %+v: want another one than %s, with event 6 as its first", is, was.ID)
			}
			fence, s = term(t, m.Client(), 1)
			if again := identity(t, s, fence); again.ID != is.ID || again.First != 6 {
				t.Errorf("%+v after %+v, in another term", again, is)
			}
		})
	}
	if is := identity(t, store.NewEtcd(m.Client(), store.Options{}), lastFence(t, m.Client())); is.ID != was.ID {
		t.Errorf("that of which the snapshot was made is %s: want %s", is.ID, was.ID)
	}
}

func lastFence(t *testing.T, c *clientv3.Client) store.Fence {
	t.Helper()
	resp, err := c.Get(t.Context(), store.ElectionPrefix+"/x")
	if err != nil {
		t.Fatal(err)
	}
	return store.Fence{Key: store.ElectionPrefix + "/x", Rev: resp.Kvs[0].CreateRevision}
}

// TestIdentityComesFromLeader: a former leader cannot give a store an identity.
func TestIdentityComesFromLeader(t *testing.T) {
	c := start(t, config(t, keys(t))).Client()
	old, s := term(t, c, 0)
	term(t, c, 0)
	if id, err := s.Identity(t.Context(), old); !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("%+v, %v: want %v", id, err, store.ErrNotLeader)
	}
}

func save(t *testing.T, c *clientv3.Client, file string) {
	t.Helper()
	r, err := c.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
