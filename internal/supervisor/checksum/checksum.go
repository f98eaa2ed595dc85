// Package checksum puts a checksum at the end of every value that the supervisors keep in etcd, and checks it at every read.
//
// etcd answers from the file of one member, and notices no change in that file. A replica whose file was damaged would serve the damaged
// value, and as the leader commit decisions that rest on it. Client, KV and Watch work below the store: its code sees no checksum.
// A transaction must not compare values, because etcd would compare them with their checksums.
package checksum

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// Prefix starts all keys whose values have checksums. Other keys belong to other programs.
const Prefix = "/lofamo/"

// size is the length of a checksum in bytes.
const size = crc32.Size

var table = crc32.MakeTable(crc32.Castagnoli)

// DamagedError says that a value does not have its checksum.
type DamagedError struct {
	Key    string
	Member uint64 // the ID of the member that answered; 0: read from a file
}

// Error implements error.
func (e *DamagedError) Error() string {
	if e.Member == 0 {
		return fmt.Sprintf("the value of %s is damaged: its checksum is wrong", e.Key)
	}
	return fmt.Sprintf("the value of %s at etcd's member %x is damaged: its checksum is wrong", e.Key, e.Member)
}

// sum depends on the key too, so that a value does not pass under another key.
func sum(key, value []byte) uint32 {
	return crc32.Update(crc32.Update(crc32.Checksum(key, table), table, []byte{0}), table, value)
}

func covers(key []byte) bool { return strings.HasPrefix(string(key), Prefix) }

// Seal returns a value with its checksum.
func Seal(key, value []byte) []byte {
	if !covers(key) {
		return value
	}
	out := make([]byte, 0, len(value)+size)
	return binary.BigEndian.AppendUint32(append(out, value...), sum(key, value))
}

// Open returns a sealed value without its checksum; false: the value is damaged.
func Open(key, sealed []byte) (value []byte, ok bool) {
	if !covers(key) {
		return sealed, true
	}
	n := len(sealed) - size
	if n < 0 || binary.BigEndian.Uint32(sealed[n:]) != sum(key, sealed[:n]) {
		return nil, false
	}
	return sealed[:n:n], true
}

// Client makes a client of members over the network seal and check values.
func Client(c *clientv3.Client) {
	c.KV = clientv3.NewKVFromKVClient(KV(clientv3.RetryKVClient(c), nil), c)
	c.Watcher = clientv3.NewWatchFromWatchClient(Watch(etcdserverpb.NewWatchClient(c.ActiveConnection()), nil), c)
}

// checker checks values that a member sent.
type checker struct {
	damaged func(error) // receives every DamagedError; must not block; may be nil
}

// open replaces a sealed value by the value.
func (c checker) open(member uint64, kv *mvccpb.KeyValue) error {
	value, ok := Open(kv.GetKey(), kv.GetValue())
	if !ok {
		err := &DamagedError{Key: string(kv.GetKey()), Member: member}
		if c.damaged != nil {
			c.damaged(err)
		}
		return err
	}
	kv.Value = value
	return nil
}

func (c checker) openAll(member uint64, kvs ...*mvccpb.KeyValue) error {
	for _, kv := range kvs {
		if kv == nil {
			continue // no previous value
		}
		if err := c.open(member, kv); err != nil {
			return err
		}
	}
	return nil
}

// KV returns the service with checksums. damaged receives the error of each damaged value too; it must not block, and may be nil.
// Its method RangeStream does not check values: the clients do not use it.
func KV(kv etcdserverpb.KVClient, damaged func(error)) etcdserverpb.KVClient {
	return &sealedKV{kv, checker{damaged}}
}

type sealedKV struct {
	etcdserverpb.KVClient

	checker
}

// Range implements etcdserverpb.KVClient.
func (s *sealedKV) Range(ctx context.Context, r *etcdserverpb.RangeRequest, opts ...grpc.CallOption) (*etcdserverpb.RangeResponse, error) {
	resp, err := s.KVClient.Range(ctx, r, opts...)
	if err == nil {
		err = s.openRange(resp.GetHeader().GetMemberId(), r, resp)
	}
	return resp, err
}

// Put implements etcdserverpb.KVClient.
func (s *sealedKV) Put(ctx context.Context, r *etcdserverpb.PutRequest, opts ...grpc.CallOption) (*etcdserverpb.PutResponse, error) {
	sealPut(r)
	resp, err := s.KVClient.Put(ctx, r, opts...)
	if err == nil {
		err = s.openAll(resp.GetHeader().GetMemberId(), resp.GetPrevKv())
	}
	return resp, err
}

// DeleteRange implements etcdserverpb.KVClient.
func (s *sealedKV) DeleteRange(ctx context.Context, r *etcdserverpb.DeleteRangeRequest,
	opts ...grpc.CallOption) (*etcdserverpb.DeleteRangeResponse, error) {
	resp, err := s.KVClient.DeleteRange(ctx, r, opts...)
	if err == nil {
		err = s.openAll(resp.GetHeader().GetMemberId(), resp.GetPrevKvs()...)
	}
	return resp, err
}

