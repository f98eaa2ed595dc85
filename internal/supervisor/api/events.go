package api

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/fanout"
	"github.com/lofamo/lofamo/internal/supervisor/selector"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/fault"
)

// The limits of ListEvents and GetHistory.
const (
	defaultEvents  = 1_000
	defaultHistory = 100
	maxEvents      = 10_000
)

// eventPage is how many events are read from the store at once.
const eventPage = 512

var eventFields = []selector.Field{
	{Name: "node"}, {Name: "component"}, {Name: "kind", Check: selector.OneOf(enumNames(lofamov1.EventKind_name)...)},
	{Name: "from", Check: stateNames}, {Name: "to", Check: stateNames}, {Name: "cause",
		Check: selector.OneOf(enumNames(lofamov1.Cause_name)...)},
	{Name: "path", Check: selector.OneOf(enumNames(lofamov1.Path_name)...)}, {Name: "region"}, {Name: "group", Open: true},
}

// eventFilter chooses among events. A group fault passes when it or one of its members does, what is told of a region
// when one of its nodes does, a diagnosis or procedure when one of the nodes does that it concerns.
type eventFilter struct {
	node   string // id; empty for all
	labels selector.Labels
	fields selector.Fields
	// labelsOf are the labels that a node has now, for what does not say which it had then.
	labelsOf func(fault.NodeID) map[string]string
	// membersOf are the nodes of a region.
	membersOf func(region string) []fault.NodeID
}

func (s *Server) newEventFilter(node, labels, fields string) (f eventFilter, err error) {
	id, err := s.findOptional(node)
	if err != nil {
		return f, err
	}
	f.node, f.labelsOf, f.membersOf = string(id), s.cfg.Names.Labels, s.membersOf
	if f.labels, err = selector.ParseLabels(labels); err != nil {
		return f, invalid("label_selector", "%v", err)
	}
	if f.fields, err = selector.ParseFields(fields, eventFields); err != nil {
		return f, invalid("field_selector", "%v", err)
	}
	return f, nil
}

// keep returns what chooses; nil: all are chosen.
func (f *eventFilter) keep() func(*lofamov1.Event) bool {
	if f.node == "" && f.labels.Empty() && f.fields.Empty() {
		return nil
	}
	return f.passes
}

func (f *eventFilter) passes(ev *lofamov1.Event) bool {
	labels := ev.GetLabels()
	if labels == nil && ev.GetKind() == lofamov1.EventKind_EVENT_KIND_UNSPECIFIED { // of old, without labels
		labels = f.labelsOf(fault.NodeID(ev.GetNode()))
	}
	if f.passesAs(ev, ev.GetNode(), labels) {
		return true
	}
	if ev.GetKind() == lofamov1.EventKind_REGION_CHANGED {
		return slices.ContainsFunc(f.membersOf(ev.GetRegion()), func(id fault.NodeID) bool { return f.passesAs(ev, string(id), f.labelsOf(id)) })
	}
	as := func(id string) bool { return f.passesAs(ev, id, f.labelsOf(fault.NodeID(id))) }
	return slices.ContainsFunc(ev.GetGroup().GetMembers(), as) || slices.ContainsFunc(ev.GetConcerned(), as)
}

// passesAs says whether an event passes as one of a node with these labels.
func (f *eventFilter) passesAs(ev *lofamov1.Event, node string, labels map[string]string) bool {
	if f.node != "" && f.node != node {
		return false
	}
	if !f.labels.Matches(labels) {
		return false
	}
	return f.fields.Empty() || f.fields.Matches(func(field, value string) bool { return eventHas(ev, node, field, value) })
}

// eventHas says whether a field of an event has a value, where the event counts as one of a node.
func eventHas(ev *lofamov1.Event, node, field, value string) bool {
	switch field {
	case "node":
		return node == value
	case "component":
		return ev.GetComponent() == value
	case "kind":
		return kindOf(ev).String() == value
	case "from":
		return ev.GetFrom().String() == value
	case "to":
		return ev.GetTo().String() == value
	case "cause":
		return ev.GetCause().String() == value
	case "path":
		return ev.GetPath().String() == value
	case "region":
		return ev.GetRegion() == value
	default:
		return ev.GetGroup().GetId() == value
	}
}

// kindOf is the kind of an event; those of old have none.
func kindOf(ev *lofamov1.Event) lofamov1.EventKind {
	if k := ev.GetKind(); k != lofamov1.EventKind_EVENT_KIND_UNSPECIFIED {
		return k
	}
	return lofamov1.EventKind_COMPONENT_CHANGED
}

