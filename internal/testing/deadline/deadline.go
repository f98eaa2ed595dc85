// Package deadline makes contexts whose deadline passes at an event instead of a time: a test of what happens then need not
// guess how long a busy machine takes to get there.
package deadline

import (
	"context"
	"testing"
	"time"
)

// passing is a context whose deadline passes when the channel is closed.
type passing struct {
	context.Context

	passed chan struct{}
}

func (p passing) Done() <-chan struct{} { return p.passed }

func (p passing) Err() error {
	select {
	case <-p.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// When returns a context whose deadline passes when so is true, with the test, or after a minute.
func When(t *testing.T, so func() bool) context.Context {
	t.Helper()
	p := passing{context.WithoutCancel(t.Context()), make(chan struct{})}
	go func() {
		defer close(p.passed)
		for end := time.Now().Add(time.Minute); t.Context().Err() == nil && time.Now().Before(end) && !so(); {
			time.Sleep(5 * time.Millisecond)
		}
	}()
	return p
}
