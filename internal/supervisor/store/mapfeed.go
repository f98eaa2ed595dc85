package store

import (
	"context"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// MapUpdate is the map's part of one transaction. An empty one says up to which revision nothing changed. Err ends
// the feed.
type MapUpdate struct {
	Revision uint64
	Nodes    []*lofamov1.Node
	// Above holds the group faults and warnings that were put, and Gone the keys of deleted ones.
	Above []KV
	Gone  []string
	Err   error
}

// Empty reports whether nothing changed.
func (u *MapUpdate) Empty() bool { return len(u.Nodes)+len(u.Above)+len(u.Gone) == 0 }

// MapNow returns the whole map of the replica's own copy, which needs no quorum.
func (s *Etcd) MapNow(ctx context.Context) (Snapshot, error) {
	prefix := func(key string) clientv3.Op {
		return clientv3.OpGet(key, clientv3.WithPrefix(), clientv3.WithSerializable())
	}
	resp, err := s.c.Txn(ctx).Then(prefix(keyNodes), prefix(keyGroups), prefix(keyWarnings)).Commit()
	if err != nil {
		return Snapshot{}, fmt.Errorf("read the map from the store's copy: %w", err)
	}
	snap := Snapshot{Revision: uint64(resp.Header.Revision)}
	if snap.Nodes, err = decodeNodes(resp.Responses[0].GetResponseRange().Kvs); err != nil {
		return Snapshot{}, err
	}
	for _, r := range resp.Responses[1:] {
		for _, kv := range r.GetResponseRange().Kvs {
			if err := snap.AddAbove(KV{Key: string(kv.Key), Value: kv.Value}); err != nil {
				return Snapshot{}, err
			}
		}
	}
	return snap, nil
}

// The map's keys, and the head that each commit writes, lie between these two. Events, the bulk of a commit, do not.
var mapFrom, mapEnd = keyGroups, clientv3.GetPrefixRangeEnd(keyWarnings)

// FollowMap sends the map's commits after a revision, one update per transaction, with bookmarks in between. The
// channel is closed after an update with Err, and when the context ends.
func (s *Etcd) FollowMap(ctx context.Context, after uint64) <-chan MapUpdate {
	return watch(ctx, s, watching[MapUpdate]{
		what: "follow the map", key: mapFrom, after: after, options: []clientv3.OpOption{clientv3.WithRange(mapEnd)},
		bookmark: func(revision uint64) MapUpdate { return MapUpdate{Revision: revision} },
		failed:   func(err error) MapUpdate { return MapUpdate{Err: err} },
		update: func(revision uint64, changes []*clientv3.Event) (MapUpdate, bool, error) {
			u, err := mapUpdate(revision, changes)
			return u, true, err
		},
	})
}

// mapUpdate returns the map's part of one transaction.
func mapUpdate(revision uint64, changes []*clientv3.Event) (MapUpdate, error) {
	u := MapUpdate{Revision: revision}
	for _, e := range changes {
		key := string(e.Kv.Key)
		above := strings.HasPrefix(key, keyGroups) || strings.HasPrefix(key, keyWarnings)
		switch {
		case e.Type == mvccpb.Event_DELETE && (above || strings.HasPrefix(key, keyNodes)):
			u.Gone = append(u.Gone, key)
		case e.Type == mvccpb.Event_DELETE:
		case above:
			u.Above = append(u.Above, KV{Key: key, Value: e.Kv.Value})
		case strings.HasPrefix(key, keyNodes):
			n := new(lofamov1.Node)
			if err := proto.Unmarshal(e.Kv.Value, n); err != nil {
				return MapUpdate{}, fmt.Errorf("read %s: %w", key, err)
			}
			n.Revision = revision
			u.Nodes = append(u.Nodes, n)
		}
	}
	return u, nil
}
