package response

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// propose begins a response.
func (e *Engine) propose(p *Policy, t Target, s *Subject) {
	r := &Response{
		ID: e.newID(), Policy: p.Name, Digest: p.Digest, Mode: p.Mode, Target: t, State: Proposed, Guards: p.Guards, Undo: p.Undo,
		Proposed: e.now,
	}
	r.FaultState, r.FaultCause, r.FaultSince = s.Fault.State, s.Fault.Cause, s.Fault.Since
	if s.Group != nil {
		r.FaultState, r.FaultCause, r.FaultSince = s.Group.State, s.Group.Cause, s.Group.Since
	}
	for _, step := range p.Steps {
		r.Steps = append(r.Steps, StepRecord{Step: step, State: Pending})
	}
	r.Guards.Approvals = e.approvals(r) // the record shows readers how many it needs
	e.enter(r)
	e.join(r, e.standing[e.standingOf(t)])
	e.save(r)
	e.sayOf(r, Proposes, 0, fmt.Sprintf("%s %s", r.FaultState, r.FaultCause))
	e.touched[r.ID] = true
}

// enter adds a response to the open ones.
func (e *Engine) enter(r *Response) {
	e.ordinal++
	e.open[r.ID], e.order[r.ID] = r, e.ordinal
	if r.Mode == ObserveOnly {
		e.counts[observing]++
	}
	e.of[r.Target] = append(e.of[r.Target], r)
}

// advance does everything that is possible with a response now.
func (e *Engine) advance(r *Response) {
	for r.Closed.IsZero() && e.once(r) {
	}
}

// once makes one move with a response, and reports whether another may be possible.
func (e *Engine) once(r *Response) bool {
	e.follow(r)
	switch {
	case r.Mode == ObserveOnly:
		return e.observe(r)
	case r.State == Running && !r.Undoing && r.Steps[r.Step].Kind.Traits().Waits:
		return e.fencing(r)
	case r.State == Running:
		e.halt(r)
		return e.overdue(r)
	case !r.Cancelled && e.unsettled(r) && !e.moot(r):
		return e.settleBySight(r)
	case r.State != Undone && r.Undoing, e.wantsUndo(r):
		return e.undo(r)
	case !r.Gone.IsZero():
		return e.gone(r)
	case r.rests():
		e.renotify(r)
		e.closeOutlived(r)
		return false
	default:
		return e.tryStep(r)
	}
}

// follow records whether the fault stands. When it ends, a running attempt has to stop, because the node is
// needed.
func (e *Engine) follow(r *Response) {
	_, stands := e.subject(r.Target)
	switch {
	case stands && !r.Gone.IsZero():
		r.Gone = time.Time{}
		e.save(r)
	case !stands && r.Gone.IsZero():
		r.Gone = e.now
		e.save(r)
		e.lapsed(r)
		if r.State == Running && !r.Undoing {
			e.halted[r.ID] = r.Steps[r.Step].Attempt // no failure: the fault may return before the attempt has ended
			e.stop(r)
		}
	}
}

func (e *Engine) stop(r *Response) {
	if r.Steps[r.Step].Kind.Traits().Waits {
		return // no executor has it
	}
	e.out.Stops = append(e.out.Stops, r.newest())
}

// halt asks a running attempt to end, once, if a gate has closed since: its policy was changed or withdrawn, the
// breaker has opened, or the node is in maintenance, opted out or gone. The step does not count as failed.
func (e *Engine) halt(r *Response) {
	s := &r.Steps[r.Step]
	if r.Undoing || r.Cancelled || e.halted[r.ID] == s.Attempt {
		return
	}
	b := e.gatePolicy(r)
	if b.reason == 0 {
		b = e.gateBreaker(r, s)
	}
	if b.reason == 0 {
		b = e.gateNode(r, s)
	}
	if b.reason == 0 || b.reason == ReasonMatchError {
		return
	}
	e.halted[r.ID] = s.Attempt
	e.stop(r)
	e.sayOf(r, Refuses, b.reason, "running attempts get the request to end")
}

