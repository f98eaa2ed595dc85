package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/orders"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// term is a replica that leads on a store in memory, without sockets. It records the mask orders, as a Sender. Its store
// loads when loads is closed, and then has the masks.
type term struct {
	*Supervisor
	*memstore.Store
	masks []*lofamov1.LinkMask
	loads chan struct{}
	holds chan struct{} // not nil: LastOrdered blocks until it is closed, whatever the context
	ended chan error

	mu       sync.Mutex
	sent     []string
	noQuorum bool
}

func (r *term) Confirm(ctx context.Context, fence store.Fence) (store.Standing, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.noQuorum {
		return store.Standing{}, errors.New("no quorum")
	}
	return r.Store.Confirm(ctx, fence)
}

func (r *term) Load(ctx context.Context) (store.Snapshot, error) {
	select {
	case <-r.loads:
	case <-ctx.Done():
		return store.Snapshot{}, ctx.Err()
	}
	snap, err := r.Store.Load(ctx)
	snap.Masks = r.masks
	return snap, err
}

func (r *term) Write(ctx context.Context, w store.Write) (uint64, error) {
	return r.engine.Write(ctx, w)
}

func (*term) Peers(context.Context) (map[fault.NodeID]*lofamov1.PeerStatus, error) {
	return make(map[fault.NodeID]*lofamov1.PeerStatus), nil
}

func (*term) LastDiagnosis(context.Context) (*lofamov1.DiagnosisReport, error) { return nil, nil } //nolint:nilnil // none

func (*term) LastProcedure(context.Context) (*lofamov1.ProcedureReport, error) { return nil, nil } //nolint:nilnil // none

func (r *term) LastOrdered(context.Context) (*store.Ordered, error) {
	if r.holds != nil {
		<-r.holds
	}
	return nil, nil //nolint:nilnil // none
}

func (*term) PolicyRuns(context.Context) ([]store.PolicyRun, error) { return nil, nil }

func (*term) Challenge(awareness.Challenge) bool { return true }

func (*term) Behind() time.Duration { return 0 }

func (*term) Direct(fault.NodeID) bool { return true }

func (r *term) Order(node fault.NodeID, _ string, body func(string) *lofamov1.Message, _ []fault.NodeID) {
	if o := body("").GetMaskOrder(); o != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.sent = append(r.sent, fmt.Sprintf("%s %s", node, chanmask.Mask(o.GetMask())))
	}
}

// ordered returns the mask orders since the last call, each once, after the time for several checks.
func (r *term) ordered() string {
	time.Sleep(3 * time.Second) // of the bubble's clock
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(r.sent)
	out := strings.Join(slices.Compact(r.sent), ", ")
	r.sent = nil
	return out
}

// newTerm returns a replica that begins to lead three nodes, and has no copy of the masks. The store masks the link
// between the first two.
func newTerm(t *testing.T, holds chan struct{}) *term {
	t.Helper()
	dims := grid.Dims{X: 3, Y: 1, Z: 1}
	var nodes []topology.Node
	for r := range dims.Nodes() {
		nodes = append(nodes, topology.Node{ID: fault.DefaultNodeID(dims.At(r)), Coord: dims.At(r)})
	}
	seed := topology.New(dims, nodes, nil, 0)
	logger, m := slog.New(slog.DiscardHandler), metrics.New(prometheus.NewRegistry())
	r := &term{
		Store: memstore.New(0), loads: make(chan struct{}), holds: holds, ended: make(chan error, 1),
		masks: []*lofamov1.LinkMask{{Node: "n0-0-0", Coord: "0,0,0", Direction: "X+"}},
		Supervisor: &Supervisor{site: site{
			cfg: config.Supervisor{ID: "s1"}, names: view.NamesOf(seed), seed: seed, marks: view.NewMarks(), masks: view.NewMasks(), logger: logger,
		}, store: storePart{observer: store.NewObserver()}},
	}
	r.engine.Engine = engine.New(engine.Config{
		Awareness: awareness.Config{
			Dims: dims, IDs: seed.IDs(), Supervisor: "s1", ChallengeNode: time.Hour, ChallengeHalf: time.Hour, ChallengeSingle: time.Hour,
			DigestPeriod: time.Hour, DigestMisses: 4, HalfBound: time.Hour, Nonce: func() [16]byte { return [16]byte{1} },
		},
		Meta: store.Meta{Cluster: "test", Dims: dims.String()}, Challenger: r, Names: r.names, Seed: seed, Marks: r.marks,
		Masks: r.Supervisor.masks, Metrics: m, Logger: logger,
	}, r)
	r.orders = orders.New(orders.Config{
		Names: r.names, Marks: r.marks, Masks: r.Supervisor.masks, Map: func() (view.Map, bool) { return view.Map{}, false }, Store: r,
		Sender: r, Own: func() map[netip.AddrPort]string { return nil }, Metrics: m, Logger: logger,
	})
	r.ingest.diagnoses = orders.NewDiagnoses(orders.DiagnosisConfig{
		Self: "s1", Names: r.names, Sender: r, Reports: r, Metrics: m, Logger: logger, Places: r.places,
	})
	ctx, cancel := context.WithCancel(t.Context())
	fence := r.Campaign()
	go func() { r.ended <- r.lead(ctx, fence) }()
	t.Cleanup(cancel)
	return r
}

