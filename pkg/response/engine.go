package response

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Engine decides on responses. One goroutine owns it. A replica that does not lead also feeds the map to its engine,
// and gets no output.
//
// A step processes its event, then looks at the faults and responses that the event touches, oldest first. If an event
// may unblock others (a cap, the breaker, a mark), it looks at all waiting responses; Config.MaxActive bounds their
// number. A change of one fault costs one evaluation of each policy that may match that component in that state,
// regardless of the size of the cluster.
type Engine struct {
	cfg     Config
	now     time.Time // time never goes back
	born    time.Time // of the first step
	cluster cluster
	world   world

	policies []*Policy // by name
	byName   map[string]*Policy
	unread   map[string]bool                                  // policies in force that this version cannot read
	index    [fault.NumComponents][fault.Failed + 1][]*Policy // by component and state; component 0 for group faults

	leads   bool
	broken  bool // the records could not be loaded
	token   uint64
	led     time.Time
	salt    string
	serial  uint64 // of the newest response of this term
	breaker Breaker

	open      map[string]*Response         // by id
	of        map[Target][]*Response       // the same, by target
	order     map[string]uint64            // by id: responses proposed first come first
	ordinal   uint64                       // of the newest in order
	active    map[string]bool              // ids of running and waiting responses; the others are at rest
	waiters   map[string]bool              // ids of the active ones without a running attempt
	counts    [numPools]int                // by pool: responses that count against Config.MaxActive
	halted    map[string]int               // by id: the attempt that a closed gate, or the end of its fault, has asked to end
	lapses    map[lapseKey]lapse           // how often faults ended before a step had succeeded
	queried   map[Attempt]bool             // former leaders' attempts, until their executors report the outcomes
	held      map[fault.NodeID]bool        // nodes under response
	byValue   [][]int                      // how many of these have the value, by domain key and value
	byPlane   [3]map[int]int               // how many of these lie in the plane, by axis and place
	ended     map[string]end               // closed responses with a record, by id
	rest      map[restKey]time.Time        // when a node's last response was closed; policy "" for any
	starts    [2]window                    // of steps: more than notifications, and notifications
	look      map[string]look              // by id of a response: when it last requested evidence
	incidents map[string]*IncidentRecord   // by id of the incident
	joined    map[string]string            // ids of incidents, by id of an open response
	backlogs  [numLines]backlog            // faults without a response because of a full pool or the open breaker
	said      map[saidKey]Reason           // refusals before a response: each reason once
	turned    turns                        // nodes that went bad recently
	quorum    []SupervisorInfo             // the supervisors
	marked    map[fault.NodeID]bool        // in maintenance
	roots     map[Target]string            // ids of incidents, by root cause
	cables    map[Target]cable             // root causes that are cables, by each of their ends
	bearers   map[string]Target            // by id of a cable's incident: the end that counts as its root
	parts     map[Target]string            // ids of incidents, by listed consequence
	opened    map[string]bool              // ids of the OPEN incidents
	targets   map[string]uint64            // see PoliciesChanged
	tried     map[string]uint64            // the targets when failed notifications were last retried
	standing  map[string]uint32            // notices of the incidents that are not closed, by id
	epochs    map[fault.NodeID]fault.Epoch // of the nodes' hosts
	quiets    map[fault.NodeID]*quiet      // nodes whose fencing is awaited
	quietFrom map[string]time.Time         // by id of a running NodeFence step: the beginning of the wait that it has seen
	timers    timers                       // scheduled looks
	pending   map[due]time.Time            // the earliest timer of each
	pruned    time.Time                    // when ended was last pruned

	incidentsKnown bool // standing is known, even if it is empty

	outside      [sources]map[fault.NodeID][]OutsideCondition // by source; nil: none
	outsideKnown [sources]bool                                // outside is known, even if it is empty
	outsideUsed  bool                                         // a policy requires some

	// State of the current step.
	dirty   map[Target]bool // faults to look at
	touched map[string]bool // responses to look at
	records map[string]Record
	out     *Output
}

// look is a request for newer evidence.
type look struct {
	at       time.Time
	wait     time.Duration // until the next request
	answered bool
	overdue  bool // the previous one had its time, answered or not
}

