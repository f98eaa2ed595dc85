package api

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// maxLinks is the most link ends of one page.
const maxLinks = 60_000

var linkFields = []selectorField{
	{Name: "node"}, {Name: "peer"}, {Name: "direction", Check: oneOf(directionNames()...)},
	{Name: "state", Check: stateNames}, {Name: "cause", Check: oneOf(enumNames(lofamov1.Cause_name)...)}, {Name: "region"},
}

func directionNames() []string {
	var out []string
	for _, d := range grid.Directions() {
		out = append(out, d.String())
	}
	return out
}

// linkFilter selects link ends.
type linkFilter struct {
	node   fault.NodeID // empty for all
	states func(lofamov1.State) bool
	faulty bool // none of the states is one that a link of a node without faults can have
	labels labelSelector
	fields fieldSelector
}

func (s *Server) newLinkFilter(req *lofamov1.ListLinksRequest) (f linkFilter, err error) {
	if f.states, err = checkStates(req.GetStates()); err != nil {
		return f, err
	}
	if f.node, err = s.findOptional(req.GetNode()); err != nil {
		return f, err
	}
	if f.labels, err = parseLabelSelector(req.GetLabelSelector()); err != nil {
		return f, invalid("label_selector", "%v", err)
	}
	if f.fields, err = parseFieldSelector(req.GetFieldSelector(), linkFields); err != nil {
		return f, invalid("field_selector", "%v", err)
	}
	f.faulty = !f.states(lofamov1.State_NORMAL) && !f.states(lofamov1.State_UNKNOWN)
	return f, nil
}

// ranks returns the ranks, from one on, of the nodes that may have such link ends.
func (f *linkFilter) ranks(s snapshot, from int) []int {
	switch {
	case f.node != "":
		if rank, ok := s.Rank(f.node); ok && rank >= from {
			return []int{rank}
		}
		return nil
	case f.faulty:
		all := s.notNormal()
		i, _ := slices.BinarySearch(all, from)
		return all[i:]
	}
	out := make([]int, 0, max(0, s.Len()-from))
	for rank := from; rank < s.Len(); rank++ {
		out = append(out, rank)
	}
	return out
}

func (f *linkFilter) keeps(l *lofamov1.Link) bool {
	return f.states(l.GetState()) && f.fields.Matches(func(field, value string) bool {
		switch field {
		case "node":
			return l.GetNode() == value
		case "peer":
			return l.GetPeer() == value
		case "direction":
			return l.GetDirection() == value
		case "state":
			return l.GetState().String() == value
		case "cause":
			return l.GetCause().String() == value
		default:
			return l.GetRegion() == value
		}
	})
}

// linkNumber numbers link ends in listing order.
func linkNumber(rank int, l *lofamov1.Link) uint64 {
	return uint64(rank)*grid.NumDirections + uint64(slices.Index(directionNames(), l.GetDirection()))
}

// ListLinks implements the service.
func (s *Server) ListLinks(ctx context.Context, req *lofamov1.ListLinksRequest) (*lofamov1.ListLinksResponse, error) {
	f, err := s.newLinkFilter(req)
	if err != nil {
		return nil, err
	}
	bare := proto.CloneOf(req)
	bare.Continue = ""
	hash, page, err := paging(bare, req.GetLimit(), req.GetContinue(), maxLinks)
	if err != nil {
		return nil, err
	}
	return answerPage(ctx, s, page, func(snap snapshot) (*lofamov1.ListLinksResponse, error) {
		resp := &lofamov1.ListLinksResponse{Revision: snap.Revision, Cluster: s.info(ctx, snap)}
		var from uint64
		if page != nil {
			from = page.position
		}
		var next uint64
		resp.Links, next, err = s.links(ctx, snap, &f, from, req)
		if next > 0 {
			resp.Continue = token{hash, snap.Revision, next}.String()
			s.pages.keep(s.freeze(snap), time.Now())
		}
		return resp, err
	}, func(ctx context.Context, c lofamov1.FaultSupervisorClient) (*lofamov1.ListLinksResponse, error) {
		return c.ListLinks(ctx, req)
	})
}

// linksAtOnce is the number of nodes whose link ends are rendered between two checks whether the page is full.
const linksAtOnce = 1024

// links renders a page of link ends, starting with number from. next is the number of the first one on the next page;
// 0: none.
func (s *Server) links(ctx context.Context, snap snapshot, f *linkFilter, from uint64,
	req *lofamov1.ListLinksRequest) (out []*lofamov1.Link, next uint64, err error) {
	ranks := f.ranks(snap, int(min(from/grid.NumDirections, uint64(snap.Len()))))
	if !f.labels.Empty() {
		ranks = slices.DeleteFunc(ranks, func(rank int) bool { return !f.labels.Matches(snap.labels(rank)) })
	}
	now := time.Now()
	for some := range slices.Chunk(ranks, linksAtOnce) {
		entries, err := s.entries(ctx, snap, some, !req.GetBrief())
		if err != nil {
			return nil, 0, err
		}
		for i, rank := range some {
			for _, l := range view.NodeLinks(snap.Map, entries[i], now) {
				l.Region, l.Mask = snap.region(rank), s.maskOf(snap, l)
				number := linkNumber(rank, l)
				if number < from || !f.keeps(l) {
					continue
				}
				if limit := int(req.GetLimit()); limit > 0 && len(out) == limit {
					return out, number, nil
				}
				if req.GetBrief() {
					l.Evidence = nil
				}
				out = append(out, l)
			}
		}
	}
	return out, 0, nil
}
