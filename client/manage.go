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

// manage has one supervisor after the other do something, until one can. What is busy is so at all of them.
func (c *Client) manage(ctx context.Context, do func(lofamov1.ManageClient) error) error {
	return c.atOne(ctx, func(conn *grpc.ClientConn) error {
		err := do(lofamov1.NewManageClient(conn))
		if status.Code(err) == codes.ResourceExhausted {
			return begunError{err}
		}
		return err
	})
}

// errNoReport is a stream that ended well without its last response.
var errNoReport = errors.New("the supervisor ended it without a report")

// reported reads a stream to its end, and has every response taken. done says whether the last has come. What fails once it has begun is asked of nobody else.
func reported[R any](stream grpc.ServerStreamingClient[R], take func(*R) error, done func() bool) error {
	for begun := false; ; begun = true {
		r, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && !done():
			return begunError{errNoReport}
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && begun:
			return begunError{err}
		case err != nil:
			return err
		}
		if err := take(r); err != nil {
			return begunError{err}
		}
	}
}

// Diagnose has nodes test their links, calls each for every progress, and returns the report.
func (c *Client) Diagnose(ctx context.Context, req *lofamov1.DiagnoseRequest, each func(*lofamov1.DiagnosisProgress) error) (report *lofamov1.DiagnosisReport, err error) {
	err = c.manage(ctx, func(s lofamov1.ManageClient) error {
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

// StartProcedure has the torus gone through the fault management procedure, calls each for every progress, and returns the report.
func (c *Client) StartProcedure(ctx context.Context, req *lofamov1.StartProcedureRequest, each func(*lofamov1.ProcedureProgress) error) (report *lofamov1.ProcedureReport, err error) {
	err = c.manage(ctx, func(s lofamov1.ManageClient) error {
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
	err = c.manage(ctx, func(s lofamov1.ManageClient) error {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.TryTimeout)
		defer cancel()
		report, err = s.GetDiagnosis(ctx, &lofamov1.GetDiagnosisRequest{})
		return err
	})
	return report, err
}

// GetProcedure returns the report of the last fault management procedure.
func (c *Client) GetProcedure(ctx context.Context) (report *lofamov1.ProcedureReport, err error) {
	err = c.manage(ctx, func(s lofamov1.ManageClient) error {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.TryTimeout)
		defer cancel()
		report, err = s.GetProcedure(ctx, &lofamov1.GetProcedureRequest{})
		return err
	})
	return report, err
}
