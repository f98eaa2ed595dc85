package api

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// leads is an engine that leads, with a map that a test sets.
type leads struct {
	follower

	mu    sync.Mutex
	names *view.Names
	b     *view.Builder
	m     view.Map
	rev   uint64
	gone  bool // it no longer leads

	senders map[fault.NodeID]engine.Sender
}

func (l *leads) Reports(context.Context, engine.ReportQuery) (engine.ReportView, error) {
	return engine.ReportView{Senders: l.senders}, nil
}

func (l *leads) Map(context.Context) (view.Map, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		return view.Map{}, engine.ErrNotLeading
	}
	return l.m, nil
}

// Detail returns the delivery status of every node, which the map does not have.
func (l *leads) Detail(_ context.Context, ids []fault.NodeID) ([]view.Entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		return nil, engine.ErrNotLeading
	}
	var out []view.Entry
	for _, id := range ids {
		e, _ := l.m.Find(id)
		e.Status.Life = time.Now()
		out = append(out, e)
	}
	return out, nil
}

// set gives nodes states; the other components stay.
func (l *leads) set(states map[string]fault.State, links ...string) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rev++
	for _, id := range l.names.All() {
		st, ok := states[string(id)]
		if !ok {
			continue
		}
		e, _ := l.b.At(id)
		e.Status.State, e.Status.Cause, e.Revision = st, fault.CauseNone, l.rev
		if st == fault.Failed {
			e.Status.Cause = fault.CauseNode
		}
		for i := range e.Status.Components {
			c := &e.Status.Components[i]
			c.State = fault.Normal
			if slices.Contains(links, string(id)+"/"+c.Component.String()) {
				c.State, c.Cause = fault.Sick, fault.CauseLink
			}
		}
		l.b.Set(e)
	}
	l.m = l.b.Map(l.rev)
	return l.rev
}

// newLeads returns a leader of a torus with labels: every node has the rack of its z, and a GPU at x = 0. It has a
// spare.
func newLeads(dims grid.Dims) *leads {
	var nodes []topology.Node
	for r := range dims.Nodes() {
		at := dims.At(r)
		n := topology.Node{ID: fault.DefaultNodeID(at), Coord: at, Labels: map[string]string{"rack": fmt.Sprint("r", at.Z)}}
		if at.X == 0 {
			n.Labels["gpu"] = ""
		}
		nodes = append(nodes, n)
	}
	nodes = append(nodes, topology.Node{ID: "spare-1", Spare: true, Labels: map[string]string{"rack": "r9"}})
	l := &leads{names: view.NamesOf(topology.New(dims, nodes, nil, 1)), rev: 100}
	l.b = view.NewBuilder(l.names, time.Time{})
	all := make(map[string]fault.State)
	for _, id := range l.names.All() {
		all[string(id)] = fault.Normal
	}
	l.set(all)
	return l
}

// harmed is 3×3×2 with n0-0-0 FAILED, n1-0-0 SICK, a SICK link at n2-2-1, and n0-2-1 UNKNOWN.
func harmed(t *testing.T) (*harness, *leads) {
	t.Helper()
	l := newLeads(grid.Dims{X: 3, Y: 3, Z: 2})
	l.set(map[string]fault.State{"n0-0-0": fault.Failed, "n1-0-0": fault.Sick, "n2-2-1": fault.Normal, "n0-2-1": fault.Unknown},
		"n2-2-1/link/X+")
	return serveNamed(t, l, l.names, 16), l
}

func ids(nodes []*lofamov1.Node) string {
	var out []string
	for _, n := range nodes {
		out = append(out, n.GetId())
	}
	return strings.Join(out, " ")
}

