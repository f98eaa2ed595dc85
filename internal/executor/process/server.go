package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/pkg/response"
)

// server carries out attempts, each once.
//
// It admits an attempt under mu, makes it durable, and runs it in a goroutine that belongs to the server, not to the
// call: a broken call ends nothing. An attempt at a step begins only when the one before at the same step has ended,
// under any leader.
type server struct {
	lofamov1.UnimplementedExecutorServiceServer

	cluster   string
	executors map[response.Kind]executor.Executor
	now       func() time.Time
	logger    *slog.Logger
	metrics   *Metrics
	durable   *durable
	denials   *denials
	witness   *witness      // nil: no controllers are configured
	slots     chan struct{} // one for each concurrent act

	acts context.Context // ends when the process ends its acts
	end  context.CancelFunc

	mu      sync.Mutex
	closing bool
	broken  error            // the error of the ledger's failed write
	runs    map[stepKey]*run // the latest attempt at a step, while it or an earlier one is in progress
	going   sync.WaitGroup
}

// run is an attempt in progress.
type run struct {
	attempt int
	stop    context.CancelFunc // ends it and the earlier attempts that it waits for: cancelling the newest one cancels them all
	done    chan struct{}      // closed when result is set
	result  executor.Result
	clear   chan struct{} // closed when it and all earlier ones at the step have ended; it may itself end without waiting for them
}

func newServer(cluster string, executors map[response.Kind]executor.Executor, atOnce int, d *durable, m *Metrics,
	logger *slog.Logger) *server {
	s := &server{
		cluster: cluster, executors: executors, now: time.Now, logger: logger, metrics: m, durable: d,
		slots: make(chan struct{}, atOnce), runs: map[stepKey]*run{},
	}
	s.acts, s.end = context.WithCancel(context.Background())
	return s
}

// Do implements the service.
func (s *server) Do(ctx context.Context, req *lofamov1.ExecutorDoRequest) (*lofamov1.ExecutorDoResponse, error) {
	job, err := jobOf(req, s.cluster)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	x, ok := s.executors[job.Kind]
	if !ok {
		return nil, status.Errorf(codes.FailedPrecondition, "kind: given %q: this process is not configured for it", job.Kind)
	}
	r, answer, seen, err := s.start(job, x)
	if err != nil {
		return nil, err
	}
	// A token seen here for the first time remains the highest, even if this attempt is not made.
	if err := s.durable.commit(seen); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	if r == nil {
		s.logger.Info("attempt not made", about(job.Effect, "outcome", outcomeOf(answer.Outcome), "detail", answer.Detail)...)
		return responseOf(answer), nil
	}
	return await(ctx, r)
}

// await returns the outcome of a run, or an error if the caller stops waiting.
func await(ctx context.Context, r *run) (*lofamov1.ExecutorDoResponse, error) {
	select {
	case <-r.done:
		return responseOf(r.result), nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// start admits an attempt and starts it. Without a run, the result is the answer once the version of the ledger is
// durable.
func (s *server) start(job executor.Job, x executor.Executor) (*run, executor.Result, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil, executor.Result{}, 0, status.Error(codes.Unavailable, errClosing.Error())
	}
	var v verdict
	var known entry
	var highest uint64
	version := s.durable.change(func(l *ledger) bool {
		highest = l.token
		v = l.admit(s.now(), job.Effect)
		known = l.entries[stepKey{job.Response, job.Step}]
		return v == begin || l.token != highest
	})
	s.metrics.refused(v)
	switch v {
	case stale:
		return nil, executor.Stale("token %d: the executor process has seen %d", job.Token, highest), version, nil
	case late:
		return nil, executor.NotKnown("attempt %d at step %d of %s: attempt %d has been seen", job.Attempt.Attempt, job.Step,
			job.Response, known.Attempt), version, nil
	case crowded:
		return nil, executor.Unchanged(fullLedger, maxEntries), version, nil
	case same:
		if known.Kind != "" && (known.Kind != job.Kind || known.Undo != job.Undo || known.Target != job.Target.String()) {
			return nil, executor.NotKnown("attempt %d at step %d of %s was for another thing", job.Attempt.Attempt, job.Step,
				job.Response), version, nil
		}
		if r := s.runs[stepKey{job.Response, job.Step}]; r != nil && r.attempt == job.Attempt.Attempt {
			return r, executor.Result{}, version, nil
		}
		return nil, executor.Result{Outcome: known.Outcome, Detail: known.Detail}, version, nil
	default:
	}
	k := stepKey{job.Response, job.Step}
	before := s.runs[k]
	ctx, cancel := context.WithTimeout(s.acts, job.Timeout)
	r := &run{attempt: job.Attempt.Attempt, stop: cancel, done: make(chan struct{}), clear: make(chan struct{})}
	if before != nil {
		r.stop = func() { cancel(); before.stop() }
	}
	s.runs[k] = r
	s.going.Go(func() {
		defer cancel()
		r.result = s.carryOut(ctx, job, x, version, before)
		close(r.done)
		if before != nil {
			<-before.clear
		}
		s.mu.Lock()
		if s.runs[k] == r {
			delete(s.runs, k)
		}
		s.mu.Unlock()
		close(r.clear)
	})
	return r, executor.Result{}, 0, nil
}

// carryOut makes an attempt after the one before it at the same step. version is the ledger's version that admitted it.
func (s *server) carryOut(ctx context.Context, job executor.Job, x executor.Executor, version uint64, before *run) executor.Result {
	failpoint.Hit(failpoint.ExecutorAdmitted)
	if err := s.durable.commit(version); err != nil {
		s.logger.Error("the ledger cannot be written: no action runs", "err", err)
		result := executor.Unchanged("%s", err)
		s.durable.change(func(l *ledger) bool { return l.end(s.now(), job.Attempt, result.Outcome, result.Detail) })
		s.metrics.ended(job.Kind, result.Outcome)
		return result
	}
	failpoint.Hit(failpoint.ExecutorIntended)
	s.logger.Info("attempt begins", about(job.Effect)...)
	began := s.now()
	result := s.act(ctx, job, x, before)
	failpoint.Hit(failpoint.ExecutorActed)
	s.metrics.ended(job.Kind, result.Outcome)
	version = s.durable.change(func(l *ledger) bool { return l.end(s.now(), job.Attempt, result.Outcome, result.Detail) })
	if err := s.durable.commit(version); err != nil {
		// The outcome is known now; after a restart it is NOT KNOWN, which is also true.
		s.logger.Error("the ledger cannot be written: no action runs", "err", err)
	}
	failpoint.Hit(failpoint.ExecutorEnded)
	s.logger.Info("attempt ended", about(job.Effect, "outcome", outcomeOf(result.Outcome), "detail", result.Detail, "took",
		s.now().Sub(began).Round(time.Millisecond))...)
	return result
}

// act makes the attempt, once its intent is durable.
func (s *server) act(ctx context.Context, job executor.Job, x executor.Executor, before *run) (result executor.Result) {
	if before != nil {
		select {
		case <-before.clear:
		case <-ctx.Done():
			return executor.Unchanged("attempt %d at the same step, or one before it, has not ended: %s", before.attempt, ctx.Err())
		}
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return executor.Unchanged("%d actions are already in progress: %s", cap(s.slots), ctx.Err())
	}
	if err := ctx.Err(); err != nil {
		return executor.Unchanged("before it began: %s", err)
	}
	still := func(context.Context) error { // reads only this process's memory, so it cannot block
		if highest := s.durable.token(); highest > job.Token {
			return fmt.Errorf("%w: token %d: the executor process has seen %d", executor.ErrStale, job.Token, highest)
		}
		return nil
	}
	if err := still(ctx); err != nil {
		return executor.Held(err)
	}
	defer func() {
		if p := recover(); p != nil {
			s.logger.Error("panic in an executor", "kind", job.Kind, "panic", p, "stack", string(debug.Stack()))
			result = executor.NotKnown("panic in the executor process: %v", p)
		}
	}()
	return x.Do(executor.WithFence(ctx, still), job)
}

// Settle implements the service.
func (s *server) Settle(ctx context.Context, req *lofamov1.ExecutorSettleRequest) (*lofamov1.ExecutorDoResponse, error) {
	a, token, err := attemptOf(req.GetAttempt())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	var began time.Time
	if t := req.GetBegan(); t != nil {
		if err := t.CheckValid(); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "began: %v", err)
		}
		began = t.AsTime()
	}
	r, result, version := s.lookUp(a, token, began)
	switch {
	case r != nil && req.GetStop():
		r.stop()
		return await(ctx, r)
	case r != nil:
		return await(ctx, r)
	}
	if err := s.durable.commit(version); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return responseOf(result), nil
}

