// Package actions is the ledger of the acts that responses request of this node (seed 001 §II: local readjustment). It
// refuses late orders, makes no attempt twice, and records the outcome of each. It is the agent's part of an executor's
// duties (internal/executor), across restarts of the acting process and of the machine. So it is stored on disk, before
// an act begins.
//
//	(nothing) ──Admit──► UNDER_WAY ──End──► DONE, UNCHANGED, PARTLY or NOT_KNOWN
//	                         └── who did it has ended meanwhile: Interrupt ──► NOT_KNOWN
//
// A ledger has a random, unique incarnation, its life. An order to act names it: so a copy of an old order has no
// effect on a new ledger that has seen no token yet.
//
// The package is pure, and does not act itself: that is the task of daemon.ActionRunner, in the recovery daemon. Halves only
// send it orders.
package actions

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source"
)

// Names in the state directory.
const (
	File = "acts.json" // the ledger
	Lock = "acts.lock" // held while the ledger changes
)

// Socket returns the name of the socket of the daemon that looks after a half. The daemon carries out the orders that
// arrive there.
func Socket(h fault.Half) string { return h.String() + ".acts.sock" }

// Paths of the socket: an Order is answered with a Status, an Ended with nothing.
const (
	PathAct   = "/act"
	PathEnded = "/ended"
)

// State is the outcome of an attempt, as on the wire.
type State = lofamov1.ActState

// The states.
const (
	None      = lofamov1.ActState_ACT_NONE
	UnderWay  = lofamov1.ActState_ACT_UNDER_WAY
	Done      = lofamov1.ActState_ACT_DONE
	Unchanged = lofamov1.ActState_ACT_UNCHANGED
	Partly    = lofamov1.ActState_ACT_PARTLY
	NotKnown  = lofamov1.ActState_ACT_NOT_KNOWN
	Stale     = lofamov1.ActState_ACT_STALE
)

// Name returns a state's name in words.
func Name(s State) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(s.String(), "ACT_"), "_", " "))
}

// Attempt identifies an attempt uniquely, like response.Attempt.
type Attempt struct {
	Response string `json:"response"`
	Step     int    `json:"step"`
	Attempt  int    `json:"attempt"` // from 1; acts and undos share the numbers
}

// Owner identifies the step, in any attempt: an undo restores only its own step's changes.
func (a Attempt) Owner() string { return fmt.Sprintf("%s/%d", a.Response, a.Step) }

func (a Attempt) String() string {
	return fmt.Sprintf("attempt %d at step %d of %s", a.Attempt, a.Step, a.Response)
}

// Order is a verified ActOrder to this node.
type Order struct {
	Attempt
	Token      uint64            `json:"token"`
	Kind       string            `json:"kind"`
	Parameters map[string]string `json:"parameters,omitempty"`
	Undo       bool              `json:"undo,omitempty"`
	Recheck    bool              `json:"recheck,omitempty"`
	TimeoutMS  uint32            `json:"timeout_ms"`
	Ledger     uint64            `json:"ledger,omitempty"`
	Ask        bool              `json:"ask,omitempty"` // begin nothing, only report
	Target     string            `json:"target,omitempty"`
	// Fresh is Status.Fresh of the answer that preceded the order; 0: the order names none, and never becomes too old.
	Fresh uint64 `json:"fresh,omitempty"`
	// Heard is the highest leader term that the half knows, from any source; 0: none.
	Heard uint64 `json:"heard,omitempty"`
	// Late says that the order was held up: see Late. The runner, which has the clock, sets it.
	Late bool `json:"-"`
}

// FreshFor is how long after the agent's answer an order that names this answer is accepted. It bounds how long after
// an election the former leader's order may still begin an act on a node that does not know of the new leader. It is
// long enough for a route through the torus that loses messages.
const FreshFor = 5 * time.Second

