package response

import "fmt"

// wantsUndo reports whether to undo the response now: the fault has been gone for long enough, or a person has
// cancelled.
func (e *Engine) wantsUndo(r *Response) bool {
	switch {
	case r.State == Undone:
		return false
	case r.Cancelled && r.State != Expired: // it must end, though there may be nothing to undo
		return true
	default:
		return r.Undo.OnRecovery && r.toUndo() >= 0 && !r.Gone.IsZero() && !e.now.Before(r.Gone.Add(r.Undo.After)) && !e.incidentOpen(r)
	}
}

// undo undoes the steps, the latest first, one after the other. It undoes only steps that changed something, or may
// have.
func (e *Engine) undo(r *Response) bool {
	if r.undoFailed() {
		return false // it waits for a person
	}
	i := r.toUndo()
	if i < 0 {
		e.becomeUndone(r)
		return false
	}
	s := &r.Steps[i]
	if b := e.undoGate(r, s); b.reason != 0 {
		if !r.Undoing && !r.Cancelled && (r.State == Failed || r.State == Expired) {
			e.wakeFor(r, b.until) // not becomeWaiting: its steps must not continue if the fault returns first
			return false
		}
		e.becomeWaiting(r, b)
		return false
	}
	if !r.Undoing {
		for k := range r.Steps {
			r.Steps[k].Failures = 0
		}
	}
	again := s.State != Acted // it may not have happened, or may already be undone
	r.Undoing, r.Step, s.State = true, i, Undoing
	e.attempt(r, i, again)
	e.sayOf(r, StartsUndo, 0, "")
	return false
}

// undoGate returns the reason why a step cannot be undone now. A person's request overrides the breaker and
// maintenance.
func (e *Engine) undoGate(r *Response, s *StepRecord) block {
	switch {
	case e.inGrace():
		return block{reason: ReasonGrace, until: e.graceEnds()}
	case r.Cancelled:
	case e.breaker.Open && s.Kind.Traits().Class > Notify:
		return block{reason: ReasonBreaker, detail: e.breaker.Detail}
	case e.marked[r.Target.Node] && s.Kind.Traits().Class > Notify:
		return block{reason: ReasonMaintenance}
	}
	if r.Undoing && s.Failures > 0 {
		if at := s.Ended.Add(e.cfg.retryAfter(s.Failures)); at.After(e.now) {
			return block{reason: ReasonRetryWait, detail: fmt.Sprintf("after %d failed attempts to put it back", s.Failures), until: at}
		}
	}
	return block{}
}

// undoEnded ends an attempt at undoing a step. All undoable kinds are repeatable.
func (e *Engine) undoEnded(r *Response, o Outcome, detail string) {
	s := &r.Steps[r.Step]
	if o == Succeeded {
		s.State, s.Changed = PutBack, false
		e.sayOf(r, EndsUndo, 0, detail)
		e.save(r)
		return
	}
	s.Failures++
	e.sayOf(r, Fails, 0, detail)
	if s.Failures <= s.Retries {
		e.save(r)
		return
	}
	e.becomeFailed(r, ReasonUndoFailed, s.named(detail))
}

// becomeUndone ends a response after all undoable steps were undone. A response that a person has cancelled stays open
// while its fault stands, so that it is not proposed again.
func (e *Engine) becomeUndone(r *Response) {
	if !r.begun() {
		e.becomeExpired(r, ReasonCancelled, r.Detail)
	} else {
		r.State, r.Reason, r.Detail = Undone, 0, ""
		e.save(r)
		e.say(Decision{Act: EndsUndo, Response: r.ID, Policy: r.Policy, Target: r.Target, Detail: "all that was done"})
	}
	if !r.Cancelled || !r.Gone.IsZero() {
		e.becomeClosed(r)
	}
}
