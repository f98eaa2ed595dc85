// Package durable replaces small files so that what is in them is there, whole, whatever happens after: the boot epochs, the
// channel mask, the peers and the acts of a node, the ledger of an executor process.
//
// It knows nothing of what is in them, and finds nothing damaged: who reads checks.
package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/lofamo/lofamo/internal/failpoint"
)

// Replace does as Whole does. On a full disk, where there is no room for a new file, the old one is overwritten in
// place: what a crash then garbles is for the reader to find.
func Replace(path string, data []byte) error {
	err := Whole(path, data)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		if oerr := overwrite(path, data); oerr != nil {
			return errors.Join(err, oerr)
		}
		return nil
	}
	return err
}

// Read returns what is in a file, of at most most bytes, or the first most+1 of one that is longer. What a link in its place points to it
// does not read.
func Read(path string, most int) (b []byte, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(io.LimitReader(f, int64(most)+1))
}

// Load reads a state that Replace wrote, of at most so many bytes. Without a file it is none: nothing was kept yet. lost tells of a
// file that cannot be read, or does not decode; the state is none then too, and it is no failure. what names the kind in it.
func Load[T any](path, what string, most int, none T, decode func([]byte) (T, error)) (s T, lost error) {
	b, err := Read(path, most)
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	if err == nil {
		s, err = decode(b)
	}
	if err != nil {
		return none, fmt.Errorf("%s %s: %w: taken for lost", what, path, err)
	}
	return s, nil
}

// Whole writes a file that only its owner may read: see WriteFile.
func Whole(path string, data []byte) error { return WriteFile(path, data, 0o600) }

// WriteFile puts data into the file of that name: first into another one beside it, which takes its name once it is on disk. A link in
// the way of that is not followed. The file is the old one or the new one at every moment, whatever fails; which, is not known
// after an error.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	failpoint.Hit(failpoint.FileWritten)
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	failpoint.Hit(failpoint.FileRenamed)
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func overwrite(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Truncate(int64(len(data))), f.Sync(), f.Close())
}
