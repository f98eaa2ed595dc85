package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Explain knows links and nodes.
func (l *leads) Explain(_ context.Context, id fault.NodeID, c fault.Component) (awareness.Explanation, error) {
	if _, link := c.LinkDirection(); !link && c != fault.ComponentNode {
		return awareness.Explanation{}, fmt.Errorf("%w", engine.ErrUnknown)
	}
	return awareness.Explanation{
		Node: id, Component: c, State: fault.Failed, Cause: fault.CauseNode, Since: time.Unix(7, 0), Rule: "quorum", Summary: "nobody hears it",
		Because: []string{"a", "b"}, Until: []string{"an answer"}, Evidence: []awareness.EvidenceStatus{{Kind: fault.KindSilence,
			Observer: "n1-0-0/dnp", State: fault.Failed}},
	}, nil
}

// ExplainGroup knows rows.
func (l *leads) ExplainGroup(_ context.Context, id string) (awareness.GroupExplanation, error) {
	g, _ := l.m.Group(id)
	if g.Kind != awareness.GroupRow {
		return awareness.GroupExplanation{}, fmt.Errorf("%w", engine.ErrUnknown)
	}
	return awareness.GroupExplanation{GroupStatus: g, Summary: "they are dead", Because: []string{"counted: both"},
		Until: []string{"they come back"}}, nil
}

// above puts a group fault over n0-0-0 and n0-0-1, and a warning on n2-0-0 and on n0-0-0.
func above(l *leads) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.SetGroup(awareness.GroupStatus{
		ID: "row/X=0,Y=0", Kind: awareness.GroupRow, State: fault.Failed, Cause: fault.CauseNode, Members: []fault.NodeID{"n0-0-0",
			"n0-0-1"}, Of: 2, Inferred: 1, Since: time.Unix(5, 0), Rule: "row",
	})
	for _, id := range []fault.NodeID{"n0-0-0", "n2-0-0"} {
		l.b.SetWarning(awareness.WarningStatus{Node: id, Component: fault.ComponentMemory, Quantity: fault.QuantityCorrectedErrors,
			Value: 3, Threshold: 9, Left: time.Hour, Rule: "rate"})
	}
	l.m = l.b.Map(l.rev)
}

func TestGroupsAndWarnings(t *testing.T) {
	h, l := harmed(t)
	above(l)
	nodes, err := h.client.ListNodes(t.Context(), &lofamov1.ListNodesRequest{NotNormal: true})
	if err != nil || ids(nodes.GetNodes()) != "n0-0-0 n1-0-0 n2-0-0 n0-2-1 n2-2-1" {
		t.Fatalf("%s, %v", ids(nodes.GetNodes()), err)
	}
	if n := nodes.GetNodes()[0]; len(n.GetGroups()) != 1 || len(n.GetWarnings()) != 1 || n.GetWarnings()[0].GetComponent() != "memory" {
		t.Errorf("%v", n)
	}
	nodes, err = h.client.ListNodes(t.Context(), &lofamov1.ListNodesRequest{FieldSelector: "group=row/X=0,Y=0"})
	if err != nil || ids(nodes.GetNodes()) != "n0-0-0 n0-0-1" {
		t.Errorf("%s, %v", ids(nodes.GetNodes()), err)
	}
	for node, want := range map[string]int{"": 1, "0,0,1": 1, "1,1,1": 0} {
		resp, err := h.client.ListGroups(t.Context(), &lofamov1.ListGroupsRequest{Node: node})
		if err != nil || len(resp.GetGroups()) != want || resp.GetRevision() != l.rev || resp.GetCluster() == nil {
			t.Errorf("groups of %q: %v, %v", node, resp, err)
		}
	}
	for labels, want := range map[string][2]uint32{"": {1, 2}, "rack=r1": {1, 0}, "!gpu": {0, 1}} {
		sum, err := h.client.GetSummary(t.Context(), &lofamov1.GetSummaryRequest{LabelSelector: labels})
		if err != nil || sum.GetGroups() != want[0] || sum.GetWarnings() != want[1] {
			t.Errorf("%q: %d groups, %d warnings, %v", labels, sum.GetGroups(), sum.GetWarnings(), err)
		}
	}
	h.marks.Replace([]*lofamov1.Maintenance{{Node: "n2-0-0", Reason: "fan"}}, 9)
	resp, err := h.watch(t, &lofamov1.WatchRequest{Initial: true, LabelSelector: "rack=r0"}).Recv()
	var got []string
	for _, ev := range resp.GetEvents() {
		got = append(got, fmt.Sprintf("%s:%s%s/%s", strings.TrimSuffix(ev.GetKind().String(), "_CHANGED"), ev.GetNode(),
			ev.GetGroup().GetId(), ev.GetComponent()))
	}
	const want = "GROUP:row/X=0,Y=0/ COMPONENT:n0-0-0/node WARNING:n0-0-0/memory COMPONENT:n1-0-0/node COMPONENT:n2-0-0/node " +
		"WARNING:n2-0-0/memory MAINTENANCE:n2-0-0/"
	if strings.Join(got, " ") != want {
		t.Errorf("%s, %v: want %s", strings.Join(got, " "), err, want)
	}
	_, err = h.client.ListGroups(t.Context(), &lofamov1.ListGroupsRequest{Node: "nobody"})
	refused(t, "groups of nobody", err, codes.NotFound, "no node of that id")
}

