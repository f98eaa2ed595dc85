package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/response/policy"
	"github.com/lofamo/lofamo/pkg/torus/grid"
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

// TestReplayOfLastPeriodKnowsEarlierMarks: with --since, a node marked before the period is under maintenance still, and the
// decisions are those of the whole recording.
func TestReplayOfLastPeriodKnowsEarlierMarks(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	at := func(ago time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-ago)) }
	const day = 24 * time.Hour
	events := []*lofamov1.Event{
		{Kind: lofamov1.EventKind_MAINTENANCE_CHANGED, Node: "n1", Time: at(3 * day)},
		{Kind: lofamov1.EventKind_MAINTENANCE_CHANGED, Node: "n5", Time: at(2 * day)},
		{Kind: lofamov1.EventKind_MAINTENANCE_CHANGED, Node: "n1", Time: at(2 * day), Ended: true},
	}
	for node, ago := range map[string]time.Duration{"n1": time.Hour, "n5": 2 * time.Hour} {
		events = append(events, &lofamov1.Event{Kind: lofamov1.EventKind_COMPONENT_CHANGED, Node: node, Component: "memory",
			To: lofamov1.State_FAILED, Cause: lofamov1.Cause_MEMORY, Time: at(ago), Observer: node + "/host"})
	}
	top := response.TopologyChanged{Dims: grid.Dims{X: 8, Y: 1, Z: 1}}
	for x := range 8 {
		top.Nodes = append(top.Nodes, response.NodeInfo{ID: fault.NodeID(fmt.Sprintf("n%d", x)), Coord: grid.Coord{X: x}})
	}
	text, err := policy.DefaultYAML()
	if err != nil {
		t.Fatal(err)
	}
	shipped, err := policy.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	replay := func(since time.Duration, form command.Format) string {
		t.Helper()
		var out bytes.Buffer
		a := &command.App{Env: command.Env{Stdout: &out, Stderr: io.Discard, Now: func() time.Time { return now }, Location: time.UTC}}
		run := policy.ReplayOptions{Topology: top, Config: response.Default(), Policies: policy.Policies(shipped), Enforce: true,
			Supervisors: []response.SupervisorInfo{{ID: "supervisor", Alive: true}}}
		if err := printReplay(a, events, run, &testFlags{since: since}, form); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	decisions := func(since time.Duration) (of replayedReport) {
		t.Helper()
		if err := json.Unmarshal([]byte(replay(since, command.FormatJSON)), &of); err != nil {
			t.Fatal(err)
		}
		of.Start = time.Time{}
		return of
	}
	all := decisions(0)
	if len(all.Decisions) == 0 {
		t.Fatal("no decisions: the test tests nothing")
	}
	if last := decisions(day); !reflect.DeepEqual(last, all) {
		t.Errorf("with --since: %+v, without: %+v", last, all)
	}
	if got := replay(day, command.FormatTable); !strings.HasPrefix(got, "2 events from ") {
		t.Errorf("printed: %s", got)
	}
}
