package api

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
)

// explainGroup is Explain for a group fault.
func (s *Server) explainGroup(ctx context.Context, req *lofamov1.ExplainRequest) (*lofamov1.ExplainResponse, error) {
	if req.GetNode() != "" || req.GetComponent() != "" {
		return nil, invalid("group", "given %q, and a node or component: want one or the other", req.GetGroup())
	}
	return answer(ctx, s, func(snap snapshot) (*lofamov1.ExplainResponse, error) {
		g, ok := snap.Group(req.GetGroup())
		x := awareness.GroupExplanation{GroupStatus: g, Summary: byCopy, Until: []string{withEvidence}}
		if ok && !snap.Stale {
			var err error
			x, err = s.cfg.Engine.ExplainGroup(ctx, g.ID)
			switch ok = !errors.Is(err, engine.ErrUnknown); {
			case !ok: // it is ending
			case errors.Is(err, engine.ErrNotLeading):
				return nil, status.Error(codes.Unavailable, err.Error())
			case err != nil:
				return nil, status.FromContextError(err).Err()
			}
		}
		if !ok {
			return nil, noGroup(req.GetGroup(), snap.Groups)
		}
		doc := view.Group(x.GroupStatus)
		doc.Region = snap.groupRegion(x.GroupStatus)
		resp := &lofamov1.ExplainResponse{
			State: doc.GetState(), Cause: doc.GetCause(), Since: doc.GetSince(), Rule: x.Rule, Summary: x.Summary, Because: x.Because,
			Until:  x.Until,
			Groups: []*lofamov1.Group{doc}, Revision: snap.Revision, Cluster: s.info(ctx, snap),
		}
		if !snap.Stale && len(x.Members) > 0 {
			own := strings.TrimPrefix(g.ID, doc.GetRegion()+"/") // its ID within its region
			fillExplanation(resp, below(ctx, s, x.Members[0],
				func(ctx context.Context, c lofamov1.FaultSupervisorClient) (*lofamov1.ExplainResponse, error) {
					return c.Explain(ctx, &lofamov1.ExplainRequest{Group: own})
				}))
		}
		return resp, nil
	}, func(ctx context.Context, c lofamov1.FaultSupervisorClient) (*lofamov1.ExplainResponse, error) {
		return c.Explain(ctx, req)
	})
}

// noGroup returns the refusal for a group fault that does not stand.
func noGroup(id string, groups []awareness.GroupStatus) error {
	if len(groups) == 0 {
		return status.Errorf(codes.NotFound, "group %q: no group fault stands", id)
	}
	const most = 8
	names := make([]string, 0, most)
	for _, g := range groups[:min(len(groups), most)] {
		names = append(names, g.ID)
	}
	return status.Errorf(codes.NotFound, "group %q: no such group fault stands; of the %d that do: %s", id, len(groups),
		strings.Join(names, ", "))
}

// pastOfGroup returns the past of a group fault, which is NORMAL while it does not stand.
func (s *Server) pastOfGroup(ctx context.Context, id string) (past, error) {
	m, err := s.stale(ctx)
	if err != nil {
		return past{}, status.Error(codes.Unavailable, err.Error())
	}
	concerns := func(ev *lofamov1.Event) bool {
		return kindOf(ev) == lofamov1.EventKind_GROUP_CHANGED && ev.GetGroup().GetId() == id
	}
	out := past{concerns: concerns, changes: func(ev *lofamov1.Event) bool { return concerns(ev) && known(ev.GetFrom()) && known(ev.GetTo()) }}
	now := lofamov1.State_NORMAL
	if g, ok := m.Group(id); ok {
		now = lofamov1.State(g.State)
	} else {
		out.missing = noGroup(id, m.Groups)
	}
	out.before = func(first *lofamov1.Event, from time.Time) lofamov1.State {
		switch {
		case first == nil:
			return now
		case first.GetGroup().GetSince().AsTime().Before(from) && first.GetFrom() == first.GetTo():
			return first.GetFrom() // it stood already; only its members changed
		case first.GetTo() == lofamov1.State_NORMAL:
			return first.GetFrom()
		}
		return lofamov1.State_NORMAL // from UNKNOWN: it did not stand
	}
	return out, nil
}
