package local_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// half is a host half whose knowledge a test sets.
type half struct {
	mu       sync.Mutex
	states   map[fault.NodeID]lofamov1.State
	revision uint64
	stale    bool
	watched  []fault.NodeID
	changed  chan struct{} // of watched

	node  fault.NodeID
	torus *torus // nil: there is no DNP half
}

func (h *half) Known(ids []fault.NodeID) hostcore.Known {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(ids) == 0 {
		ids = []fault.NodeID{"n0", "n1"}
	}
	k := hostcore.Known{Revision: h.revision, Heard: time.Now(), Pending: h.revision < 2, Stale: h.stale,
		Confirmed: time.Now().Add(-time.Minute)}
	for _, id := range ids {
		n := &lofamov1.NodeView{Id: string(id), State: max(h.states[id], lofamov1.State_UNKNOWN)}
		if n.State == lofamov1.State_SICK {
			n.Faults = []*lofamov1.ComponentFault{{Component: uint32(fault.ComponentMemory), State: lofamov1.State_SICK,
				Cause: lofamov1.Cause_MEMORY}}
		}
		k.Nodes = append(k.Nodes, n)
	}
	return k
}

func (h *half) Watch(ids []fault.NodeID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watched = ids
	close(h.changed)
	h.changed = make(chan struct{})
}

// awaitWatched waits until so many nodes are watched.
func (h *half) awaitWatched(t *testing.T, n int) {
	t.Helper()
	h.awaitWatch(t, func(ids []fault.NodeID) bool { return len(ids) == n })
}

// awaitWatch waits until the watched nodes are as wanted.
func (h *half) awaitWatch(t *testing.T, want func(ids []fault.NodeID) bool) {
	t.Helper()
	for deadline := time.After(time.Minute); ; {
		h.mu.Lock()
		have, changed := h.watched, h.changed
		h.mu.Unlock()
		if want(have) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("%d nodes are watched, among them %v", len(have), have[:min(len(have), 3)])
		}
	}
}

func newHalf(node fault.NodeID) *half {
	return &half{node: node, states: map[fault.NodeID]lofamov1.State{"n0": lofamov1.State_NORMAL}, revision: 1, changed: make(chan struct{})}
}

func serve(t *testing.T) (*half, *local.Server, string) {
	t.Helper()
	h := newHalf("n0")
	s, path := serveHalf(t, h, t.TempDir(), 0o600, config.DefaultAgent().Jobs)
	return h, s, path
}

// serveHalf serves jobs at a socket in a directory until the test ends. The group of the socket is 4242.
func serveHalf(t *testing.T, h *half, dir string, mode os.FileMode, c config.JobsConfig) (*local.Server, string) {
	t.Helper()
	p, err := local.NewPolicy(c, uint32(os.Geteuid()), 4242)
	if err != nil {
		t.Fatal(err)
	}
	s, path := local.New(h, p), filepath.Join(dir, "local.sock")
	stop := listen(t, s, path, mode)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	t.Cleanup(func() {
		stop()
		cancel()
		wg.Wait()
	})
	return s, path
}

