package jobs

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lofamo/lofamo/pkg/fault"
)

func fid(s string) fault.NodeID       { return fault.NodeID(s) }
func epoch(n uint64) fault.Epoch      { return fault.Epoch(n) }
func after(d time.Duration) time.Time { return t0.Add(d) }

const ms = time.Millisecond

// desk is the barriers of node b, among a, b and c, at a time that the test moves.
type desk struct {
	t     *testing.T
	s     *Barriers
	now   time.Time
	mails []Mail
	ends  map[uint64]Outcome
	out   Output
}

func newDesk(t *testing.T) *desk {
	return &desk{t: t, s: NewBarriers(), now: t0, ends: map[uint64]Outcome{}}
}

func (d *desk) step(ev Event) {
	d.out = d.s.Step(d.now, ev)
	d.mails = append(d.mails, d.out.Mail...)
	for _, o := range d.out.Outcomes {
		if _, twice := d.ends[o.ID]; twice {
			d.t.Errorf("call %d ends twice", o.ID)
		}
		d.ends[o.ID] = o
	}
}

// until lets time pass, ticks whenever the core asks to wake, and answers mails with answer.
func (d *desk) until(at time.Duration, answer func(Mail) *Mail) {
	for end := after(at); ; {
		w := d.out.Wake
		if w.IsZero() || w.After(end) {
			d.now = end
			return
		}
		d.now = w
		d.step(Tick{})
		for _, m := range d.take() {
			if a := answer(m); a != nil {
				d.step(Answered{*a})
			}
		}
	}
}

func (d *desk) take() []Mail {
	out := d.mails
	d.mails = nil
	return out
}

func (d *desk) sent(want ...Mail) {
	d.t.Helper()
	if diff := cmp.Diff(want, d.take()); diff != "" {
		d.t.Errorf("mail: %s", diff)
	}
}

func (d *desk) ended(want ...Outcome) {
	d.t.Helper()
	m := map[uint64]Outcome{}
	for _, o := range want {
		m[o.ID] = o
	}
	if diff := cmp.Diff(m, d.ends); diff != "" {
		d.t.Errorf("outcomes: %s", diff)
	}
	d.ends = map[uint64]Outcome{}
}

var (
	step7 = Name{UID: 1000, Job: "train", Name: "step", Generation: 7}
	abc   = []fault.NodeID{"a", "b", "c"}
	key7  = step7.Key(abc)
)

func call(id uint64, participants int, who string) Call {
	return Call{ID: id, Name: step7, Members: abc, Rank: 1, Participants: participants, Participant: who}
}

func arrive(flag bool) Mail {
	return Mail{Kind: Arrive, Key: key7, Flag: flag, Members: 3, Rank: 1}
}

func says(arrived string) *Mail {
	m := Mail{Kind: Status, Key: key7, Result: OK, Links: 6, Flag: arrived == "abc"}
	for _, id := range abc {
		m.Arrived = append(m.Arrived, slices.Contains([]byte(arrived), id[0]))
	}
	return &m
}

func leave() Mail { return Mail{Kind: Leave, Key: key7} }

func silence(Mail) *Mail { return nil }

func TestKeyDependsOnEveryField(t *testing.T) {
	seen := map[Key]string{}
	for name, k := range map[string]Key{
		"it": key7, "user": Name{1, "train", "step", 7}.Key(abc), "job": Name{1000, "trainst", "ep", 7}.Key(abc), "name": Name{1000,
			"train", "steq", 7}.Key(abc),
		"generation": Name{1000, "train", "step", 8}.Key(abc), "members": step7.Key(abc[:2]), "cut": step7.Key([]fault.NodeID{"ab", "c"}),
	} {
		if other, twice := seen[k]; twice {
			t.Errorf("%s and %s have the same key", name, other)
		}
		seen[k] = name
	}
}

