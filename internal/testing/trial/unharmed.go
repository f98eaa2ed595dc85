package trial

import (
	"fmt"
	"strings"
)

// Unharmed names kinds of processes that no step ends or stops, so that their memory can be judged over the whole trial.
// Halves are no such kind: on a large torus some live for the whole trial by chance.
type Unharmed struct {
	Supervisors bool `json:"supervisors,omitempty"`
	Daemons     bool `json:"daemons,omitempty"` // recovery daemons
}

// ParseUnharmed reads kinds with commas between them; an empty text names none.
func ParseUnharmed(text string) (s Unharmed, err error) {
	if text == "" {
		return s, nil
	}
	for kind := range strings.SplitSeq(text, ",") {
		switch kind {
		case "supervisors":
			s.Supervisors = true
		case "daemons":
			s.Daemons = true
		default:
			return Unharmed{}, fmt.Errorf("unharmed %q: want supervisors, daemons, or both with a comma between them", text)
		}
	}
	return s, nil
}

// String is the inverse of ParseUnharmed.
func (s Unharmed) String() string {
	var kinds []string
	if s.Supervisors {
		kinds = append(kinds, "supervisors")
	}
	if s.Daemons {
		kinds = append(kinds, "daemons")
	}
	return strings.Join(kinds, ",")
}
