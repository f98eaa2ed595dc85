package orders

import (
	"cmp"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Bounds of the stored state of procedures without an order. If there is no room, the node that takes most of it
// makes room: see crowd.
const (
	maxStrays = 8  // followed at once
	maxPast   = 64 // remembered, so that late words make no second report
	// straysFor is the maximum time to follow one procedure.
	straysFor = 30 * time.Second
)

// strayKey names a procedure that was not ordered.
type strayKey struct {
	starter uint32
	wave    uint64
}

// finishedStray is a finished procedure that no supervisor ordered.
type finishedStray struct {
	Report *lofamov1.ProcedureReport
	Node   fault.NodeID // has begun it by itself
	Began  time.Time    // time of its first status
	// Vouched: its starter has said that it is through, or two others have. Otherwise a single half may have invented
	// it, and its starter too.
	Vouched bool
}

type stray struct {
	key     strayKey
	opener  string // node of its first status
	machine *procedureMachine
	began   time.Time
	cause   string
}

// strays follows procedures that nodes began by themselves, from their final statuses: without an order it cannot
// ask for more. It is not safe for concurrent use.
type strays struct {
	timing ProcedureTiming
	now    []*stray
	past   []strayKey
}

// newStrays returns strays that follow no procedure yet.
func newStrays(timing ProcedureTiming) *strays { return &strays{timing: timing} }

// Said processes a half's status of a procedure without an order. whole returns the present torus; false means
// unknown.
func (s *strays) Said(now time.Time, st *lofamov1.ProcedureStatus, whole func() (procedurePlan, bool)) {
	if st.GetState() != lofamov1.ProcedureState_PROCEDURE_NORMAL || st.GetError() != "" || st.GetHalf() != lofamov1.Half_HALF_DNP ||
		st.GetNumber() != nil {
		return
	}
	key := strayKey{st.GetStarter(), st.GetWave()}
	if slices.Contains(s.past, key) {
		return
	}
	i := slices.IndexFunc(s.now, func(x *stray) bool { return x.key == key })
	if i < 0 {
		instead, room := s.room(st.GetNode())
		if !room {
			return
		}
		plan, ok := whole()
		if !ok || int(key.starter) >= len(plan.Nodes) {
			return
		}
		if instead >= 0 {
			s.now = slices.Delete(s.now, instead, instead+1)
		}
		m := followProcedure(plan, s.timing)
		m.phase = underWay
		m.becomeEnding(now)
		i = len(s.now)
		s.now = append(s.now, &stray{key: key, opener: st.GetNode(), machine: m, began: now})
	}
	x := s.now[i]
	if st.GetCause() != "" {
		x.cause = st.GetCause()
	}
	x.machine.Step(now, procedureSaid{st})
	x.machine.timer.At = fault.Earlier(now.Add(s.timing.Quiet), x.began.Add(straysFor))
}

// Tick returns the finished procedures and the time of the next tick. A zero time means after the next status.
func (s *strays) Tick(now time.Time) (done []finishedStray, wake time.Time) {
	s.now = slices.DeleteFunc(s.now, func(x *stray) bool {
		if !x.machine.Step(now, procedureTick{}).Done {
			return false
		}
		d := x.done()
		// the others have no report: an early invention must not suppress the real report
		if done = append(done, d); d.Vouched {
			s.remember(x.key)
		}
		return true
	})
	for _, x := range s.now {
		if at := x.machine.timer.At; wake.IsZero() || at.Before(wake) {
			wake = at
		}
	}
	return done, wake
}

// crowd returns the most frequent element and its count; among equals, the first.
func crowd[K comparable](all []K) (most K, n int) {
	count := make(map[K]int, len(all))
	for _, k := range all {
		count[k]++
	}
	for _, k := range all {
		if count[k] > n {
			most, n = k, count[k]
		}
	}
	return most, n
}

// room reports whether there is room for one more procedure that opener reports, and which one it replaces (-1:
// none). It replaces only a procedure known from a single node that reported more than the opener: no node can
// crowd out the others.
func (s *strays) room(opener string) (instead int, ok bool) {
	if len(s.now) < maxStrays {
		return -1, true
	}
	var openers []string
	own := 0
	for _, x := range s.now {
		if openers = append(openers, x.opener); x.opener == opener {
			own++
		}
	}
	most, n := crowd(openers)
	if own+1 >= n {
		return -1, false
	}
	for i := len(s.now) - 1; i >= 0; i-- {
		if x := s.now[i]; x.opener == most && len(x.said()) == 1 {
			return i, true
		}
	}
	return -1, false
}

// remember prevents a second report.
func (s *strays) remember(key strayKey) {
	if s.past = append(s.past, key); len(s.past) <= maxPast {
		return
	}
	starters := make([]uint32, len(s.past))
	for i, k := range s.past {
		starters[i] = k.starter
	}
	most, _ := crowd(starters)
	oldest := slices.Index(starters, most)
	s.past = slices.Delete(s.past, oldest, oldest+1)
}

func (x *stray) done() finishedStray {
	r := x.machine.Report()
	id := x.machine.plan.name(x.key.starter)
	r.Starter, r.Subject, r.Reason = id, "node/"+id, x.cause
	return finishedStray{Report: r, Node: fault.NodeID(id), Began: x.began, Vouched: x.vouched(fault.NodeID(id))}
}

// vouched reports whether the reported starter confirms the procedure, or more than one other node does.
func (x *stray) vouched(starter fault.NodeID) bool {
	said := x.said()
	return len(said) > 1 || slices.Contains(said, starter)
}

// said returns the nodes that have said that they are through.
func (x *stray) said() (out []fault.NodeID) {
	for id, n := range x.machine.nodes {
		if n.end != nil {
			out = append(out, id)
		}
	}
	return out
}

// startCounts counts the procedures that nodes begin by themselves. It is not safe for concurrent use.
type startCounts struct {
	window time.Duration
	most   int
	begun  []start // ascending
	named  map[fault.NodeID]time.Time
}

type start struct {
	node fault.NodeID
	at   time.Time
}

// newStartCounts returns startCounts that name a node once a window if it begins more than most procedures within the
// window.
func newStartCounts(most int, window time.Duration) *startCounts {
	return &startCounts{window: window, most: most, named: make(map[fault.NodeID]time.Time)}
}

// Began counts one procedure. It returns the node's number of procedures within the window, and whether to report
// that now.
func (s *startCounts) Began(now time.Time, id fault.NodeID) (n int, tell bool) {
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
func (s *startCounts) Window() time.Duration { return s.window }
