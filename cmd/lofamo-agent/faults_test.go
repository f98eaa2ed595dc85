package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// TestFaultsAreDated checks that the output shows the possible age of a node's knowledge.
func TestFaultsAreDated(t *testing.T) {
	heard := durationpb.New(104 * time.Millisecond)
	for _, c := range []struct {
		r    *lofamov1.WatchFaultsResponse
		want string
	}{
		{&lofamov1.WatchFaultsResponse{Pending: true}, `no message from a supervisor yet: nothing is known
some requested nodes are still missing
`},
		{&lofamov1.WatchFaultsResponse{Revision: 17, SupervisorsAge: heard}, `of revision 17; last message from a supervisor 104ms ago
`},
		{&lofamov1.WatchFaultsResponse{Revision: 17, SupervisorsAge: heard, Stale: true, StaleAge: durationpb.New(5123 * time.Millisecond)},
			`of revision 17; last message from a supervisor 104ms ago
STALE: the reachable supervisors have no quorum; the last quorum was 5.1s ago: this view may be that old
`},
		{&lofamov1.WatchFaultsResponse{Revision: 17, SupervisorsAge: heard, Stale: true},
			`of revision 17; last message from a supervisor 104ms ago
STALE: the reachable supervisors have no quorum; none has had one since this node's host half started: the age of this view is unknown
`},
	} {
		var b strings.Builder
		if err := writeFaults(&b, c.r); err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSuffix(b.String(), "NODE  STATE  CAUSE  FAULTS  GROUPS\n"); got != c.want {
			t.Errorf("%s\nwant\n%s", got, c.want)
		}
	}
}
