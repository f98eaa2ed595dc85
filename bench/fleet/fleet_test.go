package fleet

import (
	"context"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestEmulatedNodesLookRealToSupervisors: emulated nodes are NORMAL to real supervisors, their changes are COMMITTED, and one that
// falls silent to its neighbours is FAILED while none of the others is.
func TestEmulatedNodesLookRealToSupervisors(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	zero := config.Duration(0)
	f, err := Start(ctx, Config{Dims: grid.Dims{X: 3, Y: 3, Z: 3}, Replicas: 1, Preset: config.PresetDefault,
		Periods: &config.PeriodsOverride{LinkHoldOff: &zero}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	steady := f.Steady(ctx)
	defer func() {
		if _, err := steady.Stop(); err != nil {
			t.Error(err)
		}
	}()
	if err := f.Normal(ctx); err != nil {
		t.Fatal(err)
	}
	var batches []*Batch
	for _, n := range f.Nodes()[:4] {
		b, err := n.Changes(64)
		if err != nil {
			t.Fatal(err)
		}
		batches = append(batches, b)
	}
	done := 0
	if err := f.Deliver(ctx, batches, 2, func(*Batch, time.Duration) { done++ }); err != nil || done != len(batches) {
		t.Fatalf("%d batches COMMITTED: %v", done, err)
	}
	victim := 13
	noDigestAccusesBefore(ctx, t, f, map[int]bool{victim: true})
	deaths, err := f.Die(ctx, []int{victim}, false)
	if err != nil {
		t.Fatal(err)
	}
	if len(deaths.Known) != 1 || deaths.Known[0] <= 0 {
		t.Errorf("known after %v", deaths.Known)
	}
	r, err := f.Client().ListNodes(ctx, &lofamov1.ListNodesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for rank, n := range r.GetNodes() {
		if failed := n.GetState() == lofamov1.State_FAILED; failed != (rank == victim) {
			t.Errorf("%s is %s", n.GetId(), n.GetState())
		}
	}
	if c := f.Wire(); c.Answered == 0 || c.Unreadable > 0 {
		t.Errorf("%+v", c)
	}
}

// noDigestAccusesBefore checks that no digest accuses the nodes that are about to die, after the accusations are signed.
func noDigestAccusesBefore(ctx context.Context, t *testing.T, f *Fleet, victims map[int]bool) {
	t.Helper()
	accusers, _, err := f.accusers(victims)
	if err != nil {
		t.Fatal(err)
	}
	others := uint64(len(f.Nodes()) - len(accusers))
	for end := f.Wire().Answered + 2*others; f.Wire().Answered < end; {
		select {
		case <-ctx.Done():
			t.Fatal("no digests:", ctx.Err())
		case <-time.After(step):
		}
	}
	r, err := f.Client().ListNodes(ctx, &lofamov1.ListNodesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range r.GetNodes() {
		if n.GetState() != lofamov1.State_NORMAL {
			t.Errorf("%s is %s before anything has died", n.GetId(), n.GetState())
		}
	}
}
