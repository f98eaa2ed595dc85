package api

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// put commits events in one revision.
func (h *harness) put(t *testing.T, events ...*lofamov1.Event) uint64 {
	t.Helper()
	rev, err := h.writer.Commit(t.Context(), store.Batch{Events: events})
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func reasons(events []*lofamov1.Event) string {
	var out []string
	for _, ev := range events {
		out = append(out, ev.GetReason())
	}
	return strings.Join(out, " ")
}

// several returns events of all kinds, each with its name as its reason.
func several() []*lofamov1.Event {
	const u, n, s, f = lofamov1.State_UNKNOWN, lofamov1.State_NORMAL, lofamov1.State_SICK, lofamov1.State_FAILED
	return []*lofamov1.Event{
		{Reason: "old", Node: "n0-0-0", Component: "node", From: n, To: s, Cause: lofamov1.Cause_HOST, Path: lofamov1.Path_GOSSIP},
		{Reason: "dead", Kind: lofamov1.EventKind_COMPONENT_CHANGED, Node: "n0-0-0", Component: "node", From: s, To: f,
			Cause: lofamov1.Cause_NODE, Labels: map[string]string{"rack": "r5"}},
		{Reason: "link", Kind: lofamov1.EventKind_COMPONENT_CHANGED, Node: "n1-0-0", Component: "link/X+", From: u, To: s,
			Cause: lofamov1.Cause_LINK, Region: "west", Labels: map[string]string{"rack": "r0"}},
		{Reason: "group", Kind: lofamov1.EventKind_GROUP_CHANGED, From: n, To: f,
			Group: &lofamov1.Group{Id: "label/rack=r1", Members: []string{"n0-0-1", "n1-0-1"}}},
		{Reason: "warning", Kind: lofamov1.EventKind_WARNING_CHANGED, Node: "n1-1-1", Component: "temperature",
			Labels: map[string]string{"rack": "r1"}},
		{Reason: "marked", Kind: lofamov1.EventKind_MAINTENANCE_CHANGED, Node: "n0-1-1", Labels: map[string]string{"rack": "r1", "gpu": ""}},
		{Reason: "bare", Kind: lofamov1.EventKind_MAINTENANCE_CHANGED, Node: "n0-0-0"}, // it had no labels at that time
	}
}

var selections = []struct{ node, labels, fields, want string }{
	{"", "", "", "old dead link group warning marked bare"},
	{"0,0,0", "", "", "old dead bare"},
	{"n0-0-1", "", "", "group"},
	{"", "rack=r0", "", "old link"}, // it had another label when it died
	{"", "rack=r5", "", "dead"},
	{"", "rack=r1", "", "group warning marked"},
	{"", "rack=r1,gpu", "", "group marked"},
	{"", "rack=r1,!gpu", "", "group warning"},
	{"", "rack=r7", "", ""},
	{"", "", "kind=COMPONENT_CHANGED", "old dead link"},
	{"", "", "kind!=COMPONENT_CHANGED,kind!=GROUP_CHANGED", "warning marked bare"},
	{"", "", "to=FAILED", "dead group"},
	{"", "", "from=NORMAL,component=node", "old"},
	{"", "", "cause=LINK", "link"},
	{"", "", "path=GOSSIP", "old"},
	{"", "", "region=west", "link"},
	{"", "", "group=label/rack=r1", "group"},
	{"", "", "node=n1-0-1", "group"},
	{"n1-0-1", "gpu", "", ""},
	{"", "gpu", "node=n1-0-1", ""}, // no member is both
}

func TestListEventsSelects(t *testing.T) {
	h, _ := harmed(t)
	h.put(t, several()...)
	for _, tc := range selections {
		req := &lofamov1.ListEventsRequest{Node: tc.node, LabelSelector: tc.labels, FieldSelector: tc.fields}
		resp, err := h.client.ListEvents(t.Context(), req)
		if err != nil || reasons(resp.GetEvents()) != tc.want || resp.GetContinue() != "" {
			t.Errorf("%v: %q, %v", tc, reasons(resp.GetEvents()), err)
		}
		if words := strings.Fields(tc.want); len(words) > 1 { // the newest
			req.Limit = 1
			if resp, err := h.client.ListEvents(t.Context(), req); err != nil || reasons(resp.GetEvents()) != words[len(words)-1] {
				t.Errorf("%v, the newest: %q, %v", tc, reasons(resp.GetEvents()), err)
			}
		}
	}
}

// TestWatchSelectsAcrossHistoryAndRing: a watch selects as a list does, with each revision complete, also across the seam between history
// and ring.
func TestWatchSelectsAcrossHistoryAndRing(t *testing.T) {
	h, _ := harmed(t)
	before := h.put(t, &lofamov1.Event{Reason: "before", Node: "n2-2-0"})
	at := h.put(t, several()...)
	end := h.put(t, &lofamov1.Event{Reason: "end", Node: "n0-0-0",
		Group: &lofamov1.Group{Id: "end", Members: []string{"n0-0-1", "n1-0-1", "n0-0-0"}}})
	_ = end
	for _, tc := range selections {
		if tc.want == "" {
			continue
		}
		s := h.watch(t, &lofamov1.WatchRequest{AfterRevision: before, Node: tc.node, LabelSelector: tc.labels, FieldSelector: tc.fields})
		resp, err := s.Recv()
		if err != nil || resp.GetRevision() != at || reasons(resp.GetEvents()) != tc.want {
			t.Errorf("%v: %d %q, %v", tc, resp.GetRevision(), reasons(resp.GetEvents()), err)
		}
	}
}

// TestEventsAfterIndex: a list and a watch begin in the middle of a revision, with a filter too, from the ring and from
// history.
func TestEventsAfterIndex(t *testing.T) {
	h := serve(t, 16)
	h.commit(t, "a", "0")
	at := h.put(t, &lofamov1.Event{Node: "a", Reason: "1"}, &lofamov1.Event{Node: "b", Reason: "2"}, &lofamov1.Event{Node: "a", Reason: "3"})
	end := h.put(t, &lofamov1.Event{Node: "a", Reason: "4"})
	for _, tc := range []struct {
		node  string
		index uint32
		want  string
	}{{"", 0, "4"}, {"", 1, "2 3 4"}, {"", 2, "3 4"}, {"", 3, "4"}, {"", 4, "4"}, {"a", 1, "3 4"}, {"b", 1, "2"}} {
		list, err := h.client.ListEvents(t.Context(), &lofamov1.ListEventsRequest{AfterRevision: at, AfterIndex: tc.index, Node: tc.node})
		if err != nil || reasons(list.GetEvents()) != tc.want {
			t.Errorf("%v: the list has %q, %v", tc, reasons(list.GetEvents()), err)
		}
		if tc.node == "b" {
			continue // the watch has no end
		}
		s := h.watch(t, &lofamov1.WatchRequest{AfterRevision: at, AfterIndex: tc.index, Node: tc.node})
		var got []*lofamov1.Event
		for last := uint64(0); last < end; {
			resp, err := s.Recv()
			if err != nil {
				t.Fatal(err)
			}
			got, last = append(got, resp.GetEvents()...), resp.GetRevision()
		}
		if reasons(got) != tc.want {
			t.Errorf("%v: the watch has %q", tc, reasons(got))
		}
	}
	_, err := h.client.ListEvents(t.Context(), &lofamov1.ListEventsRequest{AfterIndex: 1})
	refused(t, "a list", err, codes.InvalidArgument, "after_index: given 1 without after_revision")
	_, err = h.watch(t, &lofamov1.WatchRequest{AfterIndex: 1}).Recv()
	refused(t, "a watch", err, codes.InvalidArgument, "after_index: given 1 without after_revision")
}

// TestEventPagesNoticeTrimmedEvents: oldest first after a revision. Events that are trimmed between two pages cause an error.
func TestEventPagesNoticeTrimmedEvents(t *testing.T) {
	h := serve(t, 16)
	first := h.commit(t, "a", "0")
	for i := range 20 {
		h.put(t, &lofamov1.Event{Node: "a", Reason: fmt.Sprint(2*i + 1)}, &lofamov1.Event{Node: "b", Reason: fmt.Sprint(2*i + 2)})
	}
	for _, tc := range []struct {
		node  string
		after uint64
		first int
		step  int
	}{{"", first, 1, 1}, {"b", first, 2, 2}, {"a", first + 3, 7, 2}} {
		req := &lofamov1.ListEventsRequest{AfterRevision: tc.after, Limit: 3, Node: tc.node}
		next := tc.first
		for {
			resp, err := h.client.ListEvents(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			for _, ev := range resp.GetEvents() {
				if ev.GetReason() != fmt.Sprint(next) {
					t.Fatalf("%v: event %s: want %d", tc, ev.GetReason(), next)
				}
				next += tc.step
			}
			if req.Continue = resp.GetContinue(); req.GetContinue() == "" {
				break
			}
		}
		if next < 41 {
			t.Errorf("%v: it ends before %d", tc, next)
		}
	}
	page, err := h.client.ListEvents(t.Context(), &lofamov1.ListEventsRequest{AfterRevision: first, Limit: 3})
	if err != nil {
		t.Fatal(err)
	}
	for range keepEvents {
		h.commit(t, "a", "later")
	}
	_, err = h.client.ListEvents(t.Context(), &lofamov1.ListEventsRequest{AfterRevision: first, Limit: 3, Continue: page.GetContinue()})
	refused(t, "forgotten", err, codes.OutOfRange, "begin again without continue")
	if info := infoOf(t, err); info.GetReason() != "RESOURCE_EXPIRED" {
		t.Errorf("%v", info)
	}
	all, err := h.client.ListEvents(t.Context(), &lofamov1.ListEventsRequest{AfterRevision: first})
	if err != nil || len(all.GetEvents()) != keepEvents || all.GetOldestRevision() != all.GetEvents()[0].GetRevision() {
		t.Errorf("after a forgotten revision: %d events, the oldest said to be at %d, %v", len(all.GetEvents()), all.GetOldestRevision(), err)
	}
}

// putBack is a copy whose store was restored from a snapshot.
type putBack struct {
	Copy
	gap store.Gap
}

func (p putBack) Bounds(ctx context.Context) (store.Bounds, error) {
	b, err := p.Copy.Bounds(ctx)
	b.Gaps = []store.Gap{p.gap}
	return b, err
}

// TestWatchFromLostRevisionNamesGap: a watch from a revision that a restore lost fails with the position of the gap. A list has the events
// after the gap, and none from before.
func TestWatchFromLostRevisionNamesGap(t *testing.T) {
	h := serve(t, 16)
	var at []uint64
	for i := range 5 {
		at = append(at, h.commit(t, "a", fmt.Sprint(i)))
	}
	h.connect(t, Config{
		Info: &lofamov1.ClusterInfo{}, Names: view.NewNames(grid.Dims{X: 2, Y: 1, Z: 1},
			map[grid.Coord]fault.NodeID{{}: "a", {X: 1}: "b"}), Marks: h.marks,
		QuorumAge: func() time.Duration { return 0 }, Engine: follower{}, Copy: putBack{h.store,
			store.Gap{From: at[1], To: at[3]}}, Directory: alone{},
		Metrics: metrics.New(prometheus.NewRegistry()), Stopping: h.stopping, WatchQueue: 16,
	})
	_, err := h.watch(t, &lofamov1.WatchRequest{AfterRevision: at[2]}).Recv()
	refused(t, "a watch", err, codes.OutOfRange, fmt.Sprintf("no commit between revision %d and revision %d is kept: list again",
		at[1], at[3]))
	if info := infoOf(t, err); info.GetReason() != "RESOURCE_EXPIRED" {
		t.Errorf("%v", info)
	}
	resp, err := h.client.ListEvents(t.Context(), &lofamov1.ListEventsRequest{AfterRevision: at[2]})
	if err != nil || reasons(resp.GetEvents()) != "3 4" {
		t.Errorf("a list: %v, %v", resp, err)
	}
}

func TestHistoryOfNodeIsRebuilt(t *testing.T) {
	h, l := harmed(t)
	l.gone = true // history needs no leader
	now := time.Now().Truncate(time.Second)
	ago := func(s int) *timestamppb.Timestamp { return timestamppb.New(now.Add(-time.Duration(s) * time.Second)) }
	const n, s, f = lofamov1.State_NORMAL, lofamov1.State_SICK, lofamov1.State_FAILED
	h.put(t, &lofamov1.Event{Reason: "first", Node: "n1-0-0", Time: ago(1000)})
	h.put(t,
		&lofamov1.Event{Reason: "host", Node: "n0-0-0", Component: "host", From: n, To: f, Time: ago(500)},
		&lofamov1.Event{Reason: "sick", Node: "n0-0-0", Component: "node", From: n, To: s, Time: ago(500)},
	)
	h.put(t, &lofamov1.Event{Reason: "dead", Node: "n0-0-0", Component: "node", From: s, To: f, Time: ago(300)})
	h.put(t, &lofamov1.Event{Reason: "dead again", Node: "n0-0-0", Component: "node", From: f, To: f, Time: ago(250)})
	h.put(t, &lofamov1.Event{Reason: "group", Kind: lofamov1.EventKind_GROUP_CHANGED,
		Group: &lofamov1.Group{Members: []string{"n0-0-0"}}, Time: ago(200)})
	h.put(t, &lofamov1.Event{Reason: "back", Node: "n0-0-0", Component: "node", From: f, To: n, Time: ago(100)})
	for _, tc := range []struct {
		req              *lofamov1.GetHistoryRequest
		want             string
		from             int
		normal, sick, up int // seconds NORMAL and SICK; times that it became NORMAL
	}{
		{&lofamov1.GetHistoryRequest{Node: "0,0,0"}, "back group dead again dead sick host", 1000, 600, 200, 1},
		{&lofamov1.GetHistoryRequest{Node: "0,0,0", Component: "node", Limit: 2}, "back dead again", 1000, 600, 200, 1},
		{&lofamov1.GetHistoryRequest{Node: "0,0,0", Since: ago(320)}, "back group dead again dead", 320, 100, 20, 1},
		{&lofamov1.GetHistoryRequest{Node: "0,0,0", Since: ago(50)}, "", 50, 50, 0, 0},
		{&lofamov1.GetHistoryRequest{Node: "0,0,0", Component: "host"}, "host", 1000, 500, 0, 0},
		{&lofamov1.GetHistoryRequest{Node: "1,1,1"}, "", 1000, 0, 0, 0}, // nothing committed: UNKNOWN all the time
		{&lofamov1.GetHistoryRequest{Node: "1,1,1", Component: "link/X+"}, "", 1000, 0, 0, 0},
		{&lofamov1.GetHistoryRequest{Node: "spare-1"}, "", 1000, 0, 0, 0},
	} {
		resp, err := h.client.GetHistory(t.Context(), tc.req)
		if err != nil {
			t.Fatal(err)
		}
		seconds := func(i int) int {
			return int(resp.GetTimeIn()[i].GetTime().AsDuration().Round(10*time.Second) / time.Second)
		}
		if reasons(resp.GetEvents()) != tc.want || !resp.GetFrom().AsTime().Equal(ago(tc.from).AsTime()) || len(resp.GetTimeIn()) != 4 {
			t.Errorf("%v: %v", tc.req, resp)
			continue
		}
		if all := seconds(0) + seconds(1) + seconds(2) + seconds(3); all != tc.from {
			t.Errorf("%v: %ds in any state, want %ds", tc.req, all, tc.from)
		}
		if seconds(1) != tc.normal || seconds(2) != tc.sick || int(resp.GetTimeIn()[1].GetTimes()) != tc.up {
			t.Errorf("%v: %v", tc.req, resp.GetTimeIn())
		}
	}
}

// TestHistoryOfGroup: a group fault is NORMAL while it does not stand, whether it began before events were kept or
// after.
func TestHistoryOfGroup(t *testing.T) {
	h, l := harmed(t)
	l.gone = true
	now := time.Now().Truncate(time.Second)
	ago := func(s int) *timestamppb.Timestamp { return timestamppb.New(now.Add(-time.Duration(s) * time.Second)) }
	const u, n, f = lofamov1.State_UNKNOWN, lofamov1.State_NORMAL, lofamov1.State_FAILED
	h.put(t, &lofamov1.Event{Reason: "first", Node: "n1-0-0", Time: ago(1000)})
	group := func(id, reason string, from, to lofamov1.State, since, at int) {
		h.put(t, &lofamov1.Event{Reason: reason, Kind: lofamov1.EventKind_GROUP_CHANGED,
			Group: &lofamov1.Group{Id: id, State: to, Since: ago(since)}, From: from, To: to, Time: ago(at)})
	}
	group("label/rack=r1", "found", u, f, 500, 500)
	group("label/rack=r1", "fewer", f, f, 500, 450)
	group("plane/X=1", "fewer there", f, f, 2000, 400)
	group("label/rack=r1", "ended", f, n, 500, 300)
	group("plane/X=1", "ended there", f, n, 2000, 200)
	group("label/rack=r1", "found again", n, f, 100, 100)
	group("partition/0,0,0", "apart", u, u, 50, 50)
	stands, err := proto.Marshal(view.StoredGroup(awareness.GroupStatus{ID: "row/Y=0,Z=0", Kind: awareness.GroupRow,
		State: fault.Failed, Members: []fault.NodeID{"n0-0-0"}}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.writer.Commit(t.Context(), store.Batch{Puts: []store.KV{{Key: store.GroupKey("row/Y=0,Z=0"), Value: stands}}}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		id, want                string
		unknown, normal, failed int // seconds
		times                   uint32
	}{
		{"label/rack=r1", "found again ended fewer found", 0, 700, 300, 2},
		{"plane/X=1", "ended there fewer there", 0, 200, 800, 0},
		{"row/Y=0,Z=0", "", 0, 0, 1000, 0},
		{"partition/0,0,0", "apart", 50, 950, 0, 0},
	} {
		resp, err := h.client.GetHistory(t.Context(), &lofamov1.GetHistoryRequest{Group: tc.id})
		if err != nil || reasons(resp.GetEvents()) != tc.want {
			t.Errorf("%s: %v, %v", tc.id, resp, err)
			continue
		}
		for i, want := range []int{tc.unknown, tc.normal, 0, tc.failed} {
			if got := int(resp.GetTimeIn()[i].GetTime().AsDuration().Round(10*time.Second) / time.Second); got != want {
				t.Errorf("%s: %ds %s, want %ds", tc.id, got, resp.GetTimeIn()[i].GetState(), want)
			}
		}
		if got := resp.GetTimeIn()[3].GetTimes(); got != tc.times {
			t.Errorf("%s: FAILED %d times, want %d", tc.id, got, tc.times)
		}
	}
	_, err = h.client.GetHistory(t.Context(), &lofamov1.GetHistoryRequest{Group: "label/rack=r9"})
	refused(t, "unheard of", err, codes.NotFound, "row/Y=0,Z=0")
	_, err = h.client.GetHistory(t.Context(), &lofamov1.GetHistoryRequest{Group: "row/Y=0,Z=0", Node: "0,0,0"})
	refused(t, "both", err, codes.InvalidArgument, "want one or the other")
}

// TestTimeInWithClocksThatStep: no time is counted twice, and none is negative.
func TestTimeInWithClocksThatStep(t *testing.T) {
	from := time.Unix(1000, 0)
	at := func(s int64) *timestamppb.Timestamp { return timestamppb.New(time.Unix(s, 0)) }
	const u, n, f = lofamov1.State_UNKNOWN, lofamov1.State_NORMAL, lofamov1.State_FAILED
	events := []*lofamov1.Event{
		{Component: "node", From: u, To: n, Time: at(1100)},
		{Component: "node", From: n, To: f, Time: at(1050)}, // another supervisor's clock
		{Component: "node", From: f, To: n, Time: at(1200)},
		{Component: "node", From: 9, To: 77, Time: at(1210)}, // of a version to come
	}
	var node []change
	for _, ev := range events {
		if changes(ev, "node") {
			node = append(node, changeOf(ev))
		}
	}
	got := timeIn(node, node[0].from, from, time.Unix(1300, 0))
	for i, want := range []int64{100, 100, 0, 100} {
		if d := got[i].GetTime(); d.GetSeconds() != want || d.GetNanos() != 0 {
			t.Errorf("%v for %v, want %ds", got[i].GetState(), d, want)
		}
	}
	if got[1].GetTimes() != 2 || got[3].GetTimes() != 1 {
		t.Errorf("%v", got)
	}
}

// TestWatchBeginsWithCompleteMap: a watch sends the map first, then that it is complete, then changes, with nothing lost between.
func TestWatchBeginsWithCompleteMap(t *testing.T) {
	h, l := harmed(t)
	l.mu.Lock()
	rev, err := h.store.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l.m = l.b.Map(rev)
	l.mu.Unlock()
	s := h.watch(t, &lofamov1.WatchRequest{Initial: true, LabelSelector: "rack=r0"})
	after := h.put(t, &lofamov1.Event{Reason: "next", Node: "n2-0-0"})
	resp, err := s.Recv()
	if err != nil || !resp.GetSynced() || resp.GetRevision() != rev || len(resp.GetEvents()) != 2 {
		t.Fatalf("%v, %v", resp, err)
	}
	for i, want := range []string{"n0-0-0 FAILED NODE", "n1-0-0 SICK NONE"} {
		ev := resp.GetEvents()[i]
		if got := fmt.Sprint(ev.GetNode(), " ", ev.GetTo(), " ", ev.GetCause()); got != want || ev.GetFrom() != lofamov1.State_UNKNOWN ||
			ev.GetComponent() != "node" || ev.GetRevision() != rev {
			t.Errorf("%v: want %s", ev, want)
		}
	}
	if resp, err := s.Recv(); err != nil || resp.GetRevision() != after || reasons(resp.GetEvents()) != "next" {
		t.Errorf("%v, %v", resp, err)
	}
	// One link of a node that is NORMAL.
	resp, err = h.watch(t, &lofamov1.WatchRequest{Initial: true, FieldSelector: "cause=LINK"}).Recv()
	if err != nil || len(resp.GetEvents()) != 1 || resp.GetEvents()[0].GetComponent() != "link/X+" ||
		resp.GetEvents()[0].GetNode() != "n2-2-1" {
		t.Errorf("%v, %v", resp, err)
	}
	// A replica that reaches no leader sends its copy. The copy holds no commits, so all nodes are UNKNOWN.
	l.mu.Lock()
	l.gone = true
	l.mu.Unlock()
	resp, err = h.watch(t, &lofamov1.WatchRequest{Initial: true}).Recv()
	if err != nil || !resp.GetSynced() || len(resp.GetEvents()) != 18 {
		t.Errorf("%v, %v", resp, err)
	}
}

// TestInitialInParts: a large map comes in several responses. A client can resume only from the last one.
func TestInitialInParts(t *testing.T) {
	l := newLeads(dimsOf(t, "16x16x8"))
	all := make(map[string]fault.State)
	for _, id := range l.names.All() {
		all[string(id)] = fault.Failed
	}
	rev := l.set(all)
	h := serveNamed(t, l, l.names, 16)
	s := h.watch(t, &lofamov1.WatchRequest{Initial: true})
	seen := make(map[string]bool)
	for {
		resp, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range resp.GetEvents() {
			if seen[ev.GetNode()] {
				t.Fatalf("%s comes twice", ev.GetNode())
			}
			seen[ev.GetNode()] = true
		}
		if resp.GetSynced() {
			if resp.GetRevision() != rev || len(seen) != 2048 {
				t.Errorf("%d nodes at revision %d", len(seen), resp.GetRevision())
			}
			return
		}
		if resp.GetRevision() != 0 {
			t.Fatalf("a part claims revision %d", resp.GetRevision())
		}
	}
}

// trims is a store that trims its history behind the first page while it is read.
type trims struct {
	*memstore.Store
	forget func()
}

func (s *trims) EventsFrom(ctx context.Context, number uint64, limit int) (uint64, []*lofamov1.Event, error) {
	first, events, err := s.Store.EventsFrom(ctx, number, limit)
	if s.forget != nil {
		s.forget()
		s.forget = nil
	}
	return first, events, err
}

// TestTrimmedWhileReading: a reader that does not continue a page gets the kept events, without a gap or an error.
func TestTrimmedWhileReading(t *testing.T) {
	const kept = 2 * eventPage
	st := memstore.New(kept)
	w, err := st.Writer(st.Campaign(), store.Meta{}, store.Snapshot{})
	if err != nil {
		t.Fatal(err)
	}
	commit := func(n int) {
		var events []*lofamov1.Event
		for range n {
			events = append(events, &lofamov1.Event{Node: "a"})
		}
		if _, err := w.Commit(t.Context(), store.Batch{Events: events}); err != nil {
			t.Fatal(err)
		}
	}
	commit(kept)
	before, _ := st.Bounds(t.Context())
	for _, tc := range []struct{ forgotten, want int }{
		{eventPage / 2, kept}, // only events that were read before
		{eventPage + 10, eventPage - 10},
		{kept, 0},
	} {
		s := New(Config{Copy: &trims{Store: st, forget: func() { commit(tc.forgotten) }}})
		b, _ := st.Bounds(t.Context())
		out, _, err := s.eventsAfter(t.Context(), b, 0, nil, 2*kept, nil)
		if err != nil || len(out) != tc.want {
			t.Errorf("%d forgotten: %d events, want %d: %v", tc.forgotten, len(out), tc.want, err)
		}
	}
	for _, forgotten := range []int{eventPage / 2, eventPage + 10, kept} {
		s := New(Config{Copy: &trims{Store: st, forget: func() { commit(forgotten) }}})
		b, _ := st.Bounds(t.Context())
		out, err := s.newestEvents(t.Context(), b, kept, nil)
		if want := max(eventPage, kept-forgotten); err != nil || len(out) != want {
			t.Errorf("%d forgotten: the newest %d events, want %d: %v", forgotten, len(out), want, err)
		}
	}
	page := &token{position: before.Oldest}
	b, _ := st.Bounds(t.Context())
	_, _, err = New(Config{Copy: st}).eventsAfter(t.Context(), b, 0, page, kept, nil)
	refused(t, "a page that is forgotten", err, codes.OutOfRange, "begin again without continue")
}

// stopped is a leader that accepts calls and never answers.
type stopped struct {
	lofamov1.UnimplementedFaultSupervisorServer
}

func (stopped) Watch(_ *lofamov1.WatchRequest, stream grpc.ServerStreamingServer[lofamov1.WatchResponse]) error {
	<-stream.Context().Done()
	return stream.Context().Err()
}

// led is a directory in which another replica leads.
type led struct {
	alone
	conn *grpc.ClientConn
}

func (led) Leader() string                    { return "other" }
func (d led) Conn(id string) *grpc.ClientConn { return d.conn }

// TestInitialFromLeaderThatIsStopped: the replica sends its copy instead.
func TestInitialFromLeaderThatIsStopped(t *testing.T) {
	h := &harness{store: memstore.New(keepEvents)}
	if _, err := h.store.Writer(h.store.Campaign(), store.Meta{}, store.Snapshot{}); err != nil {
		t.Fatal(err)
	}
	h.connect(t, Config{
		Info: &lofamov1.ClusterInfo{}, Names: newLeads(dimsOf(t, "2x2x2")).names, Engine: follower{}, Copy: h.store,
		Directory: led{conn: dial(t, stopped{})}, Metrics: metrics.New(prometheus.NewRegistry()),
	})
	resp, err := h.watch(t, &lofamov1.WatchRequest{Initial: true}).Recv()
	if err != nil || !resp.GetSynced() || len(resp.GetEvents()) != 8 {
		t.Errorf("%v, %v", resp, err)
	}
}
