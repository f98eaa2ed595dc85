package response_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// target is the world that executors change, with an executor that follows the contract. It stores the highest token
// and the highest attempt of each key, refuses lower ones, and checks first if Recheck is set.
type target struct {
	t       *rapid.T
	token   uint64
	attempt map[string]int
	applied map[string]bool
	begun   map[string]bool // whether an effect was ever requested
	flying  []response.Effect

	outcomes  map[response.Attempt]response.Outcome // of all attempts that arrived
	unsettled []response.Effect                     // former leaders' attempts that the engine asks about
	settled   int                                   // number of attempts that it has reported as Unchanged
}

// settle returns the outcome of an attempt. If the attempt has not arrived, the target refuses it from now on.
func (w *target) settle(f response.Effect) response.Outcome {
	if o, arrived := w.outcomes[f.Attempt]; arrived {
		return o
	}
	if key := f.Response + fmt.Sprint(f.Step); f.Token >= w.token && f.Attempt.Attempt > w.attempt[key] {
		w.token, w.attempt[key] = f.Token, f.Attempt.Attempt
	}
	return response.Unchanged
}

// happen executes an effect, or not, and returns the executor's result.
func (w *target) happen(f response.Effect, o response.Outcome) (result response.Outcome) {
	if f.Token < w.token || f.Attempt.Attempt <= w.attempt[f.Response+fmt.Sprint(f.Step)] {
		return response.StaleToken
	}
	w.token, w.attempt[f.Response+fmt.Sprint(f.Step)] = f.Token, f.Attempt.Attempt
	defer func() { w.outcomes[f.Attempt] = result }()
	key := fmt.Sprintf("%s/%d", f.Response, f.Step)
	if f.Undo {
		if o == response.Succeeded {
			delete(w.applied, key)
		}
		return o
	}
	if w.applied[key] {
		if !f.Recheck || !f.Kind.Traits().Repeatable {
			w.t.Fatalf("%+v happens a second time", f)
		}
		return o // also Unchanged: it could not even check
	}
	if o == response.Succeeded || o == response.Partly || o == response.NotKnown && rapid.Bool().Draw(w.t, "takes effect") {
		w.applied[key] = true
	}
	return o
}

// TestSafeWhateverHappens plays faults that come and go, executors that answer late, wrongly or never, people that
// interfere, and leaders that change at any point. It checks with every step: the caps, no effect without its committed
// intent (lab.check), no second effect for one intent, and that only effects that were begun are undone.
func TestSafeWhateverHappens(t *testing.T) {
	pols := testPolicies(t)
	set := []*response.Policy{pols["tell"], pols["drain"], pols["reset"], pols["escalate"], pols["reset-again"]}
	acts, second, undone, settled := 0, 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		cfg := response.Default()
		cfg.MaxNodes, cfg.MaxPercent = rapid.IntRange(1, 6).Draw(t, "nodes"), rapid.IntRange(1, 50).Draw(t, "percent")
		cfg.MaxPerDomain, cfg.MaxPerPlane = rapid.IntRange(1, 3).Draw(t, "domain"), rapid.IntRange(1, 3).Draw(t, "plane")
		cfg.StormDelay, cfg.Grace, cfg.Cooldown = 0, 2*time.Second, time.Minute
		cfg.BreakerNodes = rapid.IntRange(2, 30).Draw(t, "breaker")
		l := newLab(t, cfg, grid.Dims{X: 3, Y: 2, Z: 2}, set...)
		l.sups = []response.SupervisorInfo{{ID: "a", Node: "n0-0-0", Alive: true}, {ID: "b", Node: "n1-0-0", Alive: true},
			{ID: "c", Node: "n2-0-0", Alive: true}}
		w := &target{t: t, attempt: map[string]int{}, applied: map[string]bool{}, begun: map[string]bool{},
			outcomes: map[response.Attempt]response.Outcome{}}
		l.on = func(out response.Output) {
			for _, f := range out.Effects {
				key := fmt.Sprintf("%s/%d", f.Response, f.Step)
				acts++
				switch {
				case f.Undo && !w.begun[key]:
					t.Fatalf("%+v puts back what was never begun", f)
				case f.Undo:
					undone++
				case w.begun[key]:
					second++
				}
				w.begun[key] = true
				w.flying = append(w.flying, f)
			}
			w.unsettled = append(w.unsettled, out.Unsettled...)
		}
		l.lead()
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			randomStep(t, l, w)
		}
		comesToRest(t, l, w)
		settled += w.settled
	})
	part := 1
	if testing.Short() {
		part = 5 // rapid then plays a fifth of the examples
	}
	if acts < 1000/part || second < 50/part || undone < 50/part || settled < 3/part {
		t.Errorf("only %d effects, %d of them repeated and %d undone, and %d settled: this proves little", acts, second, undone, settled)
	}
}

