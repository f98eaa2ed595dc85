package ingest

import (
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// newEngine returns a leader on an in-memory store; 0 stands for a queue's default length.
func newEngine(t *testing.T, st *memstore.Store, sender *Sender, m *metrics.Metrics, queue, backlog int) *engine.Engine {
	t.Helper()
	dims := grid.Dims{X: 2, Y: 1, Z: 1}
	ids := map[grid.Coord]fault.NodeID{{}: "n0", {X: 1}: "n1"}
	e := engine.New(engine.Config{
		Awareness: awareness.Config{
			Dims: dims, IDs: ids, Supervisor: "s1", ChallengeNode: time.Minute, ChallengeHalf: time.Minute, ChallengeSingle: time.Minute,
			DigestPeriod: time.Minute, DigestMisses: 4, HalfBound: time.Minute, Nonce: func() [16]byte { return [16]byte{1} },
		},
		Meta: store.Meta{Cluster: "test", Dims: dims.String()}, Challenger: sender, Names: view.NewNames(dims, ids),
		Queue: queue, Backlog: backlog, BatchOps: 10, Metrics: m, Logger: slog.New(slog.DiscardHandler),
	}, st)
	return e
}

// heard collects the acks that the halves received.
type heard struct {
	mu                  sync.Mutex
	received, committed map[fault.ReportID]bool
}

// flooded is a socket that immediately opens messages to the halves.
type flooded struct {
	heard
	verify servicenet.Verifier
}

func (f *flooded) Send(_ netip.AddrPort, b []byte) error {
	o, err := servicenet.Open(b, f.verify)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, ack := range o.Msg.GetAcks() {
		for _, id := range servicenet.AckedIDs(ack) {
			if ack.GetStatus() == lofamov1.Ack_COMMITTED {
				f.committed[id] = true
			} else {
				f.received[id] = true
			}
		}
	}
	return nil
}

func (f *flooded) counts() (received, committed int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.received), len(f.committed)
}

// wants reports whether the half would resend a report.
func (f *flooded) wants(id fault.ReportID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.committed[id]
}

// TestFloodLosesNoAcknowledgedReport (row 15 of the fault catalogue): many times more reports than the queues hold, sent once. Reports that
// did not fit are not acknowledged. RECEIVED reports become COMMITTED without a resend, and COMMITTED reports are
// in the store. Then the others arrive on a resend.
func TestFloodLosesNoAcknowledgedReport(t *testing.T) {
	a := newAuthority(t)
	f := &flooded{heard: heard{received: make(map[fault.ReportID]bool), committed: make(map[fault.ReportID]bool)}, verify: a.verify}
	r := a.replica(t, "s1", nil)
	for i := range r.sender.cfg.Ports {
		r.sender.cfg.Ports[i].Socket = f
	}
	st := memstore.New(1 << 20)
	e := newEngine(t, st, r.sender, r.metrics, 8, 16)
	r.intake = NewIntake(IntakeConfig{
		Names: knownNodes{"n0", "n1"}, Verifier: r.intake.cfg.Verifier, Sender: r.sender, Leader: e, Forwarder: r.forward,
		Notifier: &r.tells, Queue: 64, Metrics: r.metrics, Logger: slog.New(slog.DiscardHandler),
	})
	fence := st.Campaign()
	var wg sync.WaitGroup
	wg.Go(func() { _ = e.Lead(t.Context(), fence) })
	t.Cleanup(wg.Wait)
	until(t, "a term", e.Leading)
	unblock := st.Block() // the worst time: nothing can be committed
	r.run(t, true)

	// No half is further ahead of its oldest report than the window of the inbox.
	const n = servicenet.WindowBits - 1
	datagrams := make(map[fault.ReportID][]byte)
	for _, o := range []fault.Origin{host0, dnp0, host1, {Node: "n1", Half: fault.HalfDNP}} {
		h := a.half(t, o)
		for seq := range fault.Seq(n) {
			datagrams[fault.ReportID{Origin: o, Epoch: 5, Seq: seq + 1}] = h.reports(t, 5, 1, false, servicenet.SealOptions{})
		}
	}
	in := r.intake.Datagrams(0)
	for _, b := range datagrams {
		in(eth0, b)
	}
	until(t, "the queues to be left", func() bool {
		return len(r.intake.queue) == 0
	})
	dropped := value(r.metrics.Dropped.WithLabelValues("datagrams")) + value(r.metrics.Dropped.WithLabelValues("evidence"))
	received, committed := f.counts()
	if dropped == 0 || received == 0 || received > len(datagrams)-int(dropped) || committed > 0 {
		t.Errorf("of %d reports %v were dropped, %d received, %d committed while nothing could be", len(datagrams), dropped, received, committed)
	}
	unblock()
	inStore(t, st, f)
	for tries := 0; committed < len(datagrams); tries++ {
		if tries == 1000 {
			t.Fatalf("only %d of %d reports were committed", committed, len(datagrams))
		}
		for id, b := range datagrams {
			if f.wants(id) {
				in(eth0, b)
				until(t, "room in the queue", func() bool { return len(r.intake.queue) < 8 })
			}
		}
		_, committed = f.counts()
	}
	inStore(t, st, f)
}

