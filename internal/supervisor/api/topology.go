package api

import (
	"context"
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
)

// GetTopology implements the service. It does not wait for a change that is under way. Without a leader a replica answers
// from its own copy. A parent of regions, which changes nothing, answers with the topology of its regions.
func (s *Server) GetTopology(ctx context.Context, req *lofamov1.GetTopologyRequest) (*lofamov1.Topology, error) {
	if s.cfg.RegionSupervisors != nil {
		return s.topologyProto(s.cfg.Names.Topology()), nil
	}
	resp, err := leadNow(ctx, s, changeTime, func(ctx context.Context, _ string) (*lofamov1.Topology, error) {
		have, err := s.cfg.Operators.Topology(ctx)
		if err != nil {
			return nil, err
		}
		return s.topologyProto(have.Topology), nil
	}, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.Topology, error) {
		return lofamov1.NewFaultSupervisorClient(conn).GetTopology(ctx, req)
	})
	if status.Code(err) == codes.Unavailable {
		return s.topologyProto(s.cfg.Names.Topology()), nil
	}
	return resp, err
}

// topologyProto renders a topology with its nodes that have a single witness.
func (s *Server) topologyProto(t *topology.Topology) *lofamov1.Topology {
	out := t.Proto()
	out.SingleWitness = s.singleWitness(t)
	return out
}

// singleWitness names remedies only where nodes can join and move: regions and their parents have fixed places.
func (s *Server) singleWitness(t *topology.Topology) []*lofamov1.SingleWitness {
	return t.SingleWitness(t.Region != "" || s.cfg.RegionSupervisors != nil)
}

// ApplyTopology implements the service.
func (s *Server) ApplyTopology(ctx context.Context, req *lofamov1.ApplyTopologyRequest) (*lofamov1.ApplyTopologyResponse, error) {
	if err := s.applyElsewhere(req.GetTopology()); err != nil {
		return nil, err
	}
	return lead(ctx, s, func(ctx context.Context, by string) (*lofamov1.ApplyTopologyResponse, error) {
		return s.applyTopology(ctx, by, req)
	}, func(ctx context.Context, c lofamov1.FaultSupervisorClient) (*lofamov1.ApplyTopologyResponse, error) {
		return c.ApplyTopology(ctx, req)
	})
}

// applyTopology is ApplyTopology at the leader.
func (s *Server) applyTopology(ctx context.Context, by string, req *lofamov1.ApplyTopologyRequest) (*lofamov1.ApplyTopologyResponse,
	error) {
	to, err := topology.FromProto(req.GetTopology())
	if err != nil {
		return nil, invalidTopology(err)
	}
	return s.changeTopology(ctx, by, req.GetDryRun(), func(have *topology.Topology) (*topology.Topology, error) {
		if want := req.GetIfRevision(); want != 0 && want != have.Revision {
			return nil, status.Errorf(codes.Aborted, "the topology is at revision %d, not at %d: somebody has changed it; start "+
				"again from the present one", have.Revision, want)
		}
		if have.Region != to.Region {
			return nil, status.Errorf(codes.InvalidArgument, "topology: region: given %q: want %q, which these supervisors are of",
				to.Region, have.Region)
		}
		if len(have.Placed()) > 0 && len(to.Placed()) == 0 {
			return nil, status.Errorf(codes.FailedPrecondition, "topology: nodes: given none with a place: want at least %d, for nodes have places",
				topology.MinNodes)
		}
		if err := topology.CheckPlaces(have, to); err != nil {
			return nil, invalidTopology(err)
		}
		return to, nil
	})
}

// changeTopology commits the topology that change makes of the present one, unless it is a dry run. The revision in the
// answer is that of the commit, or of the present topology if nothing changes.
func (s *Server) changeTopology(ctx context.Context, by string, dryRun bool,
	change func(*topology.Topology) (*topology.Topology, error)) (*lofamov1.ApplyTopologyResponse, error) {
	var changes []string
	var to *topology.Topology
	revision := uint64(0) // of the present topology
	committed, err := s.cfg.Operators.Change(ctx, func(have store.Topology) ([]store.Write, error) {
		revision = have.Revision
		var err error
		if to, err = change(have.Topology); err != nil {
			return nil, err
		}
		diff := topology.Diff(have.Topology, to)
		for _, c := range diff {
			changes = append(changes, c.String())
		}
		if len(diff) == 0 || dryRun {
			return nil, nil
		}
		writes, err := store.TopologyWrites(have, to, view.TopologyEvents(have.Topology, to, by, time.Now()))
		if err == nil {
			revision = 0 // the revision of the commit
		}
		return writes, err
	})
	if err != nil {
		return nil, err
	}
	if revision == 0 {
		revision = committed
		s.cfg.Logger.Info("topology changed", "by", by, "revision", revision, "changes", len(changes), "first",
			changes[:min(len(changes), maxAudited)])
	}
	return &lofamov1.ApplyTopologyResponse{Topology: to.At(revision).Proto(), Changes: changes}, nil
}

// invalidTopology names every bad field, in words and as google.rpc.BadRequest.
func invalidTopology(err error) error {
	st := status.New(codes.InvalidArgument, err.Error())
	if bad := (*topology.InvalidError)(nil); errors.As(err, &bad) {
		details := &errdetails.BadRequest{}
		for _, f := range bad.Named() {
			details.FieldViolations = append(details.FieldViolations,
				&errdetails.BadRequest_FieldViolation{Field: "topology." + f.Field, Description: f.Problem})
		}
		if detailed, err := st.WithDetails(details); err == nil {
			st = detailed
		}
	}
	return st.Err()
}

// maxAudited bounds the changes that one log line names.
const maxAudited = 20
