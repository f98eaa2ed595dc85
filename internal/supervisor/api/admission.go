package api

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/response/policy"
)

// Limits on the memory that people's calls may occupy. Replicas' messages have only their size limits: replicas are
// trusted with the store.
const (
	maxRequest    = 128 << 10 // bytes of a request to any call not in requestLimits
	maxOpen       = 256       // calls per subject in progress, or whose answers the client has not taken; watches included
	maxArriving   = 8         // requests per subject that arrive at the same time
	arrivingBytes = 16 << 20  // total of all requests that arrive at the same time, except large ones
	arriveTime    = 10 * time.Second
	largeTime     = time.Minute
	maxHeaderList = 16 << 10 // bytes
	streamWindow  = 64 << 10 // bytes that a client may send ahead on a stream; gRPC takes no less
	connWindow    = 1 << 20  // on a connection
)

// aloneFrom is the size in bytes from which people's requests are read one at a time.
const aloneFrom = 4 << 20

// requestLimits gives, in bytes, the limits of the calls whose requests may be longer than maxRequest. It also lists the calls
// whose refusal names a field, because otherwise gRPC refuses a long request by itself.
var requestLimits = map[string]int{
	lofamov1.FaultSupervisor_AcknowledgeIncident_FullMethodName: maxRequest,

	lofamov1.FaultSupervisor_ApplyTopology_FullMethodName: 32 << 20, // 100,000 nodes with some labels
	lofamov1.ResponseService_CheckPolicies_FullMethodName: policy.MaxBytes + 64<<10,
	lofamov1.ResponseService_ApplyPolicies_FullMethodName: policy.MaxBytes + 64<<10,
	lofamov1.Certificates_PutDenyList_FullMethodName:      pki.MaxDenyListSize + 64<<10,
	lofamov1.Replica_Forward_FullMethodName:               32 << 20,
	lofamov1.Upstream_Report_FullMethodName:               32 << 20,
}

// longFields names, for each call, the field that can make its request too long, with that field's limit.
var longFields = map[string]string{
	lofamov1.FaultSupervisor_AcknowledgeIncident_FullMethodName: fmt.Sprintf("note: want at most %d bytes", maxNote),
}

// Reasons for refusing a call: the values of ServerConfig.Refused.
const (
	RefusedRole    = "role"    // its role may not call the method
	RefusedOpen    = "open"    // the subject has too many calls in progress
	RefusedSlow    = "slow"    // its request did not arrive in time
	RefusedSize    = "size"    // its request is too long
	RefusedAnswers = "answers" // the subject's answers leave no room
)

// admission decides on calls before their requests are read: by role when the header of a call arrives (tap), and by
// number before its request is read (receive).
type admission struct {
	refused  func(reason string)
	arriving *semaphore.Weighted
	large    chan struct{} // holds one

	answerWait, takeTime time.Duration

	mu       sync.Mutex
	subjects map[string]*person
}

// person is a subject with calls in progress.
type person struct {
	name     string
	open     int
	arriving chan struct{}
	answers  *semaphore.Weighted // of answerBytes
}

// call is a call of any subject but a replica.
type call struct {
	by   *person
	end  context.CancelCauseFunc
	conn *connection
	uses int // its handler and its messages that the client has not taken; guarded by the admission's mutex
}

type callKey struct{}

var errSlow = errors.New("the request did not arrive in time")

func newAdmission(refused func(string)) *admission {
	if refused == nil {
		refused = func(string) {}
	}
	return &admission{refused: refused, arriving: semaphore.NewWeighted(arrivingBytes), large: make(chan struct{}, 1),
		answerWait: answerWait, takeTime: takeTime, subjects: map[string]*person{}}
}

