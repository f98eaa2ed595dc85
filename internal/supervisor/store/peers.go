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

// PeersKey is the key of what a node has said of the ends of its links.
func PeersKey(id fault.NodeID) string { return keyPeers + string(id) }

// PeersPut is that as it is written.
func PeersPut(st *lofamov1.PeerStatus) (KV, error) {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(st)
	if err != nil {
		return KV{}, fmt.Errorf("encode the link ends of %s: %w", st.GetNode(), err)
	}
	return KV{PeersKey(fault.NodeID(st.GetNode())), value}, nil
}

// Peers returns what all nodes have said of the ends of their links, by the word of a quorum. One that cannot be read is left out: the node
// says it again.
func (s *Etcd) Peers(ctx context.Context) (map[fault.NodeID]*lofamov1.PeerStatus, error) {
	resp, err := s.c.Get(ctx, keyPeers, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("read link ends from the store: %w", err)
	}
	return decodePeers(resp.Kvs), nil
}

// decodePeers decodes the ends of links.
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
