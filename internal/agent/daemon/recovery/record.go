package recovery

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// State is a half's state, as its daemon sees it. The zero value is no state.
type State uint8

// The states.
const (
	Stopped    State = iota + 1 // it does not run, and is not meant to
	Starting                    // started for the first time, and has written nothing yet
	Running                     // it writes its watchdog word
	Restarting                  // it ended or hung, and is being ended, restarted or waited for
	GivenUp                     // it was restarted too often, and is left to people
)

var stateNames = [...]string{Stopped: "stopped", Starting: "starting", Running: "running", Restarting: "restarting", GivenUp: "given up"}

// Valid reports whether s is one of the states.
func (s State) Valid() bool { return s >= Stopped && s <= GivenUp }

// String returns the state's name.
func (s State) String() string {
	if !s.Valid() {
		return fmt.Sprintf("State(%d)", uint8(s))
	}
	return stateNames[s]
}

// MarshalText implements encoding.TextMarshaler.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *State) UnmarshalText(b []byte) error {
	for i, name := range stateNames {
		if name == string(b) && i > 0 {
			*s = State(i)
			return nil
		}
	}
	return fmt.Errorf("state: given %q", b)
}

// CauseKind classifies why a half had to be started again. The zero value is no kind.
type CauseKind uint8

// The kinds.
const (
	Exited     CauseKind = iota + 1 // it ended by itself; Code is its exit code
	Killed                          // a signal ended it; Code is the signal
	Hung                            // it wrote nothing though it could have, and was ended
	NotStarted                      // its program could not be executed
	Unseen                          // it ended while no daemon watched, or in an unknown way
	FailedTest                      // its self-test failed in a part of its own, and it was ended
)

var causeNames = [...]string{Exited: "exited", Killed: "killed", Hung: "hung", NotStarted: "not-started", Unseen: "unseen",
	FailedTest: "failed-test"}

// CauseKinds lists the kinds.
func CauseKinds() []CauseKind {
	return []CauseKind{Exited, Killed, Hung, NotStarted, Unseen, FailedTest}
}

// Valid reports whether k is one of the kinds.
func (k CauseKind) Valid() bool { return k >= Exited && k <= FailedTest }

// String returns the kind's name, as in metrics.
func (k CauseKind) String() string {
	if !k.Valid() {
		return fmt.Sprintf("CauseKind(%d)", uint8(k))
	}
	return causeNames[k]
}

// MarshalText implements encoding.TextMarshaler.
func (k CauseKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *CauseKind) UnmarshalText(b []byte) error {
	for i, name := range causeNames {
		if name == string(b) && i > 0 {
			*k = CauseKind(i)
			return nil
		}
	}
	return fmt.Errorf("cause: given %q", b)
}

// Cause is why a half had to be started again.
type Cause struct {
	Kind CauseKind `json:"kind"`
	Code int       `json:"code,omitempty"` // of Exited and Killed
	// Detail is further text for display, of Hung, NotStarted and FailedTest. Only its first maxDetail bytes count.
	Detail string `json:"detail,omitempty"`
}

// String returns the cause in words that fit after "restarted:" and after "the last".
func (c Cause) String() string {
	switch c.Kind {
	case Exited:
		return fmt.Sprintf("ended with code %d", c.Code)
	case Killed:
		return fmt.Sprintf("ended by signal %d", c.Code)
	case Hung:
		return "hung" + after(" (", c.Detail, ")")
	case NotStarted:
		return "could not be started" + after(": ", c.Detail, "")
	case Unseen:
		return "ended unseen"
	case FailedTest:
		return "failed its self-test" + after(" (", c.Detail, ")")
	}
	return c.Kind.String()
}

func after(before, s, behind string) string {
	if s == "" {
		return ""
	}
	return before + s + behind
}

// Recovery is the course of one recovery (seed 000 §5.3, Figure 10). All steps count from the detection by the daemon;
// 0 is a step that has not happened.
type Recovery struct {
	Cause Cause `json:"cause"`
	// At is the time of detection, CLOCK_MONOTONIC in ns, which all processes of the machine share.
	At int64 `json:"at_ns"`
	// Attempt counts the restarts since the half last ran well, from 1.
	Attempt int           `json:"attempt"`
	Gone    time.Duration `json:"gone_ns"`    // the old process is certainly dead
	Started time.Duration `json:"started_ns"` // the new process exists; back-off and announcement come before
	Serving time.Duration `json:"serving_ns"` // it wrote its watchdog word: its kept state is restored, and it serves
	Proven  time.Duration `json:"proven_ns"`  // its self-test has passed
}

