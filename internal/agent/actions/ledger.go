// Package actions is the ledger of what responses have had this node do (seed 001 §II: local readjustment): it refuses what comes too late, lets no attempt
// be made twice, and says what became of each. It is the agent's part of what an executor owes (internal/executor), over restarts of whoever acts and of
// the machine, so that it is kept on disk, and before anything is begun.
//
//	(nothing) ──Admit──► UNDER_WAY ──End──► DONE, UNCHANGED, PARTLY or NOT_KNOWN
//	                         └── who did it has ended meanwhile: Interrupt ──► NOT_KNOWN
//
// A ledger has a name, its life, which is random and never comes again. An order to act names it: a copy of an old order does nothing to a ledger that
// has begun anew and has seen no token yet.
//
// It is pure, and acts on nothing: that is for package doer, in the recovery daemon. Halves only ask it.
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
	Lock = "acts.lock" // whoever changes it holds it
)

// Socket returns the name of the socket of the daemon that looks after a half: what is asked there, it does.
func Socket(h fault.Half) string { return h.String() + ".acts.sock" }

// The ways of the socket: an Order is answered with a Status, an Ended with nothing.
const (
	PathAct   = "/act"
	PathEnded = "/ended"
)

// State is what became of an attempt, as on the wire.
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

// Name is a state in words.
func Name(s State) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(s.String(), "ACT_"), "_", " "))
}

// Attempt names an attempt for ever, as response.Attempt does.
type Attempt struct {
	Response string `json:"response"`
	Step     int    `json:"step"`
	Attempt  int    `json:"attempt"` // from 1; putting back is numbered with acting
}

// Owner names what a step did, whichever attempt: what it puts back is its own.
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
	Ask        bool              `json:"ask,omitempty"` // nothing is to be begun
	Target     string            `json:"target,omitempty"`
	// Fresh is Status.Fresh of the answer that the order follows; 0: it names none, and never becomes too old.
	Fresh uint64 `json:"fresh,omitempty"`
	// Heard is the highest term of any leader that the half has heard of, by whatever it was told; 0: of none.
	Heard uint64 `json:"heard,omitempty"`
	// Late says that the order has been held up: see Late. It is the doer's to tell, who has the clock.
	Late bool `json:"-"`
}

// FreshFor is for how long after the agent's answer an order of that answer is taken. It bounds for how long after another leader was elected an order of the
// one before may begin something on a node that has not heard of the new one; it is long enough for a way through the torus that loses messages.
const FreshFor = 5 * time.Second

// Late says of an order of an answer, as Status.Fresh, whether it has been held up for too long by now. An answer of another boot of the machine is too old.
func Late(fresh, now uint64) bool { return fresh != 0 && now-fresh > uint64(FreshFor.Milliseconds()) }

// Timeout is how long the act may take.
func (o *Order) Timeout() time.Duration { return time.Duration(o.TimeoutMS) * time.Millisecond }

// Half is whose daemon does it: the one that looks after the half that is to be restarted, else the host half's.
func (o *Order) Half() fault.Half {
	if h, err := fault.ParseHalf(o.Parameters["half"]); err == nil && o.Kind == KindRestartHalf {
		return h
	}
	return fault.HalfHost
}

// The kinds that an agent knows, as package response has them.
const (
	KindCheck          = "node.check"
	KindRestartHalf    = "node.restart-half"
	KindLimitFrequency = "node.limit-frequency"
	KindEureka         = "eureka"
)

// FromWire takes an order over from the wire.
func FromWire(o *lofamov1.ActOrder) Order {
	out := Order{
		Attempt: Attempt{o.GetResponse(), int(o.GetStep()), int(o.GetAttempt())}, Token: o.GetToken(), Kind: o.GetKind(), Undo: o.GetUndo(), Recheck: o.GetRecheck(),
		TimeoutMS: o.GetTimeoutMs(), Ledger: o.GetLedger(), Ask: o.GetAsk(), Target: o.GetTarget(), Fresh: o.GetFresh(), Parameters: map[string]string{},
	}
	for _, p := range o.GetParameters() {
		out.Parameters[p.GetName()] = p.GetValue()
	}
	return out
}

// Status answers an Order.
type Status struct {
	State   State    `json:"state"`
	Detail  string   `json:"detail,omitempty"` // for people
	Ledger  uint64   `json:"ledger,omitempty"` // 0: there is none
	Token   uint64   `json:"token,omitempty"`  // the highest that was seen
	Allowed []string `json:"allowed,omitempty"`
	// Yours: the attempt was admitted just now, and the half that asks is to make it and to say how it Ended.
	Yours bool `json:"yours,omitempty"`
	// Fresh is when this was said: milliseconds since boot, plus a number that is another one with each boot. 0: nobody says.
	Fresh uint64 `json:"fresh,omitempty"`
}

// Result is how an act ended.
type Result struct {
	State  State
	Detail string
}

// Ended is what a half says of an act that was its own to do.
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
	By     fault.Half `json:"by"` // whose daemon makes it
	State  State      `json:"state"`
	Detail string     `json:"detail,omitempty"`
	// Note is what the act wants the next attempt to know, kept before anything was changed.
	Note string `json:"note,omitempty"`
	// At is when it began, Until when it has ended for certain: Unix times in ms.
	At    int64 `json:"at"`
	Until int64 `json:"until"`
}