// Txn implements etcdserverpb.KVClient.
func (s *sealedKV) Txn(ctx context.Context, r *etcdserverpb.TxnRequest, opts ...grpc.CallOption) (*etcdserverpb.TxnResponse, error) {
	sealTxn(r)
	resp, err := s.KVClient.Txn(ctx, r, opts...)
	if err == nil {
		err = s.openTxn(resp.GetHeader().GetMemberId(), r, resp)
	}
	return resp, err
}

func sealPut(r *etcdserverpb.PutRequest) {
	if !r.GetIgnoreValue() {
		r.Value = Seal(r.GetKey(), r.GetValue())
	}
}

func sealTxn(r *etcdserverpb.TxnRequest) {
	for _, ops := range [][]*etcdserverpb.RequestOp{r.GetSuccess(), r.GetFailure()} {
		for _, op := range ops {
			if put := op.GetRequestPut(); put != nil {
				sealPut(put)
			}
			if txn := op.GetRequestTxn(); txn != nil {
				sealTxn(txn)
			}
		}
	}
}

func (c checker) openRange(member uint64, r *etcdserverpb.RangeRequest, resp *etcdserverpb.RangeResponse) error {
	if r.GetKeysOnly() {
		return nil
	}
	return c.openAll(member, resp.GetKvs()...)
}

func (c checker) openTxn(member uint64, r *etcdserverpb.TxnRequest, resp *etcdserverpb.TxnResponse) error {
	ops := r.GetFailure()
	if resp.GetSucceeded() {
		ops = r.GetSuccess()
	}
	for i, out := range resp.GetResponses() {
		err := c.openAll(member, out.GetResponsePut().GetPrevKv())
		if err == nil {
			err = c.openAll(member, out.GetResponseDeleteRange().GetPrevKvs()...)
		}
		if got := out.GetResponseRange(); err == nil && got != nil {
			err = c.openRange(member, ops[i].GetRequestRange(), got)
		}
		if txn := out.GetResponseTxn(); err == nil && txn != nil {
			err = c.openTxn(member, ops[i].GetRequestTxn(), txn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Watch returns the service with checksums. A watch fails at a damaged value. damaged is as for KV.
func Watch(w etcdserverpb.WatchClient, damaged func(error)) etcdserverpb.WatchClient {
	return &sealedWatch{w, checker{damaged}}
}

type sealedWatch struct {
	etcdserverpb.WatchClient

	checker
}

type stream = grpc.BidiStreamingClient[etcdserverpb.WatchRequest, etcdserverpb.WatchResponse]

// Watch implements etcdserverpb.WatchClient.
func (s *sealedWatch) Watch(ctx context.Context, opts ...grpc.CallOption) (stream, error) {
	in, err := s.WatchClient.Watch(ctx, opts...)
	if err != nil {
		return nil, err
	}
	return &sealedStream{in, s.checker}, nil
}

type sealedStream struct {
	stream

	checker
}

// Recv implements the stream. Within the member's process, all watches share the events: they stay as they are.
func (s *sealedStream) Recv() (*etcdserverpb.WatchResponse, error) {
	resp, err := s.stream.Recv()
	if err != nil || len(resp.GetEvents()) == 0 {
		return resp, err
	}
	out := &etcdserverpb.WatchResponse{
		Header: resp.GetHeader(), WatchId: resp.GetWatchId(), Created: resp.GetCreated(), Canceled: resp.GetCanceled(),
		CompactRevision: resp.GetCompactRevision(), CancelReason: resp.GetCancelReason(), Fragment: resp.GetFragment(),
	}
	for _, ev := range resp.GetEvents() {
		opened := &mvccpb.Event{Type: ev.GetType(), Kv: copied(ev.GetKv()), PrevKv: copied(ev.GetPrevKv())}
		if ev.GetType() != mvccpb.Event_DELETE {
			err = s.openAll(resp.GetHeader().GetMemberId(), opened.GetKv())
		}
		if err == nil {
			err = s.openAll(resp.GetHeader().GetMemberId(), opened.GetPrevKv())
		}
		if err != nil {
			return nil, err
		}
		out.Events = append(out.Events, opened)
	}
	return out, nil
}

// copied returns a copy that shares key and value.
func copied(kv *mvccpb.KeyValue) *mvccpb.KeyValue {
	if kv == nil {
		return nil
	}
	return &mvccpb.KeyValue{
		Key: kv.GetKey(), CreateRevision: kv.GetCreateRevision(), ModRevision: kv.GetModRevision(), Version: kv.GetVersion(),
		Value: kv.GetValue(), Lease: kv.GetLease(),
	}
}
