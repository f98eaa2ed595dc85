package node

import (
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/response"
)

var begin = time.Unix(1_800_000_000, 0)

func newTest() *exchange {
	return newExchange(begin, &lofamov1.ActOrder{Node: "n0", Token: 5, Response: "r5-1", Attempt: 1, Kind: "node.check"},
		2*time.Second, 20*time.Second)
}

func status(state lofamov1.ActState, edit ...func(*lofamov1.ActStatus)) *lofamov1.ActStatus {
	st := &lofamov1.ActStatus{Node: "n0", Response: "r5-1", Attempt: 1, State: state, Ledger: 9, Allowed: []string{"node.check"}}
	for _, e := range edit {
		e(st)
	}
	return st
}

// said expects a message at a given time.
func said(t *testing.T, x *exchange, at time.Duration, ask bool) *lofamov1.ActOrder {
	t.Helper()
	out, wake := x.tick(begin.Add(at))
	if out == nil || out.order.GetAsk() != ask || !wake.After(begin.Add(at)) {
		t.Fatalf("at %s: %v, wake %v: want a message, ask %t", at, out, wake, ask)
	}
	return out.order
}

func quiet(t *testing.T, x *exchange, at time.Duration) {
	t.Helper()
	if out, _ := x.tick(begin.Add(at)); out != nil {
		t.Errorf("at %s: %v", at, out.order)
	}
}

func ends(t *testing.T, x *exchange, want response.Outcome) {
	t.Helper()
	if x.result.Outcome != want || x.result.Detail == "" {
		t.Errorf("%+v: want outcome %d, and why", x.result, want)
	}
	if out, wake := x.tick(begin); out != nil || !wake.IsZero() {
		t.Errorf("over, and then %v at %v", out, wake)
	}
}

// TestExchangeAsksOrdersAndPolls: the exchange asks, then orders to that ledger, then polls until the act has ended.
func TestExchangeAsksOrdersAndPolls(t *testing.T) {
	x := newTest()
	if o := said(t, x, 0, true); o.GetLedger() != 0 || o.GetTimeoutMs() != 17_000 {
		t.Errorf("%v", o)
	}
	quiet(t, x, 99*time.Millisecond)
	said(t, x, 100*time.Millisecond, true)
	x.heard(begin.Add(150*time.Millisecond), status(lofamov1.ActState_ACT_NONE))
	if o := said(t, x, 150*time.Millisecond, false); o.GetLedger() != 9 {
		t.Errorf("%v", o)
	}
	x.heard(begin.Add(160*time.Millisecond), status(lofamov1.ActState_ACT_NONE)) // the answer to the second question
	x.heard(begin.Add(170*time.Millisecond), status(lofamov1.ActState_ACT_UNDER_WAY))
	quiet(t, x, 249*time.Millisecond)
	if o := said(t, x, 10*time.Second, false); o.GetTimeoutMs() != 8000 {
		t.Errorf("%v", o)
	}
	x.heard(begin.Add(10*time.Second), status(lofamov1.ActState_ACT_DONE, func(st *lofamov1.ActStatus) { st.Detail = "well" }))
	ends(t, x, response.Succeeded)
	x.heard(begin.Add(11*time.Second), status(lofamov1.ActState_ACT_PARTLY))
	ends(t, x, response.Succeeded)
}

