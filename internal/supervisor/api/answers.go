package api

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/lofamo/lofamo/internal/bounded"
)

// Limits on the answers to people's calls. gRPC queues an answer that the client does not take, and ends the call's context as if
// the client had it. So the admission counts an answer until gRPC frees its bytes.
const (
	answerBytes = 64 << 20 // per subject: answers to reads, from before they are built until the client has taken them
	answerShare = 4 << 20  // per read, reserved before its answer is built; bytes of an answer beyond it do not count
	answerWait  = 10 * time.Second
	takeTime    = time.Minute // in which a client must take the answer to a unary call
)

// minTracked is the least capacity of a buffer whose end gRPC reports.
const minTracked = 2 << 10

// isRead reports whether a unary call reads, and may have a long answer.
func isRead(method string) bool {
	name := method[strings.LastIndexByte(method, '/')+1:]
	return strings.HasPrefix(name, "List") || strings.HasPrefix(name, "Get")
}

// answer runs the handler of a unary call, once there is room for its answer.
func (a *admission) answer(ctx context.Context, method string, handle func() (any, error)) (any, error) {
	room := bounded.Answers(ctx)
	if room == nil { // of a replica
		return handle()
	}
	var reserved int64
	if isRead(method) {
		waits, cancel := context.WithTimeout(ctx, a.answerWait)
		defer cancel()
		if err := room.Acquire(waits, answerShare); err != nil {
			if ctx.Err() != nil {
				return nil, status.FromContextError(ctx.Err()).Err()
			}
			a.refused(RefusedAnswers)
			id, _ := caller(ctx)
			return nil, status.Errorf(codes.ResourceExhausted, "%s: the answers to %s leave no room: read them, or make fewer calls at once",
				method, subjectName(id))
		}
		reserved = answerShare
	}
	reply, err := handle()
	if err != nil {
		room.Release(reserved)
		return nil, err
	}
	return a.track(ctx, reply, reserved, a.takeTime), nil
}

// track encodes a message. The message keeps its call's place, and the reserved bytes as far as it needs them, until the client has
// taken it. A client that does not take it within the limit loses its connection; 0: there is no limit.
func (a *admission) track(ctx context.Context, m any, reserved int64, limit time.Duration) any {
	room := bounded.Answers(ctx)
	if room == nil { // of a replica
		return m
	}
	msg, ok := m.(proto.Message)
	leave, kept := func() {}, false
	if ok {
		leave, kept = a.calls.Keep(ctx)
	}
	if !kept {
		room.Release(reserved)
		return m
	}
	size := proto.Size(msg)
	used := min(reserved, int64(size))
	room.Release(reserved - used)
	conn := connectionOf(ctx)
	var held context.Context
	var taken context.CancelFunc
	if limit > 0 {
		held, taken = context.WithTimeout(conn.ctx, limit)
	} else {
		held, taken = context.WithCancel(conn.ctx)
	}
	context.AfterFunc(held, func() {
		if errors.Is(held.Err(), context.DeadlineExceeded) {
			_ = conn.Close()
		}
		room.Release(used)
		leave()
	})
	b, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, 0, max(size, minTracked)), msg)
	if err != nil {
		taken()
		return m // gRPC reports the error
	}
	return encoded{mem.NewBuffer(&b, end(taken))}
}

// end is a pool of one buffer that gRPC returns once the client has taken it, or will never take it.
type end func()

// Get implements mem.BufferPool.
func (end) Get(n int) *[]byte {
	b := make([]byte, n)
	return &b
}

// Put implements mem.BufferPool.
func (e end) Put(*[]byte) { e() }

// connection is a client's connection. Its context ends when it is closed: gRPC frees no buffers of a closed connection.
type connection struct {
	net.Conn

	ctx context.Context
	end context.CancelFunc
}

// Close implements net.Conn.
func (c *connection) Close() error {
	defer c.end()
	return c.Conn.Close()
}

// RemoteAddr implements net.Conn. gRPC gives it to every call as the address of its peer. The AuthInfo of a call is no place for the
// connection, because embedded etcd wants a credentials.TLSInfo there.
func (c *connection) RemoteAddr() net.Addr { return connAddr{c.Conn.RemoteAddr(), c} }

// connAddr is the address at the other end of a connection.
type connAddr struct {
	net.Addr

	conn *connection
}

// connectionOf returns the connection of a call of a server with these credentials.
func connectionOf(ctx context.Context) *connection {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(connAddr); ok {
			return a.conn
		}
	}
	return nil
}

// connecting is credentials whose connections are *connection.
type connecting struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (c connecting) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	nc, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nc, info, err
	}
	ctx, end := context.WithCancel(context.Background())
	return &connection{nc, ctx, end}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (c connecting) Clone() credentials.TransportCredentials {
	return connecting{c.TransportCredentials.Clone()}
}
