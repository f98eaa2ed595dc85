package clienttest

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Responses are a server's answers as lofamo.v1.ResponseService. Set it before the first call.
type Responses struct {
	lofamov1.UnimplementedResponseServiceServer

	Applied  *lofamov1.ApplyPoliciesResponse
	Checked  *lofamov1.CheckPoliciesResponse
	Added    *lofamov1.AddNotifyTargetResponse
	Targets  *lofamov1.ListNotifyTargetsResponse
	Removed  *lofamov1.RemoveNotifyTargetResponse
	Deleted  *lofamov1.DeletePoliciesResponse
	Policies *lofamov1.ListPoliciesResponse
	Policy   *lofamov1.GetPolicyResponse
	List     *lofamov1.ListResponsesResponse
	Changes  []*lofamov1.WatchResponsesResponse // of WatchResponses
	Silent   bool                               // WatchResponses is silent after Changes, and does not end by itself
	Ended    chan struct{}                      // if set, receives a value when a client has ended a silent WatchResponses
	Is       *lofamov1.Response                 // answer to every decision about a response
	Lines    []*lofamov1.AuditLine
	// Kept answers GetResponse, by id, whatever Err is; nil: Is and Err do.
	Kept map[string]*lofamov1.Response
	// Err is the error of all calls; streams return it at their end.
	Err error
	// Asked has the requests for changes, in words.
	Asked []string
	mu    sync.Mutex // for writes to Asked
}

func (r *Responses) asked(call string, req fmt.Stringer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Asked = append(r.Asked, call+" "+req.String())
}

// ApplyPolicies implements the service.
func (r *Responses) ApplyPolicies(_ context.Context, req *lofamov1.ApplyPoliciesRequest) (*lofamov1.ApplyPoliciesResponse, error) {
	r.asked("apply", req)
	return r.Applied, r.Err
}

// CheckPolicies implements the service.
func (r *Responses) CheckPolicies(_ context.Context, req *lofamov1.CheckPoliciesRequest) (*lofamov1.CheckPoliciesResponse, error) {
	r.asked("check", req)
	return r.Checked, r.Err
}

// AddNotifyTarget implements the service.
func (r *Responses) AddNotifyTarget(_ context.Context, req *lofamov1.AddNotifyTargetRequest) (*lofamov1.AddNotifyTargetResponse, error) {
	r.asked("add", req)
	return r.Added, r.Err
}

// ListNotifyTargets implements the service.
func (r *Responses) ListNotifyTargets(context.Context, *lofamov1.ListNotifyTargetsRequest) (*lofamov1.ListNotifyTargetsResponse, error) {
	return r.Targets, r.Err
}

// TestNotifyTarget implements the service.
func (r *Responses) TestNotifyTarget(_ context.Context, req *lofamov1.TestNotifyTargetRequest) (*lofamov1.TestNotifyTargetResponse, error) {
	r.asked("test", req)
	return &lofamov1.TestNotifyTargetResponse{}, r.Err
}

// RemoveNotifyTarget implements the service.
func (r *Responses) RemoveNotifyTarget(
	_ context.Context, req *lofamov1.RemoveNotifyTargetRequest,
) (*lofamov1.RemoveNotifyTargetResponse, error) {
	r.asked("remove", req)
	return r.Removed, r.Err
}

// DeletePolicies implements the service.
func (r *Responses) DeletePolicies(_ context.Context, req *lofamov1.DeletePoliciesRequest) (*lofamov1.DeletePoliciesResponse, error) {
	r.asked("delete", req)
	return r.Deleted, r.Err
}

// ListPolicies implements the service.
func (r *Responses) ListPolicies(context.Context, *lofamov1.ListPoliciesRequest) (*lofamov1.ListPoliciesResponse, error) {
	return r.Policies, r.Err
}

// GetPolicy implements the service.
func (r *Responses) GetPolicy(_ context.Context, req *lofamov1.GetPolicyRequest) (*lofamov1.GetPolicyResponse, error) {
	r.asked("get policy", req)
	return r.Policy, r.Err
}

