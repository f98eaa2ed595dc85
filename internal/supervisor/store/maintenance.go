package store

import (
	"context"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

const keyMaintenance = Prefix + "maintenance/"

// Mark says that a node is under maintenance.
type Mark struct {
	*lofamov1.Maintenance

	Revision uint64 // of the last change
}

// MaintenanceKey is the key of a node's mark.
func MaintenanceKey(node string) string { return keyMaintenance + node }

// MaintenancePut encodes a mark.
func MaintenancePut(m *lofamov1.Maintenance) (KV, error) {
	value, err := proto.Marshal(m)
	if err != nil {
		return KV{}, fmt.Errorf("encode the maintenance mark of node %s: %w", m.GetNode(), err)
	}
	return KV{MaintenanceKey(m.GetNode()), value}, nil
}

// DecodeMaintenance decodes marks.
func DecodeMaintenance(kept []Kept) ([]Mark, error) {
	var out []Mark
	for _, k := range kept {
		m := new(lofamov1.Maintenance)
		if err := proto.Unmarshal(k.Value, m); err != nil {
			return nil, fmt.Errorf("read %s: %w", k.Key, err)
		}
		out = append(out, Mark{m, k.Revision})
	}
	return out, nil
}

// Maintenance returns the marks in the replica's own copy, and the revision of the answer.
func (s *Etcd) Maintenance(ctx context.Context) ([]Mark, uint64, error) {
	resp, err := s.c.Get(ctx, keyMaintenance, clientv3.WithPrefix(), clientv3.WithSerializable())
	if err != nil {
		return nil, 0, fmt.Errorf("read maintenance marks from the store: %w", err)
	}
	marks, err := DecodeMaintenance(keptOf(resp.Kvs))
	return marks, uint64(resp.Header.Revision), err
}

// FollowMaintenance calls each with all marks and their revision in the replica's own copy, at first and after every
// change. It returns when the context ends or the watch breaks.
func (s *Etcd) FollowMaintenance(ctx context.Context, each func([]Mark, uint64)) error {
	return s.follow(ctx, "maintenance marks", keyMaintenance, []clientv3.OpOption{clientv3.WithPrefix()}, func() (uint64, error) {
		marks, rev, err := s.Maintenance(ctx)
		if err == nil {
			each(marks, rev)
		}
		return rev, err
	})
}

func keptOf(kvs []*mvccpb.KeyValue) []Kept {
	out := make([]Kept, len(kvs))
	for i, kv := range kvs {
		out[i] = Kept{KV{string(kv.Key), kv.Value}, uint64(kv.ModRevision)}
	}
	return out
}

// Marks returns the marks without their revisions.
func Marks(list []Mark) []*lofamov1.Maintenance {
	out := make([]*lofamov1.Maintenance, len(list))
	for i, m := range list {
		out[i] = m.Maintenance
	}
	return out
}

// MaintenanceIn returns the marks that a write sets, and the nodes whose marks it removes.
func MaintenanceIn(w Write) (set []*lofamov1.Maintenance, ended []fault.NodeID, err error) {
	for _, kv := range w.Puts {
		if !strings.HasPrefix(kv.Key, keyMaintenance) {
			continue
		}
		m := new(lofamov1.Maintenance)
		if err := proto.Unmarshal(kv.Value, m); err != nil {
			return nil, nil, fmt.Errorf("read %s: %w", kv.Key, err)
		}
		set = append(set, m)
	}
	for _, key := range w.Deletes {
		if id, ok := strings.CutPrefix(key, keyMaintenance); ok {
			ended = append(ended, fault.NodeID(id))
		}
	}
	return set, ended, nil
}
