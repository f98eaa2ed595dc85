package engine

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/internal/testing/leaks"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.bench"); f != nil && f.Value.String() != "" {
		os.Exit(m.Run()) // benchmarks run on a real etcd, which leaves goroutines behind
	}
	os.Exit(leaks.Main(m.Run))
}

const wait = time.Minute

// box collects acks.
type box struct {
	mu   sync.Mutex
	acks []*lofamov1.Ack
	to   []To
	more chan struct{}
}

func newBox() *box { return &box{more: make(chan struct{}, 1)} }

func (b *box) Answer(to To, ack *lofamov1.Ack) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.acks, b.to = append(b.acks, ack), append(b.to, to)
	select {
	case b.more <- struct{}{}:
	default:
	}
}

func (b *box) list() []*lofamov1.Ack {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*lofamov1.Ack(nil), b.acks...)
}

// await waits until there are n acks.
func (b *box) await(t *testing.T, n int) []*lofamov1.Ack {
	t.Helper()
	timeout := time.After(wait)
	for {
		if list := b.list(); len(list) >= n {
			return list
		}
		select {
		case <-b.more:
		case <-timeout:
			t.Fatalf("%d acks, want %d", len(b.list()), n)
		}
	}
}

// Challenge makes box a Challenger that leaves challenges unanswered.
func (b *box) Challenge(awareness.Challenge) bool { return true }
func (b *box) Behind() time.Duration              { return 0 }

// asked is a Challenger that remembers the last challenge.
type asked struct{ last awareness.Challenge }

func (a *asked) Challenge(c awareness.Challenge) bool { a.last = c; return true }
func (a *asked) Behind() time.Duration                { return 0 }

type harness struct {
	*Engine
	store *memstore.Store
	box   *box
	ended chan error
	stop  context.CancelFunc
}

// testConfig configures an engine for a 2x2x1 torus in which nothing happens by itself.
func testConfig(ch Challenger) Config {
	dims := grid.Dims{X: 2, Y: 2, Z: 1}
	ids := make(map[grid.Coord]fault.NodeID)
	for r := range dims.Nodes() {
		ids[dims.At(r)] = fault.DefaultNodeID(dims.At(r))
	}
	return Config{
		Awareness: awareness.Config{
			Dims: dims, IDs: ids, Supervisor: "s1", ChallengeNode: time.Minute, ChallengeHalf: time.Minute, ChallengeSingle: time.Minute,
			DigestPeriod: time.Minute, DigestMisses: 4, HalfBound: time.Minute, Nonce: func() [16]byte { return [16]byte{1} },
		},
		Meta: store.Meta{Cluster: "test", Dims: dims.String()}, Challenger: ch, Names: view.NewNames(dims, ids),
		Metrics: metrics.New(prometheus.NewRegistry()), Logger: slog.New(slog.DiscardHandler),
	}
}

func start(t *testing.T, st *memstore.Store, spoil func(*Config)) *harness {
	t.Helper()
	return startOn(t, st, st, spoil)
}

// startOn is start with a layer between the engine and its store.
func startOn(t *testing.T, st *memstore.Store, between Store, spoil func(*Config)) *harness {
	t.Helper()
	h := &harness{store: st, box: newBox(), ended: make(chan error, 1)}
	cfg := testConfig(h.box)
	if spoil != nil {
		spoil(&cfg)
	}
	h.Engine = New(cfg, between)
	var ctx context.Context
	ctx, h.stop = context.WithCancel(t.Context())
	fence := st.Campaign()
	go func() { h.ended <- h.Lead(ctx, fence) }()
	t.Cleanup(func() {
		h.stop()
		select {
		case <-h.ended:
		case <-time.After(wait):
			t.Error("the term does not end")
		}
	})
	for deadline := time.Now().Add(wait); !h.Leading(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no term")
		}
	}
	return h
}

