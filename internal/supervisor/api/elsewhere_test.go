package api

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestChangesAtParent: a parent returns its topology, changes none, and names the supervisors to ask.
func TestChangesAtParent(t *testing.T) {
	names := newLeads(dimsOf(t, "2x2x2")).names
	s := New(Config{
		Names: names, Directory: alone{}, RegionSupervisors: map[string][]string{"west": {"10.0.0.1:7", "10.0.0.2:7"}, "east": {"10.0.1.1:7"}},
		RegionOf: func(id fault.NodeID) string {
			at, ok := names.Coord(id)
			switch {
			case !ok:
				return ""
			case at.X == 0:
				return "west"
			}
			return "east"
		},
	})
	ctx := asOperator(t)
	top, err := s.GetTopology(ctx, &lofamov1.GetTopologyRequest{})
	if err != nil || top.GetDims() != "2x2x2" || len(top.GetNodes()) != 9 {
		t.Errorf("%v, %v", top, err)
	}
	refused := func(what string, err error, code codes.Code, text string, regions ...string) {
		t.Helper()
		if status.Code(err) != code || !strings.Contains(fmt.Sprint(err), text) {
			t.Errorf("%s: %v, want %s with %q", what, err, code, text)
		}
		details := status.Convert(err).Details()
		if len(regions) == 0 || len(details) != 1 {
			if len(regions) != len(details) {
				t.Errorf("%s: details %v, want regions %v", what, details, regions)
			}
			return
		}
		info, ok := details[0].(*errdetails.ErrorInfo)
		if !ok || info.GetReason() != "ASK_REGION" || len(info.GetMetadata()) != len(regions) {
			t.Errorf("%s: details %v, want regions %v", what, details, regions)
		}
		for _, name := range regions {
			if info.GetMetadata()[name] == "" {
				t.Errorf("%s: details %v say nothing of %s", what, details, name)
			}
		}
	}
	_, err = s.SetMaintenance(ctx, &lofamov1.SetMaintenanceRequest{Nodes: []string{"n0-0-0", "0,1,0"}, Reason: "x"})
	refused("two of the west", err, codes.FailedPrecondition,
		"ask the supervisors of region west (10.0.0.1:7, 10.0.0.2:7) (lofamoctl --region NAME", "west")
	_, err = s.EndMaintenance(ctx, &lofamov1.EndMaintenanceRequest{Nodes: []string{"n1-0-0", "n0-0-0"}})
	refused("one of each", err, codes.FailedPrecondition, "east (10.0.1.1:7), west (10.0.0.1:7, 10.0.0.2:7), each for its own nodes",
		"east", "west")
	_, err = s.SetMaintenance(ctx, &lofamov1.SetMaintenanceRequest{Nodes: []string{"nobody"}, Reason: "x"})
	refused("nobody", err, codes.NotFound, "no node of that id")

	top.Nodes[7].Labels = map[string]string{"rack": "r9"}
	_, err = s.ApplyTopology(ctx, &lofamov1.ApplyTopologyRequest{Topology: top})
	refused("a label in the east", err, codes.FailedPrecondition, "ask the supervisors of region east (10.0.1.1:7) (", "east")
	top.Nodes = nil
	_, err = s.ApplyTopology(ctx, &lofamov1.ApplyTopologyRequest{Topology: top})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("no nodes: %v", err)
	}
}
