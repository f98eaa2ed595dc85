package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
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
	var unheard []fault.NodeID
	join := func(have *topology.Topology) (*topology.Topology, error) {
		to, err := have.Join(nodes, s.cfg.Ends)
		why := (*topology.CannotJoinError)(nil)
		mayWait := err == nil || errors.As(err, &why) && why.Later // the next of these nodes waits for one that is unheard, too
		if unheard = s.unheard(nodes); len(unheard) > 0 && mayWait && !req.GetDryRun() && !req.GetUnheard() {
			if to, err = have.Expect(nodes); err == nil { // supervisors talk only to nodes of the topology
				return to, nil
			}
		}
		if err != nil {
			return nil, refusedJoin(err)
		}
		unheard, resp.Nodes, resp.Dims = nil, nil, to.Dims.String()
		for _, n := range nodes {
			placed, _ := to.Node(n.ID)
			resp.Nodes = append(resp.Nodes, placed.Proto())
		}
		return to, nil
	}
	applied, err := s.changeTopology(ctx, by, req.GetDryRun(), join)
	if err == nil && len(unheard) > 0 {
		if s.awaitAgents(ctx, s.asked(nodes)) {
			if applied, err = s.changeTopology(ctx, by, false, join); errors.Is(err, engine.ErrNotLeading) {
				return nil, status.Errorf(codes.Aborted, "node %s: is a spare of the topology now, and has no place: %v: try again",
					nodes[0].ID, err)
			}
		}
		if err == nil && len(unheard) > 0 {
			return nil, status.Errorf(codes.Aborted, "node %s: is a spare of the topology, and no supervisor hears its agent: want "+
				"an agent that runs with spare: true; such an agent reports every 10 s: try again", unheard[0])
		}
	}
	if err != nil {
		return nil, err
	}
	if !req.GetDryRun() {
		resp.Revision = applied.GetTopology().GetRevision()
	}
	return resp, nil
}

// unheard returns the nodes that have not stated their ends of links, or not reported lately. If one of them had a place, its
// neighbours would give up their links to one another for a node that may never come.
func (s *Server) unheard(nodes []topology.Node) (out []fault.NodeID) {
	for _, n := range nodes {
		if _, known := s.cfg.Ends.Ends(n.ID); !known || !s.cfg.Ends.Heard(n.ID) {
			out = append(out, n.ID)
		}
	}
	return out
}

// asked returns a function that reports whether all nodes have been heard. It asks those that have not, once per agentsAsk at most.
func (s *Server) asked(nodes []topology.Node) (reported func() bool) {
	var at time.Time
	return func() bool {
		unheard := s.unheard(nodes)
		if now := time.Now(); len(unheard) > 0 && (at.IsZero() || now.Sub(at) >= agentsAsk) {
			at = now
			s.cfg.Ends.Ask(unheard)
		}
		return len(unheard) == 0
	}
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
	var ids, informed []fault.NodeID
	applied, err := s.changeTopology(ctx, by, req.GetDryRun(), func(have *topology.Topology) (*topology.Topology, error) {
		var placed []fault.NodeID
		for i, name := range req.GetNodes() {
			n, ok := have.Find(name)
			if !ok {
				return nil, status.Errorf(codes.NotFound, "nodes[%d]: given %.64q: want a node of the topology, or its coordinates", i, name)
			}
			if ids = append(ids, n.ID); !n.Spare {
				placed = append(placed, n.ID)
			}
			resp.Nodes = append(resp.Nodes, n.Proto())
		}
		to, err := have.Leave(ids, req.GetForget())
		if err != nil {
			return nil, refusedJoin(err)
		}
		resp.Dims = to.Dims.String()
		if req.GetForget() && !req.GetDryRun() {
			informed = slices.DeleteFunc(slices.Clone(placed), func(id fault.NodeID) bool { return !s.cfg.Ends.Placed(id) })
		}
		if len(informed) == 0 {
			return to, nil
		}
		return have.Leave(placed, false) // supervisors send orders only to nodes of the topology
	})
	if err == nil && len(informed) > 0 {
		if !s.awaitAgents(ctx, func() bool { return !slices.ContainsFunc(informed, s.cfg.Ends.Placed) }) {
			s.cfg.Logger.Warn("nodes are removed from the topology, and some have not reported that they have no place any more: stop their agents",
				"nodes", informed)
		}
		applied, err = s.forgetNodes(ctx, by, ids)
	}
	if err != nil {
		return nil, err
	}
	if !req.GetDryRun() {
		resp.Revision = applied.GetTopology().GetRevision()
	}
	return resp, nil
}

