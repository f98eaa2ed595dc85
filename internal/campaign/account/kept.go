package account

import (
	"errors"
	"fmt"
	"io/fs"
)

// Kept is how a half's log says, at debug level and in JSON, which reports are safe in its copy.
const Kept = "reports kept"

// ReadKept adds to ids those of the reports that a half's log says were kept. A log that is not there says nothing.
func ReadKept(path string, ids map[string]bool) error {
	err := readLines(path, true, func(l line) {
		if l.Msg == Kept {
			for _, id := range l.Reports {
				ids[id] = true
			}
		}
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Balance compares what was kept with what was accepted: what was lost, and what was accepted more than once.
func Balance(kept map[string]bool, accepted map[string][]string) (lost, doubled []string) {
	for id := range kept {
		if len(accepted[id]) == 0 {
			lost = append(lost, id)
		}
	}
	for id, contents := range accepted {
		if len(contents) > 1 {
			doubled = append(doubled, fmt.Sprintf("%s, %d times", id, len(contents)))
		}
	}
	return lost, doubled
}
