package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// groups renders the group faults of a node, or all if member is empty.
func (s snapshot) groups(member fault.NodeID) []*lofamov1.Group {
	var out []*lofamov1.Group
	for _, g := range s.Groups {
		if member != "" && !slices.Contains(g.Members, member) {
			continue
		}
		doc := view.Group(g)
		doc.Region = s.groupRegion(g)
		out = append(out, doc)
	}
	return out
}

// groupRegion returns the region whose supervisors found a group fault: a parent of regions finds none of its own.
func (s snapshot) groupRegion(g awareness.GroupStatus) string {
	if s.of != nil && len(g.Members) > 0 {
		return s.of(g.Members[0])
	}
	return s.topo.Region
}

// ListGroups implements the service.
func (s *Server) ListGroups(ctx context.Context, req *lofamov1.ListGroupsRequest) (*lofamov1.ListGroupsResponse, error) {
	id, err := s.findOptional(req.GetNode())
	if err != nil {
		return nil, err
	}
	return answer(ctx, s, func(snap snapshot) (*lofamov1.ListGroupsResponse, error) {
		return &lofamov1.ListGroupsResponse{Groups: snap.groups(id), Revision: snap.Revision, Cluster: s.info(ctx, snap)}, nil
	}, func(ctx context.Context, c lofamov1.FaultSupervisorClient) (*lofamov1.ListGroupsResponse, error) {
		return c.ListGroups(ctx, req)
	})
}

// Explain implements the service. Only the leader knows the evidence for a state; other replicas return the committed
// state alone.
func (s *Server) Explain(ctx context.Context, req *lofamov1.ExplainRequest) (*lofamov1.ExplainResponse, error) {
	if req.GetGroup() != "" {
		return s.explainGroup(ctx, req)
	}
	id, err := s.find(req.GetNode())
	if err != nil {
		return nil, err
	}
	c, err := s.component(req.GetComponent())
	if err != nil {
		return nil, err
	}
	return answer(ctx, s, func(snap snapshot) (*lofamov1.ExplainResponse, error) {
		pos, ok := snap.position(id)
		if !ok {
			return nil, status.Errorf(codes.NotFound, "node %q: not in the map", id)
		}
		x, ok := snap.committed(pos, c)
		if ok && !snap.Stale && pos < snap.Len() {
			x, err = s.cfg.Engine.Explain(ctx, id, c)
			switch ok = !errors.Is(err, engine.ErrUnknown); {
			case !ok:
			case errors.Is(err, engine.ErrNotLeading):
				return nil, status.Error(codes.Unavailable, err.Error())
			case err != nil:
				return nil, status.FromContextError(err).Err()
			}
		}
		if !ok {
			return nil, status.Errorf(codes.NotFound, "component: node %q has no %s", id, c)
		}
		resp := explanation(x, time.Now())
		if pos < snap.Len() {
			resp.Coord = snap.Coord(pos).String()
			entries, err := s.entries(ctx, snap, []int{pos}, true)
			if err != nil {
				return nil, err
			}
			resp.Because = append(resp.Because, view.HealthNotes(entries[0], c, time.Now())...)
			resp.Because = append(resp.Because, view.PathNotes(entries[0], c, time.Now())...)
			resp.Because = append(resp.Because, s.diagnosed(ctx, id, c)...)
			if s.cfg.Outside != nil && !snap.Stale && c == fault.ComponentNode {
				resp.Because = append(resp.Because, s.cfg.Outside(id, time.Now())...)
			}
			if n, _ := snap.Topology().Node(id); c == fault.ComponentNode && !fault.Managed(n.Labels) {
				resp.Because = append(resp.Because, "responses do not act on this node: "+response.Unmanaged(id))
			}
			if s.cfg.Sources != nil && x.State != fault.Normal {
				resp.Because = append(resp.Because, s.cfg.Sources(c, x.State)...)
			}
			s.explainMapped(snap, resp, id, c, time.Now())
		}
		resp.Maintenance = snap.marks(id)
		resp.Groups, resp.Revision, resp.Cluster = snap.groups(id), snap.Revision, s.info(ctx, snap)
		if !snap.Stale {
			fillExplanation(resp, below(ctx, s, id, func(ctx context.Context, c lofamov1.FaultSupervisorClient) (*lofamov1.ExplainResponse, error) {
				return c.Explain(ctx, &lofamov1.ExplainRequest{Node: string(id), Component: req.GetComponent()})
			}))
		}
		return resp, nil
	}, func(ctx context.Context, c lofamov1.FaultSupervisorClient) (*lofamov1.ExplainResponse, error) {
		return c.Explain(ctx, req)
	})
}

// diagnosed returns the findings of the last diagnosis about a component. They are evidence for the caller only: the
// awareness machine decides on the verdicts, and notices lasting faults by itself.
func (s *Server) diagnosed(ctx context.Context, id fault.NodeID, c fault.Component) []string {
	if s.cfg.Diagnosed == nil {
		return nil
	}
	r, err := s.cfg.Diagnosed(ctx)
	if err != nil {
		s.cfg.Logger.Debug("no diagnosis for an explanation", "err", err)
	}
	return view.DiagnosedAs(r, id, c)
}

// committed returns the committed state of a component, without its present evidence.
func (s snapshot) committed(pos int, c fault.Component) (awareness.Explanation, bool) {
	if pos >= s.Len() {
		return awareness.Explanation{
			Node: s.id(pos), Component: c, State: fault.Unknown, Cause: fault.CauseNone,
			Summary: "a spare: it has no place in the torus, and nothing is known of it",
		}, true
	}
	x, ok := s.Explanation(s.ID(pos), c)
	x.Summary, x.Until = byCopy, []string{withEvidence}
	return x, ok
}

// Texts for answers without a reachable leader, and for changes to those answers.
const (
	byCopy       = "as committed: this supervisor reaches no leader, and does not know the present evidence"
	withEvidence = "a leader that has evidence"
)

func explanation(x awareness.Explanation, now time.Time) *lofamov1.ExplainResponse {
	out := &lofamov1.ExplainResponse{
		Node: string(x.Node), Component: x.Component.String(), State: view.ShownState(x.State, x.Evidence), Cause: lofamov1.Cause(x.Cause),
		Since: view.Timestamp(x.Since),
		Rule:  x.Rule, Summary: x.Summary, Because: x.Because, Until: x.Until, Evidence: view.Evidence(x.Evidence, now),
	}
	if out.GetState() == lofamov1.State_ABSENT {
		out.Summary = fmt.Sprintf("%s of %s is ABSENT: the node says that it does not have this part", x.Component, x.Node)
		out.Until = []string{"the node reports a state of this part"}
	}
	return out
}
