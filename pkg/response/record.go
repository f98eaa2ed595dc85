package response

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// State is where a response is in its life: see the package comment.
type State uint8

// The states.
const (
	Proposed State = iota + 1
	Waiting
	Approved
	Running
	Done
	Failed
	Undone
	Expired
)

var stateNames = [...]string{"", "proposed", "waiting", "approved", "running", "done", "failed", "undone", "expired"}

func (s State) String() string {
	if s == 0 || int(s) >= len(stateNames) {
		return fmt.Sprintf("State(%d)", uint8(s))
	}
	return stateNames[s]
}

// StepState is where one step of a response is.
type StepState uint8

// The states of a step.
const (
	Pending     StepState = iota + 1 // not begun, or to be tried again
	Acting                           // an attempt is committed and under way
	Acted                            // done
	StepFailed                       // all attempts have failed
	Interrupted                      // an attempt's outcome is not known
	Undoing                          // it is being put back
	PutBack                          // it was put back
)

var stepStateNames = [...]string{"", "pending", "acting", "acted", "failed", "interrupted", "undoing", "put back"}

func (s StepState) String() string {
	if s == 0 || int(s) >= len(stepStateNames) {
		return fmt.Sprintf("StepState(%d)", uint8(s))
	}
	return stepStateNames[s]
}

// Record is what is committed: a *Response or a *Breaker. The newest of a key counts.
type Record interface {
	// Key is unique among records, and stays the same for ever.
	Key() string
}

// Response is one response, as it is committed. It holds all that another leader needs: the steps are those of the
// policy as it was when the response was proposed.
type Response struct {
	ID     string // unique for ever: made of the token under which it was proposed and a number
	Policy string
	Digest string // of the policy
	Mode   Mode
	Target Target
	// What was proposed for, for people.
	FaultState fault.State
	FaultCause fault.Cause
	FaultSince time.Time

	State  State
	Reason Reason // why it waits, has failed or has expired; 0 else
	Detail string // for people

	Guards    Guards
	Undo      Undo
	Steps     []StepRecord
	Step      int // index of the step that is next or under way; len(Steps): all are passed
	Undoing   bool
	Cancelled bool // a person wants it ended and put back
	Approvals []Approval

	Proposed time.Time
	Asked    time.Time // since when approvals are waited for; zero: they are not
	Gone     time.Time // since when the fault is gone; zero: it stands
	Closed   time.Time // nothing more is to come; zero: it is open
	Token    uint64    // under which it was written
	Version  uint64    // grows by one with every record of this response
}

// Key implements Record.
func (r *Response) Key() string { return "response/" + r.ID }

// StepRecord is a step and what became of it.
type StepRecord struct {
	Step
	State   StepState
	Attempt int // of acting and of undoing together, from 1: no two attempts have the same number
	// Failures of the present direction; what was interrupted by a change of leaders is no failure.
	Failures int
	First    time.Time // when the first attempt began; zero: none did
	Started  time.Time // of the newest attempt
	Ended    time.Time // of the newest attempt; zero: not known
	// Changed: something on the target is other than it was, or may be. Only then is it undone.
	Changed bool
	// Again: so it was before the newest attempt, which looks first. That this one has changed nothing then says nothing of those
	// before: it may not even have reached its target.
	Again bool
	// Reported: the executor says that the newest attempt has succeeded, and that is not relied on: the step is Interrupted until
	// the node was seen to go down, and StepFailed when it was not within sightTime of Ended.
	Reported bool
	Up       bool        // the node as a whole was neither FAILED nor UNKNOWN when the newest attempt began: that it is FAILED since says something
	Epoch    fault.Epoch // of the node's host when the newest attempt began
	Detail   string
}

// bootTime is what a machine that was reset is given at least until its host half has begun anew: what follows must not meet it
// in the middle of its boot.
const bootTime = 15 * time.Minute

// sightTime is for how long a step that is Reported may go unseen: as long as a machine may take to boot, or what the fault is
// given to go away after it, or the time of an attempt, where that is longer.
func (s *StepRecord) sightTime() time.Duration { return max(s.Timeout, s.Wait, bootTime) }

// named is a text about the step, with its name.
func (s *StepRecord) named(detail string) string {
	if detail == "" {
		return s.Name
	}
	return s.Name + ": " + detail
}

// Approval is a person's word.
type Approval struct {
	Subject string
	At      time.Time
}

// Clone returns a deep copy, but for the parameters, which nobody changes.
func (r *Response) Clone() *Response {
	c := *r
	c.Steps = slices.Clone(r.Steps)
	c.Approvals = slices.Clone(r.Approvals)
	return &c
}

// begun says whether an attempt of any step was ever made.
func (r *Response) begun() bool {
	return slices.ContainsFunc(r.Steps, func(s StepRecord) bool { return s.Attempt > 0 })
}

// acted says whether an attempt of a step that is more than a notification was ever made.
func (r *Response) acted() bool {
	return slices.ContainsFunc(r.Steps, func(s StepRecord) bool { return s.Attempt > 0 && s.Kind.Traits().Class > Notify })
}

// destroys says whether a step of it may end work.
func (r *Response) destroys() bool {
	return slices.ContainsFunc(r.Steps, func(s StepRecord) bool { return s.Kind.Traits().Class == Destroy })
}