// restKey is a policy on a node; an empty policy stands for all.
type restKey struct {
	node   fault.NodeID
	policy string
}

// saidKey is a policy with a fault.
type saidKey struct {
	policy string
	target Target
}

// New returns an engine that does not lead and knows no nodes.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, world: newWorld(), epochs: map[fault.NodeID]fault.Epoch{}, marked: map[fault.NodeID]bool{},
		byName: map[string]*Policy{}, turned: newTurns()}
	e.forget()
	return e, nil
}

// forget drops the state that only a leader has.
func (e *Engine) forget() {
	e.leads, e.broken, e.token, e.salt, e.serial, e.ordinal = false, false, 0, "", 0, 0
	e.breaker = Breaker{}
	e.open, e.of, e.order = map[string]*Response{}, map[Target][]*Response{}, map[string]uint64{}
	e.ended, e.rest, e.look = map[string]end{}, map[restKey]time.Time{}, map[string]look{}
	e.tried = nil
	e.counts, e.said = [numPools]int{}, map[saidKey]Reason{}
	e.halted, e.queried, e.lapses = map[string]int{}, map[Attempt]bool{}, map[lapseKey]lapse{}
	for k := range e.backlogs {
		e.backlogs[k] = backlog{waits: map[Target]bool{}}
	}
	e.active, e.waiters = map[string]bool{}, map[string]bool{}
	e.bearers = map[string]Target{}
	e.quiets, e.quietFrom = map[fault.NodeID]*quiet{}, map[string]time.Time{}
	e.incidents, e.joined = map[string]*IncidentRecord{}, map[string]string{}
	e.starts = [2]window{}
	e.timers, e.pending = nil, map[due]time.Time{}
	e.recount()
}

// Step processes an event. A time before that of an earlier step counts as that of the earlier one.
func (e *Engine) Step(now time.Time, ev Event) Output {
	if now.After(e.now) {
		e.now = now
	}
	if e.born.IsZero() {
		e.born = e.now
	}
	var out Output
	e.out, e.records, e.dirty, e.touched = &out, map[string]Record{}, map[Target]bool{}, map[string]bool{}
	e.take(ev)
	if e.leads && !e.broken {
		e.ring()
		e.settle()
		e.prune()
	}
	e.finish()
	e.out, e.records = nil, nil
	return out
}

// take applies the event itself.
func (e *Engine) take(ev Event) {
	switch ev := ev.(type) {
	case FaultChanged:
		e.faultChanged(ev)
	case GroupChanged:
		e.groupChanged(ev)
	case Seen:
		e.seen(ev)
	case Booted:
		e.booted(ev)
	case PoliciesChanged:
		e.policiesChanged(ev)
	case TopologyChanged:
		e.cluster = newCluster(ev, e.cfg)
		e.recheckFences()
		e.recount()
		e.lookAtAll()
	case SupervisorsChanged:
		e.quorum = slices.Clone(ev.Supervisors)
		e.recheckFences()
		e.freed()
	case MaintenanceChanged:
		e.marked = map[fault.NodeID]bool{}
		for _, id := range ev.Nodes {
			e.marked[id] = true
		}
		e.stir()
		e.recovered()
	case IncidentsChanged:
		e.incidentsChanged(ev)
	case OutsideChanged:
		e.outsideChanged(ev)
	case Led:
		e.becomeLeader(ev)
	case Lost:
		e.forget()
	case Result:
		e.result(ev)
	case Asked:
		e.asked(ev)
	case Tick:
	}
}

// settle looks at touched faults and responses until nothing changes any more. Faults come before the responses that
// depend on them.
func (e *Engine) settle() {
	for len(e.dirty) > 0 || len(e.touched) > 0 || e.room() {
		for _, t := range sortedTargets(e.dirty) {
			delete(e.dirty, t)
			e.lookAt(t)
		}
		for _, id := range e.sortedIDs(e.touched) {
			delete(e.touched, id)
			if r := e.open[id]; r != nil {
				e.advance(r)
			}
		}
	}
}

// sortedIDs returns ids in the order in which the responses were proposed: first come, first served.
func (e *Engine) sortedIDs(ids map[string]bool) []string {
	out := slices.Collect(maps.Keys(ids))
	slices.SortFunc(out, func(a, b string) int { return cmp.Or(cmp.Compare(e.order[a], e.order[b]), cmp.Compare(a, b)) })
	return out
}

