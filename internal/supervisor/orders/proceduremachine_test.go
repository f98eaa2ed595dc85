package orders

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

const ms = time.Millisecond

// States of Figure 7, for short.
const (
	normal   = lofamov1.ProcedureState_PROCEDURE_NORMAL
	detect   = lofamov1.ProcedureState_PROCEDURE_ERROR_DETECT_PROPAGATE
	drain    = lofamov1.ProcedureState_PROCEDURE_SYSTEM_DRAIN
	netClear = lofamov1.ProcedureState_PROCEDURE_NETWORK_CLEAR
	decision = lofamov1.ProcedureState_PROCEDURE_DECISION
)

func timing() ProcedureTiming {
	return ProcedureTiming{Again: 400 * ms, Begin: 2 * time.Second, Quiet: 1500 * ms, Asks: 3}
}

// places returns a torus of healthy nodes.
func places(dims grid.Dims) []Place {
	out := make([]Place, dims.Nodes())
	for rank := range out {
		out[rank] = Place{Node: fault.DefaultNodeID(dims.At(rank)), Well: true}
		for _, d := range dims.Links() {
			out[rank].Links |= 1 << d.Index()
		}
	}
	return out
}

func options() procedureOptions {
	return procedureOptions{DrainTimeout: time.Second, Hop: 50 * ms, Late: 50 * ms}
}

// world is a machine and the time that has passed.
type world struct {
	t    *testing.T
	m    *procedureMachine
	now  time.Time
	wake time.Time
	sent []string // orders, in the order in which they were given
	done bool
}

func newWorld(t *testing.T, plan procedurePlan) *world {
	w := &world{t: t, now: time.Unix(1000, 0)}
	w.m = newProcedureMachine(w.now, plan, timing())
	w.step(procedureTick{})
	return w
}

func (w *world) step(ev procedureEvent) {
	w.t.Helper()
	out := w.m.Step(w.now, ev)
	for _, o := range out.Orders {
		kind := "begin"
		if o.Ask {
			kind = "ask"
		}
		w.sent = append(w.sent, fmt.Sprintf("%s %s %d", kind, o.Node, o.Try))
	}
	w.wake, w.done = out.Wake, out.Done
	if !out.Done && !out.Wake.After(w.now) {
		w.t.Fatalf("it wants to be woken at %s, and it is %s", out.Wake, w.now)
	}
}

// pass lets time pass, with every requested tick.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	until := w.now.Add(d)
	for !w.done && !w.wake.After(until) {
		w.now = w.wake
		w.step(procedureTick{})
	}
	w.now = until
}

// finish lets time pass until the procedure is over, and returns the duration.
func (w *world) finish() time.Duration {
	w.t.Helper()
	start := w.now
	for !w.done {
		w.pass(100 * ms)
		if w.now.Sub(start) > time.Minute {
			w.t.Fatal("it does not end")
		}
	}
	return w.now.Sub(start)
}

// orders returns the orders since the last call.
func (w *world) orders() string {
	out := strings.Join(w.sent, ", ")
	w.sent = nil
	return out
}

func (w *world) want(orders string) {
	w.t.Helper()
	if got := w.orders(); got != orders {
		w.t.Errorf("ordered %q, want %q", got, orders)
	}
}

func status(rank int, state lofamov1.ProcedureState, edit func(*lofamov1.ProcedureStatus)) *lofamov1.ProcedureStatus {
	st := &lofamov1.ProcedureStatus{
		Node: string(fault.DefaultNodeID(grid.Dims{X: 2, Y: 2, Z: 1}.At(rank))), Half: lofamov1.Half_HALF_DNP, Epoch: 1, Wave: 7, State: state,
	}
	if edit != nil {
		edit(st)
	}
	return st
}

func (w *world) says(rank int, state lofamov1.ProcedureState, edit func(*lofamov1.ProcedureStatus)) {
	w.t.Helper()
	w.step(procedureSaid{status(rank, state, edit)})
}

func round(n uint32) func(*lofamov1.ProcedureStatus) {
	return func(st *lofamov1.ProcedureStatus) { st.Round = n }
}

func isClear(st *lofamov1.ProcedureStatus) { st.Clear, st.Round = true, 2 }