func (h *harness) report(seq fault.Seq, digest bool, comp fault.Component, st fault.State) fault.ReportID {
	id := fault.ReportID{Origin: fault.Origin{Node: "n1-0-0", Half: fault.HalfHost}, Epoch: 2, Seq: seq}
	h.Submit(Input{
		Reports: &servicenet.Reports{Path: fault.PathDirect, List: []fault.Report{{ID: id, Digest: digest, Observations: []fault.Observation{
			{Node: "n1-0-0", Component: comp, State: st, Kind: fault.KindSelf},
		}}}},
		To: To{Addr: "127.0.0.1:1"}, Answerer: h.box, Arrived: time.Now(),
	})
	return id
}

func (h *harness) node(t *testing.T, id fault.NodeID) view.Entry {
	t.Helper()
	list, err := h.Detail(t.Context(), []fault.NodeID{id})
	if err != nil || len(list) != 1 {
		t.Fatalf("node %s: %v, %v", id, list, err)
	}
	return list[0]
}

// taken waits until the engine has processed all submitted inputs.
func (h *harness) taken(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(wait); len(h.in)+len(h.digests) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the queue does not empty")
		}
	}
	h.node(t, "n1-0-0") // the engine has finished the input in hand
}

func TestCommitThenAck(t *testing.T) {
	h := start(t, memstore.New(100), nil)
	unblock := h.store.Block()
	defer unblock()
	h.report(1, false, fault.ComponentMemory, fault.Sick)
	h.taken(t)
	// Uncommitted changes are neither shown nor acknowledged.
	if e := h.node(t, "n1-0-0"); e.Status.State != fault.Unknown || e.Revision != 0 {
		t.Errorf("before the commit the map says %s at %d", e.Status.State, e.Revision)
	}
	if acks := h.box.list(); len(acks) != 0 {
		t.Errorf("acknowledged before the commit: %v", acks)
	}
	unblock()
	acks := h.box.await(t, 1)
	if acks[0].GetStatus() != lofamov1.Ack_COMMITTED || acks[0].GetSeqs()[0] != 1 || h.box.to[0].Addr != "127.0.0.1:1" {
		t.Errorf("ack %v to %v", acks[0], h.box.to[0])
	}
	if e := h.node(t, "n1-0-0"); e.Status.State != fault.Sick || e.Revision == 0 {
		t.Errorf("after the commit the map says %s at %d", e.Status.State, e.Revision)
	}
}

func TestBatchesWhileCommitIsInFlight(t *testing.T) {
	h := start(t, memstore.New(100), nil)
	unblock := h.store.Block()
	defer unblock()
	const n = 40
	for i := range n {
		h.report(fault.Seq(i+1), false, fault.ComponentMemory, fault.Sick)
	}
	h.report(1, false, fault.ComponentMemory, fault.Sick) // a copy of one in flight, by another path
	h.Submit(Input{
		Reports: &servicenet.Reports{Path: fault.PathDirect, List: []fault.Report{{ID: fault.ReportID{
			Origin: fault.Origin{Node: "n1-0-0", Half: fault.HalfHost}, Epoch: 2, Seq: 1,
		}}}}, To: To{Addr: "127.0.0.1:2"}, Answerer: h.box, Arrived: time.Now(),
	})
	h.taken(t)
	unblock()
	seqs := make(map[uint64]int)
	for got := 0; got < n+1; {
		got = 0
		clear(seqs)
		acks := h.box.list()
		for _, ack := range acks {
			if len(ack.GetSeqs()) > 64 {
				t.Fatalf("%d reports in one ack", len(ack.GetSeqs()))
			}
			for _, seq := range ack.GetSeqs() {
				seqs[seq]++
				got++
			}
		}
		if got < n+1 {
			h.box.await(t, len(acks)+1)
		}
	}
	if len(seqs) != n || seqs[1] != 2 {
		t.Errorf("acknowledged %v, want 1 to %d, the first twice", seqs, n)
	}
	// The first went alone, the rest together.
	if c := h.store.Commits(); c > 3 {
		t.Errorf("%d commits for %d reports", c, n)
	}
}