// lookUp finds an attempt that is in progress or ended. It forbids one that has not arrived; the outcome of that is unknown if an
// earlier ledger may have recorded it, or if the ledger is full. The result holds once the version is committed. began is when the
// attempt began; zero: unknown.
func (s *server) lookUp(a response.Attempt, token uint64, began time.Time) (r *run, result executor.Result, version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[stepKey{a.Response, a.Step}]; r != nil && r.attempt == a.Attempt {
		return r, executor.Result{}, 0
	}
	switch e, known, version := s.durable.find(a); {
	case known && e.Attempt == a.Attempt:
		return nil, executor.Result{Outcome: e.Outcome, Detail: e.Detail}, version
	case known && e.Attempt > a.Attempt:
		return nil, executor.NotKnown("attempt %d has been seen since", e.Attempt), version
	}
	answer := executor.Unchanged("it never came, and is refused from now on")
	if created := s.durable.created; !began.IsZero() && !began.After(created.Add(clockMargin)) {
		answer = executor.NotKnown("no record of the attempt, which may be older than this ledger: 'lofamo-executor init' created that at %s",
			created.Format(time.RFC3339))
	}
	version = s.durable.change(func(l *ledger) bool {
		if token < l.token { // it is refused for its token, for ever
			if answer.Outcome == response.Unchanged {
				answer.Detail = "it never came, and its token is refused"
			}
			return false
		}
		l.token = token
		if !l.forbid(s.now(), a, token, answer.Outcome, answer.Detail) { // it may still arrive, and begin once there is room
			answer = executor.NotKnown(fullLedger, maxEntries)
		}
		return true
	})
	return nil, answer, version
}

// fullLedger is the answer of a full ledger.
const fullLedger = "the executor process remembers %d attempts, and accepts no more"

// clockMargin is the clock difference between a supervisor and this process that lookUp tolerates: an attempt counts as
// younger than the ledger only if it began more than clockMargin after the ledger was created.
const clockMargin = time.Minute

var errClosing = errors.New("the executor process is being stopped")

// lost records that the ledger cannot be written.
func (s *server) lost(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = err
}

// refuses returns the reason to refuse every attempt, or nil.
func (s *server) refuses() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return errClosing
	}
	return s.broken
}

// close takes no more attempts and waits for those in progress. When ctx ends, it ends them.
func (s *server) close(ctx context.Context) error {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, s.end)
	defer stop()
	s.going.Wait()
	s.end()
	return s.durable.close()
}

func about(e response.Effect, more ...any) []any {
	return append([]any{"response", e.Response, "step", e.Step, "attempt", e.Attempt.Attempt, "token", e.Token, "kind", e.Kind,
		"target", e.Target.String(), "undo", e.Undo,
		"recheck", e.Recheck}, more...)
}
