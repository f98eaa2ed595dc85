package sim

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lofamo/lofamo/internal/account"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/supervisor/respond"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// Responses has the leaders of a world respond to faults: the real engine in every term, its records in the store under
// the leader's fence, and targets in place of the executors' real ones. The shell around the engine
// (internal/supervisor/respond) has a second implementation here, without goroutines; the engine's view of the map
// comes from the same code (respond.KnownNodes).
type Responses struct {
	Limits   response.Config
	Policies []*response.Policy
}

// responses is the part of Responses that outlives a leader.
type responses struct {
	Responses

	w       *World
	records map[string]response.Record // committed
	head    head                       // of the newest commit
	breaker response.Breaker
	opened  time.Time // when the breaker did for the first time; zero: never

	// The state of the targets, and the actions on them.
	token    uint64
	attempts map[response.Attempt]bool
	done     map[fault.NodeID]map[string]response.Class // by response and step: done and not undone
	acts     map[response.Class]int                     // done, ever
	undone   int
	most     int            // nodes at once
	stale    int            // refused by the target
	told     map[string]int // decisions not to act, by reason
}

func newResponses(w *World, r Responses) *responses {
	return &responses{
		Responses: r, w: w, records: map[string]response.Record{}, attempts: map[response.Attempt]bool{},
		done: map[fault.NodeID]map[string]response.Class{}, acts: map[response.Class]int{}, told: map[string]int{},
	}
}

// answering is one life of a supervisor: the engine follows the map, whichever replica leads.
type answering struct {
	of     *responses
	r      *replica
	engine *response.Engine
	told   respond.KnownNodes
	t      *term             // nil: it does not lead
	head   head              // of the newest commit that it knows
	queue  []response.Output // with records that are not committed yet, in order
	busy   bool              // the first of them is with the store
	wakes  uint64
	heard  []time.Time // by supervisor: when it last answered
	sups   []response.SupervisorInfo
}

func newAnswering(of *responses, r *replica) (*answering, error) {
	e, err := response.New(of.Limits)
	if err != nil {
		return nil, err
	}
	a := &answering{of: of, r: r, engine: e, told: respond.KnownNodes{}, heard: make([]time.Time, len(of.w.replicas))}
	topo := response.TopologyChanged{Dims: of.w.cfg.Dims}
	var sups response.SupervisorsChanged
	for _, n := range of.w.nodes {
		topo.Nodes = append(topo.Nodes, response.NodeInfo{ID: n.id(), Coord: n.topo.Coord})
	}
	for _, r := range of.w.replicas {
		sups.Supervisors = append(sups.Supervisors, response.SupervisorInfo{ID: r.id, Alive: true})
	}
	for _, ev := range []response.Event{topo, sups, response.PoliciesChanged{Policies: of.Policies}} {
		_ = a.step(ev)
	}
	for _, n := range of.w.nodes {
		doc := of.w.store.docs[n.id()]
		if doc == nil {
			continue
		}
		st, err := view.Restore(doc)
		if err != nil {
			return nil, err
		}
		st.Revision = of.w.store.rev()
		a.follow(st)
	}
	return a, nil
}

// lead begins a term with the committed records.
func (a *answering) lead(t *term) {
	a.t, a.head, a.queue, a.busy = t, a.of.head, nil, false
	led := response.Led{Token: t.rev}
	for _, key := range slices.Sorted(maps.Keys(a.of.records)) {
		led.Records = append(led.Records, a.of.records[key])
	}
	before, open := a.told, respond.OpenTargets(led.Records)
	a.told = respond.KnownNodes{}
	for _, st := range t.machine.Nodes() {
		a.told.Lead(&led, view.Entry{Status: st, Watchdog: t.stated[st.ID]}, a.r.applied, before, open)
	}
	a.tellSupervisors(true)
	_ = a.step(led)
}

const supervisorsEvery = time.Second

// tellSupervisors tells a leader's engine which supervisors answer it. begins: the term does.
func (a *answering) tellSupervisors(begins bool) {
	if a.of.w.cfg.Fences == nil {
		return
	}
	var sups []response.SupervisorInfo
	for i, o := range a.of.w.replicas {
		if a.of.w.store.connected(a.r, o) || begins {
			a.heard[i] = a.of.w.now
		}
		sups = append(sups, response.SupervisorInfo{ID: o.id, Alive: a.of.w.now.Sub(a.heard[i]) < config.SupervisorGone})
	}
	if !slices.Equal(sups, a.sups) {
		a.sups = sups
		_ = a.step(response.SupervisorsChanged{Supervisors: sups})
	}
	if t := a.t; begins {
		a.r.again(supervisorsEvery, supervisorsEvery, func() {
			if a.t == t {
				a.tellSupervisors(false)
			}
		})
	}
}

