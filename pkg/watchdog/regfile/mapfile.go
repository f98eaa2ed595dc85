package regfile

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Files in mapped memory, of this package and of the halves' copies (internal/agent/storage). They are allocated to
// their full size, so that a full disk cannot take a page away. A truncated file is an error at an access and not the end
// of the process. They are checked through the file system, because mapped memory does not show truncation and replacement.
var (
	// ErrFault is wrapped if the mapping was inaccessible: the file was truncated.
	ErrFault = errors.New("mapped page is gone (file truncated?)")
	// ErrReplaced is wrapped by CheckMapped when the path no longer leads to the mapped file.
	ErrReplaced = errors.New("was unlinked or replaced")
)

// Allocate extends a file to its size without changing its content, and reserves blocks if the file system can.
// Otherwise the first write on a full file system faults, which AccessMapped turns into an error.
func Allocate(file *os.File, size int64) error {
	fd := int(file.Fd())
	switch err := unix.Fallocate(fd, 0, 0, size); {
	case err == nil:
		return nil
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
		if err := unix.Ftruncate(fd, size); err != nil {
			return fmt.Errorf("set its size to %d: %w", size, err)
		}
		return nil
	default:
		return fmt.Errorf("allocate %d bytes: %w", size, err)
	}
}

// CheckMapped returns an error if the file was truncated, or if path no longer leads to the file. It makes two system calls.
func CheckMapped(file *os.File, path string, size int64) error {
	mine, err := file.Stat()
	if err != nil {
		return err
	}
	if mine.Size() != size {
		return fmt.Errorf("is %d bytes long: want %d: %w", mine.Size(), size, ErrFault)
	}
	named, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrReplaced, err)
	}
	if !os.SameFile(mine, named) {
		return ErrReplaced
	}
	return nil
}

// AccessMapped runs fn, which reads and writes mem, and turns a fault in mem into ErrFault. A fault elsewhere, or another
// panic, is a bug in fn and is passed on.
func AccessMapped(mem []byte, fn func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if r := recover(); r != nil {
			// Memory faults are runtime errors with an address.
			if e, ok := r.(interface {
				runtime.Error
				Addr() uintptr
			}); ok && contains(mem, e.Addr()) {
				err = ErrFault
				return
			}
			panic(r)
		}
	}()
	return fn()
}

// contains reports whether an address lies in the mapping.
func contains(mem []byte, addr uintptr) bool {
	if len(mem) == 0 {
		return false
	}
	base := uintptr(unsafe.Pointer(&mem[0]))
	return addr >= base && addr < base+uintptr(len(mem))
}
