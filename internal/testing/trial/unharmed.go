package trial

import (
	"fmt"
	"strings"
	"time"

	"github.com/lofamo/lofamo/internal/config"
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

// keepLittle bounds the history of a supervisor that lives for the whole trial, so that its store is full after its warm-up. Its
// memory then grows only if something leaks.
func (s Unharmed) keepLittle(c *config.Supervisor) {
	if s.Supervisors {
		c.Etcd.KeepEvents, c.Etcd.HistoryBytes, c.Etcd.CompactionRetention = 1000, 1<<20, config.Duration(time.Minute)
		c.Etcd.KeepIncidents = 100
	}
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
