// Package node carries out what responses want of a node itself (seed 001 §II: local readjustment): a half restarted, a check run, a frequency limited by its
// agent; and a channel masked, which is the supervisors' own word.
//
// What an executor owes is with the agent: it keeps a ledger, on its disk, of tokens and attempts, before it begins anything (internal/agent/actions), so that it
// refuses what is stale over restarts of its own and of its machine, makes no attempt twice, and says what became of one however often it is asked. Here is
// only who says it to the agent, and again until an answer comes (exchange); the way there and back is the supervisor's (Agents).
// A mask is committed to the store under the leader's fence, marked with the response, and only what bears that mark is taken away.
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

// Agents says orders to nodes.
type Agents interface {
	// Order sends an order to a node, signed; from the second try on through its neighbours as well. It does not block, and what is lost is said again.
	Order(node fault.NodeID, o *lofamov1.ActOrder, try int)
}

// Masks is the supervisors' word on links.
type Masks interface {
	// Mask masks a link in the name of an owner, if nobody has yet, under the fence of the leader whose token it is. mine says whether the mask is the owner's,
	// by whom it is else.
	Mask(ctx context.Context, token uint64, at fault.NodeID, dir grid.Direction, owner, reason string) (mine bool, by string, err error)
	// Unmask takes a link's mask away if it is the owner's, and says whether it was.
	Unmask(ctx context.Context, token uint64, at fault.NodeID, dir grid.Direction, owner string) (was bool, err error)
}

// What Masks fails with where it has certainly changed nothing.
var (
	ErrStale   = errors.New("another leader is elected")
	ErrRefused = errors.New("nothing was changed")
)

// Actor has nodes' agents act. It implements what takes their words: Heard.
type Actor struct {
	agents Agents

	mu      sync.Mutex
	waiting map[key]chan *lofamov1.ActStatus
}

// key is an attempt on a node.
type key struct {
	node     string
	response string
	step     uint32
	attempt  uint32
}

// heardRoom bounds the words of one attempt that wait; beyond it they are dropped: the agent is asked again.
const heardRoom = 16

// NewActor returns one that says its orders by those ways.
func NewActor(agents Agents) *Actor {
	return &Actor{agents: agents, waiting: map[key]chan *lofamov1.ActStatus{}}
}

// Heard takes what a half says of an act. It does not block.
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

// Make has a node's agent make an attempt, and returns how it ended, at the latest when the context does. askFor is how long the agent may take to say that it is
// there.
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

// say says what is to be said now. What may begin something is said only after it was sure, once more, that this leader leads: what is paused after that, and
// goes on when another one leads, names an answer of the agent that is too old by acts.FreshFor at the latest.
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

// timeLeft is until the context ends, or the job's time.
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

// maxTarget is what an order has room for, in bytes.
const maxTarget = 96

func target(j executor.Job) string {
	s := j.Target.String()
	return s[:min(len(s), maxTarget)] // of names, which are ASCII
}

// Executor is for the kinds node.*.
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

// Kinds are those that the executor is for.
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
	default: // of other executors
	}
	return executor.Unchanged("kind %s is not for nodes", j.Kind)
}

// Owner marks what a step of a response has masked.
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
		was, err := e.masks.Unmask(ctx, j.Token, j.Target.Node, dir, Owner(j.Attempt))
		failpoint.Hit(failpoint.NodeOrdered)
		switch {
		case err != nil:
			return failed(err)
		case !was:
			return executor.Done("link %s is not masked by this step any more: it is left as it is", dir)
		}
		return executor.Done("link %s is restored", dir)
	}
	reason := fmt.Sprintf("policy %s: %s", j.Policy, j.Fault.State)
	if j.Fault.Detail != "" {
		reason += ": " + j.Fault.Detail
	}
	mine, by, err := e.masks.Mask(ctx, j.Token, j.Target.Node, dir, Owner(j.Attempt), reason[:min(len(reason), maxReason)])
	failpoint.Hit(failpoint.NodeOrdered)
	switch {
	case err != nil:
		return failed(err)
	case !mine:
		return executor.Done("link %s was masked already, by %s, whose it stays", dir, by)
	}
	return executor.Done("link %s is masked: both ends are told until they have it", dir)
}

// maxReason bounds the reason of a mask, in bytes.
const maxReason = 200

func failed(err error) executor.Result {
	switch {
	case errors.Is(err, ErrStale):
		return executor.Stale("%v", err)
	case errors.Is(err, ErrRefused):
		return executor.Unchanged("%v", err)
	}
	return executor.NotKnown("%v", err) // whether it was committed
}
