package api

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/awareness"
)

// A parent of regions keeps no incidents. It shows those of its regions, and prefixes the ids of incidents and group faults
// with the region: "REGION/ID".

// Bounds of a parent's requests for its regions' incidents.
const (
	regionIncidentsTime  = time.Second            // for one region
	regionListTime       = 10 * time.Second       // for all incidents of one region, after a watch that cannot resume
	regionIncidentsNext  = 250 * time.Millisecond // until the next supervisor of a region is asked as well
	maxRegionIncidents   = 1000                   // of one region
	regionIncidentsPage  = 500
	regionIncidentsRetry = time.Second // pause before a region's watch begins again
)

// isParent reports whether this supervisor is a parent, which shows the incidents of its regions.
func (s *Server) isParent() bool { return s.cfg.RegionClients != nil }

// ofRegion returns an incident as the parent shows it.
func ofRegion(region string, in *lofamov1.Incident) *lofamov1.Incident {
	in.Region = region
	for _, id := range []*string{&in.Id, &in.Group, &in.MergedInto, &in.SplitFrom} {
		if *id != "" {
			*id = region + "/" + *id
		}
	}
	for i := range in.GetMerged() {
		in.Merged[i] = region + "/" + in.Merged[i]
	}
	for _, r := range in.GetResponses() {
		if r.GetGroup() != "" {
			r.Group = region + "/" + r.GetGroup()
		}
	}
	return in
}

// regionsOf returns the regions with incidents of a node; "": all regions.
func (s *Server) regionsOf(node string) (regions []string, id string, err error) {
	found, err := s.findOptional(node)
	if err != nil {
		return nil, "", err
	}
	if found != "" {
		return []string{s.regionOf(found)}, string(found), nil
	}
	return slices.Sorted(maps.Keys(s.cfg.RegionSupervisors)), "", nil
}

// listBelow returns the incidents of all regions, at most maxRegionIncidents of each, and names the regions that do not answer.
func (s *Server) listBelow(ctx context.Context, req *lofamov1.ListIncidentsRequest,
	_ func(*lofamov1.Incident) bool) (*lofamov1.ListIncidentsResponse, error) {
	regions, node, err := s.regionsOf(req.GetNode())
	if err != nil {
		return nil, err
	}
	answers := make([]*lofamov1.ListIncidentsResponse, len(regions))
	var wg sync.WaitGroup
	for i, region := range regions {
		wg.Go(func() {
			// A region that does not answer is named as missing.
			answers[i], _ = askRegion(ctx, s.cfg.RegionClients(region), func(ctx context.Context,
				c lofamov1.FaultSupervisorClient) (*lofamov1.ListIncidentsResponse, error) {
				return listRegion(ctx, c, &lofamov1.ListIncidentsRequest{States: req.GetStates(), Since: req.GetSince(), Node: node,
					Limit: regionIncidentsPage}, maxRegionIncidents)
			})
		})
	}
	wg.Wait()
	out := &lofamov1.ListIncidentsResponse{}
	for i, region := range regions {
		if answers[i] == nil {
			out.MissingRegions = append(out.MissingRegions, region)
			continue
		}
		out.Stale = out.GetStale() || answers[i].GetStale()
		for _, in := range answers[i].GetIncidents() {
			out.Incidents = append(out.Incidents, ofRegion(region, in))
		}
	}
	if len(out.GetMissingRegions()) == len(regions) {
		return nil, status.Errorf(codes.Unavailable, "incidents: no supervisor of region %s answers", strings.Join(regions, ", "))
	}
	return out, nil
}

// askRegion returns the first answer of a region's supervisors. An error with which a supervisor refuses the request is an answer, too.
// askRegion asks the next supervisor after any other error. It also does so while earlier ones are silent, because a supervisor that hangs
// must not use up the time of the others.
func askRegion[T any](ctx context.Context, clients []lofamov1.FaultSupervisorClient,
	ask func(context.Context, lofamov1.FaultSupervisorClient) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, regionIncidentsTime)
	defer cancel()
	type outcome struct {
		answer T
		err    error
	}
	var none T
	outcomes, asked, failed := make(chan outcome, len(clients)), 0, 0
	for failed < len(clients) {
		var next <-chan time.Time
		if asked < len(clients) {
			c := clients[asked]
			asked++
			go func() { // ends with ctx
				answer, err := ask(ctx, c)
				outcomes <- outcome{answer, err}
			}()
			next = time.After(regionIncidentsNext)
		}
		select {
		case o := <-outcomes:
			if o.err == nil || slices.Contains(verdicts, status.Code(o.err)) {
				return o.answer, o.err
			}
			failed++
		case <-next:
		case <-ctx.Done():
			return none, status.FromContextError(ctx.Err()).Err()
		}
	}
	return none, status.Error(codes.Unavailable, "no supervisor answers")
}

