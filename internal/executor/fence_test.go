package executor

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lofamo/lofamo/pkg/response"
)

func TestFenceRefusalReachesCaller(t *testing.T) {
	if err := Fenced(t.Context()); err != nil {
		t.Errorf("without a fence: %v", err)
	}
	var stale error
	ctx := WithFence(t.Context(), func(context.Context) error { return stale })
	if err := Fenced(ctx); err != nil {
		t.Error(err)
	}
	stale = errors.New("token 6 has been seen")
	if err := Fenced(ctx); !errors.Is(err, stale) {
		t.Errorf("%v, want %v", err, stale)
	}
}

// TestSlowFenceDelaysAtMostFenceTime: an unresponsive store delays an attempt by FenceTime, or by the caller's timeout if that is shorter.
func TestSlowFenceDelaysAtMostFenceTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := WithFence(t.Context(), func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		for _, want := range []time.Duration{FenceTime, time.Second} {
			ctx, cancel := context.WithTimeout(ctx, want)
			begin := time.Now()
			if err := Fenced(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != want {
				t.Errorf("%v after %s, want %v after %s", err, time.Since(begin), context.DeadlineExceeded, want)
			}
			cancel()
		}
		begin := time.Now()
		if err := Fenced(ctx); err == nil || time.Since(begin) != FenceTime {
			t.Errorf("%v after %s, want an error after %s", err, time.Since(begin), FenceTime)
		}
	})
}

// TestFenceAgeCountsFromLastQuery: the answer's age counts from the last query, however long earlier queries took.
func TestFenceAgeCountsFromLastQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := WithFence(t.Context(), func(ctx context.Context) error {
			Asks(ctx)
			time.Sleep(time.Second)
			Asks(ctx)
			time.Sleep(5 * time.Millisecond)
			return nil
		})
		if asked, err := FencedSince(ctx); err != nil || time.Since(asked) != 5*time.Millisecond {
			t.Errorf("a word that is %s old, %v: want 5ms", time.Since(asked), err)
		}
		once := WithFence(t.Context(), func(context.Context) error { time.Sleep(time.Second); return nil })
		if asked, err := FencedSince(once); err != nil || time.Since(asked) != time.Second {
			t.Errorf("who asks once: a word that is %s old, %v: want 1s", time.Since(asked), err)
		}
	})
}

// TestHeldAttemptIsStaleOnlyByHigherToken: a held attempt is stale only if a higher token is known.
func TestHeldAttemptIsStaleOnlyByHigherToken(t *testing.T) {
	for err, want := range map[error]response.Outcome{
		fmt.Errorf("%w: token 5", ErrStale): response.StaleToken, errors.New("no quorum"): response.Unchanged,
		context.DeadlineExceeded: response.Unchanged,
	} {
		if got := Held(err); got.Outcome != want {
			t.Errorf("%v: %+v, want outcome %d", err, got, want)
		}
	}
}
