package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Prefix starts every key.
const Prefix = "/lofamo/v1/"

// The keys under Prefix.
const (
	keyMeta        = Prefix + "meta"
	keyHead        = Prefix + "head"
	keyNodes       = Prefix + "nodes/"
	keyEvents      = Prefix + "events/"
	keyInbox       = Prefix + "inbox/"
	keyGroups      = Prefix + "groups/"
	keyWarnings    = Prefix + "warnings/"
	keySupervisors = Prefix + "supervisors/"
	// ElectionPrefix is the prefix of the leader election's keys.
	ElectionPrefix = Prefix + "leader"
)

// DefaultMaxOps is etcd's default limit of operations in one transaction.
const DefaultMaxOps = 128

// Options of the store.
type Options struct {
	// MaxOps is the largest number of operations in one transaction that the server accepts. An embedded etcd is
	// started with more than the default. 0 means DefaultMaxOps.
	MaxOps int
	// KeepEvents is the number of newest events to keep, unless they are older than HistoryAge or exceed HistoryBytes
	// in total. Commits enforce the limits approximately: the history may exceed them by a quarter while much is committed.
	// 0 means 100,000, 168h and 128 MiB.
	KeepEvents   uint64
	HistoryAge   time.Duration
	HistoryBytes int64
	// OnRetry is called for every failed attempt to commit that is retried. May be nil.
	OnRetry func(attempt int, err error)
	// Bookmarks is the longest interval between bookmarks of a watch. 0 means 3 s.
	Bookmarks time.Duration
}

// Etcd is the store on an etcd client, in process or over the network. Its methods are safe for concurrent use. Each
// blocks until etcd answers or the context ends.
type Etcd struct {
	c       *clientv3.Client
	opts    Options
	streams atomic.Uint64 // numbers the streams of watches
}

// NewEtcd returns the store on c, which the caller still owns.
func NewEtcd(c *clientv3.Client, opts Options) *Etcd {
	if opts.MaxOps == 0 {
		opts.MaxOps = DefaultMaxOps
	}
	if opts.KeepEvents == 0 {
		opts.KeepEvents = 100_000
	}
	if opts.HistoryAge == 0 {
		opts.HistoryAge = 168 * time.Hour
	}
	if opts.HistoryBytes == 0 {
		opts.HistoryBytes = 128 << 20
	}
	if opts.Bookmarks == 0 {
		opts.Bookmarks = 3 * time.Second
	}
	return &Etcd{c: c, opts: opts}
}

func eventKey(n uint64) string { return fmt.Sprintf("%s%020d", keyEvents, n) }

// InboxKey returns the key of an inbox position.
func InboxKey(o fault.Origin) string {
	return keyInbox + string(o.Node) + "/" + o.Half.String()
}

// Load reads the committed map at one revision, as new as the cluster's.
func (s *Etcd) Load(ctx context.Context) (Snapshot, error) {
	resp, err := s.c.Txn(ctx).Then(
		clientv3.OpGet(keyMeta), clientv3.OpGet(keyHead),
		clientv3.OpGet(keyNodes, clientv3.WithPrefix()), clientv3.OpGet(keyInbox, clientv3.WithPrefix()),
		clientv3.OpGet(keyTopology, clientv3.WithPrefix()), clientv3.OpGet(keyMaintenance, clientv3.WithPrefix()),
		clientv3.OpGet(keyGroups, clientv3.WithPrefix()), clientv3.OpGet(keyWarnings, clientv3.WithPrefix()), clientv3.OpGet(keyMasks,
			clientv3.WithPrefix()), clientv3.OpGet(keyIncidents, clientv3.WithPrefix()),
	).Commit()
	if err != nil {
		return Snapshot{}, fmt.Errorf("load the fault map from the store: %w", err)
	}
	var of [loadedKinds][]*mvccpb.KeyValue
	for i := range of {
		of[i] = resp.Responses[i].GetResponseRange().Kvs
	}
	return decodeSnapshot(uint64(resp.Header.Revision), of)
}

// loadedKinds is the number of key kinds that Load reads.
const loadedKinds = 10

