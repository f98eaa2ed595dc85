package orders

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
)

// busyKind is a kind that always has a reason to work again at once.
type busyKind struct {
	takes          time.Duration // the work
	err            error         // of the work
	works, answers int
}

func (*busyKind) begin(context.Context, uint64) error { return nil }

func (k *busyKind) heard(time.Time, *lofamov1.Message) { k.answers++ }

func (k *busyKind) work(context.Context) (time.Time, error) {
	k.works++
	time.Sleep(k.takes) // of the bubble's clock
	return time.Now(), k.err
}

func (*busyKind) changed() <-chan struct{} { return nil }

func (*busyKind) end() {}

// TestLeaderPausesAfterExpensiveWork: any node may send answers without end, and each is a reason to work. The leader's
// share of time for a kind stays bounded all the same, and no answer waits for the work. After an error the leader tries
// again at the next check.
func TestLeaderPausesAfterExpensiveWork(t *testing.T) {
	const lasts = 10 * time.Minute
	for name, tc := range map[string]struct {
		takes  time.Duration
		cheap  time.Duration // as a part of that: it waits for the store, or sends orders
		orders bool          // a kind that plans nothing
		err    error
		period time.Duration // from one work to the next
	}{
		"expensive":      {takes: 100 * time.Millisecond, period: 2100 * time.Millisecond},
		"very expensive": {takes: 20 * time.Second, period: 20*time.Second + longestPause},
		"slow store":     {takes: 2 * time.Second, cheap: 1990 * time.Millisecond, period: 4190 * time.Millisecond},
		"orders alone":   {takes: 100 * time.Millisecond, orders: true, period: 100 * time.Millisecond},
		"failing":        {takes: 5 * time.Second, err: errors.New("the store does not answer"), period: 5*time.Second + checkEvery},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := &busyKind{takes: tc.takes, err: tc.err}
				w := &worker{name: "busy", kind: k, plans: !tc.orders, cfg: &Config{Metrics: metrics.New(prometheus.NewRegistry()),
					Logger: slog.New(slog.DiscardHandler)}}
				if tc.cheap > 0 {
					w.cheap = func() time.Duration { return tc.cheap }
				}
				ctx, end := context.WithTimeout(t.Context(), lasts)
				defer end()
				var sender sync.WaitGroup
				defer sender.Wait()
				sender.Go(func() {
					for ctx.Err() == nil {
						w.take(&lofamov1.Message{})
						time.Sleep(10 * time.Millisecond)
					}
				})
				w.lead(ctx, 1, func(context.Context, uint64) error { return nil })
				if want := int(lasts / tc.period); k.works > want+1 || k.works < want*9/10 {
					t.Errorf("worked %d times within %v: want about %d", k.works, lasts, want)
				}
				if sent := int(lasts / (10 * time.Millisecond)); k.answers < sent*9/10 && tc.takes < time.Second {
					t.Errorf("%d of %d answers processed", k.answers, sent)
				}
			})
		})
	}
}
