package policy

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Events of a file may lack anything: a group without an id, or without a known state, is counted and left out.
func TestUnreadableGroupsAreLeftOut(t *testing.T) {
	group := func(id string, to lofamov1.State) *lofamov1.Event {
		return &lofamov1.Event{Kind: lofamov1.EventKind_GROUP_CHANGED, Time: timestamppb.Now(), To: to, Group: &lofamov1.Group{Id: id}}
	}
	out, skipped := recordedEvents([]*lofamov1.Event{
		group("", lofamov1.State_FAILED), group("label/rack=r1", lofamov1.State_STATE_UNSPECIFIED), group("label/rack=r1", lofamov1.State(99)),
		group("label/rack=r1", lofamov1.State_FAILED),
	})
	if len(out) != 1 || skipped != 3 {
		t.Errorf("%d read, %d left out: want 1 and 3", len(out), skipped)
	}
}

func TestReplayRefusesNodesOutsideTorus(t *testing.T) {
	for _, coord := range []string{"2,0,0", "1,1,0"} {
		_, err := replayTopology(&lofamov1.Topology{Dims: "2x2x1 without 1,1,0", Nodes: []*lofamov1.TopologyNode{{Id: "a", Coord: coord}}})
		if err == nil || !strings.Contains(err.Error(), "node a: coordinate "+coord) {
			t.Errorf("a node at %s: %v", coord, err)
		}
	}
}
