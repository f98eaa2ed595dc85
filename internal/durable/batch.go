package durable

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
)

// Batch replaces several files. Add writes each new file beside the old one and syncs it to disk; Commit renames all new files. All old
// files stay until Commit, also if the disk is full or the process is killed. A process that is killed within Commit, which only renames,
// can leave some new files beside old ones. The zero Batch is ready for use, by one goroutine.
type Batch struct {
	paths []string // of the files to replace, in the order of Add
}

// Add writes the new content of a file beside it. It follows no link. The new file belongs to uid and gid from the beginning; -1 stands for
// the calling user's.
func (b *Batch) Add(path string, data []byte, mode os.FileMode, uid, gid int) error {
	if err := stage(path, data, mode, uid, gid); err != nil {
		return err
	}
	b.paths = append(b.paths, path)
	return nil
}

// Commit replaces the files in the order of Add. After an error, some are replaced.
func (b *Batch) Commit() error {
	var dirs []string
	for len(b.paths) > 0 {
		path := b.paths[0]
		if err := os.Rename(path+newFile, path); err != nil {
			return err
		}
		b.paths, dirs = b.paths[1:], append(dirs, filepath.Dir(path))
	}
	slices.Sort(dirs)
	var errs []error
	for _, dir := range slices.Compact(dirs) {
		errs = append(errs, syncDir(dir))
	}
	return errors.Join(errs...)
}

// Discard removes the new files that Commit has not renamed.
func (b *Batch) Discard() error {
	var errs []error
	for _, path := range b.paths {
		errs = append(errs, os.Remove(path+newFile))
	}
	b.paths = nil
	return errors.Join(errs...)
}
