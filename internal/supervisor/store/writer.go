package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Committer commits a leader's batches, one at a time. It is not safe for concurrent use.
type Committer interface {
	// Commit writes the batch and returns the revision of its last event. It blocks and retries until the batch is
	// committed, the context ends, leadership is lost (ErrNotLeader or ErrOvertaken), or the store can never take it (ErrRefused).
	Commit(ctx context.Context, b Batch) (uint64, error)
}

type writer struct {
	s       *Etcd
	fence   Fence
	meta    Meta
	hasMeta bool
	head    head
	headRev int64
	aged    uint64 // number of the oldest event that is young enough, as of the last check
	lookAt  time.Time
}

// attemptTime is how long one transaction may take before it is retried. The head then shows whether it succeeded.
const attemptTime = 2 * time.Second

// maxAttemptTime bounds later attempts.
const maxAttemptTime = 16 * time.Second

// Writer returns a committer for a new leader, based on the snapshot that it loaded after its election. It refuses
// another cluster's store.
func (s *Etcd) Writer(fence Fence, meta Meta, snap Snapshot) (Committer, error) {
	if err := snap.Foreign(meta); err != nil {
		return nil, err
	}
	w := &writer{s: s, fence: fence, meta: meta, hasMeta: snap.Meta != nil, head: snap.head, headRev: snap.headRev}
	w.head.Gaps = snap.head.gaps(uint64(snap.headRev), snap.Revision)
	return w, nil
}

// Foreign returns why the store belongs to another cluster; nil: it is ours, or new.
func (snap Snapshot) Foreign(meta Meta) error {
	if have := snap.Meta; have != nil && (have.Cluster != meta.Cluster || have.Dims != meta.Dims && snap.Topology.Topology == nil) {
		return fmt.Errorf("%w: it holds cluster %q with dims %s, this supervisor is configured for cluster %q with dims %s",
			ErrForeign, have.Cluster, have.Dims, meta.Cluster, meta.Dims)
	}
	return nil
}

// Commit implements Committer. It splits a batch that exceeds one transaction between events. If the leader dies
// between the parts, the next one recovers the rest from evidence, because reports are marked as accepted last.
func (w *writer) Commit(ctx context.Context, b Batch) (uint64, error) {
	w.lookAtAge(ctx, time.Now())
	// Besides the batch itself: head, meta, the trimming of events, and the bound of trimmed incidents.
	var rev uint64
	parts := []Batch{b}
	if len(b.Guards) == 0 {
		parts = split(b, w.s.opts.MaxOps-4)
	}
	for _, part := range parts {
		r, err := w.commit(ctx, part)
		if err != nil {
			return 0, err
		}
		rev = r
	}
	return rev, nil
}

// maxBytes bounds the values of one transaction, below etcd's default of 1.5 MiB: etcd refuses larger ones on every
// attempt. A single event or node is far smaller.
const maxBytes = 1 << 20

// inboxBytes exceeds the size of any encoded inbox position.
const inboxBytes = 1 << 8

// split splits a batch into parts of at most limit operations and maxBytes. A node goes with the part that has its
// last event, and inbox positions go last.
func split(b Batch, limit int) []Batch {
	last := make(map[string]int, len(b.Nodes)) // node id → index of its last event
	for i, ev := range b.Events {
		last[ev.GetNode()] = i
	}
	docs := make(map[int]int, len(b.Nodes)) // index of event → index of node that goes with it
	var out []Batch
	var cur Batch
	bytes := 0
	room := func(n, size int) {
		if cur.Ops()+n > limit || cur.Ops() > 0 && bytes+size > maxBytes {
			out = append(out, cur)
			cur, bytes = Batch{}, 0
		}
		bytes += size
	}
	var rest Batch
	for i, n := range b.Nodes {
		if at, ok := last[n.GetId()]; ok {
			docs[at] = i
		} else {
			rest.Nodes = append(rest.Nodes, n)
		}
	}
	for i, ev := range b.Events {
		doc, ok := docs[i]
		if !ok {
			room(1, proto.Size(ev))
			cur.Events = append(cur.Events, ev)
			continue
		}
		room(2, proto.Size(ev)+proto.Size(b.Nodes[doc]))
		cur.Events = append(cur.Events, ev)
		cur.Nodes = append(cur.Nodes, b.Nodes[doc])
	}
	for _, n := range rest.Nodes {
		room(1, proto.Size(n))
		cur.Nodes = append(cur.Nodes, n)
	}
	for _, kv := range b.Puts {
		room(1, len(kv.Key)+len(kv.Value))
		cur.Puts = append(cur.Puts, kv)
	}
	for _, key := range b.Deletes {
		room(1, len(key))
		cur.Deletes = append(cur.Deletes, key)
	}
	for _, p := range b.Inbox {
		room(1, inboxBytes)
		cur.Inbox = append(cur.Inbox, p)
	}
	return append(out, cur)
}

