package orders

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// whole is a torus of four.
func whole(t *testing.T) func() (procedurePlan, bool) {
	plan := square(t, nil)
	return func() (procedurePlan, bool) { return plan, true }
}

// A procedure that a node has begun by itself becomes exactly one report, when all members have said that they are
// through.
func TestProcedureOfNodeBecomesOneReport(t *testing.T) {
	s, plan, now := newStrays(timing()), whole(t), time.Unix(1000, 0)
	cause := func(st *lofamov1.ProcedureStatus) {
		isClear(st)
		st.Starter, st.Cause = 2, "link X+ carries no broadcasts"
	}
	s.Said(now, status(2, drain, cause), plan) // only ends count
	if _, wake := s.Tick(now); !wake.IsZero() {
		t.Fatal("it follows one of which nobody was at the end")
	}
	for rank := range 4 {
		s.Said(now, status(rank, normal, func(st *lofamov1.ProcedureStatus) {
			isClear(st)
			st.Starter = 2
			if rank == 2 {
				cause(st)
			}
		}), plan)
		done, _ := s.Tick(now)
		if (len(done) == 1) != (rank == 3) {
			t.Fatalf("after the end of node %d: %v", rank, done)
		}
		if rank < 3 {
			now = now.Add(time.Second)
			continue
		}
		r := done[0].Report
		if done[0].Node != "n0-1-0" || r.GetSubject() != "node/n0-1-0" || r.GetReason() != "link X+ carries no broadcasts" ||
			!r.GetClear() || len(r.GetNodes()) != 4 || r.GetWave() != 7 {
			t.Errorf("%+v", done[0])
		}
		if got := now.Sub(done[0].Began); got != 3*time.Second {
			t.Errorf("it took %s", got)
		}
	}
	s.Said(now, status(1, normal, cause), plan) // late
	if done, wake := s.Tick(now.Add(time.Minute)); len(done) > 0 || !wake.IsZero() {
		t.Errorf("a second report: %v", done)
	}
}

// Two at once give two reports, even if one member is silent and another never stops sending statuses.
func TestTwoProceduresOfNodesAreSeparate(t *testing.T) {
	s, plan, now := newStrays(timing()), whole(t), time.Unix(1000, 0)
	for wave := range uint64(2) {
		for _, rank := range []int{0, 1, 2} {
			s.Said(now, status(rank, normal, func(st *lofamov1.ProcedureStatus) { st.Wave, st.Starter = 5+wave, uint32(wave) }), plan)
		}
	}
	done, wake := s.Tick(now)
	if len(done) > 0 || wake.Sub(now) != timing().Quiet {
		t.Fatalf("%v, to be woken after %s", done, wake.Sub(now))
	}
	done, wake = s.Tick(wake)
	if len(done) != 2 || !wake.IsZero() || done[0].Node != "n0-0-0" || done[1].Node != "n1-0-0" || done[0].Report.GetSilent()[0] != "n1-1-0" {
		t.Errorf("%v", done)
	}
	began := now
	for len(done) > 0 {
		s.Said(now, status(0, normal, func(st *lofamov1.ProcedureStatus) { st.Wave = 9 }), plan)
		now = now.Add(time.Second)
		if done, _ = s.Tick(now); len(done) > 0 {
			break
		}
		done = []finishedStray{{}}
		if now.Sub(began) > time.Minute {
			t.Fatal("it never ends")
		}
	}
}

// A status with an order's number, from whichever leader, is no stray: it is late, or an answer to the next leader.
func TestOrderedIsNoStray(t *testing.T) {
	s, plan, now := newStrays(timing()), whole(t), time.Unix(1000, 0)
	for rank := range 4 {
		s.Said(now, status(rank, normal, func(st *lofamov1.ProcedureStatus) { st.Number = &lofamov1.OrderNumber{Term: 3, Count: 2} }), plan)
	}
	if done, wake := s.Tick(now.Add(time.Minute)); len(done) > 0 || !wake.IsZero() {
		t.Fatalf("%+v", done)
	}
}