// observe passes the gates of all steps, and audits the steps that would have run.
func (e *Engine) observe(r *Response) bool {
	switch {
	case !r.Gone.IsZero():
		e.becomeExpired(r, ReasonFaultGone, "")
		e.becomeClosed(r)
		return false
	case r.rests():
		if e.gatePolicy(r).reason == ReasonPolicyChanged {
			e.becomeExpired(r, ReasonPolicyChanged, "")
			e.becomeClosed(r)
		}
		return false
	}
	var steps []string
	for i := range r.Steps {
		if b := e.gate(r, &r.Steps[i]); b.reason != 0 {
			return e.blocked(r, b)
		}
		steps = append(steps, string(r.Steps[i].Kind))
	}
	e.sayOf(r, Observes, ReasonObserveOnly, strings.Join(steps, ", "))
	r.State, r.Reason, r.Detail = Waiting, ReasonObserveOnly, ""
	e.save(r)
	return false
}

// tryStep begins the next step, or the next attempt at it, if every gate is open.
func (e *Engine) tryStep(r *Response) bool {
	if r.Step == len(r.Steps) {
		e.becomeDone(r)
		return true
	}
	s := &r.Steps[r.Step]
	if b := e.patience(r, s); b.reason != 0 {
		return e.blocked(r, b)
	}
	if b := e.gate(r, s); b.reason != 0 {
		return e.blocked(r, b)
	}
	if incident, covered := e.covered(r, s); covered {
		e.becomeCovered(r, s, incident)
		return true
	}
	e.becomeRunning(r)
	return s.Kind.Traits().Waits
}

// blocked reacts to a closed gate.
func (e *Engine) blocked(r *Response, b block) bool {
	if b.quiet {
		e.wakeFor(r, b.until)
		return false
	}
	switch b.reason {
	case ReasonNotApproved:
		e.becomeExpired(r, b.reason, b.detail)
		return false
	case ReasonPolicyChanged, ReasonUnmatched:
		if !r.begun() {
			e.becomeExpired(r, b.reason, b.detail)
			e.becomeClosed(r) // the fault may match another policy, or the new version of this one
			return false
		}
		if b.reason == ReasonPolicyChanged {
			e.becomeFailed(r, b.reason, "its begun steps do not continue")
			return false
		}
	default:
	}
	e.becomeWaiting(r, b)
	return false
}

// becomeWaiting makes a response wait. It audits and commits each reason once, and commits it again only if the known end
// of the wait moves, or, for ReasonOutcome and ReasonNotFenced, if the detail changes. That detail names the party that can end the wait.
func (e *Engine) becomeWaiting(r *Response, b block) {
	if !b.until.IsZero() {
		e.wakeFor(r, b.until)
	}
	if r.State == Waiting && r.Reason == b.reason {
		if text := b.text(); (b.timed() || b.reason == ReasonOutcome || b.reason == ReasonNotFenced) && r.Detail != text {
			r.Detail = text
			e.save(r)
		}
		return
	}
	r.State, r.Reason, r.Detail = Waiting, b.reason, b.text()
	if b.reason != ReasonApproval && b.reason != ReasonGrace {
		r.Asked = time.Time{} // another wait: the time for approvals starts again
	}
	e.save(r)
	e.sayOf(r, Refuses, b.reason, b.detail)
}

// becomeRunning commits and starts an attempt at the current step. A repetition first checks whether the step has
// happened.
func (e *Engine) becomeRunning(r *Response) {
	s := &r.Steps[r.Step]
	if s.First.IsZero() {
		s.First = e.now
		e.began(s)
	}
	s.Again = s.Changed
	s.State, s.Changed, s.Epoch = Acting, true, e.epochs[r.Target.Node]
	e.attempt(r, r.Step, s.Again && !s.onceOnly())
	e.sayOf(r, Starts, 0, s.Detail)
}

// attempt commits and starts an attempt at a step, or at undoing it.
func (e *Engine) attempt(r *Response, i int, recheck bool) {
	s := &r.Steps[i]
	s.Attempt++
	s.Started, s.Ended, s.Detail, s.Reported, s.Up = e.now, time.Time{}, "", false, e.up(r.Target.Node)
	r.State, r.Reason, r.Detail = Running, 0, ""
	e.save(r)
	if s.Kind.Traits().Waits {
		return
	}
	e.out.Effects = append(e.out.Effects, e.effect(r, i, recheck))
	e.wakeFor(r, e.deadline(s))
}

