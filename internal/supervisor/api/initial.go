package api

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
)

// initialAtOnce is about how many events of the initial map go into one response.
const initialAtOnce = 1000

// sendInitial sends the map and returns its revision. The leader sends its own, others the leader's, and where there is
// none the copy: changes that follow are read from the store in any case.
func (s *Server) sendInitial(ctx context.Context, req *lofamov1.WatchRequest, w *watcher) (uint64, error) {
	m, err := s.cfg.Engine.Map(ctx)
	if errors.Is(err, engine.ErrNotLeading) {
		if rev, ok, err := s.initialFromLeader(ctx, req, w); ok {
			return rev, err
		}
		m, err = s.stale(ctx)
		if err != nil {
			return 0, status.Error(codes.Unavailable, err.Error())
		}
	} else if err != nil {
		return 0, status.FromContextError(err).Err()
	}
	snap := s.snap(m)
	var events []*lofamov1.Event
	send := func(resp *lofamov1.WatchResponse) error {
		resp.Events, events = events, nil
		return w.send(resp)
	}
	add := func(ev *lofamov1.Event) {
		if w.keep == nil || w.keep(ev) {
			events = append(events, ev)
		}
	}
	for _, rank := range snap.notNormal() {
		for _, ev := range snap.initialEvents(rank) {
			add(ev)
		}
		if len(events) >= initialAtOnce {
			if err := send(&lofamov1.WatchResponse{}); err != nil {
				return 0, err
			}
		}
	}
	return snap.Revision, send(&lofamov1.WatchResponse{Revision: snap.Revision, Synced: true})
}

// initialFromLeader passes the leader's map on. ok is false when no leader can be asked, or it fell away before
// anything was sent.
func (s *Server) initialFromLeader(ctx context.Context, req *lofamov1.WatchRequest, w *watcher) (rev uint64, ok bool, err error) {
	c := s.leader()
	if isProxied(ctx) || c == nil {
		return 0, false, nil
	}
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(ctx, proxiedKey, "1"))
	defer cancel()
	in, err := c.Watch(ctx, &lofamov1.WatchRequest{Initial: true, Node: req.GetNode(), LabelSelector: req.GetLabelSelector(), FieldSelector: req.GetFieldSelector()})
	if err != nil {
		return 0, false, nil
	}
	for sent := false; ; sent = true {
		resp, err := in.Recv()
		switch {
		case err != nil && !sent:
			return 0, false, nil
		case err != nil:
			return 0, true, status.Errorf(codes.Unavailable, "initial: the leader fell away while it sent the map: begin again")
		}
		if err := w.send(resp); err != nil {
			return 0, true, err
		}
		if resp.GetSynced() {
			return resp.GetRevision(), true, nil
		}
	}
}

// initialEvents tell of one node that is not NORMAL as if it had changed from UNKNOWN: the node, and what of it is
// SICK or FAILED.
func (s snapshot) initialEvents(rank int) []*lofamov1.Event {
	e := s.At(rank)
	st := &e.Status
	event := func(component string, to lofamov1.State, cause lofamov1.Cause) *lofamov1.Event {
		return &lofamov1.Event{
			Revision: s.Revision, Kind: lofamov1.EventKind_COMPONENT_CHANGED, Node: string(st.ID), Coord: st.Coord.String(), Component: component,
			From: lofamov1.State_UNKNOWN, To: to, Cause: cause, Labels: s.labels(rank), Region: s.region(rank),
		}
	}
	node := event("node", lofamov1.State(st.State), lofamov1.Cause(st.Cause))
	node.SingleWitness = st.SingleWitness
	out := []*lofamov1.Event{node}
	for _, c := range st.Components {
		if to := lofamov1.State(c.State); to == lofamov1.State_SICK || to == lofamov1.State_FAILED {
			ev := event(c.Component.String(), to, lofamov1.Cause(c.Cause))
			ev.Flapping = c.Flapping
			out = append(out, ev)
		}
	}
	return out
}
