package hostile

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/respond"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// The periods of a world, in the ratios of the default preset.
const (
	digestPeriod    = 500 * time.Millisecond
	challengeNode   = 60 * time.Millisecond
	challengeSingle = 300 * time.Millisecond
	digestMisses    = 4
	holdOff         = time.Second
	halfBound       = 210 * time.Millisecond
	silenceTime     = 50 * time.Millisecond  // until an end of a link calls it silent
	refusedTime     = 25 * time.Millisecond  // the same, if the kernel refuses frames
	comesBack       = 200 * time.Microsecond // until a refused challenge comes back
	noticeTime      = 20 * time.Millisecond  // until it notices anything else
	resendTime      = 30 * time.Millisecond  // until an unacknowledged report is sent again
	effectTime      = 20 * time.Millisecond  // duration of an executor's step
	lookTime        = 500 * time.Microsecond
	settleTime      = 750 * time.Millisecond // from the start until the lies begin
	engineGrace     = 4 * time.Second
	maxHeard        = 64 // signed messages that liars keep to replay
	maxWakes        = 20_000
	maxSpins        = 100 // timers at one time
	maxChallenges   = 4_000
)

// ReturnBound is the longest time from the last lie until the map shows the truth again. A statement that a half no
// longer makes expires after digestMisses digest periods. A restarted DNP has four periods for its links and two more
// for its neighbours' statements. A component that flaps changes once per hold-off.
const ReturnBound = (digestMisses+6)*digestPeriod + holdOff

var epoch0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Plants are faults that a test plants from outside, to check that the harness finds them. nil: none.
type Plants struct {
	// Gather replaces view.Gather.
	Gather func(awareness.NodeStatus, fault.Component, func(fault.NodeID) time.Time, time.Time) response.Evidence
	// Hear may change a liar's report before the machine receives it, as if signatures were not checked.
	Hear func(*Sequence, *fault.Delivery)
	// Limits may change the engine's.
	Limits func(*response.Config)
	// Answers drops the answers of honest nodes.
	Unanswered bool
	// Ended marks every silence of an honest link as that of an ended process.
	Ended bool
	// Waits may change the machine's periods; the promises keep the real ones.
	Waits func(*awareness.Config)
	// Restless keeps the liars lying while the world should return to the truth.
	Restless bool
}

// event is an action at a time.
type event struct {
	at time.Time
	n  uint64
	do func()
}

type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || q[i].at.Equal(q[j].at) && q[i].n < q[j].n
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}

// world plays one sequence.
type world struct {
	s      *Sequence
	plants *Plants
	rnd    *rand.Rand
	cfg    awareness.Config
	limits response.Config
	m      *awareness.Machine
	e      *response.Engine
	told   respond.KnownNodes
	tells  bool // the engine follows the map
	pols   []*response.Policy
	store  map[string]response.Record
	token  uint64
	rev    uint64

	now   time.Time
	q     events
	n     uint64
	wake  time.Time
	ewake time.Time
	spins int // timers that expired at spun
	spun  time.Time
	begun time.Time // when the lies begin

	ids    []fault.NodeID
	ranks  map[fault.NodeID]int
	nodes  []nodeState
	shown  []states // the map, from the changes that the machine emitted
	heard  []fault.Delivery
	given  []awareness.Answered
	asked  []awareness.Challenge
	lostBy int // rank of the honest node that was cut off for a while; -1: none
	lies   bool
	led    bool // another supervisor has taken over
	plans  int  // rank of the honest node that restarts as planned; -1: none
	over   fault.ReportID
	overAt time.Time // arrival of the notice, of the number over, that it is back

	out Outcome
	by  map[response.Attempt]bool
}

// shown is a component's entry in the map; states holds a node's entries.
type shown struct {
	state fault.State
	cause fault.Cause
}

type states [fault.NumComponents]shown

// newWorld returns a world before its first step.
func newWorld(s *Sequence, p *Plants, pols []*response.Policy) (*world, error) {
	w := &world{
		s: s, plants: p, rnd: rand.New(rand.NewPCG(s.Seed, 0xfa17)), //nolint:gosec // repeatable on purpose
		now: epoch0, begun: epoch0.Add(settleTime), told: respond.KnownNodes{}, store: map[string]response.Record{}, pols: pols,
		lostBy: -1, plans: -1,
		by: map[response.Attempt]bool{},
	}
	var nonce uint64
	w.cfg = awareness.Config{
		Dims: s.Dims, IDs: nil, Supervisor: "s0",
		ChallengeNode: challengeNode, ChallengeHalf: 20 * time.Millisecond, ChallengeSingle: challengeSingle,
		DigestPeriod: digestPeriod, DigestMisses: digestMisses, Grace: digestPeriod, HalfBound: halfBound, HoldOff: holdOff, Horizon: time.Hour,
		Nonce: func() (b [16]byte) {
			nonce++
			binary.BigEndian.PutUint64(b[8:], nonce)
			return b
		},
	}
	w.build()
	if p.Waits != nil {
		p.Waits(&w.cfg)
	}
	var err error
	if w.m, err = awareness.New(w.cfg, w.now, nil); err != nil {
		return nil, fmt.Errorf("sequence of seed %d: %w", s.Seed, err)
	}
	return w, nil
}

