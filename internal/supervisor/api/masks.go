package api

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// maxMasked bounds the links that one change masks or restores. With one event each they fit every store's
// transaction.
const maxMasked = 48

// maskOf returns the mask of the link that an end belongs to, or nil.
func (s *Server) maskOf(snap snapshot, l *lofamov1.Link) *lofamov1.LinkMask {
	if s.cfg.Masks == nil {
		return nil
	}
	at, err := grid.ParseCoord(l.GetCoord())
	d, err2 := grid.ParseDirection(l.GetDirection())
	if err != nil || err2 != nil || !snap.Dims().Contains(at) {
		return nil
	}
	link, ok := chanmask.LinkAt(snap.Dims(), at, d)
	if !ok {
		return nil
	}
	return s.cfg.Masks.Of(link)
}

// SetMask implements the service Reconfigure.
func (s *Server) SetMask(ctx context.Context, req *lofamov1.SetMaskRequest) (*lofamov1.SetMaskResponse, error) {
	if err := s.elsewhereLinks(req.GetLinks()); err != nil {
		return nil, err
	}
	return leadBy(ctx, s, func(ctx context.Context, by string) (*lofamov1.SetMaskResponse, error) {
		return s.setMask(ctx, by, req)
	}, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.SetMaskResponse, error) {
		return lofamov1.NewReconfigureClient(conn).SetMask(ctx, req)
	})
}

