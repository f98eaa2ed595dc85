package api

import (
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Bounds of maintenance marks.
const (
	maxMarked      = 1024
	maxReason      = 256 // bytes
	minMaintenance = time.Minute
	maxMaintenance = 30 * 24 * time.Hour
	// otherOps is the store's own operations in a transaction. maxMarkBytes leaves room in every store's transaction.
	otherOps     = 3
	maxMarkBytes = 1 << 20
)

// SetMaintenance implements the service.
func (s *Server) SetMaintenance(ctx context.Context, req *lofamov1.SetMaintenanceRequest) (*lofamov1.SetMaintenanceResponse, error) {
	if err := s.markElsewhere(req.GetNodes()); err != nil {
		return nil, err
	}
	return lead(ctx, s, func(ctx context.Context, by string) (*lofamov1.SetMaintenanceResponse, error) {
		return s.setMaintenance(ctx, by, req)
	}, func(ctx context.Context, c lofamov1.FaultSupervisorClient) (*lofamov1.SetMaintenanceResponse, error) {
		return c.SetMaintenance(ctx, req)
	})
}

func (s *Server) setMaintenance(ctx context.Context, by string,
	req *lofamov1.SetMaintenanceRequest) (*lofamov1.SetMaintenanceResponse, error) {
	if err := checkMark(req); err != nil {
		return nil, err
	}
	resp := &lofamov1.SetMaintenanceResponse{}
	revision, err := s.cfg.Operators.Change(ctx, func(store.Topology) ([]store.Write, error) {
		ids, err := s.marked(req.GetNodes())
		if err != nil {
			return nil, err
		}
		now := time.Now()
		var w store.Write
		for _, id := range ids {
			m := &lofamov1.Maintenance{Node: string(id), Reason: req.GetReason(), By: by, Since: timestamppb.New(now)}
			if d := req.GetDuration(); d != nil {
				m.Until = timestamppb.New(now.Add(d.AsDuration()))
			}
			told := "under maintenance: "
			if old := s.cfg.Marks.Of(id); old != nil {
				m.Since, told = old.GetSince(), "still under maintenance: "
			}
			kv, err := store.MaintenancePut(m)
			if err != nil {
				return nil, err
			}
			w.Puts = append(w.Puts, kv)
			w.Events = append(w.Events, view.MaintenanceEvent(m, false, told+m.GetReason(), by, s.cfg.Names, now))
			resp.Maintenance = append(resp.Maintenance, m)
		}
		return s.fits(w)
	})
	if err != nil {
		return nil, err
	}
	resp.Revision = revision
	s.cfg.Logger.Info("maintenance set", "by", by, "nodes", req.GetNodes(), "reason", req.GetReason(), "for",
		req.GetDuration().AsDuration(), "revision", revision)
	return resp, nil
}

// checkMark refuses an invalid mark.
func checkMark(req *lofamov1.SetMaintenanceRequest) error {
	if n := len(req.GetReason()); strings.TrimSpace(req.GetReason()) == "" || n > maxReason {
		return status.Errorf(codes.InvalidArgument, "reason: given %d bytes: want 1 to %d that say why", n, maxReason)
	}
	if req.GetDuration() == nil {
		return nil
	}
	if d := req.GetDuration().AsDuration(); req.GetDuration().CheckValid() != nil || d < minMaintenance || d > maxMaintenance {
		return status.Errorf(codes.InvalidArgument, "duration: given %v: want 1m to %dh, or none", d, maxMaintenance/time.Hour)
	}
	return nil
}

// marked finds the nodes of a request, each once.
func (s *Server) marked(names []string) ([]fault.NodeID, error) {
	if n := len(names); n == 0 || n > maxMarked {
		return nil, status.Errorf(codes.InvalidArgument, "nodes: given %d: want 1 to %d", n, maxMarked)
	}
	var ids []fault.NodeID
	seen := make(map[fault.NodeID]bool, len(names))
	for _, name := range names {
		id, err := s.find(name)
		if err != nil {
			return nil, err
		}
		if !seen[id] {
			seen[id] = true
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// fits refuses a write that does not fit one transaction of the store.
func (s *Server) fits(w store.Write) ([]store.Write, error) {
	bytes := 0
	for _, ev := range w.Events {
		bytes += 2 * proto.Size(ev) // the event contains the mark
	}
	switch ops := w.Batch().Ops(); {
	case s.cfg.MaxOps > 0 && ops > s.cfg.MaxOps-otherOps:
		return nil, status.Errorf(codes.InvalidArgument,
			"nodes: given %d: want at most %d at once, since the store takes no more in one transaction", ops/2, (s.cfg.MaxOps-otherOps)/2)
	case bytes > maxMarkBytes:
		return nil, status.Errorf(codes.InvalidArgument, "nodes: the marks of %d nodes have %d bytes: want at most %d at once",
			ops/2, bytes, maxMarkBytes)
	}
	return []store.Write{w}, nil
}

// EndMaintenance implements the service.
func (s *Server) EndMaintenance(ctx context.Context, req *lofamov1.EndMaintenanceRequest) (*lofamov1.EndMaintenanceResponse, error) {
	if err := s.markElsewhere(req.GetNodes()); err != nil {
		return nil, err
	}
	return lead(ctx, s, func(ctx context.Context, by string) (*lofamov1.EndMaintenanceResponse, error) {
		return s.endMaintenance(ctx, by, req)
	}, func(ctx context.Context, c lofamov1.FaultSupervisorClient) (*lofamov1.EndMaintenanceResponse, error) {
		return c.EndMaintenance(ctx, req)
	})
}

func (s *Server) endMaintenance(ctx context.Context, by string,
	req *lofamov1.EndMaintenanceRequest) (*lofamov1.EndMaintenanceResponse, error) {
	revision, err := s.cfg.Operators.Change(ctx, func(store.Topology) ([]store.Write, error) {
		ids, err := s.marked(req.GetNodes())
		if err != nil {
			return nil, err
		}
		now := time.Now()
		var w store.Write
		var without []string
		for _, id := range ids {
			m := s.cfg.Marks.Of(id)
			if m == nil {
				without = append(without, string(id))
				continue
			}
			w.Deletes = append(w.Deletes, store.MaintenanceKey(string(id)))
			w.Events = append(w.Events, view.MaintenanceEvent(m, true, "maintenance ended by "+by, by, s.cfg.Names, now))
		}
		if len(without) > 0 {
			without = without[:min(len(without), maxAudited)]
			return nil, status.Errorf(codes.NotFound, "node %s: not under maintenance: nothing was changed",
				strings.Join(slices.Clip(without), ", "))
		}
		return s.fits(w)
	})
	if err != nil {
		return nil, err
	}
	s.cfg.Logger.Info("maintenance ended", "by", by, "nodes", req.GetNodes(), "revision", revision)
	return &lofamov1.EndMaintenanceResponse{Revision: revision}, nil
}