// catchUp makes the copy as new as the cluster, so that what was acknowledged is there. Without a quorum the
// copy as it is must do, and what is returned says so.
func (s *Server) catchUp(ctx context.Context) *lofamov1.ClusterInfo {
	asked, cancel := context.WithTimeout(ctx, proxyTime)
	defer cancel()
	info := proto.CloneOf(s.cfg.Info)
	if _, err := s.cfg.Copy.Revision(asked); err != nil {
		markStale(info, s.quorumAge())
	}
	info.Dims, info.Leader = s.cfg.Names.Dims().String(), s.cfg.Directory.Leader()
	if s.cfg.Regions != nil {
		info.Regions = s.cfg.Regions(ctx)
	}
	return info
}

// ListEvents implements the service. History does not change, so every replica tells its own.
func (s *Server) ListEvents(ctx context.Context, req *lofamov1.ListEventsRequest) (*lofamov1.ListEventsResponse, error) {
	f, err := s.newEventFilter(req.GetNode(), req.GetLabelSelector(), req.GetFieldSelector())
	if err != nil {
		return nil, err
	}
	bare := proto.CloneOf(req)
	bare.Continue = ""
	hash, page, err := paging(bare, req.GetLimit(), req.GetContinue(), maxEvents)
	if err != nil {
		return nil, err
	}
	limit := int(req.GetLimit())
	if limit == 0 {
		limit = defaultEvents
	}
	cluster := s.catchUp(ctx)
	b, err := s.cfg.Copy.Bounds(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	resp := &lofamov1.ListEventsResponse{Revision: b.Revision, Cluster: cluster}
	switch {
	case page == nil && req.GetAfterRevision() == 0:
		resp.Events, err = s.newestEvents(ctx, b, limit, f.keep())
	default:
		var next uint64
		resp.Events, next, err = s.eventsAfter(ctx, b, req.GetAfterRevision(), page, limit, f.keep())
		if next > 0 {
			resp.Continue = token{request: hash, position: next}.String()
		}
	}
	if err != nil {
		return nil, err
	}
	if resp.OldestRevision, _, err = s.oldestEvent(ctx, b); b.Oldest == 1 {
		resp.OldestRevision = min(resp.OldestRevision, 1) // all that ever were
	}
	return resp, err
}

// oldestEvent says of which revision and time the oldest event is that is kept; 0: none is.
func (s *Server) oldestEvent(ctx context.Context, b store.Bounds) (uint64, *timestamppb.Timestamp, error) {
	_, events, err := s.cfg.Copy.EventsFrom(ctx, b.Oldest, 1)
	if err != nil {
		return 0, nil, status.Error(codes.Unavailable, err.Error())
	}
	if len(events) == 0 {
		return 0, nil, nil
	}
	return events[0].GetRevision(), events[0].GetTime(), nil
}

// readEvents reads a page of the events with numbers from begin on and below end, as far as they are still kept.
func (s *Server) readEvents(ctx context.Context, begin, end uint64) (first uint64, events []*lofamov1.Event, err error) {
	first, events, err = s.cfg.Copy.EventsFrom(ctx, begin, int(min(eventPage, end-begin)))
	if err != nil {
		return 0, nil, status.Error(codes.Unavailable, err.Error())
	}
	return first, events[:min(uint64(len(events)), end-min(first, end))], nil
}

// newestEvents reads backwards until there are enough, and returns them oldest first.
func (s *Server) newestEvents(ctx context.Context, b store.Bounds, limit int, keep func(*lofamov1.Event) bool) ([]*lofamov1.Event, error) {
	var out []*lofamov1.Event // newest first
	for end := b.Next; end > b.Oldest && len(out) < limit; {
		begin := max(b.Oldest, end-min(end, eventPage))
		first, events, err := s.readEvents(ctx, begin, end)
		if err != nil {
			return nil, err
		}
		for _, ev := range slices.Backward(events) {
			if len(out) < limit && (keep == nil || keep(ev)) {
				out = append(out, ev)
			}
		}
		if len(events) == 0 || first > begin { // trimmed meanwhile
			break
		}
		end = begin
	}
	slices.Reverse(out)
	return out, nil
}

// eventsAfter reads forwards from a page's beginning, else from a revision. next is the number of the first event of
// the next page; 0: there is none.
func (s *Server) eventsAfter(ctx context.Context, b store.Bounds, after uint64, page *token, limit int,
	keep func(*lofamov1.Event) bool) (out []*lofamov1.Event, next uint64, err error) {
	number, strict := b.Oldest, page != nil // strict: the events from number on are promised
	switch {
	case page != nil:
		number = page.position
	case after > 0:
		// What is asked for and is no longer kept is left out: the answer says from where on there is anything.
		located, _, err := fanout.Locate(ctx, s.cfg.Copy, after)
		if _, gone := asExpired(err, ""); err != nil && !gone {
			return nil, 0, status.Error(codes.Unavailable, err.Error())
		}
		number = max(number, located)
	}
	for number < b.Next {
		first, events, err := s.readEvents(ctx, number, b.Next)
		switch {
		case err != nil:
			return nil, 0, err
		case strict && (len(events) == 0 || first != number):
			return nil, 0, expired("continue: the events that come next are no longer kept", "begin again without continue")
		case len(events) == 0:
			return nil, 0, nil // trimmed meanwhile, all of it
		case first != number:
			out = nil // what is before a gap is no longer kept either
		}
		for i, ev := range events {
			if keep != nil && !keep(ev) {
				continue
			}
			if len(out) == limit {
				return out, first + uint64(i), nil
			}
			out = append(out, ev)
		}
		number = first + uint64(len(events))
	}
	return out, 0, nil
}

// past is what a history is of: a node, a component, or a group fault.
type past struct {
	concerns func(*lofamov1.Event) bool // its events
	changes  func(*lofamov1.Event) bool // of these, those that change its state, or the presence of its region
	// before is its state at the time from, by its changes: now, where there are none.
	before func(changes []*lofamov1.Event, from time.Time) lofamov1.State
	// missing refuses what nobody has heard of, when there is no event. May be nil.
	missing error
}

// pastOf finds what a history is asked of.
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
		before: func(changes []*lofamov1.Event, _ time.Time) lofamov1.State {
			for _, ev := range changes {
				if !isPresence(ev) {
					return ev.GetFrom()
				}
			}
			return now
		},
	}, nil
}

