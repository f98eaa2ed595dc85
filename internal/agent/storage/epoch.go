package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/durable"
)

// maxFirst bounds the random first epoch. It is small beside servicenet.MaxEpochJump, so that supervisors that have
// seen a lower number accept it. It is large enough that it meets one of the four epochs that they keep of a half
// only once in 16,000 losses.
const maxFirst = 1 << 16

// ReadEpoch returns the number on disk; 0: none, or an unreadable one.
func ReadEpoch(path string) fault.Epoch {
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

// NextEpoch counts one start: it reads the file, adds one, and returns after the result is on disk. Without a file it
// draws the result, from 1 to maxFirst. garbled describes a file that could not be parsed and counts as lost; it is
// no failure.
func NextEpoch(path string) (e fault.Epoch, garbled, err error) {
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
	return e, garbled, SetEpoch(path, e)
}

// SetEpoch writes an epoch to disk atomically and durably. A half that cannot count its start could not start, so a
// full disk is no error; a number that a crash garbled there counts as lost.
func SetEpoch(path string, e fault.Epoch) error {
	if err := durable.Replace(path, []byte(strconv.FormatUint(uint64(e), 10)+"\n")); err != nil {
		return fmt.Errorf("boot epoch %s: %w", path, err)
	}
	return nil
}
