package store_test

import (
	"context"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// lateEtcd has a change at revision 5 that its reads show only from the third one on. responses are those of its watch.
type lateEtcd struct {
	clientv3.KV
	clientv3.Watcher

	t         *testing.T
	responses []clientv3.WatchResponse
	reads     int
}

// Watch implements clientv3.Watcher.
func (e *lateEtcd) Watch(context.Context, string, ...clientv3.OpOption) clientv3.WatchChan {
	out := make(chan clientv3.WatchResponse, len(e.responses))
	for _, r := range e.responses {
		out <- r
	}
	close(out)
	return out
}

// Get implements clientv3.KV.
func (e *lateEtcd) Get(context.Context, string, ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	e.reads++
	sup, revision := &lofamov1.Supervisor{Id: "s1"}, int64(4)
	if e.reads > 2 {
		sup.Removed, revision = true, 5
	}
	value, err := proto.Marshal(sup)
	if err != nil {
		e.t.Error(err)
	}
	return &clientv3.GetResponse{Header: &etcdserverpb.ResponseHeader{Revision: revision}, Kvs: []*mvccpb.KeyValue{{Value: value}}}, nil
}

// TestListOfReplicasShowsKnownChange: etcd announces a change, or begins a watch after it, before the copy that answers shows the change.
// The list is read until it has the change.
func TestListOfReplicasShowsKnownChange(t *testing.T) {
	begun := func(revision int64) clientv3.WatchResponse {
		return clientv3.WatchResponse{Created: true, Header: &etcdserverpb.ResponseHeader{Revision: revision}}
	}
	for name, responses := range map[string][]clientv3.WatchResponse{
		"announced":        {begun(4), {Events: []*clientv3.Event{{Kv: &mvccpb.KeyValue{ModRevision: 5}}}}},
		"before the watch": {begun(5)},
	} {
		late := &lateEtcd{t: t, responses: responses}
		c := clientv3.NewCtxClient(t.Context())
		c.KV, c.Watcher = late, late
		var last []*lofamov1.Supervisor
		err := store.NewEtcd(c, store.Options{}).FollowSupervisors(t.Context(), func(list []*lofamov1.Supervisor) { last = list })
		if err != nil || len(last) != 1 || !last[0].GetRemoved() {
			t.Errorf("%s: after %d reads the list is %v, %v: want the change", name, late.reads, last, err)
		}
	}
}
