package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// stopTime bounds each step of stopping.
const stopTime = 3 * time.Second

// lifecycle stops what a supervisor has started. Each part registers a cleanup as soon as it holds a resource.
// stop runs the cleanups in reverse order:
//
//  1. Leadership. Its context ends, and the lease is resigned while all other parts still work.
//  2. Workers. Their context ends, and stop waits for them.
//  3. Resources: servers, connections, etcd, listeners.
type lifecycle struct {
	cleanups []cleanup
	stopping chan struct{}
	stopOnce sync.Once
	failed   chan error
}

// cleanup undoes one step of Start.
type cleanup struct {
	what string
	do   func(context.Context) error
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

// onStop registers a cleanup. The last registered one runs first.
func (l *lifecycle) onStop(what string, do func(context.Context) error) {
	l.cleanups = append(l.cleanups, cleanup{what, do})
}

// stop runs the cleanups in reverse order, each for at most stopTime. Later calls do nothing.
func (l *lifecycle) stop(ctx context.Context, logger *slog.Logger) error {
	var errs []error
	l.stopOnce.Do(func() {
		close(l.stopping)
		for i := len(l.cleanups) - 1; i >= 0; i-- {
			c := l.cleanups[i]
			cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
			if err := c.do(cctx); err != nil {
				errs = append(errs, fmt.Errorf("stop %s: %w", c.what, err))
			}
			cancel()
		}
		logger.Info("supervisor stopped")
	})
	return errors.Join(errs...)
}
