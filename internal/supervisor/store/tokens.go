package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const keyTokens = Prefix + "tokens/"

// MaxTokens bounds the tokens with which nodes enrol, expired ones included.
const MaxTokens = 1000

// JoinToken is a token with which nodes enrol, without its secret.
type JoinToken struct {
	ID      string    `json:"-"`
	Sum     []byte    `json:"sum"` // of the secret
	By      string    `json:"by"`  // who made it, "ROLE/NAME"
	Made    time.Time `json:"made"`
	Expires time.Time `json:"expires"`
	Uses    int       `json:"uses"`            // issues of certificates
	Node    string    `json:"node,omitempty"`  // the only one that may use it; empty: new ones
	Names   []string  `json:"names,omitempty"` // patterns of the names that new ones may have; none: any name
	Used    []JoinUse `json:"used,omitempty"`  // one for each issue, in order

	// Revision is that of its last write.
	Revision uint64 `json:"-"`
}

// JoinUse is one issue of certificates to a node.
type JoinUse struct {
	Node string    `json:"node"`
	Keys []byte    `json:"keys"` // SHA-256 of the public keys of its halves
	At   time.Time `json:"at"`
}

// Put returns the key and the value that store the token.
func (t JoinToken) Put() (KV, error) {
	value, err := json.Marshal(t)
	if err != nil {
		return KV{}, fmt.Errorf("encode token %s: %w", t.ID, err)
	}
	return KV{TokenKey(t.ID), value}, nil
}

// Guard makes a write fail if the token has changed since it was read.
func (t JoinToken) Guard() Guard { return Guard{Key: TokenKey(t.ID), Revision: t.Revision} }

// TokenKey returns the key of a token.
func TokenKey(id string) string { return keyTokens + id }

// Tokens returns all tokens by id, with a quorum. Unreadable ones are left out.
func (s *Etcd) Tokens(ctx context.Context) ([]JoinToken, error) {
	resp, err := s.c.Get(ctx, keyTokens, clientv3.WithPrefix(), clientv3.WithLimit(MaxTokens))
	if err != nil {
		return nil, fmt.Errorf("read the tokens from the store: %w", err)
	}
	var out []JoinToken
	for _, kv := range resp.Kvs {
		if t, err := decodeToken(kv); err == nil {
			out = append(out, t)
		}
	}
	return out, nil
}

// Token returns one token, with a quorum; false: there is none.
func (s *Etcd) Token(ctx context.Context, id string) (JoinToken, bool, error) {
	resp, err := s.c.Get(ctx, TokenKey(id))
	if err != nil {
		return JoinToken{}, false, fmt.Errorf("read token %s from the store: %w", id, err)
	}
	for _, kv := range resp.Kvs {
		t, err := decodeToken(kv)
		return t, err == nil, err
	}
	return JoinToken{}, false, nil
}

// decodeToken reads the stored form of a token.
func decodeToken(kv *mvccpb.KeyValue) (JoinToken, error) {
	t := JoinToken{ID: strings.TrimPrefix(string(kv.Key), keyTokens), Revision: uint64(kv.ModRevision)}
	if err := json.Unmarshal(kv.Value, &t); err != nil {
		return JoinToken{}, fmt.Errorf("read %s: %w", kv.Key, err)
	}
	return t, nil
}
