package store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// keyIdentity distinguishes this store from others of the same name: one that was newly created, or restored from a
// snapshot. Revisions and event numbers belong to one identity only.
const keyIdentity = Prefix + "identity"

// Identity is the store's identity and its progress, confirmed by a quorum.
type Identity struct {
	ID string
	// First is the number of the first event that is in no store of another identity: 1 in a new store.
	First    uint64
	From     string // the identity of the restored snapshot; empty in a new store
	Revision uint64
	Next     uint64 // number of the next event
}

// storedIdentity is the value of keyIdentity.
type storedIdentity struct {
	ID    string `json:"id"`
	First uint64 `json:"first"`
	From  string `json:"from,omitempty"`
	Etcd  string `json:"etcd"` // ID of the etcd cluster: any kind of restore changes it
}

// goesOn reports whether a store with these gaps, in an etcd cluster, is still the one that got its identity at a
// revision. If not, from is the revision after which its events are its own.
func (i storedIdentity) goesOn(at uint64, etcd string, gaps []Gap, written uint64) (from uint64, goesOn bool) {
	for _, g := range gaps {
		if g.To > at+leap {
			return g.From, false
		}
	}
	return written, i.Etcd == etcd
}

// Identity returns the store's identity. A leader that finds none, or one from before a restore, creates a new one.
// It fails with ErrNotLeader if the fence is gone.
func (s *Etcd) Identity(ctx context.Context, fence Fence) (Identity, error) {
	resp, err := s.c.Txn(ctx).Then(clientv3.OpGet(keyIdentity), clientv3.OpGet(keyHead)).Commit()
	if err != nil {
		return Identity{}, fmt.Errorf("ask the store for its identity: %w", err)
	}
	out := Identity{Revision: uint64(resp.Header.Revision), Next: 1}
	etcd := strconv.FormatUint(resp.Header.ClusterId, 16)
	var h head
	written := uint64(0)
	for _, kv := range resp.Responses[1].GetResponseRange().GetKvs() {
		if err := json.Unmarshal(kv.Value, &h); err != nil {
			return Identity{}, fmt.Errorf("read %s: %w", keyHead, err)
		}
		out.Next, written = h.Next, uint64(kv.ModRevision)
	}
	have, at := storedIdentity{}, uint64(0)
	for _, kv := range resp.Responses[0].GetResponseRange().GetKvs() {
		if err := json.Unmarshal(kv.Value, &have); err != nil {
			return Identity{}, fmt.Errorf("read %s: %w", keyIdentity, err)
		}
		at = uint64(kv.ModRevision)
	}
	if from, same := have.goesOn(at, etcd, h.gaps(written, out.Revision), written); at == 0 || !same {
		have = storedIdentity{ID: newIdentity(), First: 1, From: have.ID, Etcd: etcd}
		if at != 0 {
			if have.First, err = s.eventAfter(ctx, from, out.Next); err != nil {
				return Identity{}, err
			}
		}
		if out.Revision, err = s.putIdentity(ctx, fence, have, at); err != nil {
			return Identity{}, err
		}
	}
	out.ID, out.First, out.From = have.ID, have.First, have.From
	return out, nil
}

// eventAfter returns the number of the first event committed after a revision, or next if there is none.
func (s *Etcd) eventAfter(ctx context.Context, revision, next uint64) (uint64, error) {
	resp, err := s.c.Get(ctx, keyEvents, clientv3.WithPrefix(), clientv3.WithMinCreateRev(int64(revision)+1), clientv3.WithKeysOnly(),
		clientv3.WithLimit(1))
	if err != nil {
		return 0, fmt.Errorf("read which events were committed after revision %d: %w", revision, err)
	}
	if len(resp.Kvs) == 0 {
		return next, nil
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(string(resp.Kvs[0].Key), keyEvents), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", resp.Kvs[0].Key, err)
	}
	return n, nil
}

// putIdentity stores the identity, unless another replica leads or has changed it since the revision.
func (s *Etcd) putIdentity(ctx context.Context, fence Fence, id storedIdentity, since uint64) (revision uint64, err error) {
	value, err := json.Marshal(id)
	if err != nil {
		return 0, fmt.Errorf("encode the store's identity: %w", err)
	}
	resp, err := s.c.Txn(ctx).If(
		clientv3.Compare(clientv3.CreateRevision(fence.Key), "=", fence.Rev),
		clientv3.Compare(clientv3.ModRevision(keyIdentity), "=", int64(since)),
	).Then(clientv3.OpPut(keyIdentity, string(value))).Commit()
	if err != nil {
		return 0, fmt.Errorf("give the store an identity: %w", err)
	}
	if !resp.Succeeded {
		return 0, fmt.Errorf("give the store an identity: %w", ErrNotLeader)
	}
	return uint64(resp.Header.Revision), nil
}

func newIdentity() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
