package respond

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// An executor receives a stale fence if the store has another leader.
func TestExecutorGetsStaleFence(t *testing.T) {
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

// answering is a store that answers only Confirm: the n-th answer, from 1, comes after a delay.
type answering struct {
	Store

	asked  int
	answer func(n int) (time.Duration, error)
}

func (a *answering) Confirm(ctx context.Context, _ store.Fence) (store.Standing, error) {
	a.asked++
	after, err := a.answer(a.asked)
	select {
	case <-time.After(after):
		return store.Standing{}, err
	case <-ctx.Done():
		return store.Standing{}, ctx.Err()
	}
}

// TestConfirmationIsRetriedWithPauses: anything but a definite no is retried, after a pause, until the caller's context ends. A slow store
// does not get questions back to back.
func TestConfirmationIsRetriedWithPauses(t *testing.T) {
	const patience = time.Minute
	never := 2 * patience
	for name, tc := range map[string]struct {
		answer func(n int) (time.Duration, error)
		fails  error
		most   time.Duration // longest duration
		asked  [2]int        // at least, at most
	}{
		"leads":         {func(int) (time.Duration, error) { return 0, nil }, nil, 0, [2]int{1, 1}},
		"another leads": {func(int) (time.Duration, error) { return 0, store.ErrNotLeader }, store.ErrNotLeader, 0, [2]int{1, 1}},
		"no leader of its own, a while": {func(n int) (time.Duration, error) { return 0, only(errors.New("leader changed"), n < 3) }, nil,
			3 * time.Second, [2]int{3, 3}},
		"hangs once": {func(n int) (time.Duration, error) { return only(never, n == 1), nil }, nil, askTime + pauseLeast, [2]int{2, 2}},
		"late once": {func(n int) (time.Duration, error) { return only(sure+time.Millisecond, n == 1), nil }, nil, 2 * time.Second,
			[2]int{2, 2}},
		"late each time": {func(int) (time.Duration, error) { return 600 * time.Millisecond, nil }, context.DeadlineExceeded, patience,
			[2]int{10, 24}},
		"hangs": {func(int) (time.Duration, error) { return never, nil }, context.DeadlineExceeded, patience, [2]int{8, 20}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &answering{answer: tc.answer}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				begin := time.Now()
				err := newRunner(&Responder{cfg: Config{Store: s}}).confirm(ctx, &term{ctx: ctx}, time.Time{})
				if took := time.Since(begin); !errors.Is(err, tc.fails) || took > tc.most || s.asked < tc.asked[0] || s.asked > tc.asked[1] {
					t.Errorf("%v, %d questions in %s: want %v, %v questions in at most %s", err, s.asked, took, tc.fails, tc.asked, tc.most)
				}
			})
		})
	}
}

// TestConfirmIsNew: after a failed question, the age of the answer counts from the question that succeeded.
func TestConfirmIsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &answering{answer: func(n int) (time.Duration, error) {
			return 5 * time.Millisecond, only(errors.New("leader changed"), n == 1)
		}}
		u := newRunner(&Responder{cfg: Config{Store: s}})
		begin := time.Now()
		asked, err := executor.FencedSince(executor.WithFence(t.Context(),
			func(ctx context.Context) error { return u.confirm(ctx, &term{ctx: ctx}, time.Time{}) }))
		if old := time.Since(asked); err != nil || old != 5*time.Millisecond || time.Since(begin) < pauseLeast/2 {
			t.Errorf("%v, a word that is %s old after %s: want 5ms, and a pause", err, old, time.Since(begin))
		}
	})
}

// only returns v if so, else the zero value.
func only[T any](v T, so bool) (none T) {
	if so {
		return v
	}
	return none
}

// An accused node that reports between the gates and the step is spared: the runner gathers its evidence again before
// it calls an executor.
func TestAccusedIsAskedForAgainBeforeStep(t *testing.T) {
	l := newLab(t, grid.Dims{X: 2, Y: 1, Z: 1}, reseat)
	r := l.start("", 0)
	defer l.end(r)
	r.cfg.Executors = map[response.Kind]executor.Executor{
		response.Command:          answers(func(context.Context, executor.Job) executor.Result { return executor.Unchanged("asked") }),
		response.KubernetesCordon: answers(func(context.Context, executor.Job) executor.Result { return executor.Unchanged("asked") }),
	}
	for name, tc := range map[string]struct {
		kind  response.Kind
		undo  bool
		ev    response.Evidence
		state fault.State
		blind bool
		begun bool
	}{
		"it speaks":                        {kind: response.Command, ev: response.Evidence{Life: time.Now()}},
		"it speaks, and only work is kept": {kind: response.KubernetesCordon, ev: response.Evidence{Life: time.Now()}, begun: true},
		"it speaks, and all is put back":   {kind: response.Command, undo: true, ev: response.Evidence{Life: time.Now()}, begun: true},
		"it says so itself":                {kind: response.Command, ev: response.Evidence{Own: true, Life: time.Now()}, begun: true},
		"it is silent":                     {kind: response.Command, ev: response.Evidence{Life: time.Now().Add(-time.Hour)}, begun: true},
		"its state is not known":           {kind: response.Command, blind: true},
		"its fault is gone":                {kind: response.Command, state: fault.Normal},
		"its fault stands":                 {kind: response.Command, state: fault.Failed, begun: true},
	} {
		l.mu.Lock()
		l.evidence, l.state, l.blind = tc.ev, tc.state, tc.blind
		l.mu.Unlock()
		r.cfg.Limits.Silence = time.Minute
		j := executor.Job{Effect: response.Effect{Kind: tc.kind, Undo: tc.undo,
			Target: response.Target{Node: "n0-0-0", Component: fault.ComponentHost}}}
		res, begun := r.runner.attempt(t.Context(), &term{ctx: t.Context(), fence: r.fence}, j, time.Now(), nil)
		if begun != tc.begun || res.Outcome != response.Unchanged {
			t.Errorf("%s: begun %t, outcome %d %q: want begun %t", name, begun, res.Outcome, res.Detail, tc.begun)
		}
	}
}

