package responder

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// An executor is told that it is stale where the store has another leader.
func TestStale(t *testing.T) {
	l := newLab(t, grid.Dims{X: 2, Y: 1, Z: 1}, reseat)
	r := l.start("", 0)
	defer l.end(r)
	var fenced error
	r.cfg.Executors = map[response.Kind]executor.Executor{response.Command: answers(func(ctx context.Context, _ executor.Job) executor.Result {
		fenced = executor.Fenced(ctx)
		return executor.Unchanged("%v", fenced)
	})}
	attempt := func(fence store.Fence) error {
		t.Helper()
		j := executor.Job{Effect: response.Effect{Kind: response.Command}}
		if _, begun := r.runner.attempt(t.Context(), &term{ctx: t.Context(), fence: fence}, j, time.Now(), nil); !begun {
			t.Fatal("not begun")
		}
		return fenced
	}
	if err := attempt(r.fence); err != nil {
		t.Error(err)
	}
	fallen := r.fence
	fallen.Rev--
	if err := attempt(fallen); !errors.Is(err, executor.ErrStale) || !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("%v: want %v", err, executor.ErrStale)
	}
}
