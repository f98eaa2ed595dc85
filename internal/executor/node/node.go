// Package node carries out actions on a node itself (seed 001 §II: local readjustment). Its agent restarts a half, runs
// a check or limits the CPU frequency; the supervisors themselves mask a channel.
//
// The agent has an executor's duties. Before it begins anything it stores tokens and attempts in its ledger on disk
// (internal/agent/actions). So it refuses stale orders even after restarts of itself and its machine, makes no attempt twice, and returns
// the outcome of an attempt on request. This package only sends the orders and repeats them until an answer arrives (exchange); the
// supervisor provides the transport (Agents). A mask is committed to the store under the leader's fence and marked with its response. An
// undo removes only a mask with its response's mark. If another response wants the link masked too, the undo changes the mark to that
// response's instead.
package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Agents sends orders to nodes.
type Agents interface {
	// Order sends a signed order to a node, from the second try on also through its neighbours. It does not block. The
	// caller repeats lost orders.
	Order(node fault.NodeID, o *lofamov1.ActOrder, try int)
}

// Masks lets supervisors mask links.
type Masks interface {
	// Mask masks a link for an owner, unless it is masked already, under the fence of the leader with the token. mine
	// reports whether the mask belongs to the owner; otherwise by is its owner. With recheck it does not repeat a mask of
	// the owner that was removed: then mine is false, and by is empty.
	Mask(ctx context.Context, token uint64, at fault.NodeID, dir grid.Direction, owner, reason string, recheck bool) (mine bool, by string,
		err error)
	// Unmask ends the owner's hold of a link's mask, and reports whether it had it. The mask is removed, unless it passes to an heir:
	// another step that wants the link masked.
	Unmask(ctx context.Context, token uint64, at fault.NodeID, dir grid.Direction, owner string) (was bool, heir string, err error)
}

// Errors of Masks that guarantee that nothing has changed.
var (
	ErrStale   = errors.New("another leader is elected")
	ErrRefused = errors.New("nothing was changed")
)

// Actor lets nodes' agents act. It receives their answers through Heard.
type Actor struct {
	agents Agents

	mu      sync.Mutex
	waiting map[key]chan *lofamov1.ActStatus
}

// key identifies an attempt on a node.
type key struct {
	node     string
	response string
	step     uint32
	attempt  uint32
}

// heardRoom is the number of queued answers per attempt. Further answers are dropped, since Make repeats its message.
const heardRoom = 16

// NewActor returns an actor that sends its orders through agents.
func NewActor(agents Agents) *Actor {
	return &Actor{agents: agents, waiting: map[key]chan *lofamov1.ActStatus{}}
}

// Heard processes a half's report on an act. It does not block.
func (a *Actor) Heard(st *lofamov1.ActStatus) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.waiting[key{st.GetNode(), st.GetResponse(), st.GetStep(), st.GetAttempt()}]; c != nil {
		select {
		case c <- st:
		default:
		}
	}
}

// Make makes an attempt through a node's agent and returns its result, at the latest when ctx ends. askFor is the
// timeout for the agent's first answer.
func (a *Actor) Make(ctx context.Context, node fault.NodeID, j executor.Job, askFor time.Duration) executor.Result {
	o := &lofamov1.ActOrder{
		Node: string(node), Token: j.Token, Response: j.Response, Step: uint32(j.Step), Attempt: uint32(j.Attempt.Attempt), Kind: string(j.Kind),
		Parameters: parameters(j.Parameters), Undo: j.Undo, Recheck: j.Recheck, Target: target(j),
	}
	k := key{o.GetNode(), o.GetResponse(), o.GetStep(), o.GetAttempt()}
	heard := make(chan *lofamov1.ActStatus, heardRoom)
	a.mu.Lock()
	if a.waiting[k] != nil {
		a.mu.Unlock()
		return executor.NotKnown("this attempt is under way already")
	}
	a.waiting[k] = heard
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.waiting, k)
	}()
	x := newExchange(time.Now(), o, askFor, timeLeft(ctx, j.Timeout))
	timer := time.NewTimer(0)
	defer timer.Stop()
	for !x.over() {
		out, wake := x.tick(time.Now())
		if out != nil {
			a.say(ctx, node, x, out)
		}
		if x.over() {
			break
		}
		timer.Reset(time.Until(wake))
		select {
		case <-ctx.Done():
			x.stop()
		case <-timer.C:
		case st := <-heard:
			failpoint.Hit(failpoint.NodeHeard)
			x.heard(time.Now(), st)
		}
	}
	return x.result
}