// recorder is an executor that answers a query only when its context ends.
type recorder struct{ asked, cancelled, done chan response.Attempt }

func (x recorder) Do(_ context.Context, j executor.Job) executor.Result {
	x.done <- j.Attempt
	return executor.Done("done")
}

func (x recorder) Settle(ctx context.Context, j executor.Job) executor.Result {
	x.asked <- j.Attempt
	<-ctx.Done()
	if errors.Is(ctx.Err(), context.Canceled) {
		x.cancelled <- j.Attempt
	}
	return executor.NotKnown("%v", ctx.Err())
}

// TestOpenQueryDelaysNoAttempt: while an executor has yet to tell the outcome of an attempt, the next step begins at once. That ends the
// query, and so does the end of the term. The engine gets no result for it then, and NotKnown when its time is over.
func TestOpenQueryDelaysNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := recorder{make(chan response.Attempt, 8), make(chan response.Attempt, 8), make(chan response.Attempt, 8)}
		r := &Responder{cfg: Config{Metrics: NewMetrics(prometheus.NewRegistry()), Limits: response.Default(),
			Executors: map[response.Kind]executor.Executor{response.KubernetesCordon: x}}}
		r.queue.signal = make(chan struct{}, 1)
		u := newRunner(r)
		job := func(step, attempt int) executor.Job {
			return executor.Job{Effect: response.Effect{Attempt: response.Attempt{Response: "r", Step: step, Attempt: attempt},
				Kind: response.KubernetesCordon, Timeout: time.Minute}}
		}
		results := func() (out []response.Result) {
			u.wait(time.Hour)
			list, _ := r.queue.take()
			for _, in := range list {
				out = append(out, in.event.(response.Result))
			}
			return out
		}
		tm := &term{ctx: t.Context()}
		u.ask(tm, job(0, 1))
		<-x.asked
		u.start(tm, job(1, 1), time.Now())
		if got := results(); len(got) != 1 || got[0].Step != 1 || got[0].Outcome != response.Succeeded {
			t.Errorf("results %+v: want that of step 1", got)
		}
		if n, ended := len(x.done), len(x.cancelled); n != 1 || ended != 1 {
			t.Errorf("%d attempts, and %d queries ended: want 1 and 1", n, ended)
		}
		u.ask(tm, job(0, 2))
		<-x.asked
		u.stopAll()
		if got := results(); len(got) != 0 {
			t.Errorf("results %+v after the term: want none", got)
		}
		u.ask(tm, job(0, 3))
		if got := results(); len(got) != 1 || got[0].Attempt.Attempt != 3 || got[0].Outcome != response.NotKnown {
			t.Errorf("results %+v: want one that is not known", got)
		}
		if n := len(u.queries); n != 0 {
			t.Errorf("%d queries are kept", n)
		}
	})
}

// TestHungAttemptDelaysAllLaterOnes: an executor ignores its context. The second attempt does not begin, and neither does the third
// while the first one still runs.
func TestHungAttemptDelaysAllLaterOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang, begun := make(chan struct{}), make(chan int, 8)
		x := answers(func(_ context.Context, j executor.Job) executor.Result {
			begun <- j.Attempt.Attempt
			if j.Attempt.Attempt == 1 {
				<-hang
			}
			return executor.Done("done")
		})
		r := &Responder{cfg: Config{Store: &answering{answer: func(int) (time.Duration, error) { return 0, nil }},
			Metrics: NewMetrics(prometheus.NewRegistry()), Limits: response.Default(),
			Executors: map[response.Kind]executor.Executor{response.KubernetesCordon: x}}}
		r.queue.signal = make(chan struct{}, 1)
		u, tm := newRunner(r), &term{ctx: t.Context()}
		start := func(attempt int) {
			u.start(tm, executor.Job{Effect: response.Effect{Attempt: response.Attempt{Response: "r", Attempt: attempt},
				Kind: response.KubernetesCordon, Timeout: time.Minute}}, time.Now())
			synctest.Wait()
		}
		start(1)
		start(2)
		time.Sleep(30 * time.Second)
		start(3) // while the second one waits
		time.Sleep(2 * time.Minute)
		start(4) // after all others have ended
		synctest.Wait()
		if n := len(begun); n != 1 {
			t.Errorf("%d attempts have begun while the first one runs: want 1", n)
		}
		close(hang)
		u.wait(time.Hour)
		close(begun)
		var got []int
		for n := range begun {
			got = append(got, n)
		}
		if !slices.Equal(got, []int{1, 4}) {
			t.Errorf("attempts %v have begun: want [1 4]", got)
		}
		if n := len(u.newest); n != 0 {
			t.Errorf("%d attempts are kept", n)
		}
	})
}
