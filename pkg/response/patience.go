package response

import (
	"fmt"
	"maps"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// lapse counts how often a fault ended before a policy's step had succeeded, although an attempt had failed or was running. When the fault
// returns, the pauses between attempts continue from this count. So while a fault flaps and its step keeps failing, a new series of
// attempts begins about once in Config.RetryMost. A new leader starts without lapses.
type lapse struct {
	n    int
	last Attempt   // each attempt counts once
	at   time.Time // when last ended, or the fault during it
}

// lapseKey is a step of a policy, for one fault. It outlives the response.
type lapseKey struct {
	policy, digest string
	target         Target
	step           string
}

func (r *Response) lapseKey(s *StepRecord) lapseKey {
	return lapseKey{r.Policy, r.Digest, r.Target, s.Name}
}

// lapsed counts the end of the response's fault for each step that has a failed or a running attempt. A running attempt may still succeed;
// becomeActed then removes the step's lapse.
func (e *Engine) lapsed(r *Response) {
	if r.Undoing {
		return
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		running := s.State == Acting
		if s.Kind.Traits().Waits || s.State == Acted || !running && s.Failures == 0 {
			continue
		}
		k, last := r.lapseKey(s), Attempt{r.ID, i, s.Attempt}
		l := e.lapses[k]
		if l.last == last {
			continue
		}
		at := s.Ended
		if running {
			at = e.now
		}
		e.lapses[k] = lapse{l.n + 1, last, at}
	}
}

// pruneLapses forgets the lapses that delay nothing any more.
func (e *Engine) pruneLapses() {
	maps.DeleteFunc(e.lapses, func(_ lapseKey, l lapse) bool { return e.now.Sub(l.at) > e.cfg.RetryMost })
}

// patience returns the response's own wait: for the previous step to help, or for the pause after unsuccessful attempts. The first end of
// the fault adds no pause of its own.
func (e *Engine) patience(r *Response, s *StepRecord) block {
	if r.Step > 0 && s.Attempt == 0 {
		if before := &r.Steps[r.Step-1]; before.State == Acted {
			if at := e.sinceLed(before.Ended).Add(before.Wait); at.After(e.now) {
				return block{reason: ReasonEscalationWait, detail: fmt.Sprintf("%s is given %s to help", before.Name, before.Wait), until: at}
			}
		}
	}
	l := e.lapses[r.lapseKey(s)]
	n := s.Failures + max(0, l.n-1)
	if n == 0 {
		return block{}
	}
	if at := fault.Later(s.Ended, l.at).Add(e.cfg.retryAfter(n)); at.After(e.now) {
		detail := fmt.Sprintf("after %d failed of at most %d attempts", s.Failures, s.Retries+1)
		if s.Failures == 0 {
			detail = fmt.Sprintf("the fault has ended %d times before the step succeeded", l.n)
		}
		return block{reason: ReasonRetryWait, detail: detail, until: at}
	}
	return block{}
}
