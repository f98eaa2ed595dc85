package response

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// world is the part of the fault map that is not NORMAL, with the recurrences.
type world struct {
	faults map[Target]Fault
	// since holds when the present states began, by the engine's own time. The committed times come from the clocks of all leaders.
	since map[Target]time.Time
	// gathered holds the time of each fault's last evidence.
	gathered map[Target]time.Time
	groups   map[string]Group
	of       map[fault.NodeID][]string // ids of a node's groups
	// begun holds when faults began, the oldest first, as times since from: they take a third of the memory of a time.Time.
	begun map[Target][]time.Duration
	from  time.Time
}

func newWorld() world {
	return world{faults: map[Target]Fault{}, since: map[Target]time.Time{}, gathered: map[Target]time.Time{}, groups: map[string]Group{},
		of: map[fault.NodeID][]string{}, begun: map[Target][]time.Duration{}}
}

// bad reports whether policies apply to a state.
func bad(s fault.State) bool { return s == fault.Sick || s == fault.Failed || s == fault.Unknown }

// faultChanged processes a change. A component without a known state counts as NORMAL before.
func (e *Engine) faultChanged(ev FaultChanged) {
	f := ev.Fault
	t := f.Target()
	if !f.Component.Valid() || !f.State.Valid() || f.Node == "" {
		return // the map cannot contain that
	}
	if f.Evidence.At.After(e.now) { // of a leader whose clock is ahead
		f.Evidence = Evidence{SingleWitness: f.Evidence.SingleWitness}
	}
	was, stood := e.world.faults[t]
	dead := e.dead(f.Node)
	if f.State == fault.Normal {
		delete(e.world.faults, t)
		delete(e.world.gathered, t)
		delete(e.world.since, t)
	} else {
		if was.State != f.State {
			delete(e.world.gathered, t) // that evidence concerned another state
		}
		e.world.gathered[t] = fault.Later(e.world.gathered[t], f.Evidence.At)
		e.world.faults[t] = f
		if was.State != f.State || !was.Since.Equal(f.Since) {
			e.world.since[t] = e.beganAt(f.Since, ev.Stood)
		}
		if !stood || was.State == fault.Unknown && f.State != fault.Unknown {
			e.world.remember(t, e.world.since[t], e.cfg.RecurrenceWindow)
		}
	}
	if was.State != f.State {
		e.forgetLooks(t) // the answer concerned another state
	}
	if f.Component == fault.ComponentNode {
		before := fault.Normal
		if stood {
			before = was.State
		}
		e.turn(f, before, ev.Stood)
		for _, r := range e.ofNode(f.Node) { // a response may wait for that
			if e.unsettled(r) {
				e.touched[r.ID] = true
			}
		}
	}
	if dead && !e.dead(f.Node) && slices.ContainsFunc(e.quorum, func(s SupervisorInfo) bool { return s.Node == f.Node }) {
		e.freed() // responses may wait for the quorum
	}
	e.dirty[t] = true
	e.lifeSeen(f.Node)
	if c, ok := e.cables[t]; ok { // its other end may have become the root, or no longer be it
		e.dirty[c.ends[0]], e.dirty[c.ends[1]] = true, true
	}
}

// beganAt returns when a state began, by the engine's own time: now if the engine saw the beginning. Otherwise only the committed time
// is known; one in the future counts as now.
func (e *Engine) beganAt(committed time.Time, stood bool) time.Time {
	if stood {
		return fault.Earlier(committed, e.now)
	}
	return e.now
}

// groupChanged processes a change of a group fault. Conditions may depend on the groups of a node, so its members are
// looked at again.
func (e *Engine) groupChanged(ev GroupChanged) {
	g := ev.Group
	t := Target{Group: g.ID}
	if g.At.After(e.now) { // of a leader whose clock is ahead
		g.At = time.Time{}
	}
	was, stood := e.world.groups[g.ID]
	if g.State == fault.Normal {
		delete(e.world.groups, g.ID)
		delete(e.world.since, t)
	} else {
		e.world.groups[g.ID] = g
		if was.State != g.State || !was.Since.Equal(g.Since) {
			e.world.since[t] = e.beganAt(g.Since, ev.Stood)
		}
		if !stood {
			e.world.remember(t, e.world.since[t], e.cfg.RecurrenceWindow)
		}
	}
	if stood {
		for _, id := range was.Members {
			e.world.of[id] = slices.DeleteFunc(slices.Clone(e.world.of[id]), func(s string) bool { return s == g.ID })
			if len(e.world.of[id]) == 0 {
				delete(e.world.of, id)
			}
		}
	}
	if g.State != fault.Normal {
		for _, id := range g.Members {
			e.world.of[id] = append(e.world.of[id], g.ID)
		}
	}
	for _, members := range [][]fault.NodeID{was.Members, g.Members} {
		for _, id := range members {
			for c := fault.ComponentNode; c.Valid(); c++ {
				if t := (Target{Node: id, Component: c}); e.world.faults[t].State != 0 {
					e.dirty[t] = true
				}
			}
		}
	}
	e.dirty[t] = true
}