// TestLeaderSaysThatVerdictsWait: lists and single nodes carry the reason while verdicts wait.
func TestLeaderSaysThatVerdictsWait(t *testing.T) {
	h, _ := harmed(t)
	for _, want := range []string{"datagrams are dropped", ""} {
		h.held = want
		list, err := h.client.ListNodes(t.Context(), &lofamov1.ListNodesRequest{})
		if err != nil || list.GetCluster().GetVerdictsHeld() != want {
			t.Errorf("the list says %q, %v: want %q", list.GetCluster().GetVerdictsHeld(), err, want)
		}
		n, err := h.client.GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: "n0-0-0"})
		if err != nil || n.GetVerdictsHeld() != want {
			t.Errorf("the node says %q, %v: want %q", n.GetVerdictsHeld(), err, want)
		}
	}
}

// TestSummaryNamesLostServicePaths: of the chosen nodes, by reports that are not old, in the order of their ranks.
func TestSummaryNamesLostServicePaths(t *testing.T) {
	h, l := harmed(t)
	sender := func(old bool, down ...bool) engine.Sender {
		s := engine.Sender{At: time.Now(), OldAt: time.Now().Add(time.Hour), Status: &lofamov1.DeliveryStatus{}}
		if old {
			s.OldAt = time.Now().Add(-time.Hour)
		}
		for i, d := range down {
			s.Status.Rails = append(s.Status.Rails, &lofamov1.RailStatus{Name: fmt.Sprint("direct/eth", i), Down: d})
		}
		return s
	}
	l.senders = map[fault.NodeID]engine.Sender{"n2-2-1": sender(false, false, true), "n1-0-0": sender(false, true, false, false),
		"n2-0-0": sender(true, true, false)}
	for selector, want := range map[string]string{"": "n1-0-0 [eth0] 3, n2-2-1 [eth1] 2", "rack=r1": "n2-2-1 [eth1] 2"} {
		resp, err := h.client.GetSummary(t.Context(), &lofamov1.GetSummaryRequest{LabelSelector: selector})
		var got []string
		for _, p := range resp.GetLostPaths() {
			got = append(got, fmt.Sprint(p.GetNode(), " ", p.GetInterfaces(), " ", p.GetOf()))
		}
		if err != nil || strings.Join(got, ", ") != want {
			t.Errorf("selector %q: %q, %v: want %q", selector, got, err, want)
		}
	}
}

