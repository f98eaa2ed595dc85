package response

import (
	"fmt"
	"slices"
	"strings"
)

// Reason is why an action was not taken.
type Reason uint8

// The reasons.
const (
	ReasonGrace          Reason = iota + 1 // the leader has just begun
	ReasonObserveOnly                      // the policy only observes
	ReasonUnmatched                        // the fault has changed, and the policy no longer matches
	ReasonPolicyChanged                    // the policy was changed or withdrawn
	ReasonBreaker                          // too much looked bad in too short a time
	ReasonMaintenance                      // a person works on the node
	ReasonOptOut                           // the node's label says so
	ReasonApproval                         // waits for a person's approval
	ReasonStormDelay                       // the fault is too young: others may follow
	ReasonEvidenceAge                      // the evidence is older than its limit
	ReasonSingleWitness                    // too few witnesses
	ReasonSingleDomain                     // all witnesses are in one failure domain
	ReasonQuorum                           // the supervisors could lose their quorum
	ReasonCooldown                         // the node had a response shortly before
	ReasonMaxNodes                         // the maximum number of nodes is under response
	ReasonMaxPercent                       // the same, of the cluster's nodes
	ReasonMaxPerDomain                     // the same, of a failure domain
	ReasonMaxPerPlane                      // the same, of a plane of the torus
	ReasonMaxPolicy                        // the same, of the policy
	ReasonRate                             // the maximum number of steps has begun recently
	ReasonTooMany                          // the maximum number of responses is open
	ReasonUnknownNode                      // the topology has no such node
	ReasonNoEpoch                          // no boot epoch is known that could prove the outcome
	ReasonEscalationWait                   // the previous step is given time to help
	ReasonRetryWait                        // the previous attempt has just failed
	ReasonOutcome                          // the step's outcome is unknown
	ReasonFaultGone                        // the fault ended before any action
	ReasonDenied                           // a person has denied it
	ReasonNotApproved                      // the approvals did not come in time
	ReasonCancelled                        // a person has cancelled it
	ReasonStepFailed                       // a step has failed for good
	ReasonUndoFailed                       // a step could not be undone
	ReasonRecoveryWait                     // the fault is gone, but not for long enough
	ReasonMatchError                       // the policy's condition cannot be evaluated
	ReasonUnseen                           // only its executor reports the step; no observer saw the node go down
	ReasonAlive                            // the accused still signs fresh reports
	ReasonRestarting                       // the node restarts a half, as announced
	ReasonNotFenced                        // the node that fences itself may still run
	ReasonNotManaged                       // only the node itself has named itself
)

var reasonNames = [...]string{"", "start-up grace", "observe-only", "no longer matches", "policy changed", "breaker open",
	"maintenance", "opted out", "approval",
	"storm delay", "evidence too old", "single witness", "single failure domain", "supervisors' quorum", "cool-down", "too many nodes",
	"too many percent of the nodes",
	"too many of a failure domain", "too many of a plane", "too many of the policy", "rate limit", "too many open responses", "unknown node",
	"no boot epoch known", "escalation wait",
	"retry wait", "outcome unknown", "fault gone", "denied", "not approved in time", "cancelled", "step failed", "undo failed",
	"recovery wait", "condition fails",
	"not seen to go down", "accused is alive", "node is restarting", "not fenced", "not managed"}

func (r Reason) String() string {
	if r == 0 || int(r) >= len(reasonNames) {
		return fmt.Sprintf("Reason(%d)", uint8(r))
	}
	return reasonNames[r]
}

// Reasons returns all reasons.
func Reasons() []Reason {
	out := make([]Reason, 0, len(reasonNames)-1)
	for r := 1; r < len(reasonNames); r++ {
		out = append(out, Reason(r)) //nolint:gosec // some dozens
	}
	return out
}

// ParseReason is the inverse of Reason.String; "" is 0, no reason.
func ParseReason(s string) (Reason, error) {
	if i := slices.Index(reasonNames[:], s); i >= 0 {
		return Reason(i), nil
	}
	return 0, fmt.Errorf("reason: given %.40q: want one of %s", s, strings.Join(reasonNames[1:], ", "))
}
