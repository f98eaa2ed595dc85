package api

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/bounded"
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

// admission decides on calls before their requests are read: by role and number when the header of a call arrives (tap), and by
// memory before its request is read (receive).
type admission struct {
	refused func(reason string)
	calls   *bounded.Calls[string]
	large   chan struct{} // holds one

	answerWait, takeTime time.Duration
}

func newAdmission(refused func(string)) *admission {
	if refused == nil {
		refused = func(string) {}
	}
	return &admission{refused: refused, large: make(chan struct{}, 1), answerWait: answerWait, takeTime: takeTime,
		calls: bounded.NewCalls(bounded.CallLimits[string]{
			May: func(_ string, mine, _ int) bool { return mine < maxOpen }, Requests: maxArriving, Bytes: arrivingBytes, Answers: answerBytes,
		})}
}

// tap refuses a call by its header. It does not block.
func (a *admission) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	id, err := caller(ctx)
	if err != nil {
		a.refused(RefusedRole)
		return bounded.Refuse(ctx, status.Errorf(codes.PermissionDenied, "%s: %v", info.FullMethodName, err))
	}
	// An unknown call continues: gRPC answers UNIMPLEMENTED without reading it. AuthorizeUnary refuses a call without
	// roles.
	if roles := rights(info.FullMethodName); roles != nil && !slices.Contains(roles, id.Role) {
		a.refused(RefusedRole)
		return bounded.Refuse(ctx, mayNot(info.FullMethodName, id))
	}
	if id.Role == pki.RoleSupervisor {
		return ctx, nil
	}
	name := subjectName(id)
	ctx, ok := a.calls.Enter(ctx, name)
	if !ok {
		a.refused(RefusedOpen)
		return bounded.Refuse(ctx, status.Errorf(codes.ResourceExhausted, "%s: %s has %d calls under way: end some", info.FullMethodName, name,
			maxOpen))
	}
	return ctx, nil
}

// receive reads the only request of a call. Call release when the call ends.
func (a *admission) receive(ctx context.Context, method string, m any, read func(any) error) (release func(), err error) {
	most, long := requestLimits[method]
	if long {
		read = func(m any) error { return receiveLong(ctx, m, most, true) }
	} else {
		most = maxRequest
	}
	if !bounded.Counted(ctx) { // of a replica
		return func() {}, read(m)
	}
	limit, bytes, release := arriveTime, int64(most), func() {}
	if most >= aloneFrom {
		limit, bytes = largeTime, 0
	}
	err = a.calls.Receive(ctx, bytes, limit, func() error {
		if most >= aloneFrom {
			select {
			case a.large <- struct{}{}:
				release = func() { <-a.large }
			case <-ctx.Done():
				return status.FromContextError(ctx.Err()).Err()
			}
		}
		return read(m)
	})
	switch {
	case errors.Is(err, bounded.ErrSlow):
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

// subjectName is how limits and refusals name a subject.
func subjectName(id pki.Identity) string { return string(id.Role) + "/" + id.Name }

// admitted returns a service whose requests and answers pass through the admission.
func (a *admission) admitted(d *grpc.ServiceDesc) *grpc.ServiceDesc {
	out := bounded.Service(d, a.receive)
	for i, m := range out.Methods {
		method := "/" + d.ServiceName + "/" + m.MethodName
		out.Methods[i].Handler = func(srv any, ctx context.Context, read func(any) error, i grpc.UnaryServerInterceptor) (any, error) {
			return a.answer(ctx, method, func() (any, error) { return m.Handler(srv, ctx, read, i) })
		}
	}
	return out
}

// stream is the first interceptor of streams: it receives their requests like those of other calls, and counts their messages.
func (a *admission) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if most, long := requestLimits[info.FullMethod]; long && info.IsClientStream {
		ss = longStream{ss, most}
	}
	return bounded.Streams(a.receive)(srv, trackedStream{ss, a}, info, next)
}

// trackedStream counts the messages that the client has not taken. A person may pause reading, so a message may wait for any time.
// Messages that are already encoded are shared by their receivers, and not counted.
type trackedStream struct {
	grpc.ServerStream

	a *admission
}

// SendMsg implements grpc.ServerStream.
func (s trackedStream) SendMsg(m any) error {
	return s.ServerStream.SendMsg(s.a.track(s.Context(), m, 0, 0))
}

// longStream is a stream of requests that may be longer than maxRequest.
type longStream struct {
	grpc.ServerStream

	most int
}

// RecvMsg implements grpc.ServerStream.
func (s longStream) RecvMsg(m any) error { return receiveLong(s.Context(), m, s.most, false) }

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
