package servicenet

import "fmt"

// MigrationReason is the reason why the primary path changed: one of a few, so that they can be counted.
type MigrationReason uint8

// The reasons.
const (
	ReasonUnanswered    MigrationReason = iota + 1 // no answer by the old path
	ReasonPathError                                // the kernel refused it, or an ICMP error came back
	ReasonInterfaceDown                            // its service interface went down
	ReasonLeader                                   // the leader is elsewhere, and the way there is proven
	ReasonReestablished                            // none worked, and a supervisor has replied again
)

var migrationReasonNames = [...]string{"", "unanswered", "path-error", "interface-down", "leader", "re-established"}

// MigrationReasons returns all reasons.
func MigrationReasons() []MigrationReason {
	return []MigrationReason{ReasonUnanswered, ReasonPathError, ReasonInterfaceDown, ReasonLeader, ReasonReestablished}
}

func (r MigrationReason) String() string {
	if r == 0 || int(r) >= len(migrationReasonNames) {
		return fmt.Sprintf("MigrationReason(%d)", uint8(r))
	}
	return migrationReasonNames[r]
}

// whyLeader is Migration.Why of a move to the leader.
const whyLeader = "the leader is there"

// reason classifies a migration by the state before it, and by its event.
func (s *Sender) reason(ev Event, m Migration) MigrationReason {
	if s.asking {
		return ReasonReestablished
	}
	switch ev.(type) {
	case PathFailed:
		return ReasonPathError
	case RailDown:
		return ReasonInterfaceDown
	}
	if m.Why == whyLeader {
		return ReasonLeader
	}
	return ReasonUnanswered
}
