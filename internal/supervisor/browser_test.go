//go:build !race

// Twenty-seven agents in one process next to a browser: with the race detector they are late, and correctly become
// SICK.

package supervisor_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor"
	"github.com/lofamo/lofamo/internal/supervisor/web"
	"github.com/lofamo/lofamo/internal/testing/requirements"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// browserTime bounds the whole of TestBrowser.
const browserTime = 8 * time.Minute

// TestBrowser runs the page in Chromium against a real supervisor, whose agents report as web/test/browser.mjs asks.
// LOFAMO_SHOTS names a folder for screenshots.
func TestBrowser(t *testing.T) {
	node, chromium := browser(t)
	o := supervisortest.Options{Dims: "3x3x3", Web: true, Preset: config.PresetFast, Configure: func(cfg *config.Supervisor) {
		cfg.Responses.Grace, cfg.Responses.StormDelay = 0, 0
		cfg.Responses.BreakerNodes = 1000 // agents that are late beside a busy browser are no storm
	}}
	c := supervisortest.New(t, o)
	b := &browsed{t: t, c: c, sup: start(t, c.Configs[0])}
	c.AwaitLeader(t, 0)
	periods, err := c.Configs[0].Timing()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Mourn(t, periods.DigestPeriod/2, c.Configs[0].Report, func(id fault.NodeID) bool { return b.dead(id) })()
	client := c.Client(t, c.Configs[0].GRPC)
	supervisortest.Eventually(t, "all nodes to be NORMAL", func() bool {
		resp, err := client.GetSummary(t.Context(), &lofamov1.GetSummaryRequest{})
		return err == nil && resp.GetNodes().GetNormal() == 27
	})
	if list, err := client.ListSupervisors(t.Context(), &lofamov1.ListSupervisorsRequest{}); err != nil ||
		list.GetSupervisors()[0].GetWeb() != "http://"+c.Configs[0].Web.Listen {
		t.Errorf("the supervisors are %v, %v: want the address of the page", list, err)
	}
	applyReseat(t, c, c.Configs[0].GRPC)
	ctx, cancel := context.WithTimeout(t.Context(), browserTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, "test/browser.mjs")
	cmd.Dir = filepath.Join("..", "..", "web")
	cmd.Env = append(os.Environ(), "LOFAMO_URL=http://"+c.Configs[0].Web.Listen, "LOFAMO_CHROMIUM="+chromium)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		verb, rest, _ := strings.Cut(lines.Text(), " ")
		switch verb {
		case "ask":
			if _, err := fmt.Fprintln(in, b.answer(rest)); err != nil {
				t.Error(err)
			}
		case "say":
			t.Log(rest)
		case "done":
			done = true
		default:
			t.Errorf("the browser: %s", rest)
		}
	}
	if err := cmd.Wait(); err != nil || !done {
		t.Errorf("the browser's test has not come to its end: %v; responses: %s", err, b.responses())
	}
}

