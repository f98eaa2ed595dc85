package respond

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/response"
)

// loadTime bounds one attempt to load the state for a new term.
const loadTime = 5 * time.Second

// stopTime bounds the wait for executors when the lead is lost. A slower executor continues on its own, under a token
// that targets refuse where they can.
const stopTime = 500 * time.Millisecond

// leadAgain is the pause before a replica tries again to lead responses, after it lost the lead or could not continue
// from the committed state.
const leadAgain = 5 * time.Second

// Lead runs the engine as leader under a fence until the context ends or the fence is lost. A refused commit while
// the fence stands, or unreadable records, end one term: the next begins with the state committed by then. After Lead
// returns, nothing new begins.
func (r *Responder) Lead(ctx context.Context, fence store.Fence) {
	defer r.recovered()
	for {
		r.lead(ctx, fence)
		select {
		case <-ctx.Done():
			return
		case <-r.stopped:
			return
		case <-time.After(r.again):
		}
		if _, err := r.cfg.Store.Confirm(ctx, fence); errors.Is(err, store.ErrNotLeader) {
			r.cfg.Logger.Debug("another supervisor leads", "err", err)
			return
		}
	}
}

// lead runs one term.
func (r *Responder) lead(ctx context.Context, fence store.Fence) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &term{ctx: ctx, fence: fence, ended: make(chan struct{})}
	if !r.load(t) || !r.queue.put(input{lead: t}) {
		return
	}
	select {
	case <-ctx.Done():
		cancel()
		r.queue.put(input{lose: t})
		select {
		case <-t.ended:
		case <-r.stopped:
		}
	case <-t.ended:
	case <-r.stopped:
	}
	cancel()
	r.runner.wait(stopTime)
}

// complain logs, once, that responses are not handled, and why.
func (r *Responder) complain(err error) {
	r.mu.Lock()
	said := r.trouble == err.Error()
	r.trouble = err.Error()
	r.mu.Unlock()
	r.broken.Store(true)
	r.cfg.Metrics.broken(true)
	if !said {
		r.cfg.Logger.Error(
			"cannot resume the committed responses: no response runs until this leader or another can resume them", "err", err)
	}
}

// recovered clears the trouble.
func (r *Responder) recovered() {
	r.mu.Lock()
	r.trouble = ""
	r.mu.Unlock()
	r.broken.Store(false)
	r.cfg.Metrics.broken(false)
}

// loadPatience is how long a store may fail to answer before that counts as trouble.
const loadPatience = 30 * time.Second

// load reads the state for a new term and retries until it succeeds; false: the context ended first. It reports
// unreadable state at once.
func (r *Responder) load(t *term) bool {
	for began := time.Now(); t.ctx.Err() == nil; {
		ctx, cancel := context.WithTimeout(t.ctx, loadTime)
		err := r.loadOnce(ctx, t)
		cancel()
		if err == nil {
			return true
		}
		if t.ctx.Err() == nil && (errors.Is(err, store.ErrUnreadable) || time.Since(began) > loadPatience) {
			r.complain(err)
		}
		r.cfg.Logger.Debug("the responses cannot be loaded yet", "err", err)
		select {
		case <-t.ctx.Done():
		case <-time.After(followAgain):
		}
	}
	return false
}

func (r *Responder) loadOnce(ctx context.Context, t *term) error {
	committed, err := r.cfg.Store.LoadResponses(ctx)
	if err != nil {
		return err
	}
	// That read has made this replica's copy as new as the cluster's.
	policies, err := r.cfg.Store.Policies(ctx)
	if err != nil {
		return err
	}
	marks, marksRev, err := r.cfg.Store.Maintenance(ctx)
	if err != nil {
		return err
	}
	m, err := r.cfg.Awareness.Map(ctx)
	if err != nil {
		return err
	}
	r.verify(ctx, committed.Audit)
	t.begin = beginning{committed, m, []input{
		r.policiesInput(policies),
		{event: response.MaintenanceChanged{Nodes: marked(marks)}, set: &r.marks, rev: marksRev},
	}}
	t.writer = r.cfg.Store.ResponseWriter(t.fence, committed, r.cfg.Audit)
	return nil
}

// verified is how many of the newest audit lines a new leader verifies before it continues the chain.
const verified = 1000

// verify logs unreadable lines among the newest ones of the audit, or a broken chain. The leader still continues the
// audit: every act must be recorded, and readers will find the damaged place.
func (r *Responder) verify(ctx context.Context, head store.AuditHead) {
	if head.Last == 0 {
		return
	}
	from := max(head.First, head.Last-min(head.Last, verified))
	lines, _, err := r.cfg.Store.Audit(ctx, from, verified+1)
	var chain response.AuditChecker
	for _, l := range lines {
		if err == nil && l.Seq <= head.Last {
			var text []byte
			if text, err = l.Marshal(); err == nil {
				err = chain.Check(text)
			}
		}
	}
	if seq, hash := chain.Last(); err == nil && (seq != head.Last || hash != hex.EncodeToString(head.Hash[:])) {
		err = fmt.Errorf("the newest line is %d with hash %.16s: the head says %d with %.16x", seq, hash, head.Last, head.Hash)
	}
	if err != nil && ctx.Err() == nil {
		r.cfg.Metrics.AuditFailures.Inc()
		r.cfg.Logger.Error("the audit of responses is damaged", "err", err)
	}
}