// toUndo returns the index of the step that is to be put back next, the latest first; -1: there is nothing to put back.
func (r *Response) toUndo() int {
	for i := len(r.Steps) - 1; i >= 0; i-- {
		if s := &r.Steps[i]; s.Changed && s.Kind.Traits().Undoable {
			return i
		}
	}
	return -1
}

// rests says whether it has come to rest: it is left alone until the fault goes or a person asks for something.
func (r *Response) rests() bool {
	switch r.State {
	case Done, Failed, Undone, Expired:
		return true
	case Waiting:
		return r.Reason == ReasonObserveOnly
	default:
		return false
	}
}

// undoFailed says whether it waits for a person because a step could not be put back.
func (r *Response) undoFailed() bool { return r.State == Failed && r.Undoing }

// holds says whether the node counts as one under response: something has been done to it that takes it, or a part of
// it, from use, and has not been put back.
func (r *Response) holds() bool {
	return r.Closed.IsZero() && slices.ContainsFunc(r.Steps, func(s StepRecord) bool {
		return s.Changed && s.Kind.Traits().Class >= Reduce
	})
}

// Breaker is the circuit breaker, as it is committed.
type Breaker struct {
	Open     bool
	At       time.Time // of the last change
	Detail   string    // why it opened
	ClosedBy string    // the subject that closed it last
	Token    uint64
}

// Key implements Record.
func (*Breaker) Key() string { return "breaker" }

// Act is what a decision says.
type Act uint8

// The acts.
const (
	Proposes Act = iota + 1
	Refuses      // not to act: Reason says why
	Approves
	Denies
	Starts
	Ends // of an attempt: done
	Fails
	StartsUndo
	EndsUndo
	Expires
	Closes
	Cancels
	Retries
	Settles
	Opens // the breaker
	ClosesBreaker
	Observes // what an observe-only policy would have done
)

var actNames = [...]string{"", "proposed", "refused", "approved", "denied", "started", "done", "failed", "undo started", "undone",
	"expired", "closed",
	"cancelled", "retried", "settled", "breaker opened", "breaker closed", "would have acted"}

func (a Act) String() string {
	if a == 0 || int(a) >= len(actNames) {
		return fmt.Sprintf("Act(%d)", uint8(a))
	}
	return actNames[a]
}

// ParseAct is the inverse of Act.String.
func ParseAct(s string) (Act, error) {
	if i := slices.Index(actNames[1:], s); i >= 0 {
		return Act(i + 1), nil
	}
	return 0, fmt.Errorf("act: given %.40q: want one of %s", s, strings.Join(actNames[1:], ", "))
}

// Decision is a line of the audit: what was decided, and why. It is written, never read back by the engine.
type Decision struct {
	At       time.Time
	Act      Act
	Response string // id; empty where there is none
	Policy   string
	Target   Target
	Step     string // name
	Kind     Kind
	Attempt  int
	Reason   Reason
	Subject  string // of a person's decision
	Detail   string
}

// loaded are committed records, taken apart.
type loaded struct {
	breaker   Breaker
	responses []*Response // by id
}

// sortRecords takes records apart, and refuses what no engine has written.
func sortRecords(records []Record) (loaded, error) {
	var l loaded
	seen := map[string]*Response{}
	for _, r := range records {
		switch r := r.(type) {
		case *Breaker:
			l.breaker = *r
		case *Response:
			if err := r.check(); err != nil {
				return loaded{}, err
			}
			if was := seen[r.ID]; was == nil || r.Version > was.Version {
				seen[r.ID] = r
			}
		default:
			return loaded{}, fmt.Errorf("record %T: want a response or a breaker", r)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(seen)) {
		l.responses = append(l.responses, seen[id].Clone())
	}
	return l, nil
}

// check refuses a record that no engine has written: what is not understood is not acted on.
func (r *Response) check() error {
	bad := func(field string, given any, want string) error {
		return fmt.Errorf("response %q: %s: given %v: want %s", r.ID, field, given, want)
	}
	switch {
	case r.ID == "":
		return bad("id", `""`, "an id")
	case r.State < Proposed || r.State > Expired:
		return bad("state", r.State, "one of "+fmt.Sprint(stateNames[1:]))
	case r.Mode != ObserveOnly && r.Mode != Enforce:
		return bad("mode", r.Mode, "observe-only or enforce")
	case len(r.Steps) == 0 || r.Step < 0 || r.Step > len(r.Steps):
		return bad("step", fmt.Sprintf("%d of %d", r.Step, len(r.Steps)), "one of its steps, of which there is at least one")
	case (r.State == Running || r.State == Failed) && r.Step == len(r.Steps):
		return bad("step", fmt.Sprintf("%d of %d, %s", r.Step, len(r.Steps), r.State), "the step that is under way, or has failed")
	}
	for _, s := range r.Steps {
		if s.State < Pending || s.State > PutBack {
			return bad("step "+s.Name+".state", s.State, "one of "+fmt.Sprint(stepStateNames[1:]))
		}
		if !s.Kind.Valid() {
			return bad("step "+s.Name+".kind", s.Kind, fmt.Sprintf("one of %v", Kinds()))
		}
	}
	return nil
}
