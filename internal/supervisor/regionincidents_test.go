package supervisor_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestParentShowsIncidentsOfItsRegions: a parent lists, gets and watches the incidents of its regions under the regions' names, and
// says which regions do not answer. It acknowledges none.
func TestParentShowsIncidentsOfItsRegions(t *testing.T) {
	t.Parallel()
	r := supervisortest.NewRegions(t, supervisortest.Options{Dims: "4x1x1", Preset: config.PresetDefault}, 1, "west", "east")
	startAll(t, r.Region["west"]...)
	east := startAll(t, r.Region["east"]...)[0]
	startAll(t, r.Parent...)
	parent := r.Operator(t, r.Parent[0].GRPC)
	ctx, cancel := context.WithTimeout(t.Context(), 4*supervisortest.Wait)
	defer cancel()
	watching, err := parent.WatchIncidents(ctx, &lofamov1.WatchIncidentsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if first, err := watching.Recv(); err != nil || len(first.GetIncidents()) != 0 {
		t.Fatalf("%v, %v: want an empty response at first", first, err)
	}
	for node, region := range map[string]string{"n0-0-0": "west", "n3-0-0": "east"} {
		a := r.Agents[fault.NodeID(node)]
		id, b := a.Report(t, fault.HalfHost, false, temperature(fault.Sick))
		a.Deliver(t, id, b, r.Region[region][0].Report)
	}
	seen := map[string]bool{}
	for len(seen) < 2 {
		resp, err := watching.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, in := range resp.GetIncidents() {
			if !strings.HasPrefix(in.GetId(), in.GetRegion()+"/") || in.GetRegion() == "" || resp.GetRevision() != 0 {
				t.Errorf("the watch has %v", in)
			}
			seen[in.GetId()] = true
		}
	}
	// The parent waits a second for a region, which may be too short on a busy machine.
	answered := func(what string, call func() error) error {
		t.Helper()
		var err error
		supervisortest.Eventually(t, what, func() bool {
			err = call()
			return status.Code(err) != codes.Unavailable
		})
		return err
	}
	listed := func(req *lofamov1.ListIncidentsRequest, missing int) (list *lofamov1.ListIncidentsResponse, err error) {
		t.Helper()
		err = answered("the regions' incidents", func() error {
			if list, err = parent.ListIncidents(ctx, req); err == nil && len(list.GetMissingRegions()) > missing {
				return status.Errorf(codes.Unavailable, "without %v", list.GetMissingRegions())
			}
			return err
		})
		return list, err
	}
	list, err := listed(&lofamov1.ListIncidentsRequest{}, 0)
	if err != nil || len(list.GetIncidents()) != 2 {
		t.Fatalf("%v, %v: want one incident of each region", list, err)
	}
	for _, in := range list.GetIncidents() {
		var got *lofamov1.Incident
		err := answered("the incident", func() (err error) {
			got, err = parent.GetIncident(ctx, &lofamov1.GetIncidentRequest{Id: in.GetId()})
			return err
		})
		if err != nil || got.GetId() != in.GetId() || got.GetNode() != in.GetNode() || got.GetRegion() != in.GetRegion() || !seen[in.GetId()] {
			t.Errorf("%v, %v: want %v", got, err, in)
		}
	}
	one, err := listed(&lofamov1.ListIncidentsRequest{Node: "3,0,0"}, 0)
	if err != nil || len(one.GetIncidents()) != 1 || one.GetIncidents()[0].GetRegion() != "east" {
		t.Errorf("of one node: %v, %v", one, err)
	}
	for _, in := range list.GetIncidents() {
		id := strings.TrimPrefix(in.GetId(), in.GetRegion()+"/")
		_, err = parent.AcknowledgeIncident(ctx, &lofamov1.AcknowledgeIncidentRequest{Id: in.GetId()})
		wantCode(t, "an acknowledgement", err, codes.FailedPrecondition, "ask the supervisors of region "+in.GetRegion()+": lofamoctl --server "+
			r.Region[in.GetRegion()][0].GRPC+" acknowledge "+id+" (in a local cluster: lofamoctl --region "+in.GetRegion()+" acknowledge "+id+")")
	}
	for id, want := range map[string]string{
		"k3f9-aaaaaaaa": "want REGION/ID at a parent of regions, where REGION is one of east, west", "north/k3f9-aaaaaaaa": "want REGION/ID",
		"west/x": `id: given "west/x": want REGION/ID`,
	} {
		_, err = parent.AcknowledgeIncident(ctx, &lofamov1.AcknowledgeIncidentRequest{Id: id})
		wantCode(t, "an acknowledgement of "+id, err, codes.InvalidArgument, want)
	}
	_, err = parent.GetIncident(ctx, &lofamov1.GetIncidentRequest{Id: "north/k3f9-aaaaaaaa"})
	wantCode(t, "an unknown region", err, codes.InvalidArgument, "want REGION/ID at a parent of regions, where REGION is one of east, west")
	supervisortest.Eventually(t, "an answer of the west", func() bool { // a busy region may answer too late
		_, err = parent.GetIncident(ctx, &lofamov1.GetIncidentRequest{Id: "west/x"})
		return status.Code(err) != codes.Unavailable
	})
	wantCode(t, "an ill-formed id", err, codes.InvalidArgument, `id: given "x"`)
	stop(t, east)
	list, err = listed(&lofamov1.ListIncidentsRequest{}, 1)
	if err != nil || len(list.GetIncidents()) != 1 || len(list.GetMissingRegions()) != 1 || list.GetMissingRegions()[0] != "east" {
		t.Errorf("without the east: %v, %v", list, err)
	}
}
