package supervisor

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestEndOfTermIsTriedWhileTheKernelRefuses: the store cannot end the term at first. endTerm tries again, but only while the leader's
// kernel refuses connections, and for a limited time.
func TestEndOfTermIsTriedWhileTheKernelRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		refuses, fails int // how often
		want           bool
		attempts       int // -1: any number
	}{
		"at once":                {refuses: 1, want: true, attempts: 1},
		"after some attempts":    {refuses: 10, fails: 3, want: true, attempts: 4},
		"the leader is back":     {refuses: 2, fails: 10, attempts: 2},
		"nothing refuses":        {attempts: 0},
		"the store never serves": {refuses: 1000, fails: 1000, attempts: -1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, asked, attempts := time.Now(), 0, 0
				got := endTerm(t.Context(), func(context.Context) bool {
					asked++
					return asked <= c.refuses
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