// effect describes the newest attempt at a step, or at undoing it.
func (e *Engine) effect(r *Response, i int, recheck bool) Effect {
	s := &r.Steps[i]
	key := fmt.Sprintf("%s/%d", r.ID, i)
	if r.Undoing {
		key += "/undo"
	}
	members := e.world.groups[r.Target.Group].Members
	if s.Kind.Traits().Object { // the object of a node that chose its name may be another machine's
		members = slices.DeleteFunc(slices.Clone(members), func(id fault.NodeID) bool { return !e.cluster.managed(id) })
	}
	return Effect{
		Attempt: Attempt{r.ID, i, s.Attempt}, Undo: r.Undoing, Kind: s.Kind, Parameters: s.Parameters, Target: r.Target,
		Members: members, Incident: e.joined[r.ID], Notice: e.noticeOf(r),
		Token: e.token, IdempotencyKey: key, Recheck: recheck, Timeout: s.Timeout,
		Began: s.Started,
	}
}

// deadline returns when the outcome of the running attempt counts as unknown.
func (e *Engine) deadline(s *StepRecord) time.Time {
	return s.Started.Add(s.Timeout + e.cfg.ResultTime)
}

// overdue ends the wait for a result at its deadline.
func (e *Engine) overdue(r *Response) bool {
	s := &r.Steps[r.Step]
	if at := e.deadline(s); at.After(e.now) {
		e.wakeFor(r, at)
		return false
	}
	e.stop(r)
	e.attemptEnded(r, NotKnown, fmt.Sprintf("no result within %s", s.Timeout+e.cfg.ResultTime))
	return true
}

// result processes an executor's result and ignores those of other attempts.
func (e *Engine) result(ev Result) {
	r := e.open[ev.Response]
	if !e.leads || e.broken || r == nil || r.Step >= len(r.Steps) || ev.Attempt != r.newest() {
		return
	}
	// For a step that cannot be repeated, the result may still arrive after its deadline. A response at rest, e.g. after a cancel,
	// ignores it.
	switch {
	case r.State == Running || e.unsettled(r) && !r.rests():
		e.attemptEnded(r, ev.Outcome, ev.Detail)
		e.touched[r.ID] = true
	case r.State == Expired && r.Step < len(r.Steps) && r.Steps[r.Step].State == Acting: // denied during the attempt: no step follows
		reason, detail := r.Reason, r.Detail
		e.halted[r.ID] = r.Steps[r.Step].Attempt // so that the response does not fail
		e.attemptEnded(r, ev.Outcome, ev.Detail)
		r.State, r.Reason, r.Detail = Expired, reason, detail
		e.save(r)
	}
}

// attemptEnded ends one attempt.
func (e *Engine) attemptEnded(r *Response, o Outcome, detail string) {
	s := &r.Steps[r.Step]
	halted, queried := e.halted[r.ID] == s.Attempt, e.queried[r.newest()]
	delete(e.halted, r.ID)
	delete(e.queried, r.newest())
	if queried && o == NotKnown { // a person has to say; the next leader may ask again
		s.Detail, r.Reason, r.Detail = detail, 0, ""
		e.save(r)
		return
	}
	s.Ended, s.Detail = e.now, detail
	r.State, r.Reason, r.Detail = Waiting, 0, ""
	switch {
	case s.State == Undoing:
		e.undoEnded(r, o, detail)
	case o == Succeeded && s.Kind.Traits().BootSettles:
		s.State, s.Reported = Interrupted, true
		e.save(r)
	case o == Succeeded:
		e.becomeActed(r, detail)
	default:
		act := Fails
		s.State = Interrupted
		if o == Unchanged && (!s.Again || s.onceOnly()) {
			s.State, s.Changed = Pending, s.Again
			if queried {
				act = Settles
			}
		}
		e.sayOf(r, act, 0, detail)
		if o == Partly && s.onceOnly() { // also after an interruption: the step is not repeated when its gates open again
			s.Failures++
			e.stepFailed(r)
			return
		}
		// If a gate or a change of leader interrupted the attempt, this is neither a failure nor a reason to pause. The same applies
		// if the target refused the attempt, so each change of leader may add one attempt to the policy's retries.
		if halted || queried {
			e.save(r)
			return
		}
		e.failed(r, o)
	}
}