// Late reports whether an order with this Status.Fresh has been held up too long. An answer from another boot of the
// machine is too old.
func Late(fresh, now uint64) bool { return fresh != 0 && now-fresh > uint64(FreshFor.Milliseconds()) }

// Timeout returns how long the act may take.
func (o *Order) Timeout() time.Duration { return time.Duration(o.TimeoutMS) * time.Millisecond }

// Half returns the half whose daemon carries out the order: the half to restart, or else the host half.
func (o *Order) Half() fault.Half {
	if h, err := fault.ParseHalf(o.Parameters["half"]); err == nil && o.Kind == KindRestartHalf {
		return h
	}
	return fault.HalfHost
}

// The kinds of acts that an agent knows, named as in package response.
const (
	KindCheck          = "node.check"
	KindRestartHalf    = "node.restart-half"
	KindLimitFrequency = "node.limit-frequency"
	KindEureka         = "eureka"
)

// FromWire converts an order from the wire.
func FromWire(o *lofamov1.ActOrder) Order {
	out := Order{
		Attempt: Attempt{o.GetResponse(), int(o.GetStep()), int(o.GetAttempt())}, Token: o.GetToken(), Kind: o.GetKind(), Undo: o.GetUndo(),
		Recheck:   o.GetRecheck(),
		TimeoutMS: o.GetTimeoutMs(), Ledger: o.GetLedger(), Ask: o.GetAsk(), Target: o.GetTarget(), Fresh: o.GetFresh(),
		Parameters: map[string]string{},
	}
	for _, p := range o.GetParameters() {
		out.Parameters[p.GetName()] = p.GetValue()
	}
	return out
}

// Status answers an Order.
type Status struct {
	State   State    `json:"state"`
	Detail  string   `json:"detail,omitempty"` // for display
	Ledger  uint64   `json:"ledger,omitempty"` // 0: there is no ledger
	Token   uint64   `json:"token,omitempty"`  // the highest seen
	Allowed []string `json:"allowed,omitempty"`
	// Yours: the attempt was admitted just now, and the half that asks must make it and report its end by Ended.
	Yours bool `json:"yours,omitempty"`
	// Fresh is the time of the answer: milliseconds since boot, plus a number that differs with each boot. 0: not
	// known.
	Fresh uint64 `json:"fresh,omitempty"`
}

// Result is how an act ended.
type Result struct {
	State  State
	Detail string
}

// Ended is a half's report about an act that it carried out itself.
type Ended struct {
	Attempt
	State  State  `json:"state"`
	Detail string `json:"detail,omitempty"`
}

// Entry is an attempt that was admitted.
type Entry struct {
	Attempt
	Token  uint64     `json:"token"`
	Kind   string     `json:"kind"`
	Undo   bool       `json:"undo,omitempty"`
	By     fault.Half `json:"by"` // the half whose daemon makes it
	State  State      `json:"state"`
	Detail string     `json:"detail,omitempty"`
	// Note is the act's message to the next attempt, stored before any change.
	Note string `json:"note,omitempty"`
	// At is when it began, Until when it has certainly ended: Unix times in ms.
	At    int64 `json:"at"`
	Until int64 `json:"until"`
	// Ends is Until by the clock of Status.Fresh, and takes precedence over Until; 0 if an earlier version wrote the entry.
	Ends uint64 `json:"ends,omitempty"`
}

// Now is a time by the wall clock, which may be set, and by the clock of Status.Fresh, which runs with the machine's boot.
type Now struct {
	Wall  time.Time
	Fresh uint64
}

// runs reports whether the attempt may still be under way.
func (e *Entry) runs(now Now) bool {
	if e.State != UnderWay {
		return false
	}
	if e.Ends == 0 {
		return now.Wall.UnixMilli() <= e.Until
	}
	return int64(now.Fresh-e.Ends) <= 0 // the clock of Fresh may wrap around
}

