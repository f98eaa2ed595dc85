package client_test

import (
	"errors"
	"fmt"
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

// TestWatchOfIncidentsNamesThoseThatAreGone: supervisors refuse to resume a watch, since an incident has changed and is no longer kept.
// The client lists the incidents. The caller gets those that changed, also one that has left the filter, and the ids of those that are
// gone.
func TestWatchOfIncidentsNamesThoseThatAreGone(t *testing.T) {
	const open, closed = lofamov1.IncidentState_OPEN, lofamov1.IncidentState_CLOSED
	in := func(id string, state lofamov1.IncidentState, revision uint64) *lofamov1.Incident {
		return &lofamov1.Incident{Id: id, State: state, Revision: revision}
	}
	start := func(t *testing.T) (*client.Client, *clienttest.Server) {
		dir := t.TempDir()
		clienttest.PKI(t, dir)
		m := clienttest.NewMap()
		m.Commit(40)
		m.IncidentWatches = [][]*lofamov1.WatchIncidentsResponse{
			{{Revision: 9, Incidents: []*lofamov1.Incident{in("a", open, 5), in("b", open, 6), in("c", open, 7), in("d", open, 8)}},
				{Revision: 10, Incidents: []*lofamov1.Incident{in("d", closed, 10)}}},
			{{Revision: 50, Incidents: []*lofamov1.Incident{in("a", open, 50)}}},
		}
		m.Incidents = []*lofamov1.Incident{in("e", open, 30), in("b", closed, 20), in("f", closed, 2), in("a", open, 5)}
		s := clienttest.Serve(t, dir, m)
		s.RefuseIf(func(req proto.Message) error {
			if w, ok := req.(*lofamov1.WatchIncidentsRequest); ok && w.GetAfterRevision() > 0 && w.GetAfterRevision() < 20 {
				return status.Error(codes.OutOfRange, "want at least 20")
			}
			return nil
		})
		return dial(t, dir, s.Address), s
	}
	c, s := start(t)
	var got []string
	watch := func(after uint64) error {
		return c.WatchIncidents(bounded(t), &lofamov1.WatchIncidentsRequest{States: []lofamov1.IncidentState{open}, AfterRevision: after},
			func(r *lofamov1.WatchIncidentsResponse) error {
				var text []string
				for _, in := range r.GetIncidents() {
					text = append(text, in.GetId()+" "+in.GetState().String())
				}
				got = append(got, fmt.Sprint(r.GetRevision(), text, r.GetGone()))
				if r.GetRevision() == 50 {
					return client.ErrStop
				}
				return nil
			})
	}
	err := watch(0)
	want := []string{"9 [a OPEN b OPEN c OPEN d OPEN] []", "10 [d CLOSED] []", "40 [b CLOSED e OPEN] [c]", "50 [a OPEN] []"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v: want %q", got, err, want)
	}
	var asked []string
	for _, req := range s.Asked() {
		switch req := req.(type) {
		case *lofamov1.WatchIncidentsRequest:
			asked = append(asked, fmt.Sprint("watch after ", req.GetAfterRevision()))
		case *lofamov1.ListIncidentsRequest:
			asked = append(asked, fmt.Sprint("list ", req.GetStates()))
		}
	}
	if want := []string{"watch after 0", "watch after 10", "list []", "watch after 40"}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q: want %q", asked, want)
	}
	// A client does not know the incidents that its caller knew before.
	c, _ = start(t)
	if err := watch(3); !errors.Is(err, client.ErrCompacted) || status.Code(err) != codes.OutOfRange {
		t.Errorf("after revision 3: %v: want ErrCompacted", err)
	}
}
