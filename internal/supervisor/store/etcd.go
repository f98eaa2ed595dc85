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

// Prefix is the beginning of every key.
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
	// ElectionPrefix is where the replicas elect their leader.
	ElectionPrefix = Prefix + "leader"
)

// DefaultMaxOps is what an etcd takes in one transaction that was not told otherwise.
const DefaultMaxOps = 128

// Options of the store.
type Options struct {
	// MaxOps is the largest number of operations in one transaction that the server takes: etcd's
	// default is DefaultMaxOps; an embedded one is started with more. 0 stands for the default.
	MaxOps int
	// KeepEvents is the number of newest events that are kept, as far as they are not older than HistoryAge
	// and do not take more than HistoryBytes together. The bounds are kept with the next commit, and about:
	// not every commit trims. 0 stands for 100,000, 168h and 128 MiB.
	KeepEvents   uint64
	HistoryAge   time.Duration
	HistoryBytes int64
	// OnRetry hears of every attempt to commit that failed and is made again. May be nil.
	OnRetry func(attempt int, err error)
	// Bookmarks is the time between two bookmarks of a watch. 0 stands for 3 s.
	Bookmarks time.Duration
}

// Etcd is the store on an etcd client, whether in process or over the network. Its methods may be
// called from any goroutine; each blocks until etcd answers or the context ends.
type Etcd struct {
	c        *clientv3.Client
	opts     Options
	watchers atomic.Int64
	streams  atomic.Uint64 // numbers the streams of ownStream
}

// NewEtcd returns the store on c, which stays the caller's.
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

func inboxKey(o fault.Origin) string {
	return keyInbox + string(o.Node) + "/" + o.Half.String()
}

// Load reads the committed map, all of one revision and as new as the cluster's.
func (s *Etcd) Load(ctx context.Context) (Snapshot, error) {
	resp, err := s.c.Txn(ctx).Then(
		clientv3.OpGet(keyMeta), clientv3.OpGet(keyHead),
		clientv3.OpGet(keyNodes, clientv3.WithPrefix()), clientv3.OpGet(keyInbox, clientv3.WithPrefix()),
		clientv3.OpGet(keyTopology, clientv3.WithPrefix()), clientv3.OpGet(keyMaintenance, clientv3.WithPrefix()),
		clientv3.OpGet(keyGroups, clientv3.WithPrefix()), clientv3.OpGet(keyWarnings, clientv3.WithPrefix()), clientv3.OpGet(keyMasks,
			clientv3.WithPrefix()),
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
const loadedKinds = 9

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
	for _, kv := range slices.Concat(of[6], of[7]) {
		if err := snap.AddAbove(KV{Key: string(kv.Key), Value: kv.Value}); err != nil {
			return Snapshot{}, err
		}
	}
	return snap, nil
}

// GroupKey is where a group fault is.
func GroupKey(id string) string { return keyGroups + id }

// WarningKey is where a warning is. No node's id has a slash in it.
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

// ParseNodeKey returns whose document is at a key; false: it is no document of a node.
func ParseNodeKey(key string) (fault.NodeID, bool) {
	id, ok := strings.CutPrefix(key, keyNodes)
	return fault.NodeID(id), ok
}

// AddAbove adds what a key holds that stands above the nodes: a group fault or a warning. Other keys are passed
// over.
func (s *Snapshot) AddAbove(kv KV) error {
	var m proto.Message
	if strings.HasPrefix(kv.Key, keyGroups) {
		g := new(lofamov1.Group)
		m, s.Groups = g, append(s.Groups, g)
	} else if rest, ok := strings.CutPrefix(kv.Key, keyWarnings); ok {
		node, _, _ := strings.Cut(rest, "/")
		w := Warning{Node: fault.NodeID(node), Warning: new(lofamov1.Warning)}
		m, s.Warnings = w.Warning, append(s.Warnings, w)
	} else {
		return nil
	}
	if err := proto.Unmarshal(kv.Value, m); err != nil {
		return fmt.Errorf("read %s: %w", kv.Key, err)
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

// Nodes returns the replica's own copy of the committed nodes, which may be older than the
// cluster's but can be had without a quorum.
func (s *Etcd) Nodes(ctx context.Context) ([]*lofamov1.Node, uint64, error) {
	resp, err := s.c.Get(ctx, keyNodes, clientv3.WithPrefix(), clientv3.WithSerializable())
	if err != nil {
		return nil, 0, fmt.Errorf("read nodes from the store: %w", err)
	}
	nodes, err := decodeNodes(resp.Kvs)
	return nodes, uint64(resp.Header.Revision), err
}

// Events returns the newest events after a revision, oldest first, at most limit of them (0: all),
// and the revision of the answer. keep, where not nil, chooses among them.
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

// Confirm asks the cluster whether a fence still stands and, if so, how far the store has come. It fails
// without a quorum, and with ErrNotLeader when the fence is gone. Nothing is written: it costs one round of
// raft's heartbeats.
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

// PutSupervisor publishes what a replica says of itself.
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

// Supervisors returns what the replicas said of themselves, as far as this one's copy goes.
func (s *Etcd) Supervisors(ctx context.Context) ([]*lofamov1.Supervisor, error) {
	resp, err := s.c.Get(ctx, keySupervisors, clientv3.WithPrefix(), clientv3.WithSerializable())
	if err != nil {
		return nil, fmt.Errorf("read supervisors from the store: %w", err)
	}
	return decodeSupervisors(resp.Kvs)
}

// decodeSupervisors decodes the replicas' records of themselves.
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
