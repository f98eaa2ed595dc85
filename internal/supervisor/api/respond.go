package api

import (
	"cmp"
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Changes of link masks for responses: as people make them, but each response changes only its own masks.

// ErrSubmitted marks an error after which the change may have been committed. Without it nothing was committed.
var ErrSubmitted = errors.New("it is not known whether it was committed")

// MaskFor masks a link of a node for an owner, unless it is already masked. mine reports whether the mask is the
// owner's; by names its owner. MaskFor refuses a mask that would cut the torus. It works only for the leader with
// that token, and commits under its fence. With recheck MaskFor first looks for an earlier mask by the owner. If it was removed since,
// the link stays unmasked: mine is false, and by is empty.
func (s *Server) MaskFor(ctx context.Context, token uint64, id fault.NodeID, dir grid.Direction, owner, reason string, recheck bool) (
	mine bool, by string, err error) {
	var had bool
	var unread error
	if recheck { // before the change, which all others wait for: only this step makes such a mask
		had, unread = s.hadMask(ctx, owner)
	}
	err = s.changeFor(ctx, token, func(topo store.Topology) ([]store.Write, error) {
		l, err := s.maskLink(topo.Topology, &lofamov1.LinkName{Node: string(id), Direction: dir.String()})
		if err != nil {
			return nil, err
		}
		if old := s.cfg.Masks.Of(l); old != nil {
			mine, by = old.GetBy() == owner, old.GetBy()
			return nil, nil
		}
		if had || unread != nil {
			mine, by = false, ""
			return nil, unread
		}
		torus, err := s.torus(ctx) // here, because a change before this one may have masked other links
		if err != nil {
			return nil, err
		}
		if a, b, cuts := torus.Cuts(l); cuts {
			return nil, status.Errorf(codes.FailedPrecondition, "without link %s of %s no way through the torus leads from %s to %s", dir, id, a, b)
		}
		w, err := s.maskWrite(topo.Topology, []chanmask.Link{l}, true, reason, owner)
		if err != nil {
			return nil, err
		}
		mine, by = true, owner
		return []store.Write{w}, nil
	})
	if err != nil {
		return false, "", err
	}
	return mine, by, nil
}

// maskEvents is the number of newest events in which hadMask looks. An attempt is repeated soon after its answer was lost.
const maskEvents = 20 * eventPage

// hadMask reports whether one of the newest events is a mask by the owner.
func (s *Server) hadMask(ctx context.Context, owner string) (bool, error) {
	revision, err := s.cfg.Copy.Revision(ctx)
	if err != nil {
		return false, status.Error(codes.Unavailable, err.Error())
	}
	b, err := boundsFrom(ctx, s.cfg.Copy, revision)
	if err != nil {
		return false, status.Error(codes.Unavailable, err.Error())
	}
	b.Oldest = max(b.Oldest, b.Next-min(b.Next, maskEvents))
	found, err := s.newestEvents(ctx, b, 1, func(ev *lofamov1.Event) bool {
		return ev.GetKind() == lofamov1.EventKind_MASK_CHANGED && !ev.GetEnded() && ev.GetMask().GetBy() == owner
	})
	return len(found) > 0, err
}

// MaskClaim is the claim of a response's step on the mask of a link.
type MaskClaim struct {
	Node          fault.NodeID // an end of the link
	Dir           grid.Direction
	Owner, Reason string
}

// UnmaskFor restores a link of a node if its mask is the owner's, and reports whether it was. If another owner claims the mask of the
// link, the mask passes to that heir instead. claims returns the committed claims. A link that no longer exists has no mask.
func (s *Server) UnmaskFor(ctx context.Context, token uint64, id fault.NodeID, dir grid.Direction, owner string,
	claims func(context.Context) ([]MaskClaim, error)) (was bool, heir string, err error) {
	err = s.changeFor(ctx, token, func(topo store.Topology) ([]store.Write, error) {
		for _, m := range s.masksOf(owner) {
			l, ok := view.LinkOf(m)
			if !ok || !topo.Dims.Contains(l.Node) {
				continue
			}
			all, err := claims(ctx) // here, because the undo of a claimant waits for this change, or has been committed before it
			if err != nil {
				return nil, err
			}
			next, claimed := s.heirOf(topo.Topology, l, owner, all)
			w, err := s.maskWrite(topo.Topology, []chanmask.Link{l}, claimed, next.Reason, cmp.Or(next.Owner, owner))
			if err != nil {
				return nil, err
			}
			was, heir = true, next.Owner
			s.cfg.Logger.Info("a response gives up its mask of a link", "node", id, "link", dir, "by", owner, "heir", heir)
			return []store.Write{w}, nil
		}
		return nil, nil
	})
	if err != nil {
		return false, "", err
	}
	return was, heir, nil
}

// heirOf returns the first claim of another owner on a link.
func (s *Server) heirOf(topo *topology.Topology, l chanmask.Link, owner string, claims []MaskClaim) (heir MaskClaim, ok bool) {
	for _, c := range claims {
		at, err := s.maskLink(topo, &lofamov1.LinkName{Node: string(c.Node), Direction: c.Dir.String()})
		if err == nil && at == l && c.Owner != owner {
			return c, true
		}
	}
	return MaskClaim{}, false
}

// masksOf returns the masks of an owner. A step of a response has one, wherever the node of the link is now.
func (s *Server) masksOf(owner string) []*lofamov1.LinkMask {
	all, _, _ := s.cfg.Masks.All()
	var out []*lofamov1.LinkMask
	for _, m := range all {
		if m.GetBy() == owner {
			out = append(out, m)
		}
	}
	return out
}

// changeFor commits a change under a leader's token, and marks an error after which it may have been committed.
func (s *Server) changeFor(ctx context.Context, token uint64, change func(store.Topology) ([]store.Write, error)) error {
	submitted := false
	_, err := s.cfg.Operators.Change(ctx, func(topo store.Topology) ([]store.Write, error) {
		w, err := change(topo)
		for i := range w {
			w[i].Term = token
		}
		submitted = err == nil && len(w) > 0
		return w, err
	})
	if err != nil && submitted && !errors.Is(err, engine.ErrOtherTerm) {
		return errors.Join(err, ErrSubmitted)
	}
	return err
}
