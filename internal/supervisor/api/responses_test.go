package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/respond"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/response/policy"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// callOf returns the context of a call by a role and name.
func callOf(t *testing.T, role pki.Role, name string) context.Context {
	t.Helper()
	uri, err := url.Parse(pki.Identity{Cluster: "local", Role: role, Name: name}.String())
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{URIs: []*url.URL{uri}}
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	t.Cleanup(cancel)
	return peer.NewContext(ctx,
		&peer.Peer{AuthInfo: credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}}})
}

// memory is a responder around the real engine that keeps its records in memory, and starts no effects.
type memory struct {
	mu      sync.Mutex
	e       *response.Engine
	now     time.Time
	records map[string]response.Record
	lines   []response.AuditLine
	oldest  int // index of the oldest kept line
	changed chan struct{}
	reads   int
	follows bool
	broken  error
}

var began = time.Date(2027, 1, 15, 8, 0, 0, 0, time.UTC)

// newMemory leads a torus of 4×4×4 with policies.
func newMemory(t *testing.T, documents string) *memory {
	t.Helper()
	docs, err := policy.Parse([]byte(documents))
	if err != nil {
		t.Fatal(err)
	}
	cfg := response.Default()
	cfg.Grace, cfg.StormDelay = 0, 0
	e, err := response.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	m := &memory{e: e, now: began, records: map[string]response.Record{}, changed: make(chan struct{})}
	topo := response.TopologyChanged{Dims: grid.Dims{X: 4, Y: 4, Z: 4}}
	for rank := range topo.Dims.Nodes() {
		at := topo.Dims.At(rank)
		topo.Nodes = append(topo.Nodes, response.NodeInfo{ID: fault.DefaultNodeID(at), Coord: at})
	}
	for _, ev := range []response.Event{
		topo, response.SupervisorsChanged{Supervisors: []response.SupervisorInfo{{ID: "s1",
			Alive: true}}}, response.PoliciesChanged{Policies: policy.Policies(docs)}, response.Led{Token: 7},
	} {
		if err := m.step(ev); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// step feeds the engine an event, and commits its output.
func (m *memory) step(ev response.Event) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := m.e.Step(m.now, ev)
	for _, r := range out.Records {
		m.records[r.Key()] = r
	}
	for _, key := range out.Forget {
		delete(m.records, key)
	}
	for _, d := range out.Decisions {
		var last response.AuditLine
		if n := len(m.lines); n > 0 {
			last = m.lines[n-1]
		}
		l, err := response.ChainAudit(last, d)
		if err != nil {
			return err
		}
		m.lines = append(m.lines, l)
	}
	close(m.changed)
	m.changed = make(chan struct{})
	return out.Err
}

func (m *memory) fault(t *testing.T, node fault.NodeID, s fault.State) {
	t.Helper()
	f := response.Fault{Node: node, Component: fault.ComponentMemory, State: s, Cause: fault.CauseMemory, Since: m.now,
		Evidence: response.Evidence{At: m.now, Kind: fault.KindSelf, Own: true, Witnesses: []string{string(node) + "/host"}}}
	if s == fault.Normal {
		f.Cause = fault.CauseNone
	}
	if err := m.step(response.FaultChanged{Fault: f}); err != nil {
		t.Fatal(err)
	}
}

func (m *memory) Ask(_ context.Context, a response.Asked) error {
	switch {
	case m.follows:
		return respond.ErrNotLeader
	case m.broken != nil:
		return m.broken
	}
	return m.step(a)
}

func (m *memory) Responses(context.Context) ([]*response.Response, response.Breaker, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	var out []*response.Response
	for _, key := range slices.Sorted(maps.Keys(m.records)) {
		if r, ok := m.records[key].(*response.Response); ok {
			out = append(out, r)
		}
	}
	return out, m.e.Breaker(), m.broken
}

func (m *memory) Audit(_ context.Context, from uint64, limit int) ([]respond.AuditLine, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := max(int(from)-1, m.oldest)
	if i >= len(m.lines) {
		return nil, m.broken
	}
	return slices.Clone(m.lines[i:min(len(m.lines), i+limit)]), m.broken
}

func (m *memory) AuditHead(context.Context) (store.AuditHead, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return store.AuditHead{First: uint64(m.oldest) + 1, Last: uint64(len(m.lines))}, m.broken
}

func (m *memory) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// twoApprovals drains after two approvals.
const twoApprovals = `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: drain}
spec:
  mode: enforce
  match: fault.component == "memory" && fault.state == "FAILED"
  guards: {approvals: 2}
  steps:
  - {name: drain, executor: kubernetes.drain, timeout: 1m}
`

// responsesOf returns the service of a replica with a memory.
func responsesOf(t *testing.T, m *memory, d Directory) *Responses {
	t.Helper()
	return NewResponses(New(Config{Self: "s1", Names: newLeads(dimsOf(t, "4x4x4")).names, Directory: d,
		Stopping: make(chan struct{})}), unasked(), m)
}

// unasked is a store that these tests do not use.
func unasked() *store.Etcd { return store.NewEtcd(nil, store.Options{}) }

func waiting(t *testing.T, m *memory) string {
	t.Helper()
	m.fault(t, "n0-0-1", fault.Failed)
	all, _, err := m.Responses(t.Context())
	if err != nil || len(all) != 1 || all[0].State != response.Waiting || all[0].Reason != response.ReasonApproval {
		t.Fatalf("%+v, %v: want one that waits for approval", all, err)
	}
	return all[0].ID
}

// TestTwoApprovalsNeedTwoSubjects: two approvals need two subjects, both with the right role, and no replica counts as one.
func TestTwoApprovalsNeedTwoSubjects(t *testing.T) {
	m := newMemory(t, twoApprovals)
	r := responsesOf(t, m, alone{})
	id := waiting(t, m)
	for _, tc := range []struct {
		role pki.Role
		name string
		req  *lofamov1.ApproveResponseRequest
		code codes.Code
		text string // of the error; or the state
	}{
		{pki.RoleOperator, "ann", &lofamov1.ApproveResponseRequest{Id: id}, codes.PermissionDenied,
			"role operator of operator/ann may not make this request: want approver"},
		{pki.RoleSupervisor, "s2", &lofamov1.ApproveResponseRequest{Id: id}, codes.PermissionDenied, "role supervisor"},
		{pki.RoleApprover, "ann", &lofamov1.ApproveResponseRequest{}, codes.InvalidArgument, "id: given"},
		{pki.RoleApprover, "ann", &lofamov1.ApproveResponseRequest{Id: strings.Repeat("r", 65)}, codes.InvalidArgument, "id: given"},
		{pki.RoleApprover, "ann", &lofamov1.ApproveResponseRequest{Id: id, Reason: "a\x1bb"}, codes.InvalidArgument, "reason: given 3 bytes"},
		{pki.RoleApprover, "ann", &lofamov1.ApproveResponseRequest{Id: "r7-99"}, codes.NotFound, `response "r7-99": there is none`},
		{pki.RoleApprover, "ann", &lofamov1.ApproveResponseRequest{Id: id, Reason: "seen it"}, codes.OK, "RESPONSE_WAITING"},
		{pki.RoleApprover, "ann", &lofamov1.ApproveResponseRequest{Id: id}, codes.Aborted,
			"approver/ann has approved it: want another subject: nothing was changed"},
		{pki.RoleApprover, "bob", &lofamov1.ApproveResponseRequest{Id: id}, codes.OK, "RESPONSE_RUNNING"},
		{pki.RoleApprover, "cy", &lofamov1.ApproveResponseRequest{Id: id}, codes.Aborted, "want one that waits for approval"},
	} {
		resp, err := r.ApproveResponse(callOf(t, tc.role, tc.name), tc.req)
		if tc.code != codes.OK {
			refused(t, fmt.Sprint(tc.role, tc.name, tc.req), err, tc.code, tc.text)
			continue
		}
		if err != nil || resp.GetResponse().GetState().String() != tc.text || resp.GetResponse().GetApprovalsWanted() != 2 ||
			tc.text == "RESPONSE_WAITING" && !strings.HasPrefix(resp.GetResponse().GetDetail(), "1 of 2, until ") {
			t.Errorf("%v: %v, %v", tc.req, resp, err)
		}
	}
	got, err := r.GetResponse(callOf(t, pki.RoleViewer, "eve"), &lofamov1.GetResponseRequest{Id: id})
	if err != nil || len(got.GetApprovals()) != 2 || got.GetApprovals()[1].GetSubject() != "approver/bob" ||
		got.GetNode() != "n0-0-1" || got.GetComponent() != "memory" ||
		got.GetSteps()[0].GetState() != lofamov1.ResponseStepState_STEP_ACTING || got.GetSteps()[0].GetAttempt() != 1 ||
		got.GetMode() != lofamov1.PolicyMode_ENFORCE {
		t.Errorf("%v, %v", got, err)
	}
}

// TestLeaderKnowsAuthorOfRequest: the leader receives a request in its author's name, and a replica's own request has no author.
func TestLeaderKnowsAuthorOfRequest(t *testing.T) {
	m := newMemory(t, twoApprovals)
	id := waiting(t, m)
	leader := responsesOf(t, m, alone{})
	// The leader sees a replica at the other end of the connection.
	srv := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo,
		next grpc.UnaryHandler) (any, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		return next(metadata.NewIncomingContext(callOf(t, pki.RoleSupervisor, "s2"), md), req)
	}))
	lofamov1.RegisterResponseServiceServer(srv, leader)
	ln := bufconn.Listen(1 << 16)
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(srv.Stop)
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	r := responsesOf(t, &memory{follows: true}, led{conn: conn})
	if resp, err := r.ApproveResponse(callOf(t, pki.RoleApprover, "ann"), &lofamov1.ApproveResponseRequest{Id: id}); err != nil ||
		resp.GetResponse().GetApprovals()[0].GetSubject() != "approver/ann" {
		t.Errorf("%v, %v", resp, err)
	}
	_, err = r.ApproveResponse(callOf(t, pki.RoleSupervisor, "s3"), &lofamov1.ApproveResponseRequest{Id: id})
	refused(t, "a replica's own word", err, codes.PermissionDenied, "want approver")
	_, err = r.ApproveResponse(callOf(t, pki.RoleApprover, "ann"), &lofamov1.ApproveResponseRequest{Id: id})
	refused(t, "what the leader refuses", err, codes.Aborted, "want another subject")
	_, err = lofamov1.NewResponseServiceClient(conn).ApproveResponse(metadata.AppendToOutgoingContext(t.Context(), SubjectKey,
		"operator/ann"), &lofamov1.ApproveResponseRequest{Id: id})
	refused(t, "an operator by way of a replica", err, codes.PermissionDenied, "role operator")
	// There is no known leader, and the replica asked before no longer leads.
	_, err = responsesOf(t, &memory{follows: true}, alone{}).ApproveResponse(callOf(t, pki.RoleApprover, "ann"),
		&lofamov1.ApproveResponseRequest{Id: id})
	refused(t, "no leader", err, codes.Unavailable, "no leader: nothing was changed")
	m.follows = true
	_, err = r.ApproveResponse(callOf(t, pki.RoleApprover, "bob"), &lofamov1.ApproveResponseRequest{Id: id})
	refused(t, "no leader any more", err, codes.Unavailable, "does not lead any more")
	m.follows, m.broken = false, respond.ErrUnsettled
	_, err = r.ApproveResponse(callOf(t, pki.RoleApprover, "bob"), &lofamov1.ApproveResponseRequest{Id: id})
	refused(t, "a leader that may have committed it", err, codes.DeadlineExceeded, "the outcome is unknown")
}