// TestSilenceAfterOrderIsNotKnown: an agent that answers no question has received no order, so the outcome is Unchanged. After an order,
// silence means that the agent may have acted.
func TestSilenceAfterOrderIsNotKnown(t *testing.T) {
	x := newTest()
	for at := time.Duration(0); at < 2*time.Second; at += 10 * time.Millisecond {
		if out, _ := x.tick(begin.Add(at)); out != nil && !out.order.GetAsk() {
			t.Fatalf("at %s: ordered", at)
		}
	}
	x.tick(begin.Add(2 * time.Second))
	ends(t, x, response.Unchanged)

	x = newTest()
	said(t, x, 0, true)
	x.heard(begin, status(lofamov1.ActState_ACT_NONE))
	said(t, x, 0, false)
	tries := 0
	for at := time.Duration(0); at < 20*time.Second; at += 10 * time.Millisecond {
		if out, _ := x.tick(begin.Add(at)); out != nil {
			tries++
		}
	}
	x.tick(begin.Add(20 * time.Second))
	ends(t, x, response.NotKnown)
	if tries < 20 || tries > 25 {
		t.Errorf("said %d times in 20 s", tries)
	}

	x = newTest()
	x.stop()
	ends(t, x, response.Unchanged)
	x = newTest()
	x.heard(begin, status(lofamov1.ActState_ACT_NONE))
	x.stop() // between the answer and the order
	ends(t, x, response.Unchanged)
	x = newTest()
	x.said = true // as Actor.say does
	x.heard(begin, status(lofamov1.ActState_ACT_NONE))
	x.stop()
	ends(t, x, response.NotKnown)
	x = newTest() // from a leader that died and was elected again
	x.heard(begin, status(lofamov1.ActState_ACT_UNDER_WAY))
	x.stop()
	ends(t, x, response.NotKnown)
}

func TestOutcomeOfEachAgentAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		asked, ordered *lofamov1.ActStatus
		want           response.Outcome
	}{
		"no daemon": {status(lofamov1.ActState_ACT_UNCHANGED, func(st *lofamov1.ActStatus) { st.Ledger = 0 }), nil, response.Unchanged},
		"not allowed": {status(lofamov1.ActState_ACT_NONE, func(st *lofamov1.ActStatus) { st.Allowed = []string{"eureka"} }), nil,
			response.Unchanged},
		"a higher token":      {status(lofamov1.ActState_ACT_NONE, func(st *lofamov1.ActStatus) { st.Token = 6 }), nil, response.StaleToken},
		"ended already":       {status(lofamov1.ActState_ACT_PARTLY), nil, response.Partly},
		"stale":               {status(lofamov1.ActState_ACT_NONE), status(lofamov1.ActState_ACT_STALE), response.StaleToken},
		"refused":             {status(lofamov1.ActState_ACT_NONE), status(lofamov1.ActState_ACT_UNCHANGED), response.Unchanged},
		"partly":              {status(lofamov1.ActState_ACT_NONE), status(lofamov1.ActState_ACT_PARTLY), response.Partly},
		"not known":           {status(lofamov1.ActState_ACT_NONE), status(lofamov1.ActState_ACT_NOT_KNOWN), response.NotKnown},
		"of a later version":  {status(lofamov1.ActState_ACT_NONE), status(99), response.NotKnown},
		"under way, and done": {status(lofamov1.ActState_ACT_UNDER_WAY), status(lofamov1.ActState_ACT_DONE), response.Succeeded},
		"another ledger": {
			status(lofamov1.ActState_ACT_NONE), status(lofamov1.ActState_ACT_UNCHANGED,
				func(st *lofamov1.ActStatus) { st.Ledger = 10 }), response.NotKnown,
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newTest()
			said(t, x, 0, true)
			x.heard(begin, tc.asked)
			if tc.ordered != nil {
				said(t, x, 0, false)
				x.heard(begin, tc.ordered)
			}
			ends(t, x, tc.want)
		})
	}
	// a late answer to a question, after the daemon has ended, does not tell the state of the order, and no order may name
	// that answer
	x := newTest()
	said(t, x, 0, true)
	x.heard(begin, status(lofamov1.ActState_ACT_NONE, func(st *lofamov1.ActStatus) { st.Fresh = 1000 }))
	said(t, x, 0, false)
	x.heard(begin, status(lofamov1.ActState_ACT_UNCHANGED, func(st *lofamov1.ActStatus) { st.Ledger, st.Detail = 0, "nobody makes acts" }))
	if o := said(t, x, time.Second, false); o.GetFresh() != 1000 {
		t.Errorf("%v", o)
	}
	x.heard(begin, status(lofamov1.ActState_ACT_NOT_KNOWN))
	ends(t, x, response.NotKnown)
	x = newTest() // an undo is allowed even if the configuration no longer allows the kind
	x.order.Undo = true
	x.heard(begin, status(lofamov1.ActState_ACT_NONE, func(st *lofamov1.ActStatus) { st.Allowed = nil }))
	said(t, x, 0, false)
}
