package response

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// State is the state of a response: see the package comment.
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

// StepState is the state of one step of a response.
type StepState uint8

// The states of a step.
const (
	Pending     StepState = iota + 1 // not begun, or to be tried again
	Acting                           // an attempt is committed and under way
	Acted                            // done
	StepFailed                       // all attempts have failed
	Interrupted                      // an attempt's outcome is unknown
	Undoing                          // it is being undone
	PutBack                          // it was undone
)

var stepStateNames = [...]string{"", "pending", "acting", "acted", "failed", "interrupted", "undoing", "put back"}

func (s StepState) String() string {
	if s == 0 || int(s) >= len(stepStateNames) {
		return fmt.Sprintf("StepState(%d)", uint8(s))
	}
	return stepStateNames[s]
}

// Record is a committed record: a *Response, a *Breaker or an *IncidentRecord. The newest with a key counts.
type Record interface {
	// Key is unique among records and never changes.
	Key() string
}

// Response is one response, as committed. It holds everything that another leader needs. The steps are those of the
// policy at the time of the proposal.
type Response struct {
	ID     string // unique for ever: the token under which it was proposed, and a number
	Policy string
	Digest string // of the policy
	Mode   Mode
	Target Target
	// The fault that led to the proposal, for people.
	FaultState fault.State
	FaultCause fault.Cause
	FaultSince time.Time

	State  State
	Reason Reason // why it waits, has failed or has expired; otherwise 0
	Detail string // for people

	Guards    Guards
	Undo      Undo
	Steps     []StepRecord
	Step      int // index of the next or running step; len(Steps): all are passed
	Undoing   bool
	Cancelled bool // a person wants it ended and undone
	Approvals []Approval

	Proposed time.Time
	Asked    time.Time // since when it waits for approvals; zero: it does not
	Gone     time.Time // since when the fault is gone; zero: it stands
	Closed   time.Time // when it ended; zero: it is open
	Token    uint64    // under which it was written
	Version  uint64    // increases by one with every record of this response
}

// Key implements Record.
func (r *Response) Key() string { return "response/" + r.ID }

// newest returns the newest attempt at the current step, or at undoing it.
func (r *Response) newest() Attempt { return Attempt{r.ID, r.Step, r.Steps[r.Step].Attempt} }

// StepRecord is a step and its progress.
type StepRecord struct {
	Step
	State   StepState
	Attempt int // counts attempts at acting and at undoing together, from 1: no two attempts have the same number
	// Failures in the current direction; an interruption by a change of leader is no failure.
	Failures int
	First    time.Time // when the first attempt began; zero: there was none
	Started  time.Time // of the newest attempt
	Ended    time.Time // of the newest attempt; zero: unknown
	// Changed: the target has changed, or may have. Only then is the step undone.
	Changed bool
	// Again: value of Changed before the newest attempt, which checks first. If this attempt has changed nothing, that does not cover the
	// earlier ones: it may not even have reached its target. For a onceOnly step, all earlier attempts are known to have failed, and the new
	// attempt does not check first.
	Again bool
	// Reported: the executor reports success of the newest attempt, but that is not sufficient. The step is Interrupted
	// until the node was seen to go down, and StepFailed if it was not within sightTime of Ended or of a change of leader.
	Reported bool
	Up       bool        // the node was up at the newest attempt: only then does a later FAILED prove anything
	Epoch    fault.Epoch // of the node's host when the newest attempt began
	Detail   string
}

// bootTime is the minimum time that a reset machine gets to restart its host half: the next step must not interrupt the
// boot.
const bootTime = 15 * time.Minute

// sightTime is how long a step that is Reported may stay unseen: the longest of the boot time, the wait after the step,
// and the timeout of an attempt.
func (s *StepRecord) sightTime() time.Duration { return max(s.Timeout, s.Wait, bootTime) }

// onceOnly reports whether only a person's retry repeats the step after an attempt that failed with a change. The executor cannot check
// later whether the step took effect, so the reported failure is final.
func (s *StepRecord) onceOnly() bool {
	t := s.Kind.Traits()
	return !t.Repeatable && !t.BootSettles
}