// tap refuses a call by its header. It does not block.
func (a *admission) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	id, err := caller(ctx)
	if err != nil {
		a.refused(RefusedRole)
		return ctx, status.Errorf(codes.PermissionDenied, "%s: %v", info.FullMethodName, err)
	}
	// An unknown call continues: gRPC answers UNIMPLEMENTED without reading it. AuthorizeUnary refuses a call without
	// roles.
	if roles := rights(info.FullMethodName); roles != nil && !slices.Contains(roles, id.Role) {
		a.refused(RefusedRole)
		return ctx, mayNot(info.FullMethodName, id)
	}
	if id.Role == pki.RoleSupervisor {
		return ctx, nil
	}
	name := string(id.Role) + "/" + id.Name
	by := a.enter(name)
	if by == nil {
		a.refused(RefusedOpen)
		return ctx, status.Errorf(codes.ResourceExhausted, "%s: %s has %d calls under way: end some", info.FullMethodName, name, maxOpen)
	}
	c := &call{by: by, conn: connectionOf(ctx), uses: 1}
	context.AfterFunc(ctx, func() { a.leave(c) }) // gRPC ends the context with the handler
	ctx, c.end = context.WithCancelCause(ctx)
	return context.WithValue(ctx, callKey{}, c), nil
}

// enter counts a call of a subject; it returns nil if the subject has too many.
func (a *admission) enter(name string) *person {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.subjects[name]
	if s == nil {
		s = &person{name: name, arriving: make(chan struct{}, maxArriving), answers: semaphore.NewWeighted(answerBytes)}
		a.subjects[name] = s
	}
	if s.open >= maxOpen {
		return nil
	}
	s.open++
	return s
}

// keep counts one more use of a call; it returns false if the call has ended.
func (a *admission) keep(c *call) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.uses == 0 {
		return false
	}
	c.uses++
	return true
}

// leave ends one use of a call. The last one ends the call.
func (a *admission) leave(c *call) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.uses--; c.uses > 0 {
		return
	}
	if c.by.open--; c.by.open == 0 {
		delete(a.subjects, c.by.name)
	}
}

// receive reads the only request of a call. Call release when the call ends.
func (a *admission) receive(ctx context.Context, method string, m any, read func(any) error) (release func(), err error) {
	most, long := requestLimits[method]
	if long {
		read = func(m any) error { return receiveLong(ctx, m, most, true) }
	} else {
		most = maxRequest
	}
	c, _ := ctx.Value(callKey{}).(*call)
	if c == nil { // of a replica
		return func() {}, read(m)
	}
	limit := arriveTime
	if most >= aloneFrom {
		limit = largeTime
	}
	defer time.AfterFunc(limit, func() { c.end(errSlow) }).Stop()
	release, err = a.room(ctx, c.by, most)
	if err == nil {
		defer func() { <-c.by.arriving }()
		err = read(m)
		if most < aloneFrom {
			release()
			release = func() {}
		}
	}
	switch {
	case errors.Is(context.Cause(ctx), errSlow):
		a.refused(RefusedSlow)
		err = status.Errorf(codes.DeadlineExceeded, "%s: the request did not arrive within %v, or too many others arrive", method, limit)
	case status.Code(err) == codes.ResourceExhausted:
		a.refused(RefusedSize)
		if field := longFields[method]; field != "" {
			err = status.Errorf(codes.ResourceExhausted, "%s; %s", field, status.Convert(err).Message())
		}
	}
	return release, err
}

// room waits until the given number of bytes may arrive. The caller frees the subject's own place.
func (a *admission) room(ctx context.Context, by *person, bytes int) (release func(), err error) {
	release = func() {}
	select {
	case by.arriving <- struct{}{}:
	case <-ctx.Done():
		return release, status.FromContextError(ctx.Err()).Err()
	}
	if bytes >= aloneFrom {
		select {
		case a.large <- struct{}{}:
			return func() { <-a.large }, nil
		case <-ctx.Done():
			err = ctx.Err()
		}
	} else if err = a.arriving.Acquire(ctx, int64(bytes)); err == nil {
		return func() { a.arriving.Release(int64(bytes)) }, nil
	}
	<-by.arriving
	return release, status.FromContextError(err).Err()
}

