package store

import (
	"context"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

func TestHistoryIsTrimmedWithSlack(t *testing.T) {
	o := Options{KeepEvents: 100, HistoryBytes: 1000}
	for _, tc := range []struct {
		what          string
		next          head
		before, aged  uint64
		oldest, bytes uint64
	}{
		{"nothing yet", head{Next: 1, Oldest: 1}, 1, 0, 1, 0},
		{"room", head{Next: 100, Oldest: 1, Bytes: 990}, 98, 0, 1, 990},
		{"within the slack", head{Next: 104, Oldest: 1, Bytes: 1030}, 98, 0, 1, 1030},
		{"too many", head{Next: 201, Oldest: 1, Bytes: 1000}, 198, 0, 101, 500},
		{"too large", head{Next: 51, Oldest: 1, Bytes: 2000}, 50, 0, 26, 1000},
		{"too old", head{Next: 51, Oldest: 1, Bytes: 500}, 50, 11, 11, 400},
		{"all too old", head{Next: 51, Oldest: 1, Bytes: 500}, 51, 51, 51, 0},
		{"not what is put now", head{Next: 1001, Oldest: 1, Bytes: 1000}, 2, 0, 2, 999},
		{"not all at once", head{Next: 50_001, Oldest: 1, Bytes: 500}, 50_000, 0, 513, 495},
		{"many new ones within the slack of busy commits", head{Next: 125, Oldest: 1, Bytes: 1200}, 50, 20, 1, 1200},
		{"many new ones beyond it", head{Next: 1101, Oldest: 1, Bytes: 1100}, 1031, 0, 141, 960},
		{"younger than the oldest", head{Next: 51, Oldest: 20, Bytes: 500}, 50, 5, 20, 500},
	} {
		if oldest, bytes := trim(o, tc.next, tc.before, tc.aged); oldest != tc.oldest || bytes != tc.bytes {
			t.Errorf("%s: from %d, %d bytes; want from %d, %d bytes", tc.what, oldest, bytes, tc.oldest, tc.bytes)
		}
	}
}

// copied is one member's copy of the events. Every event happened at the second of its number.
type copied struct {
	clientv3.KV

	oldest, next uint64 // numbers of the events in the copy
}

func (c copied) Get(_ context.Context, key string, _ ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	resp := &clientv3.GetResponse{}
	for n := c.oldest; n < c.next; n++ {
		if key != eventKey(n) {
			continue
		}
		val, err := proto.Marshal(&lofamov1.Event{Time: timestamppb.New(time.Unix(int64(n), 0))})
		if err != nil {
			return nil, err
		}
		resp.Kvs = append(resp.Kvs, &mvccpb.KeyValue{Key: []byte(key), Value: val})
	}
	return resp, nil
}

// TestMemberThatLagsMakesNoEventOld: events that the answering member of etcd does not have yet are young.
func TestMemberThatLagsMakesNoEventOld(t *testing.T) {
	const oldest, next = 10, 100 // by the leader's head
	for _, tc := range []struct {
		what  string
		copy  copied
		since int64
		aged  uint64
	}{
		{"whole copy", copied{oldest: oldest, next: next}, 40, 40},
		{"whole copy, all too old", copied{oldest: oldest, next: next}, 200, next},
		{"older events not yet deleted", copied{oldest: 1, next: next}, 40, 40},
		{"all events are too new for the copy", copied{oldest: 1, next: oldest}, 1, 0},
		{"newer half missing", copied{oldest: oldest, next: 50}, 1, 0},
		{"newer half missing, older half too old", copied{oldest: oldest, next: 50}, 50, 0},
	} {
		c := external(t)
		c.KV = tc.copy
		w := &writer{s: NewEtcd(c, Options{HistoryAge: time.Hour}), head: head{Oldest: oldest, Next: next}}
		w.lookAtAge(t.Context(), time.Unix(tc.since, 0).Add(time.Hour))
		if w.aged != tc.aged {
			t.Errorf("%s: events before %d are too old: want those before %d", tc.what, w.aged, tc.aged)
		}
	}
}

// TestDeletedEventsOfSoleCopyAreOld: events that a person deleted from an embedded etcd do not end the trimming by age.
func TestDeletedEventsOfSoleCopyAreOld(t *testing.T) {
	const oldest, next = 10, 100 // by the leader's head
	for _, tc := range []struct {
		what  string
		copy  copied
		since int64
		aged  uint64
	}{
		{"older half deleted, the rest young", copied{oldest: 70, next: next}, 40, 70},
		{"older half deleted, some of the rest too old", copied{oldest: 70, next: next}, 80, 80},
		{"all deleted", copied{}, 40, next},
	} {
		c := clientv3.NewCtxClient(t.Context())
		c.KV = tc.copy
		w := &writer{s: NewEtcd(c, Options{HistoryAge: time.Hour}), head: head{Oldest: oldest, Next: next}}
		w.lookAtAge(t.Context(), time.Unix(tc.since, 0).Add(time.Hour))
		if w.aged != tc.aged {
			t.Errorf("%s: events before %d are too old: want those before %d", tc.what, w.aged, tc.aged)
		}
	}
}

// external returns a client of an external etcd that does not answer.
func external(t *testing.T) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://127.0.0.1:1"}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestOnlyEmbeddedEtcdIsSoleCopy: reads of an external etcd may go to any of its members, even behind one address.
func TestOnlyEmbeddedEtcdIsSoleCopy(t *testing.T) {
	for what, tc := range map[string]struct {
		client *clientv3.Client
		sole   bool
	}{"external": {external(t), false}, "within the process": {clientv3.NewCtxClient(t.Context()), true}} {
		if got := NewEtcd(tc.client, Options{}).SoleCopy(); got != tc.sole {
			t.Errorf("%s: %t, want %t", what, got, tc.sole)
		}
	}
}
