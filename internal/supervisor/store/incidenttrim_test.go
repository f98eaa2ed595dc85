package store_test

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// unreadable is a store whose transactions without conditions fail, as reads do.
type unreadable struct {
	clientv3.KV

	is bool
}

type unreadableTxn struct {
	clientv3.Txn

	fails bool
}

func (u *unreadable) Txn(ctx context.Context) clientv3.Txn {
	return &unreadableTxn{u.KV.Txn(ctx), u.is}
}

func (x *unreadableTxn) If(cs ...clientv3.Cmp) clientv3.Txn { return x.Txn.If(cs...) }

func (x *unreadableTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	x.Txn = x.Txn.Then(ops...)
	return x
}

func (x *unreadableTxn) Commit() (*clientv3.TxnResponse, error) {
	if x.fails {
		return nil, context.DeadlineExceeded
	}
	return x.Txn.Commit()
}

// TestTrimmedIncidentsLeaveABound: the transaction that deletes incidents stores the revision of their last change. Every replica reads it,
// also after a restart. Leaders of earlier versions leave it as it is.
func TestTrimmedIncidentsLeaveABound(t *testing.T) {
	c := supervisortest.NewEtcd(t, 1).Members[0].Client()
	s := store.NewEtcd(c, store.Options{})
	broken := &unreadable{KV: c.KV}
	c.KV = broken
	snap, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Writer(elect(t, c), store.Meta{Cluster: "test"}, snap)
	if err != nil {
		t.Fatal(err)
	}
	f := following(t, s)
	put := func(id string, state lofamov1.IncidentState) uint64 {
		t.Helper()
		kv, err := store.IncidentPut(&lofamov1.Incident{Id: id, State: state})
		if err != nil {
			t.Fatal(err)
		}
		return committed(t, w, store.Batch{Puts: []store.KV{kv}})
	}
	trim := func(ids ...string) uint64 {
		t.Helper()
		var b store.Batch
		for _, id := range ids {
			record, notes, responses := store.IncidentKeys(id)
			b.Deletes = append(b.Deletes, record, notes, responses)
		}
		return committed(t, w, b)
	}
	check := func(what string, revision, want uint64) {
		t.Helper()
		supervisortest.Eventually(t, "the feed at the store's revision", func() bool { return f.View().Revision >= revision })
		if got := f.View().Trimmed; got != want {
			t.Errorf("%s: the bound is %d: want %d", what, got, want)
		}
		if v := following(t, s).View(); v.Trimmed != want || len(v.Incidents) != len(f.View().Incidents) {
			t.Errorf("%s: after a restart the bound is %d with %d incidents: want %d with %d", what, v.Trimmed, len(v.Incidents), want,
				len(f.View().Incidents))
		}
	}
	const open, closed = lofamov1.IncidentState_OPEN, lofamov1.IncidentState_CLOSED
	old := put("k3f9-oldaaaaa", closed)
	put("k3f9-aaaaaaaa", open)
	last := put("k3f9-aaaaaaaa", closed)
	check("nothing trimmed", last, 0)
	check("one incident", trim("k3f9-aaaaaaaa"), last)
	check("one that ended before it", trim("k3f9-oldaaaaa"), last)
	if old >= last {
		t.Errorf("revision %d after %d", last, old)
	}

	put("k3f9-bbbbbbbb", closed)
	_, _, responses := store.IncidentKeys("k3f9-bbbbbbbb")
	b, err := proto.Marshal(&lofamov1.Incident{ResponseCount: 1})
	if err != nil {
		t.Fatal(err)
	}
	last = committed(t, w, store.Batch{Puts: []store.KV{{Key: responses, Value: b}}})
	check("one whose response changed later", trim("k3f9-bbbbbbbb"), last)

	put("k3f9-cccccccc", open)
	ended := trim("k3f9-cccccccc")
	check("one whose end was not stored", ended, ended)
	check("one that was never stored", trim("k3f9-dddddddd"), ended)

	put("k3f9-eeeeeeee", closed)
	resp, err := c.Delete(t.Context(), store.Prefix+"incidents/records/k3f9-eeeeeeee")
	if err != nil {
		t.Fatal(err)
	}
	check("a leader of an earlier version", uint64(resp.Header.Revision), ended)

	put("k3f9-ffffffff", closed)
	broken.is = true
	unread := trim("k3f9-ffffffff")
	broken.is = false
	check("unread", unread, unread)

	if _, err := c.Put(t.Context(), store.Prefix+"incidents/trimmed", "{"); err != nil {
		t.Fatal(err)
	}
	damaged, err := s.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	check("damaged", damaged, damaged)
}

func committed(t *testing.T, w store.Committer, b store.Batch) uint64 {
	t.Helper()
	revision, err := w.Commit(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}
