package client

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// readResponses asks one supervisor after the other until one answers.
func readResponses[T any](ctx context.Context, c *Client,
	ask func(context.Context, lofamov1.ResponseServiceClient) (T, error)) (answer T, err error) {
	return readBy(ctx, c, func(ctx context.Context, conn grpc.ClientConnInterface) (T, error) {
		return ask(ctx, lofamov1.NewResponseServiceClient(conn))
	})
}

// readBy is readResponses for any service of the supervisors.
func readBy[T any](ctx context.Context, c *Client, ask func(context.Context, grpc.ClientConnInterface) (T, error)) (answer T, err error) {
	err = c.atOne(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.TryTimeout)
		defer cancel()
		answer, err = ask(ctx, conn)
		return err
	})
	return answer, err
}

// changeResponses is changeBy for the service of responses.
func changeResponses[T any](ctx context.Context, c *Client,
	ask func(context.Context, lofamov1.ResponseServiceClient) (T, error)) (T, error) {
	return changeBy(ctx, c, func(ctx context.Context, conn grpc.ClientConnInterface) (T, error) {
		return ask(ctx, lofamov1.NewResponseServiceClient(conn))
	})
}

// ApplyPolicies puts policies in force.
func (c *Client) ApplyPolicies(ctx context.Context, req *lofamov1.ApplyPoliciesRequest) (*lofamov1.ApplyPoliciesResponse, error) {
	return changeResponses(ctx, c, func(ctx context.Context, s lofamov1.ResponseServiceClient) (*lofamov1.ApplyPoliciesResponse, error) {
		return s.ApplyPolicies(ctx, req)
	})
}

// CheckPolicies checks policies, together with those in force. It changes nothing.
func (c *Client) CheckPolicies(ctx context.Context, req *lofamov1.CheckPoliciesRequest) (*lofamov1.CheckPoliciesResponse, error) {
	return readResponses(ctx, c, func(ctx context.Context, s lofamov1.ResponseServiceClient) (*lofamov1.CheckPoliciesResponse, error) {
		return s.CheckPolicies(ctx, req)
	})
}

// DeletePolicies deletes policies.
func (c *Client) DeletePolicies(ctx context.Context, req *lofamov1.DeletePoliciesRequest) (*lofamov1.DeletePoliciesResponse, error) {
	return changeResponses(ctx, c, func(ctx context.Context, s lofamov1.ResponseServiceClient) (*lofamov1.DeletePoliciesResponse, error) {
		return s.DeletePolicies(ctx, req)
	})
}

// ListPolicies returns the policies in force.
func (c *Client) ListPolicies(ctx context.Context) (*lofamov1.ListPoliciesResponse, error) {
	return readResponses(ctx, c, func(ctx context.Context, s lofamov1.ResponseServiceClient) (*lofamov1.ListPoliciesResponse, error) {
		return s.ListPolicies(ctx, &lofamov1.ListPoliciesRequest{})
	})
}

// GetPolicy returns one policy with its history.
func (c *Client) GetPolicy(ctx context.Context, req *lofamov1.GetPolicyRequest) (*lofamov1.GetPolicyResponse, error) {
	return readResponses(ctx, c, func(ctx context.Context, s lofamov1.ResponseServiceClient) (*lofamov1.GetPolicyResponse, error) {
		return s.GetPolicy(ctx, req)
	})
}

// ListResponses returns responses.
func (c *Client) ListResponses(ctx context.Context, req *lofamov1.ListResponsesRequest) (*lofamov1.ListResponsesResponse, error) {
	return readResponses(ctx, c, func(ctx context.Context, s lofamov1.ResponseServiceClient) (*lofamov1.ListResponsesResponse, error) {
		return s.ListResponses(ctx, req)
	})
}

// GetResponse returns one response.
func (c *Client) GetResponse(ctx context.Context, id string) (*lofamov1.Response, error) {
	return readResponses(ctx, c, func(ctx context.Context, s lofamov1.ResponseServiceClient) (*lofamov1.Response, error) {
		return s.GetResponse(ctx, &lofamov1.GetResponseRequest{Id: id})
	})
}

// WatchResponses calls each with the responses that pass the filter, then with those that change, until each returns an
// error. If a supervisor fails, the next one sends all open responses again: first is true for that message, and
// responses missing from it have ended. It fails with a *NoAnswerError if all supervisors fail one after the other.
func (c *Client) WatchResponses(ctx context.Context, filter *lofamov1.ListResponsesRequest,
	each func(r *lofamov1.WatchResponsesResponse, first bool) error) error {
	return c.following(ctx, func(ctx context.Context, conn *grpc.ClientConn, got *bool) error {
		stream, err := lofamov1.NewResponseServiceClient(conn).WatchResponses(ctx, &lofamov1.WatchResponsesRequest{Filter: filter})
		for first := true; err == nil; first = false {
			var r *lofamov1.WatchResponsesResponse
			if r, err = stream.Recv(); err == nil {
				*got = true
				if err := each(r, first); err != nil {
					return finalError{err}
				}
			}
		}
		return err
	})
}