// becomeActed ends a successful step.
func (e *Engine) becomeActed(r *Response, detail string) {
	s := &r.Steps[r.Step]
	s.State = Acted
	delete(e.lapses, r.lapseKey(s))
	e.sayOf(r, Ends, 0, detail)
	r.Step++
	e.save(r)
}

// failed counts a failed attempt. An attempt that cannot be repeated may still have succeeded, so it does not count
// yet.
func (e *Engine) failed(r *Response, o Outcome) {
	s := &r.Steps[r.Step]
	if o != Unchanged && !s.Kind.Traits().Repeatable {
		e.save(r)
		return
	}
	s.Failures++
	if s.Failures <= s.Retries {
		e.save(r)
		return
	}
	e.stepFailed(r)
}

// stepFailed gives up a step.
func (e *Engine) stepFailed(r *Response) {
	s := &r.Steps[r.Step]
	s.State = StepFailed
	if s.OnFailure == Next && r.Step+1 < len(r.Steps) {
		r.Step++
		e.save(r)
		return
	}
	e.becomeFailed(r, ReasonStepFailed, s.named(s.Detail))
}

// unsettled reports whether the outcome of the current step is unknown and cannot be checked.
func (e *Engine) unsettled(r *Response) bool {
	return !r.Undoing && r.Step < len(r.Steps) && r.Steps[r.Step].State == Interrupted && !r.Steps[r.Step].Kind.Traits().Repeatable
}

// moot reports whether the wait for a step that only its executor reports is pointless: no attempt is running, and the
// fault has been gone for long enough to undo earlier steps. A healthy node is not held for an unnecessary reset.
func (e *Engine) moot(r *Response) bool {
	return r.Steps[r.Step].Reported && !r.Gone.IsZero() && !e.now.Before(r.Gone.Add(r.Undo.After))
}

// settleBySight settles a step with unknown outcome, or one that only its executor reports, if the node's host half has
// restarted since or the node was seen to go down. Otherwise the response waits for that, for the executor's record of a
// former leader's attempt, or for a person. A step that only its executor reports counts as failed after its time, because
// an escalation may be the only help. A new leader starts that time again, and may not have the observation yet during its grace.
func (e *Engine) settleBySight(r *Response) bool {
	s := &r.Steps[r.Step]
	if how, seen := e.sight(r, s); how != "" {
		s.Ended, s.Reported = e.now, false
		r.State, r.Reason, r.Detail = Waiting, 0, ""
		e.sayOf(r, Settles, 0, how)
		e.becomeActed(r, seen)
		return true
	}
	if s.Reported {
		at := fault.Later(e.sinceLed(s.Ended).Add(s.sightTime()), e.graceEnds())
		if !at.After(e.now) {
			e.becomeUnseen(r)
			return true
		}
		if !r.Gone.IsZero() {
			e.wakeFor(r, r.Gone.Add(r.Undo.After))
		}
		e.becomeWaiting(r, block{reason: ReasonUnseen,
			detail: "done, says its executor; a restart of its host half settles it, or witnesses who see the node go down", until: at})
		return false
	}
	b := block{reason: ReasonOutcome, detail: "a person has to say whether it has happened"}
	if e.queried[r.newest()] {
		b.detail = "waiting for the executor to report whether the step has happened"
	}
	e.becomeWaiting(r, b)
	return false
}

// becomeUnseen gives up a step that only its executor reports as done. It may have happened, so it is not repeated
// without a person's request, regardless of its retries, and the node counts as changed.
func (e *Engine) becomeUnseen(r *Response) {
	s := &r.Steps[r.Step]
	s.Detail = fmt.Sprintf("done, says its executor, and not seen within %s", s.sightTime())
	r.State, r.Reason, r.Detail = Waiting, 0, ""
	e.sayOf(r, Fails, ReasonUnseen, s.Detail)
	e.stepFailed(r)
}

// up reports whether a node as a whole is neither FAILED nor UNKNOWN.
func (e *Engine) up(id fault.NodeID) bool {
	s := e.world.faults[Target{Node: id, Component: fault.ComponentNode}].State
	return s != fault.Failed && s != fault.Unknown
}