func TestDeskArrivesWhenAllParticipantsDo(t *testing.T) {
	d := newDesk(t)
	d.step(call(1, 2, "x"))
	d.sent(arrive(false)) // a participant is missing: it only asks
	d.step(call(2, 2, "x"))
	d.sent(arrive(false)) // the same one again
	d.step(call(3, 2, "y"))
	d.sent(arrive(true))
	d.until(150*ms, silence)
	d.step(Answered{*says("b")})
	d.sent()
	d.until(250*ms, silence)
	d.sent() // until took it
	d.step(Answered{*says("bc")})
	d.ended()
	d.step(Answered{*says("abc")})
	d.ended(Outcome{ID: 1, End: Complete}, Outcome{ID: 2, End: Complete}, Outcome{ID: 3, End: Complete})
	d.sent(leave())
	if !d.out.Wake.IsZero() {
		t.Errorf("nobody waits, and it wakes at %s", d.out.Wake)
	}
	d.step(call(4, 2, "y")) // comes back to ask
	d.ended(Outcome{ID: 4, End: Complete})
}

// While a caller waits, the node sends Arrive five times a second, so that a lost mail or a restart of the DNP half
// does not matter.
func TestBarrierAsksAgain(t *testing.T) {
	d := newDesk(t)
	d.step(call(1, 1, "x"))
	asked := 0
	d.until(10*time.Second, func(m Mail) *Mail { asked++; return says("b") })
	if asked < 48 || asked > 52 {
		t.Errorf("asked %d times in 10 s", asked)
	}
	d.ended()
}

func TestLeavingParticipantWithdrawsArrival(t *testing.T) {
	d := newDesk(t)
	d.step(call(1, 2, "x"))
	d.step(Left{1})
	d.step(call(2, 2, "y"))
	d.sent(arrive(false), leave(), arrive(false)) // x has taken its arrival with it
	d.step(call(3, 2, "x"))
	d.sent(arrive(true))
	d.step(Left{3}) // too late
	d.step(Left{2})
	d.step(Left{2})
	d.sent(leave())
	d.step(call(4, 2, "y"))
	d.sent(arrive(true))
	d.ended()
}

// A half that was restarted between two participants' coming back: the DNP half knows better.
func TestHostHalfRestarted(t *testing.T) {
	d := newDesk(t)
	d.step(call(1, 2, "x"))
	d.step(Answered{*says("b")})
	d.take()
	d.until(200*ms, func(m Mail) *Mail {
		if !m.Flag {
			t.Error("the node has arrived, as the DNP half says, and does not say so any more")
		}
		return says("abc")
	})
	d.ended(Outcome{ID: 1, End: Complete})
}

func TestOutcomeOfEachBarrierEnd(t *testing.T) {
	late := func(id uint64, participants int) Call {
		c := call(id, participants, "x")
		c.Until = after(1500 * ms)
		return c
	}
	answer := func(m *Mail) func(Mail) *Mail { return func(Mail) *Mail { return m } }
	with := func(arrived string, f func(*Mail)) *Mail { m := says(arrived); f(m); return m }
	for name, tc := range map[string]struct {
		call   Call
		answer *Mail
		want   Outcome
		at     time.Duration
	}{
		"late":            {late(1, 1), says("ab"), Outcome{End: Late, Nodes: abc[2:], Here: 1}, 1500 * ms},
		"late here":       {late(1, 2), says("a"), Outcome{End: Late, Nodes: abc[1:], Here: 1}, 1500 * ms},
		"no answer, late": {late(1, 1), nil, Outcome{End: Late, Nodes: abc, Here: 1}, 1500 * ms},
		"no answer":       {call(1, 1, "x"), nil, Outcome{End: Silent}, patience * askAgain},
		"no link":         {call(1, 1, "x"), with("b", func(m *Mail) { m.Links = 0 }), Outcome{End: Alone}, patience * askAgain},
		"no link at all": {call(1, 1, "x"), with("", func(m *Mail) { m.Result, m.Links = NoLinks, 0 }), Outcome{End: Alone},
			patience * askAgain},
		"too many":             {call(1, 1, "x"), with("", func(m *Mail) { m.Result = Busy }), Outcome{End: Overloaded}, 0},
		"refused":              {call(1, 1, "x"), with("", func(m *Mail) { m.Result = Refused }), Outcome{End: Unfit}, 0},
		"gone":                 {call(1, 1, "x"), with("ab", func(m *Mail) { m.Gone = []int{2} }), Outcome{End: Gone, Nodes: abc[2:]}, 0},
		"complete before gone": {call(1, 1, "x"), with("abc", func(m *Mail) { m.Gone = []int{2} }), Outcome{End: Complete}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			d.step(tc.call)
			for _, m := range d.take() {
				if a := answer(tc.answer)(m); a != nil {
					d.step(Answered{*a})
				}
			}
			if tc.at > 0 {
				d.until(tc.at-ms, answer(tc.answer))
				d.ended()
				d.until(tc.at, answer(tc.answer))
			}
			tc.want.ID = 1
			d.ended(tc.want)
		})
	}
}

