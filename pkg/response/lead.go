package response

import (
	"fmt"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// becomeLeader begins a term with the committed state. Running attempts are interrupted: they may have happened or not,
// and may even be running still, under the previous leader's token.
func (e *Engine) becomeLeader(ev Led) {
	e.forget()
	e.leads, e.token, e.salt, e.led = true, ev.Token, ev.Salt, e.now
	l, err := sortRecords(ev.Records)
	if err == nil {
		err = l.checkToken(ev.Token)
	}
	if err != nil {
		e.broken = true
		e.out.Err = fmt.Errorf("responses of token %d: %w", ev.Token, err)
		return
	}
	e.breaker = l.breaker
	e.restoreWorld(ev)
	slices.SortStableFunc(l.responses, func(a, b *Response) int { return a.Proposed.Compare(b.Proposed) })
	for _, r := range l.responses {
		e.restore(r)
	}
	e.restoreIncidents(l.incidents)
	for i := range e.starts {
		slices.SortFunc(e.starts[i], time.Time.Compare)
	}
	e.recount()
	e.restoreTurns(ev.Faults)
	e.queryInterrupted(l.responses)
	e.retryNotifications()
	e.lookAtAll()
}

// queryTime is the maximum age of an attempt that a leader asks about. Executors keep attempts for 48 hours; after that, a forgotten
// attempt looks like one that never arrived.
const queryTime = 12 * time.Hour

// queryInterrupted asks the executors about the attempts that former leaders left with an unknown outcome. An executor with a
// record of its attempts may know the outcome, so that no person has to investigate.
func (e *Engine) queryInterrupted(responses []*Response) {
	for _, r := range responses {
		if !r.Closed.IsZero() || r.rests() || r.Cancelled || !e.unsettled(r) {
			continue
		}
		s := &r.Steps[r.Step]
		if !s.Ended.IsZero() || e.now.Sub(s.Started) > queryTime {
			continue
		}
		f := e.effect(r, r.Step, false)
		e.queried[f.Attempt] = true
		e.out.Unsettled = append(e.out.Unsettled, f)
	}
}

// checkToken refuses records of a later leader: this one is no longer the newest.
func (l loaded) checkToken(token uint64) error {
	newest := l.breaker.Token
	for _, r := range l.responses {
		newest = max(newest, r.Token)
	}
	if newest > token {
		return fmt.Errorf("a record has the token %d: want one that is no lower than any of them", newest)
	}
	return nil
}

// restoreWorld replaces the followed map by the committed one. It keeps the recurrences, and the beginnings of unchanged states.
func (e *Engine) restoreWorld(ev Led) {
	old := e.world
	e.world = newWorld()
	e.world.begun, e.world.from = old.begun, old.from
	for _, f := range ev.Faults {
		if !bad(f.State) {
			continue
		}
		t := f.Target()
		e.world.faults[t], e.world.since[t] = f, e.beganAt(f.Since, true)
		if was := old.faults[t]; was.State == f.State && was.Since.Equal(f.Since) {
			e.world.since[t] = old.since[t]
		}
		e.world.remember(t, e.world.since[t], e.cfg.RecurrenceWindow)
	}
	for _, g := range ev.Groups {
		if was := old.groups[g.ID]; was.State == g.State && was.Since.Equal(g.Since) {
			t := Target{Group: g.ID}
			e.world.groups[g.ID], e.world.since[t] = was, old.since[t]
		}
		e.groupChanged(GroupChanged{Group: g, Stood: true})
	}
	for _, b := range ev.Epochs {
		e.booted(b)
	}
}

// restore adds a committed response.
func (e *Engine) restore(r *Response) {
	for i := range r.Steps {
		if s := &r.Steps[i]; !s.First.IsZero() && e.now.Sub(s.First) < e.cfg.RateWindow {
			e.began(s)
		}
	}
	if !r.Closed.IsZero() {
		e.bury(r)
		return
	}
	r.limitTimes(e.now)
	if r.Step < len(r.Steps) && r.Steps[r.Step].State == Acting { // also of a response that was denied during the attempt
		r.Steps[r.Step].State = Interrupted
	}
	if r.State == Running {
		r.State, r.Reason = Waiting, 0
	}
	e.enter(r)
	e.sort(r)
	e.wakeFor(r, e.graceEnds())
}

// limitTimes makes times in the future count as now. They come from a former leader whose clock was ahead, and waits that begin with
// them would last longer by that difference.
func (r *Response) limitTimes(now time.Time) {
	r.Asked, r.Gone = fault.Earlier(r.Asked, now), fault.Earlier(r.Gone, now)
	for i := range r.Steps {
		s := &r.Steps[i]
		s.Started, s.Ended = fault.Earlier(s.Started, now), fault.Earlier(s.Ended, now)
	}
}

// sinceLed returns when a wait for an approval, for a reset to be seen or for a step to help begins: a new leader starts it again,
// because the time may come from another clock.
func (e *Engine) sinceLed(at time.Time) time.Time { return fault.Later(at, e.led) }

// restoreTurns adds the nodes that went bad before this replica followed the map to the nodes that it saw go bad.
// UNKNOWN nodes may never have been known, and SICK ones may just have started: a cold start of a whole cluster is no storm. Nodes from
// before a person closed the breaker no longer count. A closing time in the future by this clock is ignored, and all nodes count. A node
// that went bad in the future counts as of now.
func (e *Engine) restoreTurns(faults []Fault) {
	since := e.now.Add(-e.cfg.BreakerWindow)
	if closed := e.breaker.At; !e.breaker.Open && !closed.After(e.now) {
		since = fault.Later(since, closed)
	}
	e.turned.drop(since)
	for _, f := range faults {
		switch {
		case f.Component != fault.ComponentNode || e.turned.heard[f.Node] || e.fresh(f.Node):
		case f.unheard() || e.startsSick(f):
			e.exempt(f)
		case f.Since.After(since):
			e.turned.add(e.blamed(f), fault.Earlier(f.Since, e.now))
		}
	}
	e.turned.sort()
	e.judge()
}

// unheard reports whether the fault is the mere lack of reports: UNKNOWN, but neither inferred dead nor unreachable.
func (f Fault) unheard() bool { return f.State == fault.Unknown && !f.Inferred && !f.Unreachable }

// settling is the longest start of a node or of a whole cluster: halves test themselves, and go on where they were.
const settling = 30 * time.Second

// starting reports whether a node that is bad has not started yet or has just started, as after a power cut. In the first BreakerWindow of
// this replica, that can be so of two kinds of nodes: a SICK one, while the start of the node or of this replica may last; and one that
// this replica has not seen start, if nothing has been heard from it.
func (e *Engine) starting(f Fault, stood bool) bool {
	end, up := e.turned.up[f.Node]
	switch {
	case f.State == fault.Sick && stood:
		return e.startsSick(f)
	case f.State == fault.Sick:
		return e.young() && e.now.Before(fault.Later(end, e.born.Add(settling)))
	}
	return f.unheard() && stood || e.young() && !up && (f.unheard() || f.NoLife)
}

// startsSick reports whether a fault that stood when this replica first looked may be the start of a node: SICK since a short time.
func (e *Engine) startsSick(f Fault) bool {
	age := e.now.Sub(f.Since)
	return f.State == fault.Sick && age >= 0 && age < settling && e.young()
}

// young reports whether this replica is in its first BreakerWindow.
func (e *Engine) young() bool { return e.now.Sub(e.born) < e.cfg.BreakerWindow }

// exempt records that a node has not started yet or, if it is SICK, has just started.
func (e *Engine) exempt(f Fault) {
	e.turned.fresh[f.Node] = time.Time{}
	if f.State == fault.Sick {
		e.turned.fresh[f.Node] = e.now.Add(e.cfg.BreakerWindow)
	}
}

// fresh reports whether a node starts: it does not count.
func (e *Engine) fresh(n fault.NodeID) bool {
	until, is := e.turned.fresh[n]
	return is && (until.IsZero() || e.now.Before(until))
}

// turn counts a node that goes bad: from NORMAL, from UNKNOWN to worse, or from SICK to FAILED. If the node was bad
// before this replica followed the map, only a leader counts it, by the time when its state began. A starting node does
// not count before its first NORMAL.
func (e *Engine) turn(f Fault, was fault.State, stood bool) {
	worse := f.State == fault.Failed && was != fault.Failed || f.State == fault.Sick && was != fault.Sick && was != fault.Failed ||
		f.State == fault.Unknown && was == fault.Normal && !f.Stopped
	switch {
	case f.State == fault.Normal:
		delete(e.turned.heard, f.Node)
		delete(e.turned.fresh, f.Node)
		e.turned.up[f.Node] = fault.Later(e.turned.up[f.Node], e.now)
	case e.starting(f, stood), f.State == fault.Sick && was != fault.Sick && e.fresh(f.Node):
		e.exempt(f)
	case e.fresh(f.Node), !e.cluster.managed(f.Node):
	case worse && (!stood || e.leads):
		e.turned.heard[f.Node] = true
		e.turned.add(e.blamed(f), e.now)
	}
	e.turned.drop(e.now.Add(-e.cfg.BreakerWindow))
	if e.leads && !e.broken {
		e.judge()
	}
}

// blamed returns the node that the breaker counts when a node goes bad. It is the node itself, unless only one accuser
// makes the node bad. Such an accuser counts once, no matter how many nodes it accuses, and accusers in one failure
// domain count once together.
func (e *Engine) blamed(f Fault) fault.NodeID {
	if len(f.Accusers) == 1 {
		return f.Accusers[0]
	}
	if domain, shared := e.cluster.shared(f.Accusers); shared {
		return fault.NodeID("accusers in " + domain)
	}
	return f.Node
}

// enforces reports whether the breaker has anything to hold back: an enforced policy, one that this leader cannot read, or
// an open response that does more than observe.
func (e *Engine) enforces() bool {
	if len(e.unread) > 0 || slices.ContainsFunc(e.policies, func(p *Policy) bool { return p.Mode == Enforce }) {
		return true
	}
	for _, r := range e.open {
		if r.Mode != ObserveOnly {
			return true
		}
	}
	return false
}

// judge opens the breaker if too many nodes went bad in too short a time, unless there is nothing to hold back.
func (e *Engine) judge() {
	n, of := len(e.turned.last), e.cluster.inUse
	if e.breaker.Open || n < e.cfg.breakerAt(of) || !e.enforces() {
		return
	}
	e.breaker = Breaker{
		Open: true, At: e.now, Token: e.token, ClosedBy: e.breaker.ClosedBy,
		Detail: fmt.Sprintf("%d of %d nodes went bad within %s, want fewer than %d", n, of, e.cfg.BreakerWindow, e.cfg.breakerAt(of)),
	}
	e.saveBreaker()
	e.say(Decision{Act: Opens, Detail: e.breaker.Detail})
	e.stir()
}

func (e *Engine) saveBreaker() {
	b := e.breaker
	e.records[b.Key()] = &b
}

// asked processes a person's request.
func (e *Engine) asked(ev Asked) {
	if err := e.do(ev); err != nil {
		e.out.Err = err
	}
}

func (e *Engine) do(ev Asked) error {
	switch {
	case !e.leads || e.broken:
		return fmt.Errorf("%s: this replica does not lead, or cannot read the responses", ev.Verb)
	case ev.Subject == "":
		return fmt.Errorf("%s: subject: given nothing: want that of a certificate", ev.Verb)
	case ev.Verb == CloseBreaker:
		return e.closeBreaker(ev)
	}
	r := e.open[ev.Response]
	if r == nil {
		return fmt.Errorf("%s: response %q: there is none that is open", ev.Verb, ev.Response)
	}
	if r.Mode == ObserveOnly {
		return fmt.Errorf("%s: response %s: its policy %s only observes", ev.Verb, r.ID, r.Policy)
	}
	act, err := e.ask(r, ev)
	if err != nil {
		return fmt.Errorf("%s: response %s, which is %s: %w", ev.Verb, r.ID, r.State, err)
	}
	if act != 0 {
		e.say(Decision{Act: act, Response: r.ID, Policy: r.Policy, Target: r.Target, Subject: ev.Subject, Detail: ev.Reason})
	}
	e.save(r)
	e.touched[r.ID] = true
	return nil
}

// ask changes a response as requested and returns the act for the audit; 0: already audited. An error means that
// nothing was changed.
func (e *Engine) ask(r *Response, ev Asked) (Act, error) {
	switch ev.Verb {
	case Approve:
		return e.approve(r, ev)
	case Deny:
		if r.acted() || r.rests() || r.Cancelled {
			return 0, fmt.Errorf("too late to deny: want a response that has not begun; cancel undoes its actions")
		}
		if r.State == Running && r.Steps[r.Step].Kind.Traits().Waits {
			e.endFencing(r)
		}
		r.State, r.Reason, r.Detail = Expired, ReasonDenied, "by "+ev.Subject
		return Denies, nil
	case Cancel:
		switch {
		case r.undoFailed():
			return 0, fmt.Errorf("%s could not be put back: want retry, or settle as happened once it has been put back by hand",
				r.Steps[r.Step].Name)
		case r.Cancelled || r.State == Undone || r.State == Expired:
			return 0, fmt.Errorf("it has ended: want one that has not")
		}
		r.Cancelled = true
		if r.State == Running && !r.Undoing {
			e.stop(r)
		}
		return Cancels, nil
	case Retry:
		if err := e.lacksTarget(r); err != nil {
			return 0, err
		}
		return e.retry(r)
	case SettleHappened, SettleNot:
		switch {
		case r.undoFailed() && ev.Verb == SettleNot:
			return 0, fmt.Errorf("%s could not be put back: want retry, or settle as happened once it has been put back by hand",
				r.Steps[r.Step].Name)
		case !r.undoFailed() && (!e.unsettled(r) || r.State == Running):
			return 0, fmt.Errorf("want one that waits for the outcome of a step, or that could not be put back")
		}
		e.say(Decision{Act: Settles, Response: r.ID, Policy: r.Policy, Target: r.Target, Step: r.Steps[r.Step].Name,
			Kind: r.Steps[r.Step].Kind, Subject: ev.Subject, Detail: ev.Reason})
		e.settleBy(r, ev)
		return 0, nil
	default:
		return 0, fmt.Errorf("given verb %d: want one of approve, deny, cancel, retry, settle", ev.Verb)
	}
}

func (e *Engine) approve(r *Response, ev Asked) (Act, error) {
	need := e.approvals(r)
	switch {
	case r.rests() || r.Cancelled || r.acted():
		return 0, fmt.Errorf("want one that waits for approval")
	case len(r.Approvals) >= need:
		return 0, fmt.Errorf("it has the %d approvals that it needs", need)
	case slices.ContainsFunc(r.Approvals, func(a Approval) bool { return a.Subject == ev.Subject }):
		return 0, fmt.Errorf("%s has approved it: want another subject", ev.Subject)
	}
	r.Approvals = append(r.Approvals, Approval{ev.Subject, e.now})
	switch {
	case len(r.Approvals) == need && r.State != Running:
		r.State, r.Reason, r.Detail = Approved, 0, ""
	case r.Reason == ReasonApproval:
		b := block{reason: ReasonApproval, detail: approved(len(r.Approvals), need), until: e.approvalEnds(r)}
		r.Detail = b.text() // it still waits for the same reason
	}
	return Approves, nil
}

// retry tries a failed step again, or proposes an expired response again. That needs new approvals.
func (e *Engine) retry(r *Response) (Act, error) {
	switch {
	case !r.Undoing && e.gatePolicy(r).reason == ReasonPolicyChanged:
		return 0, fmt.Errorf("its policy was changed: use cancel, which undoes its actions")
	case r.State == Expired:
		r.State, r.Approvals, r.Asked, r.Cancelled = Proposed, nil, time.Time{}, false
	case r.State == Failed:
		s := &r.Steps[r.Step]
		s.Failures = 0
		delete(e.lapses, r.lapseKey(s))
		if !r.Undoing {
			s.State = Pending
			if s.Changed && !s.onceOnly() {
				s.State = Interrupted
			}
			if s.Reported {
				s.Ended = e.now // the wait for it starts again
			}
		}
		r.State = Waiting
	default:
		return 0, fmt.Errorf("want one that has failed or expired")
	}
	r.Reason, r.Detail = 0, ""
	return Retries, nil
}

// settleBy accepts a person's statement on whether a step has happened, or that it was undone.
func (e *Engine) settleBy(r *Response, ev Asked) {
	s := &r.Steps[r.Step]
	back := r.undoFailed()
	s.Ended, s.Detail, s.Reported = e.now, "by the word of "+ev.Subject, false
	r.State, r.Reason, r.Detail = Waiting, 0, ""
	if back {
		s.State, s.Changed = PutBack, false
		return // the steps before it are undone next
	}
	if ev.Verb == SettleHappened {
		e.becomeActed(r, s.Detail)
		return
	}
	s.State, s.Changed = Pending, false
	e.failed(r, Unchanged)
}

func (e *Engine) closeBreaker(ev Asked) error {
	if !e.breaker.Open {
		return fmt.Errorf("%s: it is closed", ev.Verb)
	}
	e.breaker = Breaker{At: e.now, ClosedBy: ev.Subject, Token: e.token}
	e.turned.forgive()
	e.saveBreaker()
	e.say(Decision{Act: ClosesBreaker, Subject: ev.Subject, Detail: ev.Reason})
	e.freed()
	e.recovered()
	return nil
}