// incidentsChanged looks again at the faults that have become root causes, and at those that no longer are.
func (e *Engine) incidentsChanged(ev IncidentsChanged) {
	cables := make(map[Target]cable, 2*len(ev.Ends))
	ids := make(map[string]bool, len(ev.Ends))
	for t, end := range ev.Ends {
		id := ev.Roots[t]
		if id == "" || ev.Roots[end] != "" {
			continue // both ends have their own incidents
		}
		c := cable{incident: id, ends: [2]Target{t, end}}
		cables[t], cables[end], ids[id] = c, c, true
	}
	opened := make(map[string]bool, len(ev.Roots))
	for t, id := range ev.Roots {
		opened[id] = true
		if e.roots[t] != id || cables[t] != e.cables[t] {
			e.dirty[t], e.dirty[cmp.Or(ev.Ends[t], t)] = true, true
		}
	}
	for t := range e.roots {
		if ev.Roots[t] == "" {
			e.dirty[t] = true
		}
	}
	for t := range e.cables {
		if _, still := cables[t]; !still {
			e.dirty[t] = true
		}
	}
	for t, id := range ev.Roots {
		if ev.Standing[id] > e.standing[id] { // its policies may notify again
			e.dirty[t], e.dirty[cmp.Or(ev.Ends[t], t)] = true, true
		}
	}
	for t, id := range ev.Parts {
		if len(e.of[t]) > 0 && e.parts[t] != id {
			e.dirty[t] = true
		}
	}
	for id := range e.opened {
		if !opened[id] { // its notifications may tell the end
			e.recovered()
			break
		}
	}
	e.opened = opened
	e.roots, e.cables, e.parts, e.standing = maps.Clone(ev.Roots), cables, maps.Clone(ev.Parts), maps.Clone(ev.Standing)
	e.incidentsKnown = true
	maps.DeleteFunc(e.bearers, func(id string, _ Target) bool { return !ids[id] })
}

// cable is an incident whose root cause is a cable.
type cable struct {
	incident string
	ends     [2]Target // the incident names the first
}

// incidentOf returns the ID of the open incident whose root cause is the target. Of a cable's two ends, one is the root.
func (e *Engine) incidentOf(t Target) string {
	if c, ok := e.cables[t]; ok {
		if e.bearer(c) == t {
			return c.incident
		}
		return ""
	}
	return e.roots[t]
}

// bearer returns the end that counts as the root: a faulty one, if there is one. It does not change while that end is faulty,
// so that policies act once, although the second end of a cable is often found faulty later. A new leader chooses the
// end with the oldest open response.
func (e *Engine) bearer(c cable) Target {
	faulty := func(t Target) bool { s := e.world.faults[t].State; return s == fault.Sick || s == fault.Failed }
	if b, ok := e.bearers[c.incident]; ok && (b == c.ends[0] || b == c.ends[1]) && faulty(b) {
		return b
	}
	best, oldest := Target{}, uint64(math.MaxUint64)
	for _, t := range c.ends {
		if !faulty(t) {
			continue
		}
		if best == (Target{}) {
			best = t
		}
		for _, r := range e.of[t] {
			if e.order[r.ID] < oldest {
				best, oldest = t, e.order[r.ID]
			}
		}
	}
	if best == (Target{}) {
		delete(e.bearers, c.incident)
		return c.ends[0]
	}
	e.bearers[c.incident] = best
	return best
}

// seen processes newer evidence. Evidence for a fault that is gone is ignored.
func (e *Engine) seen(ev Seen) {
	if f, ok := e.world.faults[ev.Target]; ok && ev.State != 0 && ev.State != f.State {
		return
	}
	for _, r := range e.of[ev.Target] {
		if l, asked := e.look[r.ID]; asked {
			l.answered = true
			e.look[r.ID] = l
		}
	}
	if g, ok := e.world.groups[ev.Target.Group]; ok {
		g.At = fault.Later(g.At, ev.Evidence.At)
		e.world.groups[ev.Target.Group] = g
	}
	f, ok := e.world.faults[ev.Target]
	if ok {
		f.Evidence = ev.Evidence
		e.world.faults[ev.Target], e.world.gathered[ev.Target] = f, e.now
		e.recheckFence(ev.Target.Node)
	}
	for _, r := range e.of[ev.Target] {
		e.touched[r.ID] = true
	}
}

