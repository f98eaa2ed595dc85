package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Bounds says which events are kept, by their numbers, which have no gaps.
type Bounds struct {
	Oldest   uint64 // of the oldest that is kept; 1: all that ever were
	Next     uint64 // of the one that will come next
	Revision uint64 // of the store when it was asked: every event up to it has a number below Next
	Written  uint64 // revision of the last commit, 0 for none
	Gaps     []Gap  // oldest first
}

// Bounds asks the replica's own copy, for which no quorum is needed.
func (s *Etcd) Bounds(ctx context.Context) (Bounds, error) {
	resp, err := s.c.Get(ctx, keyHead, clientv3.WithSerializable())
	if err != nil {
		return Bounds{}, fmt.Errorf("ask the store which events it keeps: %w", err)
	}
	b := Bounds{Oldest: 1, Next: 1, Revision: uint64(resp.Header.Revision)}
	for _, kv := range resp.Kvs {
		var h head
		if err := json.Unmarshal(kv.Value, &h); err != nil {
			return Bounds{}, fmt.Errorf("read %s: %w", keyHead, err)
		}
		b.Oldest, b.Next, b.Written = h.Oldest, h.Next, uint64(kv.ModRevision)
		b.Gaps = h.gaps(b.Written, b.Revision)
	}
	return b, nil
}

// EventsFrom returns events of the replica's own copy by number, oldest first, from one on, at most limit of
// them. first is the number of the first one: larger than asked for when older ones are no longer kept.
func (s *Etcd) EventsFrom(ctx context.Context, number uint64, limit int) (first uint64, events []*lofamov1.Event, err error) {
	resp, err := s.c.Get(ctx, eventKey(number), clientv3.WithRange(clientv3.GetPrefixRangeEnd(keyEvents)),
		clientv3.WithSerializable(), clientv3.WithLimit(int64(limit)))
	if err != nil {
		return 0, nil, fmt.Errorf("read events from the store, number %d on: %w", number, err)
	}
	for i, kv := range resp.Kvs {
		n, err := strconv.ParseUint(strings.TrimPrefix(string(kv.Key), keyEvents), 10, 64)
		if err != nil {
			return 0, nil, fmt.Errorf("read %s: %w", kv.Key, err)
		}
		if i == 0 {
			first = n
		}
		if n != first+uint64(i) {
			break // it is being trimmed
		}
		ev, err := decodeEvent(kv)
		if err != nil {
			return 0, nil, err
		}
		events = append(events, ev)
	}
	return first, events, nil
}