func sortedTargets(m map[Target]bool) []Target {
	out := slices.Collect(maps.Keys(m))
	slices.SortFunc(out, compareTargets)
	return out
}

func compareTargets(a, b Target) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Component, b.Component))
}

// release forgets a record, also one that the current step has written.
func (e *Engine) release(key string) {
	delete(e.records, key)
	e.out.Forget = append(e.out.Forget, key)
}

// finish sorts the output. A record that was written after its release is kept.
func (e *Engine) finish() {
	e.out.Forget = slices.DeleteFunc(e.out.Forget, func(key string) bool { return e.records[key] != nil })
	for _, key := range slices.Sorted(maps.Keys(e.records)) {
		e.out.Records = append(e.out.Records, e.records[key])
	}
	slices.SortFunc(e.out.Look, compareTargets)
	e.out.Look = slices.Compact(e.out.Look)
	if e.leads && len(e.timers) > 0 {
		e.out.Wake = e.timers[0].at
	}
}

// save commits a response in its current state and updates the counts. Every change of a response ends here.
func (e *Engine) save(r *Response) {
	r.Token = e.token
	r.Version++
	e.recountNode(r.Target.Node)
	e.sort(r)
	e.records[r.Key()] = r.Clone()
	e.note(r)
}

// sort assigns a response to the running, waiting or resting ones.
func (e *Engine) sort(r *Response) {
	was := e.active[r.ID]
	delete(e.active, r.ID)
	delete(e.waiters, r.ID)
	if e.open[r.ID] != nil && !r.rests() {
		if r.Mode == Enforce {
			e.active[r.ID] = true
		}
		if r.State != Running {
			e.waiters[r.ID] = true
		}
	}
	switch now := e.active[r.ID]; {
	case now && !was:
		e.counts[r.pool()]++
	case was && !now:
		e.counts[r.pool()]--
	}
}

// say adds a decision to the audit.
func (e *Engine) say(d Decision) {
	d.At = e.now
	e.out.Decisions = append(e.out.Decisions, d)
}

// sayOf adds a decision about a response at its current step.
func (e *Engine) sayOf(r *Response, act Act, reason Reason, detail string) {
	d := Decision{Act: act, Response: r.ID, Policy: r.Policy, Target: r.Target, Reason: reason, Detail: detail}
	if r.Step < len(r.Steps) {
		s := &r.Steps[r.Step]
		d.Step, d.Kind, d.Attempt = s.Name, s.Kind, s.Attempt
	}
	e.say(d)
}

// Responses returns the open responses, in the order in which they were proposed.
func (e *Engine) Responses() []*Response {
	ids := make(map[string]bool, len(e.open))
	for id := range e.open {
		ids[id] = true
	}
	out := make([]*Response, 0, len(ids))
	for _, id := range e.sortedIDs(ids) {
		out = append(out, e.open[id].Clone())
	}
	return out
}

// Breaker returns the circuit breaker.
func (e *Engine) Breaker() Breaker { return e.breaker }

// UnderResponse returns the number of nodes under response.
func (e *Engine) UnderResponse() int { return len(e.held) }

// due is the subject of a timer.
type due struct {
	target Target
	id     string // of a response; empty: a fault
}

// timer is the time of the next look at a fault or a response. It is only a hint. Each look schedules the next one, so
// only the earliest timer of each subject is kept, and additional looks do no harm.
type timer struct {
	at time.Time
	due
}

// timers is a heap by time; for equal times by subject.
type timers []timer

func (t timers) Len() int { return len(t) }
func (t timers) Less(i, j int) bool {
	if c := t[i].at.Compare(t[j].at); c != 0 {
		return c < 0
	}
	return cmp.Or(cmp.Compare(t[i].id, t[j].id), compareTargets(t[i].target, t[j].target)) < 0
}
func (t timers) Swap(i, j int) { t[i], t[j] = t[j], t[i] }

// Push implements heap.Interface.
func (t *timers) Push(x any) { *t = append(*t, x.(timer)) }

// Pop implements heap.Interface.
func (t *timers) Pop() any {
	old := *t
	x := old[len(old)-1]
	*t = old[:len(old)-1]
	return x
}

