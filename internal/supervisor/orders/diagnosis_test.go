package orders

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/ingest"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// torusNames are nodes of the default names, with addresses that count their ranks as ports.
type torusNames struct{ dims grid.Dims }

func (n torusNames) Dims() grid.Dims { return n.dims }

func (n torusNames) Topology() *topology.Topology { return topologyOf(n.dims, 1) }

func (n torusNames) All() (out []fault.NodeID) {
	for i := range n.dims.Nodes() {
		out = append(out, fault.DefaultNodeID(n.dims.At(i)))
	}
	return out
}

func (n torusNames) Coord(id fault.NodeID) (grid.Coord, bool) {
	for i := range n.dims.Nodes() {
		if fault.DefaultNodeID(n.dims.At(i)) == id {
			return n.dims.At(i), true
		}
	}
	return grid.Coord{}, false
}

func (n torusNames) addr(id fault.NodeID) netip.AddrPort {
	c, _ := n.Coord(id)
	return netip.AddrPortFrom(netip.IPv6Loopback(), uint16(1+n.dims.Rank(c)))
}

func (n torusNames) Services(id fault.NodeID) []netip.AddrPort { return []netip.AddrPort{n.addr(id)} }

func (n torusNames) Owner(at netip.AddrPort) (fault.NodeID, bool) {
	return n.All()[at.Port()-1], true
}

type signer struct{}

func (signer) Cert() []byte       { return []byte("s1") }
func (signer) Sign([]byte) []byte { return make([]byte, 64) }

// believer accepts every signature as the supervisor's.
type believer struct{}

func (believer) VerifyName([]byte, []byte, []byte) (role, name string, err error) {
	return servicenet.RoleSupervisor, "s1", nil
}

// diagnosedNodes answer orders immediately, as the test specifies.
type diagnosedNodes struct {
	t     *testing.T
	names torusNames
	m     *Diagnoses

	mu     sync.Mutex
	orders []*lofamov1.DiagnosisOrder // received orders, direct or not
	via    []fault.NodeID             // relays of the indirect ones
	// dead DNP halves and host halves; with both the node is cut off too.
	dnp, host map[fault.NodeID]bool
	lose      int // findings that are lost yet

	store      *memstore.Store
	registry   *prometheus.Registry
	procedures []*lofamov1.ProcedureOrder // received orders, direct or not
	// begin is a starter's behaviour; nil: success.
	begin  func(*lofamov1.ProcedureOrder)
	places []Place
}

// kept is the store that outlives the leader.
type kept struct {
	*memstore.Store

	w store.Committer
}

func (k kept) Write(ctx context.Context, w store.Write) (uint64, error) {
	return k.w.Commit(ctx, w.Batch())
}

func newNodes(t *testing.T, dims grid.Dims) *diagnosedNodes {
	n := &diagnosedNodes{
		t: t, names: torusNames{dims}, dnp: map[fault.NodeID]bool{}, host: map[fault.NodeID]bool{},
		store: memstore.New(100), registry: prometheus.NewRegistry(),
	}
	w, err := n.store.Writer(n.store.Campaign(), store.Meta{}, store.Snapshot{})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range n.names.All() {
		n.places = append(n.places, Place{Node: id, Well: true, Links: 63})
	}
	counts, logger := metrics.New(n.registry), slog.New(slog.DiscardHandler)
	n.m = NewDiagnoses(DiagnosisConfig{
		Reports: kept{n.store, w}, Metrics: counts, Hop: time.Millisecond, Late: time.Millisecond, Pause: time.Minute,
		Places:     func(context.Context) ([]Place, error) { return n.places, nil },
		Procedures: ProcedureTiming{Again: 20 * time.Millisecond, Begin: 100 * time.Millisecond, Quiet: 60 * time.Millisecond, Asks: 3},
		Self:       "s1", Names: n.names, Logger: logger,
		Sender: ingest.NewSender(ingest.SenderConfig{
			Ports: []ingest.Port{{Socket: n, ReplyTo: "[::1]:10"}}, Nodes: n.names, Signer: signer{}, Metrics: counts, Logger: logger,
			Paths: ingest.NewExchanges(ingest.ExchangeConfig{ID: "s1", Wait: time.Second, Metrics: counts, Logger: logger}),
		}),
		Timing: diagnosisTiming{Again: 10 * time.Millisecond, Quiet: 50 * time.Millisecond, Least: 200 * time.Millisecond, Most: time.Second},
	})
	return n
}

