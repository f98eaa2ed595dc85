package inventory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/lofamo/lofamo/internal/durable"
)

// lockWait bounds the wait for another command that changes the directory.
const lockWait = 15 * time.Second

// lock keeps other commands from changing the directory until unlock is called. The lock is on the directory, and ends with the process.
func (d *Dir) lock() (unlock func(), err error) {
	f, err := os.Open(d.path)
	if err != nil {
		return nil, fmt.Errorf("operator's directory: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	err = durable.Lock(ctx, f, 10*time.Millisecond)
	switch {
	case err == nil && d.names(f):
		return func() { _ = f.Close() }, nil
	case err == nil: // a failed Init has removed it
		err = fmt.Errorf("operator's directory %s: another command has replaced it: repeat this one", d.path)
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("operator's directory %s: another command has been changing it for more than %s", d.path, lockWait)
	default:
		err = fmt.Errorf("operator's directory %s: lock it: %w", d.path, err)
	}
	return nil, errors.Join(err, f.Close())
}

// names reports whether the directory's path is that of the open file.
func (d *Dir) names(f *os.File) bool {
	at, err := os.Stat(d.path)
	if err != nil {
		return false
	}
	opened, err := f.Stat()
	return err == nil && os.SameFile(at, opened)
}
