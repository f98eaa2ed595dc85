package api

import (
	"context"
	"math"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limits for policy checks, which any subject may request: a check compiles up to 200 conditions and takes half a
// second of a core.
const (
	checkShare = 0.1                     // long-term share of a core per subject
	checkBurst = 2 * time.Second         // core time of a burst
	maxChecked = 1024                    // remembered subjects
	checkMilli = int64(time.Millisecond) // the unit of the budgets
)

// checks limits policy checks: one at a time in total, one request in progress per subject, and a share of a core per
// subject.
type checks struct {
	turn *semaphore.Weighted // of 1

	mu       sync.Mutex
	subjects map[string]*checker
}

type checker struct {
	busy   bool
	budget *rate.Limiter // of milliseconds
}

func newChecks() *checks {
	return &checks{turn: semaphore.NewWeighted(1), subjects: map[string]*checker{}}
}

// begin waits for the subject's turn; end releases it and charges the time used.
func (c *checks) begin(ctx context.Context, subject string) (end func(), err error) {
	is, err := c.enter(subject, time.Now())
	if err != nil {
		return nil, err
	}
	if err := c.turn.Acquire(ctx, 1); err != nil {
		c.leave(is, 0)
		return nil, status.FromContextError(err).Err()
	}
	began := time.Now()
	return func() {
		c.turn.Release(1)
		c.leave(is, time.Since(began))
	}, nil
}

func (c *checks) enter(subject string, now time.Time) (*checker, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	is := c.subjects[subject]
	if is == nil {
		if len(c.subjects) >= maxChecked {
			c.forget(now)
		}
		if len(c.subjects) >= maxChecked {
			return nil, status.Errorf(codes.ResourceExhausted, "policies: %d subjects have them checked: try again later", maxChecked)
		}
		is = &checker{budget: rate.NewLimiter(rate.Limit(checkShare*1000), int(checkBurst.Milliseconds()))}
		c.subjects[subject] = is
	}
	if is.busy {
		return nil, status.Errorf(codes.ResourceExhausted, "policies: a check of %s is under way: want one at a time", subject)
	}
	if left := is.budget.TokensAt(now); left < 1 {
		wait := time.Duration(math.Ceil((1-left)/(checkShare*1000))) * time.Second
		return nil, status.Errorf(codes.ResourceExhausted, "policies: %s has had checks for more than %v: try again in %v", subject,
			checkBurst, wait)
	}
	is.busy = true
	return is, nil
}

func (c *checks) leave(is *checker, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	is.busy = false
	now, burst := time.Now(), is.budget.Burst()
	for left := int((took.Nanoseconds() + checkMilli - 1) / checkMilli); left > 0; left -= burst { // the budget may be overdrawn
		is.budget.ReserveN(now, min(left, burst))
	}
}

// forget drops the subjects with a full budget.
func (c *checks) forget(now time.Time) {
	for name, is := range c.subjects {
		if !is.busy && is.budget.TokensAt(now) >= float64(is.budget.Burst()) {
			delete(c.subjects, name)
		}
	}
}
