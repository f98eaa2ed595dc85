// Package durable replaces small files atomically and durably: the boot epochs, the channel mask, the peers and the acts of a
// node, the ledger of an executor process, and the files of bundles.
//
// It does not know their contents and detects no damage: readers check. Batch replaces several files together. Lock lets one process at a
// time write a file.
package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/failpoint"
)

// Replace writes a file as Whole does. On a full disk without room for a new file, it overwrites the old one in place, if the disk has
// room for that; the reader must then detect damage from a crash.
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

// Reserve gives a file room for n bytes, so that Replace works on a full disk. If there is no file yet, it makes an empty one.
func Reserve(path string, n int) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(allocate(f, int64(n)), f.Close())
}

// Read returns the contents of a file of at most most bytes, or the first most+1 bytes of a longer one. It follows no link.
func Read(path string, most int) (b []byte, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(io.LimitReader(f, int64(most)+1))
}

// Load reads a state that Replace wrote, of at most most bytes. Without a file the state is zero. If the file cannot be read or
// decoded, the state is zero too, and lost says why; this is no failure. The argument what names the kind of state in lost.
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

// newFile is the end of the name of a temporary file.
const newFile = ".new"

// WriteFile replaces the named file: it writes a temporary file beside it, syncs it to disk and renames it. It follows no link. At
// every moment the file is the old or the new one; after an error it may be either.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	if err := stage(path, data, mode, -1, -1); err != nil {
		return err
	}
	failpoint.Hit(failpoint.FileWritten)
	if err := os.Rename(path+newFile, path); err != nil {
		return errors.Join(err, os.Remove(path+newFile))
	}
	failpoint.Hit(failpoint.FileRenamed)
	return syncDir(filepath.Dir(path))
}

// stage writes a temporary file beside the named one and syncs it to disk. It leaves none if it fails.
func stage(path string, data []byte, mode os.FileMode, uid, gid int) error {
	tmp := path + newFile
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	if uid >= 0 || gid >= 0 {
		err = f.Chown(uid, gid)
	}
	if err == nil {
		_, err = f.Write(data)
	}
	if err := errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return nil
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// overwrite writes over the old file. If the disk has no room for that, it returns an error and leaves the old file untouched.
func overwrite(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	if err := allocate(f, int64(len(data))); err != nil {
		return errors.Join(err, f.Close())
	}
	if _, err := f.Write(data); err != nil {
		return errors.Join(err, f.Close()) // not truncated: that would destroy more of the old content
	}
	return errors.Join(f.Truncate(int64(len(data))), f.Sync(), f.Close())
}

// allocate gets the blocks for a content of n bytes, and changes neither content nor size.
func allocate(f *os.File, n int64) error {
	if n == 0 {
		return nil
	}
	var err error = unix.EINTR
	for errors.Is(err, unix.EINTR) {
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, n)
	}
	var st unix.Stat_t
	if (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS)) && unix.Fstat(int(f.Fd()), &st) == nil && n <= st.Blocks*512 {
		return nil
	}
	return os.NewSyscallError("fallocate", err)
}