func TestListNodesSelects(t *testing.T) {
	h, _ := harmed(t)
	for _, tc := range []struct {
		req  *lofamov1.ListNodesRequest
		want string
	}{
		{&lofamov1.ListNodesRequest{NotNormal: true}, "n0-0-0 n1-0-0 n0-2-1 n2-2-1"},
		{&lofamov1.ListNodesRequest{NotNormal: true, States: []lofamov1.State{lofamov1.State_NORMAL}}, "n2-2-1"},
		{&lofamov1.ListNodesRequest{States: []lofamov1.State{lofamov1.State_FAILED, lofamov1.State_SICK}}, "n0-0-0 n1-0-0"},
		{&lofamov1.ListNodesRequest{States: []lofamov1.State{lofamov1.State_UNKNOWN}}, "n0-2-1 spare-1"},
		{&lofamov1.ListNodesRequest{LabelSelector: "gpu,rack=r1"}, "n0-0-1 n0-1-1 n0-2-1"},
		{&lofamov1.ListNodesRequest{LabelSelector: "rack notin (r0,r1)"}, "spare-1"},
		{&lofamov1.ListNodesRequest{LabelSelector: "!gpu,rack=r0", FieldSelector: "state!=NORMAL"}, "n1-0-0"},
		{&lofamov1.ListNodesRequest{FieldSelector: "coord=2,1,0"}, "n2-1-0"},
		{&lofamov1.ListNodesRequest{FieldSelector: "x=2,y=2,z=1"}, "n2-2-1"},
		{&lofamov1.ListNodesRequest{FieldSelector: "id=n1-0-0"}, "n1-0-0"},
		{&lofamov1.ListNodesRequest{FieldSelector: "cause=NODE"}, "n0-0-0"},
		{&lofamov1.ListNodesRequest{FieldSelector: "spare=true"}, "spare-1"},
		{&lofamov1.ListNodesRequest{FieldSelector: "cause=NONE,spare=true,coord=,inferred=false,unreachable!=true,x!=0,region=," +
			"maintenance=false,state=UNKNOWN"}, "spare-1"},
		{&lofamov1.ListNodesRequest{FieldSelector: "group=x"}, ""},
		{&lofamov1.ListNodesRequest{FieldSelector: "inferred=true"}, ""},
		{&lofamov1.ListNodesRequest{FieldSelector: "unreachable=true"}, ""},
	} {
		resp, err := h.client.ListNodes(t.Context(), tc.req)
		if err != nil || ids(resp.GetNodes()) != tc.want || resp.GetCluster().GetStale() || resp.GetContinue() != "" {
			t.Errorf("%v: %s, %v: want %s", tc.req, ids(resp.GetNodes()), err, tc.want)
		}
	}
	full, err := h.client.ListNodes(t.Context(), &lofamov1.ListNodesRequest{})
	if err != nil || len(full.GetNodes()) != 19 || len(full.GetNodes()[0].GetComponents()) == 0 ||
		full.GetNodes()[0].GetLabels()["rack"] != "r0" || full.GetNodes()[0].GetAge() == nil || !full.GetNodes()[18].GetSpare() {
		t.Errorf("%v, %v", full, err)
	}
	brief, err := h.client.ListNodes(t.Context(), &lofamov1.ListNodesRequest{Brief: true})
	if err != nil || len(brief.GetNodes()) != 19 || len(brief.GetNodes()[0].GetComponents()) > 0 ||
		brief.GetNodes()[0].GetState() != lofamov1.State_FAILED {
		t.Errorf("%v, %v", brief, err)
	}
	n, err := h.client.GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: "spare-1"})
	if err != nil || !n.GetSpare() || n.GetLabels()["rack"] != "r9" {
		t.Errorf("a spare: %v, %v", n, err)
	}
}

// TestSummaryTellsStoppedNodesApart: the summary counts the UNKNOWN nodes whose announced stop is not over. A SICK node stays SICK when it
// stops. A spare does not count.
func TestSummaryTellsStoppedNodesApart(t *testing.T) {
	h, l := harmed(t)
	stop := func(node fault.NodeID, state fault.State, until time.Time) {
		l.mu.Lock()
		defer l.mu.Unlock()
		e, ok := l.b.At(node)
		if !ok {
			t.Fatalf("no node %s", node)
		}
		e.Status.State, e.Status.Stop = state, awareness.Stop{Reason: fault.StopReboot, Since: time.Now(), Until: until}
		l.b.Set(e)
		l.rev++
		l.m = l.b.Map(l.rev)
	}
	later := time.Now().Add(time.Hour)
	stop("n1-1-0", fault.Unknown, later)
	stop("n1-1-1", fault.Unknown, later)
	stop("n1-0-0", fault.Sick, later)
	stop("n2-0-0", fault.Unknown, time.Now().Add(-time.Second)) // it should be back
	for _, tt := range []struct {
		labels           string
		unknown, stopped uint32
	}{{"", 4, 2}, {"rack=r1", 2, 1}, {"rack=r9", 0, 0}} {
		sum, err := h.client.GetSummary(t.Context(), &lofamov1.GetSummaryRequest{LabelSelector: tt.labels})
		if err != nil || sum.GetNodes().GetUnknown() != tt.unknown || sum.GetStopped() != tt.stopped {
			t.Errorf("%q: %d UNKNOWN, %d stopped, %v: want %d and %d", tt.labels, sum.GetNodes().GetUnknown(), sum.GetStopped(), err,
				tt.unknown, tt.stopped)
		}
	}
}

