package api

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// past describes the subject of a history: a node, a component or a group fault.
type past struct {
	concerns func(*lofamov1.Event) bool // its events
	changes  func(*lofamov1.Event) bool // those of its events that change its state, or the presence of its region
	// before returns its state at the time from, derived from its first change, which is nil if there is none; that of its region's
	// presence does not count.
	before func(first *lofamov1.Event, from time.Time) lofamov1.State
	// missing is the error for an unknown subject without events. May be nil.
	missing error
}

// pastOf returns the subject of a history request.
func (s *Server) pastOf(ctx context.Context, req *lofamov1.GetHistoryRequest) (past, error) {
	if req.GetGroup() != "" {
		if req.GetNode() != "" || req.GetComponent() != "" {
			return past{}, invalid("group", "given %q, and a node or component: want one or the other", req.GetGroup())
		}
		return s.pastOfGroup(ctx, req.GetGroup())
	}
	id, err := s.find(req.GetNode())
	if err != nil {
		return past{}, err
	}
	component, err := s.component(req.GetComponent())
	if err != nil {
		return past{}, err
	}
	now, err := s.stateOf(ctx, id, component)
	if err != nil {
		return past{}, err
	}
	region := s.regionOf(id)
	return past{
		concerns: func(ev *lofamov1.Event) bool {
			if ev.GetNode() == string(id) {
				return req.GetComponent() == "" || ev.GetComponent() == component.String()
			}
			if region != "" && ev.GetKind() == lofamov1.EventKind_REGION_CHANGED {
				return ev.GetRegion() == region
			}
			return req.GetComponent() == "" && (slices.Contains(ev.GetGroup().GetMembers(), string(id)) ||
				slices.Contains(ev.GetConcerned(), string(id)))
		},
		changes: func(ev *lofamov1.Event) bool { return isPresence(ev) || changes(ev, component.String()) },
		before: func(first *lofamov1.Event, _ time.Time) lofamov1.State {
			if first != nil {
				return first.GetFrom()
			}
			return now
		},
	}, nil
}

// change is a change of the state of a history's subject, or of the presence of its region.
type change struct {
	at       time.Time
	from, to lofamov1.State
	presence bool
}

func changeOf(ev *lofamov1.Event) change {
	return change{ev.GetTime().AsTime(), ev.GetFrom(), ev.GetTo(), isPresence(ev)}
}

// history collects the events of a subject. It holds at most twice the requested number of events.
type history struct {
	of    past
	limit int
	since *timestamppb.Timestamp // of the requested events; nil: all

	begin   *timestamppb.Timestamp // time of the oldest kept event, of any subject; nil: none
	found   bool                   // the subject has events
	first   *lofamov1.Event        // its first change, except of presence
	changes []change
	newest  []*lofamov1.Event // oldest first
}

func (h *history) add(_ uint64, ev *lofamov1.Event) bool {
	if h.begin == nil {
		h.begin = ev.GetTime()
	}
	if !h.of.concerns(ev) {
		return true
	}
	h.found = true
	if h.of.changes(ev) {
		h.changes = append(h.changes, changeOf(ev))
		if h.first == nil && !isPresence(ev) {
			h.first = ev
		}
	}
	if h.since == nil || !ev.GetTime().AsTime().Before(h.since.AsTime()) {
		if len(h.newest) == 2*h.limit {
			h.newest = slices.Delete(h.newest, 0, h.limit)
		}
		h.newest = append(h.newest, ev)
	}
	return true
}

// forget drops all events: they are no longer kept.
func (h *history) forget() { *h = history{of: h.of, limit: h.limit, since: h.since} }

// GetHistory implements the service.
func (s *Server) GetHistory(ctx context.Context, req *lofamov1.GetHistoryRequest) (*lofamov1.GetHistoryResponse, error) {
	limit := int(req.GetLimit())
	switch {
	case limit == 0:
		limit = defaultHistory
	case limit > maxEvents:
		return nil, invalid("limit", "given %d: want at most %d", limit, maxEvents)
	}
	cluster, revision := s.catchUp(ctx)
	of, err := s.pastOf(ctx, req)
	if err != nil {
		return nil, err
	}
	b, end, err := s.beginScan(ctx, revision)
	if err != nil {
		return nil, err
	}
	defer end()
	h := history{of: of, limit: limit, since: req.GetSince()}
	if err := s.scan(ctx, b, b.Oldest, false, h.forget, h.add); err != nil {
		return nil, err
	}
	if !h.found && of.missing != nil {
		return nil, of.missing
	}
	from := h.begin
	if since := req.GetSince(); since != nil && (from == nil || since.AsTime().After(from.AsTime())) {
		from = since
	}
	resp := &lofamov1.GetHistoryResponse{From: from, Revision: b.Revision, Cluster: cluster}
	if from != nil {
		resp.TimeIn = timeIn(h.changes, of.before(h.first, from.AsTime()), from.AsTime(), time.Now())
	}
	resp.Events = h.newest[max(0, len(h.newest)-limit):]
	slices.Reverse(resp.Events)
	return resp, nil
}

