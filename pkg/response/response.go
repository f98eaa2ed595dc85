// Package response decides on responses to faults (seed 001 §II, systemic response and local readjustment). Policies
// request actions; the engine decides whether and when they may happen. No action happens twice, or too often, or on
// insufficient evidence.
//
// The package is pure: Engine.Step takes an event and returns the records to commit, the effects to start once these
// are committed, and the decisions. It holds no clock, store, socket or goroutine, and it carries nothing out: that is
// for executors. Package pkg/response/policy reads policy documents and replays recorded events.
//
// # The life of a response
//
//	      a fault matches a policy
//	                │
//	                ▼
//	            PROPOSED ◄───────────────────── a person retries ───────────────────────┐
//	                │                                                                    │
//	┌── a gate ──► WAITING (for what) ──► APPROVED, where approvals are required       │
//	│               │                         │                                          │
//	│               ▼                         ▼                                          │
//	└───────── RUNNING (step, attempt) ◄──────┘          denied, never approved in time, │
//	                │                                    the fault is gone first ──► EXPIRED
//	                ├── all steps passed ──► DONE ──┐
//	                └── a step failed ────► FAILED ─┤── a person retries ──► RUNNING
//	                                                │
//	              the fault is gone, or cancelled   └──► undo, latest first ──► UNDONE
//
// A response belongs to one policy and one fault, and stays open while the fault lasts: an action that was completed,
// denied or has failed is not begun again for the same fault. The response is closed when the fault is gone and nothing
// remains to be done.
//
// # Obligations of the caller
//
// Output.Records are committed in one transaction under the leader's fence, those of one step after those of the step
// before. The caller starts the effects only after that, and not at all if the commit is refused: then it sends Lost.
// Every effect names the response, step and attempt of a committed record, and the fencing token.
//
// # Safety, independent of policies
//
// Every gate is in gates.go, and the engine records every decision not to act with its reason, once. A step that takes
// a node out of use, or ends work on it, begins only if all gates are open at that moment; the same holds for every
// repetition. A leader begins with the committed records alone. It repeats an interrupted attempt only if the executor
// can first check whether the step has happened (Traits.Repeatable). For a step that cannot be checked, such as a reset,
// an executor that remembers the attempt reports the outcome (Output.Unsettled). Otherwise the next boot epoch of the host half
// or a person settles the step.
package response

