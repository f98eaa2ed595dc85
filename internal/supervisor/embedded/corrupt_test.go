package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lofamo/lofamo/internal/supervisor/checksum"
	"github.com/lofamo/lofamo/internal/supervisor/embedded"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// trio starts three members of one cluster.
func trio(t *testing.T) (cfgs []embedded.Config, members []*embedded.Member) {
	t.Helper()
	keys := keys(t)
	var initial []string
	for i := range 3 {
		cfg := config(t, keys)
		cfg.Name = fmt.Sprintf("s%d", i+1)
		initial = append(initial, cfg.Name+"="+cfg.PeerURL)
		cfgs = append(cfgs, cfg)
	}
	for i := range cfgs {
		cfgs[i].InitialCluster = strings.Join(initial, ",")
		m, err := embedded.Start(cfgs[i])
		if err != nil {
			t.Fatal(err)
		}
		members = append(members, m)
	}
	t.Cleanup(func() {
		for _, m := range members {
			if m != nil {
				_ = m.Stop(context.Background())
			}
		}
	})
	return cfgs, members
}

// TestDamagedValueReachesNobody changes one value in the file of one of three members: the member refuses to start with it, and the
// others serve the true value.
func TestDamagedValueReachesNobody(t *testing.T) {
	cfgs, members := trio(t)
	put(t, members[0].Client(), damagedKey, "revoked")
	supervisortest.Eventually(t, "the value at the third member", func() bool {
		resp, err := members[2].Client().Get(t.Context(), damagedKey, clientv3.WithSerializable())
		return err == nil && len(resp.Kvs) == 1
	})
	if err := members[2].Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	members[2] = nil
	damageValue(t, cfgs[2].DataDir)
	_, err := embedded.Start(cfgs[2])
	var damaged *checksum.DamagedError
	if !errors.As(err, &damaged) || damaged.Key != damagedKey {
		t.Errorf("start with a damaged value: %v", err)
	}
	for _, m := range members[:2] {
		resp, err := m.Client().Get(t.Context(), damagedKey)
		if err != nil || string(resp.Kvs[0].Value) != "revoked" {
			t.Errorf("%s: %v, %v", m.ID(), resp, err)
		}
	}
}

// TestDamagedValueEndsMember: a value that is damaged after the start is not served, and ends its member with the remedy.
func TestDamagedValueEndsMember(t *testing.T) {
	cfg := config(t, keys(t))
	m := start(t, cfg)
	put(t, m.Client(), damagedKey, "all is well")
	if err := m.PutUnchecked(t.Context(), damagedKey, "all is wrong"); err != nil {
		t.Fatal(err)
	}
	var damaged *checksum.DamagedError
	if resp, err := m.Client().Get(t.Context(), damagedKey); !errors.As(err, &damaged) || damaged.Member == 0 {
		t.Errorf("read of a damaged value: %v, %v", resp, err)
	}
	select {
	case err := <-m.Err():
		if damage := new(embedded.DamageError); !errors.As(err, &damage) || !strings.Contains(err.Error(), "supervisor replace") {
			t.Errorf("the member ended with %v", err)
		}
	case <-time.After(supervisortest.Wait):
		t.Error("the member goes on")
	}
}

// put retries until the members have a leader.
func put(t *testing.T, c *clientv3.Client, key, value string) {
	t.Helper()
	supervisortest.Eventually(t, "a write", func() bool {
		_, err := c.Put(t.Context(), key, value)
		return err == nil
	})
}

// TestHeldWritesAreRefused: a member that holds writes serves reads, deletions and the keys of elections.
func TestHeldWritesAreRefused(t *testing.T) {
	c := start(t, config(t, keys(t)))
	client := c.Client()
	put(t, client, damagedKey, "before")
	lease, err := client.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	c.Hold(true)
	if _, err := client.Put(t.Context(), damagedKey, "after"); err == nil || !strings.Contains(err.Error(), "no space") &&
		!strings.Contains(err.Error(), "database space exceeded") {
		t.Errorf("a held write: %v", err)
	}
	if _, err := client.Txn(t.Context()).Then(clientv3.OpPut(damagedKey, "after")).Commit(); err == nil {
		t.Error("a held transaction is committed")
	}
	if resp, err := client.Get(t.Context(), damagedKey); err != nil || string(resp.Kvs[0].Value) != "before" {
		t.Errorf("a read: %v, %v", resp, err)
	}
	if _, err := client.Put(t.Context(), "election", "s1", clientv3.WithLease(lease.ID)); err != nil {
		t.Errorf("a key with a lease: %v", err)
	}
	if _, err := client.Delete(t.Context(), damagedKey); err != nil {
		t.Errorf("a deletion: %v", err)
	}
	c.Hold(false)
	put(t, client, damagedKey, "after")
}