// TestBrowserModel tests the page's model of the supervisors' data.
func TestBrowserModel(t *testing.T) {
	node, _ := browser(t)
	cmd := exec.CommandContext(t.Context(), node, "--test", "test/model.mjs", "test/timeline.mjs")
	cmd.Dir = filepath.Join("..", "..", "web")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// browser finds the required programs. Where CI runs this test they must exist.
func browser(t *testing.T) (node, chromium string) {
	t.Helper()
	node, chromium = requirements.Program(t, "Node.js", "node"), requirements.Program(t, "Debian's package chromium", "chromium")
	if _, err := os.Stat(filepath.Join("..", "..", "web", "node_modules", "playwright-core")); err != nil || !web.Built() {
		requirements.Missing(t, "the page was not built: make web")
	}
	return node, chromium
}

// browsed is the cluster that the browser shows.
type browsed struct {
	t      *testing.T
	c      *supervisortest.Cluster
	sup    *supervisor.Supervisor
	killed sync.Map  // fault.NodeID
	when   time.Time // time of the last kill
	lose   func()    // removes p1's page
	quorum atomic.Bool
}

func (b *browsed) dead(id fault.NodeID) bool {
	_, ok := b.killed.Load(id)
	return ok
}

// answer carries out a command of the browser's test.
func (b *browsed) answer(what string) string {
	t, cfg := b.t, b.c.Configs[0]
	verb, arg, _ := strings.Cut(what, " ")
	switch verb {
	case "login":
		token, err := pki.NewWebLogin(signer(t, b.c, arg), cfg.ID, time.Now())
		if err != nil {
			t.Error(err)
		}
		return "http://" + cfg.Web.Listen + "/#login=" + token
	case "kill":
		b.when = time.Now()
		for id := range strings.FieldsSeq(arg) {
			b.killed.Store(fault.NodeID(id), true)
			b.c.Agents[fault.NodeID(id)].Kill(fault.HalfHost, fault.HalfDNP)
		}
	case "when":
		return strconv.FormatInt(b.leftNormal(arg), 10)
	case "sick":
		b.c.Agents[fault.NodeID(arg)].Suffer(fault.Observation{Component: fault.ComponentMemory, State: fault.Failed, Kind: fault.KindSelf})
	case "lacks":
		b.lacks(arg)
	case "mark":
		_, err := b.c.Operator(t, cfg.GRPC).SetMaintenance(t.Context(),
			&lofamov1.SetMaintenanceRequest{Nodes: []string{arg}, Reason: "<img src=x onerror=alert(1)>"})
		if err != nil {
			t.Error(err)
		}
	case "audit":
		return b.audit(arg)
	case "pages":
		return b.pages()
	case "lose":
		b.lose()
	case "quorum":
		b.quorum.Store(true)
	case "stop":
		stop(t, b.sup)
	case "start":
		b.sup = start(t, cfg)
	default:
		t.Errorf("the browser asks for %q", what)
	}
	return "ok"
}

// lacks has a node say that it has no peripheral, and waits until the supervisor shows it as ABSENT.
func (b *browsed) lacks(node string) {
	b.c.Agents[fault.NodeID(node)].Suffer(fault.Observation{Component: fault.ComponentPeripheral0, State: fault.Unknown,
		Kind: fault.KindAbsent})
	client := b.c.Client(b.t, b.c.Configs[0].GRPC)
	supervisortest.Eventually(b.t, "peripheral/0 of "+node+" to be ABSENT", func() bool {
		x, err := client.Explain(b.t.Context(), &lofamov1.ExplainRequest{Node: node, Component: "peripheral/0"})
		return err == nil && x.GetState() == lofamov1.State_ABSENT
	})
}

// leftNormal waits until the supervisor has committed that a killed node is no longer NORMAL, and returns the time of
// that event, in milliseconds since 1970.
func (b *browsed) leftNormal(node string) (at int64) {
	client := b.c.Client(b.t, b.c.Configs[0].GRPC)
	supervisortest.Eventually(b.t, node+" to be NORMAL no more", func() bool { at = b.gone(client, node); return at != 0 })
	return at
}

// gone returns when a node first became dead after it was killed; 0: not yet. Lateness beside a busy browser does not
// count.
func (b *browsed) gone(client lofamov1.FaultSupervisorClient, node string) (at int64) {
	resp, err := client.GetHistory(b.t.Context(), &lofamov1.GetHistoryRequest{Node: node, Component: "node"})
	if err != nil {
		return 0 // the supervisor has just started
	}
	for _, e := range resp.GetEvents() { // newest first: the last match is the first one since the kill
		if e.GetTime().AsTime().Before(b.when) {
			break
		}
		if e.GetTo() == lofamov1.State_FAILED || e.GetTo() == lofamov1.State_UNKNOWN {
			at = e.GetTime().AsTime().UnixMilli()
		}
	}
	return at
}

// responses returns the responses and the breaker as text.
func (b *browsed) responses() string {
	client := lofamov1.NewResponseServiceClient(b.c.Conn(b.t, pki.RoleViewer, b.c.Configs[0].GRPC))
	all, err := client.ListResponses(context.Background(), &lofamov1.ListResponsesRequest{})
	breaker, breakerErr := client.GetBreaker(context.Background(), &lofamov1.GetBreakerRequest{})
	audit, auditErr := client.ListAudit(context.Background(), &lofamov1.ListAuditRequest{})
	return fmt.Sprint(all, breaker, audit, errors.Join(err, breakerErr, auditErr))
}

// audit returns who last did an act to a response, and why.
func (b *browsed) audit(act string) string {
	resp, err := lofamov1.NewResponseServiceClient(b.c.Conn(b.t, pki.RoleViewer, b.c.Configs[0].GRPC)).ListAudit(b.t.Context(),
		&lofamov1.ListAuditRequest{})
	if err != nil {
		b.t.Error(err)
	}
	out := ""
	for _, l := range resp.GetLines() {
		if l.GetAct() == act {
			out = l.GetSubject() + ": " + l.GetDetail()
		}
	}
	return out
}

// pages starts two more replicas' pages before the same supervisor: p1, and p2, which has no quorum and an open breaker. It returns a
// login at p1, and p2's address.
func (b *browsed) pages() string {
	t, id := b.t, b.c.Configs[0].ID
	verify, err := pki.LoadVerifier(filepath.Join(b.c.Dir, "ca.pem"), supervisortest.Name)
	if err != nil {
		t.Fatal(err)
	}
	conn := b.c.Conn(t, pki.RoleSupervisor, b.c.Configs[0].GRPC)
	faults := lofamov1.NewFaultSupervisorClient(conn)
	responses := lofamov1.NewResponseServiceClient(conn)
	serve := func(name string, faults lofamov1.FaultSupervisorClient, responses lofamov1.ResponseServiceClient,
		peers ...web.Peer) (url string, end func()) {
		page := web.New(web.Config{
			Self: name, Cluster: supervisortest.Name, Faults: faults, Responses: responses,
			Masks:  lofamov1.NewReconfigureClient(conn),
			Signer: signer(t, b.c, id), Verifier: verify, Session: time.Hour, Cookie: name, Peers: func() []web.Peer { return peers },
			Alive: time.Second,
		})
		srv := httptest.NewServer(page)
		end = func() {
			page.Close()
			srv.CloseClientConnections()
			srv.Close()
		}
		t.Cleanup(end)
		return srv.URL, end
	}
	second, _ := serve("p2", alone{faults, &b.quorum}, tripped{responses})
	first, end := serve("p1", watched{faults}, responses, web.Peer{ID: "p2", URL: second})
	b.lose = end
	token, err := pki.NewWebLogin(signer(t, b.c, "viewer"), "p1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return first + "/#login=" + token + " " + second
}

// watched is a replica that has read the management controller of n1-1-1.
type watched struct {
	lofamov1.FaultSupervisorClient
}

func (w watched) GetNode(ctx context.Context, in *lofamov1.GetNodeRequest, opts ...grpc.CallOption) (*lofamov1.Node, error) {
	n, err := w.FaultSupervisorClient.GetNode(ctx, in, opts...)
	if n.GetId() == "n1-1-1" {
		n.Controller = &lofamov1.ManagementController{Finding: lofamov1.ControllerFinding_CONTROLLER_SILENT, Detail: "no route to host",
			Since: durationpb.New(3 * time.Minute), Age: durationpb.New(4 * time.Second), PowerFeedSuspected: true,
			Sensors: []string{"CPU 1 97 °C: Critical", "Inlet 20 °C: OK"},
			Log:     []string{"2026-01-01T00:00:00Z OK: System boot", "2026-01-01T01:00:00Z Critical: PSU 1 has lost its input"}}
	}
	return n, err
}

// alone is a replica that reaches no quorum until the flag is set.
type alone struct {
	lofamov1.FaultSupervisorClient
	quorum *atomic.Bool
}

func (a alone) GetSummary(ctx context.Context, in *lofamov1.GetSummaryRequest,
	opts ...grpc.CallOption) (*lofamov1.GetSummaryResponse, error) {
	resp, err := a.FaultSupervisorClient.GetSummary(ctx, in, opts...)
	if err == nil && !a.quorum.Load() {
		resp.Cluster.Stale, resp.Cluster.StaleAge = true, durationpb.New(1500*time.Millisecond)
	}
	return resp, err
}

// tripped is a replica whose circuit breaker is open.
type tripped struct {
	lofamov1.ResponseServiceClient
}

func (c tripped) WatchResponses(ctx context.Context, in *lofamov1.WatchResponsesRequest,
	opts ...grpc.CallOption) (grpc.ServerStreamingClient[lofamov1.WatchResponsesResponse], error) {
	stream, err := c.ResponseServiceClient.WatchResponses(ctx, in, opts...)
	return trippedStream{stream}, err
}

type trippedStream struct {
	grpc.ServerStreamingClient[lofamov1.WatchResponsesResponse]
}

func (s trippedStream) Recv() (*lofamov1.WatchResponsesResponse, error) {
	resp, err := s.ServerStreamingClient.Recv()
	if err == nil && resp.GetBreaker() != nil {
		resp.Breaker.Open, resp.Breaker.Detail = true, "14 nodes failed within 10s"
	}
	return resp, err
}
