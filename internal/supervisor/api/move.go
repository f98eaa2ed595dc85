package api

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// MoveNodes implements the service Reconfigure.
func (s *Server) MoveNodes(ctx context.Context, req *lofamov1.MoveNodesRequest) (*lofamov1.MoveNodesResponse, error) {
	if s.cfg.RegionSupervisors != nil {
		return nil, errParent()
	}
	return leadBy(ctx, s, func(ctx context.Context, by string) (*lofamov1.MoveNodesResponse, error) {
		return s.moveNodes(ctx, by, req)
	}, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.MoveNodesResponse, error) {
		return lofamov1.NewReconfigureClient(conn).MoveNodes(ctx, req)
	})
}

func (s *Server) moveNodes(ctx context.Context, by string, req *lofamov1.MoveNodesRequest) (*lofamov1.MoveNodesResponse, error) {
	if n := len(req.GetMoves()); n < 1 || n > maxJoining {
		return nil, invalid("moves", "given %d: want 1 to %d", n, maxJoining)
	}
	to := make([]grid.Coord, len(req.GetMoves()))
	for i, mv := range req.GetMoves() {
		at, err := grid.ParseCoord(mv.GetTo())
		if err != nil {
			return nil, invalid("moves.to", "given %.64q: want coordinates such as 1,0,1", mv.GetTo())
		}
		to[i] = at
	}
	resp := &lofamov1.MoveNodesResponse{}
	applied, err := s.changeTopology(ctx, by, req.GetDryRun(), func(have *topology.Topology) (*topology.Topology, error) {
		if want := req.GetIfRevision(); want != 0 && want != have.Revision {
			return nil, status.Errorf(codes.Aborted, "the topology has changed: it is at revision %d, the request names %d: read it again "+
				"and retry", have.Revision, want)
		}
		m, err := s.cfg.Engine.Map(ctx) // here, because a change before this one may have moved the same nodes
		if err != nil {
			return nil, err // of a replica that does not lead: the call is forwarded
		}
		moves := make([]topology.Move, len(to))
		for i, mv := range req.GetMoves() {
			n, ok := have.Find(mv.GetNode())
			if !ok {
				return nil, status.Errorf(codes.NotFound, "moves[%d]: given %.64q: want a node of the topology, or its coordinates", i, mv.GetNode())
			}
			if err := s.mayMove(s.snap(m), n); err != nil {
				return nil, err
			}
			moves[i] = topology.Move{Node: n.ID, To: to[i]}
		}
		next, err := have.Move(moves, s.cfg.Ends)
		if err != nil {
			return nil, refusedJoin(err)
		}
		resp.Dims, resp.Nodes = next.Dims.String(), nil
		for _, mv := range moves {
			n, _ := next.Node(mv.Node)
			resp.Nodes = append(resp.Nodes, n.Proto())
		}
		return next, nil
	})
	if err != nil {
		return nil, err
	}
	if !req.GetDryRun() {
		resp.Revision = applied.GetTopology().GetRevision()
	}
	return resp, nil
}

// mayMove refuses to move a node that is not well: its halves might not come up at the new place, and nobody could tell
// whether the move is the reason.
func (s *Server) mayMove(snap snapshot, n topology.Node) error {
	refused := func(id fault.NodeID, why string) error {
		return status.Errorf(codes.FailedPrecondition, "node %s: is %s: want a node that is NORMAL, and not under maintenance", id, why)
	}
	if n.Spare {
		return nil // the topology says why not
	}
	pos, ok := snap.position(n.ID)
	switch {
	case !ok:
		return refused(n.ID, "not on the map yet")
	case s.cfg.Marks.Of(n.ID) != nil:
		return refused(n.ID, "under maintenance")
	case snap.state(pos) != lofamov1.State_NORMAL:
		return refused(n.ID, snap.state(pos).String())
	}
	return nil
}
