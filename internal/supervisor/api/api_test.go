package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

const wait = time.Minute

// keepEvents is the number of events that the stores of these tests keep.
const keepEvents = 100

// follower is an engine that does not lead.
type follower struct{}

func (follower) Map(context.Context) (view.Map, error) { return view.Map{}, engine.ErrNotLeading }
func (follower) Detail(context.Context, []fault.NodeID) ([]view.Entry, error) {
	return nil, engine.ErrNotLeading
}
func (follower) Explain(context.Context, fault.NodeID, fault.Component) (awareness.Explanation, error) {
	return awareness.Explanation{}, engine.ErrNotLeading
}
func (follower) ExplainGroup(context.Context, string) (awareness.GroupExplanation, error) {
	return awareness.GroupExplanation{}, engine.ErrNotLeading
}
func (follower) Reports(context.Context, engine.ReportQuery) (engine.ReportView, error) {
	return engine.ReportView{}, engine.ErrNotLeading
}
func (follower) Seen(int) (<-chan *lofamov1.Event, func(), error) {
	return nil, nil, engine.ErrNotLeading
}

// alone is a directory of one replica without a leader.
type alone struct{}

func (alone) Supervisors(context.Context) []*lofamov1.Supervisor { return nil }
func (alone) Leader() string                                     { return "" }
func (alone) Conn(string) *grpc.ClientConn                       { return nil }

type harness struct {
	client   lofamov1.FaultSupervisorClient
	store    *memstore.Store
	writer   store.Committer
	stopping chan struct{}
	marks    *view.Marks
	held     string // set between calls
}

