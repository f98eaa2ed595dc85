package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"

	"github.com/lofamo/lofamo/internal/testing/agenttest"
	"github.com/lofamo/lofamo/internal/testing/golden"
)

func exampleStatus() Status {
	return Status{
		Node: "n1-0-1", Coord: "1,0,1", Platform: "shared-kernel",
		Host: HalfStatus{State: "RUNNING", Epoch: 12, PID: 4711}, DNP: HalfStatus{State: "ALIVE", Epoch: 3},
		ServiceNetwork: "NORMAL",
		Interfaces:     []InterfaceStatus{{"eth0", "10.0.0.1:7000"}, {"eth2", "10.8.0.1:7000"}},
		Delivery: DeliveryStatus{&lofamov1.DeliveryStatus{
			State: lofamov1.PathState_ARMED, Primary: "eth0>sup-0", Alternate: "eth2>sup-1",
			Logged: 3, Unanswered: 1, OldestNs: uint64(1260 * time.Millisecond), Migrations: 2, Retries: 7,
			Rails: []*lofamov1.RailStatus{
				{Name: "direct/eth0", InFlight: 1, Sent: 1234, Answered: 1230, RttNs: uint64(1234567 * time.Nanosecond)},
				{Name: "direct/eth2", Down: true, Sent: 20},
				{Name: "torus", Sent: 3, Answered: 2, RttNs: uint64(45 * time.Microsecond)},
			},
		}},
		Migrations: map[string]uint64{"unanswered": 1, "interface-down": 1},
		Copy:       CopyStatus{Path: "/var/lib/lofamo/agent/host.backup", Reports: 3},
		Broadcasts: map[string]BroadcastStatus{"job": {Raised: 1, Delivered: 20, Repeated: 2, Dropped: 3}, "mask": {}},
		Torus:      map[string]uint64{"messages_routed/nearer": 12, "barriers/complete": 2, "flow_held": 0},
		Spool:      SpoolStatus{Path: "/var/lib/lofamo/agent/host.spool", Capacity: 4 << 20, Used: 1152, Records: 3},
	}
}

// TestStatusTables shows the table for the cases of testdata. A case is a name, followed by the output.
func TestStatusTables(t *testing.T) {
	cases := map[string]func(*Status){
		"armed": func(*Status) {},
		"isolated": func(s *Status) {
			s.ServiceNetwork = "FAILED"
			d := s.Delivery
			d.State, d.Primary, d.Alternate, d.IsolatedNs = lofamov1.PathState_REESTABLISHING, "", "", uint64(83400*time.Millisecond)
			d.Logged, d.Unanswered, d.OldestNs, d.Shortened = 1, 1, uint64(90*time.Second), 4
			s.DNP = HalfStatus{State: "STALE"}
			s.Master = &MasterStatus{Node: "n1-0-0", CutOff: true}
		},
		"isolated-empty": func(s *Status) {
			s.Delivery.IsolatedNs, s.Delivery.Logged = uint64(2*time.Second), 0
			s.Delivery.Rails = s.Delivery.Rails[:1]
			s.Master = &MasterStatus{Node: "n1-0-0"}
		},
		"no-spool":    func(s *Status) { s.Spool = SpoolStatus{Error: "none is configured"} },
		"spool-fails": func(s *Status) { s.Spool.Error, s.Spool.Lost = "no space left on device", 2 },
		"spool-lost":  func(s *Status) { s.Spool.Lost, s.Spool.Records = 2, 1 },
		"procedures": func(s *Status) {
			s.Procedures = &ProcedureStatus{State: "SystemDrain", Wave: 3, Clear: 1, NotClear: 1, HeldUp: 12, Waiting: 2}
		},
		"damaged": func(s *Status) { s.Damaged, s.Refused = 5, 9 },
		"restarted": func(s *Status) {
			s.Copy.Cold = "there was none"
			s.Health = map[string]HealthStatus{
				"host": {&lofamov1.HalfHealth{
					Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RUNNING, Budget: 5, WindowMs: 60_000,
						Resumption: lofamov1.Resumption_COLD, Cold: "there was none"},
					Tests: []*lofamov1.SelfTest{
						{Module: "report-path", State: lofamov1.TestState_PASSED, AgeMs: 800, LatencyUs: 310, LearnedUs: 290, Tests: 4410},
						{Module: "direct/eth0", State: lofamov1.TestState_FAILING, AgeMs: 300, LatencyUs: 88_000, LearnedUs: 900, Tests: 40, Lost: 2,
							Late: 4, Why: "late: 4 tests over 20ms", Proving: true},
					},
				}},
				"dnp": {&lofamov1.HalfHealth{Recovery: &lofamov1.RecoveryStatus{
					State: lofamov1.RecoveryState_GIVEN_UP, Restarts: 6, InWindow: 5, Budget: 5, WindowMs: 60_000, Cause: "ended with code 1",
					AgeNs:  uint64(12 * time.Second),
					Reason: "next start after 1m0s: 5 restarts within 1m0s, the last ended with code 1",
				}}},
			}
		},
		"over-budget": func(s *Status) {
			s.Health = map[string]HealthStatus{"dnp": {&lofamov1.HalfHealth{Processor: &lofamov1.ProcessorTime{BudgetLevel: 1, UsedPermille: 143}}}}
		},
		"not-realtime": func(s *Status) {
			s.Health = map[string]HealthStatus{"host": {&lofamov1.HalfHealth{Processor: &lofamov1.ProcessorTime{NotRealtime: true}}}}
		},
		"copy-fails": func(s *Status) { s.Copy.Failing = true },
		"just-started": func(s *Status) {
			s.Delivery = DeliveryStatus{&lofamov1.DeliveryStatus{}}
			s.DNP = HalfStatus{State: "WAITING"}
		},
	}
	golden.Files(t, "testdata/*.txt", func(t *testing.T, text string) string {
		return golden.Lines(t, text, "  ", func(args []string) ([]string, error) {
			s := exampleStatus()
			change, ok := cases[args[0]]
			if !ok {
				t.Fatalf("no case %q", args[0])
			}
			change(&s)
			var b bytes.Buffer
			if err := WriteTable(&b, s); err != nil {
				return nil, err
			}
			return strings.Split(strings.TrimRight(b.String(), "\n"), "\n"), nil
		})
	})
}