// randomStep is long because it lists all possible events.
func randomStep(t *rapid.T, l *lab, w *target) {
	outcomes := []response.Outcome{response.Succeeded, response.Succeeded, response.Succeeded, response.Unchanged, response.Partly,
		response.NotKnown}
	components := []fault.Component{fault.ComponentMemory, fault.ComponentMemory, fault.ComponentHost, fault.ComponentDNP,
		fault.ComponentPower, fault.ComponentNode}
	node := rapid.SampledFrom(l.topo.Nodes)
	switch what := rapid.IntRange(0, 99).Draw(t, "what"); {
	case what < 25: // a fault begins, gets worse or ends
		state := rapid.SampledFrom([]fault.State{fault.Sick, fault.Failed, fault.Failed, fault.Normal, fault.Unknown}).Draw(t, "state")
		l.set(l.own(node.Draw(t, "node").ID, rapid.SampledFrom(components).Draw(t, "component"), state))
	case what < 35 && len(l.faults) > 0: // one ends
		all := slices.SortedFunc(maps.Keys(l.faults), compareTargets)
		f := rapid.SampledFrom(all).Draw(t, "fault")
		l.set(l.own(f.Node, f.Component, fault.Normal))
	case what < 60 && len(w.flying) > 0: // an effect happens, in any order, and its answer arrives or is lost
		i := rapid.IntRange(0, len(w.flying)-1).Draw(t, "effect")
		f := w.flying[i]
		w.flying = slices.Delete(w.flying, i, i+1)
		o := rapid.SampledFrom(outcomes).Draw(t, "outcome")
		if f.Kind == response.PowerReset && o == response.Succeeded && rapid.Bool().Draw(t, "lies") {
			if o = w.happen(f, response.Unchanged); o == response.Unchanged {
				o = response.Succeeded // as its BMC reports
			}
			l.answer(f, o, "")
			return
		}
		o = w.happen(f, o)
		if f.Kind == response.PowerReset && o == response.Succeeded && rapid.Bool().Draw(t, "boots") {
			l.epochs[f.Target.Node]++
			l.step(response.Booted{Node: f.Target.Node, Epoch: l.epochs[f.Target.Node]})
		}
		if rapid.IntRange(0, 4).Draw(t, "heard") > 0 {
			l.answer(f, o, "")
		}
	case what < 65 && len(w.unsettled) > 0: // the leader asks an executor, and the answer arrives or is lost
		i := rapid.IntRange(0, len(w.unsettled)-1).Draw(t, "attempt")
		f := w.unsettled[i]
		w.unsettled = slices.Delete(w.unsettled, i, i+1)
		if o := w.settle(f); rapid.IntRange(0, 4).Draw(t, "answered") > 0 {
			if l.answer(f, o, ""); o == response.Unchanged {
				w.settled++
			}
		}
	case what < 75: // time passes
		l.until(l.now.Add(time.Duration(rapid.SampledFrom([]int{1, 10, 100, 700, 4000}).Draw(t, "seconds")) * time.Second))
	case what < 82:
		l.lead()
	case what < 84:
		l.marks = []fault.NodeID{node.Draw(t, "marked").ID}
		l.step(response.MaintenanceChanged{Nodes: l.marks})
	case what < 86:
		l.stale = !l.stale
	case what < 88:
		l.ask("alice", response.CloseBreaker, "")
	default:
		interfere(t, l, w)
	}
}

