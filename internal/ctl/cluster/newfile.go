package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/lofamo/lofamo/internal/ctl/command"
)

// mayWrite rejects an existing target, unless it is a file and force is set. name is the target's name in the error.
func mayWrite(name, path string, force bool) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", name, err)
	case !info.Mode().IsRegular():
		return command.Usagef("%s: exists, and is no regular file", name)
	case !force:
		return command.Usagef("%s: already exists: --force overwrites it", name)
	}
	return nil
}

// giveName gives a temporary file beside its target the target's name. Without force it uses a link, which never overwrites, not even a
// file that appeared meanwhile.
func giveName(temporary, path string, force bool) error {
	if !force {
		err := os.Link(temporary, path)
		if err == nil {
			return os.Remove(temporary)
		}
		if errors.Is(err, fs.ErrExist) {
			return command.Usagef("%s: already exists: --force overwrites it", path)
		}
		// a file system without links
	}
	if err := mayWrite(path, path, force); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
