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

// Bounds describes the kept events by their numbers, which have no gaps.
type Bounds struct {
	Oldest   uint64 // number of the oldest kept event; 1: all events
	Next     uint64 // number of the next event
	Revision uint64 // of the store at the time of the call: every event up to it has a number below Next
	Written  uint64 // revision of the last commit, 0 for none
	Gaps     []Gap  // oldest first
}

// Bounds reads the replica's own copy, which needs no quorum.
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

// SoleCopy reports whether all reads go to the replica's own member of an embedded etcd. Reads of an external etcd may go to any member.
func (s *Etcd) SoleCopy() bool { return len(s.c.Endpoints()) == 0 }

// EventsFrom returns at most limit events of the replica's own copy, oldest first, starting with a number. first is
// the number of the first one: it is larger than requested if older events are no longer kept.
func (s *Etcd) EventsFrom(ctx context.Context, number uint64, limit int) (first uint64, events []*lofamov1.Event, err error) {
	read := func(end string) (*clientv3.GetResponse, error) {
		return s.c.Get(ctx, eventKey(number), clientv3.WithRange(end), clientv3.WithSerializable(), clientv3.WithLimit(int64(limit)))
	}
	// etcd counts all keys of a range, even beyond the limit, so the range ends at the limit.
	resp, err := read(eventKey(number + uint64(limit)))
	if err == nil && (len(resp.Kvs) == 0 || string(resp.Kvs[0].Key) != eventKey(number)) {
		resp, err = read(clientv3.GetPrefixRangeEnd(keyEvents)) // no longer kept, or beyond the last
	}
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
			break // being trimmed
		}
		ev, err := decodeEvent(kv)
		if err != nil {
			return 0, nil, err
		}
		events = append(events, ev)
	}
	return first, events, nil
}