// component parses the name of a component; the empty name means the node itself.
func (s *Server) component(name string) (fault.Component, error) {
	if name == "" {
		return fault.ComponentNode, nil
	}
	c, err := fault.ParseComponent(name)
	if err != nil {
		return 0, invalid("component", "%v", err)
	}
	return c, nil
}

// stateOf returns the state of a component in the copy, for components that have never changed. At a parent it is the
// region's last report.
func (s *Server) stateOf(ctx context.Context, id fault.NodeID, c fault.Component) (lofamov1.State, error) {
	if s.cfg.Kept != nil {
		n, err := s.cfg.Kept(ctx, id)
		if err != nil {
			return 0, status.Error(codes.Unavailable, err.Error())
		}
		return stateIn(n, c), nil
	}
	m, err := s.stale(ctx)
	if err != nil {
		return 0, status.Error(codes.Unavailable, err.Error())
	}
	e, ok := m.Find(id)
	if !ok { // a spare
		return lofamov1.State_UNKNOWN, nil
	}
	if c == fault.ComponentNode {
		return lofamov1.State(e.Status.State), nil
	}
	for _, cs := range e.Status.Components {
		if cs.Component == c {
			return lofamov1.State(cs.State), nil
		}
	}
	return lofamov1.State_UNKNOWN, nil
}

// stateIn returns the state of a component in a node's document, which may be nil.
func stateIn(n *lofamov1.Node, c fault.Component) lofamov1.State {
	if c == fault.ComponentNode {
		return max(n.GetState(), lofamov1.State_UNKNOWN)
	}
	for _, have := range n.GetComponents() {
		if have.GetName() == c.String() {
			return max(have.GetState(), lofamov1.State_UNKNOWN)
		}
	}
	return lofamov1.State_UNKNOWN
}

// timeIn sums up the time in each state between two times, from the state before and the changes, oldest first. While
// its region was cut off the subject was UNKNOWN, whatever arrived later about that time. Supervisors' clocks that
// differ or step cause no negative times.
func timeIn(changes []change, state lofamov1.State, from, to time.Time) []*lofamov1.TimeIn {
	var spent [5]time.Duration
	var times [5]uint32
	first := slices.IndexFunc(changes, func(c change) bool { return c.presence })
	cut := first >= 0 && changes[first].from == lofamov1.State_UNKNOWN
	shown := func() lofamov1.State {
		if cut {
			return lofamov1.State_UNKNOWN
		}
		return state
	}
	at := from
	pass := func(until time.Time) {
		if until.After(at) {
			spent[shown()] += until.Sub(at)
			at = until
		}
	}
	for _, c := range changes {
		was := shown()
		pass(c.at)
		if c.presence {
			cut = c.to == lofamov1.State_UNKNOWN
		} else {
			state = c.to
		}
		if is := shown(); is != was && !c.at.Before(from) {
			times[is]++
		}
	}
	pass(to)
	var out []*lofamov1.TimeIn
	for _, st := range []lofamov1.State{lofamov1.State_UNKNOWN, lofamov1.State_NORMAL, lofamov1.State_SICK, lofamov1.State_FAILED} {
		out = append(out, &lofamov1.TimeIn{State: st, Time: durationpb.New(spent[st]), Times: times[st]})
	}
	return out
}

// isPresence reports whether an event says that a region was cut off or is back.
func isPresence(ev *lofamov1.Event) bool {
	return ev.GetKind() == lofamov1.EventKind_REGION_CHANGED && ev.GetFrom() != ev.GetTo()
}

// changes reports whether an event changes the state of a component.
func changes(ev *lofamov1.Event, component string) bool {
	return kindOf(ev) == lofamov1.EventKind_COMPONENT_CHANGED && ev.GetComponent() == component && known(ev.GetFrom()) && known(ev.GetTo())
}

// known reports whether this version knows a state. ABSENT counts as unknown, because the map never has it.
func known(s lofamov1.State) bool { return s >= 0 && s <= lofamov1.State_FAILED }
