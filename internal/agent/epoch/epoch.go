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
	"strconv"
	"strings"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/durable"
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

// Set puts an epoch on disk: it is there, whole, whatever happens after. A half that may not count its start could not
// start, so a full disk is no reason not to; a number that a crash garbled there is taken for lost.
func Set(path string, e fault.Epoch) error {
	if err := durable.Replace(path, []byte(strconv.FormatUint(uint64(e), 10)+"\n")); err != nil {
		return fmt.Errorf("boot epoch %s: %w", path, err)
	}
	return nil
}
