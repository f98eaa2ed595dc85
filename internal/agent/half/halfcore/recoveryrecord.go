package halfcore

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// RecoveryState is a half's state, as its daemon sees it. The zero value is no state.
type RecoveryState uint8

// The states.
const (
	Stopped    RecoveryState = iota + 1 // it does not run, and is not meant to
	Starting                            // started for the first time, and has written nothing yet
	Running                             // it writes its watchdog word
	Restarting                          // it ended or hung, and is being ended, restarted or waited for
	GivenUp                             // it was restarted too often: long waits precede its next starts
)

var recoveryStateNames = [...]string{Stopped: "stopped", Starting: "starting", Running: "running", Restarting: "restarting",
	GivenUp: "given up"}

// Valid reports whether s is one of the states.
func (s RecoveryState) Valid() bool { return s >= Stopped && s <= GivenUp }

// String returns the state's name.
func (s RecoveryState) String() string {
	if !s.Valid() {
		return fmt.Sprintf("State(%d)", uint8(s))
	}
	return recoveryStateNames[s]
}

// MarshalText implements encoding.TextMarshaler.
func (s RecoveryState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *RecoveryState) UnmarshalText(b []byte) error {
	for i, name := range recoveryStateNames {
		if name == string(b) && i > 0 {
			*s = RecoveryState(i)
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

var causeKindNames = [...]string{Exited: "exited", Killed: "killed", Hung: "hung", NotStarted: "not-started", Unseen: "unseen",
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
	return causeKindNames[k]
}

// MarshalText implements encoding.TextMarshaler.
func (k CauseKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *CauseKind) UnmarshalText(b []byte) error {
	for i, name := range causeKindNames {
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
	// Detail is further text for display, of Hung, NotStarted and FailedTest, or byRequest. A record has its first maxCauseDetail bytes,
	// cleaned.
	Detail string `json:"detail,omitempty"`
}

// ExitMemory is the exit code of a half that has found its memory changed while none of its code ran.
const ExitMemory = 79

// Memory reports whether the half ended because it had found its memory changed.
func (c Cause) Memory() bool { return c.Kind == Exited && c.Code == ExitMemory }

// byRequest is the Detail of a cause that a response or a person requested. A daemon of an earlier version ignores it.
const byRequest = "on request"

// ByRequest returns the cause of a half that its daemon has ended because a response or a person requested a restart. One that ended in
// another way at that time keeps its cause.
func (c Cause) ByRequest() Cause {
	if c.Kind == Killed || c.Kind == Unseen {
		c.Detail = byRequest
	}
	return c
}

// String returns the cause in words that fit after "restarted:" and after "the last".
func (c Cause) String() string {
	if c.Detail == byRequest && (c.Kind == Killed || c.Kind == Unseen) {
		return "ended on request"
	}
	switch c.Kind {
	case Exited:
		if c.Memory() {
			return "found its memory changed"
		}
		return fmt.Sprintf("ended with code %d", c.Code)
	case Killed:
		return fmt.Sprintf("ended by signal %d", c.Code)
	case Hung:
		return "hung" + unlessEmpty(" (", c.Detail, ")")
	case NotStarted:
		return "could not be started" + unlessEmpty(": ", c.Detail, "")
	case Unseen:
		return "ended unseen"
	case FailedTest:
		return "failed its self-test" + unlessEmpty(" (", c.Detail, ")")
	}
	return c.Kind.String()
}

func unlessEmpty(before, s, behind string) string {
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

// RecoveryRecord is a daemon's knowledge of one half. Both halves get it in mailbox messages, a starting half as an environment
// variable, and people in recovery.json and the log.
type RecoveryRecord struct {
	Half     fault.Half    `json:"half"`
	State    RecoveryState `json:"state"`
	PID      int           `json:"pid,omitempty"`
	Restarts int           `json:"restarts"`  // within Window
	Budget   int           `json:"budget"`    // the most restarts within Window before the half is GivenUp
	Window   time.Duration `json:"window_ns"` // the time over which Restarts counts, except while GivenUp
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
	// Reason says why it is GivenUp, or why it cannot be started, for display.
	Reason string `json:"reason,omitempty"`
	// Ended is the process of the half that ended by itself or by a signal, if the daemon does not soon start another: the
	// half is Stopped or GivenUp. nil: no process has ended so, or the daemon does not know it well enough.
	Ended *EndedProcess `json:"ended,omitempty"`
	// LastBoot is how the machine's last boot ended, in the record of the host half; nil: not known.
	LastBoot *LastBoot `json:"last_boot,omitempty"`
	// Watchdog is the machine's watchdog device, in the record of the host half; nil: the daemon feeds none.
	Watchdog *HardwareWatchdog `json:"hardware_watchdog,omitempty"`
	// Sent is the time at which the record left for another kernel, by the same clock as At and Until. 0: it has not left, or its
	// sender is of an earlier version.
	Sent int64 `json:"sent_ns,omitempty"`
}

// Arrive converts the times of a record from another kernel to this kernel's clock. now is the time of arrival. The transit time
// is ignored, so the record seems younger by that. The record also serves c as a reference for other messages.
func (r *RecoveryRecord) Arrive(c *MailClock, now int64) {
	if r.Sent == 0 {
		return // the sender is of an earlier version, which sends no time
	}
	c.Delay(r.Sent, now)
	apart := now - r.Sent
	if r.Last != nil {
		last := *r.Last
		last.At += apart
		r.Last = &last
	}
	if r.Until != 0 {
		r.Until += apart
	}
	r.Sent = 0
}

// HardwareWatchdog is the machine's watchdog device, as the daemon feeds it.
type HardwareWatchdog struct {
	Armed         bool          `json:"armed"`
	Timeout       time.Duration `json:"timeout_ns"`        // 1ms to 5m, from the last feeding to the reset
	ContactWithin time.Duration `json:"contact_within_ns"` // up to 1h; the longest time without contact; 0: contact does not count
	Boot          uint32        `json:"boot"`              // see BootPart
}

// Status returns the message for the supervisors; nil for nil.
func (w *HardwareWatchdog) Status() *lofamov1.HardwareWatchdog {
	if w == nil {
		return nil
	}
	return &lofamov1.HardwareWatchdog{Armed: w.Armed, TimeoutMs: uint32(w.Timeout.Milliseconds()),
		ContactWithinMs: uint32(w.ContactWithin.Milliseconds()), Boot: w.Boot}
}

// BootPart returns the part of a boot's identity that a node states. It is never 0.
func BootPart(id [16]byte) uint32 { return max(1, binary.LittleEndian.Uint32(id[:])) }

// EndedProcess identifies a process that has ended. All three numbers are known.
type EndedProcess struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start_ticks"`   // in clock ticks since the machine booted
	Space uint64 `json:"pid_namespace"` // inode of the PID namespace that PID belongs to
}

// Count returns the number of recoveries for causes of a kind.
func (r RecoveryRecord) Count(k CauseKind) uint64 {
	if !k.Valid() {
		return 0
	}
	return r.Causes[k-1]
}

// MaxRecoveryRecord bounds an encoded RecoveryRecord, in bytes.
const MaxRecoveryRecord = 2048

// maxCauseDetail bounds Cause.Detail and RecoveryRecord.Reason, in bytes.
const maxCauseDetail = 200

// ErrMalformedRecord is wrapped by the errors for bytes that are not a RecoveryRecord.
var ErrMalformedRecord = errors.New("recovery record malformed")

// Encode returns the bytes of a record: JSON, so that people can read it anywhere.
func (r RecoveryRecord) Encode() ([]byte, error) {
	if r.Last != nil {
		last := *r.Last
		last.Cause.Detail = fault.Clean(last.Cause.Detail, maxCauseDetail)
		r.Last = &last
	}
	r.Reason = fault.Clean(r.Reason, maxCauseDetail)
	if err := r.validate(); err != nil {
		return nil, err
	}
	b, err := json.Marshal(r)
	if len(b) > MaxRecoveryRecord && r.LastBoot != nil && r.LastBoot.Detail != "" { // JSON may write a character in six bytes
		boot := *r.LastBoot
		boot.Detail, r.LastBoot = "", &boot
		return json.Marshal(r)
	}
	return b, err
}

// DecodeRecovery reads the bytes of a record. It ignores fields of later versions.
func DecodeRecovery(b []byte) (RecoveryRecord, error) {
	if len(b) > MaxRecoveryRecord {
		return RecoveryRecord{}, fmt.Errorf("%w: %d bytes: want at most %d", ErrMalformedRecord, len(b), MaxRecoveryRecord)
	}
	var r RecoveryRecord
	if err := json.Unmarshal(b, &r); err != nil {
		return RecoveryRecord{}, fmt.Errorf("%w: %w", ErrMalformedRecord, err)
	}
	return r, r.validate()
}

func (r RecoveryRecord) validate() error {
	switch {
	case !r.Half.Valid():
		return fmt.Errorf("%w: half is %d: want host or dnp", ErrMalformedRecord, r.Half)
	case !r.State.Valid():
		return fmt.Errorf("%w: of the %s half: state is %d: want 1 to %d", ErrMalformedRecord, r.Half, r.State, GivenUp)
	case r.PID < 0: // a signal to a negative ID reaches many processes
		return fmt.Errorf("%w: of the %s half: pid is %d: want 0 or more", ErrMalformedRecord, r.Half, r.PID)
	case r.Ended != nil && (r.Ended.PID <= 0 || r.Ended.Start == 0 || r.Ended.Space == 0):
		return fmt.Errorf("%w: of the %s half: ended is %+v: want pid, start_ticks and pid_namespace above 0", ErrMalformedRecord, r.Half,
			*r.Ended)
	case r.LastBoot != nil && (!r.LastBoot.End.Valid() || r.LastBoot.Boot == 0):
		return fmt.Errorf("%w: of the %s half: last_boot is %+v: want an end of 1 to %d and a boot above 0", ErrMalformedRecord, r.Half,
			*r.LastBoot, BootUnknown)
	case r.Watchdog != nil && (r.Watchdog.Timeout < time.Millisecond || r.Watchdog.Timeout > 5*time.Minute ||
		r.Watchdog.ContactWithin < 0 || r.Watchdog.ContactWithin > time.Hour || r.Watchdog.Boot == 0):
		return fmt.Errorf("%w: of the %s half: hardware_watchdog is %+v: want a timeout of 1ms to 5m, contact within 0s to 1h, and a "+
			"boot above 0", ErrMalformedRecord, r.Half, *r.Watchdog)
	case r.Last != nil && !r.Last.Cause.Kind.Valid():
		return fmt.Errorf("%w: of the %s half: cause is %d: want 1 to %d", ErrMalformedRecord, r.Half, r.Last.Cause.Kind, FailedTest)
	}
	return nil
}

// RecoveryHistory is the state of one half that a daemon stores for the next daemon.
type RecoveryHistory struct {
	Record RecoveryRecord `json:"record"`
	// RestartsAgo are the ages of the restarts within the window, without the time in which the half was GivenUp.
	RestartsAgo []time.Duration `json:"restarts_ago_ns,omitempty"`
	// Failures counts the restarts since the half last ran well.
	Failures int `json:"failures,omitempty"`
	// Start is the start time of the process of Record.PID, in clock ticks since the machine booted. The two identify
	// the process uniquely, even before it has taken its lock. 0: not known.
	Start uint64 `json:"start_ticks,omitempty"`
	// Space is the PID namespace of Record.PID, by its inode. In another namespace, as each container has, that id
	// means another process. 0: not known.
	Space uint64 `json:"pid_namespace,omitempty"`
}

// Validate returns an error that wraps ErrMalformedRecord if the record, or a number beside it, is out of range.
func (h RecoveryHistory) Validate() error {
	if h.Failures < 0 {
		return fmt.Errorf("%w: failures is %d: want 0 or more", ErrMalformedRecord, h.Failures)
	}
	return h.Record.validate()
}

// GivenUpReason returns the reason why a half is not soon started again.
func GivenUpReason(restarts int, window, wait time.Duration, last Cause) string {
	return fmt.Sprintf("next start after %s: %s within %s, the last %s", wait, fault.Plural(restarts, "restart"), window, last)
}

// HangBound returns the longest time from a half's last word to the verdict that it hangs, if nothing keeps the half
// from running and no look is late by more than half a period. The word may come right after a look, and the rest of
// StaleBound may end right after another, which adds two whole periods between looks.
func HangBound(tRead time.Duration, misses int) time.Duration {
	return watchdog.StaleBound(tRead, misses) + 3*tRead
}
