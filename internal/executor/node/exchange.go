package node

import (
	"errors"
	"fmt"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/order"
)

// exchange is one attempt, said to one node's agent until it has said how it ended. It is pure.
//
//	asking ──the agent has a ledger and allows it──► ordering ──it has ended──► over
//	   └── no answer in time, or it may not be: unchanged, for nothing was ordered
//
// Nothing is begun by asking: an agent of an earlier version answers neither, and so has certainly done nothing.
type exchange struct {
	order  *lofamov1.ActOrder // without what differs between asking and ordering
	until  time.Time          // asking ends
	ends   time.Time          // the attempt's time is over
	ledger uint64             // 0: asking
	fresh  uint64             // of the newest word of the agent, which an order names; 0: of an agent of an earlier version
	said   bool               // an order was said: it may be under way
	begun  bool               // the agent has said that it is under way
	timer  order.Timer        // of what is said now
	result executor.Result    // over, once its Outcome is not 0
}

// again says when the agent is asked or ordered again. An act of milliseconds is waited for hardly longer than it takes, and one
// of hours costs a message a second.
var again = order.Retry{First: 100 * time.Millisecond, Most: time.Second}

// say is a message for the agent.
type say struct {
	order *lofamov1.ActOrder
	try   int
}

func newExchange(now time.Time, o *lofamov1.ActOrder, askFor, timeout time.Duration) *exchange {
	return &exchange{order: o, until: now.Add(min(askFor, timeout)), ends: now.Add(timeout), timer: order.Timer{At: now}}
}

// over says whether there is a result.
func (x *exchange) over() bool { return x.result.Outcome != 0 }

// tick returns what is to be said now, if anything, and when to look again.
func (x *exchange) tick(now time.Time) (out *say, wake time.Time) {
	switch {
	case x.over():
		return nil, time.Time{}
	case x.ledger == 0 && !now.Before(x.until):
		x.result = executor.Unchanged("the agent does not answer, or is of an earlier version and does not know such orders: nothing was ordered")
		return nil, time.Time{}
	case !now.Before(x.ends):
		x.result = executor.NotKnown("the agent has not said how it ended")
		return nil, time.Time{}
	}
	if x.timer.Due(now, again) {
		out = &say{x.message(now), x.timer.Try}
	}
	wake = x.timer.At
	if x.ledger == 0 && x.until.Before(wake) {
		wake = x.until
	}
	if x.ends.Before(wake) {
		wake = x.ends
	}
	return out, wake
}

// message is what is said now.
func (x *exchange) message(now time.Time) *lofamov1.ActOrder {
	o := &lofamov1.ActOrder{
		Node: x.order.GetNode(), Token: x.order.GetToken(), Response: x.order.GetResponse(), Step: x.order.GetStep(), Attempt: x.order.GetAttempt(), Kind: x.order.GetKind(),
		Parameters: x.order.GetParameters(), Undo: x.order.GetUndo(), Recheck: x.order.GetRecheck(), ReplyTo: x.order.GetReplyTo(), Target: x.order.GetTarget(),
		Ledger: x.ledger, Ask: x.ledger == 0, Fresh: x.fresh,
	}
	// The agent ends the act before its word on it would come too late.
	left := x.ends.Sub(now)
	left -= min(left/5, 3*time.Second)
	o.TimeoutMs = uint32(max(left.Milliseconds(), 1))
	return o
}

// ordered says whether the attempt may be under way: an order was said, by this leader or one before.
func (x *exchange) ordered() bool { return x.said || x.begun }

// stop ends an exchange from outside: what was ordered is not known then.
func (x *exchange) stop() {
	switch {
	case x.over():
	case x.ordered():
		x.result = executor.NotKnown("stopped before the agent has said how it ended")
	default:
		x.result = executor.Unchanged("stopped before anything was ordered")
	}
}

// fenced ends an exchange of which it is not sure any more that its leader leads: nothing is ordered from then on.
func (x *exchange) fenced(err error) {
	switch {
	case x.over():
	case x.ordered():
		x.result = executor.NotKnown("the agent has not said how it ended, and is not ordered again: %v", err)
	case errors.Is(err, executor.ErrStale):
		x.result = executor.Stale("nothing was ordered: %v", err)
	default: // it was stopped, or the store has no quorum
		x.result = executor.Unchanged("nothing was ordered: it is not sure that this supervisor still leads: %v", err)
	}
}

// mayBegin says whether a message may begin something: then it has to be sure that the leader leads.
func (x *exchange) mayBegin(o *lofamov1.ActOrder) bool { return !o.GetAsk() && !x.begun }

// heard takes what the agent says of this attempt. now is when to speak again, at once where something is to be ordered.
func (x *exchange) heard(now time.Time, st *lofamov1.ActStatus) {
	if x.ledger != 0 && st.GetLedger() == 0 {
		return // nobody has looked into a ledger: it is of a question of before, or of a disk that fails, and says nothing of what was ordered
	}
	x.fresh = st.GetFresh()
	switch s := st.GetState(); {
	case x.over():
	case x.ledger == 0:
		x.answered(now, st)
	case st.GetLedger() != x.ledger:
		x.result = executor.NotKnown("the agent's ledger has begun anew while it was under way")
	case s == lofamov1.ActState_ACT_NONE: // to a question of before, or to an order that was held up
	case s == lofamov1.ActState_ACT_UNDER_WAY:
		x.begun = true
	default:
		x.result = resultOf(st)
	}
}

// answered takes the answer to the question.
func (x *exchange) answered(now time.Time, st *lofamov1.ActStatus) {
	o := x.order
	switch s := st.GetState(); {
	case st.GetLedger() == 0:
		x.result = executor.Unchanged("%s", orElse(st.GetDetail(), "nobody on the node makes acts"))
	case s == lofamov1.ActState_ACT_UNDER_WAY: // a leader that died and was elected again knows it no more; its attempts have other numbers
		x.ledger, x.begun, x.timer.At = st.GetLedger(), true, now
	case s != lofamov1.ActState_ACT_NONE:
		x.result = resultOf(st)
	case st.GetToken() > o.GetToken():
		x.result = executor.Stale("token %d: the agent has seen %d", o.GetToken(), st.GetToken())
	case !o.GetUndo() && !slices.Contains(st.GetAllowed(), o.GetKind()):
		x.result = executor.Unchanged("the agent's configuration does not allow %s", o.GetKind())
	default:
		x.ledger = st.GetLedger()
		x.timer.Restart(now)
	}
}

// resultOf is what an agent's word on an attempt that has ended means.
func resultOf(st *lofamov1.ActStatus) executor.Result {
	detail := orElse(st.GetDetail(), "the agent says no more")
	switch st.GetState() {
	case lofamov1.ActState_ACT_DONE:
		return executor.Done("%s", detail)
	case lofamov1.ActState_ACT_UNCHANGED:
		return executor.Unchanged("%s", detail)
	case lofamov1.ActState_ACT_PARTLY:
		return executor.Partly("%s", detail)
	case lofamov1.ActState_ACT_STALE:
		return executor.Stale("%s", detail)
	default:
	}
	return executor.NotKnown("%s", detail)
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func (x *exchange) String() string {
	return fmt.Sprintf("attempt %d at step %d of %s on %s", x.order.GetAttempt(), x.order.GetStep(), x.order.GetResponse(), x.order.GetNode())
}