func (h *harness) commit(t *testing.T, node, reason string) uint64 {
	t.Helper()
	rev, err := h.writer.Commit(t.Context(), store.Batch{Events: []*lofamov1.Event{{Node: node, Reason: reason}}})
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

// serve runs the service of a replica that does not lead on a connection in memory.
func serve(t *testing.T, queue int) *harness {
	t.Helper()
	return serveAs(t, follower{}, queue)
}

// serveAs is serve with another engine.
func serveAs(t *testing.T, e Engine, queue int) *harness {
	t.Helper()
	dims := grid.Dims{X: 2, Y: 1, Z: 1}
	return serveNamed(t, e, view.NewNames(dims, map[grid.Coord]fault.NodeID{{}: "a", {X: 1}: "b"}), queue)
}

// serveNamed is serveAs of another torus.
func serveNamed(t testing.TB, e Engine, names *view.Names, queue int) *harness {
	t.Helper()
	h := &harness{store: memstore.New(keepEvents), stopping: make(chan struct{}), marks: view.NewMarks()}
	var err error
	if h.writer, err = h.store.Writer(h.store.Campaign(), store.Meta{}, store.Snapshot{}); err != nil {
		t.Fatal(err)
	}
	h.connect(t, Config{
		Info: &lofamov1.ClusterInfo{}, Names: names, Marks: h.marks, QuorumAge: func() time.Duration { return 3 * time.Second }, Engine: e,
		Copy: h.store, Directory: alone{}, Held: func() string { return h.held },
		Metrics: metrics.New(prometheus.NewRegistry()), Stopping: h.stopping, WatchQueue: queue, Diagnosed: h.store.LastDiagnosis,
	})
	return h
}

// connect serves a service and connects a client.
func (h *harness) connect(t testing.TB, cfg Config) {
	t.Helper()
	service := New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	if cfg.Copy != nil {
		wg.Go(func() { service.Run(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	h.client = lofamov1.NewFaultSupervisorClient(dial(t, service))
}

// dial serves a service in memory and returns a client connection.
func dial(t testing.TB, service lofamov1.FaultSupervisorServer) *grpc.ClientConn {
	t.Helper()
	srv := grpc.NewServer(grpc.ForceServerCodecV2(Codec()))
	lofamov1.RegisterFaultSupervisorServer(srv, service)
	ln := bufconn.Listen(1 << 16)
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(srv.Stop)
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (h *harness) watch(t *testing.T, req *lofamov1.WatchRequest) grpc.ServerStreamingClient[lofamov1.WatchResponse] {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	t.Cleanup(cancel)
	s, err := h.client.Watch(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func refused(t *testing.T, what string, err error, code codes.Code, text string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(fmt.Sprint(err), text) {
		t.Errorf("%s: %v; want %s with %q", what, err, code, text)
	}
}

// TestWatchFromForgottenRevision: the error tells people in words, and programs in details, what to do.
func TestWatchFromForgottenRevision(t *testing.T) {
	h := serve(t, 16)
	first := h.commit(t, "a", "0")
	last := first
	for i := range keepEvents + 2 {
		last = h.commit(t, "a", fmt.Sprint(i+1))
	}
	// The replica follows the store. While it is behind, its memory still has events that the store has trimmed.
	following := h.watch(t, &lofamov1.WatchRequest{AfterRevision: last})
	followed := h.commit(t, "a", "followed")
	if resp, err := following.Recv(); err != nil || resp.GetRevision() != followed {
		t.Fatalf("%v, %v", resp, err)
	}
	_, err := h.watch(t, &lofamov1.WatchRequest{AfterRevision: first}).Recv()
	refused(t, "watch", err, codes.OutOfRange, "list again and watch after the list's revision")
	if info := infoOf(t, err); info.GetReason() != "RESOURCE_EXPIRED" || info.GetDomain() != "lofamo" || info.GetMetadata()["do"] == "" {
		t.Errorf("%v", info)
	}
	list, err := h.client.ListEvents(t.Context(), &lofamov1.ListEventsRequest{})
	if err != nil || len(list.GetEvents()) != keepEvents {
		t.Fatalf("%v, %v", list, err)
	}
	if list.GetOldestRevision() != list.GetEvents()[0].GetRevision() {
		t.Errorf("the oldest is said to be at %d: it is at %d", list.GetOldestRevision(), list.GetEvents()[0].GetRevision())
	}
	s := h.watch(t, &lofamov1.WatchRequest{AfterRevision: list.GetRevision()})
	next := h.commit(t, "a", "next")
	if resp, err := s.Recv(); err != nil || resp.GetRevision() != next {
		t.Errorf("%v, %v", resp, err)
	}
	_, err = h.watch(t, &lofamov1.WatchRequest{AfterRevision: next + 100}).Recv()
	refused(t, "ahead of the store", err, codes.OutOfRange, "list again")
	if info := infoOf(t, err); info.GetReason() != "RESOURCE_EXPIRED" {
		t.Errorf("%v", info)
	}
}

// infoOf returns the ErrorInfo of a refusal.
func infoOf(t *testing.T, err error) *errdetails.ErrorInfo {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info
		}
	}
	t.Errorf("%v has no ErrorInfo", err)
	return nil
}

func TestSlowWatcherIsCutOffAndResumes(t *testing.T) {
	h := serve(t, 4)
	s := h.watch(t, &lofamov1.WatchRequest{})
	bookmark, err := s.Recv()
	if err != nil || len(bookmark.GetEvents()) > 0 {
		t.Fatalf("%v, %v", bookmark, err)
	}
	h.commit(t, "a", "0 ")
	first, err := s.Recv() // the watch has read all of the history
	if err != nil || len(first.GetEvents()) != 1 {
		t.Fatalf("%v, %v", first, err)
	}
	// The client reads nothing while more events arrive than transport and queue hold.
	long := strings.Repeat("x", 64<<10)
	const n = 40
	for i := 1; i < n; i++ {
		h.commit(t, "a", fmt.Sprint(i, " ", long))
	}
	seen, last := 1, first.GetRevision()
	check := func(s grpc.ServerStreamingClient[lofamov1.WatchResponse]) error {
		for seen < n {
			resp, err := s.Recv()
			if err != nil {
				return err
			}
			for _, ev := range resp.GetEvents() {
				if want := fmt.Sprint(seen, " "); !strings.HasPrefix(ev.GetReason(), want) {
					t.Fatalf("event %s: lost or doubled", want)
				}
				seen++
			}
			last = max(last, resp.GetRevision())
		}
		return nil
	}
	err = check(s)
	refused(t, "slow watch", err, codes.ResourceExhausted, "resume after revision")
	if info := infoOf(t, err); info.GetReason() != "SLOW_READER" || info.GetMetadata()["revision"] == "" {
		t.Errorf("%v", info)
	}
	for err != nil {
		err = check(h.watch(t, &lofamov1.WatchRequest{AfterRevision: last}))
	}
}

func TestWatchOneNode(t *testing.T) {
	h := serve(t, 16)
	s := h.watch(t, &lofamov1.WatchRequest{Node: "1,0,0"})
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	h.commit(t, "a", "not for us")
	want := h.commit(t, "b", "for us")
	if resp, err := s.Recv(); err != nil || resp.GetRevision() != want || resp.GetEvents()[0].GetReason() != "for us" {
		t.Errorf("%v, %v", resp, err)
	}
}

func TestWatchEndsWhenReplicaStops(t *testing.T) {
	h := serve(t, 16)
	s := h.watch(t, &lofamov1.WatchRequest{})
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	close(h.stopping)
	_, err := s.Recv()
	refused(t, "watch", err, codes.Unavailable, "resume after revision")
}

func TestReadsWithoutLeaderAreRefused(t *testing.T) {
	h := serve(t, 16)
	list, err := h.client.ListNodes(t.Context(), &lofamov1.ListNodesRequest{})
	if err != nil || !list.GetCluster().GetStale() || len(list.GetNodes()) != 2 || list.GetNodes()[1].GetState() != lofamov1.State_UNKNOWN {
		t.Errorf("%v, %v", list, err)
	}
	// Committed events are still available: the store answers.
	events, err := h.client.ListEvents(t.Context(), &lofamov1.ListEventsRequest{})
	if err != nil || events.GetCluster().GetStale() || events.GetCluster().GetDims() != "2x1x1" {
		t.Errorf("%v, %v", events, err)
	}
	_, err = h.watch(t, &lofamov1.WatchRequest{AsSeen: true}).Recv()
	refused(t, "as seen", err, codes.Unavailable, "only the leader")
	// A forwarded call is never answered from a copy.
	ctx := metadata.AppendToOutgoingContext(t.Context(), proxiedKey, "1")
	_, err = h.client.ListNodes(ctx, &lofamov1.ListNodesRequest{})
	refused(t, "passed on", err, codes.FailedPrecondition, "does not lead")
}

// noQuorum is a copy of the store that reaches no quorum.
type noQuorum struct{ *memstore.Store }

func (noQuorum) Revision(context.Context) (uint64, error) { return 0, errors.New("no quorum") }

// TestHistoryWithoutQuorum: an answer about the past says that the newest events may be missing.
func TestHistoryWithoutQuorum(t *testing.T) {
	h := &harness{}
	h.connect(t, Config{
		Info: &lofamov1.ClusterInfo{}, Names: newLeads(grid.Dims{X: 2, Y: 1,
			Z: 1}).names, Engine: follower{}, Copy: noQuorum{memstore.New(keepEvents)}, Directory: alone{},
		Metrics: metrics.New(prometheus.NewRegistry()), QuorumAge: func() time.Duration { return 3 * time.Second },
	})
	events, err := h.client.ListEvents(t.Context(), &lofamov1.ListEventsRequest{})
	if c := events.GetCluster(); err != nil || !c.GetStale() || c.GetStaleAge().AsDuration() != 3*time.Second {
		t.Errorf("events: %v, %v", events, err)
	}
	history, err := h.client.GetHistory(t.Context(), &lofamov1.GetHistoryRequest{Node: "0,0,0"})
	if c := history.GetCluster(); err != nil || !c.GetStale() || c.GetStaleAge().AsDuration() != 3*time.Second {
		t.Errorf("history: %v, %v", history, err)
	}
}

// TestNodeWithoutLeaderIsStale: the answer about one node says that it is stale, and for how long, if the replica has no leader.
func TestNodeWithoutLeaderIsStale(t *testing.T) {
	h := &harness{}
	h.connect(t, Config{
		Info: &lofamov1.ClusterInfo{}, Names: newLeads(grid.Dims{X: 2, Y: 1, Z: 1}).names, Engine: follower{}, Directory: alone{},
		Copy: noQuorum{memstore.New(keepEvents)}, Metrics: metrics.New(prometheus.NewRegistry()),
		QuorumAge: func() time.Duration { return 3 * time.Second },
	})
	n, err := h.client.GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: "0,0,0"})
	if err != nil || !n.GetStale() || n.GetStaleAge().AsDuration() != 3*time.Second {
		t.Errorf("%v, %v: want a stale node, 3 s old", n, err)
	}
	list, err := h.client.ListNodes(t.Context(), &lofamov1.ListNodesRequest{})
	if err != nil || list.GetNodes()[0].Stale != nil || list.GetNodes()[0].GetStaleAge() != nil {
		t.Errorf("%v, %v: want the mark only once, in the cluster information", list, err)
	}
}

func TestRolesOfEachMethod(t *testing.T) {
	for method, want := range map[string]int{
		lofamov1.FaultSupervisor_Watch_FullMethodName: 4, lofamov1.Replica_Forward_FullMethodName: 1,
		lofamov1.SupervisorAdmin_ListMembers_FullMethodName: 2, lofamov1.SupervisorAdmin_Snapshot_FullMethodName: 2,
		"/grpc.health.v1.Health/Check": 4, "/grpc.channelz.v1.Channelz/GetServers": 0, "nonsense": 0,
	} {
		if got := len(rights(method)); got != want {
			t.Errorf("%s is for %d roles, want %d", method, got, want)
		}
	}
	// Without TLS the caller has no role.
	err := authorize(t.Context(), lofamov1.FaultSupervisor_Watch_FullMethodName, rights, nil)
	refused(t, "no peer", err, codes.PermissionDenied, "")
}