// commit writes one transaction, and reads the result of attempts without an answer from the head.
func (w *writer) commit(ctx context.Context, b Batch) (uint64, error) {
	if bound, raised := w.s.trimmedBy(ctx, b.Deletes); raised {
		b.Puts = append(slices.Clip(b.Puts), bound)
	}
	next, ops, err := w.ops(b)
	if err != nil {
		return 0, err
	}
	backoff := 10 * time.Millisecond
	for attempt := 1; ; attempt++ {
		rev, err := w.attempt(ctx, attempt, next, ops, b.Guards)
		if err == nil {
			w.head, w.headRev, w.hasMeta = next, rev, true
			return uint64(rev), nil
		}
		if final(err) || ctx.Err() != nil {
			return 0, fmt.Errorf("commit batch %d of term %d: %w", next.Batch, next.Term, err)
		}
		if w.s.opts.OnRetry != nil {
			w.s.opts.OnRetry(attempt, err)
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("commit batch %d of term %d: %w", next.Batch, next.Term, err)
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, 500*time.Millisecond)
	}
}

// attemptLimit returns how long the n-th attempt may take. It grows: with a fixed limit, no write to a slower store
// would ever be seen to succeed.
func attemptLimit(n int) time.Duration { return min(attemptTime<<min(n-1, 8), maxAttemptTime) }

// attempt runs the n-th attempt at a transaction.
func (w *writer) attempt(ctx context.Context, n int, next head, ops []clientv3.Op, guards []Guard) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptLimit(n))
	defer cancel()
	conditions := []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(w.fence.Key), "=", w.fence.Rev),
		clientv3.Compare(clientv3.ModRevision(keyHead), "=", w.headRev),
	}
	for _, g := range guards {
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(g.Key), "=", int64(g.Revision)))
	}
	resp, err := w.s.c.Txn(ctx).If(conditions...).Then(ops...).
		Else(clientv3.OpGet(keyHead), clientv3.OpGet(w.fence.Key, clientv3.WithKeysOnly())).Commit()
	if err != nil {
		return 0, refused(err)
	}
	if resp.Succeeded {
		return resp.Header.Revision, nil
	}
	var have head
	var at int64 // revision of the head; 0: none
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		at = kv.ModRevision
		if err := json.Unmarshal(kv.Value, &have); err != nil {
			return 0, ErrNotLeader // not written by this version
		}
	}
	leads := resp.Responses[1].GetResponseRange().Kvs
	switch {
	case have.same(next):
		return at, nil // an earlier attempt has succeeded, even if leadership was lost since
	case len(guards) > 0 && at == w.headRev && len(leads) > 0 && leads[0].CreateRevision == w.fence.Rev:
		return 0, ErrConflict // this replica leads, and the head is unchanged: a guard failed
	case n > 1 && at != w.headRev:
		return 0, ErrOvertaken
	}
	return 0, ErrNotLeader
}

// indexField is the number of Event.index.
const indexField protowire.Number = 29

// withIndex adds its index to an encoded event. Watchers of uncommitted changes share the event itself.
func withIndex(event []byte, index int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(event, indexField, protowire.VarintType), uint64(index))
}

// ops returns the operations of a transaction and its head.
func (w *writer) ops(b Batch) (head, []clientv3.Op, error) {
	next := w.head
	next.Term, next.Batch = w.fence.Rev, w.head.Batch+1
	var ops []clientv3.Op
	put := func(key string, m proto.Message) error {
		val, err := proto.Marshal(m)
		if err != nil {
			return fmt.Errorf("encode %s: %w", key, err)
		}
		op := clientv3.OpPut(key, "")
		op.WithValueBytes(val) // not copied to a string and back
		ops = append(ops, op)
		return nil
	}
	for i, ev := range b.Events {
		if err := put(eventKey(next.Next), ev); err != nil {
			return head{}, nil, err
		}
		op := &ops[len(ops)-1]
		op.WithValueBytes(withIndex(op.ValueBytes(), i+1))
		next.Bytes += uint64(len(ops[len(ops)-1].ValueBytes()))
		next.Next++
	}
	for _, n := range b.Nodes {
		if err := put(keyNodes+n.GetId(), n); err != nil {
			return head{}, nil, err
		}
	}
	for _, p := range b.Inbox {
		ops = append(ops, clientv3.OpPut(InboxKey(p.Origin), string(encodeInbox(p))))
	}
	for _, kv := range b.Puts {
		ops = append(ops, clientv3.OpPut(kv.Key, string(kv.Value)))
	}
	for _, key := range b.Deletes {
		ops = append(ops, clientv3.OpDelete(key))
	}
	if oldest, bytes := trim(w.s.opts, next, w.head.Next, w.aged); oldest > next.Oldest {
		ops = append(ops, clientv3.OpDelete(eventKey(next.Oldest), clientv3.WithRange(eventKey(oldest))))
		next.Oldest, next.Bytes = oldest, bytes
	}
	if !w.hasMeta {
		val, err := json.Marshal(w.meta)
		if err != nil {
			return head{}, nil, fmt.Errorf("encode %s: %w", keyMeta, err)
		}
		ops = append(ops, clientv3.OpPut(keyMeta, string(val)))
	}
	val, err := json.Marshal(next)
	if err != nil {
		return head{}, nil, fmt.Errorf("encode %s: %w", keyHead, err)
	}
	return next, append(ops, clientv3.OpPut(keyHead, string(val))), nil
}