func TestExplanationNamesEvidenceAndGroups(t *testing.T) {
	h, l := harmed(t)
	above(l)
	x, err := h.client.Explain(t.Context(), &lofamov1.ExplainRequest{Node: "0,0,0"})
	if err != nil || x.GetComponent() != "node" || x.GetRule() != "quorum" || len(x.GetBecause()) != 2 || len(x.GetUntil()) != 1 ||
		x.GetEvidence()[0].GetObserver() != "n1-0-0/dnp" || len(x.GetGroups()) != 1 || x.GetCoord() != "0,0,0" || x.GetSince().GetSeconds() != 7 {
		t.Errorf("%v, %v", x, err)
	}
	// The findings of the last diagnosis appear in the explanation.
	kv, err := store.DiagnosisPut(&lofamov1.DiagnosisReport{Scope: "all", Subject: "operator/o", Faults: []*lofamov1.DiagnosisFault{
		{Part: lofamov1.DiagnosisPart_PART_LINK, Node: "n0-0-0", Direction: "X+", Peer: "n1-0-0", Explanation: "dead both ways"},
	}})
	if err == nil {
		_, err = h.writer.Commit(t.Context(), store.Batch{Puts: []store.KV{kv}})
	}
	if err != nil {
		t.Fatal(err)
	}
	for component, want := range map[string]int{"link/X+": 3, "link/Y+": 2, "": 2} {
		if x, err := h.client.Explain(t.Context(), &lofamov1.ExplainRequest{Node: "0,0,0", Component: component}); err != nil ||
			len(x.GetBecause()) != want ||
			want == 3 && !strings.HasSuffix(x.GetBecause()[2], "link n0-0-0 X+ to n1-0-0 is at fault: dead both ways") {
			t.Errorf("%q: %q, %v", component, x.GetBecause(), err)
		}
	}
	h.marks.Replace([]*lofamov1.Maintenance{{Node: "n0-0-0", Reason: "fan"}}, 9)
	if x, err := h.client.Explain(t.Context(), &lofamov1.ExplainRequest{Node: "0,0,0", Component: "link/X+"}); err != nil ||
		x.GetMaintenance().GetReason() != "fan" {
		t.Errorf("%v, %v", x, err)
	}
	if x.GetMaintenance() != nil {
		t.Errorf("marked before it was: %v", x)
	}
	if x, err = h.client.Explain(t.Context(), &lofamov1.ExplainRequest{Node: "spare-1"}); err != nil ||
		x.GetState() != lofamov1.State_UNKNOWN || !strings.Contains(x.GetSummary(), "spare") || x.GetCoord() != "" {
		t.Errorf("%v, %v", x, err)
	}
	for _, tc := range []struct {
		node, component string
		code            codes.Code
		want            string
	}{
		{"nobody", "", codes.NotFound, "no node of that id"},
		{"9,9,9", "", codes.InvalidArgument, "outside"},
		{"0,0,0", "fan", codes.InvalidArgument, "component"},
		{"0,0,0", "voltage", codes.NotFound, "has no voltage"},
	} {
		_, err := h.client.Explain(t.Context(), &lofamov1.ExplainRequest{Node: tc.node, Component: tc.component})
		refused(t, tc.node+" "+tc.component, err, tc.code, tc.want)
	}
}

