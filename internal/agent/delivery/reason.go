package delivery

import (
	"fmt"
	"strings"

	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Reason is why the primary path changed, in so few words that they can be counted.
type Reason uint8

// The reasons.
const (
	Unanswered    Reason = iota + 1 // no answer by the old path
	PathError                       // the kernel refused it, or an ICMP error came back
	InterfaceDown                   // its service interface went down
	Leader                          // the leader is elsewhere, and the way there is proven
	Reestablished                   // none worked, and a supervisor has replied again
)

var reasonNames = [...]string{"", "unanswered", "path-error", "interface-down", "leader", "re-established"}

// Reasons returns all reasons.
func Reasons() []Reason { return []Reason{Unanswered, PathError, InterfaceDown, Leader, Reestablished} }

func (r Reason) String() string {
	if r == 0 || int(r) >= len(reasonNames) {
		return fmt.Sprintf("Reason(%d)", uint8(r))
	}
	return reasonNames[r]
}

// reason classifies a migration by the state before it, and by its event.
func (s *Sender) reason(ev servicenet.Event, m servicenet.Migration) Reason {
	if s.asking {
		return Reestablished
	}
	switch ev.(type) {
	case servicenet.PathFailed:
		return PathError
	case servicenet.RailDown:
		return InterfaceDown
	}
	if strings.Contains(m.Why, "leader") {
		return Leader
	}
	return Unanswered
}