const (
	// agentsWithin bounds the wait for the agents of nodes that join or leave: one may be dead.
	agentsWithin = 5 * time.Second
	// agentsLook is the interval between looks at their reports.
	agentsLook = 20 * time.Millisecond
	// agentsAsk is the interval between questions to a node that joins: one may be lost.
	agentsAsk = 500 * time.Millisecond
)

// awaitAgents waits until the agents of nodes have reported. It returns false if one has not in time.
func (s *Server) awaitAgents(ctx context.Context, reported func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, agentsWithin)
	defer cancel()
	look := time.NewTicker(agentsLook)
	defer look.Stop()
	for !reported() {
		select {
		case <-ctx.Done():
			return false
		case <-look.C:
		}
	}
	return true
}

// forgetNodes removes nodes that have left their places from the topology.
func (s *Server) forgetNodes(ctx context.Context, by string, ids []fault.NodeID) (*lofamov1.ApplyTopologyResponse, error) {
	applied, err := s.changeTopology(ctx, by, false, func(have *topology.Topology) (*topology.Topology, error) {
		for _, id := range ids {
			if n, ok := have.Node(id); ok && !n.Spare {
				return nil, fmt.Errorf("node %s has got the place %s meanwhile", id, n.Coord)
			}
		}
		left := slices.DeleteFunc(slices.Clone(ids), func(id fault.NodeID) bool { _, ok := have.Node(id); return !ok })
		if len(left) == 0 {
			return have, nil
		}
		return have.Leave(left, true)
	})
	if err != nil {
		return nil, status.Errorf(codes.Aborted, "the nodes have left their places, but are not removed from the topology: %v: try again", err)
	}
	return applied, nil
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

// Place gives places to as many of the enrolled nodes as possible. Its error has the reasons of the others.
func (s *Server) Place(ctx context.Context, ids []fault.NodeID) error {
	var left []error
	_, err := s.changeTopology(ctx, "supervisor/"+s.cfg.Self, false, func(have *topology.Topology) (*topology.Topology, error) {
		for first := range ids { // the first node of all may be one beside which no other can have a place
			to := have
			left = nil
			for _, id := range slices.Concat(ids[first:], ids[:first]) {
				n, ok := have.Node(id)
				if !ok || !n.Joining {
					continue // it left meanwhile
				}
				if next, err := to.Join([]topology.Node{n}, s.cfg.Ends); err != nil {
					left = append(left, err)
				} else {
					to = next
				}
			}
			if to.Dims.Nodes() != 1 { // a single node would have no neighbour
				return to, nil
			}
		}
		return have, nil
	})
	return errors.Join(append(left, err)...)
}

// Forget removes a node from the topology, unless the function (nil: none) wants it to stay. It returns whether it did.
func (s *Server) Forget(ctx context.Context, id fault.NodeID, unless func(topology.Node) bool) (removed bool, err error) {
	_, err = s.changeTopology(ctx, "supervisor/"+s.cfg.Self, false, func(have *topology.Topology) (*topology.Topology, error) {
		n, ok := have.Node(id)
		if removed = ok && (unless == nil || !unless(n)); !removed {
			return have, nil
		}
		return have.Leave([]fault.NodeID{id}, true)
	})
	return removed && err == nil, err
}

// Dismiss removes nodes that leave from the topology, as many of them as possible, and returns the errors of the others. It first has their
// agents stop the halves, if they still run.
func (s *Server) Dismiss(ctx context.Context, ids []fault.NodeID) map[fault.NodeID]error {
	dismiss := func(ids ...fault.NodeID) error {
		req := &lofamov1.LeaveNodesRequest{Forget: true}
		for _, id := range ids {
			req.Nodes = append(req.Nodes, string(id))
		}
		_, err := s.leaveNodes(ctx, "supervisor/"+s.cfg.Self, req)
		if err == nil {
			s.cfg.Logger.Info("nodes removed from the topology, as they announced", "nodes", ids)
		}
		return err
	}
	if len(ids) == 0 || dismiss(ids...) == nil {
		return nil
	}
	left := make(map[fault.NodeID]error)
	for _, id := range ids { // one alone may be able to leave
		if err := dismiss(id); err != nil {
			left[id] = err
		}
	}
	return left
}
