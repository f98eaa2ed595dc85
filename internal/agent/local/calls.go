package local

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/local/jobs"
	"github.com/lofamo/lofamo/internal/bounded"
	"github.com/lofamo/lofamo/internal/config"
)

// Limits on the socket. The half has little memory and one thread: a user who may open the socket must not use either up.
const (
	// maxConns bounds the connections. Each rank of a job may have one. As with other resources, a user gets at most 50 %, and the
	// last eighth is for root: see jobs.Room.
	maxConns = 1024
	// maxCalls bounds the calls in progress, including those whose requests have not arrived. 50 % of it exceeds a user's limits on
	// waiting calls and watchers together.
	maxCalls = 1536
	// maxStreams bounds the calls in progress on a connection. It exceeds maxCalls, so that a process that makes the calls of all
	// participants of its node gets an error at maxCalls. At maxStreams, gRPC would block the call.
	maxStreams = 2048

	maxRequest    = 128 << 10 // bytes: 1,024 node IDs
	maxArriving   = 8         // requests of a user that arrive at the same time
	arrivingBytes = 4 << 20   // total of all requests that arrive at the same time, except root's
	arriveTime    = 10 * time.Second
	maxHeaderList = 4 << 10  // bytes
	window        = 64 << 10 // bytes that a client may send ahead; gRPC takes no less
	readBuffer    = 4 << 10  // bytes of a connection
	handshakeTime = 5 * time.Second
)

// callRate limits the calls of a user. It exceeds the rates of barriers, eurekas and watches together. Calls above it are refused. Even a
// refused call costs the half's thread some time, so refused calls above floodRate close their connection.
var (
	callRate  = jobs.Limit{Rate: 1000, Burst: 2000}
	floodRate = jobs.Limit{Rate: 2000, Burst: 4000}
)

// Listen limits the connections of a Unix socket, in total and per user.
func Listen(l net.Listener, log *slog.Logger) net.Listener {
	limits := bounded.Limits{All: maxConns, PerSource: maxConns / 2, PerSubject: maxConns / 2, Subjects: maxConns - maxConns/8}
	return bounded.Listen(l, bounded.Options{Limits: limits, Log: log, Source: func(c net.Conn) string {
		who, err := callerOf(c)
		if err != nil {
			return "unknown"
		}
		return who.user()
	}})
}

// calls counts and limits the calls of a server.
type calls struct {
	*bounded.Calls[uint32]

	mu          sync.Mutex
	rate, flood jobs.Limit
}

func newCalls() *calls {
	return &calls{rate: callRate, flood: floodRate, Calls: bounded.NewCalls(bounded.CallLimits[uint32]{
		May:      func(uid uint32, mine, all int) bool { return jobs.Room(maxCalls, all, uid, mine) },
		Requests: maxArriving, Bytes: arrivingBytes,
	})}
}

// mayBegin reports whether a user may begin a call now, and if not, whether the connection of that call must end.
func (c *calls) mayBegin(now time.Time, uid uint32) (may, floods bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rate.Take(now, uid) {
		return true, false
	}
	return false, !c.flood.Take(now, uid)
}

// GRPC returns a server of these calls, for Unix sockets. Its stop waits for the handlers, which call the half even
// as they end.
func (s *Server) GRPC() *grpc.Server {
	srv := grpc.NewServer(grpc.Creds(Credentials()), grpc.MaxConcurrentStreams(maxStreams), grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxHeaderListSize(maxHeaderList), grpc.InTapHandle(s.tap), grpc.StreamInterceptor(bounded.Streams(s.receive)),
		grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(window), grpc.ReadBufferSize(readBuffer),
		grpc.ConnectionTimeout(handshakeTime), grpc.WaitForHandlers(true))
	srv.RegisterService(bounded.Service(&lofamov1.Local_ServiceDesc, s.receive), s)
	return srv
}

// tap admits or refuses a call by its header, before it has a goroutine. It does not block.
func (s *Server) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	who, err := s.admit(ctx, info.FullMethodName)
	if err != nil {
		return bounded.Refuse(ctx, err)
	}
	if may, floods := s.calls.mayBegin(time.Now(), who.uid); !may {
		if floods && who.conn != nil {
			_ = who.conn.Close()
		}
		return bounded.Refuse(ctx, status.Errorf(codes.ResourceExhausted, "calls: uid %d makes too many: want at most %.0f a second, or %.0f at "+
			"once", who.uid, callRate.Rate, callRate.Burst))
	}
	ctx, ok := s.calls.Enter(ctx, who.uid)
	if !ok {
		return bounded.Refuse(ctx, status.Errorf(codes.ResourceExhausted, "too many calls in progress on this node: uid %d wants another one: "+
			"want at most %d, and half of that of one user", who.uid, maxCalls))
	}
	return ctx, nil
}

// receive reads the request of a call, within arriveTime.
func (s *Server) receive(ctx context.Context, method string, m any, read func(any) error) (release func(), err error) {
	bytes := int64(maxRequest)
	if who, ok := callerIn(ctx); ok && who.uid == 0 {
		bytes = 0 // root does not wait for the requests of others
	}
	err = s.calls.Receive(ctx, bytes, arriveTime, func() error { return read(m) })
	if errors.Is(err, bounded.ErrSlow) {
		err = status.Errorf(codes.DeadlineExceeded, "%s: the request did not arrive within %v, or too many others arrive", method, arriveTime)
	}
	return func() {}, err
}

// right returns the users who may call a method, and the name of that right in the configuration; "" for an unknown method.
func (p Policy) right(method string) (who config.Who, name string) {
	switch method {
	case lofamov1.Local_WatchFaults_FullMethodName, lofamov1.Local_WatchEureka_FullMethodName:
		return p.Watch, "watch"
	case lofamov1.Local_RaiseEureka_FullMethodName:
		return p.Raise, "raise"
	case lofamov1.Local_Barrier_FullMethodName:
		return p.Barrier, "barrier"
	}
	return config.Who{}, ""
}