func TestDigestsAreNotCommitted(t *testing.T) {
	h := start(t, memstore.New(100), nil)
	h.report(1, true, fault.ComponentMemory, fault.Normal)
	awaitEvents(t, h, 1)
	before := h.store.Commits()
	for i := range 20 {
		h.report(fault.Seq(i+2), true, fault.ComponentMemory, fault.Normal)
	}
	h.report(30, false, fault.ComponentMemory, fault.Sick)
	h.box.await(t, 1)
	if c := h.store.Commits(); c != before+1 {
		t.Errorf("%d commits for 20 digests without a change and a report, want 1", c-before)
	}
	if e := h.node(t, "n1-0-0"); e.Status.Life.IsZero() {
		t.Error("no sign of life")
	}
}

// awaitEvents waits until the store has at least n events.
func awaitEvents(t *testing.T, h *harness, n int) []*lofamov1.Event {
	t.Helper()
	for deadline := time.Now().Add(wait); ; time.Sleep(time.Millisecond) {
		events, _, err := h.store.Events(t.Context(), 0, 0, nil)
		if err == nil && len(events) >= n {
			return events
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d events, %v; want %d", len(events), err, n)
		}
	}
}

func TestLeadershipLostMidway(t *testing.T) {
	st := memstore.New(100)
	h := start(t, st, nil)
	unblock := st.Block()
	defer unblock()
	h.report(1, false, fault.ComponentMemory, fault.Sick)
	h.taken(t)
	next := start(t, st, nil) // another replica is elected
	unblock()
	var err error
	select {
	case err = <-h.ended:
		h.ended <- err
	case <-time.After(wait):
		t.Fatal("the deposed leader goes on")
	}
	if !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("the term ended with %v", err)
	}
	if acks := h.box.list(); len(acks) != 0 {
		t.Errorf("the deposed leader acknowledged %v", acks)
	}
	if _, err := h.Map(t.Context()); !errors.Is(err, ErrNotLeading) {
		t.Errorf("it still answers: %v", err)
	}
	// The sender retries, and the change is made once.
	next.report(1, false, fault.ComponentMemory, fault.Sick)
	next.box.await(t, 1)
	n := 0
	for _, ev := range awaitEvents(t, next, 1) {
		if ev.GetComponent() == "memory" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("the change was made %d times", n)
	}
}

func TestNewLeaderContinuesCommittedMap(t *testing.T) {
	st := memstore.New(100)
	h := start(t, st, nil)
	h.report(5, false, fault.ComponentMemory, fault.Sick)
	h.box.await(t, 1)
	events := len(awaitEvents(t, h, 1))
	next := start(t, st, nil)
	if e := next.node(t, "n1-0-0"); e.Status.State != fault.Sick || e.Revision == 0 || !e.Status.Life.IsZero() || e.Status.HostEpoch != 2 {
		t.Errorf("restored %+v at %d", e.Status, e.Revision)
	}
	next.report(5, false, fault.ComponentMemory, fault.Sick) // its ack was lost
	if acks := next.box.await(t, 1); acks[0].GetStatus() != lofamov1.Ack_COMMITTED {
		t.Errorf("ack %v", acks[0])
	}
	if got := len(awaitEvents(t, next, events)); got != events {
		t.Errorf("%d events after a copy, %d before", got, events)
	}
}

func TestFullBacklogRefusesReports(t *testing.T) {
	h := start(t, memstore.New(100), func(c *Config) { c.Backlog, c.Queue = 2, 2 })
	unblock := h.store.Block()
	defer unblock()
	dropped := false
	for i := range 100 {
		id := fault.ReportID{Origin: fault.Origin{Node: "n1-0-0", Half: fault.HalfHost}, Epoch: 1, Seq: fault.Seq(i + 1)}
		if !h.Submit(Input{Reports: &servicenet.Reports{Path: fault.PathDirect, List: []fault.Report{{ID: id}}},
			Answerer: h.box, Arrived: time.Now()}) {
			dropped = true
			break
		}
	}
	if !dropped {
		t.Error("a store that does not answer is not felt")
	}
	unblock()
	h.box.await(t, 1)
}

