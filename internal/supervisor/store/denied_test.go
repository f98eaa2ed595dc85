package store_test

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/testing/freeport"
)

// outside starts an etcd with its default limits, as an operator may run it, and returns a client.
func outside(t *testing.T) *clientv3.Client {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel = t.TempDir(), "fatal"
	at := func() []url.URL { return []url.URL{{Scheme: "http", Host: freeport.Addr(t).String()}} }
	cfg.ListenClientUrls, cfg.ListenPeerUrls = at(), at()
	cfg.AdvertiseClientUrls, cfg.AdvertisePeerUrls = cfg.ListenClientUrls, cfg.ListenPeerUrls
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(time.Minute):
		t.Fatal("etcd is not ready in time")
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{cfg.ListenClientUrls[0].String()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// fullList signs a list with the greatest number of denials.
func fullList(t *testing.T, op *pki.Signer, version uint64) []byte {
	t.Helper()
	l := &lofamov1.DenyList{Cluster: "c", Version: version, Issued: timestamppb.Now()}
	for i := range pki.MaxDenials {
		l.Denials = append(l.Denials, &lofamov1.Denial{
			Role: string(pki.RoleNode), Name: fmt.Sprintf("node-%05d.%s/host", i/2,
				strings.Repeat("x", 40)), Before: l.GetIssued(), Revoked: l.GetIssued(),
			By: "operator/o", Reason: strings.Repeat("r", pki.MaxDenialReason-20),
		})
	}
	signed, err := pki.SignDenyList(l, op)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := proto.Marshal(signed)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestFullDenyListIsReplacedInOutsideEtcd: an etcd with default limits accepts a full list in place of another full
// list.
func TestFullDenyListIsReplacedInOutsideEtcd(t *testing.T) {
	ca, err := pki.NewCA("c")
	if err != nil {
		t.Fatal(err)
	}
	op, err := ca.IssueSigner(pki.Identity{Cluster: "c", Role: pki.RoleOperator, Name: "o"})
	if err != nil {
		t.Fatal(err)
	}
	s := store.NewEtcd(outside(t), store.Options{})
	one, two := fullList(t, op, 1), fullList(t, op, 2)
	if both := len(one) + len(two); both <= embed.DefaultMaxRequestBytes {
		t.Fatalf("both lists have %d bytes: the test wants more than a request may have", both)
	}
	if _, err := s.PutDenied(t.Context(), nil, one); err != nil {
		t.Fatalf("first list: %v", err)
	}
	for what, old := range map[string][]byte{"none": nil, "another": two} {
		if _, err := s.PutDenied(t.Context(), old, two); !errors.Is(err, store.ErrConflict) {
			t.Errorf("replace the first list, given %s as the stored one: %v: want ErrConflict", what, err)
		}
	}
	if _, err := s.PutDenied(t.Context(), one, two); err != nil {
		t.Errorf("replace the first list by the second one: %v", err)
	}
}