// named returns a text about the step, with its name.
func (s *StepRecord) named(detail string) string {
	if detail == "" {
		return s.Name
	}
	return s.Name + ": " + detail
}

// Approval is a person's approval.
type Approval struct {
	Subject string
	At      time.Time
}

// Clone returns a deep copy that shares only the parameters, which are immutable.
func (r *Response) Clone() *Response {
	c := *r
	c.Steps = slices.Clone(r.Steps)
	c.Approvals = slices.Clone(r.Approvals)
	return &c
}

// begun reports whether an attempt of any step was ever made.
func (r *Response) begun() bool {
	return slices.ContainsFunc(r.Steps, func(s StepRecord) bool { return s.Attempt > 0 })
}

// acted reports whether an attempt of a step that is more than a notification was ever made.
func (r *Response) acted() bool {
	return slices.ContainsFunc(r.Steps, func(s StepRecord) bool { return s.Attempt > 0 && s.Kind.Traits().Class > Notify })
}

// destroys reports whether one of its steps may end work.
func (r *Response) destroys() bool {
	return slices.ContainsFunc(r.Steps, func(s StepRecord) bool { return s.Kind.Traits().Class == Destroy })
}

// toUndo returns the index of the next step to undo, the latest first; -1: there is none.
func (r *Response) toUndo() int {
	for i := len(r.Steps) - 1; i >= 0; i-- {
		if s := &r.Steps[i]; s.Changed && s.Kind.Traits().Undoable {
			return i
		}
	}
	return -1
}

// rests reports whether it is at rest: the engine leaves it alone until the fault ends or a person makes a request.
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

// undoFailed reports whether it waits for a person because a step could not be undone.
func (r *Response) undoFailed() bool { return r.State == Failed && r.Undoing }

// holds reports whether the node counts as under response: a step took all or part of it out of use and has not been
// undone.
func (r *Response) holds() bool {
	return r.Closed.IsZero() && slices.ContainsFunc(r.Steps, func(s StepRecord) bool {
		return s.Changed && s.Kind.Traits().Class >= Reduce
	})
}

// Breaker is the circuit breaker, as committed.
type Breaker struct {
	Open     bool
	At       time.Time // of the last change
	Detail   string    // why it opened
	ClosedBy string    // the last subject that closed it
	Token    uint64
}

// Key implements Record.
func (*Breaker) Key() string { return "breaker" }

// Act is the content of a decision.
type Act uint8

// The acts.
const (
	Proposes Act = iota + 1
	Refuses      // does not act: Reason says why
	Approves
	Denies
	Starts
	Ends // an attempt succeeded
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
	Observes // an observe-only policy would have acted
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

// Decision is a line of the audit: a decision and its reason. The engine writes decisions and never reads them back.
type Decision struct {
	At       time.Time
	Act      Act
	Response string // id; empty if there is none
	Policy   string
	Target   Target
	Step     string // name
	Kind     Kind
	Attempt  int
	Reason   Reason
	Subject  string // of a person's decision
	Detail   string
}

// loaded holds committed records by type.
type loaded struct {
	breaker   Breaker
	responses []*Response // by id
	incidents []*IncidentRecord
}

// sortRecords separates records by type, and refuses records that no engine has written.
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
		case *IncidentRecord:
			l.incidents = append(l.incidents, r)
		default:
			return loaded{}, fmt.Errorf("record %T: want a response, a breaker or an incident", r)
		}
	}
	slices.SortFunc(l.incidents, func(a, b *IncidentRecord) int { return strings.Compare(a.Incident, b.Incident) })
	for _, id := range slices.Sorted(maps.Keys(seen)) {
		l.responses = append(l.responses, seen[id].Clone())
	}
	return l, nil
}

// check refuses a record that no engine has written: the engine does not act on a record that it does not understand.
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
			return bad("step "+s.Name+".state", s.State, "one of "+strings.Join(stepStateNames[1:], ", "))
		}
		if !s.Kind.Valid() {
			return bad("step "+s.Name+".kind", s.Kind, "one of "+fault.List(Kinds()))
		}
	}
	return nil
}