// maxEntries bounds the entries. Entries under an older token than the highest seen are dropped first, because orders
// with such a token are refused from then on. When all entries have the highest token no more are admitted under it,
// because a dropped attempt could be made again.
const maxEntries = 512

// Ledger is not safe for concurrent use.
type Ledger struct {
	Life    uint64  `json:"life"`
	Token   uint64  `json:"token"` // the highest seen
	Entries []Entry `json:"entries,omitempty"`
	// Boot is the machine's boot to which Limits belong: after another boot none of them is in force.
	Boot   string  `json:"boot,omitempty"`
	Limits []Limit `json:"limits,omitempty"`
	// Unlimited is the value of each cpufreq policy, kHz, when it was last read neither limited by us nor throttled, in
	// this boot.
	Unlimited map[string]uint64 `json:"unlimited,omitempty"`
}

// Encode returns the stored form of the ledger.
func (l *Ledger) Encode() ([]byte, error) { return json.Marshal(l) }

// MaxLedger bounds the input of Decode, in bytes: maxEntries with long details, and limits for any number of
// processors.
const MaxLedger = 4 << 20

// ErrLedger is the error of Decode.
var ErrLedger = errors.New("no ledger of acts")

// Decode reads the output of Encode.
func Decode(b []byte) (*Ledger, error) {
	if len(b) > MaxLedger {
		return nil, fmt.Errorf("%w: %d bytes: want at most %d", ErrLedger, len(b), MaxLedger)
	}
	l := new(Ledger)
	if err := json.Unmarshal(b, l); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLedger, err)
	}
	if l.Life == 0 {
		return nil, fmt.Errorf("%w: life is 0", ErrLedger)
	}
	for _, e := range l.Entries {
		switch {
		case e.Response == "" || e.Step < 0 || e.Attempt.Attempt < 1 || e.Token == 0 || e.Token > l.Token:
			return nil, fmt.Errorf("%w: entry %s under token %d: want a name, and a token of 1 to %d", ErrLedger, e.Attempt, e.Token, l.Token)
		case e.State < UnderWay || !e.By.Valid():
			return nil, fmt.Errorf("%w: %s: state is %d, by half %d", ErrLedger, e.Attempt, e.State, e.By)
		}
	}
	for _, f := range l.Limits {
		if f.Policy == "" || len(f.Owners) == 0 {
			return nil, fmt.Errorf("%w: limit of policy %q: want a name and owners", ErrLedger, f.Policy)
		}
	}
	return l, nil
}

// Rebooted drops the state that ends with a boot of the machine. No attempt of an earlier boot runs any more.
func (l *Ledger) Rebooted(boot string) {
	if l.Boot == boot {
		return
	}
	l.Boot, l.Limits, l.Unlimited = boot, nil, nil
	for i := range l.Entries {
		if e := &l.Entries[i]; e.State == UnderWay {
			e.State, e.Detail = NotKnown, "the machine booted while it was under way"
		}
	}
}

// find returns the entry of an attempt, or nil.
func (l *Ledger) find(a Attempt) *Entry {
	for i := range l.Entries {
		if l.Entries[i].Attempt == a {
			return &l.Entries[i]
		}
	}
	return nil
}

// status returns the present status of an attempt.
func (l *Ledger) status(now Now, a Attempt) Status {
	s := Status{State: None, Ledger: l.Life, Token: l.Token}
	if e := l.find(a); e != nil {
		s.State, s.Detail = e.State, e.Detail
		if e.State == UnderWay && !e.runs(now) {
			s.State, s.Detail = NotKnown, "it has not ended in time, or its end was not reported"
		}
	}
	return s
}

// Hear records a leader's term, from an order of any kind: terms are tokens. It reports whether the ledger must be
// stored, because the term is higher.
func (l *Ledger) Hear(term uint64) (keep bool) {
	keep = term > l.Token
	l.Token = max(l.Token, term)
	return keep
}