func (e *Engine) wake(d due, at time.Time) {
	if was, ok := e.pending[d]; !at.After(e.now) || ok && !at.Before(was) {
		return
	}
	e.pending[d] = at
	heap.Push(&e.timers, timer{at, d})
}

// wakeFor schedules a look at a response.
func (e *Engine) wakeFor(r *Response, at time.Time) { e.wake(due{id: r.ID}, at) }

// wakeAt schedules a look at a fault.
func (e *Engine) wakeAt(t Target, at time.Time) { e.wake(due{target: t}, at) }

// ring touches the subjects whose time has come. A timer without a subject is dropped.
func (e *Engine) ring() {
	for len(e.timers) > 0 && !e.timers[0].at.After(e.now) {
		t := heap.Pop(&e.timers).(timer)
		if e.pending[t.due].Equal(t.at) {
			delete(e.pending, t.due)
		}
		switch {
		case t.id == "":
			e.dirty[t.target] = true
		case e.open[t.id] != nil:
			e.touched[t.id] = true
		}
	}
}

// freed touches all waiting responses.
func (e *Engine) freed() {
	for id := range e.waiters {
		e.touched[id] = true
	}
}

// stir touches all running and waiting responses: the change may close or open gates.
func (e *Engine) stir() {
	for id := range e.active {
		e.touched[id] = true
	}
	e.freed()
}

// recovered touches the responses whose faults are gone. A gate may have held back the undo of a failed or expired response. These are not
// among the waiters, so freed does not touch them.
func (e *Engine) recovered() {
	for id, r := range e.open {
		if !r.Gone.IsZero() {
			e.touched[id] = true
		}
	}
}

// pruneEvery is the interval at which closed responses are pruned.
const pruneEvery = time.Minute

// prune lists the records of closed responses that are no longer needed, and forgets expired rests.
func (e *Engine) prune() {
	if e.now.Sub(e.pruned) < pruneEvery {
		return
	}
	e.pruned = e.now
	for _, id := range slices.Sorted(maps.Keys(e.ended)) {
		if e.now.After(e.ended[id].keep) {
			e.drop(id)
		}
	}
	e.pruneIdle()
	e.pruneIncidents()
	e.pruneLapses()
	e.world.forgetBegun(e.now, e.cfg.RecurrenceWindow)
	maps.DeleteFunc(e.rest, func(k restKey, at time.Time) bool {
		longest := e.cfg.Keep // at least as long as every cooldown in our configuration; a policy's may be longer
		if p := e.byName[k.policy]; p != nil {
			longest = max(longest, p.Guards.Cooldown)
		}
		return e.now.Sub(at) > longest
	})
}

// end is a closed response with a record.
type end struct {
	keep  time.Time // until when to keep the record
	acted bool      // see Response.acted
}

// maxIdleRecords bounds the records of closed responses that have done nothing, or only notified: about 15 MB. A flapping fault
// opens such a response at each return. The rate limit bounds the others.
const maxIdleRecords = 20_000

// pruneIdle deletes the oldest records of closed responses that have not acted, until at most maxIdleRecords remain.
func (e *Engine) pruneIdle() {
	var idle []string
	for id, x := range e.ended {
		if !x.acted {
			idle = append(idle, id)
		}
	}
	if len(idle) <= maxIdleRecords {
		return
	}
	slices.SortFunc(idle, func(a, b string) int {
		return cmp.Or(e.ended[a].keep.Compare(e.ended[b].keep), strings.Compare(a, b))
	})
	for _, id := range idle[:len(idle)-maxIdleRecords] {
		e.drop(id)
	}
}

// drop deletes the record of a closed response.
func (e *Engine) drop(id string) {
	delete(e.ended, id)
	e.release((&Response{ID: id}).Key())
}

// newID returns the id of a new response. No two leaders of one store have the same token. The salt tells apart two
// stores, and two terms of one leader under one token.
func (e *Engine) newID() string {
	for {
		e.serial++
		id := fmt.Sprintf("r%d-%d", e.token, e.serial)
		if e.salt != "" {
			id += "-" + e.salt
		}
		if _, was := e.ended[id]; !was && e.open[id] == nil {
			return id
		}
	}
}