import (
	"fmt"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Target is the subject of a fault: a component of a node, or a group fault.
type Target struct {
	Node      fault.NodeID
	Component fault.Component
	Group     string // id of a group fault; the other fields are then empty
}

// String returns "node/component", or "group" and its id.
func (t Target) String() string {
	if t.Group != "" {
		return "group " + t.Group
	}
	return string(t.Node) + "/" + t.Component.String()
}

// Fault is the state of one component of a node in the map, NORMAL when its fault is gone.
type Fault struct {
	Node      fault.NodeID
	Component fault.Component
	State     fault.State
	Cause     fault.Cause
	Since     time.Time // when State began
	Evidence  Evidence
	// Inferred: UNKNOWN, and enclosed by dead nodes. Unreachable: UNKNOWN, and no live path leads to the node.
	Inferred, Unreachable bool
	Stopped               bool // UNKNOWN, and the node has announced a clean stop
	NoLife                bool // the leader that found the fault had heard nothing from the accused in its term
	Flapping              bool
	// Accusers are the nodes whose statements alone make the node bad. Nil if its own halves or the supervisors support
	// the fault.
	Accusers []fault.NodeID
	// Platform of the node; 0 if no report states it. A dead host half on PlatformSharedKernel is a dead process.
	Platform fault.Platform
	// KernelDead says whether the kernel died with the half, or with the FAILED node; for other components it is unknown.
	KernelDead fault.KernelDead
	// Watchdog is the node's hardware watchdog, by its own word.
	Watchdog Watchdog
}

// Target returns the subject of the fault.
func (f Fault) Target() Target { return Target{Node: f.Node, Component: f.Component} }

// Evidence is the evidence for a state.
type Evidence struct {
	// At is the arrival of the newest evidence; zero, unknown, is older than any limit.
	At   time.Time
	Kind fault.Kind // of the deciding evidence
	// Witnesses are the sources of the evidence, each once: "node/half", or "supervisor/ID" for an unanswered
	// challenge.
	Witnesses []string
	// Own is set if the accused itself signed a statement that supports the state, of a kind by which a half measures
	// its own node. No other node's statement sets it, of any kind. A measurement at a port never sets it, because the
	// node at the other end may cause that.
	Own bool
	// Port is set if the accused itself signed a statement on one of its own ports that supports the state.
	Port bool
	// Life is the time of the newest report that the accused signed: either half for a node, else the half with the
	// fault. Zero if unknown.
	Life time.Time
	// SingleWitness is the map's own mark: fewer live witnesses than the quorum, or all of one failure domain.
	SingleWitness bool
	// Restarting is the end of the time that the node has announced for a restart of one of its halves. Zero: it has
	// announced none.
	Restarting time.Time
}

// Group is a fault that covers the faults of its members.
type Group struct {
	ID      string
	Kind    string      // ROW, PLANE, BLOCK, LABEL or PARTITION
	State   fault.State // NORMAL when it has ended
	Cause   fault.Cause
	Members []fault.NodeID // shared and immutable
	Of      int            // number of nodes in the row, plane or label
	Since   time.Time
	At      time.Time // arrival of the group's newest evidence
}

// Mode determines whether a policy acts.
type Mode uint8

// The modes.
const (
	ObserveOnly Mode = iota + 1 // the steps are audited, and nothing is done
	Enforce
)

var modeNames = [...]string{"", "observe-only", "enforce"}

func (m Mode) String() string {
	if int(m) == 0 || int(m) >= len(modeNames) {
		return fmt.Sprintf("Mode(%d)", uint8(m))
	}
	return modeNames[m]
}

// OnFailure determines the response's course after a step has failed for good.
type OnFailure uint8

// The courses after a failure.
const (
	Stop OnFailure = iota + 1 // the response has failed, and waits for a person
	Next                      // the next step follows: escalation
)

var onFailureNames = [...]string{"", "stop", "next"}

func (o OnFailure) String() string {
	if o == 0 || int(o) >= len(onFailureNames) {
		return fmt.Sprintf("OnFailure(%d)", uint8(o))
	}
	return onFailureNames[o]
}

// Step is one action that a policy requests.
type Step struct {
	Name       string // unique within its policy
	Kind       Kind
	Parameters map[string]string // as the kind defines them; immutable
	Timeout    time.Duration     // of one attempt, from its start to its result
	Retries    int               // attempts after the first
	// Wait is how long the fault is given to go away after this step before the next one begins: the next one is an
	// escalation. 0: at once.
	Wait      time.Duration
	OnFailure OnFailure
}

// Guards narrow the engine's own limits. They never widen them; zero values change nothing.
type Guards struct {
	Approvals      int           // number of subjects that must approve before the first step: 0 to 2
	MaxNodes       int           // nodes under response of this policy at once
	Cooldown       time.Duration // between two responses of this policy on the same node
	MaxEvidenceAge time.Duration
}

// Undo determines the course after the fault is gone.
type Undo struct {
	OnRecovery bool
	After      time.Duration // how long the fault must have been gone
}

// Policy is one policy, ready for use.
type Policy struct {
	Name string
	// Digest identifies its content: another digest is another policy.
	Digest string
	Mode   Mode
	Groups bool // for group faults, not for faults of nodes
	// Incidents: the condition depends on fault.incident, so that the policy notifies once for each incident.
	Incidents bool
	Match     Matcher
	Outside   []Outside // required beside Match, at most MaxOutside; none for group faults
	Guards    Guards
	Steps     []Step // at least one
	Undo      Undo
}

// Matcher is the compiled condition of a policy. It is deterministic and keeps nothing between calls.
type Matcher interface {
	// Match reports whether the policy applies to the fault. It fails if the condition cannot be evaluated, e.g. for a
	// label that the node does not have.
	Match(s *Subject) (bool, error)
	// May reports whether any fault of that component in that state could match; for group faults the component is 0.
	May(c fault.Component, s fault.State) bool
	// Thresholds are the durations of a fault at which the answer may change, in order.
	Thresholds() []time.Duration
}

// Subject is a fault as a condition sees it.
type Subject struct {
	Fault      Fault
	Group      *Group            // for a group fault, otherwise nil
	Labels     map[string]string // of the node
	Groups     []string          // kinds of the node's group faults, sorted
	Duration   time.Duration     // age of the state
	Recurrence int               // number of the component's faults within Config.RecurrenceWindow, including this one
	Incident   string            // id of the open incident whose root cause this is; empty: another fault explains it, or none yet
}
