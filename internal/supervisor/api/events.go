package api

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/fault"
)

// The limits of ListEvents and GetHistory.
const (
	defaultEvents  = 1_000
	defaultHistory = 100
	maxEvents      = 10_000
)

// eventPage is the number of events read from the store at once.
const eventPage = 512

var eventFields = []selectorField{
	{Name: "node"}, {Name: "component"}, {Name: "kind", Check: oneOf(enumNames(lofamov1.EventKind_name)...)},
	{Name: "from", Check: stateNames}, {Name: "to", Check: stateNames}, {Name: "cause",
		Check: oneOf(enumNames(lofamov1.Cause_name)...)},
	{Name: "path", Check: oneOf(enumNames(lofamov1.Path_name)...)}, {Name: "region"}, {Name: "group", Open: true},
}

// eventFilter selects events. A group fault matches when it or one of its members does, an event of a region when one
// of its nodes does, and a diagnosis or procedure when one of the nodes that it concerns does.
type eventFilter struct {
	node   string // id; empty for all
	labels labelSelector
	fields fieldSelector
	// labelsOf returns a node's present labels, for events that do not carry their own.
	labelsOf func(fault.NodeID) map[string]string
	// membersOf returns the nodes of a region.
	membersOf func(region string) []fault.NodeID
}

func (s *Server) newEventFilter(node, labels, fields string) (f eventFilter, err error) {
	id, err := s.findOptional(node)
	if err != nil {
		return f, err
	}
	f.node, f.labelsOf, f.membersOf = string(id), s.cfg.Names.Labels, s.membersOf
	if f.labels, err = parseLabelSelector(labels); err != nil {
		return f, invalid("label_selector", "%v", err)
	}
	if f.fields, err = parseFieldSelector(fields, eventFields); err != nil {
		return f, invalid("field_selector", "%v", err)
	}
	return f, nil
}

// keep returns the filter function, or nil if all events match.
func (f *eventFilter) keep() func(*lofamov1.Event) bool {
	if f.node == "" && f.labels.Empty() && f.fields.Empty() {
		return nil
	}
	return f.passes
}

