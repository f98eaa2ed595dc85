package client

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// manage calls do with one supervisor after the other until one succeeds. RESOURCE_EXHAUSTED is final: the cluster
// is busy, whichever supervisor answers.
func (c *Client) manage(ctx context.Context, do func(context.Context, lofamov1.ManageClient) error) error {
	return c.atOne(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		err := do(ctx, lofamov1.NewManageClient(conn))
		if status.Code(err) == codes.ResourceExhausted {
			return finalError{err}
		}
		return err
	})
}

// errNoReport reports a stream that ended without its last response.
var errNoReport = errors.New("the supervisor ended the call without a report")

// reported reads a stream to its end and calls take for every response. done reports whether the last one came. A
// failure after the first response is final.
func reported[R any](stream grpc.ServerStreamingClient[R], take func(*R) error, done func() bool) error {
	for begun := false; ; begun = true {
		r, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && !done():
			return finalError{errNoReport}
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && begun:
			return finalError{err}
		case err != nil:
			return err
		}
		if err := take(r); err != nil {
			return finalError{err}
		}
	}
}

// Diagnose makes nodes test their links, calls each for every progress and returns the report.
func (c *Client) Diagnose(ctx context.Context, req *lofamov1.DiagnoseRequest,
	each func(*lofamov1.DiagnosisProgress) error) (report *lofamov1.DiagnosisReport, err error) {
	err = c.manage(ctx, func(ctx context.Context, s lofamov1.ManageClient) error {
		stream, err := s.Diagnose(ctx, req)
		if err != nil {
			return err
		}
		return reported(stream, func(r *lofamov1.DiagnoseResponse) error {
			if r.GetReport() != nil {
				report = r.GetReport()
			}
			if p := r.GetProgress(); p != nil {
				return each(p)
			}
			return nil
		}, func() bool { return report != nil })
	})
	return report, err
}

// StartProcedure runs the fault management procedure on the torus, calls each for every progress and returns the
// report.
func (c *Client) StartProcedure(ctx context.Context, req *lofamov1.StartProcedureRequest,
	each func(*lofamov1.ProcedureProgress) error) (report *lofamov1.ProcedureReport, err error) {
	err = c.manage(ctx, func(ctx context.Context, s lofamov1.ManageClient) error {
		stream, err := s.StartProcedure(ctx, req)
		if err != nil {
			return err
		}
		return reported(stream, func(r *lofamov1.StartProcedureResponse) error {
			if r.GetReport() != nil {
				report = r.GetReport()
			}
			if p := r.GetProgress(); p != nil {
				return each(p)
			}
			return nil
		}, func() bool { return report != nil })
	})
	return report, err
}

// GetDiagnosis returns the report of the last diagnosis.
func (c *Client) GetDiagnosis(ctx context.Context) (report *lofamov1.DiagnosisReport, err error) {
	err = c.manage(ctx, func(ctx context.Context, s lofamov1.ManageClient) error {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.TryTimeout)
		defer cancel()
		report, err = s.GetDiagnosis(ctx, &lofamov1.GetDiagnosisRequest{})
		return err
	})
	return report, err
}

// GetProcedure returns the report of the last fault management procedure.
func (c *Client) GetProcedure(ctx context.Context) (report *lofamov1.ProcedureReport, err error) {
	err = c.manage(ctx, func(ctx context.Context, s lofamov1.ManageClient) error {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.TryTimeout)
		defer cancel()
		report, err = s.GetProcedure(ctx, &lofamov1.GetProcedureRequest{})
		return err
	})
	return report, err
}
