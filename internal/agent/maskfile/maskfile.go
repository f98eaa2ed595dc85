// Package maskfile keeps a node's channel mask on disk, the non-volatile state of seed 003 §6.1. The file is read
// before the first frame leaves, so that known faults are isolated at once, and not detected again all together.
//
// It knows only the disk. It reports an unreadable file as lost. All channels are usable then, and the neighbours'
// masks still keep messages off the links that they mask (a link is restored by both ends). The half asks the
// supervisors for their mask.
package maskfile

import (
	"fmt"

	"github.com/lofamo/lofamo/pkg/torus/chanmask"

	"github.com/lofamo/lofamo/internal/durable"
)

// Name is the file's name in the state directory.
const Name = "dnp.mask"

// Load reads the file. Without one the state is chanmask.Fresh: a first start. lost describes a file that cannot be
// read, or that Save did not write. The state is Fresh then too; this is no failure.
func Load(path string) (s chanmask.State, lost error) {
	return durable.Load(path, "channel mask", chanmask.StateSize, chanmask.Fresh(), chanmask.Decode)
}

// Save has the state on disk before it returns.
func Save(path string, s chanmask.State) error {
	if err := durable.Replace(path, s.Append(nil)); err != nil {
		return fmt.Errorf("channel mask %s: %w", path, err)
	}
	return nil
}
