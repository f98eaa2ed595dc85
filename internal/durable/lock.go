package durable

import (
	"context"
	"errors"
	"fmt"
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

// LockDir takes the exclusive lock of a directory for one of several commands that change it, and waits at most for the given time. The
// lock ends when the returned file is closed, and with the process.
func LockDir(dir string, within time.Duration) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	switch err = Lock(ctx, f, 10*time.Millisecond); {
	case err == nil:
		return f, nil
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("another command has been changing it for more than %s", within)
	default:
		err = fmt.Errorf("lock the directory: %w", err)
	}
	return nil, errors.Join(err, f.Close())
}