// elsewhereLinks refuses a change at a parent of regions.
func (s *Server) elsewhereLinks(links []*lofamov1.LinkName) error {
	if s.cfg.RegionSupervisors == nil {
		return nil
	}
	var ids []fault.NodeID
	for _, l := range links {
		id, err := s.find(l.GetNode())
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	return s.elsewhere(ids)
}

func (s *Server) setMask(ctx context.Context, by string, req *lofamov1.SetMaskRequest) (*lofamov1.SetMaskResponse, error) {
	if err := checkReason(req.GetReason(), req.GetMasked()); err != nil {
		return nil, err
	}
	resp := &lofamov1.SetMaskResponse{}
	revision, err := s.cfg.Operators.Change(ctx, func(topo store.Topology) ([]store.Write, error) {
		links, err := s.maskLinks(topo.Topology, req.GetLinks())
		if err != nil {
			return nil, err
		}
		if req.GetMasked() && !req.GetForce() {
			torus, err := s.torus(ctx) // here, because a change before this one may have masked other links
			if err != nil {
				return nil, err
			}
			if a, b, cuts := torus.Cuts(links...); cuts {
				return nil, status.Errorf(codes.InvalidArgument,
					"links: without them no way through the torus leads from %s to %s, and there is one now: nothing was changed (force masks them all "+
						"the same)", a, b)
			}
		}
		w, err := s.maskWrite(topo.Topology, links, req.GetMasked(), req.GetReason(), by)
		if err != nil {
			return nil, err
		}
		resp.Masks = changedMasks(w)
		return []store.Write{w}, nil
	})
	if err != nil {
		return nil, err
	}
	resp.Revision = revision
	s.cfg.Logger.Info("links masked or restored", "by", by, "masked", req.GetMasked(), "links", len(resp.GetMasks()), "reason",
		req.GetReason(), "forced", req.GetForce(), "revision", revision)
	return resp, nil
}

func checkReason(reason string, wanted bool) error {
	if n := len(reason); wanted && (strings.TrimSpace(reason) == "" || n > maxReason) {
		return status.Errorf(codes.InvalidArgument, "reason: given %d bytes: want 1 to %d that say why", n, maxReason)
	}
	return nil
}

// changedMasks returns the masks in the events of a write.
func changedMasks(w store.Write) []*lofamov1.LinkMask {
	var out []*lofamov1.LinkMask
	for _, ev := range w.Events {
		out = append(out, ev.GetMask())
	}
	return out
}

// maskLinks finds the links of a request, each once.
func (s *Server) maskLinks(topo *topology.Topology, names []*lofamov1.LinkName) ([]chanmask.Link, error) {
	if n := len(names); n == 0 || n > maxMasked {
		return nil, status.Errorf(codes.InvalidArgument, "links: given %d: want 1 to %d", n, maxMasked)
	}
	var out []chanmask.Link
	for _, name := range names {
		l, err := s.maskLink(topo, name)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(out, l) {
			out = append(out, l)
		}
	}
	return out, nil
}

// maskLink finds one link. At least one end must be a node of this region, and the link is named by it. If the other
// end belongs to another region, these supervisors decide only about their own end, and that is enough: a link is
// used only while neither end masks it (§6.1), and the other end learns of the mask with the next heartbeat.
func (s *Server) maskLink(topo *topology.Topology, name *lofamov1.LinkName) (chanmask.Link, error) {
	id, err := s.find(name.GetNode())
	if err != nil {
		if region := s.foreignName(name.GetNode()); region != "" {
			return chanmask.Link{}, invalid("links", "node %s is of region %s: name the link by its end in this region, or ask the supervisors of "+
				"that one", name.GetNode(), region)
		}
		return chanmask.Link{}, err
	}
	n, ok := topo.Node(id)
	if !ok || n.Spare {
		return chanmask.Link{}, invalid("links", "node %s has no place in the torus, and so no links", id)
	}
	d, err := grid.ParseDirection(name.GetDirection())
	if err != nil {
		return chanmask.Link{}, invalid("links", "%v", err)
	}
	l, ok := chanmask.LinkAt(topo.Dims, n.Coord, d)
	if !ok {
		return chanmask.Link{}, invalid("links", "node %s has no link %s: the torus is %s", id, d, topo.Dims)
	}
	a, b := l.Ends(topo.Dims)
	for _, end := range [...]grid.Coord{a, b} {
		if _, _, ok := s.end(topo, end); !ok {
			return chanmask.Link{}, invalid("links", "link %s of node %s leads to %s, where there is no node", d, id, end)
		}
	}
	return l, nil
}

// end returns the node at a place: one of this region, or a bordering one of another region.
func (s *Server) end(topo *topology.Topology, at grid.Coord) (id fault.NodeID, ours, ok bool) {
	if n, is := topo.Place(at); is {
		return n.ID, true, true
	}
	for _, n := range s.cfg.Names.Border() {
		if n.Coord == at {
			return n.ID, false, true
		}
	}
	return "", false, false
}

// foreignName returns the region of a named node; empty: it is ours, or unknown.
func (s *Server) foreignName(name string) string {
	if s.cfg.RegionOf == nil {
		return ""
	}
	for _, n := range s.cfg.Names.Border() {
		if string(n.ID) == name || n.Coord.String() == name {
			return s.cfg.RegionOf(n.ID)
		}
	}
	return ""
}

// maskWrite masks links, or restores them. Masking a masked link changes its reason.
func (s *Server) maskWrite(topo *topology.Topology, links []chanmask.Link, masked bool, reason, by string) (store.Write, error) {
	var w store.Write
	now := time.Now()
	for _, l := range links {
		old := s.cfg.Masks.Of(l)
		a, b := l.Ends(topo.Dims)
		from, _, _ := s.end(topo, a)
		to, _, _ := s.end(topo, b)
		m := &lofamov1.LinkMask{
			Node: string(from), Coord: a.String(), Direction: l.Dir.String(), Peer: string(to), PeerCoord: b.String(),
			Reason: reason, By: by, Since: timestamppb.New(now),
		}
		switch {
		case masked:
			told := "masked: "
			if old != nil {
				m.Since, told = old.GetSince(), "still masked: "
			}
			kv, err := store.MaskPut(m)
			if err != nil {
				return store.Write{}, err
			}
			w.Puts = append(w.Puts, kv)
			w.Events = append(w.Events, view.MaskEvent(m, false, told+reason, by, s.cfg.Names, now))
		case old == nil:
			return store.Write{}, status.Errorf(codes.NotFound, "link %s of node %s: not masked%s: nothing was changed", l.Dir, from,
				s.beyond(topo, a, b))
		default:
			m.Reason, m.By, m.Since = old.GetReason(), old.GetBy(), old.GetSince()
			w.Deletes = append(w.Deletes, store.MaskKey(m))
			w.Events = append(w.Events, view.MaskEvent(m, true, "restored by "+by, by, s.cfg.Names, now))
		}
	}
	return w, nil
}

// beyond says, for a link to another region, that its supervisors may mask it too.
func (s *Server) beyond(topo *topology.Topology, ends ...grid.Coord) string {
	for _, at := range ends {
		if id, ours, ok := s.end(topo, at); ok && !ours && s.cfg.RegionOf != nil {
			return fmt.Sprintf(" by these supervisors (its end at %s is for those of region %s)", id, s.cfg.RegionOf(id))
		}
	}
	return ""
}

// torus returns the torus of the map, without links that are broken or masked. Where the map has no evidence, it also
// leaves out links that mappers found dead (Figure 18(b): then all boundaries are known).
func (s *Server) torus(ctx context.Context) (*chanmask.Torus, error) {
	m, err := s.cfg.Engine.Map(ctx)
	if err != nil {
		return nil, err
	}
	snap := s.snap(m)
	t, err := chanmask.NewTorus(snap.Dims())
	if err != nil {
		return nil, invalid("dims", "%v", err)
	}
	cut := func(coord, direction string) {
		at, err := grid.ParseCoord(coord)
		d, err2 := grid.ParseDirection(direction)
		if err != nil || err2 != nil || !t.Dims.Contains(at) {
			return
		}
		if l, ok := chanmask.LinkAt(t.Dims, at, d); ok {
			t.Cut(l)
		}
	}
	failed := func(st lofamov1.State) bool { return st == lofamov1.State_FAILED }
	links, _, err := s.links(ctx, snap, &linkFilter{states: failed, faulty: true}, 0, &lofamov1.ListLinksRequest{Brief: true})
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		cut(l.GetCoord(), l.GetDirection())
	}
	all, _, _ := s.cfg.Masks.All()
	for _, m := range all {
		cut(m.GetCoord(), m.GetDirection())
	}
	if s.cfg.MappedDead != nil {
		for _, l := range s.cfg.MappedDead() {
			if t.Dims.Contains(l.Node) {
				t.Cut(l)
			}
		}
	}
	return t, nil
}