// TestMaintenanceMarksSelectNodes: marks appear in nodes, select them, are counted, and stay unchanged within a page.
func TestMaintenanceMarksSelectNodes(t *testing.T) {
	h, _ := harmed(t)
	h.marks.Replace([]*lofamov1.Maintenance{{Node: "n1-0-0", Reason: "fan"}, {Node: "n2-2-1"}, {Node: "spare-1"}}, 5)
	req := &lofamov1.ListNodesRequest{FieldSelector: "maintenance=true", Limit: 1}
	first, err := h.client.ListNodes(t.Context(), req)
	if err != nil || ids(first.GetNodes()) != "n1-0-0" || first.GetNodes()[0].GetMaintenance().GetReason() != "fan" ||
		first.GetRemaining() != 2 {
		t.Fatalf("%v, %v", first, err)
	}
	sum, err := h.client.GetSummary(t.Context(), &lofamov1.GetSummaryRequest{})
	if err != nil || sum.GetMaintenance() != 3 {
		t.Errorf("%v, %v", sum, err)
	}
	if sum, err = h.client.GetSummary(t.Context(), &lofamov1.GetSummaryRequest{LabelSelector: "rack=r1"}); err != nil ||
		sum.GetMaintenance() != 1 {
		t.Errorf("%v, %v", sum, err)
	}
	h.marks.Replace(nil, 6)
	req.Continue = first.GetContinue()
	second, err := h.client.ListNodes(t.Context(), req)
	if err != nil || ids(second.GetNodes()) != "n2-2-1" || second.GetRemaining() != 1 {
		t.Errorf("%v, %v", second, err)
	}
	req.Continue = second.GetContinue()
	third, err := h.client.ListNodes(t.Context(), req)
	if err != nil || ids(third.GetNodes()) != "spare-1" || third.GetContinue() != "" {
		t.Errorf("the third page: %v, %v", third, err)
	}
}

func linkNames(links []*lofamov1.Link) string {
	var out []string
	for _, l := range links {
		out = append(out, l.GetNode()+l.GetDirection())
	}
	return strings.Join(out, " ")
}

func TestListLinksSelects(t *testing.T) {
	h, _ := harmed(t)
	for _, tc := range []struct {
		req  *lofamov1.ListLinksRequest
		want string
	}{
		{&lofamov1.ListLinksRequest{States: []lofamov1.State{lofamov1.State_SICK}}, "n2-2-1X+"},
		{&lofamov1.ListLinksRequest{States: []lofamov1.State{lofamov1.State_SICK}, Node: "0,0,0"}, ""},
		{&lofamov1.ListLinksRequest{FieldSelector: "state=SICK,cause=LINK"}, "n2-2-1X+"},
		{&lofamov1.ListLinksRequest{Node: "1,1,1"}, "n1-1-1X+ n1-1-1X- n1-1-1Y+ n1-1-1Y- n1-1-1Z+ n1-1-1Z-"},
		{&lofamov1.ListLinksRequest{Node: "1,1,1", FieldSelector: "direction=Y-"}, "n1-1-1Y-"},
		{&lofamov1.ListLinksRequest{FieldSelector: "peer=n0-0-0,direction!=Z-,direction!=Z+"}, "n1-0-0X- n2-0-0X+ n0-1-0Y- n0-2-0Y+"},
		{&lofamov1.ListLinksRequest{LabelSelector: "gpu,rack=r1", FieldSelector: "direction=X+,region="}, "n0-0-1X+ n0-1-1X+ n0-2-1X+"},
		{&lofamov1.ListLinksRequest{FieldSelector: "node=n0-0-0,direction=X+"}, "n0-0-0X+"},
	} {
		resp, err := h.client.ListLinks(t.Context(), tc.req)
		if err != nil || linkNames(resp.GetLinks()) != tc.want {
			t.Errorf("%v: %s, %v: want %s", tc.req, linkNames(resp.GetLinks()), err, tc.want)
		}
	}
}

