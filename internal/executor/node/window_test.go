package node

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/actions"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// TestWindowOfOldLeaders measures how late a former leader's order can begin on a node that has no order from its
// successor (docs/responses-node.md: the window). The former leader's order was sent, or about to be sent, when another
// leader was elected, and is delayed; or the leader is paused before it orders, and continues.
func TestWindowOfOldLeaders(t *testing.T) {
	var widest time.Duration
	late, stale, begun := 0, 0, 0
	for seed := range uint64(4000) {
		r := rand.New(rand.NewPCG(seed, 3))
		upTo := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
		l := actions.Ledger{Life: 9}
		clock := func(now time.Time) uint64 { return seed<<40 + uint64(now.Sub(begin).Milliseconds()) }
		elected := begin.Add(upTo(6 * time.Second))  // election of another leader
		heard := elected.Add(upTo(20 * time.Second)) // the node learns of it then, without an order to it
		x := newExchange(begin, &lofamov1.ActOrder{Node: "n0", Token: 5, Response: "r5-1", Attempt: 1, Kind: actions.KindCheck}, 20*time.Second,
			time.Minute)
		x.tick(begin)
		asked := begin.Add(upTo(time.Second))
		x.heard(asked, status(lofamov1.ActState_ACT_NONE, func(st *lofamov1.ActStatus) { st.Fresh = clock(asked) }))
		now := asked
		paused := now.Add(upTo(5 * time.Second)) // followed by executor.Fenced
		out, _ := x.tick(paused)
		if out == nil || out.order.GetAsk() {
			t.Fatalf("seed %d: %v: want an order", seed, out)
		}
		if now = paused; now.After(elected) {
			x.fenced(executor.ErrStale)
			if x.result.Outcome != response.StaleToken {
				t.Fatalf("seed %d: %+v", seed, x.result)
			}
			stale++
			continue
		}
		now = now.Add(upTo(10 * time.Second)) // a pause after the check, or a queue
		o := actions.FromWire(out.order)
		if o.Late = actions.Late(o.Fresh, clock(now)); !now.Before(heard) {
			o.Heard = 6
		}
		l.Hear(o.Heard)
		switch s, admitted := l.Admit(actions.Now{Wall: now, Fresh: clock(now)}, &o); {
		case admitted && (o.Late || o.Heard != 0):
			t.Fatalf("seed %d: begun %s after the answer: %+v", seed, now.Sub(asked), s)
		case admitted && now.After(elected):
			widest = max(widest, now.Sub(elected))
			begun++
		case s.State == actions.Stale:
			stale++
		case s.State == actions.None:
			late++
		}
	}
	t.Logf("the order of a leader who is no more: %d begun, at most %s after the next one was elected; %d refused as held up, %d as stale",
		begun, widest, late, stale)
	if widest > actions.FreshFor {
		t.Errorf("want at most %s", actions.FreshFor)
	}
	if begun < 100 || late < 100 || stale < 100 || widest < actions.FreshFor*3/4 {
		t.Error("too few for the test to say anything")
	}
}

// deposed has agents that answer, and a leader that loses leadership while its order is in flight.
type deposed struct {
	mu      sync.Mutex
	actor   *Actor
	lost    bool // the first order is lost in flight
	ordered int
	fenced  error
}

func (d *deposed) Order(_ fault.NodeID, o *lofamov1.ActOrder, _ int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := &lofamov1.ActStatus{
		Node: o.GetNode(), Response: o.GetResponse(), Step: o.GetStep(), Attempt: o.GetAttempt(), State: lofamov1.ActState_ACT_NONE, Ledger: 9,
		Allowed: []string{"node.check"}, Fresh: 77,
	}
	if !o.GetAsk() {
		d.ordered++
		if d.lost {
			d.fenced = executor.ErrStale
			return
		}
		st.State = lofamov1.ActState_ACT_DONE
	}
	d.actor.Heard(st)
}

// TestExecutorChecksFenceBeforeOrder: the executor checks that its leader leads before it orders, and before it repeats
// an order that the agent has not reported as in progress.
func TestExecutorChecksFenceBeforeOrder(t *testing.T) {
	for _, tc := range []struct {
		name    string
		fenced  error
		lost    bool
		ordered int
		want    response.Outcome
	}{
		{"leads", nil, false, 1, response.Succeeded},
		{"is no more", executor.ErrStale, false, 0, response.StaleToken},
		// no higher token was seen and nothing was ordered, so there is nothing to undo
		{"cannot ask", errors.New("no quorum"), false, 0, response.Unchanged},
		{"was stopped", context.Canceled, false, 0, response.Unchanged},
		{"is no more before it orders again", nil, true, 1, response.NotKnown},
	} {
		d := &deposed{lost: tc.lost, fenced: tc.fenced}
		d.actor = NewActor(d)
		e, err := New(config.NodeExecutor{}, d.actor, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx := executor.WithFence(t.Context(), func(context.Context) error {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.fenced
		})
		if r := e.Do(ctx, job(response.NodeCheck, fault.ComponentMemory)); r.Outcome != tc.want || d.ordered != tc.ordered {
			t.Errorf("a leader that %s: %+v, ordered %d times: want outcome %d, %d times", tc.name, r, d.ordered, tc.want, tc.ordered)
		}
	}
}

// TestOrderNamesLatestAnswer: an order names the agent's latest answer, so that a slow first answer does not make it refused. An agent
// of an earlier version names no clock.
func TestOrderNamesLatestAnswer(t *testing.T) {
	x := newTest()
	said(t, x, 0, true)
	x.heard(begin, status(lofamov1.ActState_ACT_NONE, func(st *lofamov1.ActStatus) { st.Fresh = 1000 }))
	if o := said(t, x, 0, false); o.GetFresh() != 1000 {
		t.Errorf("%v", o)
	}
	// the order came too late
	x.heard(begin.Add(6*time.Second), status(lofamov1.ActState_ACT_NONE, func(st *lofamov1.ActStatus) { st.Fresh = 7000 }))
	o := proto.CloneOf(said(t, x, 6*time.Second, false))
	if o.GetFresh() != 7000 {
		t.Errorf("%v", o)
	}
	x = newTest()
	x.heard(begin, status(lofamov1.ActState_ACT_NONE))
	if o := said(t, x, 0, false); o.GetFresh() != 0 {
		t.Errorf("%v", o)
	}
}
