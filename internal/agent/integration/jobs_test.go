package integration

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/jobs"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/config"
)

// unhurried is for nets of many halves: sixteen in one process, with the race detector, miss one another's heartbeats
// at the default preset as soon as somebody else is busy on the machine.
func unhurried(cfg *config.Agent) {
	linkMisses, readMisses := 12, 6
	cfg.Preset, cfg.Periods = config.PresetRelaxed, &config.PeriodsOverride{LinkMisses: &linkMisses, ReadMisses: &readMisses}
}

// noService gives the nodes a supervisor address without a listener: the test needs the torus alone.
func noService(cfg *config.Agent) {
	unhurried(cfg)
	for i := range cfg.Supervisors {
		cfg.Supervisors[i].Report = "127.0.0.1:9"
	}
}

func (n *testNet) job(c grid.Coord, members ...string) *jobs.Member {
	n.t.Helper()
	client, err := jobs.Dial(n.cfgs[c].JobsSocket())
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = client.Close() })
	return client.Job(jobs.Job{Name: "train", Members: members})
}

// heardAt watches the job on a node, and returns once the watch has begun.
func (n *testNet) heardAt(ctx context.Context, c grid.Coord) <-chan *jobs.Eureka {
	n.t.Helper()
	m, out, begun, done := n.job(c), make(chan *jobs.Eureka, 256), make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(done)
		_ = m.Watch(ctx, func(h jobs.Heard) error {
			if h.Eureka != nil {
				out <- h.Eureka
			} else if !h.Again {
				close(begun)
			}
			return nil
		})
	}()
	n.t.Cleanup(func() { cancel(); <-done })
	select {
	case <-begun:
	case <-ctx.Done():
		n.t.Fatalf("no watch begins on %s", c)
	}
	return out
}

func (n *testNet) ids() (out []string) {
	for rank := range n.dims.Nodes() {
		out = append(out, string(fault.DefaultNodeID(n.dims.At(rank))))
	}
	return out
}

// togetherAt has all the members come to a barrier, and returns when they have: then all links that are needed are there.
func (n *testNet) togetherAt(ctx context.Context, name string) {
	n.t.Helper()
	done := make(chan error, n.dims.Nodes())
	for rank := range n.dims.Nodes() {
		m := n.job(n.dims.At(rank), n.ids()...)
		go func() { done <- m.Barrier(ctx, name) }()
	}
	for range n.dims.Nodes() {
		if err := <-done; err != nil {
			n.t.Fatalf("barrier %s: %v", name, err)
		}
	}
}

// A eureka of any node reaches all nodes once, even without a service network.
func TestEurekaReachesAll(t *testing.T) {
	n := newTestNet(t, grid.Dims{X: 2, Y: 2, Z: 2}, noService)
	n.startAll()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	n.togetherAt(ctx, "begin")
	var all []<-chan *jobs.Eureka
	for rank := range n.dims.Nodes() {
		all = append(all, n.heardAt(ctx, n.dims.At(rank)))
	}
	for i, id := range n.ids() {
		if err := n.job(n.dims.At(i)).Raise(ctx, "found", []byte(id)); err != nil {
			t.Fatal(err)
		}
	}
	for i, from := range all {
		var got []string
		for range n.ids() {
			select {
			case e := <-from:
				if got = append(got, e.Node); e.Node != string(e.Body) || e.Topic != "found" {
					t.Errorf("%s hears %+v", n.ids()[i], e)
				}
			case <-ctx.Done():
				t.Fatalf("%s hears only %q", n.ids()[i], got)
			}
		}
		want := n.ids()
		slices.Sort(want)
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s hears %q", n.ids()[i], got)
		}
	}
	n.togetherAt(ctx, "end") // gives duplicates time to arrive
	for i, from := range all {
		if len(from) > 0 {
			t.Errorf("%s hears more: %+v", n.ids()[i], <-from)
		}
	}
}

// A barrier completes when the last member has arrived and not before, though a DNP half on the way dies in the
// middle and another one starts cold.
func TestBarrierOverDeadHalves(t *testing.T) {
	n := newTestNet(t, grid.Dims{X: 2, Y: 2, Z: 2}, noService)
	n.startAll()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	n.togetherAt(ctx, "begin")
	first, last, other := grid.Coord{}, grid.Coord{X: 1, Y: 1, Z: 1}, grid.Coord{X: 1}
	members := []string{"n0-0-0", "n1-1-1", "n1-0-0"}
	done := make(chan error, 3)
	come := func(c grid.Coord) {
		m := n.job(c, members...)
		go func() { done <- m.Barrier(ctx, "step") }()
	}
	come(first)
	come(other)
	n.halt(grid.Coord{Z: 1}, fault.HalfDNP)  // of no member
	n.halt(grid.Coord{Y: 1}, fault.HalfHost) // nor of a member
	n.halt(first, fault.HalfDNP)
	n.start(first, fault.HalfDNP)
	// While one member is missing no call returns, and a call with a deadline names that member.
	m := n.job(first, members...)
	m.Participant = "asks"
	var missing *jobs.MissingError
	var err error
	for err = context.DeadlineExceeded; missing == nil && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil; {
		short, stop := context.WithTimeout(ctx, 5*time.Second)
		err = m.Barrier(short, "step")
		stop()
		_ = errors.As(err, &missing) // stays nil if a busy machine delays the half's answer past the deadline
	}
	if missing == nil || !slices.Contains(missing.Nodes, "n1-1-1") {
		t.Errorf("with one missing: %v", err)
	}
	if len(done) > 0 {
		t.Fatalf("complete with one missing: %v", <-done)
	}
	come(last)
	for range 3 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// A node without a live link reports that instead of success.
func TestEurekaWithoutLiveLinkFails(t *testing.T) {
	n := newTestNet(t, grid.Dims{X: 2, Y: 1, Z: 1}, noService)
	n.start(at0, fault.HalfHost)
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	if err := n.job(at0).Raise(ctx, "x", nil); err == nil || ctx.Err() != nil {
		t.Errorf("without a DNP half: %v", err)
	}
	n.start(at0, fault.HalfDNP)
	if err := n.job(at0).Raise(ctx, "x", nil); err == nil || ctx.Err() != nil {
		t.Errorf("without a neighbour: %v", err)
	}
}
