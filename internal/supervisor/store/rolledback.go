package store

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// keyRolledBack has the revision that the store has lost, and the etcd cluster that lost it: text.
const keyRolledBack = Prefix + "rolledback"

// NoteRolledBack notes for all replicas that the store once was at a revision that it has not reached yet.
func (s *Etcd) NoteRolledBack(ctx context.Context, revision uint64) error {
	resp, err := s.c.Get(ctx, keyRolledBack)
	if err == nil {
		_, err = s.c.Put(ctx, keyRolledBack, fmt.Sprintf("%d %x", revision, resp.Header.GetClusterId()))
	}
	if err != nil {
		return fmt.Errorf("note that the store was rolled back: %w", err)
	}
	return nil
}

// WithdrawRolledBack removes that note, and reports whether there was one.
func (s *Etcd) WithdrawRolledBack(ctx context.Context) (bool, error) {
	resp, err := s.c.Delete(ctx, keyRolledBack)
	if err != nil {
		return false, fmt.Errorf("withdraw the note that the store was rolled back: %w", err)
	}
	return resp.Deleted > 0, nil
}

// RolledBack returns the noted revision from the replica's own copy; 0: the store was not rolled back. A restore of a snapshot ends it: it
// makes another etcd cluster, whose revisions begin above all earlier ones.
func (s *Etcd) RolledBack(ctx context.Context) (uint64, error) {
	resp, err := s.c.Get(ctx, keyRolledBack, clientv3.WithSerializable())
	if err != nil {
		return 0, fmt.Errorf("read whether the store was rolled back: %w", err)
	}
	if len(resp.Kvs) == 0 {
		return 0, nil
	}
	lost, cluster, _ := strings.Cut(string(resp.Kvs[0].Value), " ")
	if cluster != strconv.FormatUint(resp.Header.GetClusterId(), 16) {
		return 0, nil
	}
	revision, err := strconv.ParseUint(lost, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", keyRolledBack, err)
	}
	return revision, nil
}