// Send implements bulk.Socket; it stands for the network.
func (n *diagnosedNodes) Send(to netip.AddrPort, b []byte) error {
	at, _ := n.names.Owner(to)
	o, err := servicenet.Open(b, believer{})
	if err != nil {
		n.t.Errorf("to %s: %v", at, err)
		return nil
	}
	if o.Msg.GetDowncall() != nil {
		diagnosedNode, inner, err := servicenet.InnerOf(o)
		if err != nil || n.host[at] {
			return err
		}
		n.mu.Lock()
		n.via = append(n.via, at)
		n.mu.Unlock()
		if o, err = servicenet.Open(inner, believer{}); err != nil {
			n.t.Errorf("down to %s: %v", diagnosedNode, err)
		}
		if p := o.Msg.GetProcedureOrder(); p != nil {
			n.ordered(fault.NodeID(p.GetNode()), p)
			return nil
		}
		n.tested(o.Msg.GetDiagnosisOrder())
		return nil
	}
	if p := o.Msg.GetProcedureOrder(); p != nil {
		if fault.NodeID(p.GetNode()) != at {
			n.t.Errorf("an order for %s is sent to %s", p.GetNode(), at)
		}
		if !n.host[at] {
			n.m.Status(&lofamov1.ProcedureStatus{Number: p.GetNumber(), Node: string(at), Half: lofamov1.Half_HALF_HOST, Epoch: 1})
			n.ordered(at, p)
		}
		return nil
	}
	order := o.Msg.GetDiagnosisOrder()
	if fault.NodeID(order.GetNode()) != at {
		n.t.Errorf("an order for %s is sent to %s", order.GetNode(), at)
	}
	if n.host[at] {
		return nil
	}
	dnp := lofamov1.State_NORMAL
	if n.dnp[at] {
		dnp = lofamov1.State_FAILED
	}
	n.m.Findings(&lofamov1.DiagnosisFindings{Number: order.GetNumber(), Node: string(at), Half: lofamov1.Half_HALF_HOST, Epoch: 1, Dnp: dnp})
	n.tested(order)
	return nil
}

// tested is a DNP half that has the order.
func (n *diagnosedNodes) tested(o *lofamov1.DiagnosisOrder) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.orders = append(n.orders, o)
	at := fault.NodeID(o.GetNode())
	if n.dnp[at] {
		return
	}
	c, _ := n.names.Coord(at)
	test := func(sent uint32, answers bool) *lofamov1.DiagnosisTest {
		t := &lofamov1.DiagnosisTest{Sent: sent}
		if answers {
			t.Answered, t.MinUs, t.MedianUs, t.MaxUs = sent, 100, 200, 300
		}
		return t
	}
	for _, d := range grid.Directions() {
		if (o.GetLinks()&^o.GetKnown())>>d.Index()&1 == 0 {
			continue
		}
		if n.lose > 0 {
			n.lose--
			continue
		}
		peer, _ := n.names.dims.Neighbour(c, d)
		id := fault.DefaultNodeID(peer)
		l := &lofamov1.LinkFinding{Direction: uint32(d), Dnp: test(36, !n.dnp[id]), Host: test(6, !n.dnp[id] && !n.host[id]),
			Through: test(12, !n.dnp[id])}
		if !n.dnp[id] {
			l.Heard = 60
		}
		n.m.Findings(&lofamov1.DiagnosisFindings{
			Number: o.GetNumber(), Node: string(at), Half: lofamov1.Half_HALF_DNP, Epoch: 1, Links: o.GetLinks(), Link: l,
			OwnHost: test(6, !n.host[at]),
		})
	}
}

// counted is the counter of a result.
func (n *diagnosedNodes) counted(name, result string) float64 {
	n.t.Helper()
	families, err := n.registry.Gather()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && len(m.GetLabel()) == 1 && m.GetLabel()[0].GetValue() == result {
				return m.GetCounter().GetValue()
			}
		}
	}
	n.t.Fatalf("there is no %s of %s", name, result)
	return 0
}

