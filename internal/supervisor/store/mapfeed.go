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

// FollowMap sends the map's commits after a revision, one update per transaction, with bookmarks in between. The
// channel is closed after an update with Err, and when the context ends.
func (s *Etcd) FollowMap(ctx context.Context, after uint64) <-chan MapUpdate {
	out := make(chan MapUpdate)
	ctx, cancel := context.WithCancel(ctx)
	in := s.c.Watch(ctx, Prefix, clientv3.WithPrefix(), clientv3.WithProgressNotify(), clientv3.WithRev(int64(after)+1))
	s.watchers.Add(1)
	go func() {
		defer func() {
			cancel()
			s.watchers.Add(-1)
			close(out)
		}()
		send := func(u MapUpdate) bool {
			select {
			case out <- u:
				return u.Err == nil
			case <-ctx.Done():
				return false
			}
		}
		for resp := range in {
			for _, u := range mapUpdates(resp) {
				if !send(u) {
					return
				}
			}
		}
		if ctx.Err() == nil {
			send(MapUpdate{Err: fmt.Errorf("follow the map: the store closed the watch")})
		}
	}()
	return out
}

// mapUpdates returns the updates in one answer of a watch.
func mapUpdates(resp clientv3.WatchResponse) []MapUpdate {
	if resp.CompactRevision != 0 {
		return []MapUpdate{{Err: fmt.Errorf("%w: the oldest kept is %d", ErrCompacted, resp.CompactRevision)}}
	}
	if err := resp.Err(); err != nil {
		return []MapUpdate{{Err: fmt.Errorf("follow the map: %w", err)}}
	}
	if resp.IsProgressNotify() {
		return []MapUpdate{{Revision: uint64(resp.Header.Revision)}}
	}
	var out []MapUpdate
	for _, e := range resp.Events {
		if rev := uint64(e.Kv.ModRevision); len(out) == 0 || out[len(out)-1].Revision != rev {
			out = append(out, MapUpdate{Revision: rev})
		}
		u := &out[len(out)-1]
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
				return append(out, MapUpdate{Err: fmt.Errorf("read %s: %w", key, err)})
			}
			n.Revision = u.Revision
			u.Nodes = append(u.Nodes, n)
		}
	}
	return out
}
