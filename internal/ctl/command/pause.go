package command

import (
	"context"
	"math/rand/v2"
	"time"
)

// Bounds of the pause after a conflict. Each further conflict in a row doubles the pause.
const (
	leastConflictPause = 100 * time.Millisecond
	mostConflictPause  = 5 * time.Second
)

// ConflictPause returns the pause after the given number of conflicts in a row. Jitter of up to half of it keeps two callers from
// meeting again.
func ConflictPause(conflicts int) time.Duration {
	d := min(leastConflictPause<<min(conflicts-1, 16), mostConflictPause)
	return d/2 + rand.N(d/2+1) //nolint:gosec // jitter
}

// Pause waits for a time, or until the context ends.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
