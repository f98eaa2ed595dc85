package node

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// agents simulates agents that answer after a number of lost tries.
type agents struct {
	mu      sync.Mutex
	actor   *Actor
	deaf    int // tries that are lost
	ordered []*lofamov1.ActOrder
}

func (a *agents) Order(_ fault.NodeID, o *lofamov1.ActOrder, try int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if try <= a.deaf {
		return
	}
	st := &lofamov1.ActStatus{
		Node: o.GetNode(), Response: o.GetResponse(), Step: o.GetStep(), Attempt: o.GetAttempt(), State: lofamov1.ActState_ACT_NONE, Ledger: 9,
		Allowed: []string{"node.check"},
	}
	if !o.GetAsk() {
		a.ordered = append(a.ordered, o)
		st.State, st.Detail = lofamov1.ActState_ACT_DONE, "well"
	}
	a.actor.Heard(st)
}

func job(kind response.Kind, component fault.Component) executor.Job {
	return executor.Job{
		Effect: response.Effect{
			Attempt: response.Attempt{Response: "r5-1", Step: 2, Attempt: 3}, Kind: kind, Token: 5, Timeout: 30 * time.Second, Recheck: true,
			Parameters: map[string]string{"script": "memory"}, Target: response.Target{Node: "n0", Component: component},
		},
		Policy: "p", Fault: executor.Fault{State: fault.Sick},
	}
}

