package supervisor

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestEndOfTermIsTriedUntilTheLeaderReturns: the store cannot end the term at first. endTerm tries again, but only until the leader
// answers, and for a limited time.
func TestEndOfTermIsTriedUntilTheLeaderReturns(t *testing.T) {
	const never = time.Hour
	for name, c := range map[string]struct {
		returns  time.Duration // when the leader answers
		fails    int           // attempts that fail
		want     bool
		attempts int // -1: any number
	}{
		"at once":                {returns: never, want: true, attempts: 1},
		"after some attempts":    {returns: never, fails: 3, want: true, attempts: 4},
		"the leader is back":     {returns: 2 * endTime, fails: 10, attempts: 2},
		"the store never serves": {returns: never, fails: 1000, attempts: -1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, attempts := time.Now(), 0
				got := endTerm(t.Context(), func(ctx context.Context) bool {
					select {
					case <-time.After(c.returns):
						return true
					case <-ctx.Done():
						return false
					}
				}, func(ctx context.Context) (bool, error) {
					if attempts++; attempts > c.fails {
						return true, nil
					}
					<-ctx.Done()
					return false, errors.New("raft has no leader")
				})
				if took := time.Since(began); got != c.want || took > endWithin || c.attempts >= 0 && attempts != c.attempts {
					t.Errorf("ended %v after %v and %d attempts; want %v within %v and %d attempts", got, took, attempts, c.want, endWithin,
						c.attempts)
				}
			})
		})
	}
}

// TestLeaderThatReturnedIsWatchedAgain: a leader returns before its term may be ended, so it keeps the term. Later in that term it is gone
// for good. The replica ends no term before the earliest time.
func TestLeaderThatReturnedIsWatchedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, times := time.Now(), 0
		gone := func(context.Context) bool { times++; return true }
		returns := func(ctx context.Context) bool {
			if times == 1 {
				return true
			}
			<-ctx.Done()
			return false
		}
		end := func(context.Context) (bool, error) { return true, nil }
		if !endGone(t.Context(), began.Add(endsEvery), gone, returns, end) || times != 2 {
			t.Errorf("the term was not ended the second time, but after %d", times)
		}
		if took := time.Since(began); took < endsEvery {
			t.Errorf("the term was ended after %s: want %s at least after the one before", took, endsEvery)
		}
	})
}
