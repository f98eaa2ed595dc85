package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// part is a part of a replica with its own lifecycle. Parts start in order, each on top of those before it, and stop in
// reverse.
type part interface {
	// start opens the resources of the part and starts its goroutines. It waits for no other replica.
	start(s *Supervisor) error
	// stop undoes start, also a start that failed midway. It returns when all is undone, or soon after ctx ends.
	stop(ctx context.Context) error
}

// step is a part in the order of starting. bound limits its stop.
type step struct {
	name  string
	bound time.Duration
	part
}

// stopTime bounds the stop of most parts. Workers get more time: the responder waits for running attempts.
const (
	stopTime    = 3 * time.Second
	workersTime = 15 * time.Second
)

// lifecycle starts and stops parts.
type lifecycle struct {
	started  []step
	stopping chan struct{}
	stopOnce sync.Once
	failed   chan error
}

func newLifecycle() lifecycle {
	return lifecycle{stopping: make(chan struct{}), failed: make(chan error, 8)}
}

// Failed reports failures of parts after Start. The caller then stops the replica.
func (l *lifecycle) Failed() <-chan error { return l.failed }

// fail reports a failure; only the first eight unread ones are kept.
func (l *lifecycle) fail(err error) {
	select {
	case l.failed <- err:
	default:
	}
}

// start starts parts in order, until one fails.
func (l *lifecycle) start(s *Supervisor, steps []step) error {
	for _, p := range steps {
		l.started = append(l.started, p)
		if err := p.start(s); err != nil {
			return err
		}
	}
	return nil
}

// stop stops the started parts in reverse order, each within its bound. Later calls do nothing.
func (l *lifecycle) stop(ctx context.Context, logger *slog.Logger) error {
	var errs []error
	l.stopOnce.Do(func() {
		close(l.stopping)
		for i := len(l.started) - 1; i >= 0; i-- {
			p := l.started[i]
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.bound)
			if err := p.stop(bounded); err != nil {
				errs = append(errs, fmt.Errorf("stop %s: %w", p.name, err))
			}
			cancel()
		}
		logger.Info("supervisor stopped")
	})
	return errors.Join(errs...)
}

// ended waits for a channel to close, at most until ctx ends.
func ended(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