// Look answers an order that only asks. It reports whether the ledger must be stored, because the token is higher.
func (l *Ledger) Look(now Now, o *Order) (s Status, keep bool) {
	keep = l.Hear(max(o.Token, o.Heard))
	return l.status(now, o.Attempt), keep
}

// graceAfter is how long after its timeout an act may still report its end; then its outcome is not known.
const graceAfter = 5 * time.Second

// Admit judges an order to act. It reports whether the attempt is to be made; then the changed ledger must be stored
// first. The status holds the reason of a refusal, and the outcome of an attempt that was seen before.
func (l *Ledger) Admit(now Now, o *Order) (s Status, begin bool) {
	refused := func(st State, format string, args ...any) (Status, bool) {
		return Status{State: st, Detail: fmt.Sprintf(format, args...), Ledger: l.Life, Token: l.Token}, false
	}
	switch {
	case o.Ledger != l.Life:
		return refused(Unchanged, "the order is for an earlier ledger of this node: this ledger is new")
	case l.find(o.Attempt) != nil: // with any token: its outcome is known
		return l.status(now, o.Attempt), false
	case o.Token < l.Token:
		return refused(Stale, "token %d: %d has been seen", o.Token, l.Token)
	case o.Late: // the sender gets this answer and may order again, naming this answer
		return refused(None, "the order was held up: it is of an answer of more than %s ago", FreshFor)
	}
	for i := range l.Entries {
		e := &l.Entries[i]
		if e.Owner() != o.Owner() {
			continue
		}
		if e.Attempt.Attempt > o.Attempt.Attempt {
			return refused(NotKnown, "attempt %d has been seen already", e.Attempt.Attempt)
		}
		if e.runs(now) {
			return refused(Unchanged, "attempt %d at the same step is under way", e.Attempt.Attempt)
		}
	}
	l.Token = o.Token
	if len(l.Entries) >= maxEntries {
		i := slices.IndexFunc(l.Entries, func(e Entry) bool { return e.Token < l.Token && e.State != UnderWay })
		if i < 0 {
			return refused(Unchanged, "the ledger is full: %d acts under token %d", maxEntries, l.Token)
		}
		l.Entries = slices.Delete(l.Entries, i, i+1)
	}
	most := o.Timeout() + graceAfter
	l.Entries = append(l.Entries, Entry{
		Attempt: o.Attempt, Token: o.Token, Kind: o.Kind, Undo: o.Undo, By: o.Half(), State: UnderWay, At: now.Wall.UnixMilli(),
		Until: now.Wall.Add(most).UnixMilli(), Ends: max(1, now.Fresh+uint64(most.Milliseconds())),
	})
	return l.status(now, o.Attempt), true
}

// Note stores a running attempt's message for the next attempt at its step.
func (l *Ledger) Note(a Attempt, note string) {
	if e := l.find(a); e != nil {
		e.Note = note
	}
}

// Earlier returns the earlier attempts at the same step and in the same direction, the newest first.
func (l *Ledger) Earlier(o *Order) []Entry {
	var out []Entry
	for _, e := range slices.Backward(l.Entries) {
		if e.Owner() == o.Owner() && e.Attempt.Attempt < o.Attempt.Attempt && e.Undo == o.Undo {
			out = append(out, e)
		}
	}
	return out
}

// End records the outcome of a running attempt.
func (l *Ledger) End(a Attempt, r Result) {
	if e := l.find(a); e != nil && e.State == UnderWay {
		e.State, e.Detail = r.State, source.Detail(r.Detail)
	}
}

// Interrupt records that the process behind a half's attempts has ended: the outcome of its running attempts is not
// known. It reports whether there were any.
func (l *Ledger) Interrupt(by fault.Half) (any bool) {
	for i := range l.Entries {
		if e := &l.Entries[i]; e.By == by && e.State == UnderWay {
			e.State, e.Detail, any = NotKnown, "the recovery daemon ended while it was under way", true
		}
	}
	return any
}