// maxEntries bounds the entries. Those under a lower token than the highest that was seen are dropped first: what bears one is refused from then on. When
// all are of the highest no more is admitted under it: dropping one would let it be made again.
const maxEntries = 512

// Ledger is for one goroutine at a time.
type Ledger struct {
	Life    uint64  `json:"life"`
	Token   uint64  `json:"token"` // the highest seen
	Entries []Entry `json:"entries,omitempty"`
	// Boot is the boot of the machine that Limits are of: another one has none of them in force.
	Boot   string  `json:"boot,omitempty"`
	Limits []Limit `json:"limits,omitempty"`
	// Unlimited is what was read of each cpufreq policy, kHz, when it was neither limited by us nor throttled, in this boot.
	Unlimited map[string]uint64 `json:"unlimited,omitempty"`
}

// Encode returns what is kept of it.
func (l *Ledger) Encode() ([]byte, error) { return json.Marshal(l) }

// MaxLedger bounds what Decode takes, in bytes: maxEntries with long details, and limits of as many processors as there are.
const MaxLedger = 4 << 20

// ErrLedger is what Decode fails with.
var ErrLedger = errors.New("no ledger of acts")

// Decode reads what Encode wrote.
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

// Rebooted drops what a boot of the machine has ended.
func (l *Ledger) Rebooted(boot string) {
	if l.Boot != boot {
		l.Boot, l.Limits, l.Unlimited = boot, nil, nil
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

// status is that of an attempt as it stands.
func (l *Ledger) status(now time.Time, a Attempt) Status {
	s := Status{State: None, Ledger: l.Life, Token: l.Token}
	if e := l.find(a); e != nil {
		s.State, s.Detail = e.State, e.Detail
		if e.State == UnderWay && now.UnixMilli() > e.Until {
			s.State, s.Detail = NotKnown, "it has not ended in time, or nobody could say that it has"
		}
	}
	return s
}

// Hear takes a leader's term that was heard of, whatever was ordered under it: terms are tokens. It says whether there is something to keep: a higher one.
func (l *Ledger) Hear(term uint64) (keep bool) {
	keep = term > l.Token
	l.Token = max(l.Token, term)
	return keep
}

// Look answers an order that only asks. It says whether there is something to keep: a higher token.
func (l *Ledger) Look(now time.Time, o *Order) (s Status, keep bool) {
	keep = l.Hear(max(o.Token, o.Heard))
	return l.status(now, o.Attempt), keep
}

// graceAfter is how long after its time an act is waited for until nobody can say any more how it ended.
const graceAfter = 5 * time.Second

// Admit takes an order to act. It says whether the attempt is to be made: then what it has changed is to be kept first. What it refuses, and what is known
// of an attempt that it has seen, is the status.
func (l *Ledger) Admit(now time.Time, o *Order) (s Status, begin bool) {
	refused := func(st State, format string, args ...any) (Status, bool) {
		return Status{State: st, Detail: fmt.Sprintf(format, args...), Ledger: l.Life, Token: l.Token}, false
	}
	switch {
	case o.Ledger != l.Life:
		return refused(Unchanged, "the order is for another ledger of this node: it has begun anew")
	case l.find(o.Attempt) != nil: // whatever the token: what became of it is known
		return l.status(now, o.Attempt), false
	case o.Token < l.Token:
		return refused(Stale, "token %d: %d has been seen", o.Token, l.Token)
	case o.Late: // who has ordered it hears this, if he still wants it, and orders it of this answer
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
		if e.State == UnderWay && now.UnixMilli() <= e.Until {
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
	l.Entries = append(l.Entries, Entry{
		Attempt: o.Attempt, Token: o.Token, Kind: o.Kind, Undo: o.Undo, By: o.Half(), State: UnderWay, At: now.UnixMilli(), Until: now.Add(o.Timeout() + graceAfter).UnixMilli(),
	})
	return l.status(now, o.Attempt), true
}

// Note keeps a word of an attempt under way for the next one at its step.
func (l *Ledger) Note(a Attempt, note string) {
	if e := l.find(a); e != nil {
		e.Note = note
	}
}

// Earlier are the attempts at the same step and in the same direction that came before, the newest first.
func (l *Ledger) Earlier(o *Order) []Entry {
	var out []Entry
	for _, e := range slices.Backward(l.Entries) {
		if e.Owner() == o.Owner() && e.Attempt.Attempt < o.Attempt.Attempt && e.Undo == o.Undo {
			out = append(out, e)
		}
	}
	return out
}

// End says how an attempt under way has ended.
func (l *Ledger) End(a Attempt, r Result) {
	if e := l.find(a); e != nil && e.State == UnderWay {
		e.State, e.Detail = r.State, source.Detail(r.Detail)
	}
}

// Interrupt says that who made a half's attempts has ended: what was under way is not known any more. It says whether there was any.
func (l *Ledger) Interrupt(by fault.Half) (any bool) {
	for i := range l.Entries {
		if e := &l.Entries[i]; e.By == by && e.State == UnderWay {
			e.State, e.Detail, any = NotKnown, "the recovery daemon ended while it was under way", true
		}
	}
	return any
}
