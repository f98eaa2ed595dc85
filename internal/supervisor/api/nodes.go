package api

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// maxNodes is the maximum number of nodes on one page.
const maxNodes = 10_000

var (
	stateNames = oneOf("UNKNOWN", "NORMAL", "SICK", "FAILED")
	boolNames  = oneOf("true", "false")
	nodeFields = []selectorField{
		{Name: "id"}, {Name: "coord", Open: true, Check: checkCoord}, {Name: "x", Check: countField}, {Name: "y",
			Check: countField}, {Name: "z", Check: countField},
		{Name: "state", Check: stateNames}, {Name: "cause",
			Check: oneOf(enumNames(lofamov1.Cause_name)...)}, {Name: "region"}, {Name: "group", Open: true},
		{Name: "maintenance", Check: boolNames}, {Name: "spare", Check: boolNames}, {Name: "inferred",
			Check: boolNames}, {Name: "unreachable", Check: boolNames},
	}
)

// checkCoord accepts coordinates, and the empty ones of a spare.
func checkCoord(v string) error {
	if c, err := grid.ParseCoord(v); v != "" && (err != nil || c.String() != v) {
		return errors.New("want x,y,z")
	}
	return nil
}

// enumNames returns the names of a protobuf enum in order of their numbers, without the unspecified one.
func enumNames(names map[int32]string) []string {
	var out []string
	for n := int32(1); names[n] != ""; n++ {
		out = append(out, names[n])
	}
	return out
}

// nodeFilter selects nodes of a snapshot.
type nodeFilter struct {
	states    func(lofamov1.State) bool
	labels    labelSelector
	fields    fieldSelector
	notNormal bool
}

func newNodeFilter(req *lofamov1.ListNodesRequest) (f nodeFilter, err error) {
	if f.states, err = checkStates(req.GetStates()); err != nil {
		return f, err
	}
	if f.labels, err = parseLabelSelector(req.GetLabelSelector()); err != nil {
		return f, invalid("label_selector", "%v", err)
	}
	if f.fields, err = parseFieldSelector(req.GetFieldSelector(), nodeFields); err != nil {
		return f, invalid("field_selector", "%v", err)
	}
	f.notNormal = req.GetNotNormal()
	return f, nil
}

// positions returns the positions, from one on, of the selected nodes: the rank for nodes with a place, followed by
// the spares.
func (f *nodeFilter) positions(s snapshot, from int) []int {
	if f.notNormal {
		return slices.DeleteFunc(s.notNormal(), func(pos int) bool { return pos < from || !f.keeps(s, pos) })
	}
	var out []int
	for pos := from; pos < s.size(); pos++ {
		if f.keeps(s, pos) {
			out = append(out, pos)
		}
	}
	return out
}

func (f *nodeFilter) keeps(s snapshot, pos int) bool {
	if !f.states(s.state(pos)) {
		return false
	}
	if !f.labels.Empty() && !f.labels.Matches(s.labels(pos)) {
		return false
	}
	if f.fields.Empty() {
		return true
	}
	c := candidate{s: s, pos: pos}
	return f.fields.Matches(c.has)
}

// candidate is a node that a field selector tests. Expensive fields are computed on demand.
type candidate struct {
	s     snapshot
	pos   int
	entry *view.Entry
}

func (c *candidate) status() *awareness.NodeStatus {
	if c.entry == nil {
		e := c.s.At(c.pos)
		c.entry = &e
	}
	return &c.entry.Status
}

func is(truth bool, value string) bool { return value == strconv.FormatBool(truth) }

// has reports whether a field of the node has a value.
func (c *candidate) has(field, value string) bool {
	_, spare := c.s.spare(c.pos)
	switch field {
	case "id":
		return string(c.s.id(c.pos)) == value
	case "state":
		return c.s.state(c.pos).String() == value
	case "spare":
		return is(spare, value)
	case "maintenance":
		return is(c.s.maintenance(c.pos) != nil, value)
	case "region":
		return c.s.region(c.pos) == value
	}
	if spare {
		return spareHas(field, value)
	}
	switch at := c.s.Coord(c.pos); field {
	case "coord":
		return at.String() == value
	case "x":
		return strconv.Itoa(at.X) == value
	case "y":
		return strconv.Itoa(at.Y) == value
	case "z":
		return strconv.Itoa(at.Z) == value
	}
	switch st := c.status(); field {
	case "cause":
		return lofamov1.Cause(st.Cause).String() == value
	case "inferred":
		return is(st.Inferred, value)
	case "unreachable":
		return is(st.Unreachable, value)
	default: // group
		return slices.Contains(st.Groups, value)
	}
}

// spareHas is has for a spare, which has no place and no status.
func spareHas(field, value string) bool {
	switch field {
	case "coord":
		return value == ""
	case "cause":
		return value == lofamov1.Cause_NONE.String()
	case "inferred", "unreachable":
		return is(false, value)
	}
	return false
}