// after schedules do.
func (w *world) after(d time.Duration, do func()) { w.at(w.now.Add(d), do) }

func (w *world) at(t time.Time, do func()) {
	w.n++
	heap.Push(&w.q, event{t, w.n, do})
}

// run lets time pass until end.
func (w *world) run(end time.Time) {
	for w.out.Broken == "" {
		next := end
		if len(w.q) > 0 && w.q[0].at.Before(next) {
			next = w.q[0].at
		}
		for _, wake := range [...]time.Time{w.wake, w.ewake} {
			if !wake.IsZero() && wake.Before(next) {
				next = wake
			}
		}
		if !next.Before(end) {
			w.now = end
			return
		}
		if next.After(w.now) {
			w.now = next
		}
		for len(w.q) > 0 && !w.q[0].at.After(w.now) {
			heap.Pop(&w.q).(event).do()
		}
		if !w.wake.IsZero() && !w.wake.After(w.now) {
			w.woken()
			w.step(awareness.Tick{})
		}
		if !w.ewake.IsZero() && !w.ewake.After(w.now) {
			w.woken()
			w.decide(response.Tick{})
		}
	}
}

// woken counts an expired timer.
func (w *world) woken() {
	if w.spins++; w.now.After(w.spun) {
		w.spins, w.spun = 0, w.now
	}
	if w.out.Wakes++; w.out.Wakes > maxWakes || w.spins > maxSpins {
		w.violate(Wedged, "%d timers have run out by %s, %d of them at that time", w.out.Wakes, w.now.Sub(w.begun), w.spins)
	}
}

// step passes an event to the machine and carries out its output.
func (w *world) step(ev awareness.Event) awareness.Output {
	w.out.Events++
	out := w.m.Step(w.now, ev)
	w.wake = out.Wake
	for _, c := range out.Challenges {
		w.challenged(c)
	}
	for _, c := range out.Changes {
		w.shown[w.rank(c.Node)][c.Component] = shown{c.To, c.Cause}
	}
	w.judgeChanges(out)
	w.follow(out)
	return out
}

// challenged makes the two halves of a node answer.
func (w *world) challenged(c awareness.Challenge) {
	if w.out.Challenges++; w.out.Challenges > maxChallenges {
		w.violate(Wedged, "more than %d challenges", maxChallenges)
	}
	w.asked = push(w.asked, c)
	rank := w.rank(c.Node)
	n := &w.nodes[rank]
	if c.Half == 0 && !c.Again && n.asked.IsZero() {
		n.asked = w.now
	}
	if n.dead && w.s.Refuses || w.now.Before(n.forged) {
		w.after(comesBack, func() { w.step(awareness.Refused{Node: c.Node, Nonce: c.Nonce}) })
	}
	for i := range w.nodes[rank].halves {
		h := &w.nodes[rank].halves[i]
		if !h.alive || w.now.Before(h.away) || c.Half != 0 && c.Half != h.origin.Half {
			continue
		}
		delay := time.Duration(1+i)*time.Millisecond + time.Duration(w.rnd.IntN(2000))*time.Microsecond
		if h.mute {
			if h.late == 0 {
				continue
			}
			delay += h.late
		}
		if !w.s.liar(rank) && (w.plants.Unanswered || w.loses(rank) || w.loses(rank)) {
			continue
		}
		a := awareness.Answered{Nonce: c.Nonce, Origin: h.origin, Epoch: h.epoch, Path: fault.PathDirect}
		w.after(delay, func() {
			w.given = push(w.given, a)
			n.asked = time.Time{}
			w.step(a)
		})
	}
}

// push appends to a list of bounded length.
func push[T any](list []T, v T) []T {
	if len(list) == maxHeard {
		copy(list, list[1:])
		list = list[:maxHeard-1]
	}
	return append(list, v)
}

// loses decides at random whether a datagram from or to an honest node is lost.
func (w *world) loses(rank int) bool {
	return w.now.Before(w.nodes[rank].cut) || w.s.Loss > 0 && w.rnd.IntN(100) < w.s.Loss
}

// hears passes a report to the machine as a supervisor does: it drops reports that the decoder refuses.
func (w *world) hears(d fault.Delivery, hostile bool) {
	if hostile {
		r, err := servicenet.ParseReport(servicenet.AppendReport(nil, &d.Report))
		if err != nil {
			w.out.Refused++
			return
		}
		d.Report = r
		if w.plants.Hear != nil {
			w.plants.Hear(w.s, &d)
		}
	}
	w.heard = push(w.heard, d)
	w.takes(d)
}

// takes gives a report to the machine. As a leader does, it notes which whole digest came last.
func (w *world) takes(d fault.Delivery) {
	if rank := w.rank(d.Report.ID.Origin.Node); rank >= 0 && d.Report.Digest && !d.Report.Partial {
		w.nodes[rank].halves[d.Report.ID.Origin.Half-1].noted = d.Report.ID
	}
	if d.Report.ID == w.over && w.overAt.IsZero() {
		w.overAt = w.now
	}
	w.step(awareness.Evidence{Delivery: d})
}

