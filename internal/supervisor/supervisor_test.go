package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor"
	"github.com/lofamo/lofamo/internal/supervisor/embedded"
	"github.com/lofamo/lofamo/internal/testing/leaks"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

func TestMain(m *testing.M) {
	// The connections between etcd members in one process: a member that stops leaves them to the peer, which may
	// have stopped before.
	os.Exit(leaks.Main(m.Run,
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("net/http.(*conn).serve"),
		goleak.IgnoreAnyFunction("net/http.(*connReader).backgroundRead"),
	))
}

// start starts a replica and stops it with the test, unless the test stopped it earlier.
func start(t testing.TB, cfg config.Supervisor) *supervisor.Supervisor {
	t.Helper()
	s, err := launch(t, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	return s
}

// launch is start for goroutines, which must not end a test; the caller stops the supervisor.
func launch(t testing.TB, cfg config.Supervisor) (*supervisor.Supervisor, error) {
	s, err := supervisor.New(cfg, supervisortest.Logger(t), supervisor.PatientLease)
	if err != nil {
		return nil, err
	}
	if err := s.Start(context.Background()); err != nil {
		return nil, err
	}
	return s, nil
}

func stop(t testing.TB, s *supervisor.Supervisor) {
	t.Helper()
	if err := s.Stop(context.Background()); err != nil {
		t.Error("stop:", err)
	}
}

func temperature(st fault.State) fault.Observation {
	return fault.Observation{Component: fault.ComponentTemperature, State: st, Kind: fault.KindSelf, Age: 3 * time.Millisecond,
		Detail: "for the test"}
}

// watch collects a watch's responses in a channel, which is closed after the error.
func watch(t testing.TB, c lofamov1.FaultSupervisorClient, req *lofamov1.WatchRequest) (<-chan *lofamov1.WatchResponse, <-chan error) {
	t.Helper()
	stream, err := c.Watch(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	out, failed := make(chan *lofamov1.WatchResponse, 1024), make(chan error, 1)
	go func() {
		defer close(out)
		for {
			resp, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			out <- resp
		}
	}()
	return out, failed
}

// nextEvents returns the next response with events.
func nextEvents(t testing.TB, ch <-chan *lofamov1.WatchResponse) *lofamov1.WatchResponse {
	t.Helper()
	resp, err := receiveEvents(ch)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// receiveEvents is nextEvents for goroutines, which must not end a test.
func receiveEvents(ch <-chan *lofamov1.WatchResponse) (*lofamov1.WatchResponse, error) {
	timeout := time.After(supervisortest.Wait)
	for {
		select {
		case resp, ok := <-ch:
			if !ok {
				return nil, errors.New("the watch ended")
			}
			if len(resp.GetEvents()) > 0 {
				return resp, nil
			}
		case <-timeout:
			return nil, fmt.Errorf("no events within %s", supervisortest.Wait)
		}
	}
}

// awaitEvent skips events until one says that a component entered a state.
func awaitEvent(t testing.TB, ch <-chan *lofamov1.WatchResponse, node, component string, to lofamov1.State) *lofamov1.Event {
	t.Helper()
	for {
		for _, ev := range nextEvents(t, ch).GetEvents() {
			if ev.GetNode() == node && ev.GetComponent() == component && ev.GetTo() == to {
				return ev
			}
		}
	}
}

// begin waits for the bookmark that starts a watch from now on.
func begin(t testing.TB, ch <-chan *lofamov1.WatchResponse) {
	t.Helper()
	select {
	case resp, ok := <-ch:
		if !ok || len(resp.GetEvents()) > 0 {
			t.Fatalf("a watch begins with %v", resp)
		}
	case <-time.After(supervisortest.Wait):
		t.Fatal("no bookmark")
	}
}

func wantCode(t testing.TB, what string, err error, want codes.Code, text string) {
	t.Helper()
	if status.Code(err) != want || err != nil && !strings.Contains(err.Error(), text) {
		t.Errorf("%s: %v, want %s with %q", what, err, want, text)
	}
}

func TestReportToWatch(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	cfg := c.Configs[0]
	start(t, cfg)
	client := c.Client(t, cfg.GRPC)
	c.AwaitLeader(t)
	events, _ := watch(t, client, &lofamov1.WatchRequest{})
	begin(t, events)

	a := c.Agents["n1-0-0"]
	id, b := a.Report(t, fault.HalfHost, false, temperature(fault.Sick))
	a.Send(t, cfg.Report, b)
	rec := a.Await(t, id, lofamov1.Ack_RECEIVED)
	com := a.Await(t, id, lofamov1.Ack_COMMITTED)
	if rec.From != "s1" || com.GetLeader() != "s1" {
		t.Errorf("acks %v and %v", rec, com)
	}
	resp, at := nextEvents(t, events), -1
	for is := func(ev *lofamov1.Event) bool { return ev.GetNode() == "n1-0-0" && ev.GetComponent() == "temperature" }; at < 0; {
		if at = slices.IndexFunc(resp.GetEvents(), is); at < 0 {
			resp = nextEvents(t, events) // the first may tell of a replica
		}
	}
	ev := resp.GetEvents()[at]
	if ev.GetCoord() != "1,0,0" || ev.GetTo() != lofamov1.State_SICK || ev.GetCause() != lofamov1.Cause_SENSOR ||
		ev.GetPath() != lofamov1.Path_DIRECT || ev.GetRevision() != resp.GetRevision() || ev.GetAsSeen() ||
		ev.GetAwarenessLatency().AsDuration() < 3*time.Millisecond || ev.GetTime() == nil || ev.GetReason() == "" {
		t.Errorf("event %v", ev)
	}

	// A late copy, such as a retry, is acknowledged again and changes nothing.
	a.Repeat(t, id, b, cfg.Report)
	list, err := client.ListEvents(t.Context(), &lofamov1.ListEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, e := range list.GetEvents() {
		if e.GetComponent() == "temperature" {
			seen++
		}
	}
	if seen != 1 {
		t.Errorf("%d events of one report: %v", seen, list.GetEvents())
	}

	if node := freshNode(t, client, "1,0,0"); node.GetId() != "n1-0-0" || node.GetRevision() < resp.GetRevision() {
		t.Errorf("node %v", node)
	}
	links, err := client.ListLinks(t.Context(), &lofamov1.ListLinksRequest{Node: "n1-0-0"})
	if err != nil || len(links.GetLinks()) != 4 || links.GetLinks()[0].GetPeer() == "" {
		t.Errorf("links %v, %v", links, err)
	}
	supervisortest.Eventually(t, "what the replica says of itself", func() bool {
		sups, err := client.ListSupervisors(t.Context(), &lofamov1.ListSupervisorsRequest{})
		if err != nil || len(sups.GetSupervisors()) != 1 {
			t.Fatalf("supervisors %v, %v", sups, err)
		}
		s := sups.GetSupervisors()[0]
		return s.GetLeader() && s.GetState() == lofamov1.State_NORMAL && s.GetPid() == int32(os.Getpid()) && s.GetReportAddress() == cfg.Report
	})
}

func TestRelayedAndOldEpoch(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	cfg := c.Configs[0]
	start(t, cfg)
	c.AwaitLeader(t)
	events, _ := watch(t, c.Client(t, cfg.GRPC), &lofamov1.WatchRequest{Node: "n0-0-0"})
	begin(t, events)

	// The DNP half of n0-0-0 reports through its neighbour; the ack goes back as a downcall.
	a, relay := c.Agents["n0-0-0"], c.Agents["n1-0-0"]
	a.SetEpoch(fault.HalfDNP, 7)
	id, inner := a.Report(t, fault.HalfDNP, false,
		fault.Observation{Component: fault.ComponentHost, State: fault.Failed, Kind: fault.KindWatchdog})
	a.Kill(fault.HalfHost)
	relay.Send(t, cfg.Report, relay.Relay(t, inner, id.Origin, 2*time.Millisecond))
	relay.Await(t, id, lofamov1.Ack_RECEIVED)
	relay.Await(t, id, lofamov1.Ack_COMMITTED)
	ev := awaitEvent(t, events, "n0-0-0", "host", lofamov1.State_FAILED)
	if ev.GetPath() != lofamov1.Path_TORUS || ev.GetCause() != lofamov1.Cause_HOST ||
		ev.GetAwarenessLatency().AsDuration() < 4*time.Millisecond {
		t.Errorf("event %v", ev)
	}

	// An older boot epoch gets the newer one to continue from.
	a.SetEpoch(fault.HalfDNP, 3)
	id, inner = a.Report(t, fault.HalfDNP, false, temperature(fault.Sick))
	relay.Send(t, cfg.Report, relay.Relay(t, inner, id.Origin, 0))
	if ack := relay.Await(t, id, lofamov1.Ack_STALE_EPOCH); ack.GetHighestEpoch() != 7 {
		t.Errorf("ack %v, want highest epoch 7", ack)
	}
}

func TestRolesAndBadRequests(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	cfg := c.Configs[0]
	start(t, cfg)
	c.AwaitLeader(t)
	for _, role := range pki.Roles() {
		conn := c.Conn(t, role, cfg.GRPC)
		wantReplica := codes.PermissionDenied
		switch role {
		case pki.RoleNode, pki.RoleExecutor: // nodes send reports, and executors only take calls
			_, err := lofamov1.NewFaultSupervisorClient(conn).ListNodes(t.Context(), &lofamov1.ListNodesRequest{})
			wantCode(t, "handshake as "+role.String(), err, codes.Unavailable, "") // "bad certificate", or a reset connection
			continue
		case pki.RoleSupervisor:
			wantReplica = codes.OK
		default:
		}
		_, err := lofamov1.NewFaultSupervisorClient(conn).ListNodes(t.Context(), &lofamov1.ListNodesRequest{})
		wantCode(t, "ListNodes as "+role.String(), err, codes.OK, "")
		_, err = healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		wantCode(t, "health as "+role.String(), err, codes.OK, "")
		stream, err := lofamov1.NewReplicaClient(conn).Forward(t.Context())
		if err == nil {
			_ = stream.CloseSend()
			if _, err = stream.Recv(); errors.Is(err, io.EOF) {
				err = nil
			}
		}
		wantCode(t, "Forward as "+role.String(), err, wantReplica, "")
	}

	client := c.Client(t, cfg.GRPC)
	ctx := t.Context()
	_, err := client.GetNode(ctx, &lofamov1.GetNodeRequest{Node: "5,0,0"})
	wantCode(t, "coordinates outside", err, codes.InvalidArgument, "outside the 2x2x1 torus: want 0,0,0 to 1,1,0")
	_, err = client.GetNode(ctx, &lofamov1.GetNodeRequest{Node: "nobody"})
	wantCode(t, "unknown id", err, codes.NotFound, `"nobody"`)
	_, err = client.GetNode(ctx, &lofamov1.GetNodeRequest{})
	wantCode(t, "no name", err, codes.InvalidArgument, "empty name")
	_, err = client.ListNodes(ctx, &lofamov1.ListNodesRequest{States: []lofamov1.State{9}})
	wantCode(t, "no such state", err, codes.InvalidArgument, "want UNKNOWN, NORMAL, SICK or FAILED")
	_, err = client.ListLinks(ctx, &lofamov1.ListLinksRequest{States: []lofamov1.State{0}})
	wantCode(t, "no state", err, codes.InvalidArgument, "states")
	_, err = client.ListEvents(ctx, &lofamov1.ListEventsRequest{Limit: 10_001})
	wantCode(t, "too many events", err, codes.InvalidArgument, "given 10001: want at most 10000")
	_, failed := watch(t, client, &lofamov1.WatchRequest{Node: "9,9,9"})
	wantCode(t, "watch outside", <-failed, codes.InvalidArgument, "outside")
	_, failed = watch(t, client, &lofamov1.WatchRequest{AfterRevision: 1 << 40})
	wantCode(t, "watch of the future", <-failed, codes.OutOfRange, "list again")
}

func TestForgedAndForeignReports(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	other := supervisortest.New(t, supervisortest.Options{})
	cfg := c.Configs[0]
	start(t, cfg)
	c.AwaitLeader(t)
	a := c.Agents["n0-0-0"]
	a.Send(t, cfg.Report, []byte("nonsense"))
	// The same names, another certificate authority.
	b := other.Agents["n0-0-0"]
	foreign, data := b.Report(t, fault.HalfHost, false, temperature(fault.Failed))
	b.Send(t, cfg.Report, data)
	// A report of ours with one bit flipped is no forgery: the supervisor requests it again.
	_, data = a.Report(t, fault.HalfHost, false, temperature(fault.Failed))
	data[len(data)/2] ^= 1
	a.Send(t, cfg.Report, data)
	// More than any agent sends.
	conn, err := net.Dial("udp", cfg.Report)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write(make([]byte, 4000)); err != nil {
		t.Fatal(err)
	}
	// A replayed report is accepted once.
	good, data := a.Report(t, fault.HalfHost, false, temperature(fault.Sick))
	a.Deliver(t, good, data, cfg.Report)
	a.Repeat(t, good, data, cfg.Report)
	supervisortest.Eventually(t, "what came damaged to be asked for again", func() bool { return a.Again() == 2 })
	if n := b.Count(foreign, lofamov1.Ack_RECEIVED); n != 0 {
		t.Errorf("a foreign report was received %d times", n)
	}
	metrics := metricsSay(t, cfg,
		`lofamo_supervisor_damaged_total 2`, `lofamo_refused_total{class="malformed"} 0`, `lofamo_refused_total{class="checksum"} 0`,
		`lofamo_refused_total{class="signature"} 1`, `lofamo_supervisor_oversized_total 1`,
	)
	if strings.Contains(metrics, `lofamo_supervisor_duplicates_total{path="DIRECT"} 0`) {
		t.Error("the replayed report is not counted")
	}
	list, err := c.Client(t, cfg.GRPC).ListEvents(t.Context(), &lofamov1.ListEventsRequest{Node: "n0-0-0"})
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range list.GetEvents() {
		if ev.GetTo() == lofamov1.State_FAILED {
			t.Errorf("a forged report was believed: %v", ev)
		}
	}
}

// metricsSay waits until a replica's metrics contain all wanted lines, and returns them: an answer may be counted a
// moment late.
func metricsSay(t testing.TB, cfg config.Supervisor, want ...string) (page string) {
	t.Helper()
	var missing []string
	defer func() {
		if len(missing) > 0 {
			t.Logf("not in the metrics: %q", missing)
		}
	}()
	supervisortest.Eventually(t, "all of it in the metrics", func() bool {
		page = scrape(t, cfg.HTTP)
		missing = slices.DeleteFunc(slices.Clone(want), func(w string) bool { return strings.Contains(page, w) })
		return len(missing) == 0
	})
	return page
}

// scrape returns the metrics. On a busy machine a scrape may end without them, with status 503.
func scrape(t testing.TB, addr string) (page string) {
	t.Helper()
	supervisortest.Eventually(t, "an answer with the metrics", func() bool {
		resp, err := http.Get("http://" + addr + "/metrics") //nolint:noctx // loopback
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusServiceUnavailable {
			t.Fatalf("%s, %v", resp.Status, err)
		}
		page = string(b)
		return resp.StatusCode == http.StatusOK
	})
	return page
}

func get(t testing.TB, url string, want int) string {
	t.Helper()
	resp, err := http.Get(url) //nolint:gosec // our own address
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != want {
		t.Fatalf("%s: %s, %v; want status %d", url, resp.Status, err, want)
	}
	return string(b)
}

// TestHealthAndMetrics does not run in parallel: etcd's metrics belong to the process.
func TestHealthAndMetrics(t *testing.T) {
	c := supervisortest.New(t, supervisortest.Options{})
	cfg := c.Configs[0]
	start(t, cfg)
	c.AwaitLeader(t)
	h := healthpb.NewHealthClient(c.Conn(t, pki.RoleViewer, cfg.GRPC))
	for _, service := range []string{"", "lofamo.v1.FaultSupervisor", "leader", "store"} {
		supervisortest.Eventually(t, "health of "+service, func() bool {
			resp, err := h.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
			return err == nil && resp.GetStatus() == healthpb.HealthCheckResponse_SERVING
		})
	}
	get(t, "http://"+cfg.HTTP+"/healthz", http.StatusOK)
	get(t, "http://"+cfg.HTTP+"/readyz", http.StatusOK)
	metricsSay(t, cfg,
		`grpc_server_handled_total{`, `server="lofamo"`, "etcd_server_has_leader 1", "lofamo_leader 1", "lofamo_supervisor_quorum_age_seconds 0",
		`lofamo_nodes{state="UNKNOWN"} 4`,
		"lofamo_commit_duration_seconds_bucket", `lofamo_reports_total{path="TORUS"} 0`,
		"# HELP lofamo_supervisor_damaged_total Packets damaged in transit", `lofamo_supervisor_again_total{outcome="limited"} 0`,
		`lofamo_supervisor_duplicates_total{path="GOSSIP"} 0`, `lofamo_supervisor_report_age_seconds_count{path="DIRECT"} 0`,
		"lofamo_supervisor_reports_per_datagram_count 0", "lofamo_supervisor_acks_per_message_count 0", "lofamo_supervisor_sessions 0",
		`lofamo_supervisor_path_requests_total{outcome="answered"} 0`, `lofamo_node_state{node="n0-0-0",state="UNKNOWN"} 1`,
	)
}

func TestStartRefusesUnusableConfiguration(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	good := c.Configs[0]
	for name, tc := range map[string]struct {
		spoil func(*config.Supervisor)
		want  []string
	}{
		"configuration": {func(cfg *config.Supervisor) { cfg.Dims, cfg.GRPC = "2x0", "nowhere" }, []string{"dims", "grpc", "nowhere"}},
		"certificate":   {func(cfg *config.Supervisor) { cfg.TLS.Cert = "/nonexistent.pem" }, []string{"/nonexistent.pem", "no such file"}},
		"CA":            {func(cfg *config.Supervisor) { cfg.TLS.CA = cfg.TLS.Key }, []string{good.TLS.Key, "CERTIFICATE"}},
		"identity": {func(cfg *config.Supervisor) {
			cfg.TLS.Cert, cfg.TLS.Key = strings.ReplaceAll(cfg.TLS.Cert, "s1.pem", "viewer.pem"),
				strings.ReplaceAll(cfg.TLS.Key, "s1.key", "viewer.key")
		}, []string{"viewer", "want lofamo://test/supervisor/s1"}},
		"gossip key": {func(cfg *config.Supervisor) {
			cfg.GossipListen, cfg.GossipKeyFile = "127.0.0.1:1", cfg.TLS.CA
		}, []string{"gossip key", good.TLS.CA, "base64"}},
	} {
		bad := good
		tc.spoil(&bad)
		_, err := supervisor.New(bad, supervisortest.Logger(t))
		for _, want := range tc.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("bad %s: %v, want %q", name, err, want)
			}
		}
	}
	for name, addr := range map[string]string{"report": good.Report, "gRPC": good.GRPC, "HTTP": good.HTTP,
		"peers": strings.TrimPrefix(good.Etcd.PeerURL, "https://")} {
		release := take(t, name, addr)
		s, err := supervisor.New(good, supervisortest.Logger(t))
		if err != nil {
			t.Fatal(err)
		}
		err = s.Start(t.Context())
		if err == nil || !strings.Contains(err.Error(), addr) || !strings.Contains(err.Error(), "in use") {
			t.Errorf("taken %s address: %v, want %s", name, err, addr)
		}
		release()
	}
	start(t, good) // the failed starts leave nothing behind
	second := good
	other := supervisortest.New(t, supervisortest.Options{}).Configs[0]
	second.Report, second.GRPC, second.HTTP = other.Report, other.GRPC, other.HTTP
	s, err := supervisor.New(second, supervisortest.Logger(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); !errors.Is(err, embedded.ErrInUse) || !strings.Contains(err.Error(), good.DataDir) {
		t.Errorf("a data directory in use: %v", err)
	}
}

// take occupies an address.
func take(t *testing.T, name, addr string) (release func()) {
	t.Helper()
	var c io.Closer
	var err error
	if name == "report" {
		c, err = net.ListenPacket("udp", addr)
	} else {
		c, err = net.Listen("tcp", addr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() { _ = c.Close() }
}
