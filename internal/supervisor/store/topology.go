package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
)

// The topology has a key for each node and a head, which every change renews: the head's revision guards a change. A
// change that fits one transaction writes the affected nodes. A larger one, such as the first, writes all nodes under
// a new generation, in as many transactions as necessary; the head then switches to it. Generations that the head
// does not name are garbage.
//
// KeyTopologyHead is the head's key.
const (
	keyTopology      = Prefix + "topology/"
	KeyTopologyHead  = keyTopology + "head"
	keyTopologyNodes = keyTopology + "nodes/"
)

// topologyHead is the value of the head's key.
type topologyHead struct {
	Generation   uint64   `json:"generation"`
	Dims         string   `json:"dims"`
	DomainLabels []string `json:"domainLabels"`
	Region       string   `json:"region,omitempty"`
}

func topologyKey(generation uint64, id string) string {
	return fmt.Sprintf("%s%020d/%s", keyTopologyNodes, generation, id)
}

// NodeKey returns the key of a node's document.
func NodeKey(id string) string { return keyNodes + id }

// Kept is a key with its value and revision.
type Kept struct {
	KV

	Revision uint64 // of the last write
}

// Topology is the stored topology.
type Topology struct {
	*topology.Topology // nil: nothing yet

	Generation uint64   // the generation in force
	Newest     uint64   // newest generation with any keys
	Garbage    []string // keys of other generations
}

// DecodeTopology decodes the topology's keys.
func DecodeTopology(kept []Kept) (Topology, error) {
	var t Topology
	var head topologyHead
	p := new(lofamov1.Topology)
	at := slices.IndexFunc(kept, func(k Kept) bool { return k.Key == KeyTopologyHead })
	if at >= 0 {
		if err := json.Unmarshal(kept[at].Value, &head); err != nil {
			return t, fmt.Errorf("read %s: %w", KeyTopologyHead, err)
		}
		p.Dims, p.DomainLabels, p.Region, p.Revision = head.Dims, head.DomainLabels, head.Region, kept[at].Revision
		t.Generation, t.Newest = head.Generation, head.Generation
	}
	current := topologyKey(head.Generation, "")
	for _, k := range kept {
		rest, ok := strings.CutPrefix(k.Key, keyTopologyNodes)
		switch {
		case !ok:
			continue
		case at >= 0 && strings.HasPrefix(k.Key, current):
			n := new(lofamov1.TopologyNode)
			if err := proto.Unmarshal(k.Value, n); err != nil {
				return t, fmt.Errorf("read %s: %w", k.Key, err)
			}
			p.Nodes = append(p.Nodes, n)
			continue
		}
		t.Garbage = append(t.Garbage, k.Key)
		var generation uint64
		if _, err := fmt.Sscanf(rest, "%d/", &generation); err == nil {
			t.Newest = max(t.Newest, generation)
		}
	}
	if at < 0 {
		return t, nil
	}
	var err error
	if t.Topology, err = topology.FromProto(p); err != nil {
		return t, fmt.Errorf("read the topology of revision %d from the store: %w", p.Revision, err)
	}
	return t, nil
}

// topologyOps bounds the nodes that a change writes in place; the transaction must have room for its events. maxBytes bounds the
// change too.
const topologyOps = 48

// TopologyWrites returns the writes that change the stored topology to another one, with its events. All but the last
// must be committed first, and have no effect by themselves. The last one fails with ErrConflict if the topology has
// changed meanwhile.
func TopologyWrites(from Topology, to *topology.Topology, events []*lofamov1.Event) ([]Write, error) {
	head := topologyHead{Generation: from.Generation, Dims: to.Dims.String(), DomainLabels: to.DomainLabels, Region: to.Region}
	last := Write{Events: events, Guards: []Guard{{Key: KeyTopologyHead}}}
	var out []Write
	var err error
	if from.Topology != nil {
		last.Guards[0].Revision = from.Revision
		if err = last.change(from, to); err != nil {
			return nil, err
		}
	}
	if from.Topology == nil || len(last.Puts)+len(last.Deletes) > topologyOps || last.size() > maxBytes {
		last.Puts, last.Deletes = nil, nil
		head.Generation = from.Newest + 1
		if out, err = stage(head.Generation, to); err != nil {
			return nil, err
		}
	}
	value, err := json.Marshal(head)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", KeyTopologyHead, err)
	}
	last.Puts = append(last.Puts, KV{KeyTopologyHead, value})
	last.Topology = &Topology{Topology: to, Generation: head.Generation, Newest: max(from.Newest, head.Generation)}
	if from.Topology != nil && head.Generation != from.Generation {
		for _, n := range from.Nodes {
			last.Topology.Garbage = append(last.Topology.Garbage, topologyKey(from.Generation, string(n.ID)))
		}
	}
	return append(out, last), nil
}

// size returns the approximate number of bytes in the write.
func (w *Write) size() (bytes int) {
	for _, ev := range w.Events {
		bytes += proto.Size(ev)
	}
	for _, kv := range w.Puts {
		bytes += len(kv.Key) + len(kv.Value)
	}
	return bytes
}

