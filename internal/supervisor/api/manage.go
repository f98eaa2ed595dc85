package api

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/diagnose"
	"github.com/lofamo/lofamo/pkg/torus/diagnosis"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Diagnoser makes diagnoses where this replica leads; elsewhere it fails with diagnose.ErrNotLeading.
type Diagnoser interface {
	Run(ctx context.Context, req diagnose.Request, progress func(*lofamov1.DiagnosisProgress) error) (*lofamov1.DiagnosisReport, error)
	Last() (*lofamov1.DiagnosisReport, error)
}

// Manage implements lofamov1.ManageServer.
type Manage struct {
	lofamov1.UnimplementedManageServer

	s         *Server
	diagnoser Diagnoser // nil: of a parent of regions
}

// NewManage returns the service, beside that of a server.
func NewManage(s *Server, d Diagnoser) *Manage { return &Manage{s: s, diagnoser: d} }

// errParent refuses what a parent of regions has no nodes for.
func errParent() error {
	return status.Error(codes.FailedPrecondition, "this supervisor is of a parent of regions and talks to no node: ask a supervisor of the node's region (--server, or --region)")
}

// leaderOf returns a connection to the leader, for a call that it has to answer in this replica's stead, and the context for it.
func (s *Server) leaderOf(ctx context.Context) (*grpc.ClientConn, context.Context, error) {
	if isProxied(ctx) {
		return nil, ctx, status.Error(codes.FailedPrecondition, diagnose.ErrNotLeading.Error())
	}
	by, err := subject(ctx)
	if err != nil {
		return nil, ctx, err
	}
	conn := s.cfg.Directory.Conn(s.cfg.Directory.Leader())
	if conn == nil {
		return nil, ctx, noLeader("none is known")
	}
	return conn, metadata.AppendToOutgoingContext(ctx, proxiedKey, "1", subjectKey, by), nil
}

// asked turns a refusal of who does not lead any more into one to try again.
func asked(err error) error {
	if status.Code(err) == codes.FailedPrecondition {
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
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	go func() { // ends with the call
		select {
		case <-m.s.cfg.Stopping:
			cancel(errStopping)
		case <-ctx.Done():
		}
	}()
	report, err := m.diagnoser.Run(ctx, r, func(p *lofamov1.DiagnosisProgress) error {
		return stream.Send(&lofamov1.DiagnoseResponse{Progress: p})
	})
	switch {
	case err == nil:
		return stream.Send(&lofamov1.DiagnoseResponse{Report: report})
	case errors.Is(err, diagnose.ErrNotLeading):
		return m.diagnoseAtLeader(ctx, req, stream)
	case errors.Is(err, diagnose.ErrBusy):
		return status.Error(codes.ResourceExhausted, err.Error())
	case context.Cause(ctx) != nil:
		if errors.Is(context.Cause(ctx), errStopping) {
			return status.Error(codes.Unavailable, errStopping.Error())
		}
		return status.FromContextError(ctx.Err()).Err()
	}
	if st, ok := status.FromError(err); ok {
		return st.Err() // of the stream
	}
	return status.Error(codes.InvalidArgument, err.Error())
}

// request checks what is asked for.
func (m *Manage) request(ctx context.Context, req *lofamov1.DiagnoseRequest) (diagnose.Request, error) {
	r := diagnose.Request{Rounds: int(req.GetRounds())}
	var err error
	if r.Subject, err = subject(ctx); err != nil {
		return r, err
	}
	if r.Rounds == 0 {
		r.Rounds = 1
	}
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

// diagnoseAtLeader passes the leader's answer on.
func (m *Manage) diagnoseAtLeader(ctx context.Context, req *lofamov1.DiagnoseRequest, stream grpc.ServerStreamingServer[lofamov1.DiagnoseResponse]) error {
	conn, ctx, err := m.s.leaderOf(ctx)
	if err != nil {
		return err
	}
	from, err := lofamov1.NewManageClient(conn).Diagnose(ctx, req)
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

// GetDiagnosis implements the service.
func (m *Manage) GetDiagnosis(ctx context.Context, req *lofamov1.GetDiagnosisRequest) (*lofamov1.DiagnosisReport, error) {
	if m.diagnoser == nil {
		return nil, errParent()
	}
	report, err := m.diagnoser.Last()
	switch {
	case errors.Is(err, diagnose.ErrNone):
		return nil, status.Errorf(codes.NotFound, "%v: lofamoctl diagnose makes one", err)
	case err == nil:
		return report, nil
	}
	conn, ctx, err := m.s.leaderOf(ctx)
	if err != nil {
		return nil, err
	}
	report, err = lofamov1.NewManageClient(conn).GetDiagnosis(ctx, req)
	return report, asked(err)
}