// say sends the current message. Before a message that may start the act it checks that this leader still leads. A
// leader that is paused after that check and continues under another leader names an old answer of the agent, which the
// agent refuses after actions.FreshFor.
func (a *Actor) say(ctx context.Context, node fault.NodeID, x *exchange, out *say) {
	if x.mayBegin(out.order) {
		if err := executor.Fenced(ctx); err != nil {
			x.fenced(err)
			return
		}
	}
	if !out.order.GetAsk() {
		failpoint.Hit(failpoint.NodeOrder)
		x.said = true
	}
	a.agents.Order(node, out.order, out.try)
	if !out.order.GetAsk() {
		failpoint.Hit(failpoint.NodeOrdered)
	}
}

// timeLeft returns the time until ctx ends, or timeout if that is shorter.
func timeLeft(ctx context.Context, timeout time.Duration) time.Duration {
	if at, ok := ctx.Deadline(); ok && (timeout <= 0 || time.Until(at) < timeout) {
		timeout = time.Until(at)
	}
	return max(timeout, time.Millisecond)
}

func parameters(m map[string]string) []*lofamov1.ActParameter {
	out := make([]*lofamov1.ActParameter, 0, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		out = append(out, &lofamov1.ActParameter{Name: name, Value: m[name]})
	}
	return out
}

// maxTarget is the maximum length of a target in an order, in bytes.
const maxTarget = 96

func target(j executor.Job) string {
	s := j.Target.String()
	return s[:min(len(s), maxTarget)] // names are ASCII
}

// Executor carries out the kinds node.*.
type Executor struct {
	cfg   config.NodeExecutor
	actor *Actor
	masks Masks
}

// New returns the executor.
func New(cfg config.NodeExecutor, actor *Actor, masks Masks) (*Executor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Executor{cfg: cfg.Filled(), actor: actor, masks: masks}, nil
}

// Kinds returns the kinds of actions that Executor carries out.
func Kinds() []response.Kind {
	return []response.Kind{response.NodeCheck, response.NodeRestartHalf, response.NodeMaskChannel, response.NodeLimitFrequency}
}

// Do implements executor.Executor.
func (e *Executor) Do(ctx context.Context, j executor.Job) executor.Result {
	switch j.Kind {
	case response.NodeMaskChannel:
		return e.mask(ctx, j)
	case response.NodeCheck, response.NodeRestartHalf, response.NodeLimitFrequency:
		if j.Target.Node == "" {
			return executor.Unchanged("%s is of no node", j.Target)
		}
		return e.actor.Make(ctx, j.Target.Node, j, e.cfg.AskFor.D())
	default: // a kind of another executor
	}
	return executor.Unchanged("kind %s is not for nodes", j.Kind)
}

// Owner returns the owner of the masks of a response's step.
func Owner(a response.Attempt) string { return fmt.Sprintf("response/%s/%d", a.Response, a.Step) }

func (e *Executor) mask(ctx context.Context, j executor.Job) executor.Result {
	dir, ok := j.Target.Component.LinkDirection()
	switch {
	case !ok || j.Target.Node == "":
		return executor.Unchanged("%s is no link", j.Target)
	case !e.cfg.MaskChannels && !j.Undo:
		return executor.Unchanged("the supervisors' configuration does not allow %s (maskChannels)", j.Kind)
	}
	failpoint.Hit(failpoint.NodeOrder)
	if j.Undo {
		was, heir, err := e.masks.Unmask(ctx, j.Token, j.Target.Node, dir, Owner(j.Attempt))
		failpoint.Hit(failpoint.NodeOrdered)
		switch {
		case err != nil:
			return failed(err)
		case !was:
			return executor.Done("link %s is no longer masked by this step: it stays unchanged", dir)
		case heir != "":
			return executor.Done("link %s stays masked for %s", dir, heir)
		}
		return executor.Done("link %s is restored", dir)
	}
	mine, by, err := e.masks.Mask(ctx, j.Token, j.Target.Node, dir, Owner(j.Attempt), MaskReason(j.Policy, j.Fault), j.Recheck)
	failpoint.Hit(failpoint.NodeOrdered)
	switch {
	case err != nil:
		return failed(err)
	case !mine && by == "":
		return executor.Done("link %s stays unmasked: a person has removed this step's mask", dir)
	case !mine:
		return executor.Done("link %s was already masked by %s: that mask stays", dir, by)
	}
	return executor.Done("link %s is masked: both ends get the order until they have it", dir)
}

// maxReason is the maximum length of a mask's reason, in bytes.
const maxReason = 200

// MaskReason returns the reason of a mask by a policy.
func MaskReason(policy string, f executor.Fault) string {
	reason := fmt.Sprintf("policy %s: %s", policy, f.State)
	if f.Detail != "" {
		reason += ": " + f.Detail
	}
	return fault.Cut(reason, maxReason)
}

func failed(err error) executor.Result {
	switch {
	case errors.Is(err, ErrStale):
		return executor.Stale("%v", err)
	case errors.Is(err, ErrRefused):
		return executor.Unchanged("%v", err)
	}
	return executor.NotKnown("%v", err) // it is unknown whether the change was committed
}
