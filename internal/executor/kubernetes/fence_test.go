package kubernetes

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/response"
)

// allKinds returns the acts and the event.
func allKinds() []act {
	return append(acts(), act{kind: response.KubernetesEvent, parameters: map[string]string{"reason": "X"}})
}

// TestFenceWithoutAnswerEndsNoAttempt: a store without an answer for a while, for example during its own election, ends no attempt.
// The executor checks again, and a drain continues.
func TestFenceWithoutAnswerEndsNoAttempt(t *testing.T) {
	e := newExecutor(t, Config{}, nil)
	for _, a := range allKinds() {
		name := aNode(t)
		ctx, cancel := context.WithCancel(context.Background())
		done := kubelet(t, ctx, name)
		if a.kind == response.KubernetesDrain {
			createPod(t, name, "", "")
			createPod(t, name, "", "")
		}
		asked := 0
		fenced := executor.WithFence(ctx, func(context.Context) error {
			if asked++; asked%4 < 3 { // includes checks between a drain's evictions
				return errors.New("etcdserver: leader changed")
			}
			return nil
		})
		want(t, e.Do(fenced, a.job(responseID(), name)), response.Succeeded, "")
		if asked < 3 {
			t.Errorf("%s: asked %d times", a.kind, asked)
		}
		if got := podsOf(t, name); len(got) > 0 {
			t.Errorf("%s: left are %v", a.kind, got)
		}
		cancel()
		done()
	}
}

// TestHangingFenceIsGivenUp: a check without an answer is given up after the request timeout.
func TestHangingFenceIsGivenUp(t *testing.T) {
	e, name := newExecutor(t, Config{}, nil), aNode(t)
	usualTimeout := e.c.timeout
	e.c.timeout = time.Second
	asked := 0
	ctx := executor.WithFence(context.Background(), func(ctx context.Context) error {
		if asked++; asked > 1 {
			return nil
		}
		<-ctx.Done()
		e.c.timeout = usualTimeout // the API server of a busy machine may need more
		return ctx.Err()
	})
	j := acts()[2].job(responseID(), name)
	j.Timeout = time.Minute
	begin := time.Now()
	want(t, e.Do(ctx, j), response.Succeeded, "cordoned")
	if took := time.Since(begin); asked < 2 || asked > 10 || took > j.Timeout/2 {
		t.Errorf("%d questions in %s", asked, took)
	}
}

// TestFenceAgeCountsFromLastQuery: a fresh answer counts, however long the fence waited before its last query.
func TestFenceAgeCountsFromLastQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &client{timeout: 10 * time.Second, sure: sure}
		for last, good := range map[time.Duration]bool{5 * time.Millisecond: true, sure + time.Millisecond: false} {
			err := c.fenced(executor.WithFence(t.Context(), func(ctx context.Context) error {
				executor.Asks(ctx)
				time.Sleep(2 * sure)
				executor.Asks(ctx)
				time.Sleep(last)
				return nil
			}))
			if (err == nil) != good {
				t.Errorf("the last question took %s: %v", last, err)
			}
		}
	})
}

// TestOutdatedFenceAnswerStopsWrite: with outdated answers the executor does nothing and reports nothing as stale. The pause between
// two checks grows.
func TestOutdatedFenceAnswerStopsWrite(t *testing.T) {
	e, name := newExecutor(t, Config{}, nil), aNode(t)
	e.c.sure = time.Nanosecond
	e.pacing.failure = usual.failure
	before := theNode(t, name).ResourceVersion
	for _, a := range []act{allKinds()[0], allKinds()[5], allKinds()[6]} { // a write, a drain, an event
		asked := 0
		ctx := executor.WithFence(context.Background(), func(context.Context) error { asked++; return nil })
		j := a.job(responseID(), name)
		j.Timeout = 700 * time.Millisecond    // pauses of at least 50, 100, 200 and 400 ms
		for tries := 0; asked == 0; tries++ { // on a busy machine the reads may use up the time
			if tries == 50 {
				t.Fatalf("%s: the fence was never asked", a.kind)
			}
			want(t, e.Do(ctx, j), response.Unchanged, "")
			j.Attempt.Attempt++
		}
		if asked > 4 {
			t.Errorf("%s: %d questions in %s: want at most 4", a.kind, asked, j.Timeout)
		}
	}
	if after := theNode(t, name).ResourceVersion; after != before {
		t.Errorf("changed: version %s, before %s", after, before)
	}
}
