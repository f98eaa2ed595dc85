package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/node"
	"github.com/lofamo/lofamo/internal/supervisor/api"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/orders"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// How responses make nodes act: orders to their agents, masks of links, and notices to jobs.

// nodeExecutors returns the executors for actions that run on nodes, by kind.
func (s *Supervisor) nodeExecutors(cfg config.NodeExecutor) (map[response.Kind]executor.Executor, error) {
	nodes, err := node.New(cfg, s.respond.actor, responseMasks{s}) // which validates the configuration
	if err != nil {
		return nil, err
	}
	out := map[response.Kind]executor.Executor{response.Eureka: node.NewEureka(s.respond.actor, s.raisers)}
	for _, k := range node.Kinds() {
		out[k] = nodes
	}
	return out, nil
}

// agentOrders implements node.Agents.
type agentOrders struct{ s *Supervisor }

func (a agentOrders) Order(id fault.NodeID, o *lofamov1.ActOrder, try int) {
	a.s.ingest.sender.Order(id, servicenet.OrderAct, func(replyTo string) *lofamov1.Message {
		o := proto.CloneOf(o)
		o.ReplyTo = replyTo
		return &lofamov1.Message{Body: &lofamov1.Message_ActOrder{ActOrder: o}}
	}, orders.Relays(a.s.names, id, try))
}

// responseMasks implements node.Masks.
type responseMasks struct{ s *Supervisor }

// leads checks early that the token belongs to this replica's present term. The change itself carries the token too:
// a replica that is paused here and resumes after its re-election commits nothing under the fence of the new term.
func (m responseMasks) leads(token uint64) error {
	if now := m.s.engine.Term(); now != token {
		return fmt.Errorf("token %d: this supervisor leads under %d: %w", token, now, node.ErrStale)
	}
	return nil
}

func (m responseMasks) Mask(ctx context.Context, token uint64, at fault.NodeID, dir grid.Direction, owner, reason string,
	recheck bool) (mine bool, by string, err error) {
	if err := m.leads(token); err != nil {
		return false, "", err
	}
	mine, by, err = m.s.api.MaskFor(ctx, token, at, dir, owner, reason, recheck)
	return mine, by, sure(err)
}

func (m responseMasks) Unmask(ctx context.Context, token uint64, at fault.NodeID, dir grid.Direction, owner string) (was bool, heir string,
	err error) {
	if err := m.leads(token); err != nil {
		return false, "", err
	}
	was, heir, err = m.s.api.UnmaskFor(ctx, token, at, dir, owner, m.claims)
	return was, heir, sure(err)
}

// claims returns the claims of open responses on masks, the oldest first: of steps that have masked a link, or may have, and that are
// not being undone. A step that found the link masked by another response counts too. A record that this version cannot read has
// no claim: it must not hold up the undo of others.
func (m responseMasks) claims(ctx context.Context) ([]api.MaskClaim, error) {
	if m.s.respond.responder == nil {
		return nil, nil
	}
	list, unread, err := m.s.respond.responder.Committed(ctx)
	if err != nil {
		return nil, fmt.Errorf("load the responses that want a link masked: %w", err)
	}
	if len(unread) > 0 {
		m.s.logger.Warn("responses that want a link masked may be missing", "err", errors.Join(unread...))
	}
	slices.SortStableFunc(list, func(a, b *response.Response) int { return a.Proposed.Compare(b.Proposed) })
	var out []api.MaskClaim
	for _, r := range list {
		dir, ok := r.Target.Component.LinkDirection()
		if !ok || !r.Closed.IsZero() {
			continue
		}
		for i, s := range r.Steps {
			if s.Kind != response.NodeMaskChannel || !s.Changed || s.State == response.Undoing {
				continue
			}
			out = append(out, api.MaskClaim{Node: r.Target.Node, Dir: dir, Owner: node.Owner(response.Attempt{Response: r.ID, Step: i}),
				Reason: node.MaskReason(r.Policy, executor.Fault{State: r.FaultState})})
		}
	}
	return out, nil
}

// sure marks an error after which certainly nothing was changed.
func sure(err error) error {
	switch {
	case err == nil, errors.Is(err, api.ErrSubmitted):
		return err
	case errors.Is(err, engine.ErrNotLeading):
		return fmt.Errorf("%w: %w", node.ErrStale, err)
	}
	return fmt.Errorf("%w: %w", node.ErrRefused, err)
}

// raisers returns nodes that may notify all others: those that the map calls NORMAL, beginning with the neighbours of
// the affected node.
func (s *Supervisor) raisers(about response.Target, members []fault.NodeID) []fault.NodeID {
	m, known := s.engine.local.Map()
	if !known {
		return nil
	}
	var out []fault.NodeID
	add := func(rank int) {
		id := m.ID(rank)
		if m.State(rank) == fault.Normal && id != about.Node && !slices.Contains(members, id) && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	near := slices.Clone(members)
	if about.Node != "" {
		near = append(near, about.Node)
	}
	for _, id := range near {
		if rank, ok := m.Rank(id); ok {
			for _, c := range m.Dims().Neighbours(m.Coord(rank)) {
				if r, ok := m.Rank(m.IDAt(c)); ok {
					add(r)
				}
			}
		}
		if len(out) >= enoughRaisers {
			return out
		}
	}
	for rank := range m.Len() {
		if len(out) >= enoughRaisers {
			break
		}
		add(rank)
	}
	return out
}

// enoughRaisers is the number of raisers to try.
const enoughRaisers = 8
