package procedure

import (
	"cmp"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Bounds of what is kept of procedures that nobody here has ordered.
const (
	maxStrays = 8  // followed at once
	maxPast   = 64 // remembered, so that late words make no second report
	// straysFor is for how long one is followed at most.
	straysFor = 30 * time.Second
)

// strayKey names a procedure that was not ordered.
type strayKey struct {
	starter uint32
	wave    uint64
}

// Stray is a procedure that is over and that nobody has ordered.
type Stray struct {
	Report *lofamov1.ProcedureReport
	Node   fault.NodeID // has begun it by itself
	Began  time.Time    // when the first word of it came
	// Vouched: its starter has said that it is through, or two others have. Otherwise one half may have made it up, and a starter with it.
	Vouched bool
}

type stray struct {
	key     strayKey
	machine *Machine
	began   time.Time
	cause   string
}

// Strays follows procedures that nodes have begun by themselves, by what they say of their end: there is no order to ask with. It is for one goroutine.
type Strays struct {
	timing Timing
	now    []*stray
	past   []strayKey
}

// NewStrays returns one that has heard of none.
func NewStrays(timing Timing) *Strays { return &Strays{timing: timing} }

// Said takes what a half said of a procedure without an order. whole is the torus as it is now; false: nobody knows.
func (s *Strays) Said(now time.Time, st *lofamov1.ProcedureStatus, whole func() (Plan, bool)) {
	if st.GetState() != lofamov1.ProcedureState_PROCEDURE_NORMAL || st.GetError() != "" || st.GetHalf() != lofamov1.Half_HALF_DNP || st.GetNumber() != nil {
		return
	}
	key := strayKey{st.GetStarter(), st.GetWave()}
	if slices.Contains(s.past, key) {
		return
	}
	i := slices.IndexFunc(s.now, func(x *stray) bool { return x.key == key })
	if i < 0 {
		if len(s.now) == maxStrays { // whoever makes them up has its turn when these are over
			return
		}
		plan, ok := whole()
		if !ok || int(key.starter) >= len(plan.Nodes) {
			return
		}
		m := follow(plan, s.timing)
		m.phase = underWay
		m.becomeEnding(now)
		i = len(s.now)
		s.now = append(s.now, &stray{key: key, machine: m, began: now})
	}
	x := s.now[i]
	if st.GetCause() != "" {
		x.cause = st.GetCause()
	}
	x.machine.Step(now, Said{st})
	x.machine.again = earlier(now.Add(s.timing.Quiet), x.began.Add(straysFor))
}

// Tick returns those that are over, and when to look again; zero: when something is said.
func (s *Strays) Tick(now time.Time) (done []Stray, wake time.Time) {
	s.now = slices.DeleteFunc(s.now, func(x *stray) bool {
		if !x.machine.Step(now, Tick{}).Done {
			return false
		}
		if s.past = append(s.past, x.key); len(s.past) > maxPast {
			s.past = s.past[1:]
		}
		done = append(done, x.done())
		return true
	})
	for _, x := range s.now {
		if at := x.machine.again; wake.IsZero() || at.Before(wake) {
			wake = at
		}
	}
	return done, wake
}

func (x *stray) done() Stray {
	r := x.machine.Report()
	id := x.machine.plan.name(x.key.starter)
	r.Starter, r.Subject, r.Reason = id, "node/"+id, x.cause
	return Stray{Report: r, Node: fault.NodeID(id), Began: x.began, Vouched: x.vouched(fault.NodeID(id))}
}

// vouched says whether who is said to have begun it says so as well, or more than one other.
func (x *stray) vouched(starter fault.NodeID) bool {
	said := 0
	for id, n := range x.machine.nodes {
		if n.end != nil {
			if said++; id == starter {
				return true
			}
		}
	}
	return said > 1
}

// Starters counts the procedures that nodes begin by themselves. It is for one goroutine.
type Starters struct {
	window time.Duration
	most   int
	begun  []start // ascending
	named  map[fault.NodeID]time.Time
}

type start struct {
	node fault.NodeID
	at   time.Time
}

// NewStarters returns one that names a node that has begun more than so many within a window, once a window.
func NewStarters(most int, window time.Duration) *Starters {
	return &Starters{window: window, most: most, named: make(map[fault.NodeID]time.Time)}
}

// Began counts one. It says how many the node has begun within the window, and whether that is to be told now.
func (s *Starters) Began(now time.Time, id fault.NodeID) (n int, tell bool) {
	old, _ := slices.BinarySearchFunc(s.begun, now.Add(-s.window), func(b start, t time.Time) int { return cmp.Or(b.at.Compare(t), -1) })
	s.begun = append(slices.Delete(s.begun, 0, old), start{id, now})
	for _, b := range s.begun {
		if b.node == id {
			n++
		}
	}
	for of, at := range s.named {
		if now.Sub(at) >= s.window {
			delete(s.named, of)
		}
	}
	if _, told := s.named[id]; n <= s.most || told {
		return n, false
	}
	s.named[id] = now
	return n, true
}

// Window is within which they are counted.
func (s *Starters) Window() time.Duration { return s.window }