// ListMasks implements the service Reconfigure. Without a leader a replica answers from its own copy.
func (s *Server) ListMasks(ctx context.Context, req *lofamov1.ListMasksRequest) (*lofamov1.ListMasksResponse, error) {
	// A leader that hangs does not keep the caller waiting.
	resp, err := leadNow(ctx, s, proxyTime, func(ctx context.Context, _ string) (*lofamov1.ListMasksResponse, error) {
		if _, err := s.cfg.Engine.Map(ctx); err != nil {
			return nil, err
		}
		return s.listMasks(true), nil
	}, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.ListMasksResponse, error) {
		return lofamov1.NewReconfigureClient(conn).ListMasks(ctx, req)
	})
	if code := status.Code(err); code == codes.Unavailable || code == codes.DeadlineExceeded {
		return s.listMasks(false), nil
	}
	return resp, err
}

// listMasks returns the masks as this replica knows them. Only the leader knows which ends have confirmed them.
func (s *Server) listMasks(leads bool) *lofamov1.ListMasksResponse {
	all, revision, _ := s.cfg.Masks.All()
	resp := &lofamov1.ListMasksResponse{Revision: revision}
	if !leads {
		resp.Stale, resp.StaleAge = true, knownAge(s.quorumAge())
	}
	said := make(map[string]*lofamov1.MaskStatus)
	if s.cfg.MasksSaid != nil && leads {
		for _, st := range s.cfg.MasksSaid() {
			said[st.GetNode()] = st
			resp.Nodes = append(resp.Nodes, &lofamov1.NodeMask{
				Node: st.GetNode(), Number: st.GetNumber(), Lost: st.GetLost(),
				Own: maskedNames(st.GetOwn()), Ordered: maskedNames(st.GetOrdered()), InForce: maskedNames(st.GetInForce()),
			})
		}
	}
	topo := s.cfg.Names.Topology()
	for _, m := range all {
		m = proto.CloneOf(m)
		if l, ok := view.LinkOf(m); ok && topo.Dims.Contains(l.Node) {
			a, b := l.Ends(topo.Dims)
			from, ours, _ := s.end(topo, a)
			to, theirs, _ := s.end(topo, b)
			m.Node, m.Peer = string(from), string(to) // the present node there
			for _, end := range [...]struct {
				id   string
				d    grid.Direction
				ours bool
			}{{m.GetNode(), l.Dir, ours}, {m.GetPeer(), l.Dir.Opposite(), theirs}} {
				if st := said[end.id]; leads && end.ours && (st == nil || chanmask.Mask(st.GetInForce()).Usable(end.d)) {
					m.Waiting = append(m.Waiting, end.id)
				}
			}
			slices.Sort(m.Waiting)
		}
		resp.Masks = append(resp.Masks, m)
	}
	return resp
}

func maskedNames(v uint32) []string {
	var out []string
	for _, d := range chanmask.Mask(v).Masked() {
		out = append(out, d.String())
	}
	return out
}

