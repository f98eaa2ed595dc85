package node

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/response"
)

// exchange is one attempt by a node's agent, repeated until the agent reports its outcome. It is pure.
//
//	asking ──the agent has a ledger and allows it──► ordering ──it has ended──► over
//	   └── no answer in time, or it may not be: unchanged, for nothing was ordered
//
// A question starts nothing. An agent of an earlier version answers neither question nor order, and so has certainly
// done nothing.
type exchange struct {
	order  *lofamov1.ActOrder // without the fields that differ between question and order
	until  time.Time          // deadline for the answer to the question
	ends   time.Time          // deadline of the attempt
	ledger uint64             // the agent's ledger; 0 while asking
	fresh  uint64             // the agent's clock in its latest status, which an order names; 0 from an agent of an earlier version
	said   bool               // an order was sent and may be in progress
	begun  bool               // the agent has reported the attempt as in progress
	timer  order.Timer        // of the current message
	result executor.Result    // final once its Outcome is not 0
}

// again is the retry interval for questions and orders. A short act ends with little delay, and one of hours costs a
// message per second.
var again = order.Retry{First: 100 * time.Millisecond, Most: time.Second}

// say is a message to the agent.
type say struct {
	order *lofamov1.ActOrder
	try   int
}

func newExchange(now time.Time, o *lofamov1.ActOrder, askFor, timeout time.Duration) *exchange {
	return &exchange{order: o, until: now.Add(min(askFor, timeout)), ends: now.Add(timeout), timer: order.Timer{At: now}}
}

// over reports whether there is a result.
func (x *exchange) over() bool { return x.result.Outcome != 0 }

// tick returns the message to send now, if any, and the time of the next tick.
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

// message returns the current message.
func (x *exchange) message(now time.Time) *lofamov1.ActOrder {
	o := &lofamov1.ActOrder{
		Node: x.order.GetNode(), Token: x.order.GetToken(), Response: x.order.GetResponse(), Step: x.order.GetStep(),
		Attempt: x.order.GetAttempt(), Kind: x.order.GetKind(),
		Parameters: x.order.GetParameters(), Undo: x.order.GetUndo(), Recheck: x.order.GetRecheck(), ReplyTo: x.order.GetReplyTo(),
		Target: x.order.GetTarget(),
		Ledger: x.ledger, Ask: x.ledger == 0, Fresh: x.fresh,
	}
	// The agent must end the act early enough for its status to arrive before the deadline.
	left := x.ends.Sub(now)
	left -= min(left/5, 3*time.Second)
	o.TimeoutMs = uint32(max(left.Milliseconds(), 1))
	return o
}

// ordered reports whether the attempt may be in progress, by an order of this leader or an earlier one.
func (x *exchange) ordered() bool { return x.said || x.begun }

// stop ends an exchange from outside. The outcome of an ordered attempt is then unknown.
func (x *exchange) stop() {
	switch {
	case x.over():
	case x.ordered():
		x.result = executor.NotKnown("stopped before the agent has said how it ended")
	default:
		x.result = executor.Unchanged("stopped before anything was ordered")
	}
}

// fenced ends an exchange whose leader may no longer lead. Nothing is ordered from then on.
func (x *exchange) fenced(err error) {
	switch {
	case x.over():
	case x.ordered():
		x.result = executor.NotKnown("the agent has not said how it ended, and is not ordered again: %v", err)
	case errors.Is(err, executor.ErrStale):
		x.result = executor.Stale("nothing was ordered: %v", err)
	default: // the process was stopped, or the store has no quorum
		x.result = executor.Unchanged("nothing was ordered: cannot confirm that this supervisor still leads: %v", err)
	}
}

// mayBegin reports whether a message may start the act, which requires a leadership check first.
func (x *exchange) mayBegin(o *lofamov1.ActOrder) bool { return !o.GetAsk() && !x.begun }

// heard processes the agent's status of this attempt. It sets the time of the next message, which is now if an order
// follows.
func (x *exchange) heard(now time.Time, st *lofamov1.ActStatus) {
	if x.ledger != 0 && st.GetLedger() == 0 {
		// the sender has not read a ledger: the answer belongs to an earlier question, or the disk fails; it does not tell
		// the state of the order
		return
	}
	x.fresh = st.GetFresh()
	switch s := st.GetState(); {
	case x.over():
	case x.ledger == 0:
		x.answered(now, st)
	case st.GetLedger() != x.ledger:
		x.result = executor.NotKnown("the agent's ledger was replaced during the attempt")
	case s == lofamov1.ActState_ACT_NONE: // the answer to an earlier question, or to a delayed order
	case s == lofamov1.ActState_ACT_UNDER_WAY:
		x.begun = true
	default:
		x.result = resultOf(st)
	}
}

// answered processes the answer to the question.
func (x *exchange) answered(now time.Time, st *lofamov1.ActStatus) {
	o := x.order
	switch s := st.GetState(); {
	case st.GetLedger() == 0:
		x.result = executor.Unchanged("%s", cmp.Or(st.GetDetail(), "no process on the node runs actions"))
	// a leader that died and was elected again has lost its record; a later attempt would have another number
	case s == lofamov1.ActState_ACT_UNDER_WAY:
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

// outcomes are the outcomes of ended attempts; of others, it is not known.
var outcomes = map[lofamov1.ActState]response.Outcome{
	lofamov1.ActState_ACT_DONE: response.Succeeded, lofamov1.ActState_ACT_UNCHANGED: response.Unchanged,
	lofamov1.ActState_ACT_PARTLY: response.Partly, lofamov1.ActState_ACT_STALE: response.StaleToken,
}

// resultOf returns the result for the agent's status of an ended attempt.
func resultOf(st *lofamov1.ActStatus) executor.Result {
	return executor.ResultOf(outcomes[st.GetState()], cmp.Or(st.GetDetail(), "the agent says no more"))
}

func (x *exchange) String() string {
	return fmt.Sprintf("attempt %d at step %d of %s on %s", x.order.GetAttempt(), x.order.GetStep(), x.order.GetResponse(), x.order.GetNode())
}
