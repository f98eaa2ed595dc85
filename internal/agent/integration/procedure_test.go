package integration

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet/bulk"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/config"
)

// procedureOrder is an order for a procedure. delay is the Network Delay: a clear torus waits that long in state Diagnostics.
type procedureOrder struct {
	count        uint64
	delay, drain time.Duration
}

// order sends a node an order for a procedure directly.
func (n *testNet) order(c grid.Coord, o procedureOrder) {
	n.t.Helper()
	node := n.cfgs[c].Node
	n.super.send(netip.MustParseAddrPort(n.cfgs[c].Service.Listen), node, fault.PathDirect,
		&lofamov1.Message{Body: &lofamov1.Message_ProcedureOrder{ProcedureOrder: &lofamov1.ProcedureOrder{
			Number: &lofamov1.OrderNumber{Term: 3, Count: o.count}, Node: string(node), Diagnose: true,
			DelayUs: uint32(o.delay.Microseconds()), HopUs: 50_000, DrainTimeoutMs: uint32(o.drain.Milliseconds()),
			ReplyTo: n.super.net.LocalAddr().String(), Reason: "a test",
		}}})
}

// ended waits until the DNP halves of these nodes have reported the end of a procedure, and returns their statuses.
func (n *testNet) ended(o procedureOrder, nodes ...grid.Coord) map[string]*lofamov1.ProcedureStatus {
	n.t.Helper()
	out := map[string]*lofamov1.ProcedureStatus{}
	missing := func() []grid.Coord {
		return slices.DeleteFunc(slices.Clone(nodes), func(c grid.Coord) bool { return out[string(n.cfgs[c].Node)] != nil })
	}
	n.super.awaitAsking("the end of the procedure", func() bool {
		for _, s := range n.super.procedures {
			over := s.GetState() == lofamov1.ProcedureState_PROCEDURE_NORMAL && s.GetError() == ""
			if s.GetHalf() == lofamov1.Half_HALF_DNP && s.GetNumber().GetCount() == o.count && over {
				out[s.GetNode()] = s
			}
		}
		return len(missing()) == 0
	}, func() {
		n.super.mu.Lock()
		ask := missing()
		n.super.mu.Unlock()
		begun := n.reported(func(s *lofamov1.ProcedureStatus) bool {
			return s.GetNumber().GetCount() == o.count && len(s.GetSteps()) > 0
		})
		for _, c := range ask {
			if begun { // it is over elsewhere: a half that gets the order again repeats its report
				n.order(c, o)
			}
		}
	})
	return out
}

// reported reports whether any procedure status that the supervisor has received fits.
func (n *testNet) reported(fits func(*lofamov1.ProcedureStatus) bool) bool {
	n.super.mu.Lock()
	defer n.super.mu.Unlock()
	return slices.ContainsFunc(n.super.procedures, fits)
}

// entered repeats the order for a procedure until the node reports that it is in a state, or was in it before.
func (n *testNet) entered(c grid.Coord, o procedureOrder, state lofamov1.ProcedureState) {
	n.t.Helper()
	n.super.awaitAsking(state.String(), func() bool {
		return slices.ContainsFunc(n.super.procedures, func(s *lofamov1.ProcedureStatus) bool {
			return s.GetNode() == string(n.cfgs[c].Node) && s.GetNumber().GetCount() == o.count &&
				(s.GetState() == state || len(s.GetSteps()) > 0)
		})
	}, func() { n.order(c, o) })
}

func (n *testNet) all() (out []grid.Coord) {
	for rank := range n.dims.Nodes() {
		out = append(out, n.dims.At(rank))
	}
	return out
}

// inject makes a link's end at a node lose frames in both directions, or stops that.
func (n *testNet) inject(c grid.Coord, body string) {
	n.t.Helper()
	n.postTo(filepath.Join(n.cfgs[c].StateDir, half.DNPInjectSock), "/inject", body)
}

// postTo sends a request to a half's socket for fault injection.
func (n *testNet) postTo(socket, path, body string) {
	n.t.Helper()
	client := &http.Client{Timeout: bound, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "http://half"+path, bytes.NewBufferString(body))
	if err != nil {
		n.t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		n.t.Fatalf("POST %s: %s", path, resp.Status)
	}
}

