package api

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/pkg/fault"
)

// parentOfTwo serves a parent of two regions: the nodes with X below 1, and the others. Its regions have reported
// only that their nodes are NORMAL.
func parentOfTwo(t *testing.T) *harness {
	h, l := harmed(t)
	h.connect(t, Config{
		Info: &lofamov1.ClusterInfo{}, Names: l.names, Marks: h.marks, QuorumAge: func() time.Duration { return 0 }, Engine: follower{},
		Copy:      h.store,
		Directory: alone{}, Metrics: metrics.New(prometheus.NewRegistry()), Stopping: h.stopping, WatchQueue: 16,
		RegionOf: func(id fault.NodeID) string {
			if at, ok := l.names.Coord(id); ok && at.X > 0 {
				return "east"
			}
			return "west"
		},
		Kept: func(_ context.Context, id fault.NodeID) (*lofamov1.Node, error) {
			return &lofamov1.Node{Id: string(id), State: lofamov1.State_NORMAL,
				Components: []*lofamov1.Component{{Name: "host", State: lofamov1.State_NORMAL}}}, nil
		},
	})
	return h
}

// TestRegionEventConcernsItsNodes: the event that a region was cut off concerns each of its nodes.
func TestRegionEventConcernsItsNodes(t *testing.T) {
	h := parentOfTwo(t)
	const u, n = lofamov1.State_UNKNOWN, lofamov1.State_NORMAL
	h.put(t, &lofamov1.Event{Reason: "west", Kind: lofamov1.EventKind_REGION_CHANGED, Region: "west", From: n, To: u})
	h.put(t, &lofamov1.Event{Reason: "east", Kind: lofamov1.EventKind_REGION_CHANGED, Region: "east", From: u, To: n})
	for _, tc := range []struct {
		req  *lofamov1.ListEventsRequest
		want string
	}{
		{&lofamov1.ListEventsRequest{}, "west east"},
		{&lofamov1.ListEventsRequest{Node: "0,1,0"}, "west"},
		{&lofamov1.ListEventsRequest{Node: "n2-0-0"}, "east"},
		{&lofamov1.ListEventsRequest{LabelSelector: "gpu"}, "west"}, // it has all nodes with the label
		{&lofamov1.ListEventsRequest{LabelSelector: "nobody"}, ""},
		{&lofamov1.ListEventsRequest{FieldSelector: "node=n2-0-0"}, "east"},
		{&lofamov1.ListEventsRequest{Node: "0,1,0", FieldSelector: "to=NORMAL"}, ""},
		{&lofamov1.ListEventsRequest{FieldSelector: "region=west"}, "west"},
	} {
		resp, err := h.client.ListEvents(t.Context(), tc.req)
		if err != nil || reasons(resp.GetEvents()) != tc.want {
			t.Errorf("%v: %q, %v: want %q", tc.req, reasons(resp.GetEvents()), err, tc.want)
		}
	}
}

// TestHistoryOfCutOffRegion: while a node's region was cut off it was UNKNOWN, whatever arrived later about that
// time.
func TestHistoryOfCutOffRegion(t *testing.T) {
	h := parentOfTwo(t)
	now := time.Now().Truncate(time.Second)
	ago := func(s int) *timestamppb.Timestamp { return timestamppb.New(now.Add(-time.Duration(s) * time.Second)) }
	const u, n, s = lofamov1.State_UNKNOWN, lofamov1.State_NORMAL, lofamov1.State_SICK
	change := func(ago *timestamppb.Timestamp, node string, from, to lofamov1.State, reason string) {
		h.put(t, &lofamov1.Event{Kind: lofamov1.EventKind_COMPONENT_CHANGED, Node: node, Region: "west", Component: "node", From: from,
			To: to, Time: ago, Reason: reason})
	}
	region := func(ago *timestamppb.Timestamp, name string, from, to lofamov1.State, reason string) {
		h.put(t, &lofamov1.Event{Kind: lofamov1.EventKind_REGION_CHANGED, Region: name, From: from, To: to, Time: ago, Reason: reason})
	}
	change(ago(1000), "n0-0-0", u, n, "there")
	region(ago(800), "west", n, u, "cut")
	change(ago(750), "n0-0-0", n, s, "sick")
	region(ago(700), "west", u, n, "back")
	region(ago(600), "west", n, n, "notice")
	change(ago(500), "n0-0-0", s, n, "well")
	region(ago(400), "east", n, u, "cut")
	for _, tc := range []struct {
		req                                     *lofamov1.GetHistoryRequest
		want                                    string
		unknown, normal, sick                   int // seconds
		becameUnknown, becameNormal, becameSick int // transitions
	}{
		{&lofamov1.GetHistoryRequest{Node: "0,0,0"}, "well notice back sick cut there", 100, 700, 200, 1, 2, 1},
		{&lofamov1.GetHistoryRequest{Node: "0,0,0", Component: "host"}, "notice back cut", 100, 900, 0, 1, 1, 0},
		{&lofamov1.GetHistoryRequest{Node: "0,0,0", Since: ago(750)}, "well notice back sick", 50, 500, 200, 0, 1, 1},
		{&lofamov1.GetHistoryRequest{Node: "1,0,0"}, "cut", 400, 600, 0, 1, 0, 0}, // it is still cut off
	} {
		resp, err := h.client.GetHistory(t.Context(), tc.req)
		if err != nil {
			t.Fatal(err)
		}
		in := resp.GetTimeIn()
		seconds := func(i int) int { return int(in[i].GetTime().AsDuration().Round(10*time.Second) / time.Second) }
		times := func(i int) int { return int(in[i].GetTimes()) }
		if reasons(resp.GetEvents()) != tc.want || seconds(0) != tc.unknown || seconds(1) != tc.normal || seconds(2) != tc.sick ||
			times(0) != tc.becameUnknown || times(1) != tc.becameNormal || times(2) != tc.becameSick {
			t.Errorf("%v: %v", tc.req, resp)
		}
	}
}