// decodeSnapshot decodes the key kinds of Load, in Load's order.
func decodeSnapshot(revision uint64, of [loadedKinds][]*mvccpb.KeyValue) (Snapshot, error) {
	snap := Snapshot{Revision: revision, head: head{Next: 1, Oldest: 1}}
	var err error
	for _, kv := range of[0] {
		snap.Meta = new(Meta)
		if err := json.Unmarshal(kv.Value, snap.Meta); err != nil {
			return Snapshot{}, fmt.Errorf("load %s: %w", keyMeta, err)
		}
	}
	for _, kv := range of[1] {
		if err := json.Unmarshal(kv.Value, &snap.head); err != nil {
			return Snapshot{}, fmt.Errorf("load %s: %w", keyHead, err)
		}
		snap.headRev = kv.ModRevision
	}
	if snap.Nodes, err = decodeNodes(of[2]); err != nil {
		return Snapshot{}, err
	}
	for _, kv := range of[3] {
		node, half, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), keyInbox), "/")
		p, err := decodeInbox(node, half, kv.Value)
		if err != nil {
			return Snapshot{}, err
		}
		snap.Inbox = append(snap.Inbox, p)
	}
	if snap.Topology, err = DecodeTopology(keptOf(of[4])); err != nil {
		return Snapshot{}, err
	}
	if snap.Maintenance, err = DecodeMaintenance(keptOf(of[5])); err != nil {
		return Snapshot{}, err
	}
	if snap.Masks, err = DecodeMasks(keptOf(of[8])); err != nil {
		return Snapshot{}, err
	}
	for _, kv := range slices.Concat(of[6], of[7], of[9]) {
		if err := snap.AddAbove(KV{Key: string(kv.Key), Value: kv.Value}); err != nil {
			return Snapshot{}, err
		}
	}
	return snap, nil
}

// GroupKey returns the key of a group fault.
func GroupKey(id string) string { return keyGroups + id }

// WarningKey returns the key of a warning. No node ID contains a slash.
func WarningKey(node fault.NodeID, c fault.Component, q fault.Quantity) string {
	return keyWarnings + string(node) + "/" + c.String() + "/" + q.String()
}

// ParseWarningKey is the inverse of WarningKey; false for any other key.
func ParseWarningKey(key string) (fault.NodeID, fault.Component, fault.Quantity, bool) {
	rest, ok := strings.CutPrefix(key, keyWarnings)
	node, rest, found := strings.Cut(rest, "/")
	last := strings.LastIndexByte(rest, '/')
	if !ok || !found || last < 0 {
		return "", 0, 0, false
	}
	c, err := fault.ParseComponent(rest[:last])
	if err != nil {
		return "", 0, 0, false
	}
	q, err := fault.ParseQuantity(rest[last+1:])
	return fault.NodeID(node), c, q, err == nil
}

// ParseNodeKey returns the node of a document key; false: not a node's document.
func ParseNodeKey(key string) (fault.NodeID, bool) {
	id, ok := strings.CutPrefix(key, keyNodes)
	return fault.NodeID(id), ok
}

// AddAbove adds the group fault, warning or incident that a key holds. It ignores other keys.
func (s *Snapshot) AddAbove(kv KV) error {
	var m proto.Message
	if strings.HasPrefix(kv.Key, keyGroups) {
		g := new(lofamov1.Group)
		m, s.Groups = g, append(s.Groups, g)
	} else if rest, ok := strings.CutPrefix(kv.Key, keyWarnings); ok {
		node, _, _ := strings.Cut(rest, "/")
		w := Warning{Node: fault.NodeID(node), Warning: new(lofamov1.Warning)}
		m, s.Warnings = w.Warning, append(s.Warnings, w)
	} else if strings.HasPrefix(kv.Key, keyIncidents) {
		in := new(lofamov1.Incident)
		m, s.Incidents = in, append(s.Incidents, in)
	} else {
		return nil
	}
	if err := proto.Unmarshal(kv.Value, m); err != nil {
		return fmt.Errorf("read %s: %w", kv.Key, err)
	}
	if in, ok := m.(*lofamov1.Incident); ok {
		in.Id = strings.TrimPrefix(kv.Key, keyIncidents)
	}
	return nil
}

func decodeNodes(kvs []*mvccpb.KeyValue) ([]*lofamov1.Node, error) {
	var out []*lofamov1.Node
	for _, kv := range kvs {
		n := new(lofamov1.Node)
		if err := proto.Unmarshal(kv.Value, n); err != nil {
			return nil, fmt.Errorf("read %s: %w", kv.Key, err)
		}
		n.Revision = uint64(kv.ModRevision)
		out = append(out, n)
	}
	return out, nil
}

// Nodes returns the committed nodes in the replica's own copy. It may be older than the cluster's, but needs no
// quorum.
func (s *Etcd) Nodes(ctx context.Context) ([]*lofamov1.Node, uint64, error) {
	resp, err := s.c.Get(ctx, keyNodes, clientv3.WithPrefix(), clientv3.WithSerializable())
	if err != nil {
		return nil, 0, fmt.Errorf("read nodes from the store: %w", err)
	}
	nodes, err := decodeNodes(resp.Kvs)
	return nodes, uint64(resp.Header.Revision), err
}

