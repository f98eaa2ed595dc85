package bounded

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// CallLimits are the limits of Calls.
type CallLimits[S comparable] struct {
	// May reports whether a subject with mine calls in progress may make another one; all is the number of calls of all subjects.
	May      func(subject S, mine, all int) bool
	Requests int   // requests of one subject that arrive at the same time
	Bytes    int64 // total of all requests that arrive at the same time
	Answers  int64 // bytes of the answers of one subject: see Answers
}

// ErrSlow means that a request did not arrive in time.
var ErrSlow = errors.New("the request did not arrive in time")

// Calls limits the calls in progress on a gRPC server, and the memory of requests that arrive. Enter counts a call in the server's
// tap, before gRPC starts a goroutine for it. Receive reads its request. Any goroutine may call the methods.
type Calls[S comparable] struct {
	limits   CallLimits[S]
	arriving *semaphore.Weighted

	mu       sync.Mutex
	all      int
	subjects map[S]*subject
}

// subject is a subject with calls in progress.
type subject struct {
	open     int
	arriving chan struct{}
	answers  *semaphore.Weighted
}

// call is a counted call.
type call struct {
	by    *subject
	end   context.CancelCauseFunc
	uses  int    // its handler, and those that Keep has added; guarded by the mutex of Calls
	leave func() // ends one use
}

type (
	callKey    struct{}
	refusalKey struct{}
)

// NewCalls returns a counter of calls.
func NewCalls[S comparable](l CallLimits[S]) *Calls[S] {
	return &Calls[S]{limits: l, arriving: semaphore.NewWeighted(l.Bytes), subjects: map[S]*subject{}}
}

// Enter counts a call of a subject until ctx ends: gRPC ends a call's context with the call. The call continues with the returned
// context. Enter reports false if the subject may not make another call. It does not block.
func (c *Calls[S]) Enter(ctx context.Context, s S) (context.Context, bool) {
	by := c.enter(s)
	if by == nil {
		return ctx, false
	}
	own := &call{by: by, uses: 1}
	own.leave = func() { c.leave(s, own) }
	context.AfterFunc(ctx, own.leave)
	ctx, own.end = context.WithCancelCause(ctx)
	return context.WithValue(ctx, callKey{}, own), true
}

func (c *Calls[S]) enter(s S) *subject {
	c.mu.Lock()
	defer c.mu.Unlock()
	by := c.subjects[s]
	mine := 0
	if by != nil {
		mine = by.open
	}
	if !c.limits.May(s, mine, c.all) {
		return nil
	}
	if by == nil {
		by = &subject{arriving: make(chan struct{}, c.limits.Requests), answers: semaphore.NewWeighted(c.limits.Answers)}
		c.subjects[s] = by
	}
	by.open++
	c.all++
	return by
}

func (c *Calls[S]) leave(s S, own *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if own.uses--; own.uses > 0 {
		return
	}
	c.all--
	if own.by.open--; own.by.open == 0 {
		delete(c.subjects, s)
	}
}

// Keep counts a call until leave is called, even if its context ends earlier. It reports false for a call that has ended, and for
// one that Enter has not counted.
func (c *Calls[S]) Keep(ctx context.Context) (leave func(), ok bool) {
	own, _ := ctx.Value(callKey{}).(*call)
	if own == nil {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if own.uses == 0 {
		return nil, false
	}
	own.uses++
	return own.leave, true
}

// Answers returns the room for the answers to the subject of a call, of CallLimits.Answers bytes. It returns nil for a call that
// Enter has not counted.
func Answers(ctx context.Context) *semaphore.Weighted {
	own, _ := ctx.Value(callKey{}).(*call)
	if own == nil {
		return nil
	}
	return own.by.answers
}

// Len returns the number of calls in progress.
func (c *Calls[S]) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all
}

// Receive calls read, which reads the request of a call, once that many bytes may arrive; 0: the total of bytes does not matter. It
// ends the call and returns ErrSlow if that takes longer than within. For a call that Enter has not counted it only calls read.
func (c *Calls[S]) Receive(ctx context.Context, bytes int64, within time.Duration, read func() error) error {
	own, _ := ctx.Value(callKey{}).(*call)
	if own == nil {
		return read()
	}
	defer time.AfterFunc(within, func() { own.end(ErrSlow) }).Stop()
	err := c.receive(ctx, own.by, bytes, read)
	if errors.Is(context.Cause(ctx), ErrSlow) {
		return ErrSlow
	}
	return err
}

func (c *Calls[S]) receive(ctx context.Context, by *subject, bytes int64, read func() error) error {
	select {
	case by.arriving <- struct{}{}:
		defer func() { <-by.arriving }()
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	if bytes > 0 { // a request without bytes must not wait for those of others
		if err := c.arriving.Acquire(ctx, bytes); err != nil {
			return status.FromContextError(err).Err()
		}
		defer c.arriving.Release(bytes)
	}
	return read()
}

// Counted reports whether Enter has counted the call of that context.
func Counted(ctx context.Context) bool { return ctx.Value(callKey{}) != nil }

// Refuse returns the results with which a tap refuses a call. gRPC does not cancel the context of a call that its tap refuses. A call
// with a deadline would then leave a timer behind until that deadline. Such a call continues, and Service or Streams refuses it before
// its request is read. So every service of a server whose tap calls Refuse must use them.
func Refuse(ctx context.Context, err error) (context.Context, error) {
	if _, timed := ctx.Deadline(); timed {
		return context.WithValue(ctx, refusalKey{}, err), nil
	}
	return ctx, err
}

func refusal(ctx context.Context) error {
	err, _ := ctx.Value(refusalKey{}).(error)
	return err
}

// ReceiveFunc receives the only request of a call: read reads it. The call runs release when it ends.
type ReceiveFunc func(ctx context.Context, method string, m any, read func(any) error) (release func(), err error)

// Service returns a service whose unary calls receive their requests through receive.
func Service(d *grpc.ServiceDesc, receive ReceiveFunc) *grpc.ServiceDesc {
	out := *d
	out.Methods = slices.Clone(d.Methods)
	for i, m := range out.Methods {
		method := "/" + d.ServiceName + "/" + m.MethodName
		out.Methods[i].Handler = func(srv any, ctx context.Context, read func(any) error, i grpc.UnaryServerInterceptor) (any, error) {
			if err := refusal(ctx); err != nil {
				return nil, err
			}
			release := func() {}
			defer func() { release() }()
			return m.Handler(srv, ctx, func(req any) (err error) {
				release, err = receive(ctx, method, req, read)
				return err
			}, i)
		}
	}
	return &out
}

// Streams returns an interceptor with which streams with one request receive it through receive. It must be the first.
func Streams(receive ReceiveFunc) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if err := refusal(ss.Context()); err != nil {
			return err
		}
		if info.IsClientStream {
			return next(srv, ss)
		}
		r := &receivingStream{ServerStream: ss, receive: receive, method: info.FullMethod, release: func() {}}
		defer func() { r.release() }()
		return next(srv, r)
	}
}

type receivingStream struct {
	grpc.ServerStream

	receive ReceiveFunc
	method  string
	release func()
}

// RecvMsg implements grpc.ServerStream.
func (r *receivingStream) RecvMsg(m any) (err error) {
	r.release, err = r.receive(r.Context(), r.method, m, r.ServerStream.RecvMsg)
	return err
}