// TestDigestsAreTakenWhileReportsWait for the store: the leader does not give up halves meanwhile, and they do not
// consider their service network dead.
func TestDigestsAreTakenWhileReportsWait(t *testing.T) {
	h := start(t, memstore.New(100), func(c *Config) { c.Backlog, c.Queue = 2, 2 })
	unblock := h.store.Block()
	defer unblock()
	h.fill(t)
	for seq := range fault.Seq(100) {
		id := fault.ReportID{Origin: fault.Origin{Node: "n0-1-0", Half: fault.HalfHost}, Epoch: 1, Seq: seq + 1}
		if !h.Submit(Input{Reports: &servicenet.Reports{Path: fault.PathDirect, List: []fault.Report{{ID: id, Digest: true}}},
			Arrived: time.Now()}) {
			t.Fatalf("digest %d is dropped", seq+1)
		}
		for deadline := time.Now().Add(wait); len(h.digests) > 0; time.Sleep(100 * time.Microsecond) {
			if time.Now().After(deadline) {
				t.Fatal("digests wait behind reports")
			}
		}
	}
	if len(h.in) != cap(h.in) {
		t.Error("the reports do not wait")
	}
}

// fill submits reports until a blocked store's backlog and the queue behind it are full.
func (h *harness) fill(t *testing.T) {
	t.Helper()
	for n, tries := 0, 0; n < h.cfg.Backlog+cap(h.in); tries++ {
		if tries > 1000 {
			t.Fatal("the reports are not taken")
		}
		id := fault.ReportID{Origin: fault.Origin{Node: "n1-0-0", Half: fault.HalfHost}, Epoch: 1, Seq: fault.Seq(n + 1)}
		if h.Submit(Input{Reports: &servicenet.Reports{Path: fault.PathDirect, List: []fault.Report{{ID: id}}},
			Answerer: h.box, Arrived: time.Now()}) {
			n++
		}
		h.node(t, "n1-0-0") // lets the engine run
	}
}

func TestSeenChangesPrecedeTheirCommit(t *testing.T) {
	h := start(t, memstore.New(100), nil)
	seen, cancel, err := h.Seen(16)
	if err != nil {
		t.Fatal(err)
	}
	defer cancel()
	small, _, err := h.Seen(1)
	if err != nil {
		t.Fatal(err)
	}
	unblock := h.store.Block()
	defer unblock()
	h.report(1, false, fault.ComponentMemory, fault.Sick)
	select {
	case ev := <-seen:
		if !ev.GetAsSeen() || ev.GetRevision() != 0 {
			t.Errorf("%v", ev)
		}
	case <-time.After(wait):
		t.Fatal("nothing seen before the commit")
	}
	// One report makes several changes: of the component, of the reporting half and of the node.
	h.taken(t)
	if _, ok := <-small; !ok {
		t.Error("a subscriber lost what there was room for")
	}
	if _, ok := <-small; ok {
		t.Error("a subscriber without room is not cut off")
	}
	unblock()
	h.stop()
	for range seen {
	}
	if _, _, err := h.Seen(1); !errors.Is(err, ErrNotLeading) {
		t.Errorf("Seen after the term: %v", err)
	}
}

func TestStoreOfAnotherClusterIsRefused(t *testing.T) {
	st := memstore.New(100)
	h := start(t, st, nil)
	h.report(1, false, fault.ComponentMemory, fault.Sick)
	h.box.await(t, 1)
	other := New(h.cfg, st)
	other.cfg.Meta.Cluster = "other"
	if err := other.Lead(t.Context(), st.Campaign()); !errors.Is(err, store.ErrForeign) {
		t.Errorf("another cluster's store is taken: %v", err)
	}
}