// Record is a daemon's knowledge of one half. Both halves get it in mailbox messages, a starting half as an environment
// variable, and people in recovery.json and the log.
type Record struct {
	Half     fault.Half    `json:"half"`
	State    State         `json:"state"`
	PID      int           `json:"pid,omitempty"`
	Restarts int           `json:"restarts"`  // within Window
	Budget   int           `json:"budget"`    // the most restarts within Window
	Window   time.Duration `json:"window_ns"` // the period over which Restarts counts
	Total    uint64        `json:"total"`     // restarts since the machine booted
	// Causes counts all recoveries since then by kind; the index is CauseKind-1.
	Causes [FailedTest]uint64 `json:"causes"`
	// Last is the current or the latest recovery; nil: there was none.
	Last *Recovery `json:"last,omitempty"`
	// Until is when a Restarting half should be back, CLOCK_MONOTONIC in ns; 0: not known.
	Until int64 `json:"until_ns,omitempty"`
	// GaveUp says that the half was GivenUp because of Last and has not run well since, even if a person has asked for
	// it again.
	GaveUp bool `json:"gave_up,omitempty"`
	// Reason says why it was GivenUp, for display.
	Reason string `json:"reason,omitempty"`
}

// Count returns the number of recoveries for causes of a kind.
func (r Record) Count(k CauseKind) uint64 {
	if !k.Valid() {
		return 0
	}
	return r.Causes[k-1]
}

// MaxRecord bounds an encoded Record, in bytes.
const MaxRecord = 2048

// maxDetail bounds the texts of a Cause and a Reason, in bytes.
const maxDetail = 200

// ErrMalformed is wrapped when bytes are not a Record.
var ErrMalformed = errors.New("recovery record malformed")

// Encode returns the bytes of a record: JSON, so that people can read it anywhere.
func (r Record) Encode() ([]byte, error) {
	if r.Last != nil {
		last := *r.Last
		last.Cause.Detail = cut(last.Cause.Detail)
		r.Last = &last
	}
	r.Reason = cut(r.Reason)
	if err := r.validate(); err != nil {
		return nil, err
	}
	return json.Marshal(r)
}

func cut(s string) string { return s[:min(len(s), maxDetail)] }

// Decode reads the bytes of a record. It ignores fields of later versions.
func Decode(b []byte) (Record, error) {
	if len(b) > MaxRecord {
		return Record{}, fmt.Errorf("%w: %d bytes: want at most %d", ErrMalformed, len(b), MaxRecord)
	}
	var r Record
	if err := json.Unmarshal(b, &r); err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return r, r.validate()
}

func (r Record) validate() error {
	switch {
	case !r.Half.Valid():
		return fmt.Errorf("%w: half is %d: want host or dnp", ErrMalformed, r.Half)
	case !r.State.Valid():
		return fmt.Errorf("%w: of the %s half: state is %d: want 1 to %d", ErrMalformed, r.Half, r.State, GivenUp)
	case r.PID < 0: // a signal to a negative ID reaches many processes
		return fmt.Errorf("%w: of the %s half: pid is %d: want 0 or more", ErrMalformed, r.Half, r.PID)
	case r.Last != nil && !r.Last.Cause.Kind.Valid():
		return fmt.Errorf("%w: of the %s half: cause is %d: want 1 to %d", ErrMalformed, r.Half, r.Last.Cause.Kind, FailedTest)
	}
	return nil
}

// History is the state of one half that a daemon stores for the next daemon.
type History struct {
	Record Record `json:"record"`
	// RestartsAt are the times of the restarts within the window, CLOCK_MONOTONIC in ns.
	RestartsAt []int64 `json:"restarts_at_ns,omitempty"`
	// Failures counts the restarts since the half last ran well.
	Failures int `json:"failures,omitempty"`
	// Start is the start time of the process of Record.PID, in clock ticks since the machine booted. The two identify
	// the process uniquely, even before it has taken its lock. 0: not known.
	Start uint64 `json:"start_ticks,omitempty"`
	// Space is the PID namespace of Record.PID, by its inode. In another namespace, as each container has, that id
	// means another process. 0: not known.
	Space uint64 `json:"pid_namespace,omitempty"`
}

// Validate returns an error that wraps ErrMalformed if the record, or a number beside it, is out of range.
func (h History) Validate() error {
	if h.Failures < 0 {
		return fmt.Errorf("%w: failures is %d: want 0 or more", ErrMalformed, h.Failures)
	}
	return h.Record.validate()
}