// Invented procedures take no more than the bounded space.
func TestStraysAreBounded(t *testing.T) {
	s, plan, now := newStrays(timing()), whole(t), time.Unix(1000, 0)
	for wave := range uint64(3 * maxPast) {
		s.Said(now, status(0, normal, func(st *lofamov1.ProcedureStatus) { st.Wave = wave }), plan)
		s.Said(now, status(0, normal, func(st *lofamov1.ProcedureStatus) { st.Wave, st.Starter = wave, 4 }), plan) // no place
		if len(s.now) > maxStrays || len(s.past) > maxPast {
			t.Fatalf("%d followed, %d remembered", len(s.now), len(s.past))
		}
		if wave%10 == 9 {
			now = now.Add(10 * time.Second)
			s.Tick(now)
		}
	}
	s = newStrays(timing())
	s.Said(now, status(0, normal, nil), func() (procedurePlan, bool) { return procedurePlan{}, false })
	if len(s.now) > 0 {
		t.Error("one in a torus that nobody knows is followed")
	}
	s.Said(now, status(0, normal, nil), plan)
	s = newStrays(timing())
	if done, wake := s.Tick(now.Add(time.Hour)); len(done) > 0 || !wake.IsZero() {
		t.Errorf("%v of a term that is over", done)
	}
}

// A node that invents procedures keeps no other node's from being followed, however many it reports. Invented
// reports, sent early or in a starter's name, do not suppress the real ones.
func TestInventedProceduresHideNoOther(t *testing.T) {
	s, plan, now := newStrays(timing()), whole(t), time.Unix(1000, 0)
	say := func(rank int, starter uint32, wave uint64) {
		s.Said(now, status(rank, normal, func(st *lofamov1.ProcedureStatus) { st.Starter, st.Wave = starter, wave }), plan)
	}
	reports := func() (out []string) {
		done, _ := s.Tick(now)
		for _, d := range done {
			if d.Vouched {
				out = append(out, fmt.Sprint(d.Node, " ", d.Report.GetWave()))
			}
		}
		slices.Sort(out)
		return out
	}
	for wave := range uint64(3 * maxStrays) {
		say(0, 1, wave+1)
	}
	now = now.Add(time.Minute)
	if got := reports(); len(got) > 0 {
		t.Errorf("of what one alone tells: %v", got)
	}
	for wave := range uint64(3 * maxStrays) {
		say(0, uint32(wave%4), wave+1)
	}
	for _, by := range []int{1, 2} { // as in the earlier invention
		say(by, 1, 6)
	}
	for _, wave := range []uint64{100, 101} {
		say(3, 2, wave)
		say(2, 2, wave)
	}
	for wave := range uint64(3 * maxStrays) {
		say(0, 3, wave+200)
	}
	now = now.Add(time.Minute)
	if got := fmt.Sprint(reports()); !strings.Contains(got, "n1-0-0 6]") || !strings.Contains(got, "n0-1-0 100 n0-1-0 101") {
		t.Errorf("reports %s: want those of 100, 101 and 6", got)
	}
	// A starter that invents procedures in its own name displaces its own entries first.
	for wave := range uint64(2 * maxPast) {
		say(0, 0, wave+1000)
		now = now.Add(time.Minute)
		s.Tick(now)
	}
	say(3, 2, 100)
	say(2, 2, 100)
	now = now.Add(time.Minute)
	if got := reports(); len(got) > 0 {
		t.Errorf("a second report: %v", got)
	}
}

// A reported starter counts as vouched for when it confirms the procedure itself, or when two others report it: a
// single node may have invented it.
func TestStarterIsVouchedForByTwo(t *testing.T) {
	for _, c := range []struct {
		who  []int
		want bool
	}{{[]int{0}, false}, {[]int{0, 0}, false}, {[]int{2}, true}, {[]int{0, 1}, true}, {[]int{0, 2}, true}} {
		s, now := newStrays(timing()), time.Unix(1000, 0)
		for _, rank := range c.who {
			s.Said(now, status(rank, normal, func(st *lofamov1.ProcedureStatus) { st.Starter = 2 }), whole(t))
		}
		done, _ := s.Tick(now.Add(time.Minute))
		if len(done) != 1 || done[0].Node != "n0-1-0" || done[0].Vouched != c.want {
			t.Errorf("told by %v: %+v, want it vouched for: %t", c.who, done, c.want)
		}
	}
}

// A node that begins too many procedures within a window is reported once per window.
func TestNodeThatBeginsTooManyIsNamed(t *testing.T) {
	s, now := newStartCounts(2, time.Hour), time.Unix(1000, 0)
	var told []string
	for i, at := range []int{0, 10, 20, 30, 61, 65, 85, 200} { // minutes
		n, tell := s.Began(now.Add(time.Duration(at)*time.Minute), "n0")
		if tell {
			told = append(told, fmt.Sprintf("%d: %d", at, n))
		}
		if m, tell := s.Began(now.Add(time.Duration(at)*time.Minute), fault.NodeID(fmt.Sprint("other", i))); m != 1 || tell {
			t.Errorf("another one: %d, %t", m, tell)
		}
	}
	if got, want := fmt.Sprint(told), "[20: 3 85: 4]"; got != want {
		t.Errorf("told %s, want %s", got, want)
	}
}