// lose ends the term.
func (a *answering) lose() {
	if a.t != nil {
		a.t, a.queue, a.busy = nil, nil, false
		_ = a.step(response.Lost{})
	}
}

// follow passes a node's committed changes to the engine.
func (a *answering) follow(in view.Entry) {
	for _, ev := range a.told.Changes(in, a.engine) {
		_ = a.step(ev)
	}
}

// step gives the engine an event, and its output to the store, in order.
func (a *answering) step(ev response.Event) error {
	out := a.engine.Step(a.r.clock(), ev)
	if _, asked := ev.(response.Asked); out.Err != nil && !asked {
		a.of.w.violate("%s cannot go on with the responses: %v", a.r.id, out.Err)
	}
	for _, d := range out.Decisions {
		if d.Act == response.Refuses {
			a.of.told[d.Reason.String()]++
		}
	}
	t := a.t
	for _, target := range out.Look {
		a.look(t, target)
	}
	if !out.Wake.IsZero() {
		a.wakes++
		n := a.wakes
		a.r.deliver(out.Wake.Sub(a.r.clock())+a.of.w.between(wakeDelayMin, wakeDelayMax), func() {
			if a.wakes == n && a.t == t {
				_ = a.step(response.Tick{})
			}
		})
	}
	for _, f := range out.Unsettled {
		a.carryOut(t, f.Attempt, func() response.Outcome { return a.of.settle(f) })
	}
	if len(out.Records)+len(out.Effects) > 0 {
		a.queue = append(a.queue, out)
		a.next()
	}
	return out.Err
}

// look returns the evidence of a fault, from the leader's machine.
func (a *answering) look(t *term, target response.Target) {
	a.r.deliver(a.of.w.between(0, time.Millisecond), func() {
		if a.t != t {
			return
		}
		st, ok := t.machine.Node(target.Node)
		if !ok {
			return
		}
		_ = a.step(response.Seen{Target: target, State: view.StateOf(st, target.Component),
			Evidence: view.Gather(st, target.Component, t.life, a.r.clock())})
	})
}

// life returns the time of a node's newest report.
func (t *term) life(id fault.NodeID) time.Time {
	st, _ := t.machine.Node(id)
	return st.Life
}

// next has the store take the first of the queue, when it is idle. Effects begin when it has.
func (a *answering) next() {
	if !a.busy && len(a.queue) > 0 {
		a.busy = true
		a.attempt(a.t, a.queue[0], retryMin)
	}
}

func (a *answering) attempt(t *term, out response.Output, backoff time.Duration) {
	w, r := a.of.w, a.r
	before, after := a.head, head{t.rev, a.head.batch + 1}
	answered := false
	r.deliver(attemptTime+backoff, func() {
		if a.t == t && !answered {
			answered = true
			a.attempt(t, out, min(2*backoff, retryMax))
		}
	})
	w.after(w.between(commitDelayMin/2, commitDelayMax)+w.store.slow, func() {
		if !w.store.serves(r) || w.store.full {
			return // it is tried again
		}
		taken := a.of.head == after // by an earlier attempt without an answer
		if !taken && w.store.stands(t.rev) && a.of.head == before {
			a.of.head, taken = after, true
			a.of.commit(out.Records)
		}
		r.deliver(w.between(serviceDelayMin, serviceDelayMax), func() {
			if a.t != t || answered {
				return
			}
			answered = true
			if !taken {
				r.loseLease()
				return
			}
			a.head, a.busy, a.queue = after, false, a.queue[1:]
			for _, f := range out.Effects {
				a.carryOut(t, f.Attempt, func() response.Outcome { return a.of.act(f) })
			}
			a.next()
		})
	})
}

// carryOut has an executor do its work on an attempt. If the leader is stopped meanwhile, the work continues with the leader.
func (a *answering) carryOut(t *term, attempt response.Attempt, work func() response.Outcome) {
	w, r := a.of.w, a.r
	r.deliver(w.between(0, 20*time.Millisecond), func() {
		w.after(w.between(serviceDelayMin, serviceDelayMax), func() {
			result := response.Result{Attempt: attempt, Outcome: work()}
			r.deliver(w.between(time.Millisecond, 50*time.Millisecond), func() {
				if a.t == t {
					_ = a.step(result)
				}
			})
		})
	})
}