// interfere plays a person's request on some response. People tell the truth about unknown outcomes.
func interfere(t *rapid.T, l *lab, w *target) {
	all := l.e.Responses()
	if len(all) == 0 {
		return
	}
	r := rapid.SampledFrom(all).Draw(t, "response")
	v := rapid.SampledFrom([]response.Verb{response.Approve, response.Approve, response.Approve, response.Deny, response.Cancel,
		response.Retry, response.SettleNot}).Draw(t, "verb")
	if v == response.SettleNot {
		key := fmt.Sprintf("%s/%d", r.ID, r.Step)
		if slices.ContainsFunc(w.flying, func(f response.Effect) bool { return f.Response == r.ID && f.Step == r.Step }) {
			return // it may still happen: they wait
		}
		if w.applied[key] || r.Reason == response.ReasonUndoFailed {
			v = response.SettleHappened
		}
		if r.Reason == response.ReasonUndoFailed {
			delete(w.applied, key) // they undo it by hand first
		}
	}
	l.ask(rapid.SampledFrom([]string{"alice", "bob"}).Draw(t, "subject"), v, r.ID)
}

// comesToRest checks that nothing remains once all faults are gone, executors answer, and people settle unknown
// outcomes: no open response, no node under response, and no effect that could be undone. A reset that only its BMC
// reports needs no person.
func comesToRest(t *rapid.T, l *lab, w *target) {
	l.marks, l.stale = nil, false
	l.step(response.MaintenanceChanged{})
	for _, f := range slices.SortedFunc(maps.Keys(l.faults), compareTargets) {
		l.set(l.own(f.Node, f.Component, fault.Normal))
	}
	settles := rapid.Bool().Draw(t, "settles")
	for range 200 {
		if l.e.Breaker().Open {
			l.ask("alice", response.CloseBreaker, "")
		}
		for _, r := range l.e.Responses() {
			switch {
			case r.Reason == response.ReasonUnseen && !settles:
			case (r.Reason == response.ReasonOutcome || r.Reason == response.ReasonUnseen) && w.applied[fmt.Sprintf("%s/%d", r.ID, r.Step)]:
				l.ask("alice", response.SettleHappened, r.ID)
			case r.Reason == response.ReasonOutcome || r.Reason == response.ReasonUnseen:
				l.ask("alice", response.SettleNot, r.ID)
			case r.Reason == response.ReasonUndoFailed:
				l.ask("alice", response.Retry, r.ID)
			}
		}
		for len(w.flying) > 0 {
			f := w.flying[0]
			w.flying = w.flying[1:]
			l.answer(f, w.happen(f, response.Succeeded), "")
		}
		next := l.now.Add(10 * time.Minute)
		if l.wake.After(l.now) && l.wake.Before(next) {
			next = l.wake
		}
		l.until(next)
	}
	for _, r := range l.e.Responses() {
		t.Errorf("still open: %+v", r)
	}
	if n := l.e.UnderResponse(); n > 0 {
		t.Errorf("%d nodes still under response", n)
	}
	for _, key := range slices.Sorted(maps.Keys(w.applied)) {
		id, step := key[:len(key)-2], key[len(key)-1]-'0'
		r, ok := l.store["response/"+id].(*response.Response)
		if !ok {
			t.Errorf("%s was done, and there is no record of it", key)
			continue
		}
		if s := r.Steps[step]; (r.Undo.OnRecovery || r.Cancelled) && s.Kind.Traits().Undoable {
			t.Errorf("%s (%s) was done, and is not undone: %+v", key, s.Kind, r)
		}
	}
}