// A status survives a round trip through JSON; the delivery is the API's own message.
func TestStatusSurvivesJSON(t *testing.T) {
	want := exampleStatus()
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"state":"ARMED"`, `"in_flight":1`, `"isolated_ns":"0"`, `"service_network":"NORMAL"`} {
		if !strings.Contains(strings.ReplaceAll(string(b), " ", ""), part) {
			t.Errorf("no %s in %s", part, b)
		}
	}
	later := strings.Replace(string(b), `"delivery":{`, `"delivery":{"invented":1,`, 1)
	var got Status
	if err := json.Unmarshal([]byte(later), &got); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got.Delivery, want.Delivery) {
		t.Errorf("delivery %v, want %v", got.Delivery, want.Delivery)
	}
	if !maps.Equal(got.Migrations, want.Migrations) {
		t.Errorf("migrations %v, want %v", got.Migrations, want.Migrations)
	}
	want.Health = map[string]HealthStatus{"dnp": {&lofamov1.HalfHealth{Recovery: &lofamov1.RecoveryStatus{Restarts: 3}}}}
	if b, err = json.Marshal(want); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &got); err != nil || !proto.Equal(got.Health["dnp"], want.Health["dnp"]) {
		t.Errorf("health %v, %v; want %v", got.Health, err, want.Health)
	}
	got.Delivery, want.Delivery = DeliveryStatus{}, DeliveryStatus{}
	if g, w := got, want; g.Node != w.Node || g.Host != w.Host || g.Spool != w.Spool || len(g.Interfaces) != 2 {
		t.Errorf("%+v, want %+v", g, w)
	}
}

func listenStatus(t *testing.T, h http.Handler) (stateDir string) {
	t.Helper()
	dir := agenttest.Dir(t)
	l, err := net.Listen("unix", filepath.Join(dir, StatusSocket))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	return dir
}

func TestStatusIsServed(t *testing.T) {
	dir := listenStatus(t, StatusHandler(exampleStatus, nil, nil))
	s, err := AskStatus(context.Background(), dir)
	if err != nil || s.Node != "n1-0-1" || s.Delivery.GetPrimary() != "eth0>sup-0" {
		t.Errorf("%+v, %v", s, err)
	}
}

// Every kind of missing answer has an error in plain words.
func TestMissingStatusNamesItsCause(t *testing.T) {
	answer := func(code int, body string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
		})
	}
	dead := t.TempDir() // a socket without a server
	l, err := net.Listen("unix", filepath.Join(dead, StatusSocket))
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, dir, says string
		notRunning      bool
	}{
		{"nothing there", t.TempDir(), "the host half is not running", true},
		{"left by a dead half", dead, "the host half is not running", true},
		{"an error", listenStatus(t, answer(500, "out of order")), "500 Internal Server Error: out of order", false},
		{"no JSON", listenStatus(t, answer(200, "hello")), "its answer: invalid character", false},
	} {
		_, err := AskStatus(context.Background(), tc.dir)
		if err == nil || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), StatusSocket) ||
			errors.Is(err, ErrNotRunning) != tc.notRunning {
			t.Errorf("%s: error %v: want %q", tc.name, err, tc.says)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := AskStatus(ctx, listenStatus(t, StatusHandler(exampleStatus, nil, nil))); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if err := explainSocket(context.DeadlineExceeded, 2*time.Second); err == nil ||
		!strings.Contains(err.Error(), "no answer within 2s: it may be stopped") {
		t.Errorf("a half that does not answer: %v", err)
	}
}
