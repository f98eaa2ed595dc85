// Package executortest checks the contract of executors, in one suite that every implementation runs. Only tests use
// it. Duties that depend on one target, such as the result after a crash, are left to that executor's own tests.
package executortest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/testing/deadline"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// Harness is an executor with a target that nothing else acts on.
type Harness struct {
	Executor executor.Executor
	// Job is an attempt that succeeds. The suite changes its token and its attempt, and nothing else.
	Job executor.Job
	// Acts returns the number of acts on the target. A target that shows only its state returns 1 after any act.
	Acts func() int
}

// Duty is a set of duties that only some executors fulfil themselves.
type Duty uint8

// The duties.
const (
	// Fenced: the executor checks the fence right before it acts. Otherwise its target refuses lower tokens, if
	// anything can.
	Fenced Duty = 1 << iota
	// Remembers: the executor refuses lower tokens and repeated attempts. Otherwise its caller does.
	Remembers
)

// patience bounds an attempt that the suite has cancelled.
const patience = 30 * time.Second

// Run checks the contract of an executor with these duties. Each test opens its own harness.
func Run(t *testing.T, duties Duty, open func(t *testing.T) Harness) {
	t.Helper()
	for _, c := range []struct {
		name string
		of   Duty // 0: every executor's
		test func(t *testing.T, h Harness)
	}{
		{"attempt acts once", 0, attemptActsOnce},
		{"fence stops the act", Fenced, fenceStopsTheAct},
		{"lower token is refused", Remembers, lowerTokenIsRefused},
		{"repeated attempt acts once", Remembers, repeatedAttemptActsOnce},
		{"cancelled attempt ends", 0, cancelledAttemptEnds},
	} {
		if duties&c.of == c.of {
			t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
		}
	}
}

// do makes an attempt as the supervisor's runner does.
func (h Harness) do(ctx context.Context, t *testing.T, want response.Outcome, change func(*response.Effect)) executor.Result {
	t.Helper()
	j := h.Job
	if change != nil {
		change(&j.Effect)
	}
	ctx, cancel := context.WithTimeout(ctx, j.Timeout)
	defer cancel()
	r := h.Executor.Do(ctx, j)
	if want != 0 && r.Outcome != want {
		t.Errorf("token %d, attempt %d: %+v: want outcome %d", j.Token, j.Attempt.Attempt, r, want)
	}
	if len(r.Detail) > executor.MaxDetail || !fault.IsText(r.Detail) {
		t.Errorf("detail of %d bytes: %q: want at most %d, without control characters", len(r.Detail), r.Detail, executor.MaxDetail)
	}
	return r
}

func (h Harness) wantActs(t *testing.T, want int) {
	t.Helper()
	if n := h.Acts(); n != want {
		t.Errorf("%d acts, want %d", n, want)
	}
}

func attemptActsOnce(t *testing.T, h Harness) {
	h.wantActs(t, 0)
	h.do(t.Context(), t, response.Succeeded, nil)
	h.wantActs(t, 1)
}

// fenceStopsTheAct: a higher token makes the attempt stale, and a check without an answer leaves the target unchanged.
func fenceStopsTheAct(t *testing.T, h Harness) {
	for _, c := range []struct {
		err  error
		want response.Outcome
	}{
		{fmt.Errorf("%w: token %d", executor.ErrStale, h.Job.Token+1), response.StaleToken},
		{errors.New("no quorum"), response.Unchanged},
	} {
		// An executor may repeat an unanswered check until its time is up.
		var checks atomic.Int32
		ctx := executor.WithFence(deadline.When(t, func() bool { return checks.Load() > 1 }), func(context.Context) error {
			checks.Add(1)
			return c.err
		})
		if r := h.do(ctx, t, c.want, nil); !strings.Contains(r.Detail, c.err.Error()) {
			t.Errorf("detail %q: want %q in it", r.Detail, c.err)
		}
		h.wantActs(t, 0)
		h.Job.Attempt.Attempt++
	}
	h.do(t.Context(), t, response.Succeeded, nil)
	h.wantActs(t, 1)
}

func lowerTokenIsRefused(t *testing.T, h Harness) {
	h.do(t.Context(), t, response.Succeeded, nil)
	h.do(t.Context(), t, response.StaleToken, func(e *response.Effect) { e.Token, e.Attempt.Attempt = e.Token-1, e.Attempt.Attempt+1 })
	h.wantActs(t, 1)
}

// repeatedAttemptActsOnce: the answer to a copy of an attempt is that attempt's outcome, or that it is not known.
func repeatedAttemptActsOnce(t *testing.T, h Harness) {
	first := h.do(t.Context(), t, response.Succeeded, nil)
	if r := h.do(t.Context(), t, 0, nil); r.Outcome != first.Outcome && r.Outcome != response.NotKnown {
		t.Errorf("the same attempt again: %+v: want outcome %d or %d", r, first.Outcome, response.NotKnown)
	}
	h.wantActs(t, 1)
}

// cancelledAttemptEnds: an attempt that is cancelled before it begins still ends, and reports a true outcome.
func cancelledAttemptEnds(t *testing.T, h Harness) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(executor.ErrStopped)
	began := time.Now()
	r := h.do(ctx, t, 0, nil)
	if took := time.Since(began); took > patience {
		t.Errorf("the attempt ended after %s, want at most %s", took, patience)
	}
	switch r.Outcome {
	case response.Unchanged:
		h.wantActs(t, 0)
	case response.Succeeded:
		h.wantActs(t, 1)
	case response.NotKnown:
	default:
		t.Errorf("%+v: want outcome %d, %d or %d", r, response.Unchanged, response.NotKnown, response.Succeeded)
	}
}