// TestPagesAreOfOneRevision: all pages have the same revision, whatever changes meanwhile and whoever leads.
func TestPagesAreOfOneRevision(t *testing.T) {
	h, l := harmed(t)
	whole, err := h.client.ListNodes(t.Context(), &lofamov1.ListNodesRequest{Brief: true})
	if err != nil {
		t.Fatal(err)
	}
	links, err := h.client.ListLinks(t.Context(), &lofamov1.ListLinksRequest{Brief: true})
	if err != nil {
		t.Fatal(err)
	}
	for limit := uint32(1); limit <= 20; limit++ {
		req := &lofamov1.ListNodesRequest{Brief: true, Limit: limit}
		got := &lofamov1.ListNodesResponse{Revision: whole.GetRevision(), Cluster: whole.GetCluster()}
		for {
			resp, err := h.client.ListNodes(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			got.Nodes = append(got.Nodes, resp.GetNodes()...)
			if want := len(whole.GetNodes()) - len(got.GetNodes()); resp.GetRevision() != whole.GetRevision() ||
				int(resp.GetRemaining()) != want || len(resp.GetNodes()) > int(limit) {
				t.Errorf("limit %d: revision %d, %d remaining: want %d", limit, resp.GetRevision(), resp.GetRemaining(), want)
			}
			if req.Continue = resp.GetContinue(); req.GetContinue() == "" {
				break
			}
		}
		if !proto.Equal(got, whole) {
			t.Fatalf("limit %d: %s, want %s", limit, ids(got.GetNodes()), ids(whole.GetNodes()))
		}
	}
	nodes, _ := h.client.ListNodes(t.Context(), &lofamov1.ListNodesRequest{Brief: true, Limit: 1})
	req := &lofamov1.ListLinksRequest{Brief: true, Limit: 7}
	var got []*lofamov1.Link
	for {
		resp, err := h.client.ListLinks(t.Context(), req)
		if err != nil || resp.GetRevision() != whole.GetRevision() {
			t.Fatal(resp, err)
		}
		got = append(got, resp.GetLinks()...)
		l.set(map[string]fault.State{"n1-1-1": fault.Sick})
		if len(got) > 50 {
			l.gone = true // the replica led at the first page
		}
		if req.Continue = resp.GetContinue(); req.GetContinue() == "" {
			break
		}
	}
	if linkNames(got) != linkNames(links.GetLinks()) || len(got) != 18*6 {
		t.Errorf("%d link ends, want %d", len(got), len(links.GetLinks()))
	}
	rest, err := h.client.ListNodes(t.Context(), &lofamov1.ListNodesRequest{Brief: true, Limit: 1, Continue: nodes.GetContinue()})
	if err != nil || rest.GetRevision() != whole.GetRevision() || ids(rest.GetNodes()) != "n1-0-0" {
		t.Errorf("%v, %v", rest, err)
	}
}

func TestInvalidListRequestIsRefused(t *testing.T) {
	h, l := harmed(t)
	page, err := h.client.ListNodes(t.Context(), &lofamov1.ListNodesRequest{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	old := token{1, 2, 3}
	bare, _ := requestHash(&lofamov1.ListNodesRequest{Limit: 1})
	old.request = bare
	nodes := func(req *lofamov1.ListNodesRequest) error {
		_, err := h.client.ListNodes(t.Context(), req)
		return err
	}
	links := func(req *lofamov1.ListLinksRequest) error {
		_, err := h.client.ListLinks(t.Context(), req)
		return err
	}
	events := func(req *lofamov1.ListEventsRequest) error {
		_, err := h.client.ListEvents(t.Context(), req)
		return err
	}
	summary := func(req *lofamov1.GetSummaryRequest) error {
		_, err := h.client.GetSummary(t.Context(), req)
		return err
	}
	history := func(req *lofamov1.GetHistoryRequest) error {
		_, err := h.client.GetHistory(t.Context(), req)
		return err
	}
	watch := func(req *lofamov1.WatchRequest) error {
		_, err := h.watch(t, req).Recv()
		return err
	}
	for _, tc := range []struct {
		name string
		err  error
		code codes.Code
		want string
	}{
		{"states", nodes(&lofamov1.ListNodesRequest{States: []lofamov1.State{9}}), codes.InvalidArgument, "states: given 9: want UNKNOWN"},
		{"limit", nodes(&lofamov1.ListNodesRequest{Limit: 10001}), codes.InvalidArgument, "limit: given 10001: want at most 10000"},
		{"label selector", nodes(&lofamov1.ListNodesRequest{LabelSelector: "rack in"}), codes.InvalidArgument,
			"label_selector: label selector \"rack in\": unable to parse requirement: found '' expected: '('"},
		{"field selector", nodes(&lofamov1.ListNodesRequest{FieldSelector: "peer=x"}), codes.InvalidArgument,
			`field "peer": want one of id, coord, x`},
		{"field value", nodes(&lofamov1.ListNodesRequest{FieldSelector: "spare=yes"}), codes.InvalidArgument,
			`spare: given "yes": want one of true, false`},
		{"coordinates", nodes(&lofamov1.ListNodesRequest{FieldSelector: "coord=1,0,1,hue=red"}), codes.InvalidArgument,
			`coord: given "1,0,1,hue=red": want x,y,z`},
		{"not a token", nodes(&lofamov1.ListNodesRequest{Limit: 1, Continue: "nonsense"}), codes.InvalidArgument,
			"continue: given \"nonsense\": want what an answer"},
		{"cut token", nodes(&lofamov1.ListNodesRequest{Limit: 1, Continue: token{1 << 63, 1 << 40, 1 << 40}.String()[:14]}),
			codes.InvalidArgument, "cut short"},
		{"long token", nodes(&lofamov1.ListNodesRequest{Limit: 1, Continue: page.GetContinue() + "AAAA"}), codes.InvalidArgument,
			"bytes follow it"},
		{"changed request", nodes(&lofamov1.ListNodesRequest{Limit: 2, Continue: page.GetContinue()}), codes.InvalidArgument,
			"it belongs to another request"},
		{"foreign token", links(&lofamov1.ListLinksRequest{Limit: 1, Continue: page.GetContinue()}), codes.InvalidArgument,
			"it belongs to another request"},
		{"old token", nodes(&lofamov1.ListNodesRequest{Limit: 1, Continue: old.String()}), codes.OutOfRange, "begin again without continue"},
		{"links: limit", links(&lofamov1.ListLinksRequest{Limit: 60001}), codes.InvalidArgument, "want at most 60000"},
		{"links: node", links(&lofamov1.ListLinksRequest{Node: "9,9,9"}), codes.InvalidArgument, "outside"},
		{"links: unknown node", links(&lofamov1.ListLinksRequest{Node: "nobody"}), codes.NotFound, "no node of that id"},
		{"links: states", links(&lofamov1.ListLinksRequest{States: []lofamov1.State{0}}), codes.InvalidArgument, "states"},
		{"links: labels", links(&lofamov1.ListLinksRequest{LabelSelector: "="}), codes.InvalidArgument, "label_selector"},
		{"links: fields", links(&lofamov1.ListLinksRequest{FieldSelector: "direction=W"}), codes.InvalidArgument, "want one of X+, X-"},
		{"events: limit", events(&lofamov1.ListEventsRequest{Limit: 10001}), codes.InvalidArgument, "want at most 10000"},
		{"events: node", events(&lofamov1.ListEventsRequest{Node: "nobody"}), codes.NotFound, "no node of that id"},
		{"events: labels", events(&lofamov1.ListEventsRequest{LabelSelector: "="}), codes.InvalidArgument, "label_selector"},
		{"events: fields", events(&lofamov1.ListEventsRequest{FieldSelector: "kind=SOMETHING"}), codes.InvalidArgument,
			"want one of COMPONENT_CHANGED"},
		{"events: token", events(&lofamov1.ListEventsRequest{Continue: page.GetContinue()}), codes.InvalidArgument,
			"it belongs to another request"},
		{"summary: key", summary(&lofamov1.GetSummaryRequest{By: []string{"rack"}}), codes.InvalidArgument, `by: given "rack": want label/KEY`},
		{"summary: label", summary(&lofamov1.GetSummaryRequest{By: []string{"label/-"}}), codes.InvalidArgument, "by: given \"label/-\""},
		{"summary: dimension", summary(&lofamov1.GetSummaryRequest{By: []string{"dimension/W"}}), codes.InvalidArgument,
			"want label/KEY, dimension/X"},
		{"summary: region", summary(&lofamov1.GetSummaryRequest{By: []string{"region/x"}}), codes.InvalidArgument, "want label/KEY"},
		{"summary: many", summary(&lofamov1.GetSummaryRequest{By: make([]string, 9)}), codes.InvalidArgument, "given 9 keys: want at most 8"},
		{"summary: labels", summary(&lofamov1.GetSummaryRequest{LabelSelector: "a b"}), codes.InvalidArgument, "label_selector"},
		{"history: node", history(&lofamov1.GetHistoryRequest{}), codes.InvalidArgument, "empty name"},
		{"history: component", history(&lofamov1.GetHistoryRequest{Node: "0,0,0", Component: "fan"}), codes.InvalidArgument, "component"},
		{"history: limit", history(&lofamov1.GetHistoryRequest{Node: "0,0,0", Limit: 10001}), codes.InvalidArgument, "want at most 10000"},
		{"watch: node", watch(&lofamov1.WatchRequest{Node: "nobody"}), codes.NotFound, "no node of that id"},
		{"watch: labels", watch(&lofamov1.WatchRequest{LabelSelector: "!"}), codes.InvalidArgument, "label_selector"},
		{"watch: fields", watch(&lofamov1.WatchRequest{FieldSelector: "state=FAILED"}), codes.InvalidArgument,
			`field "state": want one of node, component`},
		{"watch: initial and after", watch(&lofamov1.WatchRequest{Initial: true, AfterRevision: 1}), codes.InvalidArgument,
			"initial: given with after_revision 1"},
	} {
		refused(t, tc.name, tc.err, tc.code, tc.want)
	}
	if info := infoOf(t, nodes(&lofamov1.ListNodesRequest{Limit: 1, Continue: old.String()})); info.GetReason() != "RESOURCE_EXPIRED" {
		t.Errorf("%v", info)
	}
	l.set(nil) // the page's map is still kept
	if err := nodes(&lofamov1.ListNodesRequest{Limit: 1, Continue: page.GetContinue()}); err != nil {
		t.Error(err)
	}
}

// TestSnapshotsAreBounded: by number and by age.
func TestSnapshotsAreBounded(t *testing.T) {
	var c snapshots
	now := time.Now()
	at := func(rev uint64) snapshot { return snapshot{Map: view.Map{Revision: rev}} }
	for rev := range uint64(snapshotsKept + 2) {
		c.keep(at(rev), now)
		c.keep(at(rev), now)
		if _, ok := c.get(0, now); !ok { // in use all the time
			t.Fatalf("0 is forgotten at %d", rev)
		}
	}
	if _, ok := c.get(1, now); ok || len(c.kept) != snapshotsKept {
		t.Errorf("%d kept", len(c.kept))
	}
	if _, ok := c.get(snapshotsKept+1, now.Add(snapshotTime)); !ok {
		t.Error("forgotten too soon")
	}
	if _, ok := c.get(0, now.Add(snapshotTime+1)); ok {
		t.Error("kept too long")
	}
}

// TestSnapshotsExpireUnasked: a map whose pages are no longer read holds no memory.
func TestSnapshotsExpireUnasked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c snapshots
		c.keep(snapshot{}, time.Now())
		ctx, cancel := context.WithTimeout(t.Context(), 2*snapshotTime+time.Second)
		defer cancel()
		c.run(ctx)
		if len(c.kept) > 0 {
			t.Errorf("%d kept", len(c.kept))
		}
	})
}

