package api

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
)

// maxJoining bounds the nodes that one change lets join or leave: with their events they fit every store's transaction.
const maxJoining = 16

// JoinNodes implements the service Reconfigure.
func (s *Server) JoinNodes(ctx context.Context, req *lofamov1.JoinNodesRequest) (*lofamov1.JoinNodesResponse, error) {
	if s.cfg.RegionSupervisors != nil {
		return nil, errParent()
	}
	return leadBy(ctx, s, func(ctx context.Context, by string) (*lofamov1.JoinNodesResponse, error) {
		return s.joinNodes(ctx, by, req)
	}, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.JoinNodesResponse, error) {
		return lofamov1.NewReconfigureClient(conn).JoinNodes(ctx, req)
	})
}

func (s *Server) joinNodes(ctx context.Context, by string, req *lofamov1.JoinNodesRequest) (*lofamov1.JoinNodesResponse, error) {
	if n := len(req.GetNodes()); n < 1 || n > maxJoining {
		return nil, invalid("nodes", "given %d: want 1 to %d", n, maxJoining)
	}
	nodes := make([]topology.Node, len(req.GetNodes()))
	for i, p := range req.GetNodes() {
		var err error
		if nodes[i], err = topology.NodeFromProto(i, p); err != nil {
			return nil, invalidTopology(err)
		}
	}
	resp := &lofamov1.JoinNodesResponse{}
	applied, err := s.changeTopology(ctx, by, req.GetDryRun(), func(have *topology.Topology) (*topology.Topology, error) {
		to, err := have.Join(nodes, s.cfg.Ends)
		if err != nil {
			return nil, refusedJoin(err)
		}
		for _, n := range nodes {
			placed, _ := to.Node(n.ID)
			resp.Nodes = append(resp.Nodes, placed.Proto())
		}
		resp.Dims = to.Dims.String()
		return to, nil
	})
	if err != nil {
		return nil, err
	}
	if !req.GetDryRun() {
		resp.Revision = applied.GetTopology().GetRevision()
	}
	return resp, nil
}

// LeaveNodes implements the service Reconfigure.
func (s *Server) LeaveNodes(ctx context.Context, req *lofamov1.LeaveNodesRequest) (*lofamov1.LeaveNodesResponse, error) {
	if s.cfg.RegionSupervisors != nil {
		return nil, errParent()
	}
	return leadBy(ctx, s, func(ctx context.Context, by string) (*lofamov1.LeaveNodesResponse, error) {
		return s.leaveNodes(ctx, by, req)
	}, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.LeaveNodesResponse, error) {
		return lofamov1.NewReconfigureClient(conn).LeaveNodes(ctx, req)
	})
}

func (s *Server) leaveNodes(ctx context.Context, by string, req *lofamov1.LeaveNodesRequest) (*lofamov1.LeaveNodesResponse, error) {
	if n := len(req.GetNodes()); n < 1 || n > maxJoining {
		return nil, invalid("nodes", "given %d: want 1 to %d", n, maxJoining)
	}
	resp := &lofamov1.LeaveNodesResponse{}
	applied, err := s.changeTopology(ctx, by, req.GetDryRun(), func(have *topology.Topology) (*topology.Topology, error) {
		var ids []fault.NodeID
		for i, name := range req.GetNodes() {
			n, ok := have.Find(name)
			if !ok {
				return nil, status.Errorf(codes.NotFound, "nodes[%d]: given %.64q: want a node of the topology, or its coordinates", i, name)
			}
			ids = append(ids, n.ID)
			resp.Nodes = append(resp.Nodes, n.Proto())
		}
		to, err := have.Leave(ids, req.GetForget())
		if err != nil {
			return nil, refusedJoin(err)
		}
		resp.Dims = to.Dims.String()
		return to, nil
	})
	if err != nil {
		return nil, err
	}
	if !req.GetDryRun() {
		resp.Revision = applied.GetTopology().GetRevision()
	}
	return resp, nil
}

// refusedJoin returns the status of a join or a leave that the topology does not allow.
func refusedJoin(err error) error {
	if why := (*topology.CannotJoinError)(nil); errors.As(err, &why) {
		if why.Later {
			return status.Error(codes.Aborted, err.Error()+": try again")
		}
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return invalidTopology(err)
}