// TestOrderReachesAgentDespiteLoss: an order reaches the agent although messages are lost, and carries all fields of the effect.
func TestOrderReachesAgentDespiteLoss(t *testing.T) {
	a := &agents{deaf: 2}
	a.actor = NewActor(a)
	e, err := New(config.NodeExecutor{}, a.actor, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := e.Do(t.Context(), job(response.NodeCheck, fault.ComponentMemory))
	if r.Outcome != response.Succeeded || r.Detail != "well" || len(a.ordered) != 1 {
		t.Fatalf("%+v after %v", r, a.ordered)
	}
	o := a.ordered[0]
	if o.GetNode() != "n0" || o.GetToken() != 5 || o.GetResponse() != "r5-1" || o.GetStep() != 2 || o.GetAttempt() != 3 ||
		o.GetKind() != "node.check" || !o.GetRecheck() ||
		o.GetUndo() || o.GetLedger() != 9 || o.GetTarget() != "n0/memory" || len(o.GetParameters()) != 1 ||
		o.GetParameters()[0].GetValue() != "memory" {
		t.Errorf("%v", o)
	}
	if len(a.actor.waiting) != 0 {
		t.Errorf("still waited for: %v", a.actor.waiting)
	}
	a.actor.Heard(&lofamov1.ActStatus{Node: "n0", Response: "r5-1", Step: 2, Attempt: 3}) // late: no attempt waits for it
	if r := e.Do(t.Context(), job(response.Command, fault.ComponentMemory)); r.Outcome != response.Unchanged {
		t.Errorf("a kind of others: %+v", r)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	a.deaf = 1 << 20
	if r := e.Do(over, job(response.NodeCheck, fault.ComponentMemory)); r.Outcome != response.Unchanged {
		t.Errorf("stopped before anything was ordered: %+v", r)
	}
}

// masks is a store of masks.
type masks struct {
	by    map[string]string // owner, by node and direction
	token uint64            // token of the present leader
	had   string            // owner of a mask that a person has removed; empty: none
	heir  string            // gets a mask that is given up; empty: none
	fails error
}

func (m *masks) Mask(_ context.Context, token uint64, at fault.NodeID, dir grid.Direction, owner, reason string,
	recheck bool) (bool, string, error) {
	k := string(at) + dir.String()
	switch {
	case m.fails != nil:
		return false, "", m.fails
	case token != m.token:
		return false, "", ErrStale
	case reason == "" || len(reason) > maxReason || !utf8.ValidString(reason):
		return false, "", fmt.Errorf("%w: reason %q", ErrRefused, reason)
	case m.by[k] == "" && recheck && m.had == owner:
		return false, "", nil
	case m.by[k] == "":
		m.by[k] = owner
	}
	return m.by[k] == owner, m.by[k], nil
}

func (m *masks) Unmask(_ context.Context, token uint64, at fault.NodeID, dir grid.Direction, owner string) (bool, string, error) {
	k := string(at) + dir.String()
	if token != m.token {
		return false, "", ErrStale
	}
	if m.by[k] != owner {
		return false, "", nil
	}
	if m.heir != "" {
		m.by[k] = m.heir
		return true, m.heir, nil
	}
	delete(m.by, k)
	return true, "", nil
}

// TestLongestTimeoutFitsIntoOrder: agents accept an order with the longest timeout of a policy.
func TestLongestTimeoutFitsIntoOrder(t *testing.T) {
	if most := response.MaxRemoteTimeout.Milliseconds(); most > servicenet.MaxActTimeoutMS {
		t.Errorf("given %d ms: want at most %d", most, servicenet.MaxActTimeoutMS)
	}
	for _, k := range append(Kinds(), response.Eureka) {
		if k.Traits().Remote != (k != response.NodeMaskChannel) { // the supervisors themselves mask channels
			t.Errorf("%s: remote %t", k, k.Traits().Remote)
		}
	}
}

// TestOnlySettingStepRemovesMask: only the step that has set a mask can remove it, and a person's mask stays.
func TestOnlySettingStepRemovesMask(t *testing.T) {
	m := &masks{by: map[string]string{}, token: 5}
	e, err := New(config.NodeExecutor{MaskChannels: true}, nil, m)
	if err != nil {
		t.Fatal(err)
	}
	xPlus := fault.Link(grid.XPlus)
	j := job(response.NodeMaskChannel, xPlus)
	undo := j
	undo.Undo = true
	do := func(j executor.Job, want response.Outcome, detail string) {
		t.Helper()
		if r := e.Do(t.Context(), j); r.Outcome != want || !strings.Contains(r.Detail, detail) {
			t.Errorf("%+v: want %d, %q", r, want, detail)
		}
	}
	for range 2 { // the repetition has the same result
		do(j, response.Succeeded, "is masked")
	}
	if m.by["n0X+"] != "response/r5-1/2" {
		t.Errorf("%v", m.by)
	}
	other := undo
	other.Response = "r5-2"
	do(other, response.Succeeded, "stays unchanged")
	if len(m.by) != 1 {
		t.Error("another response's mask is taken away")
	}
	m.heir = "response/r5-3/0"
	do(undo, response.Succeeded, "stays masked for response/r5-3/0")
	m.by["n0X+"], m.heir = "response/r5-1/2", ""
	do(undo, response.Succeeded, "restored")
	do(undo, response.Succeeded, "stays unchanged")
	m.had = "response/r5-1/2"
	do(j, response.Succeeded, "a person has removed this step's mask")
	m.by["n0X+"] = "alice"
	do(j, response.Succeeded, "by alice: that mask stays")
	do(undo, response.Succeeded, "stays unchanged")
	if m.by["n0X+"] != "alice" {
		t.Errorf("%v", m.by)
	}
	m.token = 6
	do(j, response.StaleToken, "another leader")
	m.token, m.fails = 5, ErrRefused
	do(j, response.Unchanged, "nothing was changed")
	m.fails = context.DeadlineExceeded
	do(j, response.NotKnown, "deadline")
	do(job(response.NodeMaskChannel, fault.ComponentMemory), response.Unchanged, "no link")
	e.cfg.MaskChannels = false
	do(j, response.Unchanged, "maskChannels")
	do(undo, response.Succeeded, "stays")
}

// TestLongReasonIsCutBetweenCharacters: a reason that ends within a character is invalid UTF-8, and the order of its mask could not be
// sent.
func TestLongReasonIsCutBetweenCharacters(t *testing.T) {
	m := &masks{by: map[string]string{}, token: 5}
	e, err := New(config.NodeExecutor{MaskChannels: true}, nil, m)
	if err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{"", "x"} { // one of them shifts the limit into a character
		j := job(response.NodeMaskChannel, fault.Link(grid.XPlus))
		j.Fault.Detail = prefix + strings.Repeat("ä", maxReason)
		if r := e.Do(t.Context(), j); r.Outcome != response.Succeeded {
			t.Errorf("%+v", r)
		}
	}
}

func TestAskTimeIsBounded(t *testing.T) {
	for _, d := range []time.Duration{time.Millisecond, time.Hour, -1} {
		if _, err := New(config.NodeExecutor{AskFor: config.Duration(d)}, nil, nil); err == nil ||
			!strings.Contains(err.Error(), "want 100ms to 1m") {
			t.Errorf("%s: %v", d, err)
		}
	}
}