// CloseRegions implements the service Reconfigure.
func (s *Server) CloseRegions(ctx context.Context, req *lofamov1.CloseRegionsRequest) (*lofamov1.CloseRegionsResponse, error) {
	if s.cfg.RegionSupervisors != nil {
		return nil, s.elsewhere(nil)
	}
	return leadBy(ctx, s, func(ctx context.Context, by string) (*lofamov1.CloseRegionsResponse, error) {
		return s.closeRegions(ctx, by, req)
	}, func(ctx context.Context, conn grpc.ClientConnInterface) (*lofamov1.CloseRegionsResponse, error) {
		return lofamov1.NewReconfigureClient(conn).CloseRegions(ctx, req)
	})
}

// faultyRegions renders the found regions with the nodes at their places.
func (s *Server) faultyRegions(topo *topology.Topology, regions []chanmask.Region,
	closing chanmask.Closing) *lofamov1.CloseRegionsResponse {
	resp := &lofamov1.CloseRegionsResponse{Left: uint32(closing.Left.States)}
	idAt := func(c grid.Coord) string {
		id, _, ok := s.end(topo, c)
		if !ok {
			return c.String()
		}
		return string(id)
	}
	for _, r := range regions {
		out := &lofamov1.FaultyRegion{Concave: r.Concave}
		for _, l := range r.Links {
			out.Links = append(out.Links, &lofamov1.LinkName{Node: idAt(l.Node), Direction: l.Dir.String()})
		}
		for _, c := range r.Trap {
			out.Trap = append(out.Trap, idAt(c))
		}
		resp.Regions = append(resp.Regions, out)
	}
	for _, c := range closing.Isolated {
		resp.Isolated = append(resp.Isolated, idAt(c))
	}
	return resp
}

// allOurs refuses links without an end at a node of this region.
func (s *Server) allOurs(topo *topology.Topology, links []chanmask.Link) error {
	for _, l := range links {
		a, b := l.Ends(topo.Dims)
		_, here, _ := s.end(topo, a)
		if _, there, _ := s.end(topo, b); !here && !there {
			return status.Errorf(codes.FailedPrecondition, "closing the concave regions takes link %s, which lies in another region: nothing was "+
				"changed (--dry-run tells which links; its supervisors mask theirs)", l)
		}
	}
	return nil
}

func (s *Server) closeRegions(ctx context.Context, by string, req *lofamov1.CloseRegionsRequest) (*lofamov1.CloseRegionsResponse, error) {
	if err := checkReason(req.GetReason(), !req.GetDryRun()); err != nil {
		return nil, err
	}
	topo := s.cfg.Names.Topology() // before the map, so that a later change of places is noticed
	_, masks, _ := s.cfg.Masks.All()
	t, err := s.torus(ctx)
	if err != nil {
		return nil, err
	}
	if err := chanmask.CheckSize(t.Dims); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	regions, traps := t.Find()
	closing := t.Close(req.GetIsolate(), func() bool { return ctx.Err() != nil })
	if err := ctx.Err(); err != nil { // the caller is gone, and a partial result closes nothing
		return nil, status.FromContextError(err).Err()
	}
	resp := s.faultyRegions(topo, regions, closing)
	resp.Caught = uint32(traps.States)
	if n := len(closing.Mask); n > maxMasked && !req.GetDryRun() {
		return nil, status.Errorf(codes.InvalidArgument,
			"closing the concave regions takes %d masks: want at most %d at once: nothing was changed", n, maxMasked)
	}
	if len(closing.Mask) == 0 {
		return resp, nil
	}
	if err := s.allOurs(topo, closing.Mask); err != nil && !req.GetDryRun() {
		return nil, err
	}
	resp.Revision, err = s.cfg.Operators.Change(ctx, func(now store.Topology) ([]store.Write, error) {
		if !now.SamePlaces(topo) {
			return nil, status.Error(codes.Aborted, "nodes have changed their places meanwhile: nothing was changed: ask again")
		}
		if _, at, _ := s.cfg.Masks.All(); at != masks {
			return nil, status.Error(codes.Aborted, "masks have changed meanwhile: nothing was changed: ask again")
		}
		w, err := s.maskWrite(now.Topology, closing.Mask, true, req.GetReason(), by)
		if err != nil {
			return nil, err
		}
		resp.Masks = changedMasks(w)
		if req.GetDryRun() {
			return nil, nil
		}
		return []store.Write{w}, nil
	})
	if err != nil {
		return nil, err
	}
	if req.GetDryRun() {
		resp.Revision = 0
		return resp, nil
	}
	s.cfg.Logger.Info("concave regions closed", "by", by, "masks", len(resp.GetMasks()), "isolated", resp.GetIsolated(), "left",
		resp.GetLeft(), "revision", resp.GetRevision())
	return resp, nil
}