// TestBreakerOpensInStorms: when 30, 60 or 100 % of the nodes look bad at once, truly or falsely, the breaker opens, no node
// loses more capacity, and the breaker stays open until a person closes it.
func TestBreakerOpensInStorms(t *testing.T) {
	pols := testPolicies(t)
	dims := grid.Dims{X: 8, Y: 8, Z: 8}
	for _, percent := range []int{30, 60, 100} {
		for _, spread := range []time.Duration{0, 200 * time.Millisecond} { // between two faults: at once, or over up to 100 s
			for _, lasts := range []bool{true, false} {
				t.Run(fmt.Sprintf("%d%% every %s, true %t", percent, spread, lasts), func(t *testing.T) {
					cfg := response.Default()
					cfg.Grace = 0
					l := newLab(t, cfg, dims, pols["drain"], pols["escalate"])
					l.lead()
					n := dims.Nodes() * percent / 100
					for i := range n {
						id := l.topo.Nodes[(i*37)%dims.Nodes()].ID // 37 is prime to 512: all over the torus
						l.set(l.own(id, fault.ComponentMemory, fault.Failed))
						l.set(l.own(id, fault.ComponentNode, fault.Sick))
						l.until(l.now.Add(spread))
					}
					if !l.e.Breaker().Open {
						t.Fatal("the breaker is closed")
					}
					before := len(l.flying)
					if !lasts {
						for _, f := range slices.SortedFunc(maps.Keys(l.faults), compareTargets) {
							l.set(l.own(f.Node, f.Component, fault.Normal))
						}
					}
					l.lead() // another leader begins nothing either
					l.until(l.now.Add(24 * time.Hour))
					if more := l.flying[before:]; len(more) > 0 || !l.e.Breaker().Open {
						t.Errorf("breaker %+v, and then the effects %+v", l.e.Breaker(), more)
					}
					if spread == 0 && before > 0 {
						t.Errorf("%d effects before the breaker opened", before)
					}
					if err := l.ask("alice", response.CloseBreaker, ""); err != nil {
						t.Fatal(err)
					}
					for range 60 {
						l.land(response.Succeeded, "")
						l.until(l.now.Add(time.Minute))
					}
					if lasts == (l.e.UnderResponse() == 0) {
						t.Errorf("true: %t, and %d nodes under response after it was closed", lasts, l.e.UnderResponse())
					}
				})
			}
		}
	}
}

// TestLeaderAtEveryStep replaces the leader after every single step in the life of every policy. The running effect is
// lost, done without an answer, or answered while there is no leader: nothing happens twice.
func TestLeaderAtEveryStep(t *testing.T) {
	pols := testPolicies(t)
	faults := map[string]fault.Component{"drain": fault.ComponentMemory, "reset": fault.ComponentHost, "escalate": fault.ComponentDNP}
	lives, replaced := 0, 0
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		for at := range 3 {
			for _, happens := range []bool{true, false} {
				l := newLab(t, quick(), grid.Dims{X: 4, Y: 4, Z: 4}, pols[name])
				applied := map[string]int{}
				steps := 0
				lives++
				l.on = func(out response.Output) {
					for _, f := range out.Effects {
						if !f.Undo && applied[f.IdempotencyKey] > 0 && (!f.Recheck || !f.Kind.Traits().Repeatable) {
							t.Errorf("%s, leader lost at %d: %+v, which has happened", name, at, f)
						}
					}
				}
				l.lead()
				l.set(l.own("n1-1-1", faults[name], fault.Failed))
				for range 40 {
					for _, r := range l.e.Responses() {
						l.ask("alice", response.Approve, r.ID)
						l.ask("bob", response.Approve, r.ID)
					}
					l.until(l.now.Add(time.Minute))
					flying := l.flying
					l.flying = nil
					for _, f := range flying {
						steps++
						lost := steps == at+1
						if lost && !happens {
							continue
						}
						applied[f.IdempotencyKey]++
						if f.Kind == response.PowerReset {
							l.epochs[f.Target.Node]++
						}
						if !lost {
							l.answer(f, response.Succeeded, "")
						}
					}
					if steps == at+1 {
						l.lead()
						replaced++
						steps++
					}
				}
			}
		}
	}
	if replaced < lives*2/3 {
		t.Errorf("in only %d of %d lives a leader was replaced: this proves little", replaced, lives)
	}
}

// quick returns limits that permit an immediate response to a single fault.
func quick() response.Config {
	cfg := response.Default()
	cfg.Grace, cfg.StormDelay = 0, 0
	return cfg
}
