package half

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source"
	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/agent/actions"
	"github.com/lofamo/lofamo/internal/durable"
)

// Actions passes verified orders to act to the action runner of this node, beside the half and without its mutex,
// because the runner writes to the disk before it answers. An order that finds no room is dropped: the supervisor
// asks again.
type Actions struct {
	waiting chan ActionRequest
	// term is the highest leader's term that this half has seen. It refuses orders of an earlier term, even before
	// the new leader has ordered anything.
	term *atomic.Uint64
}

// ActionRequest is an order that waits.
type ActionRequest struct {
	Order *lofamov1.ActOrder
	// Apart is the half that has another kernel; 0: both have this one.
	Apart fault.Half
	// Made performs an action that is the half's own, and Answer receives the outcome of the order. Both are called
	// without any lock.
	Made   func(ctx context.Context) actions.Result
	Answer func(*lofamov1.ActStatus)
}

// actsWaiting bounds the queued orders; a leader has few for a node, and repeats them.
const actsWaiting = 16

// actsWithin bounds how long is waited for an answer: a disk may hang.
const actsWithin = 10 * time.Second

// NewActions returns an empty queue of actions that has seen no leader's term.
func NewActions() Actions {
	return Actions{waiting: make(chan ActionRequest, actsWaiting), term: new(atomic.Uint64)}
}

// Hear reads a leader's term from a supervisor's verified message, if it holds one. It costs no more than a look at
// the message's kind.
func (a Actions) Hear(m *lofamov1.Message) {
	for o, _ := servicenet.OrderOf(m); ; {
		if now := a.term.Load(); o.Term <= now || a.term.CompareAndSwap(now, o.Term) {
			return
		}
	}
}

// Take takes an order. It does not block.
func (a Actions) Take(asked ActionRequest) {
	select {
	case a.waiting <- asked:
	default:
	}
}

// Run passes orders on until ctx ends. It sleeps while there are none.
func (a Actions) Run(ctx context.Context, stateDir string) {
	for {
		select {
		case <-ctx.Done():
			return
		case asked := <-a.waiting:
			if st := asked.pass(ctx, stateDir, a.term.Load()); st != nil {
				asked.Answer(st)
			}
		}
	}
}

// pass returns the outcome of the order, or nil if there is none: the supervisor then asks again.
func (a ActionRequest) pass(ctx context.Context, stateDir string, heard uint64) *lofamov1.ActStatus {
	ctx, cancel := context.WithTimeout(ctx, actsWithin)
	defer cancel()
	o := actions.FromWire(a.Order)
	o.Heard = heard
	s, err := TellAction(ctx, stateDir, &o)
	switch {
	case errors.Is(err, ErrNoActions) && o.Ask && o.Half() == a.Apart:
		s = actions.Status{State: actions.Unchanged,
			Detail: fmt.Sprintf("the %s half has another kernel, and does not answer: restart it there", a.Apart)}
	case errors.Is(err, ErrNoActions) && o.Ask:
		s = actions.Status{State: actions.Unchanged, Detail: err.Error()}
	case err != nil: // also while the daemon is being restarted: it may have begun
		return nil
	case s.Yours:
		r := actions.Result{State: actions.Unchanged, Detail: "the host half of this node does not live"}
		if a.Made != nil {
			r = a.Made(ctx)
		}
		if err := EndedActions(ctx, stateDir, actions.Ended{Attempt: o.Attempt, State: r.State, Detail: r.Detail}); err != nil {
			return nil
		}
		s.State, s.Detail = r.State, r.Detail
	}
	st := &lofamov1.ActStatus{
		Response: o.Response, Step: uint32(o.Step), Attempt: uint32(o.Attempt.Attempt), State: s.State, Detail: source.Detail(s.Detail),
		Ledger: s.Ledger, Token: s.Token, Allowed: s.Allowed[:min(len(s.Allowed), servicenet.MaxActAllowed)], Fresh: s.Fresh,
	}
	return st
}

// ReadActs returns the ledger of a state directory: the actions that responses ordered. Without a file it is empty.
func ReadActs(stateDir string) (*actions.Ledger, error) {
	l, lost := durable.Load(filepath.Join(stateDir, actions.File), "ledger of acts", actions.MaxLedger, &actions.Ledger{}, actions.Decode)
	return l, lost
}
