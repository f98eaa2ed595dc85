package store

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

const keyPeers = Prefix + "peers/"

// PeersKey returns the key of a node's reported link ends.
func PeersKey(id fault.NodeID) string { return keyPeers + string(id) }

// PeersPut encodes a node's link ends.
func PeersPut(st *lofamov1.PeerStatus) (KV, error) {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(st)
	if err != nil {
		return KV{}, fmt.Errorf("encode the link ends of %s: %w", st.GetNode(), err)
	}
	return KV{PeersKey(fault.NodeID(st.GetNode())), value}, nil
}

// Peers returns the link ends of all nodes, with a quorum read. Unreadable ones are left out: the node reports them
// again.
func (s *Etcd) Peers(ctx context.Context) (map[fault.NodeID]*lofamov1.PeerStatus, error) {
	resp, err := s.c.Get(ctx, keyPeers, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("read link ends from the store: %w", err)
	}
	return decodePeers(resp.Kvs), nil
}

// decodePeers decodes link ends.
func decodePeers(kvs []*mvccpb.KeyValue) map[fault.NodeID]*lofamov1.PeerStatus {
	out := make(map[fault.NodeID]*lofamov1.PeerStatus, len(kvs))
	for _, kv := range kvs {
		st := new(lofamov1.PeerStatus)
		if err := proto.Unmarshal(kv.Value, st); err == nil && PeersKey(fault.NodeID(st.GetNode())) == string(kv.Key) {
			out[fault.NodeID(st.GetNode())] = st
		}
	}
	return out
}
