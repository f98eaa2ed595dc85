package embedded

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lofamo/lofamo/internal/supervisor/checksum"
)

// ErrStopped says that the member has stopped or is stopping: by Stop, or by itself, for instance after its
// removal from the cluster. A failed write may still have taken effect.
var ErrStopped = errors.New("the store's member in this process has stopped")

// guard keeps calls out of a stopped member. etcd closes its database without regard to running or later reads,
// which then crash the process. The etcd program ends with its server, so it never has this problem; a supervisor
// lives longer.
//
//	open ──the server begins to stop──► ended: no call enters, those inside are cancelled,
//	                                    and etcd waits for them before it closes the database
type guard struct {
	ctx  context.Context // ends with the member
	stop context.CancelFunc

	mu    sync.Mutex
	ended bool
	calls sync.WaitGroup // entered under mu, and only before ended
}

func newGuard() *guard {
	g := new(guard)
	g.ctx, g.stop = context.WithCancel(context.Background())
	return g
}

// attach makes a stopping server wait for the calls inside.
func (g *guard) attach(s *etcdserver.EtcdServer) {
	s.GoAttach(func() {
		<-s.StoppingNotify()
		g.end()
	})
	select {
	case <-s.StoppingNotify():
		g.end() // it may have stopped too early to attach anything
	default:
	}
}

// end admits no further calls and waits for those inside.
func (g *guard) end() {
	g.mu.Lock()
	g.ended = true
	g.mu.Unlock()
	g.stop()
	g.calls.Wait()
}

// enter returns the context for a call, which also ends with the member, and the function that ends the call.
func (g *guard) enter(ctx context.Context) (context.Context, func(), error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return nil, nil, ErrStopped
	}
	g.calls.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	detach := context.AfterFunc(g.ctx, cancel)
	return ctx, func() {
		detach()
		cancel()
		g.calls.Done()
	}, nil
}

// guarded makes a call inside the guard. A call that fails because of the member's end fails with ErrStopped.
func guarded[Req, Resp any](ctx context.Context, g *guard, req Req, call func(context.Context, Req) (Resp, error)) (Resp, error) {
	ctx, leave, err := g.enter(ctx)
	if err != nil {
		var none Resp
		return none, err
	}
	defer leave()
	resp, err := call(ctx, req)
	if err != nil && g.ctx.Err() != nil {
		err = ErrStopped
	}
	return resp, err
}

// guardedClient returns an in-process client with guarded reads, writes and snapshots, with checksums, and with writes that can be held.
// The client's other parts, leases and alarms, live in memory and in raft, which end in order by themselves.
func (m *Member) guardedClient(g *guard) *clientv3.Client {
	server := m.etcd.Server
	c := v3client.New(server)
	kv := v3rpc.NewQuotaKVServer(server)
	c.KV = clientv3.NewKVFromKVClient(checksum.KV(&guardedKV{adapter.KvServerToKvClient(kv), g, kv, m}, m.damaged), c)
	watch := adapter.WatchServerToWatchClient(v3rpc.NewWatchServer(server))
	c.Watcher = clientv3.NewWatchFromWatchClient(checksum.Watch(watch, m.damaged), c)
	maintenance := &guardedMaintenance{v3rpc.NewMaintenanceServer(server, nil), g}
	c.Maintenance = clientv3.NewMaintenanceFromMaintenanceClient(adapter.MaintenanceServerToMaintenanceClient(maintenance), c)
	return c
}

// guardedMaintenance is etcd's maintenance service with the guard before snapshots.
type guardedMaintenance struct {
	etcdserverpb.MaintenanceServer

	g *guard
}

func (m *guardedMaintenance) Snapshot(r *etcdserverpb.SnapshotRequest, stream etcdserverpb.Maintenance_SnapshotServer) error {
	_, leave, err := m.g.enter(stream.Context())
	if err != nil {
		return err
	}
	defer leave()
	return m.MaintenanceServer.Snapshot(r, stream)
}

// guardedKV is etcd's key-value service with the guard before every call.
type guardedKV struct {
	etcdserverpb.KVClient // for RangeStream, which has no in-process implementation

	g  *guard
	kv etcdserverpb.KVServer
	m  *Member // counts the written keys, and may hold writes
}

func (k *guardedKV) Range(ctx context.Context, r *etcdserverpb.RangeRequest, _ ...grpc.CallOption) (*etcdserverpb.RangeResponse, error) {
	return guarded(ctx, k.g, r, k.kv.Range)
}

func (k *guardedKV) Put(ctx context.Context, r *etcdserverpb.PutRequest, _ ...grpc.CallOption) (*etcdserverpb.PutResponse, error) {
	op := &etcdserverpb.RequestOp{Request: &etcdserverpb.RequestOp_RequestPut{RequestPut: r}}
	if err := k.m.space.holds(op); err != nil {
		return nil, err
	}
	resp, err := guarded(ctx, k.g, r, k.kv.Put)
	if err == nil {
		k.m.compaction.puts.Add(1)
	}
	return resp, err
}

func (k *guardedKV) DeleteRange(ctx context.Context, r *etcdserverpb.DeleteRangeRequest,
	_ ...grpc.CallOption) (*etcdserverpb.DeleteRangeResponse, error) {
	return guarded(ctx, k.g, r, k.kv.DeleteRange)
}

func (k *guardedKV) Txn(ctx context.Context, r *etcdserverpb.TxnRequest, _ ...grpc.CallOption) (*etcdserverpb.TxnResponse, error) {
	if err := k.m.space.holds(slices.Concat(r.GetSuccess(), r.GetFailure())...); err != nil {
		return nil, err
	}
	resp, err := guarded(ctx, k.g, r, k.kv.Txn)
	if resp.GetSucceeded() {
		k.m.compaction.puts.Add(putsIn(r.GetSuccess()))
	}
	return resp, err
}

func (k *guardedKV) Compact(ctx context.Context, r *etcdserverpb.CompactionRequest,
	_ ...grpc.CallOption) (*etcdserverpb.CompactionResponse, error) {
	return guarded(ctx, k.g, r, k.kv.Compact)
}

// unary guards the calls that arrive at the member's address.
func (g *guard) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := guarded(ctx, g, req, handler)
	if errors.Is(err, ErrStopped) {
		err = status.Error(codes.Unavailable, err.Error())
	}
	return resp, err
}

// stream guards the streams that read the database. A watch and a lease's renewals last for as long as their
// client wants, and read none of the database.
func (g *guard) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if !strings.HasSuffix(info.FullMethod, "/Snapshot") && !strings.HasSuffix(info.FullMethod, "/RangeStream") {
		return handler(srv, ss)
	}
	_, leave, err := g.enter(ss.Context())
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	defer leave()
	return handler(srv, ss)
}
