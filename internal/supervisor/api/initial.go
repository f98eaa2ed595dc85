package api

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
)

// initialAtOnce is the approximate number of events of the initial map in one response.
const initialAtOnce = 1000

// sendInitial sends the map and returns its revision. The leader sends its own map, and others send the leader's or,
// without a leader, their copy. Later changes are read from the store in any case.
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
	for _, g := range snap.Groups {
		ev := view.GroupEvent(g, fault.Unknown, g.Since)
		ev.Revision, ev.Region = snap.Revision, snap.groupRegion(g)
		ev.Group.Region = ev.GetRegion()
		add(ev)
	}
	warnings := snap.warnings()
	for _, rank := range snap.notNormal() {
		for _, ev := range snap.initialEvents(rank, warnings[rank]) {
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

// initialFromLeader forwards the leader's map. ok is false when no leader can be reached, or it failed before
// anything was sent.
func (s *Server) initialFromLeader(ctx context.Context, req *lofamov1.WatchRequest, w *watcher) (rev uint64, ok bool, err error) {
	c := s.leader()
	if isProxied(ctx) || c == nil {
		return 0, false, nil
	}
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(ctx, proxiedKey, "1"))
	defer cancel()
	slow := time.AfterFunc(proxyTime, cancel) // a paused leader would keep the client waiting
	defer slow.Stop()
	in, err := c.Watch(ctx, &lofamov1.WatchRequest{Initial: true, Node: req.GetNode(), LabelSelector: req.GetLabelSelector(),
		FieldSelector: req.GetFieldSelector()})
	if err != nil {
		return 0, false, nil
	}
	for sent := false; ; sent = true {
		resp, err := in.Recv()
		slow.Stop()
		switch {
		case err != nil && !sent:
			return 0, false, nil
		case err != nil:
			return 0, true, status.Errorf(codes.Unavailable, "initial: the leader was lost while it sent the map: start again")
		}
		if err := w.send(resp); err != nil {
			return 0, true, err
		}
		if resp.GetSynced() {
			return resp.GetRevision(), true, nil
		}
	}
}

// initialEvents returns events for one node as if it had changed from UNKNOWN: the node, its SICK and FAILED
// components, its warnings and its maintenance mark. Their times say since when each state holds.
func (s snapshot) initialEvents(rank int, warnings []*lofamov1.Warning) []*lofamov1.Event {
	e := s.At(rank)
	st := &e.Status
	event := func(kind lofamov1.EventKind, component string, since *timestamppb.Timestamp) *lofamov1.Event {
		return &lofamov1.Event{
			Revision: s.Revision, Kind: kind, Node: string(st.ID), Coord: st.Coord.String(), Component: component, Labels: s.labels(rank),
			Region: s.region(rank), Time: since,
		}
	}
	state := func(component string, to fault.State, cause fault.Cause, since time.Time, rule string) *lofamov1.Event {
		ev := event(lofamov1.EventKind_COMPONENT_CHANGED, component, view.Timestamp(since))
		ev.From, ev.To, ev.Cause, ev.Reason = lofamov1.State_UNKNOWN, lofamov1.State(to), lofamov1.Cause(cause), rule
		return ev
	}
	node := state(fault.ComponentNode.String(), st.State, st.Cause, st.Since, st.Rule)
	node.SingleWitness = st.SingleWitness
	out := []*lofamov1.Event{node}
	for _, c := range st.Components {
		if c.State == fault.Sick || c.State == fault.Failed {
			ev := state(c.Component.String(), c.State, c.Cause, c.Since, c.Rule)
			ev.Flapping = c.Flapping
			out = append(out, ev)
		}
	}
	for _, w := range warnings {
		ev := event(lofamov1.EventKind_WARNING_CHANGED, w.GetComponent(), w.GetSince())
		ev.Warning, ev.Reason = w, w.GetReason()
		out = append(out, ev)
	}
	if m := s.maintenance(rank); m != nil {
		ev := event(lofamov1.EventKind_MAINTENANCE_CHANGED, "", m.GetSince())
		ev.Maintenance, ev.Reason, ev.Observer = m, m.GetReason(), m.GetBy()
		out = append(out, ev)
	}
	return out
}
