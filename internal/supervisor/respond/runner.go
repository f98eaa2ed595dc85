package respond

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// runner lets executors carry out attempts, each in its own goroutine: the engine bounds their number. A response has
// one attempt at a time: an attempt that has not ended delays the next.
type runner struct {
	r    *Responder
	sure time.Duration // the constant, except in tests

	mu      sync.Mutex
	newest  map[string]*attempt // by response
	queries map[string]*query   // by response
	active  int                 // number of attempts and queries
	idle    chan struct{}       // closed while none is active; begin replaces it
}

// query is an open query for the outcome of an attempt.
type query struct{ end context.CancelFunc }

type attempt struct {
	response.Attempt

	before *attempt // the one that it waits for; nil: none
	cancel context.CancelCauseFunc
	ended  chan struct{}
}

// running returns the attempt itself while it runs, or else the newest earlier attempt that does. nil: none.
func (a *attempt) running() *attempt {
	for ; a != nil; a = a.before {
		select {
		case <-a.ended:
		default:
			return a
		}
	}
	return nil
}

func newRunner(r *Responder) *runner {
	idle := make(chan struct{})
	close(idle)
	return &runner{r: r, sure: sure, newest: map[string]*attempt{}, queries: map[string]*query{}, idle: idle}
}

// start starts an attempt whose intent is committed. led is a time at which this replica certainly led; zero:
// unknown. It does not block.
func (u *runner) start(t *term, j executor.Job, led time.Time) {
	stopped, stop := context.WithCancelCause(t.ctx)
	ctx, cancel := context.WithTimeout(stopped, j.Timeout)
	a := &attempt{Attempt: j.Attempt, cancel: stop, ended: make(chan struct{})}
	u.mu.Lock()
	a.before = u.newest[j.Response].running()
	u.newest[j.Response] = a
	if q := u.queries[j.Response]; q != nil {
		q.end() // the engine no longer needs the answer
	}
	u.begin()
	u.mu.Unlock()
	u.r.cfg.Metrics.Running.Inc()
	go func() { // wait waits for it
		defer u.end(a)
		defer stop(nil)
		defer cancel()
		began := time.Now()
		res, begun := u.attempt(ctx, t, j, led, a.before)
		u.r.cfg.Metrics.ended(j, res, time.Since(began), begun)
		if begun {
			u.r.at(failpoint.ResponderEnded)
		}
		u.r.queue.put(input{event: resultOf(j, res)})
	}()
}

func resultOf(j executor.Job, res executor.Result) response.Result {
	return response.Result{Attempt: j.Attempt, Outcome: res.Outcome, Detail: res.Detail}
}

// begin counts an attempt or a query. The caller holds mu.
func (u *runner) begin() {
	if u.active++; u.active == 1 {
		u.idle = make(chan struct{})
	}
}

func (u *runner) end(a *attempt) {
	close(a.ended)
	u.r.cfg.Metrics.Running.Dec()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.newest[a.Response] == a {
		delete(u.newest, a.Response)
		if before := a.before.running(); before != nil { // a had to wait for it, so the next one must too
			u.newest[a.Response] = before
		}
	}
	u.ended()
}

// ended counts the end of an attempt or a query. The caller holds mu.
func (u *runner) ended() {
	if u.active--; u.active == 0 {
		close(u.idle)
	}
}

// ask asks the executor for the outcome of a former leader's attempt. It does not block. The next attempt for the response ends
// the query, and so does the end of the term. In both cases the engine gets no result.
func (u *runner) ask(t *term, j executor.Job) {
	open, end := context.WithCancel(t.ctx)
	q := &query{end}
	u.mu.Lock()
	u.queries[j.Response] = q
	u.begin()
	u.mu.Unlock()
	go func() { // wait waits for it
		defer u.answered(j, q)
		ctx, cancel := context.WithTimeout(open, j.Timeout+u.r.cfg.Limits.ResultTime)
		defer cancel()
		res := executor.NotKnown("the executor of %s keeps no record of attempts", j.Kind)
		if x, ok := u.r.cfg.Executors[j.Kind].(executor.Settler); ok {
			res = u.guarded(j, func() executor.Result { return x.Settle(ctx, j) })
		}
		if open.Err() == nil {
			u.r.queue.put(input{event: resultOf(j, res), of: t})
		}
	}()
}

func (u *runner) answered(j executor.Job, q *query) {
	q.end()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.queries[j.Response] == q {
		delete(u.queries, j.Response)
	}
	u.ended()
}

// sure is how long the store's answer proves that this replica leads, counted from before the question: less than the
// lease's time to live. If the replica was paused between the answer and the attempt, it asks again.
const sure = 500 * time.Millisecond

// stale reports whether another replica may lead by now, because led is zero or long ago.
func (u *runner) stale(led time.Time) bool { return led.IsZero() || time.Since(led) > u.sure }

// The bounds of a question to the store, and of the pause before the next one, which doubles each time. Retries must
// not load a slow store further.
const (
	askTime    = 2 * time.Second
	pauseLeast = 500 * time.Millisecond
	pauseMost  = 5 * time.Second
)

