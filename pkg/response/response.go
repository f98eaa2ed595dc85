// Package response decides what is done about faults (seed 001 §II, systemic response and local readjustment): policies
// say what they would like done, the engine says whether it may be, and when. Nothing happens twice, or too often, or on
// evidence that is too thin.
//
// It is pure: Engine.Step takes what has happened and returns what to commit, what to start once that is committed,
// and what was decided. It holds no clock, store, socket or goroutine, and it carries nothing out: that is for
// executors. Policy documents are read by pkg/response/policy, recorded events are replayed by pkg/response/replay.
//
// # The life of a response
//
//	      a fault matches a policy
//	                │
//	                ▼
//	            PROPOSED ◄───────────────────── a person retries ───────────────────────┐
//	                │                                                                    │
//	┌── a gate ──► WAITING (for what) ──► APPROVED, where approvals were asked for       │
//	│               │                         │                                          │
//	│               ▼                         ▼                                          │
//	└───────── RUNNING (step, attempt) ◄──────┘          denied, never approved in time, │
//	                │                                    the fault is gone first ──► EXPIRED
//	                ├── all steps passed ──► DONE ──┐
//	                └── a step failed ────► FAILED ─┤── a person retries ──► RUNNING
//	                                                │
//	              the fault is gone, or cancelled   └──► undo, latest first ──► UNDONE
//
// A response is of one policy and one fault, and stays open while the fault lasts: what was done, denied or has failed
// is not begun anew for the same fault. It is closed when the fault is gone and nothing more is to come.
//
// # What the caller must keep to
//
// Output.Records are committed in one transaction under the leader's fence, those of one step after those of the step
// before; Output.Effects are started only after that, and not at all if the commit is refused: then the caller says Lost.
// Every effect names the response, step and attempt of a committed record, and the fencing token.
//
// # What is safe, whatever a policy says
//
// Every gate is in gates.go, and every decision not to act is recorded with its reason, once. A step that takes a node
// from use, or ends work on it, begins only if all of them are open at that moment; so does every repetition. A leader
// begins with the committed records alone, and repeats what was under way only where the executor can look first
// whether it has happened (Kind.Repeatable); what cannot be looked at, as a reset, is settled by the
// next boot epoch of its host half or by a person.
package response

