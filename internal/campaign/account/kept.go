package account

import (
	"errors"
	"fmt"
	"io/fs"
)

// Kept is how a half's log says, at debug level and in JSON, which reports are safe in its copy, and Replaced which of them others
// stand for now: there was no room for both, or they were numbered anew.
const (
	Kept     = "reports kept"
	Replaced = "reports replaced"
)

// Fate is what a half's log says of a report.
type Fate uint8

// The fates.
const (
	Waits    Fate = iota + 1 // it is to be accepted
	StoodFor                 // another one stands for it
)

// ReadKept adds to ids those of the reports that a half's log says were kept. A log that is not there says nothing.
func ReadKept(path string, ids map[string]Fate) error {
	err := readLines(path, true, func(l line) {
		for _, id := range l.Reports {
			switch l.Msg {
			case Kept:
				ids[id] = Waits
			case Replaced:
				ids[id] = StoodFor
			}
		}
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Balance compares what was kept with what was accepted: what was lost, and what was accepted more than once. Of those that were not
// accepted, replaced is how many others stand for.
func Balance(kept map[string]Fate, accepted map[string][]string) (lost, doubled []string, replaced int) {
	for id, fate := range kept {
		switch {
		case len(accepted[id]) > 0:
		case fate == StoodFor:
			replaced++
		default:
			lost = append(lost, id)
		}
	}
	for id, contents := range accepted {
		if len(contents) > 1 {
			doubled = append(doubled, fmt.Sprintf("%s, %d times", id, len(contents)))
		}
	}
	return lost, doubled, replaced
}