// forgetLooks forgets when the responses to a fault requested evidence: their next requests follow at once.
func (e *Engine) forgetLooks(t Target) {
	for _, r := range e.of[t] {
		delete(e.look, r.ID)
	}
}

// booted processes a boot epoch. An epoch that is not newer is out of date.
func (e *Engine) booted(ev Booted) {
	was := e.epochs[ev.Node]
	if ev.Epoch <= was {
		return
	}
	if was > 0 {
		e.turned.up[ev.Node] = e.now.Add(settling)
	}
	e.epochs[ev.Node] = ev.Epoch
	e.recheckFence(ev.Node)
	for _, r := range e.ofNode(ev.Node) {
		e.touched[r.ID] = true
	}
}

// subject returns a fault as conditions see it; false if there is none.
func (e *Engine) subject(t Target) (Subject, bool) {
	s := Subject{Recurrence: e.world.recurrence(t, e.now, e.cfg.RecurrenceWindow), Incident: e.incidentOf(t)}
	if t.Group != "" {
		g, ok := e.world.groups[t.Group]
		if !ok {
			return Subject{}, false
		}
		s.Group, s.Duration = &g, e.now.Sub(e.world.since[t])
		return s, true
	}
	f, ok := e.world.faults[t]
	if !ok {
		return Subject{}, false
	}
	s.Fault, s.Duration, s.Labels = f, e.now.Sub(e.world.since[t]), e.cluster.nodes[t.Node].Labels
	for _, id := range e.world.of[t.Node] {
		if k := e.world.groups[id].Kind; !slices.Contains(s.Groups, k) {
			s.Groups = append(s.Groups, k)
		}
	}
	slices.Sort(s.Groups)
	return s, true
}

// state returns the subject's component and state.
func (s *Subject) state() (fault.Component, fault.State) {
	if s.Group != nil {
		return 0, s.Group.State
	}
	return s.Fault.Component, s.Fault.State
}

