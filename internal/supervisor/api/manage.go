package api

import (
	"cmp"
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/orders"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/diagnosis"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Diagnoser runs diagnoses and procedures where this replica leads; elsewhere they fail with orders.ErrNotLeading.
// Any replica returns the last reports; nil: none.
type Diagnoser interface {
	Run(ctx context.Context, req orders.DiagnosisRequest, progress func(*lofamov1.DiagnosisProgress) error) (*lofamov1.DiagnosisReport, error)
	Procedure(ctx context.Context, req orders.ProcedureRequest,
		progress func(*lofamov1.ProcedureProgress) error) (*lofamov1.ProcedureReport, error)
	LastDiagnosis(ctx context.Context) (*lofamov1.DiagnosisReport, error)
	LastProcedure(ctx context.Context) (*lofamov1.ProcedureReport, error)
}

// Manage implements lofamov1.ManageServer.
type Manage struct {
	lofamov1.UnimplementedManageServer

	s         *Server
	diagnoser Diagnoser // nil: a parent of regions
}

// NewManage returns the service for a server.
func NewManage(s *Server, d Diagnoser) *Manage { return &Manage{s: s, diagnoser: d} }

// errParent refuses calls that a parent of regions cannot serve without nodes.
func errParent() error {
	return status.Error(codes.FailedPrecondition,
		"this supervisor is of a parent of regions and talks to no node: ask a supervisor of the node's region (--server, or --region)")
}

// leaderOf returns a connection to the leader and the context for a forwarded call.
func (s *Server) leaderOf(ctx context.Context) (*grpc.ClientConn, context.Context, error) {
	if isProxied(ctx) {
		return nil, ctx, status.Error(codes.FailedPrecondition, orders.ErrNotLeading.Error())
	}
	by, err := subject(ctx)
	if err != nil {
		return nil, ctx, err
	}
	conn := s.cfg.Directory.Conn(s.cfg.Directory.Leader())
	if conn == nil {
		return nil, ctx, noLeader("none is known")
	}
	return conn, metadata.AppendToOutgoingContext(ctx, proxiedKey, "1", SubjectKey, by), nil
}

// asked converts the refusal of a former leader into an error to retry.
func asked(err error) error {
	// Other failed preconditions concern the request itself.
	if st := status.Convert(err); st.Code() == codes.FailedPrecondition && st.Message() == orders.ErrNotLeading.Error() {
		return noLeader("whoever led last does not any more")
	}
	return err
}

// Diagnose implements the service.
func (m *Manage) Diagnose(req *lofamov1.DiagnoseRequest, stream grpc.ServerStreamingServer[lofamov1.DiagnoseResponse]) error {
	if m.diagnoser == nil {
		return errParent()
	}
	r, err := m.request(stream.Context(), req)
	if err != nil {
		return err
	}
	ctx, cancel := m.unlessStopping(stream.Context())
	defer cancel()
	report, err := m.diagnoser.Run(ctx, r, func(p *lofamov1.DiagnosisProgress) error {
		return stream.Send(&lofamov1.DiagnoseResponse{Progress: p})
	})
	switch {
	case err == nil:
		return stream.Send(&lofamov1.DiagnoseResponse{Report: report})
	case errors.Is(err, orders.ErrNotLeading):
		return atLeader(ctx, m.s, stream, func(ctx context.Context,
			c lofamov1.ManageClient) (grpc.ServerStreamingClient[lofamov1.DiagnoseResponse], error) {
			return c.Diagnose(ctx, req)
		})
	}
	return managed(ctx, err)
}

// unlessStopping returns a context that ends with the call, or when this replica stops.
func (m *Manage) unlessStopping(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() { // ends with the call
		select {
		case <-m.s.cfg.Stopping:
			cancel(errStopping)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// managed returns the status of a failed diagnosis or procedure.
func managed(ctx context.Context, err error) error {
	var pause *orders.PauseError
	var refused *orders.RefusedError
	switch {
	case errors.Is(err, orders.ErrBusy), errors.As(err, &pause):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.As(err, &refused):
		return status.Error(codes.FailedPrecondition, err.Error())
	case errors.Is(err, orders.ErrNotRead), errors.Is(err, orders.ErrLost), errors.Is(err, orders.ErrUncommitted):
		return status.Error(codes.Unavailable, err.Error())
	case errors.Is(context.Cause(ctx), errStopping):
		return status.Error(codes.Unavailable, errStopping.Error())
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	}
	if st, ok := status.FromError(err); ok {
		return st.Err() // of the stream
	}
	return status.Error(codes.InvalidArgument, err.Error())
}

// request validates a diagnosis request.
func (m *Manage) request(ctx context.Context, req *lofamov1.DiagnoseRequest) (orders.DiagnosisRequest, error) {
	r := orders.DiagnosisRequest{Rounds: int(req.GetRounds())}
	var err error
	if r.Subject, err = subject(ctx); err != nil {
		return r, err
	}
	r.Rounds = cmp.Or(r.Rounds, 1)
	if r.Rounds > diagnosis.MaxRounds || r.Rounds < 1 {
		return r, invalid("rounds", "given %d: want 1 to %d", req.GetRounds(), diagnosis.MaxRounds)
	}
	if req.GetLink() != "" && req.GetNode() == "" {
		return r, invalid("link", "given %.10q without a node: want the node whose link it is", req.GetLink())
	}
	if req.GetNode() != "" {
		if r.Node, err = m.s.find(req.GetNode()); err != nil {
			return r, err
		}
	}
	if req.GetLink() != "" {
		if r.Link, err = grid.ParseDirection(req.GetLink()); err != nil {
			return r, invalid("link", "given %.10q: want X+, X-, Y+, Y-, Z+ or Z-", req.GetLink())
		}
	}
	return r, nil
}

// atLeader forwards the leader's stream of answers.
func atLeader[R any](ctx context.Context, s *Server, stream grpc.ServerStreamingServer[R],
	ask func(context.Context, lofamov1.ManageClient) (grpc.ServerStreamingClient[R], error)) error {
	conn, ctx, err := s.leaderOf(ctx)
	if err != nil {
		return err
	}
	from, err := ask(ctx, lofamov1.NewManageClient(conn))
	if err != nil {
		return asked(err)
	}
	for {
		r, err := from.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return asked(err)
		}
		if err := stream.Send(r); err != nil {
			return err
		}
	}
}

// StartProcedure implements the service.
func (m *Manage) StartProcedure(req *lofamov1.StartProcedureRequest,
	stream grpc.ServerStreamingServer[lofamov1.StartProcedureResponse]) error {
	if m.diagnoser == nil {
		return errParent()
	}
	r, err := m.procedure(stream.Context(), req)
	if err != nil {
		return err
	}
	ctx, cancel := m.unlessStopping(stream.Context())
	defer cancel()
	report, err := m.diagnoser.Procedure(ctx, r, func(p *lofamov1.ProcedureProgress) error {
		return stream.Send(&lofamov1.StartProcedureResponse{Progress: p})
	})
	switch {
	case err == nil:
		return stream.Send(&lofamov1.StartProcedureResponse{Report: report})
	case errors.Is(err, orders.ErrNotLeading):
		return atLeader(ctx, m.s, stream, func(ctx context.Context,
			c lofamov1.ManageClient) (grpc.ServerStreamingClient[lofamov1.StartProcedureResponse], error) {
			return c.StartProcedure(ctx, req)
		})
	}
	return managed(ctx, err)
}

// maxProcedureReason bounds the reason of a procedure, in bytes: all nodes receive it.
const maxProcedureReason = fault.MaxDetail

// procedure validates a procedure request.
func (m *Manage) procedure(ctx context.Context, req *lofamov1.StartProcedureRequest) (orders.ProcedureRequest, error) {
	r := orders.ProcedureRequest{Diagnose: req.GetDiagnose(), Reason: req.GetReason(),
		DrainTimeout: time.Duration(req.GetDrainTimeoutMs()) * time.Millisecond}
	var err error
	if r.Subject, err = subject(ctx); err != nil {
		return r, err
	}
	r.DrainTimeout = cmp.Or(r.DrainTimeout, orders.DefaultDrain)
	if r.DrainTimeout < orders.MinDrain || r.DrainTimeout > orders.MaxDrain {
		return r, invalid("drain_timeout_ms", "given %d: want %d to %d, or 0 for %d", req.GetDrainTimeoutMs(),
			orders.MinDrain.Milliseconds(), orders.MaxDrain.Milliseconds(),
			orders.DefaultDrain.Milliseconds())
	}
	if n := len(r.Reason); n > maxProcedureReason || !fault.IsText(r.Reason) {
		return r, invalid("reason", "given %d bytes, %.20q: want at most %d without control characters", n, r.Reason, maxProcedureReason)
	}
	if req.GetNode() != "" {
		r.Node, err = m.s.find(req.GetNode())
	}
	return r, err
}

// GetProcedure implements the service. Every replica answers with a quorum read.
func (m *Manage) GetProcedure(ctx context.Context, _ *lofamov1.GetProcedureRequest) (*lofamov1.ProcedureReport, error) {
	if m.diagnoser == nil {
		return nil, errParent()
	}
	report, err := m.diagnoser.LastProcedure(ctx)
	return kept(report, err, "no procedure has run yet: lofamoctl diagnose all --drain runs one")
}

// GetDiagnosis implements the service. Every replica answers with a quorum read.
func (m *Manage) GetDiagnosis(ctx context.Context, _ *lofamov1.GetDiagnosisRequest) (*lofamov1.DiagnosisReport, error) {
	if m.diagnoser == nil {
		return nil, errParent()
	}
	report, err := m.diagnoser.LastDiagnosis(ctx)
	return kept(report, err, "no diagnosis was made: lofamoctl diagnose makes one")
}

// kept returns a committed report, or the error none.
func kept[R interface {
	comparable
	proto.Message
}](report R, err error, none string) (R, error) {
	var nothing R
	switch {
	case err != nil:
		return nothing, status.Error(codes.Unavailable, err.Error())
	case report == nothing:
		return nothing, status.Error(codes.NotFound, none)
	}
	return report, nil
}
