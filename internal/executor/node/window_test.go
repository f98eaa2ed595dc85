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

// What is left of a leader who is no more, on a node to which the next one has said nothing (docs/responses-node.md: the window). His order was sent, or was
// about to be, when another one was elected, and is held up; or he is paused before he orders, and goes on.
func TestWindowOfOldLeaders(t *testing.T) {
	var widest time.Duration
	late, stale, begun := 0, 0, 0
	for seed := range uint64(4000) {
		r := rand.New(rand.NewPCG(seed, 3))
		upTo := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
		l := actions.Ledger{Life: 9}
		clock := func(now time.Time) uint64 { return seed<<40 + uint64(now.Sub(begin).Milliseconds()) }
		elected := begin.Add(upTo(6 * time.Second))  // another leader
		heard := elected.Add(upTo(20 * time.Second)) // of whom this node hears then, by something that is no order to it
		x := newExchange(begin, &lofamov1.ActOrder{Node: "n0", Token: 5, Response: "r5-1", Attempt: 1, Kind: actions.KindCheck}, 20*time.Second, time.Minute)
		x.tick(begin)
		asked := begin.Add(upTo(time.Second))
		x.heard(asked, status(lofamov1.ActState_ACT_NONE, func(st *lofamov1.ActStatus) { st.Fresh = clock(asked) }))
		now := asked
		paused := now.Add(upTo(5 * time.Second)) // and then executor.Fenced is asked
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
		now = now.Add(upTo(10 * time.Second)) // a pause after that, or a queue
		o := actions.FromWire(out.order)
		if o.Late = actions.Late(o.Fresh, clock(now)); !now.Before(heard) {
			o.Heard = 6
		}
		l.Hear(o.Heard)
		switch s, admitted := l.Admit(now, &o); {
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
	t.Logf("the order of a leader who is no more: %d begun, at most %s after the next one was elected; %d refused as held up, %d as stale", begun, widest, late, stale)
	if widest > actions.FreshFor {
		t.Errorf("want at most %s", actions.FreshFor)
	}
	if begun < 100 || late < 100 || stale < 100 || widest < actions.FreshFor*3/4 {
		t.Error("too few for the test to say anything")
	}
}

// deposed has agents that answer, of a leader that is followed by another one while the order is on its way.
type deposed struct {
	mu      sync.Mutex
	actor   *Actor
	lost    bool // the first order, on its way
	ordered int
	fenced  error
}

func (d *deposed) Order(_ fault.NodeID, o *lofamov1.ActOrder, _ int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := &lofamov1.ActStatus{
		Node: o.GetNode(), Response: o.GetResponse(), Step: o.GetStep(), Attempt: o.GetAttempt(), State: lofamov1.ActState_ACT_NONE, Ledger: 9, Allowed: []string{"node.check"}, Fresh: 77,
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

// Before it orders, and before it orders again what nobody has said is under way, the executor is sure that its leader leads.
func TestFenced(t *testing.T) {
	for _, tc := range []struct {
		name    string
		fenced  error
		lost    bool
		ordered int
		want    response.Outcome
	}{
		{"leads", nil, false, 1, response.Succeeded},
		{"is no more", executor.ErrStale, false, 0, response.StaleToken},
		{"cannot ask", errors.New("no quorum"), false, 0, response.Unchanged}, // no higher token was seen, and nothing was ordered: nothing is to be put back
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

// An order names the agent's newest answer, so that it is taken though the way of the first one was long; an agent of an earlier version names none.
func TestFresh(t *testing.T) {
	x := newTest()
	said(t, x, 0, true)
	x.heard(begin, status(lofamov1.ActState_ACT_NONE, func(st *lofamov1.ActStatus) { st.Fresh = 1000 }))
	if o := said(t, x, 0, false); o.GetFresh() != 1000 {
		t.Errorf("%v", o)
	}
	x.heard(begin.Add(6*time.Second), status(lofamov1.ActState_ACT_NONE, func(st *lofamov1.ActStatus) { st.Fresh = 7000 })) // that one came too late
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