// events returns the committed events.
func (n *diagnosedNodes) events() []*lofamov1.Event {
	n.t.Helper()
	list, _, err := n.store.Events(n.t.Context(), 0, 0, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	return list
}

func (n *diagnosedNodes) run(req DiagnosisRequest) (*lofamov1.DiagnosisReport, []*lofamov1.DiagnosisProgress, error) {
	if req.Rounds == 0 {
		req.Rounds = 1
	}
	var said []*lofamov1.DiagnosisProgress
	r, err := n.m.Run(n.t.Context(), req, func(p *lofamov1.DiagnosisProgress) error {
		said = append(said, p)
		return nil
	})
	return r, said, err
}

func (n *diagnosedNodes) must(req DiagnosisRequest) *lofamov1.DiagnosisReport {
	n.t.Helper()
	r, _, err := n.run(req)
	if err != nil {
		n.t.Fatal(err)
	}
	return r
}

func faults(r *lofamov1.DiagnosisReport) (out []string) {
	for _, f := range r.GetFaults() {
		out = append(out, fmt.Sprintf("%s %s%s", f.GetPart(), f.GetNode(), f.GetDirection()))
	}
	return out
}

func TestDiagnosisOrdersItsScope(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			req          DiagnosisRequest
			nodes, links int
			scope        string
		}{
			{DiagnosisRequest{}, 8, 24, "all"},
			{DiagnosisRequest{Node: "n1-0-1"}, 4, 6, "node n1-0-1"},
			{DiagnosisRequest{Node: "n1-0-1", Link: grid.YMinus}, 2, 1, "link n1-0-1 Y-"},
		} {
			n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 2})
			n.m.Lead(7)
			r, said, err := n.run(tc.req)
			if err != nil {
				t.Fatal(err)
			}
			if int(r.GetNodes()) != tc.nodes || len(r.GetLinks()) != tc.links || r.GetScope() != tc.scope ||
				len(r.GetFaults())+len(r.GetOpen())+len(r.GetSilent()) > 0 {
				t.Errorf("%s: %v", tc.scope, r)
			}
			for _, l := range r.GetLinks() {
				if l.GetVerdict() != lofamov1.LinkVerdict_LINK_GOOD || l.GetHere().GetDnp().GetSent() != 36 ||
					l.GetThere().GetThrough().GetSent() != 12 {
					t.Errorf("%s: %v", tc.scope, l)
				}
			}
			if last := said[len(said)-1]; last.GetAnswered() != last.GetNodes() || int(last.GetNodes()) != tc.nodes {
				t.Errorf("%s: the last progress is %v", tc.scope, last)
			}
			if most := 3 + int(time.Duration(r.GetTookMs())*time.Millisecond/tellEvery); len(said) > most {
				t.Errorf("%s: %d words of progress in %d ms: want %d at most", tc.scope, len(said), r.GetTookMs(), most)
			}
			for _, o := range n.orders {
				if o.GetNumber().GetTerm() != 7 || o.GetNumber().GetCount() != 1 || o.GetReplyTo() != "[::1]:10" {
					t.Errorf("%v", o)
				}
			}
			if kept, err := n.m.LastDiagnosis(t.Context()); err != nil || !proto.Equal(kept, r) {
				t.Errorf("the last report is %v, %v", kept, err)
			}
			if ev := n.events(); len(ev) != 1 || ev[0].GetKind() != lofamov1.EventKind_DIAGNOSIS_ENDED || ev[0].GetNode() != string(tc.req.Node) ||
				ev[0].GetReason() != "diagnosis of "+tc.scope+": nothing is wrong" {
				t.Errorf("%s: events %v", tc.scope, ev)
			}
			if got := n.counted("lofamo_diagnoses_total", metrics.DiagnosisClean); got != 1 {
				t.Errorf("%v diagnoses are counted", got)
			}
		}
	})
}

func TestDiagnosisNamesFaultyParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes(t, grid.Dims{X: 3, Y: 3, Z: 1})
		n.m.Lead(7)
		n.lose = 9 // requested again
		n.dnp["n0-0-0"], n.host["n0-0-0"] = true, true
		n.host["n2-1-0"] = true // reached by its neighbours
		n.dnp["n1-2-0"] = true
		r := n.must(DiagnosisRequest{})
		if got := faults(r); !slices.Equal(got, []string{"PART_NODE n0-0-0", "PART_HOST_HALF n2-1-0", "PART_DNP_HALF n1-2-0"}) {
			t.Errorf("found %v", got)
		}
		if !slices.Equal(r.GetSilent(), []string{"n0-0-0"}) {
			t.Errorf("silent %v", r.GetSilent())
		}
		if len(n.via) == 0 || slices.Contains(n.via, "n2-1-0") {
			t.Errorf("relays of unreachable nodes: %v", n.via)
		}
		for _, o := range n.orders {
			if o.GetKnown()&^o.GetLinks() != 0 {
				t.Errorf("known %b of %b", o.GetKnown(), o.GetLinks())
			}
		}
	})
}

func TestOnlyLeaderDiagnoses(t *testing.T) {
	n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
	if _, _, err := n.run(DiagnosisRequest{}); !errors.Is(err, ErrNotLeading) {
		t.Errorf("not leading: %v", err)
	}
	if _, err := n.m.Procedure(t.Context(), ProcedureRequest{DrainTimeout: time.Second}, nil); !errors.Is(err, ErrNotLeading) {
		t.Errorf("not leading: %v", err)
	}
	n.m.Lead(3)
	if r, err := n.m.LastDiagnosis(t.Context()); r != nil || err != nil {
		t.Errorf("no report yet: %v, %v", r, err)
	}
	for _, bad := range []DiagnosisRequest{{Node: "n9-9-9"}, {Node: "n0-0-0", Link: grid.ZPlus}} {
		if _, _, err := n.run(bad); err == nil {
			t.Errorf("%s is diagnosed", bad)
		}
	}
	var second error
	_, err := n.m.Run(t.Context(), DiagnosisRequest{Rounds: 1}, func(*lofamov1.DiagnosisProgress) error {
		_, _, second = n.run(DiagnosisRequest{})
		return nil
	})
	if err != nil || !errors.Is(second, ErrBusy) {
		t.Errorf("%v, and one within it %v", err, second)
	}
	n.m.Lead(0)
	n.m.Lead(4)
	if r, err := n.m.LastDiagnosis(t.Context()); err != nil || r.GetScope() != "all" {
		t.Errorf("the report of an earlier term: %v, %v", r, err)
	}
}

// Neither the end of a term nor a caller that goes away keeps it from ending, and findings on another order are
// ignored.
func TestDiagnosisEndsWithTermOrCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodes(t, grid.Dims{X: 2, Y: 2, Z: 1})
		for _, id := range n.names.All() {
			n.host[id] = true
		}
		n.m.Lead(3)
		_, err := n.m.Run(t.Context(), DiagnosisRequest{Rounds: 1}, func(*lofamov1.DiagnosisProgress) error {
			n.m.Lead(0)
			return nil
		})
		if !errors.Is(err, ErrNotLeading) {
			t.Errorf("the term ended: %v", err)
		}
		n.m.Lead(4)
		ctx, cancel := context.WithCancel(t.Context())
		_, err = n.m.Run(ctx, DiagnosisRequest{Rounds: 1}, func(*lofamov1.DiagnosisProgress) error { cancel(); return nil })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the caller went away: %v", err)
		}
		r, err := n.m.Run(t.Context(), DiagnosisRequest{Rounds: 1}, func(*lofamov1.DiagnosisProgress) error {
			n.m.Findings(&lofamov1.DiagnosisFindings{Number: &lofamov1.OrderNumber{Term: 4, Count: 1}, Node: "n0-0-0",
				Half: lofamov1.Half_HALF_HOST, Dnp: lofamov1.State_NORMAL})
			return nil
		})
		if err != nil || len(r.GetSilent()) != 4 || len(r.GetFaults()) > 0 {
			t.Errorf("no node answers: %v, %v", r, err)
		}
	})
}
