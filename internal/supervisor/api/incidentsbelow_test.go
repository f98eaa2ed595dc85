package api

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// regionWatch is a supervisor of a region: its watches of incidents send the configured answers. The first ones, up to the number of
// refusals, end with a refusal; the last one stays.
type regionWatch struct {
	lofamov1.FaultSupervisorClient
	grpc.ServerStreamingClient[lofamov1.WatchIncidentsResponse]

	ctx     context.Context
	asked   []uint64 // the revision of each watch
	answers [][]*lofamov1.WatchIncidentsResponse
	lists   []*lofamov1.ListIncidentsResponse // the pages of successive lists

	refusals int
}

func (r *regionWatch) ListIncidents(_ context.Context, req *lofamov1.ListIncidentsRequest,
	_ ...grpc.CallOption) (*lofamov1.ListIncidentsResponse, error) {
	if len(req.GetStates()) > 0 || req.GetNode() != "" {
		return nil, status.Error(codes.InvalidArgument, "want a list of all incidents")
	}
	page := r.lists[0]
	r.lists = r.lists[1:]
	return page, nil
}

func (r *regionWatch) WatchIncidents(ctx context.Context, req *lofamov1.WatchIncidentsRequest,
	_ ...grpc.CallOption) (grpc.ServerStreamingClient[lofamov1.WatchIncidentsResponse], error) {
	r.ctx = ctx
	r.asked = append(r.asked, req.GetAfterRevision())
	return r, nil
}

func (r *regionWatch) Recv() (*lofamov1.WatchIncidentsResponse, error) {
	n := min(len(r.asked)-1, len(r.answers)-1)
	refuses := len(r.asked) <= r.refusals
	if len(r.answers[n]) == 0 || refuses && len(r.asked) > 1 {
		if refuses {
			return nil, status.Error(codes.OutOfRange, "list again")
		}
		<-r.ctx.Done()
		return nil, r.ctx.Err()
	}
	resp := r.answers[n][0]
	r.answers[n] = r.answers[n][1:]
	return resp, nil
}

// regionReplica is a supervisor of a region that lists one incident, or that hangs.
type regionReplica struct {
	lofamov1.FaultSupervisorClient

	hangs bool
}

// answer returns an error if the call has no time left.
func (r *regionReplica) answer(ctx context.Context) error {
	if r.hangs {
		<-ctx.Done()
	}
	return status.FromContextError(ctx.Err()).Err()
}

func (r *regionReplica) ListIncidents(ctx context.Context, _ *lofamov1.ListIncidentsRequest,
	_ ...grpc.CallOption) (*lofamov1.ListIncidentsResponse, error) {
	if err := r.answer(ctx); err != nil {
		return nil, err
	}
	return &lofamov1.ListIncidentsResponse{Incidents: []*lofamov1.Incident{{Id: "a"}}}, nil
}

func (r *regionReplica) GetIncident(ctx context.Context, req *lofamov1.GetIncidentRequest,
	_ ...grpc.CallOption) (*lofamov1.Incident, error) {
	if err := r.answer(ctx); err != nil {
		return nil, err
	}
	if req.GetId() != "a" {
		return nil, status.Error(codes.NotFound, "there is none")
	}
	return &lofamov1.Incident{Id: "a"}, nil
}

// TestHungSupervisorHidesNoRegion: a supervisor that hangs does not use up the time of the region's other supervisors.
func TestHungSupervisorHidesNoRegion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients := []lofamov1.FaultSupervisorClient{&regionReplica{hangs: true}, &regionReplica{hangs: true}, &regionReplica{}}
		s := &Server{cfg: Config{
			RegionSupervisors: map[string][]string{"west": {"10.0.0.1:1"}},
			RegionClients:     func(string) []lofamov1.FaultSupervisorClient { return clients },
		}}
		list, err := s.listBelow(t.Context(), &lofamov1.ListIncidentsRequest{}, nil)
		if err != nil || len(list.GetMissingRegions()) > 0 || len(list.GetIncidents()) != 1 {
			t.Errorf("%v, %v: want the incident of west", list, err)
		}
		if in, err := s.getBelow(t.Context(), "west/a"); err != nil || in.GetId() != "west/a" {
			t.Errorf("%v, %v: want the incident of west", in, err)
		}
		if _, err := s.getBelow(t.Context(), "west/b"); status.Code(err) != codes.NotFound {
			t.Errorf("%v: want NotFound", err)
		}
		clients = clients[:2]
		if list, err := s.listBelow(t.Context(), &lofamov1.ListIncidentsRequest{}, nil); status.Code(err) != codes.Unavailable {
			t.Errorf("%v, %v: want Unavailable", list, err)
		}
	})
}

// parentStream is the stream to a parent's client.
type parentStream struct {
	grpc.ServerStreamingServer[lofamov1.WatchIncidentsResponse]

	ctx  context.Context
	sent []*lofamov1.WatchIncidentsResponse
}

func (s *parentStream) Context() context.Context { return s.ctx }

