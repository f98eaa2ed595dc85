package response

import "fmt"

// wantsUndo says whether what was done is to be put back now: the fault has been gone for long enough, or a person has
// cancelled.
func (e *Engine) wantsUndo(r *Response) bool {
	switch {
	case r.State == Undone:
		return false
	case r.Cancelled && r.State != Expired: // it is to be ended, though there may be nothing to put back
		return true
	default:
		return r.Undo.OnRecovery && r.toUndo() >= 0 && !r.Gone.IsZero() && !e.now.Before(r.Gone.Add(r.Undo.After))
	}
}

// undo puts back what was done, the latest first, one step after the other. Only what was changed, or may have been,
// is put back.
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
		e.becomeWaiting(r, b)
		return false
	}
	if !r.Undoing {
		for k := range r.Steps {
			r.Steps[k].Failures = 0
		}
	}
	again := s.State != Acted // it may not have happened, or may be put back already
	r.Undoing, r.Step, s.State = true, i, Undoing
	e.attempt(r, i, again)
	e.sayOf(r, StartsUndo, 0, "")
	return false
}

// undoGate is what keeps a step from being put back. A person's word is above the breaker and maintenance.
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

// undoEnded is the end of an attempt at putting a step back. All kinds that can be put back can be looked at.
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

// becomeUndone is the end of a response of which everything was put back that could be. One that a person has
// cancelled stays open while its fault stands, so that it is not proposed again.
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