// TestVerbsOnResponsesNeedTheirRoles: deny, retry, cancel, settle and the breaker, and the roles that may use them.
func TestVerbsOnResponsesNeedTheirRoles(t *testing.T) {
	m := newMemory(t, twoApprovals)
	r := responsesOf(t, m, alone{})
	id := waiting(t, m)
	viewer, approver, operator := callOf(t, pki.RoleViewer, "eve"), callOf(t, pki.RoleApprover, "ann"), callOf(t, pki.RoleOperator, "bob")
	_, err := r.DenyResponse(viewer, &lofamov1.DenyResponseRequest{Id: id, Reason: "no"})
	refused(t, "deny as viewer", err, codes.PermissionDenied, "want approver or operator")
	_, err = r.DenyResponse(approver, &lofamov1.DenyResponseRequest{Id: id, Reason: " "})
	refused(t, "deny without a reason", err, codes.InvalidArgument, "reason: given 1 bytes")
	if resp, err := r.DenyResponse(approver, &lofamov1.DenyResponseRequest{Id: id, Reason: "not now"}); err != nil ||
		resp.GetResponse().GetState() != lofamov1.ResponseState_RESPONSE_EXPIRED ||
		resp.GetResponse().GetReason() != "denied" {
		t.Errorf("%v, %v", resp, err)
	}
	_, err = r.RetryResponse(approver, &lofamov1.RetryResponseRequest{Id: id})
	refused(t, "retry as approver", err, codes.PermissionDenied, "want operator")
	if resp, err := r.RetryResponse(operator, &lofamov1.RetryResponseRequest{Id: id}); err != nil ||
		resp.GetResponse().GetState() != lofamov1.ResponseState_RESPONSE_WAITING {
		t.Errorf("%v, %v", resp, err)
	}
	_, err = r.SettleResponse(operator, &lofamov1.SettleResponseRequest{Id: id, Happened: true, Reason: "seen it"})
	refused(t, "settle what is not open", err, codes.Aborted, "settle as happened: response "+id)
	_, err = r.SettleResponse(operator, &lofamov1.SettleResponseRequest{Id: id, Reason: "seen it"})
	refused(t, "settle what is not open", err, codes.Aborted, "settle as not happened: response "+id)
	if resp, err := r.CancelResponse(operator, &lofamov1.CancelResponseRequest{Id: id, Reason: "enough"}); err != nil ||
		!resp.GetResponse().GetCancelled() {
		t.Errorf("%v, %v", resp, err)
	}
	_, err = r.CloseBreaker(operator, &lofamov1.CloseBreakerRequest{Reason: "looked"})
	refused(t, "close what is closed", err, codes.Aborted, "nothing was changed")
	for x := range 4 {
		for y := range 4 {
			m.fault(t, fault.DefaultNodeID(grid.Coord{X: x, Y: y, Z: 2}), fault.Failed)
		}
	}
	// Faulty memory alone is no storm: whole nodes must be bad.
	for x := range 4 {
		for y := range 4 {
			n := fault.DefaultNodeID(grid.Coord{X: x, Y: y, Z: 3})
			f := response.Fault{Node: n, Component: fault.ComponentNode, State: fault.Failed, Cause: fault.CauseNode, Since: m.now,
				Evidence: response.Evidence{At: m.now, Witnesses: []string{"a/host", "b/host"}}}
			if err := m.step(response.FaultChanged{Fault: f}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if b, err := r.GetBreaker(viewer, &lofamov1.GetBreakerRequest{}); err != nil || !b.GetOpen() || b.GetDetail() == "" || b.GetAt() == nil {
		t.Errorf("%v, %v", b, err)
	}
	if resp, err := r.CloseBreaker(operator, &lofamov1.CloseBreakerRequest{Reason: "looked"}); err != nil ||
		resp.GetBreaker().GetOpen() || resp.GetBreaker().GetClosedBy() != "operator/bob" {
		t.Errorf("%v, %v", resp, err)
	}
	m.broken = errors.New("the store is full")
	_, err = r.GetBreaker(viewer, nil)
	refused(t, "a store that does not answer", err, codes.Unavailable, "the store is full")
}

func TestResponsesAreListedByFilter(t *testing.T) {
	observing := strings.NewReplacer("name: drain}", "name: watch}", "mode: enforce", "mode: observe-only", "guards: {approvals: 2}",
		"guards: {approvals: 1}").Replace(twoApprovals)
	m := newMemory(t, twoApprovals+"---"+strings.Replace(observing, "timeout: 1m", "parameters: {force: true}", 1))
	r := responsesOf(t, m, alone{})
	for i := range 12 {
		m.fault(t, fault.DefaultNodeID(grid.Coord{X: i % 4, Y: i / 4}), fault.Failed)
	}
	m.fault(t, "n1-0-0", fault.Normal)
	for _, tc := range []struct {
		req  *lofamov1.ListResponsesRequest
		want int
	}{
		{&lofamov1.ListResponsesRequest{}, 22},
		{&lofamov1.ListResponsesRequest{All: true}, 24},
		{&lofamov1.ListResponsesRequest{Acting: true}, 11},
		{&lofamov1.ListResponsesRequest{Policy: "watch"}, 11},
		{&lofamov1.ListResponsesRequest{Node: "2,1,0"}, 2},
		{&lofamov1.ListResponsesRequest{Node: "2,1,0", Acting: true}, 1},
		{&lofamov1.ListResponsesRequest{States: []lofamov1.ResponseState{lofamov1.ResponseState_RESPONSE_EXPIRED}, All: true}, 2},
		{&lofamov1.ListResponsesRequest{States: []lofamov1.ResponseState{lofamov1.ResponseState_RESPONSE_DONE}}, 0},
	} {
		resp, err := r.ListResponses(t.Context(), tc.req)
		if err != nil || len(resp.GetResponses()) != tc.want || resp.GetBreaker() == nil {
			t.Errorf("%v: %d responses, %v: want %d", tc.req, len(resp.GetResponses()), err, tc.want)
		}
		for i, is := range resp.GetResponses() {
			if i > 0 && is.GetProposed().AsTime().Before(resp.GetResponses()[i-1].GetProposed().AsTime()) || i > 9 &&
				len(is.GetId()) < len(resp.GetResponses()[0].GetId()) {
				t.Errorf("%v: %s at place %d", tc.req, is.GetId(), i)
			}
		}
	}
	_, err := r.ListResponses(t.Context(), &lofamov1.ListResponsesRequest{States: []lofamov1.ResponseState{99}})
	refused(t, "no state", err, codes.InvalidArgument, "states: given 99: want one of RESPONSE_APPROVED, ")
	_, err = r.ListResponses(t.Context(), &lofamov1.ListResponsesRequest{Node: "n9"})
	refused(t, "no node", err, codes.NotFound, `node "n9"`)
}

// TestResponseWatchSendsStateThenChanges: existing responses first, then changes, and each response that leaves the filter a last time.
func TestResponseWatchSendsStateThenChanges(t *testing.T) {
	m := newMemory(t, twoApprovals)
	r := responsesOf(t, m, alone{})
	id := waiting(t, m)
	f, err := r.filter(&lofamov1.ListResponsesRequest{States: []lofamov1.ResponseState{lofamov1.ResponseState_RESPONSE_WAITING}})
	if err != nil {
		t.Fatal(err)
	}
	w := responseWatch{filter: f, known: map[string]uint64{}}
	next := func() *lofamov1.WatchResponsesResponse {
		t.Helper()
		all, breaker, err := r.read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return w.next(all, breaker)
	}
	if resp := next(); len(resp.GetResponses()) != 1 || resp.GetResponses()[0].GetId() != id || resp.GetBreaker() == nil {
		t.Errorf("first: %v", resp)
	}
	if resp := next(); resp != nil {
		t.Errorf("nothing has changed: %v", resp)
	}
	m.fault(t, "n0-0-2", fault.Failed)
	if resp := next(); len(resp.GetResponses()) != 1 || resp.GetResponses()[0].GetNode() != "n0-0-2" || resp.GetBreaker() != nil {
		t.Errorf("another one: %v", resp)
	}
	if _, err := r.DenyResponse(callOf(t, pki.RoleOperator, "bob"), &lofamov1.DenyResponseRequest{Id: id, Reason: "no"}); err != nil {
		t.Fatal(err)
	}
	if resp := next(); len(resp.GetResponses()) != 1 || resp.GetResponses()[0].GetState() != lofamov1.ResponseState_RESPONSE_EXPIRED {
		t.Errorf("it leaves the filter: %v", resp)
	}
	m.fault(t, "n0-0-1", fault.Normal)
	if resp := next(); resp != nil {
		t.Errorf("what has left it changes: %v", resp)
	}
	maps.DeleteFunc(m.records, func(string, response.Record) bool { return true })
	if resp := next(); len(resp.GetGone()) != 1 || len(resp.GetResponses()) != 0 {
		t.Errorf("they are forgotten: %v", resp)
	}
}

// TestWatchersShareReads: watchers of the same responses share reads, and each still sees every change.
func TestWatchersShareReads(t *testing.T) {
	m := newMemory(t, twoApprovals)
	r := responsesOf(t, m, alone{})
	waiting(t, m)
	before := m.reads
	for range 3 {
		if all, _, err := r.readOnce(t.Context(), m.Changed()); err != nil || len(all) != 1 {
			t.Errorf("%d, %v", len(all), err)
		}
	}
	m.fault(t, "n0-0-2", fault.Failed)
	if all, _, err := r.readOnce(t.Context(), m.Changed()); err != nil || len(all) != 2 || m.reads != before+2 {
		t.Errorf("%d, %v, in %d reads: want 2", len(all), err, m.reads-before)
	}
	m.fault(t, "n0-0-3", fault.Failed)
	m.broken = errors.New("no store")
	if _, _, err := r.readOnce(t.Context(), m.Changed()); err == nil {
		t.Error("what was read before passes for what is now")
	}
}

// stream is the caller's end of a stream, with a way to wait for answers.
type stream[R any] struct {
	grpc.ServerStream

	ctx context.Context
	got chan *R
}

func (s *stream[R]) Context() context.Context { return s.ctx }

func (s *stream[R]) Send(m *R) error {
	select {
	case s.got <- m:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func (s *stream[R]) next(t *testing.T) *R {
	t.Helper()
	select {
	case m := <-s.got:
		return m
	case <-s.ctx.Done():
		t.Fatal("nothing came")
		return nil
	}
}

// TestResponseStreamsContinueUntilStop: watches and following exports deliver new entries, and end with the replica.
func TestResponseStreamsContinueUntilStop(t *testing.T) {
	m := newMemory(t, twoApprovals)
	r := responsesOf(t, m, alone{})
	stopping := make(chan struct{})
	r.s.cfg.Stopping = stopping
	id := waiting(t, m)
	watch := &stream[lofamov1.WatchResponsesResponse]{ctx: callOf(t, pki.RoleViewer, "eve"), got: make(chan *lofamov1.WatchResponsesResponse)}
	export := &stream[lofamov1.ExportAuditResponse]{ctx: callOf(t, pki.RoleViewer, "eve"), got: make(chan *lofamov1.ExportAuditResponse)}
	ended := make(chan error, 2)
	go func() { ended <- r.WatchResponses(&lofamov1.WatchResponsesRequest{}, watch) }()
	go func() { ended <- r.ExportAudit(&lofamov1.ExportAuditRequest{Follow: true}, export) }()
	if first := watch.next(t); first.GetResponses()[0].GetId() != id {
		t.Errorf("%v", first)
	}
	before := export.next(t).GetLines()
	if _, err := r.DenyResponse(callOf(t, pki.RoleOperator, "bob"), &lofamov1.DenyResponseRequest{Id: id, Reason: "no"}); err != nil {
		t.Fatal(err)
	}
	if next := watch.next(t); next.GetResponses()[0].GetState() != lofamov1.ResponseState_RESPONSE_EXPIRED {
		t.Errorf("%v", next)
	}
	lines := export.next(t).GetLines()
	if lines[0].GetSeq() != before[len(before)-1].GetSeq()+1 || lines[0].GetAct() != "denied" || lines[0].GetSubject() != "operator/bob" {
		t.Errorf("%v", lines)
	}
	close(stopping)
	for range 2 {
		refused(t, "the replica stops", <-ended, codes.Unavailable, "stopping")
	}
}

// TestAuditCanBeReadAndVerified: any part of the audit can be read and verified.
func TestAuditCanBeReadAndVerified(t *testing.T) {
	m := newMemory(t, twoApprovals)
	r := responsesOf(t, m, alone{})
	if resp, err := r.ListAudit(t.Context(), &lofamov1.ListAuditRequest{}); err != nil || len(resp.GetLines()) != 0 || resp.GetNext() != 1 {
		t.Errorf("an empty audit: %v, %v", resp, err)
	}
	for i := range 48 {
		m.fault(t, fault.DefaultNodeID(grid.Coord{X: i % 4, Y: i / 4 % 4, Z: i / 16}), fault.Failed)
	}
	for i := range auditPage {
		if err := m.step(response.Asked{Subject: "operator/ann", Verb: response.Deny,
			Response: fmt.Sprintf("r7-%d", i%48+1)}); err != nil && i < 48 {
			t.Fatal(err)
		}
		if err := m.step(response.Asked{Subject: "operator/ann", Verb: response.Retry, Response: fmt.Sprintf("r7-%d", i%48+1)}); err != nil {
			t.Fatal(err)
		}
	}
	n := uint64(len(m.lines))
	if n <= 2*auditPage {
		t.Fatalf("%d lines: want several pages", n)
	}
	for _, oldest := range []int{0, 100} {
		m.oldest = oldest
		s := &responses[lofamov1.ExportAuditResponse]{ctx: t.Context()}
		if err := r.ExportAudit(&lofamov1.ExportAuditRequest{}, s); err != nil {
			t.Fatal(err)
		}
		var c response.AuditChecker
		for _, resp := range s.got {
			for _, l := range resp.GetLines() {
				if err := c.Check([]byte(l.GetLine())); err != nil {
					t.Error(err)
				}
			}
		}
		if c.Lines() != n-uint64(oldest) {
			t.Errorf("%d lines exported: want %d", c.Lines(), n-uint64(oldest))
		}
	}
	for _, tc := range []struct {
		req         *lofamov1.ListAuditRequest
		first, last uint64
	}{
		{&lofamov1.ListAuditRequest{Limit: 10}, n - 9, n}, {&lofamov1.ListAuditRequest{}, n - 999,
			n}, {&lofamov1.ListAuditRequest{From: 200, Limit: auditPage + 50}, 200, 249 + auditPage},
		{&lofamov1.ListAuditRequest{From: n, Limit: 5}, n, n}, {&lofamov1.ListAuditRequest{From: 1, Limit: 5}, 101, 105},
	} {
		resp, err := r.ListAudit(t.Context(), tc.req)
		lines := resp.GetLines()
		if err != nil || len(lines) == 0 || lines[0].GetSeq() != tc.first || lines[len(lines)-1].GetSeq() != tc.last ||
			resp.GetNext() != tc.last+1 {
			t.Errorf("%v: %d lines, next %d, %v", tc.req, len(lines), resp.GetNext(), err)
		}
	}
	_, err := r.ListAudit(t.Context(), &lofamov1.ListAuditRequest{Limit: maxAudit + 1})
	refused(t, "too many", err, codes.InvalidArgument, "limit: given 10001: want 1 to 10000")
	err = r.ExportAudit(&lofamov1.ExportAuditRequest{From: 50}, &responses[lofamov1.ExportAuditResponse]{ctx: t.Context()})
	refused(t, "what is kept no longer", err, codes.OutOfRange, "line 50 is no longer kept: the oldest is 101")
	err = r.ExportAudit(&lofamov1.ExportAuditRequest{}, &responses[lofamov1.ExportAuditResponse]{ctx: t.Context(), fail: io.ErrClosedPipe})
	if !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a caller who is gone: %v", err)
	}
}

// TestExportBeyondTheAuditIsRefused: an export may begin with the next line, but not later. A replica without a quorum may lag behind, so
// it does not refuse for good.
func TestExportBeyondTheAuditIsRefused(t *testing.T) {
	m := newMemory(t, twoApprovals)
	r := responsesOf(t, m, alone{})
	waiting(t, m)
	next := uint64(len(m.lines)) + 1
	export := func(from uint64) error {
		return r.ExportAudit(&lofamov1.ExportAuditRequest{From: from}, &responses[lofamov1.ExportAuditResponse]{ctx: t.Context()})
	}
	r.s.cfg.Copy = memstore.New(1)
	if err := export(next); err != nil {
		t.Errorf("the next line: %v", err)
	}
	refused(t, "beyond the next line", export(next+1), codes.OutOfRange, fmt.Sprintf("from: given %d: want at most %d", next+1, next))
	r.s.cfg.Copy = noQuorum{memstore.New(1)}
	if err := export(next); err != nil {
		t.Errorf("the next line, without a quorum: %v", err)
	}
	refused(t, "beyond the next line, without a quorum", export(next+1), codes.Unavailable, "no quorum")
}

// TestReplicaWithoutResponsesSaysSo: a parent of regions names its regions, and a replica with responses switched off says so.
func TestReplicaWithoutResponsesSaysSo(t *testing.T) {
	cfg := Config{RegionSupervisors: map[string][]string{"west": {"10.0.0.1:7001"}}}
	parent := NewResponses(New(cfg), nil, nil)
	off := NewResponses(New(Config{}), unasked(), nil)
	ctx := callOf(t, pki.RoleOperator, "ann")
	for _, tc := range []struct {
		r    *Responses
		code codes.Code
		text string
	}{{parent, codes.FailedPrecondition, "region west (10.0.0.1:7001)"}, {off, codes.Unimplemented, "switched off"}} {
		_, err := tc.r.ListResponses(ctx, &lofamov1.ListResponsesRequest{})
		refused(t, "list", err, tc.code, tc.text)
		_, err = tc.r.GetBreaker(ctx, nil)
		refused(t, "breaker", err, tc.code, tc.text)
		_, err = tc.r.CancelResponse(ctx, &lofamov1.CancelResponseRequest{Id: "r1-1", Reason: "x"})
		refused(t, "cancel", err, tc.code, tc.text)
		_, err = tc.r.ListAudit(ctx, nil)
		refused(t, "audit", err, tc.code, tc.text)
		refused(t, "watch", tc.r.WatchResponses(nil, &responses[lofamov1.WatchResponsesResponse]{ctx: ctx}), tc.code, tc.text)
		refused(t, "export", tc.r.ExportAudit(nil, &responses[lofamov1.ExportAuditResponse]{ctx: ctx}), tc.code, tc.text)
	}
	_, err := parent.ApplyPolicies(ctx, &lofamov1.ApplyPoliciesRequest{Documents: twoApprovals})
	refused(t, "apply at a parent", err, codes.FailedPrecondition, "region west")
	_, err = parent.ListPolicies(ctx, nil)
	refused(t, "list at a parent", err, codes.FailedPrecondition, "region west")
}

// TestResponseMethodsNeedTheirRoles: readers read, approvers approve, and unlisted calls are refused.
func TestResponseMethodsNeedTheirRoles(t *testing.T) {
	const service = "/lofamo.v1.ResponseService/"
	want := map[string]string{
		"ApproveResponse": "approver supervisor", "DenyResponse": "approver operator supervisor", "ApplyPolicies": "operator supervisor",
		"DeletePolicies": "operator supervisor",
		"CancelResponse": "operator supervisor", "RetryResponse": "operator supervisor", "SettleResponse": "operator supervisor",
		"CloseBreaker": "operator supervisor", "AddNotifyTarget": "operator supervisor", "TestNotifyTarget": "operator supervisor",
		"RemoveNotifyTarget": "operator supervisor",
	}
	n := 0
	check := func(method string) {
		n++
		var got []string
		for _, role := range rights(service + method) {
			got = append(got, string(role))
		}
		expected, ok := want[method]
		if !ok {
			expected = "viewer operator approver supervisor"
		}
		if s := strings.Join(got, " "); s != expected {
			t.Errorf("%s is for %q: want %q", method, s, expected)
		}
	}
	for _, m := range lofamov1.ResponseService_ServiceDesc.Methods {
		check(m.MethodName)
	}
	for _, s := range lofamov1.ResponseService_ServiceDesc.Streams {
		check(s.StreamName)
	}
	if n < 17 || len(rights(service+"Nonsense")) != 0 {
		t.Errorf("%d methods, and one that there is not is for %v", n, rights(service+"Nonsense"))
	}
	if code := status.Code(roleOf("supervisor/s1", operators)); code != codes.PermissionDenied {
		t.Errorf("a supervisor by itself: %v", code)
	}
}
