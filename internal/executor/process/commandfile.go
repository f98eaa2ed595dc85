package process

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxLinks is the maximum number of symbolic links on the path of a program, as in the kernel.
const maxLinks = 40

// checkFile rejects a program that somebody else could change or replace. The file, every directory on its path from
// the root, and every symbolic link there with its own path must belong to root or to the process' user, and neither
// group nor others may have write access. A directory with the sticky bit, such as /tmp, may be writable: only the
// owner of a file in it can move that file.
func (c Command) checkFile() error {
	at, rest := "/", parts(c.Path)
	if err := checkPlace(at); err != nil {
		return fmt.Errorf("command %s: %w", c.Name, err)
	}
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == ".." { // from a link; at contains no links, and its path is checked already
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, name)
		if err := checkPlace(next); err != nil {
			return fmt.Errorf("command %s: %w", c.Name, err)
		}
		to, err := os.Readlink(next)
		if err != nil { // not a link
			at = next
			continue
		}
		if links++; links > maxLinks {
			return fmt.Errorf("command %s: %s: more than %d symbolic links", c.Name, c.Path, maxLinks)
		}
		if filepath.IsAbs(to) {
			at = "/"
		}
		rest = append(parts(to), rest...)
	}
	st, err := os.Lstat(at)
	if err != nil {
		return fmt.Errorf("command %s: %w", c.Name, err)
	}
	if !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
		return fmt.Errorf("command %s: %s: given %s: want a file that may be executed", c.Name, at, st.Mode())
	}
	return nil
}

// parts returns the names in a path, in order.
func parts(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == filepath.Separator })
}

// checkPlace checks one file, directory or link on the path of a program.
func checkPlace(path string) error {
	st, err := os.Lstat(path)
	if err != nil {
		return err
	}
	owner := -1
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		owner = int(sys.Uid)
	}
	mode := st.Mode()
	sticky := mode.IsDir() && mode&fs.ModeSticky != 0
	switch {
	case owner != 0 && owner != os.Geteuid():
		return fmt.Errorf("%s: it belongs to user %d: want 0 or %d", path, owner, os.Geteuid())
	case mode.IsDir() && mode&0o022 != 0 && !sticky:
		return fmt.Errorf("%s: given %s: want a directory that neither group nor others may write", path, mode)
	case mode.IsRegular() && mode&0o022 != 0:
		return fmt.Errorf("%s: given %s: want a file that neither group nor others may write", path, mode)
	}
	return nil
}
