// Package trusted refuses files and directories that another user can change or replace, before a program relies on them. Start at Path.
package trusted

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxLinks is the maximum number of symbolic links on a path, as in the kernel.
const maxLinks = 40

// NoGroup is the group for Path and Entry if no group may write.
const NoGroup = -1

// OwnGroup returns the process's group if its user alone is in it, otherwise NoGroup. Many systems give every user a group with the user's
// number; in others all users share one.
func OwnGroup() int { return ownGroup(os.Geteuid(), os.Getegid()) }

func ownGroup(user, group int) int {
	if user != group {
		return NoGroup
	}
	return group
}

// Path rejects a path that somebody else could change or replace. The file, every directory on its path from the root, and every symbolic
// link there with its own path must belong to root or to the process's user. No other user may have write access, and no group except the
// one that the caller trusts, or NoGroup. A directory with the sticky bit, such as /tmp, may be writable: only the owner of a file in it
// can move that file. Path returns the path without links. The error is fs.ErrNotExist if everything that exists of the path can be
// trusted.
func Path(path string, group int) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	at, rest := "/", parts(path)
	if err := Entry(at, group); err != nil {
		return "", err
	}
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == ".." { // from a link; at contains no links, and its path is checked already
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, name)
		if err := Entry(next, group); err != nil {
			return "", err
		}
		to, err := os.Readlink(next)
		if err != nil { // not a link
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("%s: more than %d symbolic links", path, maxLinks)
		}
		if filepath.IsAbs(to) {
			at = "/"
		}
		rest = append(parts(to), rest...)
	}
	return at, nil
}

// parts returns the names in a path, in order.
func parts(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == filepath.Separator })
}

// Entry checks one file, directory or link, but not its path.
func Entry(path string, group int) error {
	st, err := os.Lstat(path)
	if err != nil {
		return err
	}
	owner, owners := -1, NoGroup
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		owner, owners = int(sys.Uid), int(sys.Gid)
	}
	mode := st.Mode()
	writable := mode & 0o022
	if group != NoGroup && owners == group {
		writable &^= 0o020
	}
	sticky := mode.IsDir() && mode&fs.ModeSticky != 0
	switch {
	case owner != 0 && owner != os.Geteuid():
		return fmt.Errorf("%s: it belongs to user %d: want 0 or %d", path, owner, os.Geteuid())
	case mode.IsDir() && writable != 0 && !sticky:
		return fmt.Errorf("%s: given %s: want a directory that neither group nor others may write", path, mode)
	case mode.IsRegular() && writable != 0:
		return fmt.Errorf("%s: given %s: want a file that neither group nor others may write", path, mode)
	}
	return nil
}