// change adds the nodes in which two topologies differ.
func (w *Write) change(from Topology, to *topology.Topology) error {
	for _, n := range to.Nodes {
		if old, ok := from.Node(n.ID); ok && old.Equal(n) {
			continue
		}
		kv, err := topologyNode(from.Generation, n)
		if err != nil {
			return err
		}
		w.Puts = append(w.Puts, kv)
	}
	for _, n := range from.Nodes {
		if _, ok := to.Node(n.ID); !ok {
			w.Deletes = append(w.Deletes, topologyKey(from.Generation, string(n.ID)))
		}
	}
	return nil
}

// stage returns the writes of all nodes under a generation. The store splits them into transactions.
func stage(generation uint64, t *topology.Topology) ([]Write, error) {
	var w Write
	for _, n := range t.Nodes {
		kv, err := topologyNode(generation, n)
		if err != nil {
			return nil, err
		}
		w.Puts = append(w.Puts, kv)
	}
	return []Write{w}, nil
}

func topologyNode(generation uint64, n topology.Node) (KV, error) {
	value, err := proto.Marshal(n.Proto())
	if err != nil {
		return KV{}, fmt.Errorf("encode node %s of the topology: %w", n.ID, err)
	}
	return KV{topologyKey(generation, string(n.ID)), value}, nil
}

// ChangesTopology reports whether the write puts another topology in force.
func (w Write) ChangesTopology() bool {
	return slices.ContainsFunc(w.Puts, func(kv KV) bool { return kv.Key == KeyTopologyHead })
}

// Topology reads the topology from the replica's own copy.
func (s *Etcd) Topology(ctx context.Context) (Topology, error) {
	t, _, err := s.topologyAt(ctx)
	return t, err
}

// TopologyRevision returns the revision of the stored topology, read with a quorum; 0: none is stored.
func (s *Etcd) TopologyRevision(ctx context.Context) (uint64, error) {
	resp, err := s.c.Get(ctx, KeyTopologyHead, clientv3.WithKeysOnly())
	if err != nil {
		return 0, fmt.Errorf("read the topology's revision from the store: %w", err)
	}
	for _, kv := range resp.Kvs {
		return uint64(kv.ModRevision), nil
	}
	return 0, nil
}

// topologyAt is Topology with the revision of the answer.
func (s *Etcd) topologyAt(ctx context.Context) (Topology, uint64, error) {
	kept, rev, err := s.kept(ctx, keyTopology, clientv3.WithSerializable())
	if err != nil {
		return Topology{}, 0, fmt.Errorf("read the topology from the store: %w", err)
	}
	t, err := DecodeTopology(kept)
	return t, rev, err
}

// kept reads keys, and returns the revision of the answer.
func (s *Etcd) kept(ctx context.Context, prefix string, opts ...clientv3.OpOption) ([]Kept, uint64, error) {
	resp, err := s.c.Get(ctx, prefix, append(opts, clientv3.WithPrefix())...)
	if err != nil {
		return nil, 0, err
	}
	return keptOf(resp.Kvs), uint64(resp.Header.Revision), nil
}

// FollowTopology calls each with the topology in the replica's own copy, at first and after every change, but not
// while there is none. It returns when the context ends or the watch breaks.
func (s *Etcd) FollowTopology(ctx context.Context, each func(*topology.Topology)) error {
	return s.follow(ctx, "the topology", KeyTopologyHead, nil, func() (uint64, error) {
		t, rev, err := s.topologyAt(ctx)
		if err == nil && t.Topology != nil {
			each(t.Topology)
		}
		return rev, err
	})
}

// follow calls read after every change. read returns the revision of its answer: etcd announces a change a moment
// before its own copy shows it, and another member of an external etcd may answer, so follow reads until the answer
// includes the change.
func (s *Etcd) follow(ctx context.Context, what, key string, opts []clientv3.OpOption, read func() (uint64, error)) error {
	return led(ctx, mostLedPause, func(bool) error { return s.followOnce(ctx, what, key, opts, read) })
}

// followOnce is follow until the watch ends.
func (s *Etcd) followOnce(ctx context.Context, what, key string, opts []clientv3.OpOption, read func() (uint64, error)) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	// The first response confirms the watch. The watch reports only changes after that response's revision, and another member, which may
	// lag, may answer the read. So follow reads at least up to that revision.
	for resp := range s.c.Watch(ctx, key, append(opts, clientv3.WithCreatedNotify())...) {
		if err := resp.Err(); err != nil {
			return fmt.Errorf("watch %s: %w", what, err)
		}
		var told int64
		if resp.Created {
			told = resp.Header.GetRevision()
		}
		for _, ev := range resp.Events {
			told = max(told, ev.Kv.ModRevision)
		}
		if err := readUntil(ctx, uint64(told), read); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// readPause is the pause between reads of a copy that does not show an announced change yet.
const readPause = time.Millisecond

// readUntil reads until the answer has a revision, or a newer one.
func readUntil(ctx context.Context, revision uint64, read func() (uint64, error)) error {
	for {
		rev, err := read()
		if err != nil || rev >= revision {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(readPause):
		}
	}
}
