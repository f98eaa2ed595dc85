package e2e

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/testing/lab"
	"github.com/lofamo/lofamo/pkg/jobs"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// row is a job with a process at each node, that come to barriers one after the other.
type row struct {
	t       trial
	ids     []string
	members map[string]*jobs.Member
	asks    *jobs.Member // another process at the first node, which only asks for missing members

	mu   sync.Mutex
	came map[uint64]int // arrivals at each generation, counted before the calls
}

func (t trial) row(job string) *row {
	t.Helper()
	r := &row{t: t, ids: slices.Sorted(slices.Values(t.nodeIDs())), members: map[string]*jobs.Member{}, came: map[uint64]int{}}
	for i, n := range t.Cluster.Info().Nodes {
		c, err := jobs.Dial(filepath.Join(n.StateDir, "local.sock"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		r.members[string(n.ID)] = c.Job(jobs.Job{Name: job, Members: r.ids, Participant: "works"})
		if i == 0 {
			r.asks = c.Job(jobs.Job{Name: job, Members: r.ids, Participant: "asks"})
		}
	}
	return r
}

// comes has processes arrive at a barrier, and sends their results to the channel. It reports an error if one passes
// before all have arrived.
func (r *row) comes(ctx context.Context, generation uint64, nodes ...string) <-chan error {
	r.mu.Lock()
	r.came[generation] += len(nodes)
	r.mu.Unlock()
	ends := make(chan error, len(nodes))
	for _, node := range nodes {
		go func() {
			err := r.members[node].BarrierAt(ctx, "row", generation)
			r.mu.Lock()
			defer r.mu.Unlock()
			if came := r.came[generation]; err == nil && came != len(r.ids) {
				r.t.Errorf("%s is let through barrier %d when %d of %d had come", node, generation, came, len(r.ids))
			}
			ends <- err
		}()
	}
	return ends
}

// misses waits until the first node, which must have come, knows that these alone are missing.
func (r *row) misses(generation uint64, want ...string) {
	r.t.Helper()
	for end := time.Now().Add(patience); ; {
		ctx, cancel := context.WithTimeout(r.t.Context(), 300*time.Millisecond)
		err := r.asks.BarrierAt(ctx, "row", generation)
		cancel()
		var missing *jobs.MissingError
		if errors.As(err, &missing) && slices.Equal(missing.Nodes, want) {
			return
		}
		if time.Now().After(end) {
			r.t.Fatalf("barrier %d: %v: want %v missing", generation, err, want)
		}
	}
}

// through waits until n that have come are let through.
func (r *row) through(generation uint64, n int, ends <-chan error) {
	r.t.Helper()
	for range n {
		select {
		case err := <-ends:
			if err != nil {
				r.t.Errorf("barrier %d: %v", generation, err)
			}
		case <-time.After(patience):
			r.t.Fatalf("barrier %d: somebody still waits", generation)
		}
	}
}

// barriers has all nodes pass barriers. In the middle of each, when half of the nodes have arrived and know of one
// another, a link is cut. All pass each time, once all have arrived and not before. Then a node is killed: a barrier
// where it had arrived still completes, and elsewhere all others get an error.
func barriers(t *testing.T, l *lab.Lab) {
	try(t, l, "barriers in a row, links cut in the middle, and a node killed", func(t trial) {
		r := t.row("row")
		ctx, cancel := context.WithTimeout(t.Context(), settling)
		defer cancel()
		early, late := r.ids[:4], r.ids[4:]
		for i, cut := range []cluster.Fault{
			{Kind: cluster.CutLink, Dir: grid.ZPlus}, {Kind: cluster.CutLink, Dir: grid.YMinus, OneWay: true},
			{Kind: cluster.CutLink, Dir: grid.XPlus},
		} {
			generation := uint64(i + 1)
			first := r.comes(ctx, generation, early...)
			r.misses(generation, late...)
			for _, node := range []string{early[0], early[i+1]} {
				t.inject(node, cut)
			}
			r.misses(generation, late...)
			second := r.comes(ctx, generation, late...)
			r.through(generation, len(early), first)
			r.through(generation, len(late), second)
		}

		victim := r.ids[7]
		dies, kill := context.WithCancel(ctx) // its processes die with it
		first := r.comes(ctx, 4, r.ids[:6]...)
		dead := r.comes(dies, 4, victim)
		r.misses(4, r.ids[6])
		waiting := r.comes(ctx, 5, r.ids[0]) // ahead of the others
		t.inject(victim, simple(cluster.KillNode))
		kill()
		if err := <-dead; err == nil {
			t.Errorf("who was killed is let through")
		}
		second := r.comes(ctx, 4, r.ids[6])
		r.through(4, 6, first)
		r.through(4, 1, second)

		rest := r.comes(ctx, 5, r.ids[1:7]...)
		for i := range 7 {
			ends := rest
			if i == 6 {
				ends = waiting
			}
			var err error
			select {
			case err = <-ends:
			case <-time.After(patience):
				t.Fatal("somebody waits for a dead node")
			}
			var gone *jobs.GoneError
			if !errors.As(err, &gone) || !slices.Equal(gone.Nodes, []string{victim}) {
				t.Errorf("without %s: %v", victim, err)
			}
		}
		t.becomes(victim, "node", failed)
	})
}