// ListNodes implements the service.
func (s *Server) ListNodes(ctx context.Context, req *lofamov1.ListNodesRequest) (*lofamov1.ListNodesResponse, error) {
	f, err := newNodeFilter(req)
	if err != nil {
		return nil, err
	}
	bare := proto.CloneOf(req)
	bare.Continue = ""
	hash, page, err := paging(bare, req.GetLimit(), req.GetContinue(), maxNodes)
	if err != nil {
		return nil, err
	}
	return answerPage(ctx, s, page, func(snap snapshot) (*lofamov1.ListNodesResponse, error) {
		if req.GetLimit() > 0 {
			snap = s.freeze(snap)
		}
		resp := &lofamov1.ListNodesResponse{Revision: snap.Revision, Cluster: s.info(ctx, snap)}
		from := 0
		if page != nil {
			from = int(min(page.position, uint64(snap.size())))
		}
		chosen := f.positions(snap, from)
		if limit := int(req.GetLimit()); limit > 0 && limit < len(chosen) {
			resp.Continue = token{hash, snap.Revision, uint64(chosen[limit])}.String()
			resp.Remaining = uint32(len(chosen) - limit)
			chosen = chosen[:limit]
			s.pages.keep(snap, time.Now())
		}
		resp.Nodes, err = s.nodes(ctx, snap, chosen, req.GetBrief())
		return resp, err
	}, func(ctx context.Context, c lofamov1.FaultSupervisorClient) (*lofamov1.ListNodesResponse, error) {
		return c.ListNodes(ctx, req)
	})
}

// GetNode implements the service.
func (s *Server) GetNode(ctx context.Context, req *lofamov1.GetNodeRequest) (*lofamov1.Node, error) {
	id, err := s.find(req.GetNode())
	if err != nil {
		return nil, err
	}
	return answer(ctx, s, func(snap snapshot) (*lofamov1.Node, error) {
		pos, ok := snap.position(id)
		if !ok {
			return nil, status.Errorf(codes.NotFound, "node %q: not in the map", id)
		}
		nodes, err := s.nodes(ctx, snap, []int{pos}, false)
		if err != nil {
			return nil, err
		}
		nodes[0].Stale = new(snap.Stale)
		if snap.Stale {
			nodes[0].StaleAge = knownAge(snap.StaleAge)
		} else {
			nodes[0].VerdictsHeld = s.held()
			if s.cfg.Controller != nil {
				nodes[0].Controller = s.cfg.Controller(id, time.Now())
			}
			fill(nodes[0], below(ctx, s, id, func(ctx context.Context, c lofamov1.FaultSupervisorClient) (*lofamov1.Node, error) {
				return c.GetNode(ctx, &lofamov1.GetNodeRequest{Node: string(id)})
			}))
		}
		return nodes[0], nil
	}, func(ctx context.Context, c lofamov1.FaultSupervisorClient) (*lofamov1.Node, error) {
		return c.GetNode(ctx, req)
	})
}

// nodes renders the nodes at the given positions.
func (s *Server) nodes(ctx context.Context, snap snapshot, positions []int, brief bool) ([]*lofamov1.Node, error) {
	var entries []view.Entry // with components
	if !brief {
		var err error
		if entries, err = s.entries(ctx, snap, positions, true); err != nil {
			return nil, err
		}
	}
	now := time.Now()
	warnings := snap.warnings()
	out := make([]*lofamov1.Node, len(positions))
	for i, pos := range positions {
		if sp, ok := snap.spare(pos); ok {
			out[i] = &lofamov1.Node{Id: string(sp.ID), State: lofamov1.State_UNKNOWN, Cause: lofamov1.Cause_NONE, Spare: true}
		} else if brief {
			out[i] = view.Node(snap.Brief(pos), now)
		} else {
			out[i] = view.Node(entries[i], now)
			s.addMapped(snap, out[i], now)
		}
		snap.decorate(out[i], pos)
		out[i].Warnings = warnings[pos]
	}
	return out, nil
}

// entries returns the nodes at the given positions (spares are empty). With full it adds the data that only the
// leader has in memory. That data describes the present, so nodes that changed since the snapshot do not get it.
func (s *Server) entries(ctx context.Context, snap snapshot, positions []int, full bool) ([]view.Entry, error) {
	out := make([]view.Entry, len(positions))
	var ids []fault.NodeID
	at := make(map[fault.NodeID]int)
	for i, pos := range positions {
		if pos < snap.Len() {
			out[i] = snap.At(pos)
			if full && !snap.Stale {
				ids = append(ids, snap.ID(pos))
				at[snap.ID(pos)] = i
			}
		}
	}
	if len(ids) == 0 {
		return out, nil
	}
	details, err := s.cfg.Engine.Detail(ctx, ids)
	switch {
	case errors.Is(err, engine.ErrNotLeading): // no longer leading, or a page from when it led: use committed data
		return out, nil
	case err != nil:
		return nil, status.FromContextError(err).Err()
	}
	for _, d := range details {
		if e := &out[at[d.Status.ID]]; d.Revision == e.Revision {
			*e = d
		}
	}
	return out, nil
}