// confirm asks the store until the answer is recent enough to act on. Before the context ends, only a definite no
// stops it: a store that is slow, or has lost its own leader for a moment, proves nothing.
func (u *runner) confirm(ctx context.Context, t *term, led time.Time) error {
	for pause := pauseLeast; u.stale(led); pause = min(2*pause, pauseMost) {
		asked := time.Now()
		executor.Asks(ctx)
		one, cancel := context.WithTimeout(ctx, askTime)
		_, err := u.r.cfg.Store.Confirm(one, t.fence)
		cancel()
		switch {
		case errors.Is(err, store.ErrNotLeader):
			return err
		case err == nil && !u.stale(asked):
			return nil
		case err == nil:
			err = fmt.Errorf("the store's answer took %s: want at most %s", time.Since(asked).Round(time.Millisecond), u.sure)
		}
		again := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-ctx.Done():
			again.Stop()
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-again.C:
		}
	}
	return nil
}

// attempt returns the result of the attempt, and whether it called an executor at all.
func (u *runner) attempt(ctx context.Context, t *term, j executor.Job, led time.Time, before *attempt) (res executor.Result, begun bool) {
	x := u.r.cfg.Executors[j.Kind]
	if x == nil {
		return executor.NotBegun(j, "there is no executor for %s: responses.executors of the supervisors' configuration names none",
			j.Kind), false
	}
	for b := before.running(); b != nil; b = before.running() {
		select {
		case <-b.ended:
		case <-ctx.Done():
			return executor.NotBegun(j, "the previous attempt has not ended"), false
		}
	}
	u.r.at(failpoint.ResponderStarting)
	if err := u.confirm(ctx, t, led); err != nil {
		return executor.NotBegun(j, "not begun: cannot confirm that this supervisor still leads: %v", err), false
	}
	if err := u.silent(ctx, j); err != nil {
		return executor.NotBegun(j, "not begun: %v", err), false
	}
	if err := ctx.Err(); err != nil {
		return executor.NotBegun(j, "not begun: %v", context.Cause(ctx)), false
	}
	ctx = executor.WithFence(ctx, func(ctx context.Context) error {
		err := u.confirm(ctx, t, time.Time{})
		if errors.Is(err, store.ErrNotLeader) {
			return fmt.Errorf("%w: %w", executor.ErrStale, err)
		}
		return err
	})
	return u.guarded(j, func() executor.Result { return x.Do(ctx, j) }), true
}

// Limits of the last request for evidence before a step that may end work.
const (
	silentTries = 5
	silentPause = 100 * time.Millisecond
)

// silent returns an error if the accused of a step that may end work has recently signed a report or is NORMAL, or if
// that is unknown: it may have reported since the gates.
func (u *runner) silent(ctx context.Context, j executor.Job) error {
	if j.Undo || j.Kind.Traits().Class < response.Destroy || j.Target.Group != "" {
		return nil
	}
	for range silentTries {
		one, cancel := context.WithTimeout(ctx, lookTime)
		seen, known := u.r.cfg.Awareness.Evidence(one, []response.Target{j.Target})[j.Target]
		cancel()
		ev := seen.Evidence
		if known && seen.State != fault.Normal {
			if time.Now().Before(ev.Restarting) {
				return fmt.Errorf("%s restarts a half, as it announced, until %s", j.Target, ev.Restarting.Format(time.RFC3339))
			}
			if _, alive := ev.Alive(time.Now(), u.r.cfg.Limits.Silence); alive {
				return fmt.Errorf("%s still signs fresh reports: the last %s ago", j.Target, time.Since(ev.Life).Round(time.Millisecond))
			}
			return nil
		}
		again := time.NewTimer(silentPause)
		select {
		case <-ctx.Done():
			again.Stop()
			return context.Cause(ctx)
		case <-again.C:
		}
	}
	return fmt.Errorf("the leader's map no longer has evidence of the fault of %s", j.Target)
}

// guarded calls an executor. A panic ends only this call, and leaves the result unknown.
func (u *runner) guarded(j executor.Job, call func() executor.Result) (res executor.Result) {
	defer func() {
		if p := recover(); p != nil {
			u.r.cfg.Logger.Error("an executor broke down", "kind", j.Kind, "response", j.Response, "panic", fmt.Sprint(p), "stack",
				string(debug.Stack()))
			res = executor.NotKnown("the executor broke down: %v", p)
		}
	}()
	res = call()
	if res.Outcome < response.Succeeded || res.Outcome > response.StaleToken {
		return executor.NotKnown("the executor gave outcome %d, which there is not: %s", res.Outcome, res.Detail)
	}
	return res
}

// stop asks an attempt to end.
func (u *runner) stop(a response.Attempt) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if n := u.newest[a.Response]; n != nil && n.Attempt == a {
		n.cancel(executor.ErrStopped)
	}
}

// stopAll stops waiting for all attempts and queries, because the lead is lost. Remote attempts continue where they can.
func (u *runner) stopAll() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, n := range u.newest {
		n.cancel(nil)
	}
	for _, q := range u.queries {
		q.end()
	}
}

// wait waits until all attempts and queries have ended, at most for the given time; false: some still run.
func (u *runner) wait(most time.Duration) bool {
	u.mu.Lock()
	idle := u.idle
	u.mu.Unlock()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-idle:
		return true
	case <-timer.C:
		return false
	}
}
