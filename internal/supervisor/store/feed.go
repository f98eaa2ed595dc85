package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Change is the part of one transaction that is forwarded to a parent of regions. Without events and documents it
// says up to which revision there was none. Err ends the watch.
type Change struct {
	*lofamov1.UpstreamChange
	Err error
}

func eventNumber(key string) (uint64, error) {
	n, err := strconv.ParseUint(strings.TrimPrefix(key, keyEvents), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", key, err)
	}
	return n, nil
}

// Follow sends the commits after a revision, one change per transaction: events, and documents with wanted keys
// (below Prefix), with bookmarks in between. The channel is closed after a change with Err (ErrCompacted if the next
// commit is no longer kept), and when the context ends.
func (s *Etcd) Follow(ctx context.Context, after uint64, wanted func(key string) bool) <-chan Change {
	return watch(ctx, s, watching[Change]{
		what: "follow the map", key: Prefix, after: after,
		bookmark: func(revision uint64) Change {
			return Change{UpstreamChange: &lofamov1.UpstreamChange{Revision: revision}}
		},
		failed: func(err error) Change { return Change{Err: err} },
		update: func(revision uint64, changes []*clientv3.Event) (Change, bool, error) {
			c := &lofamov1.UpstreamChange{Revision: revision}
			for _, e := range changes {
				if err := addChange(c, e, wanted); err != nil {
					return Change{}, false, err
				}
			}
			return Change{UpstreamChange: c}, len(c.GetEvents())+len(c.GetDocuments()) > 0, nil
		},
	})
}

// addChange adds one key of a transaction to a change.
func addChange(c *lofamov1.UpstreamChange, e *clientv3.Event, wanted func(key string) bool) error {
	key := string(e.Kv.Key)
	deleted := e.Type == mvccpb.Event_DELETE
	if strings.HasPrefix(key, keyEvents) {
		if deleted {
			return nil // trimmed history
		}
		n, err := eventNumber(key)
		if err != nil {
			return err
		}
		ev, err := decodeEvent(e.Kv)
		if err != nil {
			return err
		}
		if c.GetEvents() == nil {
			c.FirstEvent = n
		}
		c.Events = append(c.Events, ev)
		return nil
	}
	if below := strings.TrimPrefix(key, Prefix); wanted(below) {
		c.Documents = append(c.Documents, &lofamov1.Document{Key: below, Value: e.Kv.Value, Deleted: deleted})
	}
	return nil
}

// Whole returns the documents whose keys begin with one of kinds (below Prefix), and the kept events from a number
// on, all at one revision and as new as the cluster's.
func (s *Etcd) Whole(ctx context.Context, kinds []string, fromEvent uint64) (*lofamov1.UpstreamChange, error) {
	ops := []clientv3.Op{
		clientv3.OpGet(keyHead),
		clientv3.OpGet(eventKey(fromEvent), clientv3.WithRange(clientv3.GetPrefixRangeEnd(keyEvents))),
	}
	for _, kind := range kinds {
		ops = append(ops, clientv3.OpGet(Prefix+kind, clientv3.WithPrefix()))
	}
	resp, err := s.c.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, fmt.Errorf("read the whole map from the store: %w", err)
	}
	out := &lofamov1.UpstreamChange{Revision: uint64(resp.Header.Revision), FirstEvent: max(1, fromEvent)}
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		var h head
		if err := json.Unmarshal(kv.Value, &h); err != nil {
			return nil, fmt.Errorf("read %s: %w", keyHead, err)
		}
		out.FirstEvent = h.Next
	}
	for i, kv := range resp.Responses[1].GetResponseRange().Kvs {
		ev, err := decodeEvent(kv)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			if out.FirstEvent, err = eventNumber(string(kv.Key)); err != nil {
				return nil, err
			}
		}
		out.Events = append(out.Events, ev)
	}
	for i := range kinds {
		for _, kv := range resp.Responses[2+i].GetResponseRange().Kvs {
			out.Documents = append(out.Documents, &lofamov1.Document{Key: strings.TrimPrefix(string(kv.Key), Prefix), Value: kv.Value})
		}
	}
	return out, nil
}

// Tree returns all keys below Prefix that begin with another prefix, without both prefixes, and their values with
// their revisions. With own it reads the replica's own copy, which needs no quorum.
func (s *Etcd) Tree(ctx context.Context, prefix string, own bool) ([]Entry, uint64, error) {
	opts := []clientv3.OpOption{clientv3.WithPrefix()}
	if own {
		opts = append(opts, clientv3.WithSerializable())
	}
	resp, err := s.c.Get(ctx, Prefix+prefix, opts...)
	if err != nil {
		return nil, 0, fmt.Errorf("read %s%s from the store: %w", Prefix, prefix, err)
	}
	out := make([]Entry, len(resp.Kvs))
	for i, kv := range resp.Kvs {
		out[i] = Entry{Key: strings.TrimPrefix(string(kv.Key), Prefix+prefix), Value: kv.Value, Revision: uint64(kv.ModRevision)}
	}
	return out, uint64(resp.Header.Revision), nil
}

// Entry is a key of a Tree.
type Entry struct {
	Key      string
	Value    []byte
	Revision uint64
}