// GetHistory implements the service.
func (s *Server) GetHistory(ctx context.Context, req *lofamov1.GetHistoryRequest) (*lofamov1.GetHistoryResponse, error) {
	limit := int(req.GetLimit())
	switch {
	case limit == 0:
		limit = defaultHistory
	case limit > maxEvents:
		return nil, invalid("limit", "given %d: want at most %d", limit, maxEvents)
	}
	cluster := s.catchUp(ctx)
	of, err := s.pastOf(ctx, req)
	if err != nil {
		return nil, err
	}
	b, err := s.cfg.Copy.Bounds(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	all, _, err := s.eventsAfter(ctx, b, 0, nil, int(b.Next), of.concerns)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 && of.missing != nil {
		return nil, of.missing
	}
	_, from, err := s.oldestEvent(ctx, b)
	if err != nil {
		return nil, err
	}
	if since := req.GetSince(); since != nil && (from == nil || since.AsTime().After(from.AsTime())) {
		from = since
	}
	resp := &lofamov1.GetHistoryResponse{From: from, Revision: b.Revision, Cluster: cluster}
	now := time.Now()
	if from != nil {
		changes := slices.DeleteFunc(slices.Clone(all), func(ev *lofamov1.Event) bool { return !of.changes(ev) })
		resp.TimeIn = timeIn(changes, of.before(changes, from.AsTime()), from.AsTime(), now)
	}
	for _, ev := range slices.Backward(all) {
		if len(resp.Events) < limit && (req.GetSince() == nil || !ev.GetTime().AsTime().Before(req.GetSince().AsTime())) {
			resp.Events = append(resp.Events, ev)
		}
	}
	return resp, nil
}

// component reads the name of a component; the empty one is the node itself.
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

// stateOf is the state that a component has by the copy, for components that have never changed. At a parent it is what
// the region had last.
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

// stateIn is the state that a component has in a node's document; nil: there is none.
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

// timeIn adds up how long something was in which state between two times, by its state before and its changes, oldest
// first. While its region was cut off it was UNKNOWN, whatever was heard of that time later. Clocks of supervisors that
// differ, or step, make no negative times.
func timeIn(changes []*lofamov1.Event, state lofamov1.State, from, to time.Time) []*lofamov1.TimeIn {
	var spent [5]time.Duration
	var times [5]uint32
	first := slices.IndexFunc(changes, isPresence)
	cut := first >= 0 && changes[first].GetFrom() == lofamov1.State_UNKNOWN
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
	for _, ev := range changes {
		was, when := shown(), ev.GetTime().AsTime()
		pass(when)
		if isPresence(ev) {
			cut = ev.GetTo() == lofamov1.State_UNKNOWN
		} else {
			state = ev.GetTo()
		}
		if is := shown(); is != was && !when.Before(from) {
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

// isPresence says whether an event is that a region was cut off, or is back.
func isPresence(ev *lofamov1.Event) bool {
	return ev.GetKind() == lofamov1.EventKind_REGION_CHANGED && ev.GetFrom() != ev.GetTo()
}

// changes says whether an event is a change of the state of a component.
func changes(ev *lofamov1.Event, component string) bool {
	return kindOf(ev) == lofamov1.EventKind_COMPONENT_CHANGED && ev.GetComponent() == component && known(ev.GetFrom()) && known(ev.GetTo())
}

// known says whether a state is one of those that this version knows.
func known(s lofamov1.State) bool { return lofamov1.State_name[int32(s)] != "" }