// listen serves at a path until stop is called.
func listen(t *testing.T, s *local.Server, path string, mode os.FileMode) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err == nil {
		err = os.Chmod(path, mode)
	}
	if err != nil {
		t.Fatal(err)
	}
	srv := s.GRPC()
	done := make(chan error, 1)
	go func() { done <- srv.Serve(local.Listen(l, slog.New(slog.DiscardHandler))) }()
	return sync.OnceFunc(func() {
		srv.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestWatchSendsStateThenChanges(t *testing.T) {
	h, s, path := serve(t)
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	got := make(chan *lofamov1.WatchFaultsResponse, 16)
	done := make(chan error, 1)
	go func() {
		done <- local.Watch(ctx, path, []string{"n7", "n0", "n7"}, func(r *lofamov1.WatchFaultsResponse) error {
			got <- r
			return nil
		})
	}()
	first := <-got
	if len(first.GetNodes()) != 2 || first.GetNodes()[1].GetState() != lofamov1.State_UNKNOWN || first.GetSupervisorsAge() == nil ||
		first.GetRevision() != 1 || !first.GetPending() || first.GetStale() || first.GetStaleAge() != nil {
		t.Errorf("first: %v", first)
	}
	h.awaitWatched(t, 2)
	h.mu.Lock()
	h.states["n7"], h.revision = lofamov1.State_SICK, 2
	h.mu.Unlock()
	s.Changed([]fault.NodeID{"n3", "n7"})
	next := <-got
	if len(next.GetNodes()) != 1 || next.GetNodes()[0].GetId() != "n7" || next.GetNodes()[0].GetFaults()[0].GetComponent() != "memory" {
		t.Errorf("next: %v", next)
	}
	h.mu.Lock()
	h.stale = true
	h.mu.Unlock()
	s.Aged()
	if again := <-got; len(again.GetNodes()) != 2 || !again.GetStale() || again.GetStaleAge().AsDuration() < time.Minute {
		t.Errorf("stale: %v", again)
	}
	s.Changed([]fault.NodeID{"n3"}) // a node without watchers
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	h.awaitWatched(t, 0)
	if len(got) > 0 {
		t.Errorf("told of another's node: %v", <-got)
	}
}

// A watch without nodes gets the node and its neighbours, and no nodes that another caller watches.
func TestWatchOfNeighboursSkipsNodesThatOthersWatch(t *testing.T) {
	h, s, path := serve(t)
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	watch := func(nodes ...string) <-chan *lofamov1.WatchFaultsResponse {
		got := make(chan *lofamov1.WatchFaultsResponse, 16)
		wg.Go(func() {
			_ = local.Watch(ctx, path, nodes, func(r *lofamov1.WatchFaultsResponse) error {
				got <- r
				return nil
			})
		})
		return got
	}
	near, other := watch(), watch("n7")
	if first := <-near; len(first.GetNodes()) != 2 {
		t.Errorf("first: %v", first)
	}
	<-other
	h.mu.Lock()
	h.states["n7"], h.states["n1"] = lofamov1.State_SICK, lofamov1.State_FAILED
	h.mu.Unlock()
	s.Changed([]fault.NodeID{"n7"})
	if next := <-other; len(next.GetNodes()) != 1 || next.GetNodes()[0].GetId() != "n7" {
		t.Errorf("the watcher of n7: %v", next)
	}
	s.Changed([]fault.NodeID{"n1", "n7"})
	next := <-near
	if n := next.GetNodes(); len(n) != 1 || n[0].GetId() != "n1" || n[0].GetState() != lofamov1.State_FAILED {
		t.Errorf("next: %v: want n1 alone", next)
	}
	s.Aged()
	if all := <-near; len(all.GetNodes()) != 2 {
		t.Errorf("all: %v", all)
	}
}

func TestInvalidFaultWatchIsRefused(t *testing.T) {
	h, _, path := serve(t)
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	watch := func(nodes ...string) codes.Code {
		err := local.Watch(ctx, path, nodes, func(*lofamov1.WatchFaultsResponse) error { return context.Canceled })
		for errors.Unwrap(err) != nil {
			err = errors.Unwrap(err)
		}
		return status.Code(err)
	}
	if c := watch("N0 "); c != codes.InvalidArgument {
		t.Errorf("bad id: %s", c)
	}
	var many []string
	for i := range servicenet.MaxInterest + 1 {
		many = append(many, fmt.Sprintf("n%d", i))
	}
	if c := watch(many...); c != codes.ResourceExhausted {
		t.Errorf("too many nodes: %s", c)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	most := 64
	if os.Geteuid() != 0 {
		most /= 2 // of one user
	}
	for i := range most {
		opened := make(chan struct{})
		wg.Go(func() {
			_ = local.Watch(ctx, path, many[i:i+1], func(*lofamov1.WatchFaultsResponse) error {
				close(opened)
				return nil
			})
		})
		<-opened
	}
	h.awaitWatched(t, most)
	if c := watch(); c != codes.ResourceExhausted {
		t.Errorf("one more watcher: %s", c)
	}
	if !slices.Contains(h.watched, fault.NodeID(many[most-1])) {
		t.Errorf("watched %v", h.watched)
	}
	if err := local.Watch(ctx, filepath.Join(t.TempDir(), "local.sock"), nil, nil); !errors.Is(err, local.ErrNotRunning) {
		t.Errorf("nobody listens: %v", err)
	}
}
