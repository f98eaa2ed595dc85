package store

import (
	"bytes"
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// keyDenied is the key of the list of revoked certificates.
const keyDenied = Prefix + "denied"

// FollowDenied calls each with the signed list of revoked certificates in the replica's own copy, at first and after every change, but not while there
// is no list. It returns when the context ends or the watch breaks.
func (s *Etcd) FollowDenied(ctx context.Context, each func(signed []byte)) error {
	return s.follow(ctx, "revoked certificates", keyDenied, nil, func() (uint64, error) {
		resp, err := s.c.Get(ctx, keyDenied, clientv3.WithSerializable())
		if err != nil {
			return 0, fmt.Errorf("read the list of revoked certificates from the store: %w", err)
		}
		for _, kv := range resp.Kvs {
			each(bytes.Clone(kv.Value))
		}
		return uint64(resp.Header.Revision), nil
	})
}

// PutDenied replaces the signed list of revoked certificates. old is the stored list as the caller knows it, nil for none. It fails with ErrConflict if a
// different list is stored. It needs no leader.
func (s *Etcd) PutDenied(ctx context.Context, old, signed []byte) error {
	same := clientv3.Compare(clientv3.CreateRevision(keyDenied), "=", 0)
	if old != nil {
		same = clientv3.Compare(clientv3.Value(keyDenied), "=", string(old))
	}
	resp, err := s.c.Txn(ctx).If(same).Then(clientv3.OpPut(keyDenied, string(signed))).Commit()
	switch {
	case err != nil:
		return fmt.Errorf("store the list of revoked certificates: %w", err)
	case !resp.Succeeded:
		return fmt.Errorf("store the list of revoked certificates: %w", ErrConflict)
	}
	return nil
}