// commit stores records, and checks them against the invariants that no policy may break.
func (s *responses) commit(records []response.Record) {
	open := s.breaker.Open
	for _, rec := range records {
		if b, ok := rec.(*response.Breaker); ok && !b.Open {
			open = false // steps that waited for this begin in the same batch
		}
	}
	for _, rec := range records {
		switch rec := rec.(type) {
		case *response.Breaker:
			s.breaker = *rec
			if rec.Open && s.opened.IsZero() {
				s.opened = s.w.now
			}
		case *response.Response:
			was, _ := s.records[rec.Key()].(*response.Response)
			if was != nil && rec.Version < was.Version {
				s.w.violate("record %s goes back from version %d to %d", rec.ID, was.Version, rec.Version)
			}
			for i := range rec.Steps {
				st := &rec.Steps[i]
				began := was == nil || st.Attempt > was.Steps[i].Attempt
				if began && st.Attempt > 0 && !rec.Undoing {
					s.w.checkFenced(rec, i)
				}
				if began && open && st.Attempt > 0 && st.Kind.Traits().Class > response.Notify && !rec.Cancelled {
					s.w.violate("%s of %s begins attempt %d while the breaker is open", st.Name, rec.ID, st.Attempt)
				}
			}
		}
		s.records[rec.Key()] = rec
	}
}

// act is the target: it refuses a token lower than any it has seen, and records actions.
func (s *responses) act(f response.Effect) response.Outcome {
	if f.Token < s.token {
		s.stale++
		return response.StaleToken
	}
	s.token = f.Token
	if s.attempts[f.Attempt] {
		s.w.violate("%+v is made twice", f.Attempt)
	}
	s.attempts[f.Attempt] = true
	rec, _ := s.records["response/"+f.Response].(*response.Response)
	if rec == nil || rec.Steps[f.Step].Attempt < f.Attempt.Attempt {
		s.w.violate("%+v is made, and its intent is not in the store", f.Attempt)
	}
	key, class := fmt.Sprintf("%s/%d", f.Response, f.Step), f.Kind.Traits().Class
	if f.Undo {
		if s.done[f.Target.Node][key] != 0 {
			s.undone++
		}
		delete(s.done[f.Target.Node], key)
		if len(s.done[f.Target.Node]) == 0 {
			delete(s.done, f.Target.Node)
		}
		return response.Succeeded
	}
	if s.done[f.Target.Node][key] != 0 && f.Kind.Traits().Undoable {
		if !f.Recheck {
			s.w.violate("%+v is done a second time", f)
		}
		return response.Succeeded // it looked first
	}
	s.acts[class]++
	if class > response.Notify {
		if s.done[f.Target.Node] == nil {
			s.done[f.Target.Node] = map[string]response.Class{}
		}
		s.done[f.Target.Node][key] = class
		s.checkCaps()
	}
	return response.Succeeded
}

// settle returns an attempt's outcome, as an executor that remembers all attempts. It refuses by the token an attempt that arrives
// later.
func (s *responses) settle(f response.Effect) response.Outcome {
	if s.attempts[f.Attempt] {
		return response.Succeeded
	}
	s.token = max(s.token, f.Token)
	return response.Unchanged
}

// table counts the requested actions by class, result and reason.
func (s *responses) table() *account.Account {
	var out account.Account
	for class, times := range s.acts {
		out.Add(account.Entry{Asked: class.String(), Became: "done"}, times)
	}
	out.Add(account.Entry{Asked: "to put back", Became: "done"}, s.undone)
	out.Add(account.Entry{Asked: "any", Became: "refused", Why: "stale token, by the target"}, s.stale)
	for why, times := range s.told {
		out.Add(account.Entry{Asked: "any", Became: "refused", Why: why + ", by the engine"}, times)
	}
	return &out
}

// ask sends a person's decision to the leader's engine.
func (w *World) ask(ev response.Asked) error {
	l := w.leading()
	if l == nil || l.answers == nil {
		return errors.New("nobody leads")
	}
	return l.answers.step(ev)
}

// checkCaps: never are more nodes under response than the limits allow.
func (s *responses) checkCaps() {
	n := len(s.done)
	s.most = max(s.most, n)
	if most := min(s.Limits.MaxNodes, max(1, len(s.w.nodes)*s.Limits.MaxPercent/100)); n > most {
		s.w.violate("%d nodes are under response, want at most %d", n, most)
	}
	var planes [3]map[int]int
	for axis := range planes {
		planes[axis] = map[int]int{}
	}
	for id := range s.done {
		c := s.w.find(id).topo.Coord
		for axis, at := range [3]int{c.X, c.Y, c.Z} {
			if planes[axis][at]++; planes[axis][at] > s.Limits.MaxPerPlane {
				s.w.violate("%d nodes of plane %d of axis %d are under response, want at most %d", planes[axis][at], at, axis, s.Limits.MaxPerPlane)
			}
		}
	}
}
