package store

import (
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

const keyMasks = Prefix + "masks/"

// MaskKey returns the key of a link's mask. The mask belongs to the place, not to the node: a node put in another's
// place begins behind masked links until they are restored (seed 003 §6.1).
func MaskKey(m *lofamov1.LinkMask) string { return keyMasks + m.GetCoord() + "/" + m.GetDirection() }

// MaskPut encodes a mask.
func MaskPut(m *lofamov1.LinkMask) (KV, error) {
	value, err := proto.Marshal(m)
	if err != nil {
		return KV{}, fmt.Errorf("encode the mask of link %s %s: %w", m.GetCoord(), m.GetDirection(), err)
	}
	return KV{MaskKey(m), value}, nil
}

// DecodeMasks decodes masks.
func DecodeMasks(kept []Kept) ([]*lofamov1.LinkMask, error) {
	var out []*lofamov1.LinkMask
	for _, k := range kept {
		m := new(lofamov1.LinkMask)
		if err := proto.Unmarshal(k.Value, m); err != nil {
			return nil, fmt.Errorf("read %s: %w", k.Key, err)
		}
		out = append(out, m)
	}
	return out, nil
}

// FollowMasks calls each with all masks and their revision in the replica's own copy, at first and after every
// change. It returns when the context ends or the watch breaks.
func (s *Etcd) FollowMasks(ctx context.Context, each func([]*lofamov1.LinkMask, uint64)) error {
	return s.follow(ctx, "channel masks", keyMasks, []clientv3.OpOption{clientv3.WithPrefix()}, func() (uint64, error) {
		kept, rev, err := s.kept(ctx, keyMasks, clientv3.WithSerializable())
		if err != nil {
			return 0, fmt.Errorf("read channel masks from the store: %w", err)
		}
		masks, err := DecodeMasks(kept)
		if err == nil {
			each(masks, rev)
		}
		return rev, err
	})
}

// MasksIn returns the masks that a write sets, and the keys of those that it removes.
func MasksIn(w Write) (set []*lofamov1.LinkMask, ended []string, err error) {
	var kept []Kept
	for _, kv := range w.Puts {
		if strings.HasPrefix(kv.Key, keyMasks) {
			kept = append(kept, Kept{KV: kv})
		}
	}
	for _, key := range w.Deletes {
		if strings.HasPrefix(key, keyMasks) {
			ended = append(ended, key)
		}
	}
	set, err = DecodeMasks(kept)
	return set, ended, err
}
