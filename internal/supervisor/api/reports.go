package api

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Limits of ListReports: the leader remembers that many reports, and as many digests.
const (
	defaultReports = 100
	maxReports     = 4096
)

// ListReports implements the service. Only the leader knows the received reports: without a leader the call fails.
func (s *Server) ListReports(ctx context.Context, req *lofamov1.ListReportsRequest) (*lofamov1.ListReportsResponse, error) {
	limit := int(req.GetLimit())
	switch {
	case limit == 0:
		limit = defaultReports
	case limit > maxReports:
		return nil, status.Errorf(codes.InvalidArgument, "limit: given %d: want at most %d", limit, maxReports)
	}
	id, err := s.findOptional(req.GetNode())
	if err != nil {
		return nil, err
	}
	v, err := s.cfg.Engine.Reports(ctx, engine.ReportQuery{Node: id, Limit: limit, Digests: req.GetDigests()})
	if err == nil {
		return s.renderReports(v, id, time.Now()), nil
	}
	resp, ok, err := byLeader(ctx, s, err, func(ctx context.Context, c lofamov1.FaultSupervisorClient) (*lofamov1.ListReportsResponse, error) {
		return c.ListReports(ctx, req)
	})
	if !ok {
		return nil, status.Error(codes.Unavailable, "only the leader knows the received reports, and no leader can be reached")
	}
	return resp, err
}

// renderReports renders the received reports, and the senders by rank.
func (s *Server) renderReports(v engine.ReportView, only fault.NodeID, now time.Time) *lofamov1.ListReportsResponse {
	resp := &lofamov1.ListReportsResponse{}
	for i := range v.Reports {
		resp.Reports = append(resp.Reports, reportStatus(&v.Reports[i], now))
	}
	for _, id := range s.cfg.Names.All() {
		sender, ok := v.Senders[id]
		if !ok || only != "" && id != only {
			continue
		}
		at, _ := s.cfg.Names.Coord(id)
		resp.Senders = append(resp.Senders, &lofamov1.SenderStatus{
			Node: string(id), Coord: at.String(), Delivery: sender.Status,
			Age: view.Age(sender.At, now), Old: view.Old(sender.OldAt, now),
		})
	}
	return resp
}

func reportStatus(r *engine.Received, now time.Time) *lofamov1.ReportStatus {
	out := &lofamov1.ReportStatus{
		Node: string(r.ID.Origin.Node), Half: r.ID.Origin.Half.String(), Epoch: uint64(r.ID.Epoch), Seq: uint64(r.ID.Seq),
		Digest: r.Digest, Path: lofamov1.Path(r.Path), From: r.From, Latency: durationpb.New(r.Latency), Age: view.Age(r.Arrived, now),
		Committed: r.Committed, Copies: r.Copies,
	}
	if r.Committed {
		out.Commit = durationpb.New(r.Commit)
	}
	for _, h := range r.Hops {
		out.Hops = append(out.Hops, &lofamov1.ReportHop{Node: string(h.Node), Half: h.Half.String(), Held: durationpb.New(h.Held)})
	}
	for _, o := range r.Said {
		out.Says = append(out.Says, string(o.Node)+" "+o.Component.String()+" "+o.State.String())
	}
	return out
}