// TestExplainSaysAbsent: a part that the node does not have is ABSENT, as in `get node`; an unreported part is UNKNOWN.
func TestExplainSaysAbsent(t *testing.T) {
	x := awareness.Explanation{Node: "n0-0-0", Component: fault.ComponentPeripheral0, State: fault.Unknown, Rule: "unheard",
		Summary: "peripheral/0 of n0-0-0 is UNKNOWN: why", Until: []string{"a report"}}
	if e := explanation(x, time.Unix(9, 0)); e.GetState() != lofamov1.State_UNKNOWN || e.GetSummary() != x.Summary {
		t.Errorf("without evidence: %v", e)
	}
	x.Evidence = []awareness.EvidenceStatus{{Kind: fault.KindAbsent, Observer: "n0-0-0/host", State: fault.Unknown}}
	if e := explanation(x, time.Unix(9, 0)); e.GetState() != lofamov1.State_ABSENT ||
		e.GetSummary() != "peripheral/0 of n0-0-0 is ABSENT: the node says that it does not have this part" ||
		len(e.GetUntil()) != 1 || e.GetUntil()[0] == "a report" {
		t.Errorf("with the node's own word: %v", e)
	}
}

func TestExplainAGroup(t *testing.T) {
	h, l := harmed(t)
	_, err := h.client.Explain(t.Context(), &lofamov1.ExplainRequest{Group: "row/X=0,Y=0"})
	refused(t, "no group", err, codes.NotFound, "no group fault stands")
	above(l)
	l.mu.Lock()
	l.b.SetGroup(awareness.GroupStatus{ID: "plane/Z=9", Kind: awareness.GroupPlane, State: fault.Failed, Cause: fault.CauseNode,
		Members: []fault.NodeID{"n0-0-0"}})
	l.m = l.b.Map(l.rev)
	l.mu.Unlock()
	x, err := h.client.Explain(t.Context(), &lofamov1.ExplainRequest{Group: "row/X=0,Y=0"})
	if err != nil || x.GetNode()+x.GetComponent()+x.GetCoord() != "" || x.GetRule() != "row" || x.GetSummary() != "they are dead" ||
		len(x.GetBecause()) != 1 || len(x.GetUntil()) != 1 ||
		x.GetState() != lofamov1.State_FAILED || x.GetCause() != lofamov1.Cause_NODE || x.GetSince().GetSeconds() != 5 ||
		len(x.GetGroups()) != 1 || x.GetGroups()[0].GetSize() != 2 || x.GetRevision() != l.rev || x.GetCluster() == nil {
		t.Errorf("%v, %v", x, err)
	}
	for _, tc := range []struct {
		req  *lofamov1.ExplainRequest
		code codes.Code
		want string
	}{
		{&lofamov1.ExplainRequest{Group: "label/rack=r1"}, codes.NotFound, "of the 2 that do: plane/Z=9, row/X=0,Y=0"},
		{&lofamov1.ExplainRequest{Group: "plane/Z=9"}, codes.NotFound, "no such group fault"}, // it just ended
		{&lofamov1.ExplainRequest{Group: "row/X=0,Y=0", Node: "0,0,0"}, codes.InvalidArgument, "want one or the other"},
		{&lofamov1.ExplainRequest{Group: "row/X=0,Y=0", Component: "host"}, codes.InvalidArgument, "want one or the other"},
	} {
		_, err := h.client.Explain(t.Context(), tc.req)
		refused(t, tc.req.String(), err, tc.code, tc.want)
	}
}

