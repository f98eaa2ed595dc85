package durable

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Room is the free space of the file system that holds a directory.
type Room struct {
	Free       uint64 // bytes that this process may still write
	MountPoint string // "" if the kernel does not say
	Device     string // as in the mount table, such as /dev/vda1 or tmpfs
}

// String returns the free space and the disk in words.
func (r Room) String() string {
	return fmt.Sprintf("%d MiB free on %s", r.Free>>20, r.Disk())
}

// Disk names the file system.
func (r Room) Disk() string {
	if r.MountPoint == "" {
		return "its disk"
	}
	return r.MountPoint + " (" + r.Device + ")"
}

// Free returns the bytes that this process may still write to a directory.
func Free(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// RoomOf returns the free space for a directory, or for the one in which it would be made.
func RoomOf(dir string) (Room, error) {
	path, err := filepath.Abs(dir)
	if err != nil {
		return Room{}, err
	}
	var r Room
	for {
		if r.Free, err = Free(path); err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || path == filepath.Dir(path) {
			return Room{}, err
		}
		path = filepath.Dir(path)
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		if mounts, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
			r.MountPoint, r.Device = mountOf(mounts, target)
		}
	}
	return r, nil
}

// mountOf finds the mount of an absolute path without links in the text of a mountinfo file: the longest one, and of
// those the last one, which covers the others.
func mountOf(mountinfo []byte, path string) (point, device string) {
	for line := range bytes.Lines(mountinfo) {
		before, after, ok := strings.Cut(string(line), " - ")
		fields, rest := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(rest) < 2 {
			continue
		}
		at := unescapeMount(fields[4])
		if under := strings.TrimSuffix(at, "/") + "/"; len(at) >= len(point) && (path == at || strings.HasPrefix(path, under)) {
			point, device = at, unescapeMount(rest[1])
		}
	}
	return point, device
}

// unescapeMount decodes \040 and the like.
func unescapeMount(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// Low tracks whether a disk has less than a bound free. It is over only with an eighth more than the bound.
type Low struct{ On bool }

// Update takes the free space and reports whether the condition has changed.
func (l *Low) Update(free, bound uint64) (changed bool) {
	if l.On {
		bound += bound / 8
	}
	was := l.On
	l.On = free < bound
	return l.On != was
}
