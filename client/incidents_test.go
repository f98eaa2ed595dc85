package client_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
)

// TestAllIncidentsNamesMissingRegionsOfEveryPage: a region that stops to answer between two pages is missing from the joined list.
func TestAllIncidentsNamesMissingRegionsOfEveryPage(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	m.Incidents = []*lofamov1.Incident{{Id: "r1/k3f9-aaaaaaaa"}, {Id: "r1/k3f9-bbbbbbbb"}, {Id: "r1/k3f9-cccccccc"}}
	m.MissingRegions = map[string][]string{"": {"r3"}, "1": {"r2", "r3"}, "2": {"r2"}}
	c := dial(t, dir, clienttest.Serve(t, dir, m).Address)
	all, err := c.AllIncidents(bounded(t), &lofamov1.ListIncidentsRequest{}, 1)
	if err != nil || len(all.GetIncidents()) != 3 || !slices.Equal(all.GetMissingRegions(), []string{"r2", "r3"}) {
		t.Errorf("%v, %v: want three incidents, without the regions r2 and r3", all, err)
	}
}

// TestWatchOfIncidentsResumesAtParent: a parent has no revision to resume after, and sends all incidents again. The caller gets only
// those that changed during the outage, also one that has left the filter.
func TestWatchOfIncidentsResumesAtParent(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	in := func(id string, state lofamov1.IncidentState, revision uint64) *lofamov1.Incident {
		return &lofamov1.Incident{Id: "r1/" + id, State: state, Revision: revision}
	}
	const open, closed = lofamov1.IncidentState_OPEN, lofamov1.IncidentState_CLOSED
	answers := func(list ...*lofamov1.Incident) []*lofamov1.WatchIncidentsResponse {
		return []*lofamov1.WatchIncidentsResponse{{}, {Incidents: list}}
	}
	m := clienttest.NewMap()
	m.IncidentWatches = [][]*lofamov1.WatchIncidentsResponse{
		append(answers(in("a", open, 5), in("b", open, 6), in("e", open, 7)), &lofamov1.WatchIncidentsResponse{Gone: []string{"r1/e"}}),
		answers(in("a", closed, 9), in("b", open, 6), in("c", open, 8), in("d", closed, 3), in("e", open, 7)),
		answers(in("a", closed, 9), in("b", open, 10), in("c", open, 8), in("d", closed, 3), in("e", open, 7)),
	}
	s := clienttest.Serve(t, dir, m)
	c := dial(t, dir, s.Address)
	var got []string
	err := c.WatchIncidents(bounded(t), &lofamov1.WatchIncidentsRequest{States: []lofamov1.IncidentState{open}, Node: "n"},
		func(r *lofamov1.WatchIncidentsResponse) error {
			for _, in := range r.GetIncidents() {
				got = append(got, in.GetId()+" "+in.GetState().String())
			}
			return nil
		})
	want := "r1/a OPEN, r1/b OPEN, r1/e OPEN, r1/a CLOSED, r1/c OPEN, r1/e OPEN, r1/b OPEN"
	if text := strings.Join(got, ", "); text != want || status.Code(err) != codes.PermissionDenied {
		t.Errorf("%s, %v: want %s, and the refusal", text, err, want)
	}
	for i, req := range s.Asked() {
		if req := req.(*lofamov1.WatchIncidentsRequest); (len(req.GetStates()) == 1) != (i == 0) || req.GetNode() != "n" {
			t.Errorf("watch %d asks for %v: want all states after a restart", i, req)
		}
	}
}

// TestWatchOfIncidentsNamesReplacedStore: the supervisors' store is replaced by one with an older revision, which has other incidents.
func TestWatchOfIncidentsNamesReplacedStore(t *testing.T) {
	dir := t.TempDir()
	clienttest.PKI(t, dir)
	m := clienttest.NewMap()
	m.IncidentWatches = [][]*lofamov1.WatchIncidentsResponse{{{Revision: 500}}}
	s := clienttest.Serve(t, dir, m)
	s.RefuseIf(func(req proto.Message) error {
		if w, ok := req.(*lofamov1.WatchIncidentsRequest); ok && w.GetAfterRevision() > 20 {
			return status.Error(codes.OutOfRange, "the store is at 20")
		}
		return nil
	})
	err := dial(t, dir, s.Address).WatchIncidents(bounded(t), &lofamov1.WatchIncidentsRequest{},
		func(*lofamov1.WatchIncidentsResponse) error { return nil })
	if !errors.Is(err, client.ErrCompacted) || status.Code(err) != codes.OutOfRange || !strings.Contains(err.Error(), "the store is at 20") {
		t.Errorf("%v: want ErrCompacted with the supervisor's words", err)
	}
}
