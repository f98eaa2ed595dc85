// Package maskfile keeps a node's channel mask on disk, the non-volatile state of seed 003 §6.1: it is there before the first
// frame leaves, so that old faults are isolated at once and not found anew, all together.
//
// It knows only the disk. What cannot be read is lost, and said so: all channels are usable then, the neighbours' masks still
// keep messages off the links that they mask (a link is restored by both ends), and the supervisors are asked for their word.
package maskfile

import (
	"fmt"

	"github.com/lofamo/lofamo/pkg/torus/chanmask"

	"github.com/lofamo/lofamo/internal/durable"
)

// Name is the file's name in the state directory.
const Name = "dnp.mask"

// Load reads the file. Without one the state is chanmask.Fresh: a first start. lost tells of one that cannot be read, or is not
// what Save wrote; the state is Fresh then too, and it is no failure.
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
