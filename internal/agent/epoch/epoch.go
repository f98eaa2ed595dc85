// Package epoch keeps a half's boot epoch on disk: a number that grows with every start and never
// goes back, so that reports of an earlier life are told from those of this one.
//
// It knows only the disk. A half without a file, on its first start or because the file is lost, draws
// its number: were it 1 each time, reports under the numbers of an earlier life would be taken for copies,
// acknowledged and lost. Supervisors who have seen a higher one answer STALE_EPOCH with the number to go
// on from (pkg/servicenet), and Set keeps it.
package epoch

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/lofamo/lofamo/pkg/fault"
)

// maxFirst bounds what is drawn. It is small beside servicenet.MaxEpochJump, so that supervisors who have
// seen a lower number take it, and so large that it meets one of the four epochs that they keep of a half
// once in 16,000 losses.
const maxFirst = 1 << 16

// Read returns the number on disk; 0: there is none, or none that can be understood.
func Read(path string) fault.Epoch {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	e, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 63)
	if err != nil {
		return 0
	}
	return fault.Epoch(e)
}

// Next counts one start: it reads the file, adds one and has the result on disk before it returns.
// Without a file the result is drawn, from 1 to maxFirst. garbled tells of one that could not be understood and
// was taken for lost; it is no failure.
func Next(path string) (e fault.Epoch, garbled, err error) {
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e = rand.N[fault.Epoch](maxFirst)
	case err != nil:
		return 0, nil, fmt.Errorf("boot epoch %s: %w", path, err)
	default:
		last, perr := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 63)
		if perr != nil {
			garbled = fmt.Errorf("boot epoch %s: holds %.40q: want a number: taken for lost", path, b)
		}
		e = fault.Epoch(last)
	}
	if garbled != nil {
		e = rand.N[fault.Epoch](maxFirst)
	}
	e++
	return e, garbled, Set(path, e)
}

// Set puts an epoch on disk: it is there, whole, whatever happens after. On a full disk there is no
// room for a new file, and the old one is overwritten in place: a half that may not count its start
// could not start, and a number that a crash garbled is taken for lost.
func Set(path string, e fault.Epoch) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("boot epoch %s: %w", path, err)
		}
	}()
	text := strconv.FormatUint(uint64(e), 10) + "\n"
	err = replace(path, text)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		if oerr := overwrite(path, text); oerr != nil {
			return errors.Join(err, oerr)
		}
		return nil
	}
	return err
}

func replace(path, text string) error {
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func overwrite(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Truncate(int64(len(text))), f.Sync(), f.Close())
}
