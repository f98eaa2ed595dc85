package get

import (
	"slices"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// TestNextCommandsOfParentAreAccepted: only a local cluster has --region, and a parent calls a region's group by both names.
func TestNextCommandsOfParentAreAccepted(t *testing.T) {
	in := &lofamov1.Incident{Id: "west/k3f9-aaaaaaaa", Region: "west", Group: "label/rack=r1", Component: "group",
		State: lofamov1.IncidentState_OPEN}
	for _, tc := range []struct {
		local bool
		want  []string
	}{
		{true, []string{"lofamoctl explain west/label/rack=r1", "lofamoctl --region west acknowledge k3f9-aaaaaaaa --note NOTE"}},
		{false, []string{"lofamoctl explain west/label/rack=r1",
			"lofamoctl --server SUPERVISORS-OF-west acknowledge k3f9-aaaaaaaa --note NOTE"}},
	} {
		if got := (&clusterStatus{local: tc.local}).toDo(in); !slices.Equal(got, tc.want) {
			t.Errorf("local %v: %q, want %q", tc.local, got, tc.want)
		}
	}
}
