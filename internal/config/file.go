package config

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// The largest sizes of configuration files, in bytes.
const (
	// MaxFile bounds a file that describes one process.
	MaxFile = 1 << 20
	// MaxNodesFile bounds a file that may list the nodes of a torus: the largest torus fits well below it.
	MaxNodesFile = 64 << 20
)

// ReadBounded returns the content of a file of at most most bytes. It also reads pipes, such as /dev/stdin and a shell's <(command), and
// /dev/null. It refuses other kinds of files: a named pipe may have no writer, a device may have no end, and opening it may change its
// state.
func ReadBounded(path string, most int) ([]byte, error) {
	if err := readable(path); err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // it does not wait for a writer if somebody replaces the file meanwhile
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if i, err := f.Stat(); err == nil && i.Mode().IsRegular() && i.Size() > int64(most) {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("%d bytes: want at most %d", i.Size(), most)}
	}
	b, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	if err != nil {
		return nil, err
	}
	if len(b) > most {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("more than %d bytes: want at most %d", most, most)}
	}
	return b, nil
}

// readable returns an error for a file that ReadBounded refuses. It accepts a missing file, because opening that file reports the error.
func readable(path string) error {
	i, err := os.Stat(path)
	if err != nil || i.Mode().IsRegular() {
		return nil //nolint:nilerr // opening it returns the same error, with its operation
	}
	var kind string
	switch mode := i.Mode(); {
	case mode&fs.ModeNamedPipe != 0:
		var s unix.Statfs_t
		if err := unix.Statfs(path, &s); err == nil && s.Type == unix.PIPEFS_MAGIC {
			return nil // an anonymous pipe, reached through /dev/fd or /proc
		}
		kind = "a named pipe"
	case mode&fs.ModeCharDevice != 0 && isNull(i):
		return nil
	case mode&fs.ModeDevice != 0:
		kind = "a device"
	case mode.IsDir():
		kind = "a directory"
	default:
		kind = "a file of mode " + mode.String()
	}
	return fmt.Errorf("%s: want a regular file or a pipe", kind)
}

// isNull reports whether a device is /dev/null.
func isNull(i fs.FileInfo) bool {
	s, ok := i.Sys().(*syscall.Stat_t)
	return ok && s.Rdev == unix.Mkdev(1, 3)
}