import (
	"fmt"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Target is what a fault is of: a component of a node, or a group fault.
type Target struct {
	Node      fault.NodeID
	Component fault.Component
	Group     string // id of a group fault; the others are then empty
}

// String returns "node/component", or "group" and its id.
func (t Target) String() string {
	if t.Group != "" {
		return "group " + t.Group
	}
	return string(t.Node) + "/" + t.Component.String()
}

// Fault is one component of a node as the map has it, NORMAL when its fault is gone.
type Fault struct {
	Node      fault.NodeID
	Component fault.Component
	State     fault.State
	Cause     fault.Cause
	Since     time.Time // when State began
	Evidence  Evidence
	// Inferred: UNKNOWN, and enclosed by the dead. Unreachable: UNKNOWN, and no living way leads there.
	Inferred, Unreachable bool
	Flapping              bool
	// Accusers are the nodes whose word alone makes the node bad. Nil if its own halves or the supervisors support the fault.
	Accusers []fault.NodeID
	// Platform of the node; 0 if no report states it. A dead host half on PlatformSharedKernel is a dead process.
	Platform fault.Platform
}

// Target is what the fault is of.
func (f Fault) Target() Target { return Target{Node: f.Node, Component: f.Component} }

// Evidence is what a state rests on.
type Evidence struct {
	// At is when the newest of it was heard; zero, nobody knows when, is older than any limit.
	At   time.Time
	Kind fault.Kind // of what decided
	// Witnesses are those whose word it is, each once: "node/half", or "supervisor/ID" for an unanswered challenge.
	Witnesses []string
	// Own is set if the accused itself signed a statement that supports the state, of a kind by which a half measures its own node.
	// No other node's statement sets it, of any kind. A measurement at a port never sets it, because the node at the other end may
	// cause that.
	Own bool
	// Port is set if the accused itself signed a statement on one of its own ports that supports the state.
	Port bool
	// Life is the time of the newest report that the accused signed: either half for a node, else the half with the fault. Zero if unknown.
	Life time.Time
	// SingleWitness is the map's own mark: fewer living witnesses than the quorum, or all of one failure domain.
	SingleWitness bool
	// Restarting is when the time ends that the node has announced for a restart of one of its halves. Zero: it has announced none.
	Restarting time.Time
}

// Group is a fault that stands above those of its members.
type Group struct {
	ID      string
	Kind    string      // ROW, PLANE, BLOCK, LABEL or PARTITION
	State   fault.State // NORMAL when it has ended
	Cause   fault.Cause
	Members []fault.NodeID // shared: not changed by anybody
	Of      int            // how many nodes the row, plane or label has
	Since   time.Time
	At      time.Time // when the newest evidence of it was heard
}

// Mode says whether a policy acts.
type Mode uint8

// The modes.
const (
	ObserveOnly Mode = iota + 1 // what it would do is recorded, and nothing is done
	Enforce
)

var modeNames = [...]string{"", "observe-only", "enforce"}

func (m Mode) String() string {
	if int(m) == 0 || int(m) >= len(modeNames) {
		return fmt.Sprintf("Mode(%d)", uint8(m))
	}
	return modeNames[m]
}

// OnFailure says what becomes of a response whose step has failed for good.
type OnFailure uint8

// What may follow a failure.
const (
	Stop OnFailure = iota + 1 // the response has failed, and waits for a person
	Next                      // the next step is tried: escalation
)

var onFailureNames = [...]string{"", "stop", "next"}

func (o OnFailure) String() string {
	if o == 0 || int(o) >= len(onFailureNames) {
		return fmt.Sprintf("OnFailure(%d)", uint8(o))
	}
	return onFailureNames[o]
}

// Step is one thing that a policy asks for.
type Step struct {
	Name       string // unique within its policy
	Kind       Kind
	Parameters map[string]string // as the kind has them; not changed by anybody
	Timeout    time.Duration     // of one attempt, from its start to its result
	Retries    int               // attempts after the first
	// Wait is how long the fault is given to go away after this step before the next one begins: the next one is an
	// escalation. 0: at once.
	Wait      time.Duration
	OnFailure OnFailure
}

// Guards narrow what the engine's own limits allow. None of them widens anything; zero values change nothing.
type Guards struct {
	Approvals      int           // subjects that have to approve before the first step: 0 to 2
	MaxNodes       int           // nodes under response of this policy at once
	Cooldown       time.Duration // between two responses of this policy on the same node
	MaxEvidenceAge time.Duration
}

// Undo says what happens when the fault is gone.
type Undo struct {
	OnRecovery bool
	After      time.Duration // that the fault must have been gone for
}

// Policy is one policy, ready for use.
type Policy struct {
	Name string
	// Digest stands for its content: another digest is another policy.
	Digest string
	Mode   Mode
	Groups bool // it is for group faults, not for those of nodes
	Match  Matcher
	Guards Guards
	Steps  []Step // at least one
	Undo   Undo
}

// Matcher is the compiled condition of a policy. It is deterministic and keeps nothing between calls.
type Matcher interface {
	// Match says whether the policy is for the fault. It fails where the condition cannot be evaluated, as for a label
	// that the node does not have.
	Match(s *Subject) (bool, error)
	// May says whether any fault of that component in that state could match; of group faults the component is 0.
	May(c fault.Component, s fault.State) bool
	// Thresholds are the durations of a fault at which the answer may change, in order.
	Thresholds() []time.Duration
}

// Subject is a fault as a condition sees it.
type Subject struct {
	Fault      Fault
	Group      *Group            // of a group fault, else nil
	Labels     map[string]string // of the node
	Groups     []string          // kinds of the group faults that the node is a member of, sorted
	Duration   time.Duration     // for which the state has lasted
	Recurrence int               // how often the component has had a fault within Config.RecurrenceWindow, this one included
}