func square(t *testing.T, edit func([]Place, *procedureOptions)) procedurePlan {
	t.Helper()
	dims := grid.Dims{X: 2, Y: 2, Z: 1}
	all, o := places(dims), options()
	if edit != nil {
		edit(all, &o)
	}
	p, err := newProcedurePlan(dims, all, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Success: one order, progress, and the report after the last node's final status.
func TestProcedureInWhichAllAnswer(t *testing.T) {
	w := newWorld(t, square(t, nil))
	w.want("begin n0-0-0 1")
	w.says(0, detect, nil)
	for _, at := range []struct {
		state lofamov1.ProcedureState
		round uint32
	}{{drain, 1}, {netClear, 1}, {drain, 2}, {decision, 2}} {
		w.pass(200 * ms)
		w.says(0, at.state, round(at.round))
		if p := w.m.Progress(); p.GetState() != at.state || p.GetRound() != at.round || p.GetNodes() != 4 || p.GetEnded() != 0 {
			t.Errorf("%v, want %s of round %d", p, at.state, at.round)
		}
	}
	w.says(0, drain, round(2)) // late
	if p := w.m.Progress(); p.GetState() != decision {
		t.Errorf("it goes back to %s", p.GetState())
	}
	for rank := range 4 {
		if w.done {
			t.Fatalf("over, and node %d is not through", rank)
		}
		w.says(rank, normal, func(st *lofamov1.ProcedureStatus) {
			isClear(st)
			st.Held = 1 // message received since the torus was empty
			st.Steps = []*lofamov1.ProcedureStep{{State: drain, TookUs: 5, Held: uint32(rank)}}
		})
	}
	if !w.done || w.m.Err() != nil || w.m.Progress().GetEnded() != 4 {
		t.Fatalf("not over: %v", w.m.Progress())
	}
	w.want("")
	r := w.m.Report()
	if !r.GetClear() || r.GetWave() != 7 || r.GetStarter() != "n0-0-0" || r.GetRounds() != 2 || len(r.GetNodes()) != 4 ||
		len(r.GetSilent())+len(r.GetHolding()) > 0 {
		t.Errorf("%v", r)
	}
	for _, n := range r.GetNodes() {
		if !n.GetClear() || len(n.GetSteps()) != 1 {
			t.Errorf("%v", n)
		}
	}
}

// The leader repeats the order to a silent starter, and finally tries the next one. A starter that was given up but has begun after
// all is believed.
func TestSilentStarterIsReplaced(t *testing.T) {
	w := newWorld(t, square(t, nil))
	w.pass(1999 * ms)
	w.want("begin n0-0-0 1, begin n0-0-0 2, begin n0-0-0 3, begin n0-0-0 4, begin n0-0-0 5")
	w.step(procedureSaid{&lofamov1.ProcedureStatus{Node: "n0-0-0", Half: lofamov1.Half_HALF_HOST,
		State: normal}}) // its host half's sign of life: no beginning
	w.pass(1 * ms)
	w.want("begin n1-0-0 1")
	w.says(0, drain, round(1))
	if p := w.m.Progress(); p.GetState() != drain {
		t.Errorf("the first has begun after all, and it is at %s", p.GetState())
	}
	w.pass(time.Second)
	w.want("")

	w = newWorld(t, square(t, nil))
	w.finish()
	if err := w.m.Err(); err == nil || !strings.Contains(err.Error(),
		"n0-0-0: it has not answered; n1-0-0: it has not answered; n0-1-0: it has not answered") {
		t.Errorf("nobody answers: %v", err)
	}
}

// After a refusal the leader tries the next starter at once. When all have refused, the report names all reasons. A named
// starter is the only one.
func TestRefusingStarterIsReplaced(t *testing.T) {
	w := newWorld(t, square(t, nil))
	no := func(st *lofamov1.ProcedureStatus) { st.Error = "the last procedure is too short a time ago" }
	w.says(1, normal, no) // unrequested
	w.want("begin n0-0-0 1")
	w.says(0, normal, no)
	w.want("begin n1-0-0 1")
	w.says(1, normal, no)
	w.says(2, normal, no)
	if !w.done || w.m.Err() == nil || strings.Count(w.m.Err().Error(), "too short a time ago") != 3 {
		t.Errorf("%t, %v", w.done, w.m.Err())
	}
	w = newWorld(t, square(t, func(_ []Place, o *procedureOptions) { o.Starter = "n1-1-0" }))
	w.says(3, normal, no)
	if !w.done || w.m.Err() == nil || !strings.Contains(w.m.Err().Error(), "n1-1-0: the last") {
		t.Errorf("%t, %v", w.done, w.m.Err())
	}
}

// The leader asks a silent member a limited number of times, and names it; the others' reports stand.
func TestMemberNeverAnswers(t *testing.T) {
	w := newWorld(t, square(t, nil))
	w.says(0, drain, round(1))
	w.orders()
	for _, rank := range []int{0, 1, 2} {
		w.says(rank, normal, func(st *lofamov1.ProcedureStatus) { st.Round, st.Silent = 4, []uint32{3} })
	}
	if took := w.finish(); took > 4*time.Second {
		t.Errorf("it took %s", took)
	}
	w.want("ask n1-1-0 1, ask n1-1-0 2, ask n1-1-0 3")
	r := w.m.Report()
	if r.GetClear() || !slices.Equal(r.GetSilent(), []string{"n1-1-0"}) || len(r.GetNodes()) != 3 {
		t.Errorf("%v", r)
	}
}

// A member whose status was lost repeats it on request; the machine does not wait for a member that knows of no
// procedure.
func TestLostStatusIsRequestedAgain(t *testing.T) {
	w := newWorld(t, square(t, nil))
	w.says(0, drain, round(1))
	w.says(0, normal, isClear)
	w.says(0, normal, func(st *lofamov1.ProcedureStatus) { st.Wave = 99 }) // repeated: the first counts
	w.orders()
	w.pass(2 * time.Second)
	if got := w.orders(); !strings.HasPrefix(got, "ask n1-0-0 1, ask n0-1-0 1, ask n1-1-0 1, ask n1-0-0 2") {
		t.Errorf("asked %q", got)
	}
	w.says(1, normal, isClear)
	w.says(2, normal, isClear)
	w.says(3, normal, func(st *lofamov1.ProcedureStatus) { st.Error = "of this procedure it has heard nothing" })
	if !w.done {
		t.Fatal("all have said what there is to say")
	}
	r := w.m.Report()
	if !r.GetClear() || r.GetWave() != 7 || len(r.GetNodes()) != 4 || len(r.GetSilent()) > 0 {
		t.Errorf("%v", r)
	}
	if i := slices.IndexFunc(r.GetNodes(), func(n *lofamov1.ProcedureNode) bool { return n.GetError() != "" }); i < 0 ||
		r.GetNodes()[i].GetNode() != "n1-1-0" || r.GetNodes()[i].GetClear() {
		t.Errorf("who took no part: %v", r.GetNodes())
	}
}

// The starter fails in the middle: the others recover by themselves, and the node that missed the fewest others
// decides the outcome.
func TestProcedureSurvivesLostStarter(t *testing.T) {
	w := newWorld(t, square(t, nil))
	w.says(0, drain, round(1))
	w.orders()
	w.pass(w.m.plan.Longest() - ms)
	w.want("")
	w.says(1, normal, func(st *lofamov1.ProcedureStatus) { st.Silent, st.Holding = []uint32{0, 2, 3}, []uint32{1} }) // cut off
	w.says(2, normal, func(st *lofamov1.ProcedureStatus) { st.Silent, st.Held = []uint32{0}, 3 })
	w.says(3, normal, func(st *lofamov1.ProcedureStatus) { st.Silent = []uint32{0, 1} })
	w.finish()
	r := w.m.Report()
	if r.GetStarter() != "n0-0-0" || r.GetClear() || !slices.Equal(r.GetSilent(), []string{"n0-0-0"}) ||
		!slices.Equal(r.GetHolding(), []string{"n0-1-0"}) {
		t.Errorf("%v", r)
	}

	// All are: it ends all the same.
	w = newWorld(t, square(t, nil))
	w.says(0, drain, round(1))
	if took := w.finish(); took > w.m.plan.Longest()+5*time.Second {
		t.Errorf("it took %s", took)
	}
	if r := w.m.Report(); len(r.GetSilent()) != 4 || len(r.GetNodes()) > 0 || r.GetClear() {
		t.Errorf("%v", r)
	}
}

// Statuses from outside the torus and repeated statuses change nothing.
func TestStatusOfStrangerChangesNothing(t *testing.T) {
	w := newWorld(t, square(t, nil))
	w.step(procedureSaid{&lofamov1.ProcedureStatus{Node: "stranger", Half: lofamov1.Half_HALF_DNP, State: normal}})
	w.says(3, normal, func(st *lofamov1.ProcedureStatus) { st.Silent, st.Starter = []uint32{1, 77}, 200 })
	if w.m.phase != ending {
		t.Fatal("who is through has been in one")
	}
	w.finish()
	if r := w.m.Report(); r.GetStarter() != "place 200" || !slices.Contains(r.GetSilent(), "place 77") {
		t.Errorf("%v", r)
	}
}

// The next leader takes up a procedure that was ordered before its term: it asks until all are through, and orders
// no node to begin.
func TestNextLeaderResumesProcedure(t *testing.T) {
	dims := grid.Dims{X: 2, Y: 2, Z: 1}
	plan := orderedBefore(dims, places(dims), []uint32{3}, options(), 100*ms)
	if !slices.Equal(plan.Members, []int{0, 1, 2}) {
		t.Fatalf("members %v", plan.Members)
	}
	w := &world{t: t, now: time.Unix(1000, 0)}
	w.m = resumeProcedureMachine(w.now, plan, timing())
	w.step(procedureTick{})
	w.want("ask n0-0-0 1, ask n1-0-0 1, ask n0-1-0 1")
	w.says(0, drain, round(3)) // the procedure continues
	w.pass(plan.Longest() - time.Second)
	if w.done || strings.Contains(w.orders(), "begin") {
		t.Fatal("it may still go on")
	}
	for _, rank := range []int{0, 1, 2} {
		w.says(rank, normal, isClear)
	}
	if r := w.m.Report(); !w.done || !w.m.Heard() || !r.GetClear() || len(r.GetNodes()) != 3 {
		t.Errorf("%v", r)
	}

	// The order reached no node, or no node answers.
	w = &world{t: t, now: time.Unix(1000, 0)}
	w.m = resumeProcedureMachine(w.now, plan, timing())
	w.step(procedureTick{})
	for _, rank := range []int{0, 1} {
		w.says(rank, normal, func(st *lofamov1.ProcedureStatus) { st.Error = "nothing is known of this order" })
	}
	if took := w.finish(); took > plan.Longest()+5*time.Second || w.m.Heard() {
		t.Errorf("it took %s, heard of it: %t", took, w.m.Heard())
	}
}
