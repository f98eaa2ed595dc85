// Package memstore is the store in memory, for tests of packages that use a store. It passes the same contract tests
// as the one on etcd (package storetest). It persists nothing.
package memstore

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Store is a store in memory. The zero value is not usable; see New.
type Store struct {
	keepEvents int

	mu      sync.Mutex
	rev     uint64
	meta    *store.Meta
	fence   store.Fence
	nodes   map[string]*lofamov1.Node
	inbox   map[fault.Origin]store.InboxPosition
	events  []*lofamov1.Event
	trimmed uint64        // number of events no longer kept
	floor   uint64        // compacted up to here
	changed chan struct{} // closed and renewed with every commit
	blocked chan struct{} // while not nil, commits wait for it to close
	commits int
	head    uint64 // revision of the last commit
	keys    map[string]store.KV
	written map[string]uint64
}

// New returns an empty store that keeps the given number of events.
func New(keepEvents int) *Store {
	return &Store{
		keepEvents: keepEvents, rev: 1, changed: make(chan struct{}),
		nodes: make(map[string]*lofamov1.Node), inbox: make(map[fault.Origin]store.InboxPosition),
		keys: make(map[string]store.KV), written: make(map[string]uint64),
	}
}

// Campaign makes the caller the leader and deposes the previous one.
func (s *Store) Campaign() store.Fence {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rev++
	s.fence = store.Fence{Key: fmt.Sprintf("leader/%d", s.rev), Rev: int64(s.rev)}
	return s.fence
}

// Compact compacts the history up to a revision: watches cannot begin there.
func (s *Store) Compact(rev uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.floor = rev
}

// Block blocks commits until the returned function is called.
func (s *Store) Block() (unblock func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ch := make(chan struct{})
	s.blocked = ch
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.blocked = nil
		close(ch)
	})
}

// Commits returns the number of transactions.
func (s *Store) Commits() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commits
}

// Load implements the store.
func (s *Store) Load(context.Context) (store.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := store.Snapshot{Revision: s.rev, Meta: s.meta, Nodes: s.sortedNodes()}
	for _, p := range s.inbox {
		snap.Inbox = append(snap.Inbox, p)
	}
	slices.SortFunc(snap.Inbox, func(a, b store.InboxPosition) int {
		return cmp.Compare(a.Origin.String(), b.Origin.String())
	})
	for _, key := range slices.Sorted(maps.Keys(s.keys)) {
		if err := snap.AddAbove(s.keys[key]); err != nil {
			return store.Snapshot{}, err
		}
	}
	var err error
	if snap.Topology, err = store.DecodeTopology(s.kept(store.Prefix + "topology/")); err != nil {
		return store.Snapshot{}, err
	}
	if snap.Masks, err = store.DecodeMasks(s.kept(store.Prefix + "masks/")); err != nil {
		return store.Snapshot{}, err
	}
	snap.Maintenance, err = store.DecodeMaintenance(s.kept(store.MaintenanceKey("")))
	return snap, err
}

func (s *Store) kept(prefix string) []store.Kept {
	var out []store.Kept
	for key, kv := range s.keys {
		if strings.HasPrefix(key, prefix) {
			out = append(out, store.Kept{KV: kv, Revision: s.written[key]})
		}
	}
	slices.SortFunc(out, func(a, b store.Kept) int { return cmp.Compare(a.Key, b.Key) })
	return out
}

func (s *Store) sortedNodes() []*lofamov1.Node {
	var out []*lofamov1.Node
	for _, n := range s.nodes {
		out = append(out, proto.CloneOf(n))
	}
	slices.SortFunc(out, func(a, b *lofamov1.Node) int { return cmp.Compare(a.GetId(), b.GetId()) })
	return out
}

// Nodes implements the store.
func (s *Store) Nodes(context.Context) ([]*lofamov1.Node, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sortedNodes(), s.rev, nil
}

// Events implements the store.
func (s *Store) Events(_ context.Context, after uint64, limit int, keep func(*lofamov1.Event) bool) ([]*lofamov1.Event, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*lofamov1.Event
	for _, ev := range slices.Backward(s.events) {
		if ev.GetRevision() <= after || limit > 0 && len(out) == limit {
			break
		}
		if keep == nil || keep(ev) {
			out = append(out, proto.CloneOf(ev))
		}
	}
	slices.Reverse(out)
	return out, s.rev, nil
}

// Revision implements the store.
func (s *Store) Revision(context.Context) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rev, nil
}

// Confirm implements the store.
func (s *Store) Confirm(_ context.Context, fence store.Fence) (store.Standing, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fence != fence {
		return store.Standing{}, fmt.Errorf("confirm: %w", store.ErrNotLeader)
	}
	return store.Standing{Revision: s.rev, Head: s.head}, nil
}