// TestMapOfAnotherTopology: between a change of the topology and the first map of the new one, all answers use the
// old topology. Afterwards nothing of the old one appears.
func TestMapOfAnotherTopology(t *testing.T) {
	h, l := harmed(t)
	summary := func(want string) {
		t.Helper()
		sum, err := h.client.GetSummary(t.Context(), &lofamov1.GetSummaryRequest{By: []string{"dimension/X"}})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, tl := range sum.GetBy() {
			c := tl.GetNodes()
			got = append(got, fmt.Sprint(tl.GetValue(), ":", c.GetNormal()+c.GetSick()+c.GetFailed()+c.GetUnknown()))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%v, want %s", got, want)
		}
	}
	next := newLeads(grid.Dims{X: 4, Y: 5, Z: 1}).names.Topology()
	if !l.names.Set(topology.New(next.Dims, next.Placed(), nil, 2)) {
		t.Fatal("the topology is not newer")
	}
	summary("0:6 1:6 2:6")
	list, err := h.client.ListNodes(t.Context(), &lofamov1.ListNodesRequest{Brief: true})
	if err != nil || len(list.GetNodes()) != 19 || list.GetNodes()[18].GetId() != "spare-1" ||
		list.GetNodes()[17].GetLabels()["rack"] != "r1" {
		t.Errorf("%v, %v", list, err)
	}
	l.mu.Lock()
	l.b = view.NewBuilder(l.names, time.Time{})
	l.mu.Unlock()
	l.set(nil)
	summary("0:5 1:5 2:5 3:5")
}