// listRegion reads the pages of one supervisor: at most limit incidents, and the revision of the first page.
func listRegion(ctx context.Context, c lofamov1.FaultSupervisorClient, req *lofamov1.ListIncidentsRequest,
	limit int) (*lofamov1.ListIncidentsResponse, error) {
	out := &lofamov1.ListIncidentsResponse{}
	for {
		resp, err := c.ListIncidents(ctx, req)
		if err != nil {
			return nil, err
		}
		if req.GetContinue() == "" {
			out.Revision = resp.GetRevision()
		}
		out.Incidents, out.Stale = append(out.Incidents, resp.GetIncidents()...), out.GetStale() || resp.GetStale()
		if len(out.GetIncidents()) > limit {
			out.Incidents = out.GetIncidents()[:limit]
		}
		if req.Continue = resp.GetContinue(); req.GetContinue() == "" || len(out.GetIncidents()) == limit {
			return out, nil
		}
	}
}

// cutIncidentID splits an incident's ID at a parent, REGION/ID. It refuses an unknown region.
func (s *Server) cutIncidentID(name string) (region, id string, err error) {
	region, id, ok := strings.Cut(name, "/")
	if !ok || s.cfg.RegionSupervisors[region] == nil {
		return "", "", invalid("id", "given %.64q: want REGION/ID at a parent of regions, where REGION is one of %s", name,
			strings.Join(slices.Sorted(maps.Keys(s.cfg.RegionSupervisors)), ", "))
	}
	return region, id, nil
}

// acknowledgeElsewhere refuses an acknowledgement at a parent, and names the region's supervisors and the command for them.
func (s *Server) acknowledgeElsewhere(name string) error {
	region, id, err := s.cutIncidentID(name)
	switch {
	case err != nil:
		return err
	case !awareness.ValidIncidentID(id):
		return invalid("id", "given %.64q: want REGION/ID, with an incident's id such as k3f9-7qm2xw4d", name)
	}
	servers := strings.Join(s.cfg.RegionSupervisors[region], ",")
	return withInfo(codes.FailedPrecondition, reasonAskRegion, fmt.Sprintf("a parent of regions changes nothing: ask the supervisors of "+
		"region %s: lofamoctl --server %s acknowledge %s (in a local cluster: lofamoctl --region %s acknowledge %s)",
		region, servers, id, region, id), map[string]string{region: servers})
}

// getBelow returns an incident of a region.
func (s *Server) getBelow(ctx context.Context, name string) (*lofamov1.Incident, error) {
	region, id, err := s.cutIncidentID(name)
	if err != nil {
		return nil, err
	}
	in, err := askRegion(ctx, s.cfg.RegionClients(region), func(ctx context.Context,
		c lofamov1.FaultSupervisorClient) (*lofamov1.Incident, error) {
		return c.GetIncident(ctx, &lofamov1.GetIncidentRequest{Id: id})
	})
	switch {
	case err == nil:
		return ofRegion(region, in), nil
	case slices.Contains(verdicts, status.Code(err)):
		return nil, err
	}
	return nil, status.Errorf(codes.Unavailable, "incident %s: no supervisor of region %s answers", id, region)
}

// watchBelow passes on the watches of all regions. A client that reads too slowly delays them: the regions then send the newest
// form of each incident only.
func (s *Server) watchBelow(req *lofamov1.WatchIncidentsRequest, stream grpc.ServerStreamingServer[lofamov1.WatchIncidentsResponse]) error {
	regions, node, err := s.regionsOf(req.GetNode())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	out := make(chan *lofamov1.WatchIncidentsResponse)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, region := range regions {
		wg.Go(func() {
			r, after := &regionStream{region, req.GetStates(), make(map[string]bool), out}, uint64(0)
			for ctx.Err() == nil {
				after = s.watchRegion(ctx, r, &lofamov1.WatchIncidentsRequest{States: req.GetStates(), Node: node, AfterRevision: after})
				select {
				case <-ctx.Done():
				case <-time.After(regionIncidentsRetry):
				}
			}
		})
	}
	if err := stream.Send(&lofamov1.WatchIncidentsResponse{}); err != nil {
		return err
	}
	for {
		select {
		case resp := <-out:
			if err := stream.Send(resp); err != nil {
				return err
			}
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-s.cfg.Stopping:
			return status.Error(codes.Unavailable, "the supervisor stops")
		}
	}
}