func (f *eventFilter) passes(ev *lofamov1.Event) bool {
	labels := ev.GetLabels()
	if labels == nil && ev.GetKind() == lofamov1.EventKind_EVENT_KIND_UNSPECIFIED { // an old event without labels
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

// passesAs reports whether an event matches as an event of a node with these labels.
func (f *eventFilter) passesAs(ev *lofamov1.Event, node string, labels map[string]string) bool {
	if f.node != "" && f.node != node {
		return false
	}
	if !f.labels.Matches(labels) {
		return false
	}
	return f.fields.Empty() || f.fields.Matches(func(field, value string) bool { return eventHas(ev, node, field, value) })
}

// eventHas reports whether a field of an event has a value, if the event counts as one of the node.
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

// kindOf returns the kind of an event; old events have none.
func kindOf(ev *lofamov1.Event) lofamov1.EventKind {
	if k := ev.GetKind(); k != lofamov1.EventKind_EVENT_KIND_UNSPECIFIED {
		return k
	}
	return lofamov1.EventKind_COMPONENT_CHANGED
}

// catchUp makes the copy as new as the cluster, so that all acknowledged events are in it, and returns the cluster's revision. An external
// etcd has several copies: reads must check that theirs has this revision. Without a quorum catchUp uses the copy unchanged, marks the
// returned information stale, and returns 0.
func (s *Server) catchUp(ctx context.Context) (*lofamov1.ClusterInfo, uint64) {
	asked, cancel := context.WithTimeout(ctx, proxyTime)
	defer cancel()
	info := proto.CloneOf(s.cfg.Info)
	revision, err := s.cfg.Copy.Revision(asked)
	if err != nil {
		revision = 0
		markStale(info, s.quorumAge())
	}
	info.Dims, info.Leader = s.cfg.Names.Dims().String(), s.cfg.Directory.Leader()
	if s.cfg.Regions != nil {
		info.Regions = s.cfg.Regions(ctx)
	}
	return info, revision
}

// ListEvents implements the service. History does not change, so every replica answers from its own copy.
func (s *Server) ListEvents(ctx context.Context, req *lofamov1.ListEventsRequest) (*lofamov1.ListEventsResponse, error) {
	f, err := s.newEventFilter(req.GetNode(), req.GetLabelSelector(), req.GetFieldSelector())
	if err != nil {
		return nil, err
	}
	if err := (place{req.GetAfterRevision(), req.GetAfterIndex()}).check(); err != nil {
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
	cluster, revision := s.catchUp(ctx)
	b, end, err := s.beginScan(ctx, revision)
	if err != nil {
		return nil, err
	}
	defer end()
	resp := &lofamov1.ListEventsResponse{Revision: b.Revision, Cluster: cluster}
	switch {
	case page == nil && req.GetAfterRevision() == 0:
		resp.Events, err = s.newestEvents(ctx, b, limit, f.keep())
	default:
		var next uint64
		after := place{req.GetAfterRevision(), req.GetAfterIndex()}
		resp.Events, next, err = s.eventsAfter(ctx, b, after.before(), page, limit, after.keep(f.keep()))
		if next > 0 {
			resp.Continue = token{request: hash, position: next}.String()
		}
	}
	if err != nil {
		return nil, err
	}
	if resp.OldestRevision, err = s.oldestEvent(ctx, b); b.Oldest == 1 {
		resp.OldestRevision = min(resp.OldestRevision, 1) // all events ever
	}
	return resp, err
}

// oldestEvent returns the revision of the oldest kept event; 0: none.
func (s *Server) oldestEvent(ctx context.Context, b store.Bounds) (uint64, error) {
	_, events, err := keptFrom(ctx, s.cfg.Copy, b.Oldest, b.Next, 1)
	if err != nil {
		return 0, status.Error(codes.Unavailable, err.Error())
	}
	if len(events) == 0 {
		return 0, nil
	}
	return events[0].GetRevision(), nil
}

// readEvents reads a page of the kept events with numbers from begin up to, but not including, end.
func (s *Server) readEvents(ctx context.Context, begin, end uint64) (first uint64, events []*lofamov1.Event, err error) {
	first, events, err = keptFrom(ctx, s.cfg.Copy, begin, end, int(min(eventPage, end-begin)))
	if err != nil {
		return 0, nil, status.Error(codes.Unavailable, err.Error())
	}
	return first, events[:min(uint64(len(events)), end-min(first, end))], nil
}

// newestEvents reads backwards until it has enough events, and returns them oldest first.
func (s *Server) newestEvents(ctx context.Context, b store.Bounds, limit int, keep func(*lofamov1.Event) bool) ([]*lofamov1.Event, error) {
	var out []*lofamov1.Event // newest first
	for end := b.Next; end > b.Oldest && len(out) < limit; {
		page := uint64(eventPage)
		if keep == nil {
			page = min(page, uint64(limit-len(out)))
		}
		begin := max(b.Oldest, end-min(end, page))
		first, events, err := s.readEvents(ctx, begin, end)
		if err != nil {
			return nil, err
		}
		for _, ev := range slices.Backward(events) {
			if len(out) < limit && (keep == nil || keep(ev)) {
				out = append(out, ev)
			}
		}
		if len(events) == 0 || first > begin { // trimmed during the read
			break
		}
		end = begin
	}
	slices.Reverse(out)
	return out, nil
}

// eventsAfter reads forwards from a page's start, or else from a revision. next is the number of the first event of
// the next page; 0: none.
func (s *Server) eventsAfter(ctx context.Context, b store.Bounds, after uint64, page *token, limit int,
	keep func(*lofamov1.Event) bool) (out []*lofamov1.Event, next uint64, err error) {
	number, strict := b.Oldest, page != nil // strict: the client expects all events from number on
	switch {
	case page != nil:
		number = page.position
	case after > 0:
		// Events that are no longer kept are left out: the answer says where the kept ones begin.
		located, _, err := locate(ctx, s.cfg.Copy, after)
		if _, gone := asExpired(err, ""); err != nil && !gone {
			return nil, 0, status.Error(codes.Unavailable, err.Error())
		}
		number = max(number, located)
	}
	err = s.scan(ctx, b, number, strict, func() { out = nil }, func(number uint64, ev *lofamov1.Event) bool {
		switch {
		case after > 0 && ev.GetRevision() <= after: // the copy that located the first event lags
		case keep != nil && !keep(ev):
		case len(out) == limit:
			next = number
			return false
		default:
			out = append(out, ev)
		}
		return true
	})
	if err != nil {
		return nil, 0, err
	}
	return out, next, nil
}

// scan passes the events from a number on to visit, oldest first, until visit returns false. It holds one page of them at a time. When
// events are trimmed during the scan, those before the gap are no longer kept either: it calls gap, or fails if strict is set.
func (s *Server) scan(ctx context.Context, b store.Bounds, number uint64, strict bool, gap func(),
	visit func(number uint64, ev *lofamov1.Event) bool) error {
	for number < b.Next {
		first, events, err := s.readEvents(ctx, number, b.Next)
		switch {
		case err != nil:
			return err
		case strict && (len(events) == 0 || first != number):
			return expired("continue: the events that come next are no longer kept", "begin again without continue")
		case len(events) == 0: // all trimmed
			gap()
			return nil
		case first != number:
			gap()
		}
		for i, ev := range events {
			if !visit(first+uint64(i), ev) {
				return nil
			}
		}
		number = first + uint64(len(events))
	}
	return nil
}
