package inventory

import (
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
	f, err := durable.LockDir(d.path, lockWait)
	if err == nil && !d.names(f) { // a failed Init has removed it
		err = errors.Join(errors.New("another command has replaced it: repeat this one"), f.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("operator's directory %s: %w", d.path, err)
	}
	return func() { _ = f.Close() }, nil
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
