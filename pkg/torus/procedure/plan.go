package procedure

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// State is a state of Figure 7, by the paper's names.
type State uint8

// The states.
const (
	Normal State = iota + 1
	ErrorDetectPropagate
	SystemDrain
	NetworkClear
	DropPackets
	Decision
	Diagnostics

	numStates = iota + 1
)

var stateNames = [...]string{
	Normal: "Normal", ErrorDetectPropagate: "ErrorDetectPropagate", SystemDrain: "SystemDrain", NetworkClear: "NetworkClear",
	DropPackets: "DropPackets", Decision: "Decision", Diagnostics: "Diagnostics",
}

// String returns the paper's name.
func (s State) String() string {
	if s.Valid() {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// Valid reports whether s is one of the states.
func (s State) Valid() bool { return s >= Normal && s <= Diagnostics }

// Set is a set of nodes that only grows.
type Set uint8

// The sets: see the package comment.
const (
	Joined Set = iota + 1
	Empty
	Confirm
	Present
	Stuck
)

var setNames = [...]string{Joined: "Joined", Empty: "Empty", Confirm: "Confirm", Present: "Present", Stuck: "Stuck"}

// String returns the set's name.
func (s Set) String() string {
	if s >= Joined && s <= Stuck {
		return setNames[s]
	}
	return fmt.Sprintf("Set(%d)", uint8(s))
}

// Order is the number of a supervisor's order; the zero value: a node began by itself.
type Order struct{ Term, Count uint64 }

// Compare orders them: the higher the newer.
func (o Order) Compare(p Order) int {
	return cmp.Or(cmp.Compare(o.Term, p.Term), cmp.Compare(o.Count, p.Count))
}

// Key names a procedure.
type Key struct {
	Wave    uint64 // from 1
	Starter int    // rank of the node that began it
	Run     uint64 // chosen by the starter: no two of its procedures have the same
}

// before reports whether all nodes take the first of two procedures that meet. Both orders must be verified, or none.
func before(a Key, ordered Order, b Key, other Order) bool {
	none := Order{}
	return cmp.Or(
		-cmp.Compare(boolean(ordered != none), boolean(other != none)), -ordered.Compare(other), -cmp.Compare(a.Wave, b.Wave),
		cmp.Compare(a.Starter, b.Starter), cmp.Compare(a.Run, b.Run)) < 0
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Plan holds the times of a procedure: all its nodes have them from its starter.
type Plan struct {
	// Delay is the Network Delay (§4.1): in it a broadcast reaches every node that can be reached. MinDelay to
	// MaxDelay. Hop is the delay of one hop, MinDelay to Delay.
	Delay, Hop time.Duration
	// DrainTimeout is how long the procedure waits for messages that can be delivered, and for answers. MinDrain to
	// MaxDrain.
	DrainTimeout time.Duration
	// Absent are the ranks of the places that need not answer, ascending, at most MaxAbsent: those that the map calls
	// FAILED, and empty ones.
	Absent []int
}

// Bounds of a Plan. Times are sent in whole microseconds, the drain's in milliseconds.
const (
	MinDelay  = 100 * time.Microsecond
	MaxDelay  = 10 * time.Second
	MinDrain  = 10 * time.Millisecond
	MaxDrain  = time.Minute
	MaxAbsent = 200
	// MaxRank bounds ranks: barriers have so many members at most.
	MaxRank = 8192 - 1
)

// Validate names the first field that is not allowed.
func (p *Plan) Validate() error {
	switch {
	case p.Delay < MinDelay || p.Delay > MaxDelay:
		return fmt.Errorf("delay: given %s: want %s to %s", p.Delay, MinDelay, MaxDelay)
	case p.Hop < MinDelay || p.Hop > p.Delay:
		return fmt.Errorf("hop: given %s: want %s to the delay, %s", p.Hop, MinDelay, p.Delay)
	case p.DrainTimeout < MinDrain || p.DrainTimeout > MaxDrain:
		return fmt.Errorf("drain time-out: given %s: want %s to %s", p.DrainTimeout, MinDrain, MaxDrain)
	case len(p.Absent) > MaxAbsent:
		return fmt.Errorf("absent: given %d ranks: want at most %d", len(p.Absent), MaxAbsent)
	}
	last := -1
	for _, r := range p.Absent {
		if r <= last || r > MaxRank {
			return fmt.Errorf("absent: rank %d after %d: want them ascending, up to %d", r, last, MaxRank)
		}
		last = r
	}
	return nil
}

// Limits are a node's bounds on procedures of any starter.
type Limits struct {
	// Drop is how long late deliveries may take after the drain's time-out. Diagnose bounds the duration of the
	// tests.
	Drop, Diagnose time.Duration
	// Rest is how long after a procedure this node joins none that a node began by itself. Budget bounds the
	// procedures of one starter that it joins within Window.
	Rest   time.Duration
	Budget int
	Window time.Duration
	// Delay and Drain bound the plan of a procedure that a node began by itself.
	Delay, Drain time.Duration
}

// Validate names the first field that is not allowed.
func (l *Limits) Validate() error {
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"drop", l.Drop}, {"diagnose", l.Diagnose}, {"rest", l.Rest}, {"window", l.Window}, {"delay", l.Delay}, {"drain", l.Drain}} {
		if f.d <= 0 || f.d > time.Hour {
			return fmt.Errorf("%s: given %s: want above 0, up to 1h", f.name, f.d)
		}
	}
	if l.Budget < 1 {
		return fmt.Errorf("budget: given %d: want at least 1", l.Budget)
	}
	return nil
}

// Longest bounds the time that a node is out of Normal.
func (p *Plan) Longest(l *Limits) time.Duration {
	return p.Delay + p.DrainTimeout + 2*p.Hop + l.Drop + 2*p.Delay + l.Diagnose + p.Delay
}

// Repeat is the interval at which the starter repeats its state while the drain lasts: nodes that restarted meanwhile
// join then.
func (p *Plan) Repeat() time.Duration { return max(2*p.Delay, 100*time.Millisecond) }

// Message is a broadcast. The starter announces its state; any node announces that it holds messages after it had
// claimed not to, or that it requests diagnostics.
type Message struct {
	Key
	State    State  // of the sender; Normal: the procedure is over
	Round    uint32 // of the drain, from 1; 0 before it
	Holding  bool   // in that round, the sender held a message after its claim
	Clear    bool   // in Decision and Diagnostics: the drain was complete
	Diagnose bool   // diagnostics are requested
	Order    Order
	Plan     Plan
}

// Step records one state at a node.
type Step struct {
	State State
	Took  time.Duration // all rounds together
	Held  int           // messages that it held when it left it
}

// Dropped reports whether the drain timed out here: then Present and Stuck list the others, and else Joined does.
func (r *Result) Dropped() bool {
	return slices.ContainsFunc(r.Steps, func(s Step) bool { return s.State == DropPackets })
}

// Result is the outcome of a procedure at a node.
type Result struct {
	Key
	Order    Order
	Clear    bool // all members held nothing, at one and the same time
	Rounds   uint32
	Diagnose bool   // the tests were made
	Held     int    // messages that it holds
	Steps    []Step // in the order of Figure 7, those that it was in
	TimedOut bool   // Normal was reached because Longest was over
}

// over remembers the procedures that have ended here, the latest ones.
type over struct {
	keys [32]Key
	next int
}

func (o *over) add(k Key) {
	if !o.has(k) {
		o.keys[o.next] = k
		o.next = (o.next + 1) % len(o.keys)
	}
}

func (o *over) has(k Key) bool { return slices.Contains(o.keys[:], k) }