// follow passes changes of the map to the engine: in this world everything commits at once.
func (w *world) follow(out awareness.Output) {
	if !w.tells || len(out.Changes)+len(out.Groups) == 0 {
		return
	}
	w.rev++
	for i, c := range out.Changes {
		if i > 0 && out.Changes[i-1].Node == c.Node {
			continue
		}
		st, _ := w.m.Node(c.Node)
		in := view.Entry{Status: st, Revision: w.rev, Faults: view.GatherAll(st, w.life, w.now)}
		if w.plants.Gather != nil {
			for i := range in.Faults {
				in.Faults[i].Evidence = w.plants.Gather(st, in.Faults[i].Component, w.life, w.now)
			}
		}
		for _, ev := range w.told.Changes(in, w.e) {
			w.decide(ev)
		}
	}
	for _, g := range out.Groups {
		w.decide(response.GroupChanged{Group: groupOf(g)})
	}
}

func groupOf(g awareness.GroupStatus) response.Group {
	return response.Group{ID: g.ID, Kind: g.Kind.String(), State: g.State, Cause: g.Cause, Members: g.Members, Of: g.Of, Since: g.Since}
}

// lead starts an engine as leader, with the committed map.
func (w *world) lead(since time.Time) error {
	e, err := response.New(w.limits)
	if err != nil {
		return err
	}
	w.e, w.tells = e, true
	w.token++
	topo := response.TopologyChanged{Dims: w.s.Dims}
	for rank, id := range w.ids {
		topo.Nodes = append(topo.Nodes, response.NodeInfo{ID: id, Coord: w.s.Dims.At(rank), Labels: w.cfg.Labels[id]})
	}
	led := response.Led{Token: w.token}
	for _, key := range sortedKeys(w.store) {
		led.Records = append(led.Records, w.store[key])
	}
	before, open := w.told, respond.OpenTargets(led.Records)
	w.told = respond.KnownNodes{}
	w.rev++
	for rank := range w.ids {
		st := w.plain(rank)
		if st.State != fault.Normal {
			st, _ = w.m.Node(st.ID)
		}
		w.told.Lead(&led, view.Entry{Status: st}, w.rev, before, open)
	}
	for _, ev := range []response.Event{
		topo, response.SupervisorsChanged{Supervisors: []response.SupervisorInfo{{ID: "s0",
			Alive: true}}}, response.PoliciesChanged{Policies: w.pols}, led,
	} {
		w.take(w.e.Step(since, ev))
	}
	return nil
}

// plain returns a node without its evidence, which is costly and not needed for a healthy node.
func (w *world) plain(rank int) awareness.NodeStatus {
	is := &w.shown[rank]
	st := awareness.NodeStatus{
		ID: w.ids[rank], Coord: w.s.Dims.At(rank), State: is[fault.ComponentNode].state, Cause: is[fault.ComponentNode].cause, Since: w.now,
		HostEpoch: w.nodes[rank].halves[0].epoch, Components: make([]awareness.ComponentStatus, 0, fault.NumComponents),
	}
	for c := fault.ComponentHost; c < fault.ComponentBus; c++ { // each node has one kernel here
		if d, link := c.LinkDirection(); !link || w.s.Dims.HasLink(d) {
			st.Components = append(st.Components, awareness.ComponentStatus{Component: c, State: is[c].state, Cause: is[c].cause, Since: w.now})
		}
	}
	return st
}

// decide passes an event to the engine.
func (w *world) decide(ev response.Event) { w.take(w.e.Step(w.now, ev)) }

// take commits the engine's decisions and carries them out.
func (w *world) take(out response.Output) {
	w.ewake = out.Wake
	for _, r := range out.Records {
		w.store[r.Key()] = r
	}
	for _, key := range out.Forget {
		delete(w.store, key)
	}
	w.judgeBreaker()
	succeeds := func(f response.Effect) {
		e := w.e
		w.after(effectTime, func() {
			if w.e == e {
				w.decide(response.Result{Attempt: f.Attempt, Outcome: response.Succeeded})
			}
		})
	}
	for _, f := range out.Effects {
		w.judgeEffect(f)
		succeeds(f)
	}
	for _, f := range out.Unsettled {
		succeeds(f) // it was begun, and executors here do not fail
	}
	for _, t := range out.Look {
		e := w.e
		w.after(lookTime, func() {
			if w.e == e {
				w.look(t)
			}
		})
	}
}

// look passes the evidence of a fault to the engine.
func (w *world) look(t response.Target) {
	st, ok := w.m.Node(t.Node)
	if !ok {
		return
	}
	gather := view.Gather
	if w.plants.Gather != nil {
		gather = w.plants.Gather
	}
	w.decide(response.Seen{Target: t, State: view.StateOf(st, t.Component), Evidence: gather(st, t.Component, w.life, w.now)})
}

// life returns the time of a node's newest report.
func (w *world) life(id fault.NodeID) time.Time {
	st, _ := w.m.Node(id)
	return st.Life
}