func (s *parentStream) Send(resp *lofamov1.WatchIncidentsResponse) error {
	s.sent = append(s.sent, resp)
	return nil
}

// TestIncidentsOfReplacedStoreAreGone: if a region's store is replaced, the parent names the sent incidents as gone before it sends
// those of the new store. It does not name those that had left the filter, or were gone.
func TestIncidentsOfReplacedStoreAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := func(id string, state lofamov1.IncidentState) *lofamov1.Incident {
			return &lofamov1.Incident{Id: id, State: state}
		}
		const open, closed = lofamov1.IncidentState_OPEN, lofamov1.IncidentState_CLOSED
		region := &regionWatch{answers: [][]*lofamov1.WatchIncidentsResponse{
			{
				{Revision: 7, Incidents: []*lofamov1.Incident{in("b", open), in("a", open), in("c", open), in("d", open)}},
				{Revision: 8, Incidents: []*lofamov1.Incident{in("c", closed)}, Gone: []string{"d"}},
			},
			{{Revision: 2, Incidents: []*lofamov1.Incident{in("a", open)}}},
		}, lists: []*lofamov1.ListIncidentsResponse{{Revision: 2, Incidents: []*lofamov1.Incident{in("a", open)}}}, refusals: 1}
		s := &Server{cfg: Config{
			RegionSupervisors: map[string][]string{"west": {"10.0.0.1:1"}},
			RegionClients:     func(string) []lofamov1.FaultSupervisorClient { return []lofamov1.FaultSupervisorClient{region} },
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 3*regionIncidentsRetry)
		defer cancel()
		stream := &parentStream{ctx: ctx}
		if err := s.watchBelow(&lofamov1.WatchIncidentsRequest{States: []lofamov1.IncidentState{open}}, stream); status.Code(err) !=
			codes.DeadlineExceeded {
			t.Fatal(err)
		}
		if !slices.Equal(region.asked, []uint64{0, 0}) || len(stream.sent) != 5 {
			t.Fatalf("watches after the revisions %v: sent %v", region.asked, stream.sent)
		}
		if gone := stream.sent[3].GetGone(); !slices.Equal(gone, []string{"west/a", "west/b"}) {
			t.Errorf("gone: %v: want west/a and west/b", gone)
		}
		if last := stream.sent[4].GetIncidents(); len(last) != 1 || last[0].GetId() != "west/a" {
			t.Errorf("of the new store: %v", last)
		}
	})
}

// TestParentListsIncidentsOfRegionThatCannotResume: an incident of a region closes while the parent is away, and the region no longer keeps
// it. The parent names it as gone, and sends the present forms of the others, also of one that has left the filter. The watch
// resumes after the list.
func TestParentListsIncidentsOfRegionThatCannotResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := func(id string, revision uint64, state lofamov1.IncidentState) *lofamov1.Incident {
			return &lofamov1.Incident{Id: id, Revision: revision, State: state}
		}
		const open, closed = lofamov1.IncidentState_OPEN, lofamov1.IncidentState_CLOSED
		region := &regionWatch{
			answers: [][]*lofamov1.WatchIncidentsResponse{
				{{Revision: 7, Incidents: []*lofamov1.Incident{in("a", 3, open), in("b", 4, open), in("c", 5, open)}}},
				{{Revision: 60, Incidents: []*lofamov1.Incident{in("a", 60, open)}}},
			},
			lists: []*lofamov1.ListIncidentsResponse{
				{Revision: 30, Stale: true}, // of a supervisor without a quorum
				{Revision: 40, Incidents: []*lofamov1.Incident{in("d", 35, open), in("b", 30, closed)}, Continue: "more"},
				{Revision: 41, Incidents: []*lofamov1.Incident{in("e", 20, closed), in("a", 3, open)}},
			},
			refusals: 2,
		}
		s := &Server{cfg: Config{
			RegionSupervisors: map[string][]string{"west": {"10.0.0.1:1"}},
			RegionClients:     func(string) []lofamov1.FaultSupervisorClient { return []lofamov1.FaultSupervisorClient{region} },
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 4*regionIncidentsRetry)
		defer cancel()
		stream := &parentStream{ctx: ctx}
		if err := s.watchBelow(&lofamov1.WatchIncidentsRequest{States: []lofamov1.IncidentState{open}}, stream); status.Code(err) !=
			codes.DeadlineExceeded {
			t.Fatal(err)
		}
		if !slices.Equal(region.asked, []uint64{0, 7, 40}) || len(stream.sent) != 4 {
			t.Fatalf("watches after the revisions %v: sent %v", region.asked, stream.sent)
		}
		var got []string
		for _, in := range stream.sent[2].GetIncidents() {
			got = append(got, in.GetId()+" "+in.GetState().String())
		}
		if list := stream.sent[2]; !slices.Equal(got, []string{"west/a OPEN", "west/b CLOSED", "west/d OPEN"}) ||
			!slices.Equal(list.GetGone(), []string{"west/c"}) || list.GetRevision() != 0 {
			t.Errorf("after the refusal: %v: want a, b and d, c gone, and no revision", list)
		}
	})
}
