package durable

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Lock takes the exclusive lock (flock) of an open file. While another process holds the lock, Lock tries again at the given interval
// until ctx ends, and then returns its cause. It tries at least once. The lock ends with the last copy of the descriptor.
func Lock(ctx context.Context, f *os.File, every time.Duration) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) //nolint:gosec // a descriptor
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(every):
		}
	}
}