// TestCopyWithoutLeader: a replica that reaches no leader returns all committed state, marks it stale with its age,
// and claims no more than it knows.
func TestCopyWithoutLeader(t *testing.T) {
	h, l := harmed(t)
	l.gone = true
	st, _ := l.b.At("n2-2-1")
	st.Status.Rule = "own-word"
	group, err := proto.Marshal(view.StoredGroup(awareness.GroupStatus{ID: "plane/Z=1", Kind: awareness.GroupPlane,
		State: fault.Failed, Members: []fault.NodeID{"n2-2-1", "gone"}}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.writer.Commit(t.Context(), store.Batch{Nodes: []*lofamov1.Node{view.Stored(st.Status)},
		Puts: []store.KV{{Key: store.GroupKey("plane/Z=1"), Value: group}}}); err != nil {
		t.Fatal(err)
	}
	resp, err := h.client.ListNodes(t.Context(), &lofamov1.ListNodesRequest{FieldSelector: "group=plane/Z=1"})
	if err != nil || ids(resp.GetNodes()) != "n2-2-1" || !resp.GetCluster().GetStale() ||
		resp.GetCluster().GetStaleAge().AsDuration() != 3*time.Second {
		t.Errorf("%v, %v", resp, err)
	}
	x, err := h.client.Explain(t.Context(), &lofamov1.ExplainRequest{Node: "n2-2-1", Component: "link/X+"})
	if err != nil || x.GetState() != lofamov1.State_SICK || !strings.Contains(x.GetSummary(), "reaches no leader") ||
		len(x.GetGroups()) != 1 || !x.GetCluster().GetStale() {
		t.Errorf("%v, %v", x, err)
	}
	if x, err = h.client.Explain(t.Context(), &lofamov1.ExplainRequest{Node: "n2-2-1"}); err != nil || x.GetRule() != "own-word" ||
		x.GetState() != lofamov1.State_NORMAL {
		t.Errorf("%v, %v", x, err)
	}
	if x, err = h.client.Explain(t.Context(), &lofamov1.ExplainRequest{Group: "plane/Z=1"}); err != nil ||
		!strings.Contains(x.GetSummary(), "reaches no leader") || x.GetGroups()[0].GetSize() != 1 || !x.GetCluster().GetStale() {
		t.Errorf("%v, %v", x, err)
	}
	sum, err := h.client.GetSummary(t.Context(), &lofamov1.GetSummaryRequest{})
	if err != nil || sum.GetNodes().GetNormal() != 1 || sum.GetNodes().GetUnknown() != 17 || !sum.GetCluster().GetStale() {
		t.Errorf("%v, %v", sum, err)
	}
	// Later commits are visible.
	st.Status.State = fault.Sick
	if _, err := h.writer.Commit(t.Context(), store.Batch{Nodes: []*lofamov1.Node{view.Stored(st.Status)},
		Deletes: []string{store.GroupKey("plane/Z=1")}}); err != nil {
		t.Fatal(err)
	}
	resp, err = h.client.ListNodes(t.Context(), &lofamov1.ListNodesRequest{States: []lofamov1.State{lofamov1.State_SICK}})
	if err != nil || ids(resp.GetNodes()) != "n2-2-1" || len(resp.GetNodes()[0].GetGroups()) > 0 {
		t.Errorf("%v, %v", resp, err)
	}
}

// TestRegionOfGroup: at a parent it is the members' region, elsewhere the supervisors' own.
func TestRegionOfGroup(t *testing.T) {
	g := awareness.GroupStatus{Members: []fault.NodeID{"a", "b"}}
	own := snapshot{topo: &topology.Topology{Region: "west"}}
	parent := snapshot{topo: new(topology.Topology), of: func(id fault.NodeID) string { return "of " + string(id) }}
	if got := own.groupRegion(g) + ", " + parent.groupRegion(g); got != "west, of a" {
		t.Error(got)
	}
}

// asOperator is the context of an operator's call.
func asOperator(t *testing.T) context.Context {
	t.Helper()
	uri, err := url.Parse(pki.Identity{Cluster: "local", Role: pki.RoleOperator, Name: "somebody"}.String())
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{URIs: []*url.URL{uri}}
	return peer.NewContext(t.Context(),
		&peer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}}})
}