// A half that could not run for a while has sent no requests, so it reports no silence. Nor do many simultaneous
// callers cause such a report.
func TestStalledHalfReportsNoSilence(t *testing.T) {
	d := newDesk(t)
	for id := range uint64(50) {
		d.step(call(id, 2, "x"))
	}
	d.now = after(time.Hour)
	d.step(Tick{})
	d.ended()
}

// The DNP half learns of a FAILED member a second later, unless the member has arrived.
func TestFailedMemberIsReportedToDNPHalf(t *testing.T) {
	d := newDesk(t)
	d.step(Fates{[]fault.NodeID{"a", "c"}})
	d.step(call(1, 1, "x"))
	if !d.out.Rewatch || !slices.Equal(d.out.Watch, abc) {
		t.Errorf("watches %v", d.out.Watch)
	}
	var told []time.Duration
	d.until(5*time.Second, func(m Mail) *Mail {
		if m.Gone != nil {
			told = append(told, d.now.Sub(t0))
			if !slices.Equal(m.Gone, []int{2}) {
				t.Errorf("gone are %v", m.Gone)
			}
		}
		if d.now.Sub(t0) >= 3*time.Second {
			d.step(Fates{})
		}
		return says("ab")
	})
	if len(told) == 0 || told[0] < goneAfter || told[0] > goneAfter+askAgain || told[len(told)-1] > 3*time.Second+askAgain {
		t.Errorf("told at %v", told)
	}
}

func TestBarriersAreBounded(t *testing.T) {
	d := newDesk(t)
	d.step(call(1, 2, "x"))
	d.step(call(2, 3, "y"))
	d.ended(Outcome{ID: 2, End: Differs, Here: 2})
	const mine, theirs, root = 1000, 1001, 0 // the first one is mine
	next := uint64(10)
	another := func(uid uint32) uint64 {
		next++
		c := call(next, 1, "x")
		c.Name.UID, c.Name.Generation = uid, next
		d.step(c)
		return next
	}
	fill := func(uid uint32, n int) {
		t.Helper()
		for range n {
			another(uid)
		}
		d.ended()
		refused := another(uid)
		d.ended(Outcome{ID: refused, End: TooMany})
	}
	fill(mine, MaxBarriers/2-1) // with the first one
	fill(theirs, MaxBarriers*3/8)
	fill(root, MaxBarriers/8)
	d.step(Left{11}) // its barrier is kept for a returning caller, unless room is needed
	another(theirs)
	d.ended()
	again := func(i int) Outcome {
		c := call(uint64(10_000+i), 1, "x")
		c.Name.UID, c.Name.Generation = mine, 12
		d.step(c)
		return Outcome{ID: c.ID, End: TooMany}
	}
	waits := MaxWaiting/2 - (MaxBarriers/2 - 1)
	for i := range waits {
		again(i)
	}
	d.ended()
	d.ended(again(waits))
	d.step(Left{10_000})
	again(waits + 1)
	d.ended()
	if n := len(d.s.all); n != MaxBarriers {
		t.Errorf("%d barriers", n)
	}
}

// A process can call again and again at a barrier at which its node has arrived, each time under another name. The
// barrier keeps no more names than participants and waiting calls.
func TestArrivedBarrierKeepsFewNames(t *testing.T) {
	d := newDesk(t)
	d.step(call(1, 1, "r0"))
	d.step(Answered{*says("ab")})
	for i := range 1000 {
		d.step(call(uint64(i+2), 1, "p"+strconv.Itoa(i)))
		d.step(Left{uint64(i + 2)})
	}
	if n := len(d.s.all[key7].here); n > 2 {
		t.Errorf("a barrier of 1 participant keeps %d names, while 1 call waits", n)
	}
	d.step(call(1002, 1, "late")) // this counts as a participant while it waits
	if n := d.s.all[key7].here["late"]; n != 1 {
		t.Errorf("%d calls wait under the last name: want 1", n)
	}
}

