package store

import (
	"bytes"
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// keyDenied is the key of the list of revoked certificates.
const keyDenied = Prefix + "denied"

// FollowDenied calls each with the signed list of revoked certificates in the replica's own copy and its revision, at
// first and after every change, but not while there is no list. It returns when the context ends or the watch breaks.
func (s *Etcd) FollowDenied(ctx context.Context, each func(signed []byte, revision uint64)) error {
	return s.follow(ctx, "revoked certificates", keyDenied, nil, func() (uint64, error) {
		resp, err := s.c.Get(ctx, keyDenied, clientv3.WithSerializable())
		if err != nil {
			return 0, fmt.Errorf("read the list of revoked certificates from the store: %w", err)
		}
		for _, kv := range resp.Kvs {
			each(bytes.Clone(kv.Value), uint64(kv.ModRevision))
		}
		return uint64(resp.Header.Revision), nil
	})
}

// PutDenied replaces the signed list of revoked certificates, and returns the revision of the new one. old is the
// stored list that the caller knows, nil for none. It fails with ErrConflict if a different list is stored. It needs no
// leader. The transaction compares the revision instead of the old list: two full lists exceed etcd's default limit of
// a request, 1.5 MiB.
func (s *Etcd) PutDenied(ctx context.Context, old, signed []byte) (uint64, error) {
	resp, err := s.c.Get(ctx, keyDenied)
	if err != nil {
		return 0, fmt.Errorf("store the list of revoked certificates: %w", err)
	}
	var stored []byte
	var revision int64 // 0: no stored list
	for _, kv := range resp.Kvs {
		stored, revision = kv.Value, kv.ModRevision
	}
	if (old == nil) != (revision == 0) || !bytes.Equal(old, stored) {
		return 0, fmt.Errorf("store the list of revoked certificates: %w", ErrConflict)
	}
	put, err := s.c.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(keyDenied), "=", revision)).Then(clientv3.OpPut(keyDenied,
		string(signed))).Commit()
	switch {
	case err != nil:
		return 0, fmt.Errorf("store the list of revoked certificates: %w", err)
	case !put.Succeeded:
		return 0, fmt.Errorf("store the list of revoked certificates: %w", ErrConflict)
	}
	return uint64(put.Header.Revision), nil
}
