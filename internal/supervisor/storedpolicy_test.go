package supervisor_test

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/response/policy"
)

// storedPolicy stores a policy document by the etcd member of a supervisor, as its API does, and returns the store.
func storedPolicy(t *testing.T, member config.Supervisor, document string) *store.Etcd {
	t.Helper()
	etcd := etcdClient(t, member)
	s := store.NewEtcd(etcd, store.Options{})
	docs, err := policy.Parse([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	set, err := s.PolicySet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w, err := set.Write([]store.StoredPolicy{{Name: docs[0].Name, JSON: docs[0].JSON, By: "operator/ann", At: time.Now()}})
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range w.Puts {
		if _, err := etcd.Put(t.Context(), kv.Key, string(kv.Value)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}