func TestSummaryCountsByLabel(t *testing.T) {
	h, _ := harmed(t)
	show := func(req *lofamov1.GetSummaryRequest) string {
		resp, err := h.client.GetSummary(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		count := func(c *lofamov1.Count) string {
			return fmt.Sprintf("%d/%d/%d/%d", c.GetUnknown(), c.GetNormal(), c.GetSick(), c.GetFailed())
		}
		out := []string{count(resp.GetNodes()), count(resp.GetLinks())}
		for _, y := range resp.GetBy() {
			out = append(out, y.GetKey()+"="+y.GetValue()+":"+count(y.GetNodes()))
		}
		return strings.Join(out, " ")
	}
	for _, tc := range []struct {
		by     []string
		labels string
		want   string
	}{
		{nil, "", "1/15/1/1 0/107/1/0"},
		{[]string{"dimension/X", "label/rack"}, "", "1/15/1/1 0/107/1/0 dimension/X=0:1/4/0/1 dimension/X=1:0/5/1/0 dimension/X=2:0/6/0/0 " +
			"label/rack=r0:0/7/1/1 label/rack=r1:1/8/0/0"},
		{[]string{"dimension/Y", "dimension/Z", "region"}, "gpu",
			"1/4/0/1 0/36/0/0 dimension/Y=0:0/1/0/1 dimension/Y=1:0/2/0/0 dimension/Y=2:1/1/0/0 dimension/Z=0:0/2/0/1 dimension/Z=1:1/2/0/0 " +
				"region=:1/4/0/1"},
		{[]string{"label/none"}, "rack=r1", "1/8/0/0 0/53/1/0 label/none=:1/8/0/0"},
		{[]string{"label/rack"}, "rack=r7", "0/0/0/0 0/0/0/0"},
	} {
		for range 2 { // the second time from the cache
			if got := show(&lofamov1.GetSummaryRequest{By: tc.by, LabelSelector: tc.labels}); got != tc.want {
				t.Errorf("by %v of %q: %s, want %s", tc.by, tc.labels, got, tc.want)
			}
		}
	}
	if got := []string{"10", "b", "9", "", "a", "010"}; true {
		slices.SortFunc(got, compareValues)
		if fmt.Sprint(got) != "[ 9 010 10 a b]" {
			t.Errorf("%q", got)
		}
	}
}

func dimsOf(t *testing.T, s string) grid.Dims {
	t.Helper()
	d, err := grid.ParseDims(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
