package supervisor

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/supervisor/embedded"
	"github.com/lofamo/lofamo/internal/supervisor/replica"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/servicenet/gossip"
)

// TestReplicaListMergesConfigurationAndStore: the configuration lists s1, s2 and s3.
func TestReplicaListMergesConfigurationAndStore(t *testing.T) {
	configured := []config.ReplicaEntry{{ID: "s2", GRPC: "c2"}, {ID: "s1", GRPC: "c1"}, {ID: "s3", GRPC: "c3"}}
	said := func(id, addr string) *lofamov1.Supervisor { return &lofamov1.Supervisor{Id: id, Address: addr} }
	removed := func(id string) *lofamov1.Supervisor { return &lofamov1.Supervisor{Id: id, Removed: true} }
	for name, tc := range map[string]struct {
		said []*lofamov1.Supervisor
		want string
	}{
		"nothing was said":             {nil, "s2=c2 s1=c1 s3=c3"},
		"all said what we know":        {[]*lofamov1.Supervisor{said("s1", "c1"), said("s2", "c2"), said("s3", "c3")}, "s2=c2 s1=c1 s3=c3"},
		"one has moved":                {[]*lofamov1.Supervisor{said("s1", "new")}, "s2=c2 s1=new s3=c3"},
		"two were added":               {[]*lofamov1.Supervisor{said("s5", "c5"), said("s4", "c4")}, "s2=c2 s1=c1 s3=c3 s4=c4 s5=c5"},
		"a configured one was removed": {[]*lofamov1.Supervisor{removed("s2"), said("s1", "c1")}, "s1=c1 s3=c3"},
		"an added one was removed":     {[]*lofamov1.Supervisor{removed("s4")}, "s2=c2 s1=c1 s3=c3"},
		"one took another's place":     {[]*lofamov1.Supervisor{removed("s3"), said("s9", "c9")}, "s2=c2 s1=c1 s9=c9"},
	} {
		var got []string
		for _, sup := range mergeReplicas(configured, tc.said) {
			got = append(got, fmt.Sprintf("%s=%s", sup.GetId(), sup.GetAddress()))
		}
		if s := strings.Join(got, " "); s != tc.want {
			t.Errorf("%s: %s, want %s", name, s, tc.want)
		}
	}
}

// listOnly is an etcd that announces and reads the list of replicas, but has no quorum for its list of members.
type listOnly struct {
	clientv3.KV
	clientv3.Cluster
	clientv3.Watcher

	watch chan clientv3.WatchResponse

	mu       sync.Mutex
	revision int64
	list     []*lofamov1.Supervisor
}

func (l *listOnly) MemberList(context.Context, ...clientv3.OpOption) (*clientv3.MemberListResponse, error) {
	return nil, errors.New("no quorum")
}

func (l *listOnly) Watch(context.Context, string, ...clientv3.OpOption) clientv3.WatchChan {
	return l.watch
}

func (l *listOnly) Get(context.Context, string, ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	resp := &clientv3.GetResponse{Header: &etcdserverpb.ResponseHeader{Revision: l.revision}}
	for _, sup := range l.list {
		val, err := proto.Marshal(sup)
		if err != nil {
			return nil, err
		}
		resp.Kvs = append(resp.Kvs, &mvccpb.KeyValue{Value: val})
	}
	return resp, nil
}

// put adds an entry to the list and announces it.
func (l *listOnly) put(sup *lofamov1.Supervisor) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.revision++
	l.list = append(l.list, sup)
	l.watch <- clientv3.WatchResponse{Events: []*clientv3.Event{{Kv: &mvccpb.KeyValue{ModRevision: l.revision}}}}
}

// TestReplicaOutsideListFollowsIt: a replica that was removed from the list still learns of changes to the list while etcd does not
// confirm its member. It logs the failure once, and ends with its context.
func TestReplicaOutsideListFollowsIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		etcd, c := &listOnly{watch: make(chan clientv3.WatchResponse, 2)}, clientv3.NewCtxClient(ctx)
		c.KV, c.Cluster, c.Watcher = etcd, etcd, etcd
		peers, err := replica.Dial(nil, func(string) (*tls.Config, error) { return nil, errors.New("not needed") })
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		s := &Supervisor{
			store:  storePart{Etcd: store.NewEtcd(c, store.Options{}), member: &embedded.Member{}, client: c},
			engine: enginePart{replicas: newReplicas(nil), peers: peers},
		}
		s.cfg.ID, s.logger = "s1", slog.New(slog.NewTextHandler(&log, nil))
		var wg sync.WaitGroup
		wg.Go(func() { s.followReplicas(ctx) })
		etcd.put(&lofamov1.Supervisor{Id: "s1", Removed: true})
		synctest.Wait()
		etcd.put(&lofamov1.Supervisor{Id: "s2", Address: "c2"})
		time.Sleep(10 * publishRetry)
		if got := s.engine.replicas.all(); len(got) != 1 || got[0].GetId() != "s2" {
			t.Errorf("known replicas %v: want s2, which was added after the removal", got)
		}
		cancel()
		close(etcd.watch) // as etcd's client does when the context of a watch ends
		wg.Wait()
		if n := strings.Count(log.String(), "no quorum"); n != 1 {
			t.Errorf("%d lines about the failure: want 1\n%s", n, log.String())
		}
	})
}

// TestAddedReplicaHasItsNameAndAddresses: a replica that was added while this one runs may join gossip, and no node may have its addresses.
func TestAddedReplicaHasItsNameAndAddresses(t *testing.T) {
	s := &Supervisor{engine: enginePart{replicas: newReplicas([]config.ReplicaEntry{{ID: "s1", Report: "10.0.0.1:7945"}})}}
	added := gossip.Member{Name: "supervisor/s4", Meta: gossip.Meta{Role: gossip.RoleSupervisor, ID: "s4"}}
	report := netip.MustParseAddrPort("10.0.0.4:7945")
	for _, known := range []bool{false, true} {
		if known {
			s.engine.replicas.set([]*lofamov1.Supervisor{{Id: "s4", ReportAddress: report.String()}})
		}
		if _, taken := s.ownAddresses()[report]; taken != known || s.admitMember(added) != known {
			t.Errorf("in the list: %v: address taken %v, member admitted %v", known, taken, s.admitMember(added))
		}
	}
}