// TestNoOrderBeforeTermHasLoaded: the leader's copy of the masks is late. It sends no order until its term has loaded
// the stored masks: an order by the copy would open a masked link.
func TestNoOrderBeforeTermHasLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTerm(t, nil)
		synctest.Wait()
		answers := r.answers()
		masks, _ := answers.Of(servicenet.OrderMask)
		masks.Take(&lofamov1.Message{Body: &lofamov1.Message_MaskStatus{MaskStatus: &lofamov1.MaskStatus{
			Node: "n0-0-0", Epoch: 3, Number: 9, Ordered: 0x3e,
		}}})
		if got := r.ordered(); got != "" {
			t.Errorf("ordered %s before the term has loaded", got)
		}
		close(r.loads)
		want := fmt.Sprintf("n0-0-0 %s, n1-0-0 %s", chanmask.Mask(0x3e), chanmask.Mask(0x3d))
		if got := r.ordered(); got != want {
			t.Errorf("ordered %s: want %s", got, want)
		}
	})
}

// TestNoOrderAfterTerm: the store deposes a leader whose session is alive. It sends no further order, although other
// work of the term takes long to end.
func TestNoOrderAfterTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTerm(t, make(chan struct{}))
		close(r.loads)
		if got := r.ordered(); got == "" {
			t.Error("no orders in the term")
		}
		r.Campaign()
		if _, err := r.engine.Write(t.Context(), store.Write{Deletes: []string{store.OrderedKey}}); err == nil {
			t.Error("a write of the deposed leader succeeds")
		}
		synctest.Wait()
		if r.engine.Leading() || r.ingest.diagnoses.Leading() {
			t.Error("the term goes on")
		}
		r.mu.Lock()
		r.sent = nil
		r.mu.Unlock()
		r.Supervisor.masks.Replace(nil, 1<<40)
		if got := r.ordered(); got != "" {
			t.Errorf("ordered %s after the term", got)
		}
		close(r.holds)
		if err := <-r.ended; !errors.Is(err, store.ErrNotLeader) {
			t.Errorf("the term ends with %v: want %v", err, store.ErrNotLeader)
		}
	})
}

// TestTermEndsWithoutElectionKey: a term that writes nothing ends when a quorum confirms that its key is gone. It does not end merely
// because the observer has seen no leader yet, or because no quorum answers.
func TestTermEndsWithoutElectionKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTerm(t, nil)
		close(r.loads)
		leads := func() bool {
			time.Sleep(5 * probePeriod) // of the bubble's clock
			synctest.Wait()
			return r.engine.Leading()
		}
		if !leads() {
			t.Fatal("the term ends while it has its key")
		}
		quorum := func(is bool) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.noQuorum = !is
		}
		quorum(false)
		r.Campaign()
		if !leads() {
			t.Error("the term ends without a quorum")
		}
		quorum(true)
		if leads() {
			t.Error("the term goes on without its key")
		}
		if err := <-r.ended; !errors.Is(err, store.ErrNotLeader) {
			t.Errorf("the term ends with %v: want %v", err, store.ErrNotLeader)
		}
	})
}