// regionStream is a client's watch of one region, across the supervisors that it asks.
type regionStream struct {
	region string
	states []lofamov1.IncidentState // those that the client wants; empty: all
	sent   map[string]bool          // the ids of the incidents that the client knows and that are in these states
	out    chan<- *lofamov1.WatchIncidentsResponse
}

// wants reports whether an incident is in the states that the client wants.
func (r *regionStream) wants(in *lofamov1.Incident) bool {
	return len(r.states) == 0 || slices.Contains(r.states, in.GetState())
}

// pass passes on a response of the region, unless it is a bookmark.
func (r *regionStream) pass(ctx context.Context, resp *lofamov1.WatchIncidentsResponse) error {
	resp.Revision = 0
	for _, in := range resp.GetIncidents() {
		if ofRegion(r.region, in); r.wants(in) {
			r.sent[in.GetId()] = true
		} else {
			delete(r.sent, in.GetId())
		}
	}
	for i := range resp.GetGone() {
		resp.Gone[i] = r.region + "/" + resp.Gone[i]
		delete(r.sent, resp.Gone[i])
	}
	if len(resp.GetIncidents())+len(resp.GetGone()) == 0 {
		return nil
	}
	select {
	case r.out <- resp:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// watchRegion passes on the watch of one supervisor of a region until it breaks off, and returns the revision to resume from. If the
// region cannot resume, watchRegion lists its incidents.
func (s *Server) watchRegion(ctx context.Context, r *regionStream, req *lofamov1.WatchIncidentsRequest) (after uint64) {
	after = req.GetAfterRevision()
	for _, c := range s.cfg.RegionClients(r.region) {
		in, err := c.WatchIncidents(ctx, req)
		for err == nil {
			var resp *lofamov1.WatchIncidentsResponse
			if resp, err = in.Recv(); err != nil {
				break
			}
			after = max(after, resp.GetRevision())
			err = r.pass(ctx, resp)
		}
		if status.Code(err) == codes.OutOfRange {
			if revision, err := r.list(ctx, c, req.GetNode(), after); err == nil {
				return revision
			}
		} else if after > req.GetAfterRevision() {
			return after
		}
	}
	return after
}

// list passes on the incidents of a supervisor that the client wants or knows. It names the known ones that the region no longer keeps,
// and returns the revision to resume from. If the list's revision is lower than after, the region's store was replaced: then all
// known incidents are gone, and the watch starts from the beginning.
func (r *regionStream) list(ctx context.Context, c lofamov1.FaultSupervisorClient, node string, after uint64) (uint64, error) {
	bounded, cancel := context.WithTimeout(ctx, regionListTime)
	defer cancel()
	all, err := listRegion(bounded, c, &lofamov1.ListIncidentsRequest{Node: node, Limit: regionIncidentsPage}, math.MaxInt)
	kept := all
	if err == nil && node != "" { // a kept incident may no longer concern the node
		kept, err = listRegion(bounded, c, &lofamov1.ListIncidentsRequest{Limit: regionIncidentsPage}, math.MaxInt)
	}
	switch {
	case err != nil:
		return 0, err
	case all.GetStale(), kept.GetStale():
		return 0, fmt.Errorf("incidents of region %s: the list is stale", r.region)
	}
	gone, resp := maps.Clone(r.sent), &lofamov1.WatchIncidentsResponse{}
	if all.GetRevision() < after {
		all, kept = nil, nil
	}
	for _, in := range kept.GetIncidents() {
		delete(gone, r.region+"/"+in.GetId())
	}
	for _, in := range all.GetIncidents() {
		id := r.region + "/" + in.GetId()
		if r.wants(in) || r.sent[id] {
			resp.Incidents = append(resp.Incidents, in)
		}
	}
	slices.SortFunc(resp.Incidents, func(a, b *lofamov1.Incident) int { return cmp.Compare(a.GetRevision(), b.GetRevision()) })
	for _, id := range slices.Sorted(maps.Keys(gone)) {
		resp.Gone = append(resp.Gone, strings.TrimPrefix(id, r.region+"/"))
	}
	return all.GetRevision(), sendIncidents(resp, func(resp *lofamov1.WatchIncidentsResponse) error { return r.pass(ctx, resp) })
}