// The members of jobs are watched for a while after their last barrier, as many as a node may watch.
func TestMembersAreWatchedAfterBarrier(t *testing.T) {
	d := newDesk(t)
	d.step(call(1, 1, "x"))
	d.step(Left{1})
	if d.out.Rewatch || !slices.Equal(d.out.Watch, abc) {
		t.Errorf("after the call: %v", d.out.Watch)
	}
	d.now = after(time.Minute)
	c := call(2, 1, "x")
	c.Name.Job, c.Members = "other", nodes("n", MaxMembers)
	d.step(c)
	if !d.out.Rewatch || len(d.out.Watch) != MaxMembers || slices.Contains(d.out.Watch, "a") {
		t.Errorf("%d are watched: want those of the latest job", len(d.out.Watch))
	}
	d.step(Left{2})
	d.now = after(time.Minute + watchFor)
	d.step(Tick{})
	if !d.out.Rewatch || len(d.out.Watch) != 0 {
		t.Errorf("long after: %d", len(d.out.Watch))
	}
}

// TestMembersAreWatchedWhileCallersWait: a caller may wait for hours. A member that dies then ends the barrier.
func TestMembersAreWatchedWhileCallersWait(t *testing.T) {
	d := newDesk(t)
	d.step(call(1, 1, "x"))
	answers := func(m Mail) *Mail {
		if m.Kind != Arrive {
			return nil
		}
		return says("ab")
	}
	d.until(2*watchFor+time.Second, answers)
	d.step(Tick{})
	if !slices.Equal(d.out.Watch, abc) {
		t.Fatalf("after %s: %v are watched: want %v", d.now.Sub(t0), d.out.Watch, abc)
	}
	d.step(Fates{Failed: []fault.NodeID{"c"}})
	d.until(2*watchFor+10*time.Second, func(m Mail) *Mail {
		if m.Kind == Arrive && len(m.Gone) > 0 {
			d.ends[0] = Outcome{} // the DNP half is told of the member that is gone
		}
		return answers(m)
	})
	if _, told := d.ends[0]; !told {
		t.Error("the DNP half does not learn that c is gone")
	}
}

func nodes(prefix string, n int) (out []fault.NodeID) {
	for i := range n {
		out = append(out, fid(prefix+strconv.Itoa(10_000+i)))
	}
	return out
}

// callOf is a call of a user's only job.
func callOf(uid uint32, id uint64, members []fault.NodeID) Call {
	return Call{ID: id, Name: Name{UID: uid, Job: "job", Name: "x", Generation: 1}, Members: members, Participants: 1, Participant: "0"}
}

// watched counts the members that are watched.
func (d *desk) watched(members []fault.NodeID) (n int) {
	for _, id := range members {
		if slices.Contains(d.out.Watch, id) {
			n++
		}
	}
	return n
}

func TestWaitingJobIsWatchedWhenRoomReturns(t *testing.T) {
	d := newDesk(t)
	small, large := nodes("s", 10), nodes("l", MaxMembers)
	d.step(callOf(1, 1, small))
	d.now = after(time.Second)
	d.step(callOf(2, 2, large))
	d.step(Left{2})
	if n := d.watched(small); n != len(small) {
		t.Errorf("after the large job: %d members of the waiting job are watched", n)
	}
	for range 2 {
		d.now = d.now.Add(watchFor)
		d.step(Tick{})
		if n := d.watched(small); n != len(small) {
			t.Errorf("%s later: %d members of the waiting job are watched", d.now.Sub(t0), n)
		}
	}
	d.step(Left{1})
	if n := d.watched(small); n != len(small) {
		t.Errorf("after the call: %d are watched: want all for %s", n, watchFor)
	}
	d.now = d.now.Add(watchFor)
	if d.step(Tick{}); len(d.out.Watch) != 0 {
		t.Errorf("long after: %d are watched", len(d.out.Watch))
	}
}