// sight returns the observation that settles a step: the node's host half has a newer boot epoch than at the attempt,
// or the node went down. Going down means that it was up at the attempt and is FAILED as a whole since, by more than
// one witness: its neighbours see its links fall. That proves nothing unless the executor reported the attempt, because
// sick nodes also go down by themselves. The epoch does not prove that the machine itself restarted: a host half
// without stored state begins in a new epoch too.
func (e *Engine) sight(r *Response, s *StepRecord) (how, seen string) {
	if !s.Kind.Traits().BootSettles {
		return "", ""
	}
	if epoch := e.epochs[r.Target.Node]; s.Epoch > 0 && epoch > s.Epoch {
		return fmt.Sprintf("boot epoch %d after %d", epoch, s.Epoch), "its host half has restarted"
	}
	f := e.world.faults[Target{Node: r.Target.Node, Component: fault.ComponentNode}]
	if s.Reported && s.Up && f.State == fault.Failed && !f.Evidence.SingleWitness && f.Since.After(s.Started) {
		return "the node is FAILED since " + f.Since.UTC().Format(time.RFC3339), "the node was seen to go down"
	}
	return "", ""
}

// becomeDone ends the response's last step.
func (e *Engine) becomeDone(r *Response) {
	r.State, r.Reason, r.Detail = Done, 0, ""
	e.save(r)
	e.say(Decision{Act: Ends, Response: r.ID, Policy: r.Policy, Target: r.Target, Detail: "all steps"})
}

// becomeFailed leaves a response to a person, or to the end of the fault.
func (e *Engine) becomeFailed(r *Response, reason Reason, detail string) {
	r.State, r.Reason, r.Detail = Failed, reason, detail
	e.save(r)
	e.sayOf(r, Fails, reason, detail)
}

// becomeExpired ends a response without any action. It stays open while the fault stands, so that it is not proposed
// again.
func (e *Engine) becomeExpired(r *Response, reason Reason, detail string) {
	r.State, r.Reason, r.Detail = Expired, reason, detail
	e.save(r)
	e.sayOf(r, Expires, reason, detail)
}

// becomeClosed ends a response. If its fault stands, another may begin.
func (e *Engine) becomeClosed(r *Response) {
	r.Closed = e.now
	defer delete(e.joined, r.ID)
	delete(e.open, r.ID)
	delete(e.order, r.ID)
	delete(e.look, r.ID)
	if r.Mode == ObserveOnly {
		e.counts[observing]--
	}
	e.of[r.Target] = slices.DeleteFunc(slices.Clone(e.of[r.Target]), func(o *Response) bool { return o == r })
	if len(e.of[r.Target]) == 0 {
		delete(e.of, r.Target)
	}
	e.bury(r)
	e.save(r)
	e.say(Decision{Act: Closes, Response: r.ID, Policy: r.Policy, Target: r.Target, Detail: r.State.String()})
	if e.leads {
		e.dirty[r.Target] = true
	}
}

// bury records how a closed response limits later ones. A closing time in the future comes from a former leader whose clock was ahead. It
// counts as now, because otherwise the cooldown would last longer by that difference.
func (e *Engine) bury(r *Response) {
	closed := fault.Earlier(r.Closed, e.now)
	e.ended[r.ID] = end{keep: closed.Add(max(e.cfg.Keep, r.Guards.Cooldown)), acted: r.acted()}
	if !r.begun() || r.Target.Node == "" {
		return
	}
	keys := []restKey{{r.Target.Node, r.Policy}}
	if r.acted() {
		keys = append(keys, restKey{r.Target.Node, ""})
	}
	for _, k := range keys {
		e.rest[k] = fault.Later(e.rest[k], closed)
	}
}

// gone handles a response whose fault is gone and which has nothing to undo now.
func (e *Engine) gone(r *Response) bool {
	switch {
	case r.Undo.OnRecovery && r.toUndo() >= 0 && r.State != Undone:
		at := r.Gone.Add(r.Undo.After)
		if r.rests() {
			e.wakeFor(r, at)
		} else {
			e.becomeWaiting(r, block{reason: ReasonRecoveryWait, detail: fmt.Sprintf("the fault has to be gone for %s", r.Undo.After), until: at})
		}
		return false
	case !r.begun() && !r.rests():
		e.becomeExpired(r, ReasonFaultGone, "")
	case !r.rests():
		r.State, r.Reason, r.Detail = Done, 0, "the fault is gone"
	}
	e.becomeClosed(r)
	return false
}