// stream is the first interceptor of streams: it receives their requests like those of other calls.
func (a *admission) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	r := &receivingStream{ServerStream: ss, a: a, info: info, release: func() {}}
	defer func() { r.release() }()
	return next(srv, r)
}

type receivingStream struct {
	grpc.ServerStream

	a       *admission
	info    *grpc.StreamServerInfo
	release func()
}

// RecvMsg implements grpc.ServerStream.
func (r *receivingStream) RecvMsg(m any) (err error) {
	if !r.info.IsClientStream {
		r.release, err = r.a.receive(r.Context(), r.info.FullMethod, m, r.ServerStream.RecvMsg)
		return err
	}
	if most, long := requestLimits[r.info.FullMethod]; long {
		return receiveLong(r.Context(), m, most, false)
	}
	return r.ServerStream.RecvMsg(m)
}

// SendMsg implements grpc.ServerStream. A person may pause reading, so a message may wait for any time. Messages that are already
// encoded are shared by their receivers, and not counted.
func (r *receivingStream) SendMsg(m any) error {
	if c, _ := r.Context().Value(callKey{}).(*call); c != nil {
		m = r.a.track(c, m, 0, 0)
	}
	return r.ServerStream.SendMsg(m)
}

// admitted returns a service whose requests pass through the admission.
func (a *admission) admitted(d *grpc.ServiceDesc) *grpc.ServiceDesc {
	out := *d
	out.Methods = slices.Clone(d.Methods)
	for i, m := range out.Methods {
		method := "/" + d.ServiceName + "/" + m.MethodName
		out.Methods[i].Handler = func(srv any, ctx context.Context, read func(any) error, i grpc.UnaryServerInterceptor) (any, error) {
			release := func() {}
			defer func() { release() }()
			return a.answer(ctx, method, func() (any, error) {
				return m.Handler(srv, ctx, func(req any) (err error) {
					release, err = a.receive(ctx, method, req, read)
					return err
				}, i)
			})
		}
	}
	return &out
}

// body is the part of gRPC's server stream below its own reader, whose limit is the same for all calls. That limit
// stays small: if these methods disappeared, only the calls with longer requests would fail.
type body interface {
	ReadMessageHeader(header []byte) error
	Read(n int) (mem.BufferSlice, error)
}

// receiveLong reads a message of at most most bytes. If only is set, the call must have no other message.
func receiveLong(ctx context.Context, m any, most int, only bool) error {
	b, ok := grpc.ServerTransportStreamFromContext(ctx).(body)
	if !ok {
		return status.Error(codes.Internal, "long requests cannot be read with this version of gRPC")
	}
	var head [5]byte
	switch err := b.ReadMessageHeader(head[:]); {
	case errors.Is(err, io.EOF) && only:
		return status.Error(codes.Internal, "the call has no request")
	case err != nil:
		return ended(err)
	case head[0] != 0:
		return status.Error(codes.Unimplemented, "the request is compressed: want it uncompressed")
	}
	n := binary.BigEndian.Uint32(head[1:])
	if uint64(n) > uint64(most) {
		return status.Errorf(codes.ResourceExhausted, "request: given %d bytes: want at most %d", n, most)
	}
	data, err := b.Read(int(n))
	if err != nil {
		return ended(err)
	}
	defer data.Free()
	if err := Codec().Unmarshal(data, m); err != nil {
		return status.Errorf(codes.Internal, "request: %v", err)
	}
	if only && !errors.Is(b.ReadMessageHeader(head[:]), io.EOF) {
		return status.Error(codes.Internal, "the call has more than one request")
	}
	return nil
}

// ended converts the error of a stream that ended during a read; io.EOF is its regular end.
func ended(err error) error {
	if _, ok := status.FromError(err); ok || errors.Is(err, io.EOF) {
		return err
	}
	return status.Error(codes.Unavailable, err.Error())
}
