package get

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
)

// TestNextCommandsOfParentAreAccepted: only a local cluster has --region, and a parent of regions explains a group by its
// prefixed ID. A parent of an earlier version names the group without the prefix.
func TestNextCommandsOfParentAreAccepted(t *testing.T) {
	for _, group := range []string{"west/label/rack=r1", "label/rack=r1"} {
		in := &lofamov1.Incident{Id: "west/k3f9-aaaaaaaa", Region: "west", Group: group, Component: "group",
			State: lofamov1.IncidentState_OPEN}
		for local, keeper := range map[bool]string{true: "--region west", false: "--server SUPERVISORS-OF-west"} {
			want := []string{"lofamoctl explain west/label/rack=r1", "lofamoctl " + keeper + " acknowledge k3f9-aaaaaaaa --note NOTE"}
			if got := (&clusterStatus{local: local}).toDo(nil, in); !slices.Equal(got, want) {
				t.Errorf("local %v, group %s: %q, want %q", local, group, got, want)
			}
		}
	}
}

// TestIncidentOfNodesTogetherNamesNoPlane: the place, the summary and the next command of a group fault in an ordinary cluster.
func TestIncidentOfNodesTogetherNamesNoPlane(t *testing.T) {
	in := &lofamov1.Incident{Id: "k3f9-aaaaaaaa", Group: "plane/Z=0", Component: "group", State: lofamov1.IncidentState_OPEN,
		Summary: "plane/Z=0 is FAILED: 4 of 4 nodes"}
	var out strings.Builder
	a := &command.App{Env: command.Env{Now: func() time.Time { return ctltest.Now }, Location: time.UTC, Stdout: &out}}
	cluster := &lofamov1.ClusterInfo{Ordinary: true, Dims: "2x2x1", Leader: "s1"}
	a.Learn(cluster)
	st := &clusterStatus{summary: &lofamov1.GetSummaryResponse{Cluster: cluster}, incidents: []*lofamov1.Incident{in}}
	if err := errors.Join(st.text(a), printIncident(a, in), a.Table(incidentRows(a, st.incidents, true))); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "plane") || strings.Count(out.String(), "nodes together is FAILED: 4 of 4 nodes") != 3 ||
		!strings.Contains(out.String(), "lofamoctl get incidents k3f9-aaaaaaaa\n") {
		t.Errorf("want no plane, three summaries and the next command in:\n%s", out.String())
	}
}

// TestTopologyOfOrdinaryClusterHasNoPlaces: nodes without a place say so.
func TestTopologyOfOrdinaryClusterHasNoPlaces(t *testing.T) {
	top := &lofamov1.Topology{Dims: "2x1x1", Nodes: []*lofamov1.TopologyNode{{Id: "n1", Coord: "0,0,0", Proved: true},
		{Id: "n2", Coord: "1,0,0", Proved: true}, {Id: "n3", Proved: true}}}
	want := [][]string{{"NODE", "NOTES", "SERVICE", "LABELS"}, {"n1", "-", "-", "-"}, {"n2", "-", "-", "-"}, {"n3", "takes no part", "-", "-"}}
	if got := topologyRows(top, wordsOf(top)); !slices.EqualFunc(got, want, slices.Equal) || sizeOf(top) != "2 nodes" {
		t.Errorf("%s: %q, want %q", sizeOf(top), got, want)
	}
	top.Nodes[1].Proved = false
	if got := topologyRows(top, wordsOf(top)); got[1][1] != "0,0,0" || got[3][1] != "spare" || sizeOf(top) != "dims 2x1x1" {
		t.Errorf("of a torus %s: %q", sizeOf(top), got)
	}
}

// TestStatusNamesLostServicePath: a node that has lost one of two service interfaces is no incident, but something is broken.
func TestStatusNamesLostServicePath(t *testing.T) {
	var out strings.Builder
	a := &command.App{Env: command.Env{Now: func() time.Time { return ctltest.Now }, Location: time.UTC, Stdout: &out}}
	st := &clusterStatus{summary: &lofamov1.GetSummaryResponse{Cluster: &lofamov1.ClusterInfo{Leader: "s1"},
		LostPaths: []*lofamov1.LostPaths{{Node: "n2", Interfaces: []string{"eth0"}, Of: 2}}}}
	if err := st.text(a); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1 node with a lost service path\n", "service paths   n2 has 1 of 2 service paths left: eth0 is down\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, out.String())
		}
	}
}

// TestRecoveringIncidentSaysWhenItCloses: the text about a RECOVERING incident says when it closes.
func TestRecoveringIncidentSaysWhenItCloses(t *testing.T) {
	a := &command.App{Env: command.Env{Now: func() time.Time { return ctltest.Now }, Location: time.UTC}}
	in := &lofamov1.Incident{Id: "k3f9-aaaaaaaa", Component: "node", State: lofamov1.IncidentState_RECOVERING, ConsequenceCount: 2}
	for _, tc := range []struct {
		until *timestamppb.Timestamp
		want  string
	}{
		{nil, "wait: the root cause has ended, but its consequences have not: the incident closes after incidentQuiet"},
		{timestamppb.New(ctltest.Now.Add(-time.Second)), "wait: all faults ended 1s ago; the incident closes after incidentQuiet"},
	} {
		in.Until = tc.until
		if got := (&clusterStatus{}).toDo(a, in); len(got) != 1 || !strings.HasPrefix(got[0], tc.want) {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}