func TestWaitingUsersShareTheWatch(t *testing.T) {
	d := newDesk(t)
	small, first, second := nodes("s", 10), nodes("f", MaxMembers), nodes("g", MaxMembers)
	want := func(when string, ofSmall, ofFirst, ofSecond int) {
		t.Helper()
		got := []int{d.watched(small), d.watched(first), d.watched(second), len(d.out.Watch)}
		if want := []int{ofSmall, ofFirst, ofSecond, ofSmall + ofFirst + ofSecond}; !slices.Equal(got, want) {
			t.Errorf("%s: watched %v, want %v", when, got, want)
		}
	}
	d.step(callOf(2, 1, first))
	want("one user", 0, MaxMembers, 0)
	d.step(callOf(1, 2, small))
	want("a small job beside it", 10, MaxMembers-10, 0)
	d.step(callOf(3, 3, second))
	want("two large jobs", 10, 507, 507)
	again := callOf(3, 4, second)
	again.Name.Job = "more"
	d.step(again)
	want("two jobs of one user", 10, 507, 507)
	d.step(Left{1})
	want("the first has left", 10, 0, MaxMembers-10)
	d.step(Left{3})
	d.step(Left{4})
	if n := d.watched(small); n != len(small) || len(d.out.Watch) > MaxMembers {
		t.Errorf("at the end: %d of %d, %d in all", n, len(small), len(d.out.Watch))
	}
}

// A job may wait at two barriers of different members.
func TestMembersOfEachBarrierOfAJobAreWatched(t *testing.T) {
	d := newDesk(t)
	d.step(callOf(1, 1, abc))
	d.step(callOf(1, 2, abc[:2]))
	if !slices.Equal(d.out.Watch, abc) {
		t.Errorf("%v are watched, want %v", d.out.Watch, abc)
	}
}

// Calls and ends of a job whose members are watched do not gather the watch again, however many nodes it has.
func TestGenerationsOfAJobKeepTheWatch(t *testing.T) {
	d := newDesk(t)
	members := nodes("n", MaxMembers)
	for i := range uint64(3) {
		c := callOf(1, i+1, members)
		c.Name.Generation = i + 1
		d.step(c)
		if d.out.Rewatch != (i == 0) {
			t.Errorf("generation %d: the watch changes: %t", i+1, d.out.Rewatch)
		}
		if d.step(Left{i + 1}); d.out.Rewatch || d.s.stale || len(d.out.Watch) != MaxMembers {
			t.Errorf("generation %d left: %d are watched", i+1, len(d.out.Watch))
		}
	}
}

// A program whose calls have other members each time changes the watch only every gatherEvery. In the end, the node watches the newest
// members.
func TestChangingMembersGatherTheWatchSeldom(t *testing.T) {
	d := newDesk(t)
	gathered := 0
	const calls = 500
	for i := range uint64(calls) {
		d.now = d.now.Add(time.Second / calls)
		d.step(callOf(1, i+1, nodes(fmt.Sprintf("m%d-", i), 2)))
		if d.out.Rewatch {
			gathered++
		}
		if i+1 < calls {
			d.step(Left{i + 1})
		}
	}
	if most := gatherBurst + int(time.Second/gatherEvery) + 1; gathered > most {
		t.Errorf("the watch changed %d times in a second: want at most %d", gathered, most)
	}
	if wake := d.out.Wake; wake.IsZero() || wake.After(d.now.Add(gatherEvery)) {
		t.Fatalf("the next step is due at %s, now is %s", wake, d.now)
	}
	d.now = d.now.Add(gatherEvery)
	d.step(Tick{})
	if last := nodes(fmt.Sprintf("m%d-", calls-1), 2); d.watched(last) != len(last) {
		t.Errorf("%v are watched: want %v among them", d.out.Watch, last)
	}
}

// A step does not go through the node lists of many large jobs: there are hundreds of steps a second, and the host
// half's mailbox waits for each.
func TestStepsAreCheap(t *testing.T) {
	d := newDesk(t)
	members := nodes("n", MaxMembers)
	const jobs = 100
	for i := range jobs {
		d.step(Call{ID: uint64(i + 1), Name: Name{Job: "job" + strconv.Itoa(i), Name: "x", Generation: 1}, Members: members,
			Participants: 1, Participant: "0"})
		d.step(Left{ID: uint64(i + 1)})
	}
	if len(d.out.Watch) != MaxMembers {
		t.Fatalf("%d are watched", len(d.out.Watch))
	}
	d.now = d.now.Add(2 * keptFor) // the barriers are forgotten, the jobs not yet
	d.step(Tick{})
	if n := testing.AllocsPerRun(100, func() { d.s.Step(d.now, Tick{}) }); len(d.s.jobs) != jobs || n > 10 {
		t.Errorf("%.0f allocations a step with %d jobs", n, len(d.s.jobs))
	}
}