// policiesChanged installs a set of policies.
func (e *Engine) policiesChanged(ev PoliciesChanged) {
	e.policies = slices.Clone(ev.Policies)
	e.unread = map[string]bool{}
	for _, name := range ev.Unread {
		e.unread[name] = true
	}
	slices.SortFunc(e.policies, func(a, b *Policy) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	e.targets = maps.Clone(ev.Targets)
	e.outsideUsed = slices.ContainsFunc(e.policies, func(p *Policy) bool { return len(p.Outside) > 0 })
	e.byName = map[string]*Policy{}
	e.index = [fault.NumComponents][fault.Failed + 1][]*Policy{}
	for _, p := range e.policies {
		e.byName[p.Name] = p
		for c := range e.index {
			if p.Groups != (c == 0) {
				continue
			}
			for s := fault.Unknown; s <= fault.Failed; s++ {
				if s != fault.Normal && p.Match.May(fault.Component(c), s) {
					e.index[c][s] = append(e.index[c][s], p)
				}
			}
		}
	}
	e.lookAtAll()
	if e.leads && !e.broken {
		e.retryNotifications()
		// The first enforced policy after a storm finds the breaker open.
		e.turned.drop(e.now.Add(-e.cfg.BreakerWindow))
		e.judge()
	}
}

// lookAtAll looks at every fault and every response again.
func (e *Engine) lookAtAll() {
	for t := range e.world.faults {
		e.dirty[t] = true
	}
	for id := range e.world.groups {
		e.dirty[Target{Group: id}] = true
	}
	for id := range e.open {
		e.touched[id] = true
	}
}

// lookAt evaluates the policies that may match a fault, proposes responses, and touches the fault's existing responses.
func (e *Engine) lookAt(t Target) {
	for _, r := range e.of[t] {
		e.touched[r.ID] = true
		e.join(r, 0)
	}
	var wants [numLines]bool
	defer func() {
		for k, wants := range wants {
			if wants {
				e.backlogs[k].add(t)
			} else {
				e.backlogs[k].drop(t)
			}
		}
	}()
	s, ok := e.subject(t)
	if !ok {
		e.forgetLooks(t)
		for _, p := range e.policies {
			delete(e.said, saidKey{p.Name, t})
		}
		return
	}
	c, state := s.state()
	if !bad(state) {
		return
	}
	next := time.Duration(-1)
	for _, p := range e.index[c][state] {
		for _, d := range p.Match.Thresholds() {
			// A condition may say more than, so the moment after counts as well.
			if d >= s.Duration && (next < 0 || d < next) {
				next = d
			}
		}
		if e.openFor(p, t) {
			continue
		}
		match, err := p.Match.Match(&s)
		if match && len(p.Outside) > 0 {
			var at time.Time
			if match, at, _ = e.outsideHolds(p, t.Node); !match && !at.IsZero() {
				e.wakeAt(t, at)
			}
		}
		switch {
		case err != nil:
			e.refuse(p, t, ReasonMatchError, err.Error())
		case match:
			if line, ok := e.candidate(p, t, &s); !ok {
				wants[line] = true
			}
		}
	}
	if next >= 0 {
		at := e.world.since[t].Add(next)
		if !at.After(e.now) {
			at = e.now.Add(1)
		}
		e.wakeAt(t, at)
	}
}

// refuse records that a policy is not followed, once per reason.
func (e *Engine) refuse(p *Policy, t Target, reason Reason, detail string) {
	key := saidKey{p.Name, t}
	if e.said[key] == reason {
		return
	}
	e.said[key] = reason
	e.say(Decision{Act: Refuses, Policy: p.Name, Target: t, Reason: reason, Detail: detail})
}

// candidate proposes a response to a fault that a policy matches. If there is no room, or the breaker is open, it
// returns the line in which the fault waits.
func (e *Engine) candidate(p *Policy, t Target, s *Subject) (line pool, ok bool) {
	k := p.pool()
	switch {
	case e.inGrace():
		e.refuse(p, t, ReasonGrace, "")
		e.wakeAt(t, e.graceEnds())
		return k, true
	case e.breaker.Open && p.Steps[0].Kind.Traits().Class > Notify:
		e.refuse(p, t, ReasonBreaker, e.breaker.Detail)
		return breakerLine, false
	case e.counts[k] >= e.cfg.MaxActive:
		e.refuse(p, t, ReasonTooMany, fmt.Sprintf("%d %s", e.counts[k], poolNames[k]))
		return k, false
	}
	delete(e.said, saidKey{p.Name, t})
	e.propose(p, t, s)
	return k, true
}

// openFor reports whether a fault has an open response of a policy. One that the policy has outlived does not count.
func (e *Engine) openFor(p *Policy, t Target) bool {
	return slices.ContainsFunc(e.of[t], func(r *Response) bool { return r.Policy == p.Name && !r.outlived(p) })
}

// turns are the nodes that went bad recently, each counted once. Every replica counts by its own clock, whether it
// leads or not: a storm continues across a change of leader, and the new leader's clock may be an hour off.
type turns struct {
	queue []turned
	last  map[fault.NodeID]time.Time // by node: its newest entry in the queue
	heard map[fault.NodeID]bool      // nodes that are bad now, and that this replica saw go bad
	up    map[fault.NodeID]time.Time // nodes that this replica saw start or become NORMAL: the end of their start
	// fresh are nodes that were starting when this replica saw them go bad, and not NORMAL since. They count from a time on, or if that is
	// zero, from BreakerWindow after their start.
	fresh map[fault.NodeID]time.Time
}

type turned struct {
	node fault.NodeID
	at   time.Time
}

func newTurns() turns {
	return turns{last: map[fault.NodeID]time.Time{}, heard: map[fault.NodeID]bool{}, up: map[fault.NodeID]time.Time{},
		fresh: map[fault.NodeID]time.Time{}}
}

func (t *turns) add(node fault.NodeID, at time.Time) {
	t.queue = append(t.queue, turned{node, at})
	t.last[node] = fault.Later(t.last[node], at)
}

// drop forgets entries from before a time.
func (t *turns) drop(before time.Time) {
	for len(t.queue) > 0 && !t.queue[0].at.After(before) {
		if old := t.queue[0]; t.last[old.node].Equal(old.at) {
			delete(t.last, old.node)
		}
		t.queue = t.queue[1:]
	}
}

// sort sorts entries that were added in any order by time; for each node the newest counts.
func (t *turns) sort() {
	slices.SortFunc(t.queue, func(a, b turned) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.node, b.node)) })
}

// forgive restarts the count.
func (t *turns) forgive() { t.queue, t.last = nil, map[fault.NodeID]time.Time{} }

// window holds the times of recent beginnings.
type window []time.Time

// room reports whether one more may begin now, and otherwise when.
func (w *window) room(now time.Time, limit int, within time.Duration) (ok bool, at time.Time) {
	for len(*w) > 0 && now.Sub((*w)[0]) >= within {
		*w = (*w)[1:]
	}
	if len(*w) < limit {
		return true, time.Time{}
	}
	return false, (*w)[len(*w)-limit].Add(within)
}

// Evidence returns the evidence for the fault of a target; false if there is none.
func (e *Engine) Evidence(t Target) (Evidence, bool) {
	_, fault := e.world.faults[t]
	_, group := e.world.groups[t.Group]
	return e.evidence(t), fault || group
}
