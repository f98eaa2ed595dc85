package federation

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
)

// Server accepts the streams of the regions.
type Server struct {
	lofamov1.UnimplementedUpstreamServer

	Parent *Parent
	// Caller returns the identity of the connected peer.
	Caller func(ctx context.Context) (pki.Identity, error)
	// Speakers maps the ID of each regional supervisor to its region.
	Speakers map[string]string
	// Stopping ends streams when the replica stops.
	Stopping <-chan struct{}
}

// Report implements the service.
func (s *Server) Report(stream grpc.BidiStreamingServer[lofamov1.UpstreamReportRequest, lofamov1.UpstreamReportResponse]) error {
	who, err := s.Caller(stream.Context())
	if err != nil {
		return status.Error(codes.PermissionDenied, err.Error())
	}
	name, ok := s.Speakers[who.Name]
	if !ok {
		return status.Errorf(codes.PermissionDenied, "%s is no supervisor of a region of this parent", who)
	}
	t := s.Parent.term.Load()
	if t == nil {
		return status.Error(codes.FailedPrecondition, "this replica does not lead: try another of the parent's")
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	switch {
	case hello == nil:
		return status.Error(codes.InvalidArgument, "the first message: want a hello")
	case hello.GetRegion() != name:
		return status.Errorf(codes.PermissionDenied, "region: given %q: %s speaks for %s", hello.GetRegion(), who, name)
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	id := streamID(s.Parent.streams.Add(1))
	out := newOutbox()
	if !t.submit(ctx, input{name, ledgerHello{Stream: id, UpstreamHello: hello}, out}) {
		return errEnded
	}
	// Reading has a goroutine of its own, which ends when the handler has returned.
	failed := make(chan error, 1)
	go func() { failed <- t.read(ctx, stream, name, id) }()
	err = s.answer(ctx, stream, out, t, failed)
	select {
	case t.e.in <- input{name, ledgerClosed{Stream: id}, nil}:
	case <-t.done:
	}
	return err
}

var errEnded = status.Error(codes.Unavailable, "this replica leads no longer: try another of the parent's")

// read passes a stream's messages to the term. While the term accepts none, it does not read from the connection
// either.
func (t *term) read(ctx context.Context, stream grpc.BidiStreamingServer[lofamov1.UpstreamReportRequest, lofamov1.UpstreamReportResponse],
	name string, id streamID) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		var ev ledgerInput
		switch b := m.GetBody().(type) {
		case *lofamov1.UpstreamReportRequest_Change:
			ev = ledgerPart{Stream: id, UpstreamChange: b.Change}
		case *lofamov1.UpstreamReportRequest_Alive:
			ev = ledgerAlive{Stream: id, Revision: b.Alive.GetRevision()}
		default:
			return status.Error(codes.InvalidArgument, "neither a change nor a beat after the hello")
		}
		if !t.submit(ctx, input{name, ev, nil}) {
			return errEnded
		}
	}
}

// answer sends the ledger's answers until it refuses or the stream ends.
func (s *Server) answer(ctx context.Context, stream grpc.BidiStreamingServer[lofamov1.UpstreamReportRequest,
	lofamov1.UpstreamReportResponse],
	out *outbox, t *term, failed <-chan error) error {
	for {
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-s.Stopping:
			return errEnded
		case <-t.done:
			return errEnded
		case err := <-failed:
			return err
		case <-out.wake:
		}
		list, refusal := out.take()
		for _, m := range list {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		if refusal != nil {
			return status.Error(codeOf(refusal.Refusal), refusal.Text)
		}
	}
}

func codeOf(r Refusal) codes.Code {
	switch r {
	case RefusedTerm, RefusedStore:
		return codes.FailedPrecondition
	case RefusedOrder:
		return codes.OutOfRange
	case RefusedForeign:
		return codes.InvalidArgument
	case RefusedLong:
		return codes.ResourceExhausted
	default:
		return codes.Aborted
	}
}

// outbox holds the messages for a stream: the resume, then the newest acknowledgement, then perhaps a refusal.
// Filling it never blocks.
type outbox struct {
	wake chan struct{} // room for one

	mu        sync.Mutex
	resume    *lofamov1.UpstreamReportResponse
	committed *lofamov1.UpstreamReportResponse
	refusal   *ledgerReply
}

func newOutbox() *outbox { return &outbox{wake: make(chan struct{}, 1)} }

func (o *outbox) put(r ledgerReply) {
	o.mu.Lock()
	switch {
	case r.Refusal != 0:
		o.refusal = &r
	case r.Message.GetResume() != nil:
		o.resume = r.Message
	default:
		o.committed = r.Message
	}
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *outbox) refuse(r ledgerReply) { o.put(r) }

func (o *outbox) take() (list []*lofamov1.UpstreamReportResponse, refusal *ledgerReply) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, m := range []*lofamov1.UpstreamReportResponse{o.resume, o.committed} {
		if m != nil {
			list = append(list, m)
		}
	}
	o.resume, o.committed = nil, nil
	return list, o.refusal
}
