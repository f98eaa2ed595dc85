package response

import (
	"fmt"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// A node that fences itself (ADR 72) feeds its hardware watchdog only while it has contact: a link that works both ways, or a
// supervisor that answers. A step of kind NodeFence waits until such a node is down for certain:
//
//	          no sign of the node, nobody who could be in contact with it       DownAfter later, and newest evidence agrees
//	waiting ──────────────────────────────────────────────────────────► quiet ──────────────────────────────────────────────► down
//	   ▲                                                                  │                                                    │
//	   └──────────────────────── a fresh sign, or somebody who could be in contact ◄───────────────────────────────────────────┘
//
// The node's word alone says that it fences itself. Its neighbours' and the supervisors' words say that it has no contact.
// Every fresh sign starts the wait again, because a node that regains contact before its reset keeps running. The wait is counted by
// this engine's own time, so a new leader starts it again.

// Watchdog is a node's hardware watchdog, as the node itself stated it. The zero value is no statement.
type Watchdog struct {
	Armed         bool
	Timeout       time.Duration // from the last feeding to the reset
	ContactWithin time.Duration // the longest time without contact in which the node feeds it; 0: contact does not count
	Boot          uint32        // part of the identity of the boot in which this holds; never 0 in a statement
}

// SelfFences reports whether the node resets itself when it has no contact.
func (w Watchdog) SelfFences() bool {
	return w.Armed && w.Timeout > 0 && w.ContactWithin > 0 && w.Boot != 0
}

// String returns the state in one word, as conditions of policies see it: "" without a statement.
func (w Watchdog) String() string {
	switch {
	case w.Boot == 0:
		return ""
	case !w.Armed:
		return "disarmed"
	case !w.SelfFences():
		return "armed"
	}
	return "self-fencing"
}

// DownAfter returns the time after the last contact by which a node that fences itself is down: it feeds the device for
// ContactWithin at most. The kernel feeds an armed device again when its feeder ends, and that may be just before the reset.
// Then the device resets the machine within Timeout. The margin covers the time in which the halves still call a link or a
// service network good that is not, and the time in which others notice that a witness is gone.
func (w Watchdog) DownAfter(margin time.Duration) time.Duration {
	return w.ContactWithin + 2*w.Timeout + margin
}

// quiet is a node without contact, for as long as nothing contradicts that.
type quiet struct {
	since    time.Time
	watchdog Watchdog
	epoch    fault.Epoch                   // of its host half
	links    [grid.NumDirections]time.Time // since when each neighbour calls its link to the node FAILED; zero: no neighbour
	asked    time.Time                     // the last request for evidence
}

// fenceView is the engine's present knowledge of a node's fencing. Exactly one of the fields is set, unless the node is down.
type fenceView struct {
	never string    // why it cannot be relied on to fence itself, or is not silent
	wait  string    // who may be in contact with it
	until time.Time // when it is down, if nothing changes
	ask   bool      // newest evidence is needed
}

// notFencing returns why nothing can rest on a node's fencing; empty: it fences itself and is silent.
func (e *Engine) notFencing(id fault.NodeID) string {
	f, stands := e.world.faults[Target{Node: id, Component: fault.ComponentNode}]
	p, known := e.cluster.nodes[id]
	switch {
	case !known || p.Spare:
		return "it has no place in the torus"
	case !stands || f.State != fault.Failed && f.State != fault.Unknown:
		return "the node as a whole is neither FAILED nor UNKNOWN: part of it answers"
	case f.Stopped:
		return "the node has announced a clean stop, which disarms its hardware watchdog"
	case f.Watchdog.Boot == 0:
		return "the node has not stated a hardware watchdog"
	case !f.Watchdog.Armed:
		return "the node's hardware watchdog is not armed"
	case !f.Watchdog.SelfFences():
		return "the node's hardware watchdog is armed, but does not act without contact (hardwareWatchdog.contactWithin)"
	}
	for _, s := range e.quorum {
		if s.Node == id {
			return "supervisor " + s.ID + " runs on it, and may keep it in contact with itself"
		}
	}
	for _, at := range e.cluster.dims.Neighbours(p.Coord) {
		if _, here := e.cluster.at[at]; !here {
			return fmt.Sprintf("its neighbour at %s belongs to another region, and may be in contact with it", at)
		}
	}
	return ""
}

// contacts returns the times since which the neighbours call their links to a node FAILED, by direction from the node. who is
// the node or supervisor that may be in contact with it; empty: none.
func (e *Engine) contacts(id fault.NodeID) (since [grid.NumDirections]time.Time, who string) {
	for _, s := range e.quorum {
		if s.Unknown || !s.Alive {
			return since, "supervisor " + s.ID + ", which is silent or at an unknown place"
		}
	}
	if len(e.quorum) == 0 {
		return since, "the supervisors, whose places are not known"
	}
	for i, dir := range grid.Directions() {
		at, ok := e.cluster.dims.Neighbour(e.cluster.nodes[id].Coord, dir)
		peer := e.cluster.at[at] // notFencing requires that there is one
		if !ok || peer == id {
			continue
		}
		if s := e.world.faults[Target{Node: peer, Component: fault.ComponentNode}].State; s == fault.Failed || s == fault.Unknown {
			return since, "its neighbour " + string(peer) + ", which is silent too"
		}
		link, stands := e.world.faults[Target{Node: peer, Component: fault.Link(dir.Opposite())}]
		if !stands || link.State != fault.Failed {
			return since, "its neighbour " + string(peer) + ", which does not call its link to the node FAILED"
		}
		since[i] = link.Since
	}
	return since, ""
}

// fence looks at the fencing of a node. It starts, continues or ends the wait for it.
func (e *Engine) fence(id fault.NodeID) fenceView {
	if why := e.notFencing(id); why != "" {
		delete(e.quiets, id)
		return fenceView{never: why}
	}
	links, who := e.contacts(id)
	if who != "" {
		delete(e.quiets, id)
		return fenceView{wait: who}
	}
	t := Target{Node: id, Component: fault.ComponentNode}
	f := e.world.faults[t]
	q := e.quiets[id]
	if q == nil || q.watchdog != f.Watchdog || q.epoch != e.epochs[id] || q.links != links || f.Evidence.Life.After(q.since) {
		q = &quiet{since: e.now, watchdog: f.Watchdog, epoch: e.epochs[id], links: links}
		e.quiets[id] = q
	}
	margin := e.cfg.FenceMargin
	if len(e.quorum) > 1 {
		margin = max(margin, e.cfg.SharedMargin)
	}
	until := q.since.Add(q.watchdog.DownAfter(margin))
	switch {
	case until.After(e.now):
		return fenceView{until: until}
	case e.now.Sub(e.world.gathered[t]) > lookLife || e.world.gathered[t].Before(until):
		return fenceView{ask: true}
	}
	return fenceView{}
}

// fenceAgain is the pause between two requests for the evidence that confirms a fencing.
const fenceAgain = time.Second

// askFence requests the newest evidence on a node, and returns when to look again.
func (e *Engine) askFence(id fault.NodeID) time.Time {
	if q := e.quiets[id]; q != nil && !q.asked.Add(fenceAgain).After(e.now) {
		q.asked = e.now
		e.out.Look = append(e.out.Look, Target{Node: id, Component: fault.ComponentNode})
	}
	return e.now.Add(fenceAgain)
}

// lifeSeen ends the wait for the fencing of nodes that a change of the map contradicts. A link may fail, recover and fail again
// between two looks, so each change counts when it comes.
func (e *Engine) lifeSeen(id fault.NodeID) {
	if len(e.quiets) == 0 {
		return
	}
	e.recheckFence(id)
	if p, known := e.cluster.nodes[id]; known && !p.Spare {
		for _, at := range e.cluster.dims.Neighbours(p.Coord) {
			e.recheckFence(e.cluster.at[at])
		}
	}
}

// recheckFence looks at a node whose fencing is awaited, and at the responses that await it.
func (e *Engine) recheckFence(id fault.NodeID) {
	if e.quiets[id] == nil {
		return
	}
	e.fence(id)
	for _, r := range e.ofNode(id) {
		e.touched[r.ID] = true
	}
}

// recheckFences does the same for all nodes.
func (e *Engine) recheckFences() {
	for id := range e.quiets {
		e.recheckFence(id)
	}
}

// fencing looks at a running NodeFence step: it has no executor.
func (e *Engine) fencing(r *Response) bool {
	s := &r.Steps[r.Step]
	end := func(o Outcome, detail string) bool {
		delete(e.quietFrom, r.ID)
		e.attemptEnded(r, o, detail)
		return true
	}
	if b := e.gatePolicy(r); r.Cancelled || !r.Gone.IsZero() || b.reason != 0 && b.reason != ReasonMatchError {
		e.endFencing(r)
		return true
	}
	v := e.fence(r.Target.Node)
	limit := s.Started.Add(s.Timeout)
	switch {
	case v.never != "":
		return end(Unchanged, v.never)
	case s.Detail == fenceQuiet && v.wait != "":
		return end(Unchanged, "somebody may have regained contact: "+v.wait)
	case s.Detail == fenceQuiet && !e.quietFrom[r.ID].Equal(e.quiets[r.Target.Node].since):
		return end(Unchanged, "the node, or a neighbour's link to it, showed a sign of life")
	case v == (fenceView{}):
		q := e.quiets[r.Target.Node]
		return end(Succeeded, fmt.Sprintf("no sign of it for %s: it is down", e.now.Sub(q.since).Round(time.Second)))
	case !limit.After(e.now):
		why := "the time is too short"
		if v.wait != "" {
			why = "it may be in contact with " + v.wait
		}
		return end(Unchanged, fmt.Sprintf("not known to be down within %s: %s", s.Timeout, why))
	case v.wait != "":
		e.waitFenced(r, s, "it may be in contact with "+v.wait, fault.Earliest(e.now.Add(fenceAgain), limit))
	case v.ask:
		e.wakeFor(r, fault.Earliest(e.askFence(r.Target.Node), limit))
	case v.until.After(limit):
		return end(Unchanged, fmt.Sprintf("it is down only after %s: the step's timeout %s is too short",
			v.until.Sub(s.Started).Round(time.Second), s.Timeout))
	default:
		e.quietFrom[r.ID] = e.quiets[r.Target.Node].since
		e.waitFenced(r, s, fenceQuiet, fault.Earliest(v.until, limit))
	}
	return false
}

// endFencing ends a running NodeFence step that the response no longer needs. The step does not count as failed.
func (e *Engine) endFencing(r *Response) {
	delete(e.quietFrom, r.ID)
	e.halted[r.ID] = r.Steps[r.Step].Attempt
	e.attemptEnded(r, Unchanged, "the wait for the node's fencing ended early")
}

// fenceQuiet is the detail of a step that waits for a node without contact to reset itself.
const fenceQuiet = "nobody has contact with it; waiting until its hardware watchdog has reset it"

// waitFenced commits what a step waits for, once, and schedules the next look.
func (e *Engine) waitFenced(r *Response, s *StepRecord, detail string, at time.Time) {
	if s.Detail != detail {
		s.Detail = detail
		e.save(r)
	}
	e.wakeFor(r, at)
}

// gateFence holds back the steps after a NodeFence step while the node may run again: it showed life after that step, or a new
// leader has not waited yet. For a policy that only observes it also stands for the NodeFence step.
func (e *Engine) gateFence(r *Response, s *StepRecord) block {
	if r.Target.Group != "" || !rests(r, s) {
		return block{}
	}
	v := e.fence(r.Target.Node)
	switch {
	case v.never != "":
		e.wakeFor(r, e.now.Add(fenceAgain)) // nothing else touches the response when that changes
		return block{reason: ReasonNotFenced, detail: v.never}
	case v.wait != "":
		e.wakeFor(r, e.now.Add(fenceAgain))
		return block{reason: ReasonNotFenced, detail: "it may be in contact with " + v.wait}
	case v.ask:
		return block{reason: ReasonNotFenced, until: e.askFence(r.Target.Node), quiet: true}
	case !v.until.IsZero():
		return block{reason: ReasonNotFenced, until: v.until}
	}
	return block{}
}

// rests reports whether a step rests on the node's fencing: the engine itself waits in one before it. That one may have failed.
func rests(r *Response, s *StepRecord) bool {
	for i := range r.Steps {
		switch before := &r.Steps[i]; {
		case before == s:
			return false
		case before.Kind.Traits().Waits:
			return true
		}
	}
	return false
}
