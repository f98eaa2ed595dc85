package source

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/lofamo/lofamo/pkg/fault"
)

// maxFile limits the length of one kernel file, in bytes; /proc/vmstat is the largest at 5 kB.
const maxFile = 64 << 10

// Root is the mount point of a proc or sys file system, or a recorded tree in its place.
type Root string

// Path returns the file's path below the root.
func (r Root) Path(elem ...string) string {
	return filepath.Join(append([]string{string(r)}, elem...)...)
}

// fileError is the failure to read a file.
type fileError struct {
	root Root
	path string // below the root
	err  error
}

func (e *fileError) Error() string { return "read " + e.root.Path(e.path) + ": " + e.err.Error() }
func (e *fileError) Unwrap() error { return e.err }

// Bad returns the error of a file below the root that was unreadable, or holds something that makes no sense.
func (r Root) Bad(err error, elem ...string) error { return &fileError{r, filepath.Join(elem...), err} }

// short returns an error for a note, where a whole path has no room.
func short(err error) string {
	var f *fileError
	if errors.As(err, &f) {
		return "not read: " + f.path + ": " + f.err.Error()
	}
	return err.Error()
}

// Text reads a file and trims white space off its ends.
func (r Root) Text(elem ...string) (string, error) {
	s, err := read(r.Path(elem...))
	if err != nil {
		return "", r.Bad(err, elem...)
	}
	return s, nil
}

// read returns up to maxFile bytes of a file, without white space at its ends. It makes four calls to the kernel for a small one.
// An os.File makes nine: it also registers with the runtime's poller, because the kernel's files can be polled. The kernel computes
// /proc/vmstat again for each call, so the first one has room for a page.
func read(path string) (string, error) {
	fd, err := open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = syscall.Close(fd) }() // read only: nothing to lose
	var page [4 << 10]byte
	b := page[:0]
	for len(b) < maxFile {
		if len(b) == cap(b) {
			b = slices.Grow(b, len(b))
		}
		n, err := retry(func() (int, error) { return syscall.Read(fd, b[len(b):min(cap(b), maxFile)]) })
		if err != nil {
			return "", err
		}
		if n == 0 {
			break
		}
		b = b[:len(b)+n]
	}
	return string(bytes.TrimSpace(b)), nil
}

func open(path string) (int, error) {
	return retry(func() (int, error) { return syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0) })
}

// number returns the text of a file that holds one number. The kernel returns such a file as a whole, so it makes three calls.
func number(path string) (string, error) {
	var b [64]byte
	fd, err := open(path)
	if err != nil {
		return "", err
	}
	n, err := retry(func() (int, error) { return syscall.Read(fd, b[:]) })
	_ = syscall.Close(fd) // read only: nothing to lose
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(b[:n])), nil
}

// retry repeats a call that a signal has interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}

// Uint reads a file that holds one unsigned decimal number.
func (r Root) Uint(elem ...string) (uint64, error) {
	s, err := number(r.Path(elem...))
	if err != nil {
		return 0, r.Bad(err, elem...)
	}
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, r.Bad(fmt.Errorf("holds %q: want a number of 0 or more", clip(s)), elem...)
	}
	return v, nil
}

// Int reads a file that holds one decimal number.
func (r Root) Int(elem ...string) (int64, error) {
	s, err := number(r.Path(elem...))
	if err != nil {
		return 0, r.Bad(err, elem...)
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, r.Bad(fmt.Errorf("holds %q: want a number", clip(s)), elem...)
	}
	return v, nil
}

// Glob returns the names of the files in dir that match the pattern, sorted; none if there is no
// such directory.
func (r Root) Glob(dir, pattern string) ([]string, error) {
	entries, err := os.ReadDir(r.Path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, r.Bad(reason(err), dir)
	}
	var out []string
	for _, e := range entries {
		ok, err := filepath.Match(pattern, e.Name())
		if err != nil {
			return nil, fmt.Errorf("list %s: pattern %q: %w", r.Path(dir), pattern, err)
		}
		if ok {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// Exists reports whether the file exists. Only a certain no is false.
func (r Root) Exists(elem ...string) bool {
	_, err := os.Stat(r.Path(elem...))
	return !errors.Is(err, fs.ErrNotExist)
}

// Missing reports whether a file error means that the machine lacks the component, as opposed to a failed read. Drivers
// return these errors when an input is not wired or powered (ENODATA and ENXIO in
// Documentation/hwmon/sysfs-interface.rst; iwlwifi and others return the rest).
func Missing(err error) bool {
	for _, e := range []error{fs.ErrNotExist, syscall.ENODATA, syscall.ENXIO, syscall.ENODEV, syscall.EOPNOTSUPP, syscall.EAGAIN} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// reason strips operation and path from a file error.
func reason(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// clip shortens foreign text for an error.
func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}

// Detail makes any text fit Reading.Detail: one line, printable, valid UTF-8, limited length.
func Detail(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	var b strings.Builder
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			r = '?'
		}
		if b.Len()+utf8.RuneLen(r) > fault.MaxDetail {
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}