// inStore checks that all that was received is acknowledged, and in the store.
func inStore(t *testing.T, st *memstore.Store, f *flooded) {
	t.Helper()
	until(t, "all that was RECEIVED to be COMMITTED", f.settled)
	snap, err := st.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	box := servicenet.NewInbox(snap.Inbox)
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.committed {
		if v := box.Accept(id, false); v != servicenet.Duplicate {
			t.Fatalf("%s was COMMITTED, and the store says it is %s", id, v)
		}
	}
}

// settled reports whether all RECEIVED reports are COMMITTED.
func (f *flooded) settled() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.received {
		if !f.committed[id] {
			return false
		}
	}
	return true
}

// until waits for a condition.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(wait); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(fmt.Sprint("waited in vain for ", what))
		}
	}
}

// TestDropsOfKnownSourcesHoldVerdicts: while the budget of a node's address or origin is exhausted, the drops may
// include the node's own reports, so its silence proves nothing.
func TestDropsOfKnownSourcesHoldVerdicts(t *testing.T) {
	a := newAuthority(t)
	const more = 10
	r, now := a.replica(t, "s1", func(c *IntakeConfig) { c.Queue = 2 * sourceBurst }), time.Now()
	for range strangerBurst + more {
		r.intake.enqueue(packet{from: netip.MustParseAddrPort("192.0.2.1:9"), arrived: now})
	}
	if r.intake.lost.Load() != 0 {
		t.Error("verdicts wait for strangers")
	}
	for range sourceBurst + more {
		r.intake.enqueue(packet{from: eth0, arrived: now})
	}
	if n := value(r.metrics.Dropped.WithLabelValues("sources")); n != more {
		t.Errorf("%v drops of a known source were counted, want %d", n, more)
	}
	if n := value(r.metrics.Dropped.WithLabelValues("strangers")); n != more {
		t.Errorf("%v drops of strangers were counted, want %d", n, more)
	}
	if r.intake.lost.Load() == 0 {
		t.Error("verdicts do not wait while datagrams of a known source are dropped")
	}

	r = a.replica(t, "s1", nil)
	spend := func(from netip.AddrPort) {
		for ok := true; ok; { // the budget does not grow until then
			_, ok = r.intake.sources.origin(now.Add(time.Hour), host0.String(), host0.String(), from)
		}
	}
	spend(n1)
	r.intake.handle(packet{from: n1, data: a.half(t, host0).reports(t, 5, 1, false, servicenet.SealOptions{}), arrived: now})
	if n := value(r.metrics.Dropped.WithLabelValues("origins")); n != 1 || r.intake.lost.Load() != 0 {
		t.Errorf("%v drops of an origin at another node's address, lost %d: want no wait", n, r.intake.lost.Load())
	}
	spend(eth0)
	r.get(eth0, 0, a.half(t, host0).reports(t, 5, 1, false, servicenet.SealOptions{}))
	if n := value(r.metrics.Dropped.WithLabelValues("origins")); n != 2 || r.intake.lost.Load() == 0 {
		t.Errorf("%v drops of an origin, lost %d", n, r.intake.lost.Load())
	}
}

// TestBudgetsOfLargeTorusAreKept: a third of 100,000 nodes, whose halves come by several ways, resets no budget.
func TestBudgetsOfLargeTorusAreKept(t *testing.T) {
	const nodes, ways = 33_334, 7
	addr := func(n, way int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), uint16(way))
	}
	s := newSources(func(a netip.AddrPort) (fault.NodeID, bool) {
		b := a.Addr().As4()
		return fault.NodeID(fmt.Sprint("n", int(b[1])<<16|int(b[2])<<8|int(b[3]))), true
	})
	now := time.Now()
	hear := func(n, way int, half fault.Half) (ok bool) {
		name := fault.Origin{Node: fault.NodeID(fmt.Sprint("n", n)), Half: half}.String()
		_, ok = s.origin(now, name, name, addr(n, way))
		return ok
	}
	for range originBurst {
		hear(0, 1, fault.HalfHost)
	}
	for n := range nodes {
		for way := range ways {
			hear(n, way, fault.HalfHost)
			hear(n, way, fault.HalfDNP)
		}
	}
	if hear(0, 1, fault.HalfHost) {
		t.Error("a spent budget was reset by messages of other nodes")
	}
}