// Value returns the value of a key that a batch put, and the revision at which it did.
func (s *Store) Value(key string) (value []byte, rev uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[key].Value, s.written[key]
}

// Watch implements the store.
func (s *Store) Watch(ctx context.Context, after uint64) <-chan store.Update {
	out := make(chan store.Update)
	s.mu.Lock()
	fromNow := after == 0
	if fromNow {
		after = s.rev
	}
	s.mu.Unlock()
	go func() {
		defer close(out)
		send := func(u store.Update) bool {
			select {
			case out <- u:
				return u.Err == nil
			case <-ctx.Done():
				return false
			}
		}
		if fromNow && !send(store.Update{Revision: after}) {
			return
		}
		for {
			updates, changed := s.since(after)
			for _, u := range updates {
				if !send(u) {
					return
				}
				after = u.Revision
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

func (s *Store) since(after uint64) ([]store.Update, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if after+1 < s.floor {
		return []store.Update{{Err: fmt.Errorf("%w: changes after %d were requested, the oldest kept is %d", store.ErrCompacted, after,
			s.floor)}}, s.changed
	}
	var out []store.Update
	for _, ev := range s.events {
		if ev.GetRevision() <= after {
			continue
		}
		if len(out) == 0 || out[len(out)-1].Revision != ev.GetRevision() {
			out = append(out, store.Update{Revision: ev.GetRevision()})
		}
		u := &out[len(out)-1]
		u.Events = append(u.Events, proto.CloneOf(ev))
	}
	return out, s.changed
}

// Writer implements the store.
func (s *Store) Writer(fence store.Fence, meta store.Meta, snap store.Snapshot) (store.Committer, error) {
	if err := snap.Foreign(meta); err != nil {
		return nil, err
	}
	return &writer{s: s, fence: fence, meta: meta}, nil
}

type writer struct {
	s     *Store
	fence store.Fence
	meta  store.Meta
}

// maxValue is the size of a request that the embedded etcd refuses.
const maxValue = 16 << 20

// check refuses a batch as etcd does.
func check(b store.Batch) error {
	var puts []string
	for _, n := range b.Nodes {
		puts = append(puts, store.NodeKey(n.GetId()))
	}
	for _, p := range b.Inbox {
		puts = append(puts, store.InboxKey(p.Origin))
	}
	for _, kv := range b.Puts {
		if len(kv.Value) > maxValue {
			return fmt.Errorf("%w: %s has %d bytes", store.ErrRefused, kv.Key, len(kv.Value))
		}
		puts = append(puts, kv.Key)
	}
	seen := make(map[string]bool, len(puts))
	for _, key := range puts {
		if seen[key] {
			return fmt.Errorf("%w: %s is put twice", store.ErrRefused, key)
		}
		seen[key] = true
	}
	for _, key := range b.Deletes {
		if seen[key] {
			return fmt.Errorf("%w: %s is put and deleted", store.ErrRefused, key)
		}
	}
	return nil
}

// Commit implements store.Committer.
func (w *writer) Commit(ctx context.Context, b store.Batch) (uint64, error) {
	s := w.s
	s.mu.Lock()
	for s.blocked != nil {
		ch := s.blocked
		s.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return 0, fmt.Errorf("commit: %w", ctx.Err())
		}
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	if s.fence != w.fence {
		return 0, fmt.Errorf("commit: %w", store.ErrNotLeader)
	}
	for _, g := range b.Guards {
		if s.written[g.Key] != g.Revision {
			return 0, fmt.Errorf("commit: %w", store.ErrConflict)
		}
	}
	if err := check(b); err != nil {
		return 0, fmt.Errorf("commit: %w", err)
	}
	s.rev++
	s.commits++
	s.head = s.rev
	s.meta = &w.meta
	before := len(s.events)
	for i, ev := range b.Events {
		ev = proto.CloneOf(ev)
		ev.Revision, ev.Index = s.rev, uint32(i+1)
		s.events = append(s.events, ev)
	}
	if over := min(len(s.events)-s.keepEvents, before); over > 0 { // never the events just committed
		s.events = slices.Clone(s.events[over:])
		s.trimmed += uint64(over)
	}
	for _, n := range b.Nodes {
		n = proto.CloneOf(n)
		n.Revision = s.rev
		s.nodes[n.GetId()] = n
	}
	for _, p := range b.Inbox {
		s.inbox[p.Origin] = p
	}
	for _, kv := range b.Puts {
		s.keys[kv.Key], s.written[kv.Key] = kv, s.rev
	}
	for _, key := range b.Deletes {
		delete(s.keys, key)
		delete(s.written, key)
		delete(s.nodes, strings.TrimPrefix(key, store.NodeKey("")))
		maps.DeleteFunc(s.inbox, func(o fault.Origin, _ store.InboxPosition) bool { return store.InboxKey(o) == key })
	}
	close(s.changed)
	s.changed = make(chan struct{})
	return s.rev, nil
}