// ApproveResponse adds an approval to a response.
func (c *Client) ApproveResponse(ctx context.Context, req *lofamov1.ApproveResponseRequest) (*lofamov1.ApproveResponseResponse, error) {
	return changeResponses(ctx, c, func(ctx context.Context, s lofamov1.ResponseServiceClient) (*lofamov1.ApproveResponseResponse, error) {
		return s.ApproveResponse(ctx, req)
	})
}

// DenyResponse refuses a response.
func (c *Client) DenyResponse(ctx context.Context, req *lofamov1.DenyResponseRequest) (*lofamov1.DenyResponseResponse, error) {
	return changeResponses(ctx, c, func(ctx context.Context, s lofamov1.ResponseServiceClient) (*lofamov1.DenyResponseResponse, error) {
		return s.DenyResponse(ctx, req)
	})
}

// CancelResponse ends a response and undoes its steps.
func (c *Client) CancelResponse(ctx context.Context, req *lofamov1.CancelResponseRequest) (*lofamov1.CancelResponseResponse, error) {
	return changeResponses(ctx, c, func(ctx context.Context, s lofamov1.ResponseServiceClient) (*lofamov1.CancelResponseResponse, error) {
		return s.CancelResponse(ctx, req)
	})
}

// RetryResponse starts a failed, denied or expired response again.
func (c *Client) RetryResponse(ctx context.Context, req *lofamov1.RetryResponseRequest) (*lofamov1.RetryResponseResponse, error) {
	return changeResponses(ctx, c, func(ctx context.Context, s lofamov1.ResponseServiceClient) (*lofamov1.RetryResponseResponse, error) {
		return s.RetryResponse(ctx, req)
	})
}

// SettleResponse records the outcome of a step whose executor could not report it.
func (c *Client) SettleResponse(ctx context.Context, req *lofamov1.SettleResponseRequest) (*lofamov1.SettleResponseResponse, error) {
	return changeResponses(ctx, c, func(ctx context.Context, s lofamov1.ResponseServiceClient) (*lofamov1.SettleResponseResponse, error) {
		return s.SettleResponse(ctx, req)
	})
}

// GetBreaker returns the state of the circuit breaker.
func (c *Client) GetBreaker(ctx context.Context) (*lofamov1.ResponseBreaker, error) {
	return readResponses(ctx, c, func(ctx context.Context, s lofamov1.ResponseServiceClient) (*lofamov1.ResponseBreaker, error) {
		return s.GetBreaker(ctx, &lofamov1.GetBreakerRequest{})
	})
}

// CloseBreaker closes the circuit breaker.
func (c *Client) CloseBreaker(ctx context.Context, req *lofamov1.CloseBreakerRequest) (*lofamov1.CloseBreakerResponse, error) {
	return changeResponses(ctx, c, func(ctx context.Context, s lofamov1.ResponseServiceClient) (*lofamov1.CloseBreakerResponse, error) {
		return s.CloseBreaker(ctx, req)
	})
}

// ListAudit returns one page of the audit.
func (c *Client) ListAudit(ctx context.Context, req *lofamov1.ListAuditRequest) (*lofamov1.ListAuditResponse, error) {
	return readResponses(ctx, c, func(ctx context.Context, s lofamov1.ResponseServiceClient) (*lofamov1.ListAuditResponse, error) {
		return s.ListAudit(ctx, req)
	})
}

// ExportAudit calls each with lines of the audit, in order, until the end or until each returns an error. If a
// supervisor fails, the next one continues after the last line.
func (c *Client) ExportAudit(ctx context.Context, req *lofamov1.ExportAuditRequest, each func([]*lofamov1.AuditLine) error) error {
	from := req.GetFrom()
	return c.following(ctx, func(ctx context.Context, conn *grpc.ClientConn, got *bool) error {
		stream, err := lofamov1.NewResponseServiceClient(conn).ExportAudit(ctx, &lofamov1.ExportAuditRequest{From: from, Follow: req.GetFollow()})
		for err == nil {
			var r *lofamov1.ExportAuditResponse
			if r, err = stream.Recv(); err != nil || len(r.GetLines()) == 0 {
				continue
			}
			*got = true
			if err := each(r.GetLines()); err != nil {
				return finalError{err}
			}
			from = r.GetLines()[len(r.GetLines())-1].GetSeq() + 1
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	})
}
