package storetest

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// LossyKV loses answers to transactions with conditions, which all commits have: they succeed, but seem to fail.
type LossyKV struct {
	clientv3.KV

	Lose func(*clientv3.TxnResponse) bool // called for each answer
}

// Txn implements clientv3.KV.
func (k *LossyKV) Txn(ctx context.Context) clientv3.Txn { return &lossyTxn{k.KV.Txn(ctx), k, false} }

type lossyTxn struct {
	clientv3.Txn

	k      *LossyKV
	guards bool
}

// If implements clientv3.Txn.
func (t *lossyTxn) If(cs ...clientv3.Cmp) clientv3.Txn {
	t.Txn, t.guards = t.Txn.If(cs...), true
	return t
}

// Then implements clientv3.Txn.
func (t *lossyTxn) Then(ops ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Then(ops...); return t }

// Else implements clientv3.Txn.
func (t *lossyTxn) Else(ops ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Else(ops...); return t }

// Commit implements clientv3.Txn.
func (t *lossyTxn) Commit() (*clientv3.TxnResponse, error) {
	resp, err := t.Txn.Commit()
	if err == nil && t.guards && t.k.Lose(resp) {
		return nil, errors.New("the answer was lost")
	}
	return resp, err
}