// ListResponses implements the service.
func (r *Responses) ListResponses(_ context.Context, req *lofamov1.ListResponsesRequest) (*lofamov1.ListResponsesResponse, error) {
	r.asked("list", req)
	return r.List, r.Err
}

// GetResponse implements the service.
func (r *Responses) GetResponse(_ context.Context, req *lofamov1.GetResponseRequest) (*lofamov1.Response, error) {
	r.asked("get", req)
	if r.Kept == nil {
		return r.Is, r.Err
	}
	if x := r.Kept[req.GetId()]; x != nil {
		return x, nil
	}
	return nil, status.Errorf(codes.NotFound, "response %q: there is none", req.GetId())
}

// WatchResponses implements the service.
func (r *Responses) WatchResponses(_ *lofamov1.WatchResponsesRequest, s grpc.ServerStreamingServer[lofamov1.WatchResponsesResponse]) error {
	for _, c := range r.Changes {
		if err := s.Send(c); err != nil {
			return err
		}
	}
	if r.Silent {
		<-s.Context().Done()
		if r.Ended != nil {
			r.Ended <- struct{}{}
		}
	}
	return r.Err
}

// ApproveResponse implements the service.
func (r *Responses) ApproveResponse(_ context.Context, req *lofamov1.ApproveResponseRequest) (*lofamov1.ApproveResponseResponse, error) {
	r.asked("approve", req)
	return &lofamov1.ApproveResponseResponse{Response: r.Is}, r.Err
}

// DenyResponse implements the service.
func (r *Responses) DenyResponse(_ context.Context, req *lofamov1.DenyResponseRequest) (*lofamov1.DenyResponseResponse, error) {
	r.asked("deny", req)
	return &lofamov1.DenyResponseResponse{Response: r.Is}, r.Err
}

// CancelResponse implements the service.
func (r *Responses) CancelResponse(_ context.Context, req *lofamov1.CancelResponseRequest) (*lofamov1.CancelResponseResponse, error) {
	r.asked("cancel", req)
	return &lofamov1.CancelResponseResponse{Response: r.Is}, r.Err
}

// RetryResponse implements the service.
func (r *Responses) RetryResponse(_ context.Context, req *lofamov1.RetryResponseRequest) (*lofamov1.RetryResponseResponse, error) {
	r.asked("retry", req)
	return &lofamov1.RetryResponseResponse{Response: r.Is}, r.Err
}

// SettleResponse implements the service.
func (r *Responses) SettleResponse(_ context.Context, req *lofamov1.SettleResponseRequest) (*lofamov1.SettleResponseResponse, error) {
	r.asked("settle", req)
	return &lofamov1.SettleResponseResponse{Response: r.Is}, r.Err
}

// GetBreaker implements the service.
func (r *Responses) GetBreaker(context.Context, *lofamov1.GetBreakerRequest) (*lofamov1.ResponseBreaker, error) {
	return r.List.GetBreaker(), r.Err
}

// CloseBreaker implements the service.
func (r *Responses) CloseBreaker(_ context.Context, req *lofamov1.CloseBreakerRequest) (*lofamov1.CloseBreakerResponse, error) {
	r.asked("close", req)
	return &lofamov1.CloseBreakerResponse{Breaker: &lofamov1.ResponseBreaker{ClosedBy: "operator/someone",
		At: r.List.GetBreaker().GetAt()}}, r.Err
}

// ListAudit implements the service.
func (r *Responses) ListAudit(_ context.Context, req *lofamov1.ListAuditRequest) (*lofamov1.ListAuditResponse, error) {
	r.asked("audit", req)
	return &lofamov1.ListAuditResponse{Lines: r.Lines}, r.Err
}

// ExportAudit implements the service.
func (r *Responses) ExportAudit(req *lofamov1.ExportAuditRequest, s grpc.ServerStreamingServer[lofamov1.ExportAuditResponse]) error {
	r.asked("export", req)
	for i := 0; i < len(r.Lines); i += 2 {
		if err := s.Send(&lofamov1.ExportAuditResponse{Lines: r.Lines[i:min(i+2, len(r.Lines))]}); err != nil {
			return err
		}
	}
	return r.Err
}
