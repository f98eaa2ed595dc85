package api

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/respond"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/response"
)

// Limits of ListAudit, and the number of lines that an export reads at once: they fit one message.
const (
	defaultAudit = 1_000
	maxAudit     = 10_000
	auditPage    = 500
	// auditPoll is how often a following export looks for lines that came without a change of a response.
	auditPoll = 2 * time.Second
)

// audit reads lines.
func (r *Responses) audit(ctx context.Context, from uint64, limit int) ([]respond.AuditLine, error) {
	lines, err := r.service.Audit(ctx, from, limit)
	switch {
	case err == nil:
		return lines, nil
	case ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return nil, status.Error(codes.Unavailable, err.Error())
}

// newestLine returns the number of the newest line; 0: none.
func (r *Responses) newestLine(ctx context.Context) (uint64, error) {
	head, err := r.service.AuditHead(ctx)
	switch {
	case err == nil:
		return head.Last, nil
	case ctx.Err() != nil:
		return 0, status.FromContextError(ctx.Err()).Err()
	}
	return 0, status.Error(codes.Unavailable, err.Error())
}

// newestFor is newestLine for an export from a line on. It refuses a line beyond the next one: a store that was restored from a snapshot
// has fewer lines than an earlier export. A replica may lag behind, so it first confirms with a quorum that it has all lines.
func (r *Responses) newestFor(ctx context.Context, from uint64) (uint64, error) {
	newest, err := r.newestLine(ctx)
	if err != nil || from <= newest {
		return newest, err
	}
	asked, cancel := context.WithTimeout(ctx, proxyTime)
	defer cancel()
	_, unconfirmed := r.s.cfg.Copy.Revision(asked)
	newest, err = r.newestLine(ctx)
	switch {
	case err != nil || from <= newest+1:
		return newest, err
	case unconfirmed != nil:
		return 0, status.Errorf(codes.Unavailable, "from: given %d: line %d is the newest of this replica, which reaches no quorum: %v", from,
			newest, unconfirmed)
	}
	return 0, expired(fmt.Sprintf("from: given %d: want at most %d, the line after the newest", from, newest+1),
		"if the store was restored from a snapshot, export to a new file")
}

// ListAudit implements the service.
func (r *Responses) ListAudit(ctx context.Context, req *lofamov1.ListAuditRequest) (*lofamov1.ListAuditResponse, error) {
	if err := r.ready(); err != nil {
		return nil, err
	}
	if req.GetLimit() > maxAudit {
		return nil, invalid("limit", "given %d: want 1 to %d, or 0 for %d", req.GetLimit(), maxAudit, defaultAudit)
	}
	limit := cmp.Or(int(req.GetLimit()), defaultAudit)
	from := req.GetFrom()
	if from == 0 {
		newest, err := r.newestLine(ctx)
		if err != nil {
			return nil, err
		}
		from = max(1, newest-min(newest, uint64(limit))+1)
	}
	resp := &lofamov1.ListAuditResponse{Next: from}
	for len(resp.GetLines()) < limit {
		lines, err := r.audit(ctx, resp.GetNext(), min(limit-len(resp.GetLines()), auditPage))
		if err != nil {
			return nil, err
		}
		if len(lines) == 0 {
			break
		}
		if resp.Lines, err = appendLines(resp.GetLines(), lines); err != nil {
			return nil, err
		}
		resp.Next = lines[len(lines)-1].Seq + 1
	}
	return resp, nil
}

// ExportAudit implements the service.
func (r *Responses) ExportAudit(req *lofamov1.ExportAuditRequest, stream grpc.ServerStreamingServer[lofamov1.ExportAuditResponse]) error {
	if err := r.ready(); err != nil {
		return err
	}
	ctx := stream.Context()
	newest, err := r.newestFor(ctx, req.GetFrom())
	if err != nil {
		return err
	}
	next, strict := req.GetFrom(), req.GetFrom() > 0 // strict: the client expects all lines from next on
	for {
		changed := r.service.Changed()
		lines, err := r.audit(ctx, max(next, 1), auditPage)
		if err != nil {
			return err
		}
		if !req.GetFollow() {
			for len(lines) > 0 && lines[len(lines)-1].Seq > newest {
				lines = lines[:len(lines)-1]
			}
		}
		if len(lines) == 0 {
			if !req.GetFollow() {
				return nil
			}
			if err := r.awaitAudit(ctx, changed); err != nil {
				return err
			}
			continue
		}
		if strict && lines[0].Seq != next {
			return expired(fmt.Sprintf("from: line %d is no longer kept: the oldest is %d", next, lines[0].Seq),
				"export from line 0, the oldest, and keep exports")
		}
		resp := &lofamov1.ExportAuditResponse{}
		if resp.Lines, err = appendLines(nil, lines); err != nil {
			return err
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
		next, strict = lines[len(lines)-1].Seq+1, true
	}
}

// awaitAudit waits until there may be more lines.
func (r *Responses) awaitAudit(ctx context.Context, changed <-chan struct{}) error {
	poll := time.NewTimer(auditPoll)
	defer poll.Stop()
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-r.s.cfg.Stopping:
		return status.Error(codes.Unavailable, errStopping.Error())
	case <-changed:
	case <-poll.C:
	}
	return nil
}

// appendLines adds lines in the API's form.
func appendLines(to []*lofamov1.AuditLine, lines []respond.AuditLine) ([]*lofamov1.AuditLine, error) {
	for _, l := range lines {
		b, err := l.Marshal()
		if err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		d := l.Decision
		out := &lofamov1.AuditLine{
			Seq: l.Seq, Line: string(b), At: view.Timestamp(d.At), Act: d.Act.String(), Response: d.Response, Policy: d.Policy, Step: d.Step,
			Executor: string(d.Kind),
			Attempt:  uint32(d.Attempt), Reason: reasonText(d.Reason), Subject: d.Subject, Detail: d.Detail,
		}
		if d.Target != (response.Target{}) {
			out.Target = d.Target.String()
		}
		to = append(to, out)
	}
	return to, nil
}