// With two simultaneous orders at two nodes, all halves of a real torus run the newer one, and report its outcome and
// the state of their links. Meanwhile the torus still answers a challenge. A request for a large object waits until
// the end.
func TestProcedureOfRealHalves(t *testing.T) {
	n := newTestNet(t, grid.Dims{X: 2, Y: 2, Z: 2}, unhurried)
	n.startAll()
	n.awaitHealthy()
	n.super.forget()
	far := grid.Coord{X: 1, Y: 1, Z: 1}
	// The drain ends as soon as the torus is empty. If an answer on a busy machine takes longer than the procedure, the test
	// orders another procedure.
	o := procedureOrder{delay: 10 * time.Second, drain: 20 * time.Second}
	to := n.serviceOf(n.cfgs[grid.Coord{}].Node)
	for over := true; over; {
		if o.count == 6 {
			t.Fatal("three procedures were over before an answer came")
		}
		o.count++
		n.order(grid.Coord{}, o)
		o.count++
		n.entered(grid.Coord{X: 1, Y: 1}, o, lofamov1.ProcedureState_PROCEDURE_DIAGNOSTICS)
		n.super.awaitOneAnswer(func(nonce string) {
			n.super.send(to, n.cfgs[far].Node, fault.PathTorus, challengeOf(n, far, nonce))
		})
		over = n.reported(func(s *lofamov1.ProcedureStatus) bool {
			return s.GetNumber().GetCount() == o.count && len(s.GetSteps()) > 0
		})
	}
	data, outcome, _ := n.fetchBundle(fault.Origin{Node: n.cfgs[far].Node, Half: fault.HalfDNP}, "n0-0-0", bulk.MaxSize)
	if outcome.Result != bulk.Complete || !isGzip(data) {
		t.Errorf("%+v, %d bytes", outcome, len(data))
	}
	for node, s := range n.ended(o, n.all()...) {
		if !s.GetClear() || !s.GetDiagnosed() || s.GetStarter() != 3 || len(s.GetSteps()) < 3 {
			t.Errorf("%s: %v", node, s)
		}
	}
	n.super.awaitThat("findings of all links under the order's number", func() bool { return len(n.super.findings) == 8*6 })
	held := uint32(0)
	for _, c := range n.all() {
		s := n.awaitStatus(c, "the end in the node's own status",
			func(s local.Status) bool { return s.Procedures != nil && s.Procedures.Clear > 0 })
		held += s.Procedures.HeldUp
		if p := s.Procedures; p.State != "Normal" || p.NotClear > 0 || p.Held > 0 {
			t.Errorf("%s: %+v", c, p)
		}
	}
	if held == 0 {
		t.Error("nothing was held up: the test tests nothing")
	}
	n.super.awaitThat("what was said of components", func() bool {
		for _, s := range n.super.heard {
			_, link := s.obs.Component.LinkDirection() // on a machine that is short of time heartbeats are late, and halves know that they are
			late := s.obs.Detail == fmt.Sprintf("exceptions: router 0x0 0x0, RDMA 0x0, engine %#x", watchdog.EngineLate)
			if !link && !late && (s.obs.State == fault.Sick || s.obs.State == fault.Failed) {
				t.Errorf("something is called unwell: %s", s)
			}
		}
		return true
	})
}

func challengeOf(n *testNet, c grid.Coord, nonce string) *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_Challenge{Challenge: &lofamov1.Challenge{
		Nonce: []byte(nonce), Node: string(n.cfgs[c].Node), Half: lofamov1.Half_HALF_DNP, ReplyTo: n.super.net.LocalAddr().String(),
	}}}
}

// With one dead half the drain lasts until its time-out. In the middle of the drain a link is cut and another half is
// killed. The others end the procedure, report the silent halves, and change nothing. When the dead are back the next
// procedure is complete.
func TestProcedureWithDeathsOfRealHalves(t *testing.T) {
	n := newTestNet(t, grid.Dims{X: 2, Y: 2, Z: 2}, func(c *config.Agent) { c.Injection = true; unhurried(c) })
	n.startAll()
	n.awaitHealthy()
	dead, dies := grid.Coord{X: 1, Y: 1, Z: 1}, grid.Coord{Y: 1, Z: 1}
	n.halt(dead, fault.HalfDNP)
	n.super.await("a neighbour that hears the dead half no more", func(s said) bool {
		return s.by == fault.Origin{Node: "n0-1-1", Half: fault.HalfHost} && s.obs.Component == fault.Link(grid.XPlus) &&
			s.obs.State == fault.Failed
	})
	// The drain is long enough for the test to cut and kill during the drain, even on a busy machine.
	o := procedureOrder{count: 1, delay: 500 * time.Millisecond, drain: 8 * time.Second}
	n.entered(grid.Coord{}, o, lofamov1.ProcedureState_PROCEDURE_SYSTEM_DRAIN)
	n.inject(grid.Coord{}, `{"dir":"X+","mangle":{"block_in":true,"block_out":true}}`)
	n.halt(dies, fault.HalfDNP)
	live := slices.DeleteFunc(n.all(), func(c grid.Coord) bool { return c == dead || c == dies })
	for node, s := range n.ended(o, live...) {
		if s.GetClear() || !slices.Equal(s.GetSilent(), []uint32{6, 7}) || !s.GetDiagnosed() {
			t.Errorf("%s: %v", node, s)
		}
	}
	n.inject(grid.Coord{}, `{"heal":true}`)
	n.start(dead, fault.HalfDNP)
	n.start(dies, fault.HalfDNP)
	for _, c := range []grid.Coord{dead, dies} {
		n.super.forget()
		n.super.awaitState(fault.Origin{Node: n.cfgs[c].Node, Half: fault.HalfHost}, n.cfgs[c].Node, fault.ComponentDNPCore, fault.Normal,
			fault.KindSelf)
	}
	o = procedureOrder{count: 2, delay: 500 * time.Millisecond, drain: 20 * time.Second}
	n.entered(grid.Coord{X: 1}, o, lofamov1.ProcedureState_PROCEDURE_SYSTEM_DRAIN)
	for node, s := range n.ended(o, n.all()...) {
		if !s.GetClear() {
			t.Errorf("%s: %v", node, s)
		}
	}
}
