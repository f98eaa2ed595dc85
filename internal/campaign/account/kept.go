package account

import (
	"errors"
	"fmt"
	"io/fs"
)

// Kept is the message with which a half logs, at debug level and in JSON, the reports that are safe in its copy.
// Replaced is the message for those of them that others now stand for, because there was no room for both or they got
// new numbers.
const (
	Kept     = "reports kept"
	Replaced = "reports replaced"
)

// Fate is the state of a report according to a half's log.
type Fate uint8

// Values of Fate.
const (
	Waits    Fate = iota + 1 // it must be accepted
	StoodFor                 // another report stands for it
)

// ReadKept adds the IDs of the reports that a half's log lists as kept. A missing log adds none.
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

// Balance compares kept with accepted reports. It returns the lost ones, those accepted more than once, and the number
// of reports that were not accepted because others stand for them.
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