// Events returns the newest events after a revision, oldest first, at most limit of them (0: all), and the revision
// of the answer. keep, if not nil, selects events.
func (s *Etcd) Events(ctx context.Context, after uint64, limit int, keep func(*lofamov1.Event) bool) ([]*lofamov1.Event, uint64, error) {
	ops := []clientv3.OpOption{
		clientv3.WithPrefix(), clientv3.WithSerializable(),
		clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend), clientv3.WithMinModRev(int64(after) + 1),
	}
	if keep == nil {
		ops = append(ops, clientv3.WithLimit(int64(limit)))
	}
	resp, err := s.c.Get(ctx, keyEvents, ops...)
	if err != nil {
		return nil, 0, fmt.Errorf("read events from the store: %w", err)
	}
	var out []*lofamov1.Event
	for _, kv := range resp.Kvs {
		ev, err := decodeEvent(kv)
		if err != nil {
			return nil, 0, err
		}
		if keep != nil && !keep(ev) {
			continue
		}
		out = append(out, ev)
		if limit > 0 && len(out) == limit {
			break
		}
	}
	slices.Reverse(out)
	return out, uint64(resp.Header.Revision), nil
}

func decodeEvent(kv *mvccpb.KeyValue) (*lofamov1.Event, error) {
	ev := new(lofamov1.Event)
	if err := proto.Unmarshal(kv.Value, ev); err != nil {
		return nil, fmt.Errorf("read %s: %w", kv.Key, err)
	}
	ev.Revision = uint64(kv.ModRevision)
	return ev, nil
}

// Revision asks the cluster for its newest revision: it fails without a quorum.
func (s *Etcd) Revision(ctx context.Context) (uint64, error) {
	resp, err := s.c.Get(ctx, keyHead, clientv3.WithKeysOnly())
	if err != nil {
		return 0, fmt.Errorf("ask the store for its revision: %w", err)
	}
	return uint64(resp.Header.Revision), nil
}

// Confirm asks the cluster whether a fence still stands and, if so, for the store's revision. It fails without a
// quorum, and with ErrNotLeader if the fence is gone. It writes nothing, and costs one round of raft heartbeats.
func (s *Etcd) Confirm(ctx context.Context, fence Fence) (Standing, error) {
	resp, err := s.c.Txn(ctx).Then(clientv3.OpGet(fence.Key, clientv3.WithKeysOnly()),
		clientv3.OpGet(keyHead, clientv3.WithKeysOnly())).Commit()
	if err != nil {
		return Standing{}, fmt.Errorf("confirm term %d with the store: %w", fence.Rev, err)
	}
	at := Standing{Revision: uint64(resp.Header.Revision)}
	election, heads := resp.Responses[0].GetResponseRange().GetKvs(), resp.Responses[1].GetResponseRange().GetKvs()
	if len(election) == 0 || election[0].CreateRevision != fence.Rev {
		return Standing{}, fmt.Errorf("confirm term %d with the store: %w", fence.Rev, ErrNotLeader)
	}
	for _, kv := range heads {
		at.Head = uint64(kv.ModRevision)
	}
	return at, nil
}

// PutSupervisor publishes a replica's own entry.
func (s *Etcd) PutSupervisor(ctx context.Context, sup *lofamov1.Supervisor) error {
	val, err := proto.Marshal(sup)
	if err == nil {
		_, err = s.c.Put(ctx, keySupervisors+sup.GetId(), string(val))
	}
	if err != nil {
		return fmt.Errorf("publish supervisor %s: %w", sup.GetId(), err)
	}
	return nil
}

// Supervisors returns the replicas' entries from this replica's own copy.
func (s *Etcd) Supervisors(ctx context.Context) ([]*lofamov1.Supervisor, error) {
	list, _, err := s.supervisorsAt(ctx)
	return list, err
}

// supervisorsAt is Supervisors with the revision of the answer.
func (s *Etcd) supervisorsAt(ctx context.Context) ([]*lofamov1.Supervisor, uint64, error) {
	resp, err := s.c.Get(ctx, keySupervisors, clientv3.WithPrefix(), clientv3.WithSerializable())
	if err != nil {
		return nil, 0, fmt.Errorf("read supervisors from the store: %w", err)
	}
	list, err := decodeSupervisors(resp.Kvs)
	return list, uint64(resp.Header.Revision), err
}

// decodeSupervisors decodes the replicas' entries.
func decodeSupervisors(kvs []*mvccpb.KeyValue) ([]*lofamov1.Supervisor, error) {
	var out []*lofamov1.Supervisor
	for _, kv := range kvs {
		sup := new(lofamov1.Supervisor)
		if err := proto.Unmarshal(kv.Value, sup); err != nil {
			return nil, fmt.Errorf("read %s: %w", kv.Key, err)
		}
		out = append(out, sup)
	}
	return out, nil
}
